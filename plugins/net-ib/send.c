/* The sending side. Messages wait until the receiver has said where they go, then are written there in pieces, one on
 * each of some queue pairs. A receive of several buffers is written when all its messages are there. */
#include "send.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct tt_ib_hooks hooks;

struct tt_ib_link *tt_ib_send_link(struct tt_ib_send_comm *comm)
{
  return &comm->link;
}

void *tt_ib_send_memory(struct tt_ib_send_comm *comm)
{
  return comm->memory;
}

ncclResult_t tt_ib_send_make(const struct tt_ib_device *device, int qps, int pieces, struct tt_ib_send_comm **out)
{
  struct tt_ib_send_comm *comm = NULL;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&comm, 1));
  comm->waiting_end = &comm->waiting;
  comm->threshold = SIZE_MAX;
  comm->memory = mmap(NULL, sizeof *comm->memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (comm->memory == MAP_FAILED) {
    comm->memory = NULL;
    result = TT_FAIL(ncclSystemError, "net ib: no memory for a connection");
    goto out;
  }
  /* Ports of a device have one link layer, and so are alike in this. */
  if (tt_ib_port(device->port[0])->adaptive) comm->threshold = (size_t)tt_param_int(TT_PARAM_NCCL_IB_AR_THRESHOLD);
  for (int i = 0; i < qps; i++) {
    comm->lane[i].size = (uint32_t)(TT_IB_SLOTS * pieces);
    TT_TRY_GOTO(TT_CALLOC(&comm->lane[i].queue, comm->lane[i].size), result, out);
  }
  TT_TRY_GOTO(tt_ib_link_make(&comm->link, &hooks, true, device, qps, pieces, comm->memory, sizeof *comm->memory),
              result, out);
  *out = comm;
  return ncclSuccess;
out:
  for (int i = 0; i < qps; i++) free(comm->lane[i].queue);
  if (comm->memory) munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return result;
}

ncclResult_t tt_ib_close_send(void *send_comm)
{
  struct tt_ib_send_comm *comm = send_comm;
  if (!comm) return ncclSuccess;
  tt_ib_link_end(&comm->link);
  for (int i = 0; i < TT_IB_QPS; i++) free(comm->lane[i].queue);
  while (comm->blocks) {
    struct tt_ib_send_block *block = comm->blocks;
    comm->blocks = block->next;
    free(block);
  }
  munmap(comm->memory, sizeof *comm->memory);
  free(comm);
  return ncclSuccess;
}

/* ---- Requests: each tag has its own number of them, so that none can keep another from being posted ---- */

static bool take_tag(struct tt_ib_send_comm *comm, uint32_t tag)
{
  int at = 0, spare = -1;
  for (; at < comm->tags && comm->tag[at].tag != tag; at++)
    if (comm->tag[at].in_flight == 0) spare = at;
  if (at == comm->tags) {
    if (spare < 0 && comm->tags == TT_IB_SEND_TAGS) return false;
    at = spare >= 0 ? spare : comm->tags++;
    comm->tag[at].tag = tag;
    comm->tag[at].in_flight = 0;
  }
  if (comm->tag[at].in_flight == NCCL_NET_MAX_REQUESTS) return false;
  comm->tag[at].in_flight++;
  return true;
}

static void give_tag(struct tt_ib_send_comm *comm, uint32_t tag)
{
  for (int at = 0; at < comm->tags; at++)
    if (comm->tag[at].tag == tag) comm->tag[at].in_flight--;
}

static ncclResult_t new_request(struct tt_ib_send_comm *comm, struct tt_ib_send_request **out)
{
  if (!comm->free) {
    struct tt_ib_send_block *block;
    TT_TRY(TT_CALLOC(&block, 1));
    block->next = comm->blocks;
    comm->blocks = block;
    for (int i = 0; i < TT_IB_SEND_BLOCK; i++) {
      block->request[i].next = comm->free;
      comm->free = &block->request[i];
    }
  }
  *out = comm->free;
  comm->free = comm->free->next;
  return ncclSuccess;
}

static void free_request(struct tt_ib_send_request *request)
{
  struct tt_ib_send_comm *comm = request->comm;
  give_tag(comm, request->tag);
  request->base.kind = TT_IB_REQUEST_NONE;
  request->next = comm->free;
  comm->free = request;
}

/* ---- Completions ---- */

void tt_ib_piece_arrived(struct tt_ib_send_comm *comm, struct tt_ib_group *group, int piece)
{
  group->arrived |= 1u << piece;
  if (--group->left > 0) return;
  for (int i = 0; i < group->count; i++) group->request[i]->done = true;
  group->active = false;
  while (comm->oldest < comm->next && !tt_ib_group_of(comm, comm->oldest)->active) comm->oldest++;
}

static ncclResult_t done(struct tt_ib_link *link, const struct tt_ib_done *done)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  struct tt_ib_group *group = &comm->group[done->slot];
  if (done->work == TT_IB_WORK_LOOK) {
    tt_ib_take_look(comm);
    return ncclSuccess;
  }
  /* What was sent again another way may be told of twice. */
  if (done->work != TT_IB_WORK_LAST || !group->active || group->carrier[done->piece] != done->qp ||
      (group->arrived & 1u << done->piece))
    return ncclSuccess;
  tt_ib_piece_arrived(comm, group, done->piece);
  return ncclSuccess;
}

static const struct tt_ib_hooks hooks = {.done = done, .down = tt_ib_settle_later, .note = tt_ib_take_note};

/* ---- Calls ---- */

ncclResult_t tt_ib_isend(void *send_comm, void *data, size_t bytes, int tag, void *memory, void **out)
{
  struct tt_ib_send_comm *comm = send_comm;
  struct tt_ib_send_request *request;
  *out = NULL;
  if (!comm) return TT_FAIL(ncclInternalError, "net ib: isend on NULL");
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  if (bytes && !memory) return TT_FAIL(ncclInternalError, "net ib: isend of %zu bytes that are not registered", bytes);
  if (bytes) TT_TRY(tt_ib_link_look_for(&comm->link, memory));
  TT_TRY(tt_ib_look_for_clear(comm));
  if (!take_tag(comm, (uint32_t)tag)) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  ncclResult_t result = new_request(comm, &request);
  if (result != ncclSuccess) {
    give_tag(comm, (uint32_t)tag);
    return result;
  }
  *request = (struct tt_ib_send_request){.base.kind = TT_IB_REQUEST_SEND,
                                         .comm = comm,
                                         .data = data,
                                         .bytes = bytes,
                                         .tag = (uint32_t)tag,
                                         .memory = memory};
  if (!tt_ib_match_request(comm, request)) {
    *comm->waiting_end = request;
    comm->waiting_end = &request->next;
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
  }
  tt_count_begun(&comm->link.counted);
  *out = request;
  return tt_ib_post_lanes(comm);
}

ncclResult_t tt_ib_send_test(struct tt_ib_request *base, int *done, int *sizes)
{
  struct tt_ib_send_request *request = (struct tt_ib_send_request *)base;
  struct tt_ib_send_comm *comm = request->comm;
  if (!request->done) {
    TT_TRY(tt_ib_link_progress(&comm->link));
    if (comm->unsettled) TT_TRY(tt_ib_settle(comm));
    TT_TRY(tt_ib_look_for_clear(comm));
    TT_TRY(tt_ib_post_lanes(comm));
  }
  if (!request->done) return ncclSuccess;
  if (request->too_large) {
    comm->link.told = true; /* the receiver has found it by itself */
    return tt_ib_link_fail(&comm->link, TT_FAIL(ncclInvalidUsage,
                                                "net ib: a message of %zu bytes is larger than the buffer "
                                                "that the peer %s has for it",
                                                request->bytes, comm->link.peer));
  }
  *done = 1;
  if (sizes) *sizes = (int)request->bytes;
  tt_count_message(&comm->link.counted, request->bytes);
  tt_count_ended(&comm->link.counted);
  free_request(request);
  return ncclSuccess;
}
