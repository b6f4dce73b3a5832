/* Flushes: reads of what was received, through the NICs that have written it, each over a queue pair that is connected
 * with itself. They need no peer. */
#include "recv.h"

#include <stdlib.h>

/* For a flush to end, once its connection has failed since the peer left. */
#define OUTLAST_MS 1000

void tt_ib_take_flush(struct tt_ib_recv_comm *comm, const struct tt_ib_done *done)
{
  /* The number may be another's by now: who needed it no more has not waited. */
  struct tt_ib_flush_request *flush = comm->flush[done->slot];
  if (flush && flush->read[done->piece] == comm->link.qp[done->qp].retired) flush->left &= ~(1u << done->piece);
}

/* Does a flush have to read through this rail? Where the NIC is gone there is nothing to read through. Where only the
 * rail is not used any more, the port's link or the peer's port may be to blame, and the NIC still has to flush what
 * has come there; if it has another port, that one does. */
static bool needs_read(const struct tt_ib_recv_comm *comm, int r)
{
  const struct tt_ib_link *link = &comm->link;
  const struct tt_ib_qp *loop = &link->qp[link->qps + r];
  if (loop->dead) return false;
  if (tt_ib_rail_alive(link, r)) return true;
  return !atomic_load(&loop->port->nic->fatal) && !tt_ib_other_flushes(link, r) && !tt_ib_is_flushed(link, r);
}

static void drop_reads(struct tt_ib_recv_comm *comm, struct tt_ib_flush_request *flush)
{
  for (int r = 0; r < comm->link.rails; r++) {
    if (!(flush->left & 1u << r) || needs_read(comm, r)) continue;
    if (flush->to_post == 1u << r) comm->flushes_to_post--;
    flush->to_post &= ~(1u << r);
    flush->left &= ~(1u << r);
  }
}

static ncclResult_t post_flush(struct tt_ib_recv_comm *comm, int number)
{
  struct tt_ib_flush_request *flush = comm->flush[number];
  drop_reads(comm, flush);
  for (int r = 0; r < comm->link.rails; r++) {
    int index = comm->link.qps + r;
    if (!(flush->to_post & 1u << r) || !tt_ib_link_room(&comm->link, index, 1)) continue;
    struct ibv_sge sge = {.addr = (uintptr_t)&comm->memory->flushed, .length = 1, .lkey = comm->link.rail[r].mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1};
    wr.wr.rdma.remote_addr = flush->address;
    wr.wr.rdma.rkey = flush->memory->mr[r]->rkey;
    /* Before, since the rail may fail with it. */
    flush->to_post &= ~(1u << r);
    if (!flush->to_post) comm->flushes_to_post--;
    flush->read[r] = comm->link.qp[index].posted + 1;
    TT_TRY(tt_ib_link_post(&comm->link, index, &wr,
                           (struct tt_ib_done){.work = TT_IB_WORK_FLUSH, .slot = number, .piece = r}, true));
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **memory, void **out)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  int last = -1, number = 0;
  *out = NULL; /* complete */
  if (!comm) return TT_FAIL(ncclInternalError, "net ib: iflush on NULL");
  if (comm->link.failed != ncclSuccess && !comm->link.left) return comm->link.failed;
  /* The last one's read is behind the writes of all. */
  for (int i = 0; i < n; i++)
    if (sizes[i] > 0 && memory[i] && !((struct tt_ib_memory *)memory[i])->host) last = i;
  if (last < 0) return ncclSuccess;
  TT_TRY(tt_ib_link_look_for(&comm->link, memory[last]));
  while (number < TT_IB_FLUSHES && comm->flush[number]) number++;
  if (number == TT_IB_FLUSHES)
    return TT_FAIL(ncclInternalError, "net ib: more than %d flushes under way; test those that are done",
                   TT_IB_FLUSHES);
  struct tt_ib_flush_request *flush = comm->free_flushes;
  if (flush)
    comm->free_flushes = flush->next;
  else
    TT_TRY(TT_CALLOC(&flush, 1));
  *flush = (struct tt_ib_flush_request){
      .base.kind = TT_IB_REQUEST_FLUSH, .comm = comm, .address = (uintptr_t)data[last], .memory = memory[last]};
  for (int r = 0; r < comm->link.rails; r++)
    if (needs_read(comm, r)) flush->to_post |= 1u << r;
  flush->left = flush->to_post;
  comm->flush[number] = flush;
  comm->flushes_to_post += flush->to_post != 0;
  *out = flush;
  return post_flush(comm, number);
}

ncclResult_t tt_ib_post_flushes(struct tt_ib_recv_comm *comm)
{
  for (int i = 0; i < TT_IB_FLUSHES && comm->flushes_to_post; i++)
    if (comm->flush[i] && comm->flush[i]->to_post) TT_TRY(post_flush(comm, i));
  return ncclSuccess;
}

/* Moves nothing but flushes. */
static ncclResult_t outlast(struct tt_ib_flush_request *flush)
{
  struct tt_ib_recv_comm *comm = flush->comm;
  if (!flush->outlasts) flush->outlasts = tt_deadline_in_ms(OUTLAST_MS);
  bool over = tt_deadline_passed(flush->outlasts);
  TT_TRY(tt_ib_link_look(&comm->link));
  TT_TRY(tt_ib_post_flushes(comm));
  return over ? comm->link.failed : ncclSuccess;
}

ncclResult_t tt_ib_flush_test(struct tt_ib_flush_request *flush, int *done)
{
  struct tt_ib_recv_comm *comm = flush->comm;
  if (flush->left) {
    ncclResult_t result = tt_ib_recv_progress(comm);
    if (result != ncclSuccess && comm->link.left) result = outlast(flush);
    if (result != ncclSuccess && flush->left) return result;
  }
  drop_reads(comm, flush);
  if (flush->left) return ncclSuccess;
  for (int i = 0; i < TT_IB_FLUSHES; i++)
    if (comm->flush[i] == flush) comm->flush[i] = NULL;
  flush->base.kind = TT_IB_REQUEST_NONE;
  flush->next = comm->free_flushes;
  comm->free_flushes = flush;
  *done = 1;
  return ncclSuccess;
}

void tt_ib_flushes_free(struct tt_ib_recv_comm *comm)
{
  for (int i = 0; i < TT_IB_FLUSHES; i++) free(comm->flush[i]);
  while (comm->free_flushes) {
    struct tt_ib_flush_request *flush = comm->free_flushes;
    comm->free_flushes = flush->next;
    free(flush);
  }
}
