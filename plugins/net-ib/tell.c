/* Where the sender's messages go: the entries of receives in its ring, several at once where nobody waits for them, and
 * again another way when one has failed. */
#include "recv.h"

#include <string.h>

#define TOGETHER 8 /* receives that are told at once; each is 512 bytes */
#define ENOUGH 3   /* receives that keep a sender busy until it hears of more */

/* Writes the entries of some receives, whose slots lie side by side, into the sender's ring, if there is room on the
 * first queue pair that is well; else a later call does. Doing it twice does no harm: they stay the same until the
 * receive is done, and then the sender knows; and on one queue pair none comes behind those that take its place. */
static ncclResult_t tell_run(struct tt_ib_recv_comm *comm, int slot, int count)
{
  struct tt_ib_recv_request *first = &comm->request[slot], *last = first + count - 1;
  int index = tt_ib_alive(&comm->link, 0);
  if (!tt_ib_link_room(&comm->link, index, 1)) return ncclSuccess;
  struct tt_ib_qp *qp = &comm->link.qp[index];
  struct ibv_sge sge = {.addr = (uintptr_t)comm->memory->ring.entry[slot],
                        .length = (uint32_t)((size_t)(count - 1) * sizeof comm->memory->ring.entry[slot] +
                                             (size_t)last->n * sizeof(struct tt_ib_clear)),
                        .lkey = comm->link.rail[qp->rail].mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1};
  wr.wr.rdma.remote_addr = comm->link.remote.memory + offsetof(struct tt_ib_ring, entry[slot]);
  wr.wr.rdma.rkey = comm->link.remote.rail[qp->remote_rail].rkey;
  if (sge.length <= qp->max_inline) wr.send_flags = IBV_SEND_INLINE;
  for (struct tt_ib_recv_request *request = first; request <= last; request++) {
    request->told = true;
    request->told_qp = index;
  }
  comm->told += count;
  comm->untold -= count;
  comm->ended = TT_MAX(comm->ended - count, 0);
  return tt_ib_link_post(&comm->link, index, &wr, (struct tt_ib_done){.work = TT_IB_WORK_CLEAR, .slot = slot}, false);
}

/* Whether its entries are to be written now. Behind them might come those of the slot's last receive, if these are
 * still on a way that has failed, so they wait until the sender's end of it takes nothing any more. */
static bool is_to_be_told(const struct tt_ib_recv_request *request, const struct tt_ib_recv_comm *comm)
{
  if (request->base.kind != TT_IB_REQUEST_RECV || request->done || request->told) return false;
  uint64_t before = comm->unsure ? comm->doubt[request->number % TT_IB_SLOTS] : 0;
  return !before || before == request->number + 1;
}

/* In order, since the sender takes them so. */
static ncclResult_t tell_rest(struct tt_ib_recv_comm *comm)
{
  for (uint64_t number = comm->oldest; comm->untold > 0 && number < comm->next;) {
    int slot = (int)(number % TT_IB_SLOTS), count = 0;
    while (slot + count < TT_IB_SLOTS && number + (uint64_t)count < comm->next && count < TOGETHER &&
           is_to_be_told(&comm->request[slot + count], comm))
      count++;
    if (count > 0) TT_TRY(tell_run(comm, slot, count));
    number += (uint64_t)TT_MAX(count, 1);
  }
  comm->gaps = comm->untold > 0; /* there was no room for them, or they wait */
  return ncclSuccess;
}

/* Whether the sender may be told later, and of several receives at once, which costs both sides as much as one. It must
 * know of enough others to go on with meanwhile, whichever message is next: those have the same tag. And only receives
 * that take the place of others wait, so that who posts some and does something else has them all posted. */
static bool may_wait(const struct tt_ib_recv_comm *comm)
{
  return !comm->gaps && comm->oldest >= comm->alike && comm->told >= ENOUGH && comm->told > comm->untold &&
         comm->untold <= comm->ended;
}

ncclResult_t tt_ib_tell_sender(struct tt_ib_recv_comm *comm)
{
  while (comm->oldest < comm->next && comm->request[comm->oldest % TT_IB_SLOTS].done) comm->oldest++;
  return comm->untold > 0 && !may_wait(comm) ? tell_rest(comm) : ncclSuccess;
}

/* ---- Failing over ---- */

static void untell(struct tt_ib_recv_comm *comm, struct tt_ib_recv_request *request)
{
  request->told = false;
  if (request->done) return;
  comm->doubt[request->number % TT_IB_SLOTS] = request->number + 1;
  comm->told--;
  comm->untold++;
}

static void look_if_sure(struct tt_ib_recv_comm *comm)
{
  comm->unsure = false;
  for (int i = 0; i < comm->link.qps; i++) comm->unsure |= comm->link.qp[i].dead && !comm->stopped[i];
  if (!comm->unsure) memset(comm->doubt, 0, sizeof comm->doubt);
}

ncclResult_t tt_ib_untell_way(struct tt_ib_link *link, int qp)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  for (int i = 0; i < TT_IB_SLOTS; i++)
    if (comm->request[i].told && tt_ib_same_way(link, qp, comm->request[i].told_qp)) untell(comm, &comm->request[i]);
  comm->gaps = comm->untold > 0;
  look_if_sure(comm);
  return ncclSuccess;
}

ncclResult_t tt_ib_take_down(struct tt_ib_link *link, const struct tt_ib_note *note)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  bool saved;
  TT_TRY(tt_ib_fail_over(link, (int)note->value, "the peer lost it", &saved));
  for (int i = 0; i < link->qps; i++) comm->stopped[i] |= tt_ib_same_way(link, (int)note->value, i);
  look_if_sure(comm);
  if (saved) return ncclSuccess;
  return tt_ib_link_fail(link,
                         TT_FAIL(ncclRemoteError, "net ib: the peer %s lost the last way here, over %s port %d",
                                 link->peer, link->qp[note->value].port->name, link->qp[note->value].port->number));
}
