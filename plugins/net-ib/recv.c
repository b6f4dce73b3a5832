/* The receiving side. Each receive has a slot of a ring; its buffers are announced to the sender, and it is done when
 * all pieces have been announced back. */
#include "recv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct tt_ib_hooks hooks;

struct tt_ib_link *tt_ib_recv_link(struct tt_ib_recv_comm *comm)
{
  return &comm->link;
}

void *tt_ib_recv_memory(struct tt_ib_recv_comm *comm)
{
  return comm->memory;
}

ncclResult_t tt_ib_recv_make(const struct tt_ib_device *device, int qps, int pieces, struct tt_ib_recv_comm **out)
{
  struct tt_ib_recv_comm *comm = NULL;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&comm, 1));
  comm->memory = mmap(NULL, sizeof *comm->memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (comm->memory == MAP_FAILED) {
    comm->memory = NULL;
    result = TT_FAIL(ncclSystemError, "net ib: no memory for a connection");
    goto out;
  }
  TT_TRY_GOTO(tt_ib_link_make(&comm->link, &hooks, false, device, qps, pieces, comm->memory, sizeof *comm->memory),
              result, out);
  *out = comm;
  return ncclSuccess;
out:
  if (comm->memory) munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return result;
}

ncclResult_t tt_ib_recv_start(struct tt_ib_recv_comm *comm)
{
  bool gpus = false;
  for (int i = 0; i < comm->link.qps; i++)
    for (int k = 0; k < TT_IB_SLOTS * comm->link.pieces && !comm->link.qp[i].dead; k++)
      TT_TRY(tt_ib_link_post_receive(&comm->link, i));
  for (int i = 0; i < comm->link.rails; i++)
    gpus |= comm->link.rail[i].port->takes_peer_memory || comm->link.rail[i].port->takes_dmabuf;
  return gpus ? tt_ib_link_add_loops(&comm->link) : ncclSuccess;
}

static void describe(struct tt_ib_link *link, struct tt_ib_note *note);

/* Answers of the NIC that were lost are not sent again once the queue pairs are gone. */
static void say_end(struct tt_ib_link *link)
{
  struct tt_ib_note note = {.kind = TT_IB_END};
  if (link->failed != ncclSuccess || link->lost_since) return;
  describe(link, &note);
  tt_ib_note_send(link, &note);
}

ncclResult_t tt_ib_close_recv(void *recv_comm)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  if (!comm) return ncclSuccess;
  say_end(&comm->link);
  tt_ib_link_end(&comm->link);
  tt_ib_flushes_free(comm);
  munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return ncclSuccess;
}

/* ---- Completions ---- */

static ncclResult_t finish(struct tt_ib_recv_comm *comm, struct tt_ib_recv_request *request, int slot)
{
  if (request->record) memcpy(request->bytes, comm->memory->inbox.record[slot].bytes, sizeof request->bytes);
  for (int i = 0; i < request->n; i++)
    if (request->bytes[i] > request->room[i]) {
      comm->link.told = true; /* the sender knows */
      return tt_ib_link_fail(&comm->link,
                             TT_FAIL(ncclInvalidUsage,
                                     "net ib: the peer %s sent %llu bytes, and the receive "
                                     "has room for %zu; do the ranks call with the same "
                                     "counts and types?",
                                     comm->link.peer, (unsigned long long)request->bytes[i], request->room[i]));
    }
  request->done = true;
  __atomic_store_n(&comm->memory->inbox.done[slot], request->number + 1, __ATOMIC_RELEASE);
  comm->told -= request->told;
  comm->untold -= !request->told;
  comm->ended = TT_MIN(comm->ended + 1, comm->told + comm->untold);
  return ncclSuccess;
}

static ncclResult_t piece_arrived(struct tt_ib_recv_comm *comm, uint32_t imm)
{
  int slot = (int)(imm >> TT_IB_IMM_SLOT_SHIFT & (TT_IB_SLOTS - 1));
  int piece = (int)(imm >> TT_IB_IMM_PIECE_SHIFT & (TT_IB_PIECES - 1));
  struct tt_ib_recv_request *request = &comm->request[slot];
  if (request->base.kind != TT_IB_REQUEST_RECV || request->done || (request->arrived & 1u << piece))
    return tt_ib_link_fail(&comm->link, TT_FAIL(ncclRemoteError,
                                                "net ib: the peer %s announced piece %d of receive %d, which "
                                                "nobody waits for",
                                                comm->link.peer, piece, slot));
  request->arrived |= 1u << piece;
  if (imm & TT_IB_IMM_ONLY) request->wanted = 1;
  if (piece == 0) {
    request->record = imm & TT_IB_IMM_RECORD;
    request->bytes[0] = imm & TT_IB_IMM_BYTES;
  }
  return request->arrived == request->wanted ? finish(comm, request, slot) : ncclSuccess;
}

static ncclResult_t done(struct tt_ib_link *link, const struct tt_ib_done *done)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  if (done->work == TT_IB_WORK_RECEIVE) {
    tt_ib_unflushed(link, link->qp[done->qp].rail);
    return piece_arrived(comm, done->imm);
  }
  if (done->work == TT_IB_WORK_FLUSH) tt_ib_take_flush(comm, done);
  return ncclSuccess;
}

/* ---- Receives ---- */

static void describe(struct tt_ib_link *link, struct tt_ib_note *note)
{
  struct tt_ib_recv_comm *comm = (struct tt_ib_recv_comm *)link;
  for (int i = 0; i < TT_IB_SLOTS; i++) {
    const struct tt_ib_recv_request *request = &comm->request[i];
    note->slot[i].number = request->n ? (uint32_t)(request->number + 1) : 0;
    note->slot[i].arrived = request->done ? UINT32_MAX : request->arrived;
  }
}

static const struct tt_ib_hooks hooks = {.done = done, .down = tt_ib_untell_way, .note = tt_ib_take_down};

ncclResult_t tt_ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **memory,
                         void **out)
{
  struct tt_ib_recv_comm *comm = recv_comm;
  *out = NULL;
  if (!comm || n < 1 || n > TT_IB_RECVS)
    return TT_FAIL(ncclInternalError, "net ib: irecv of %d buffers; 1 to %d are possible", n, TT_IB_RECVS);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  int slot = (int)(comm->next % TT_IB_SLOTS);
  struct tt_ib_recv_request *request = &comm->request[slot];
  if (request->base.kind != TT_IB_REQUEST_NONE) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  for (int i = 0; i < n; i++)
    if (sizes[i] && !memory[i])
      return TT_FAIL(ncclInternalError, "net ib: irecv into %zu bytes that are not registered", sizes[i]);
  for (int i = 0; i < n; i++) TT_TRY(tt_ib_link_look_for(&comm->link, memory[i]));
  for (int i = 0; i < n; i++) {
    const struct tt_ib_memory *registered = memory[i];
    struct tt_ib_clear *entry = &comm->memory->ring.entry[slot][i];
    memset(entry, 0, sizeof *entry);
    entry->address = (uintptr_t)data[i];
    entry->bytes = sizes[i];
    entry->tag = (uint32_t)tags[i];
    entry->count = (uint32_t)n;
    for (int r = 0; registered && r < registered->count; r++)
      if (registered->mr[r]) entry->rkey[r] = registered->mr[r]->rkey;
    /* Last, since a NIC may be about to read the slot for what is told again of its last receive. */
    __atomic_store_n(&entry->sequence, comm->next + 1, __ATOMIC_RELEASE);
  }
  memset(request, 0, sizeof *request);
  request->comm = comm;
  request->number = comm->next++;
  request->n = n;
  request->wanted = comm->link.pieces == 32 ? UINT32_MAX : (1u << comm->link.pieces) - 1;
  for (int i = 0; i < n; i++) request->room[i] = sizes[i];
  request->base.kind = TT_IB_REQUEST_RECV;
  tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  tt_count_begun(&comm->link.counted);
  if (n != 1 || tags[0] != comm->tag) comm->alike = n == 1 ? request->number : comm->next;
  comm->tag = tags[0];
  comm->untold++;
  TT_TRY(tt_ib_tell_sender(comm));
  *out = request;
  return ncclSuccess;
}

/* ---- test ---- */

ncclResult_t tt_ib_recv_progress(struct tt_ib_recv_comm *comm)
{
  TT_TRY(tt_ib_link_progress(&comm->link));
  if (comm->link.drains) TT_TRY(tt_ib_report_drained(&comm->link, describe));
  TT_TRY(tt_ib_tell_sender(comm));
  return tt_ib_post_flushes(comm);
}

ncclResult_t tt_ib_recv_test(struct tt_ib_request *base, int *done, int *sizes)
{
  if (base->kind == TT_IB_REQUEST_FLUSH) return tt_ib_flush_test((struct tt_ib_flush_request *)base, done);
  struct tt_ib_recv_request *request = (struct tt_ib_recv_request *)base;
  /* What came before the failure is there all the same. */
  ncclResult_t result = request->done ? ncclSuccess : tt_ib_recv_progress(request->comm);
  if (!request->done) return result;
  for (int i = 0; i < request->n; i++) {
    if (sizes) sizes[i] = (int)request->bytes[i];
    tt_count_message(&request->comm->link.counted, request->bytes[i]);
  }
  tt_count_ended(&request->comm->link.counted);
  request->base.kind = TT_IB_REQUEST_NONE;
  *done = 1;
  return ncclSuccess;
}
