/* The sending side. Messages wait until the receiver has said where they go, then are written there in pieces, one on
 * each of some queue pairs. A receive of several buffers is written when all its messages are there. */
#include "net_ib.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN 128                   /* pieces begin at multiples of it, so that no line of LL128 is torn */
#define ONE_PIECE ((size_t)8 << 10) /* so much goes as one piece: a second request costs more than it saves */
#define TAGS 256                    /* in flight at once */
#define BLOCK NCCL_NET_MAX_REQUESTS

struct send_request {
  struct tt_ib_request base;
  struct tt_ib_send_comm *comm;
  struct send_request *next; /* free, or waiting */
  char *data;
  size_t bytes;
  uint32_t tag;
  const struct tt_ib_memory *memory;
  bool done, too_large;
};

/* A receive of the peer, and what is written for it. */
struct group {
  bool active;
  uint64_t number;
  int count, matched;
  struct tt_ib_clear entry[TT_IB_RECVS];
  struct send_request *request[TT_IB_RECVS];
  int pieces, left;              /* left: pieces that are not known to have arrived */
  uint32_t arrived;              /* the others, as bits */
  uint8_t carrier[TT_IB_PIECES]; /* the queue pair of each */
  bool record;
};

/* The pieces that wait for room on a queue pair, and how far the first is. */
struct lane {
  uint16_t *queue; /* slot << 8 | piece */
  uint32_t head, tail, size;
  int member;
  size_t offset; /* of the member's slice */
};

struct block {
  struct block *next;
  struct send_request request[BLOCK];
};

struct memory {
  struct tt_ib_ring ring;                  /* written by the receiver */
  struct tt_ib_record record[TT_IB_SLOTS]; /* what is written into its records */
};

struct tt_ib_send_comm {
  struct tt_ib_link link; /* first: registrations know only it */
  struct memory *memory;
  uint64_t next, oldest; /* receives: the next to look for; the oldest that is not done */
  struct group group[TT_IB_SLOTS];
  struct lane lane[TT_IB_QPS];
  uint32_t queued; /* pieces in all lanes */
  struct send_request *waiting, **waiting_end, *free;
  struct block *blocks;
  struct {
    uint32_t tag;
    int in_flight;
  } tag[TAGS];
  int tags;
  size_t threshold; /* of adaptive routing; SIZE_MAX without */
};

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
  for (int i = 0; i < device->count; i++)
    if (tt_ib_port(device->port[i])->adaptive) comm->threshold = (size_t)tt_param_int(TT_PARAM_NCCL_IB_AR_THRESHOLD);
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
    struct block *block = comm->blocks;
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
    if (spare < 0 && comm->tags == TAGS) return false;
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

static ncclResult_t new_request(struct tt_ib_send_comm *comm, struct send_request **out)
{
  if (!comm->free) {
    struct block *block;
    TT_TRY(TT_CALLOC(&block, 1));
    block->next = comm->blocks;
    comm->blocks = block;
    for (int i = 0; i < BLOCK; i++) {
      block->request[i].next = comm->free;
      comm->free = &block->request[i];
    }
  }
  *out = comm->free;
  comm->free = comm->free->next;
  return ncclSuccess;
}

static void free_request(struct send_request *request)
{
  struct tt_ib_send_comm *comm = request->comm;
  give_tag(comm, request->tag);
  request->base.kind = TT_IB_REQUEST_NONE;
  request->next = comm->free;
  comm->free = request;
}

/* ---- Pieces ---- */

static struct group *group_of(struct tt_ib_send_comm *comm, uint64_t number)
{
  return &comm->group[number % TT_IB_SLOTS];
}

/* The part of a message that belongs to a piece. */
static size_t slice(const struct send_request *request, int piece, int pieces, size_t *begin)
{
  if (request->too_large) return *begin = 0;
  size_t each = ((request->bytes + (size_t)pieces - 1) / (size_t)pieces + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  *begin = TT_MIN(each * (size_t)piece, request->bytes);
  return TT_MIN(each, request->bytes - *begin);
}

static size_t piece_bytes(const struct group *group, int piece)
{
  size_t sum = 0, begin;
  for (int i = 0; i < group->count; i++) sum += slice(group->request[i], piece, group->pieces, &begin);
  return sum;
}

static void queue_piece(struct tt_ib_send_comm *comm, int slot, int piece, int qp)
{
  struct lane *lane = &comm->lane[qp];
  comm->group[slot].carrier[piece] = (uint8_t)qp;
  lane->queue[lane->tail++ % lane->size] = (uint16_t)(slot << 8 | piece);
  comm->queued++;
}

/* All messages of the receive are there: shares it out to the queue pairs, which the receives take in turn. */
static void queue_group(struct tt_ib_send_comm *comm, uint64_t number)
{
  struct group *group = group_of(comm, number);
  int slot = (int)(number % TT_IB_SLOTS);
  size_t total = 0;
  group->record = group->count > 1;
  for (int i = 0; i < group->count; i++) {
    total += group->request[i]->bytes;
    comm->memory->record[slot].bytes[i] = group->request[i]->bytes;
  }
  if (total > TT_IB_IMM_BYTES) group->record = true;
  group->pieces = total <= ONE_PIECE ? 1 : comm->link.pieces;
  group->left = group->pieces;
  for (int piece = 0; piece < group->pieces; piece++) {
    uint64_t place = number * (uint64_t)group->pieces + (uint64_t)piece;
    queue_piece(comm, slot, piece, tt_ib_alive(&comm->link, (int)(place % (uint64_t)comm->link.qps)));
  }
}

static uint32_t immediate(const struct group *group, int slot, int piece)
{
  uint32_t imm = (uint32_t)slot << TT_IB_IMM_SLOT_SHIFT | (uint32_t)piece << TT_IB_IMM_PIECE_SHIFT;
  if (group->pieces == 1) imm |= TT_IB_IMM_ONLY;
  if (piece > 0) return imm;
  return group->record ? imm | TT_IB_IMM_RECORD : imm | (uint32_t)group->request[0]->bytes;
}

/* The next write of data of the piece at the head of the lane; false if all are out. *ends: none comes after it. */
static bool next_write(struct tt_ib_send_comm *comm, int index, struct group *group, int piece, struct ibv_send_wr *wr,
                       struct ibv_sge *sge, bool *ends)
{
  struct lane *lane = &comm->lane[index];
  const struct tt_ib_qp *qp = &comm->link.qp[index];
  size_t begin = 0, bytes = 0;
  for (; lane->member < group->count; lane->member++, lane->offset = 0) {
    bytes = slice(group->request[lane->member], piece, group->pieces, &begin);
    if (lane->offset < bytes) break;
  }
  if (lane->member == group->count) return false;
  const struct send_request *request = group->request[lane->member];
  const struct tt_ib_clear *entry = &group->entry[lane->member];
  size_t now = TT_MIN(bytes - lane->offset, (size_t)qp->port->max_message), at = begin + lane->offset;
  *sge = (struct ibv_sge){
      .addr = (uintptr_t)request->data + at, .length = (uint32_t)now, .lkey = request->memory->mr[qp->rail]->lkey};
  wr->wr.rdma.remote_addr = entry->address + at;
  wr->wr.rdma.rkey = entry->rkey[qp->remote_rail];
  wr->sg_list = sge;
  wr->num_sge = 1;
  if (request->memory->host && now <= qp->max_inline) wr->send_flags |= IBV_SEND_INLINE;
  lane->offset += now;
  *ends = lane->offset == bytes;
  for (int i = lane->member + 1; i < group->count; i++)
    *ends &= slice(group->request[i], piece, group->pieces, &begin) == 0;
  return true;
}

static void write_record(struct tt_ib_send_comm *comm, int index, int slot, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
  const struct tt_ib_qp *qp = &comm->link.qp[index];
  *sge = (struct ibv_sge){.addr = (uintptr_t)&comm->memory->record[slot],
                          .length = sizeof(struct tt_ib_record),
                          .lkey = comm->link.rail[qp->rail].mr->lkey};
  wr->wr.rdma.remote_addr = comm->link.remote.memory + (uint64_t)slot * sizeof(struct tt_ib_record);
  wr->wr.rdma.rkey = comm->link.remote.rail[qp->remote_rail].rkey;
  wr->sg_list = sge;
  wr->num_sge = 1;
  if (sge->length <= qp->max_inline) wr->send_flags |= IBV_SEND_INLINE;
}

/* Posts what there is room for on one queue pair. */
static ncclResult_t post_lane(struct tt_ib_send_comm *comm, int index)
{
  struct lane *lane = &comm->lane[index];
  while (lane->head != lane->tail && tt_ib_link_room(&comm->link, index, 1)) {
    uint16_t place = lane->queue[lane->head % lane->size];
    int slot = place >> 8, piece = place & 0xff;
    struct group *group = &comm->group[slot];
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE};
    struct ibv_sge sge;
    bool ends = false, record = group->record && piece == 0;
    /* With adaptive routing data may overtake data, but never what announces it, if that is a request of its own. */
    bool apart = record || piece_bytes(group, piece) > comm->threshold;
    bool data = next_write(comm, index, group, piece, &wr, &sge, &ends), last = data ? ends && !apart : true;
    if (!data && record) write_record(comm, index, slot, &wr, &sge);
    struct tt_ib_done what = {.work = last ? TT_IB_WORK_LAST : TT_IB_WORK_DATA, .slot = slot, .piece = piece};
    if (last) {
      wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      wr.imm_data = htonl(immediate(group, slot, piece));
      lane->head++;
      lane->member = 0;
      lane->offset = 0;
      comm->queued--;
    }
    TT_TRY(tt_ib_link_post(&comm->link, index, &wr, what, last));
  }
  return ncclSuccess;
}

static ncclResult_t post_lanes(struct tt_ib_send_comm *comm)
{
  for (int i = 0; i < comm->link.qps && comm->queued; i++) TT_TRY(post_lane(comm, i));
  return ncclSuccess;
}

/* ---- Matching ---- */

static void match(struct tt_ib_send_comm *comm, uint64_t number, int at, struct send_request *request)
{
  struct group *group = group_of(comm, number);
  group->request[at] = request;
  request->too_large = request->bytes > group->entry[at].bytes;
  if (++group->matched == group->count) queue_group(comm, number);
}

/* Gives the oldest free buffer with the tag of the request to it. */
static bool match_request(struct tt_ib_send_comm *comm, struct send_request *request)
{
  for (uint64_t number = comm->oldest; number < comm->next; number++) {
    struct group *group = group_of(comm, number);
    if (!group->active || group->matched == group->count) continue;
    for (int i = 0; i < group->count; i++)
      if (!group->request[i] && group->entry[i].tag == request->tag) {
        match(comm, number, i, request);
        return true;
      }
  }
  return false;
}

/* Gives the buffers of a new receive to those that wait for them. */
static void match_group(struct tt_ib_send_comm *comm, uint64_t number)
{
  struct group *group = group_of(comm, number);
  for (int i = 0; i < group->count; i++) {
    struct send_request **at = &comm->waiting;
    while (*at && (*at)->tag != group->entry[i].tag) at = &(*at)->next;
    struct send_request *request = *at;
    if (!request) continue;
    *at = request->next;
    if (!request->next) comm->waiting_end = at;
    match(comm, number, i, request);
  }
}

/* Looks whether the receiver has cleared more. */
static ncclResult_t look_for_clear(struct tt_ib_send_comm *comm)
{
  for (;;) {
    uint64_t number = comm->next;
    struct group *group = group_of(comm, number);
    struct tt_ib_clear *entry = comm->memory->ring.entry[number % TT_IB_SLOTS];
    if (group->active || __atomic_load_n(&entry[0].sequence, __ATOMIC_ACQUIRE) != number + 1) return ncclSuccess;
    uint32_t count = entry[0].count;
    if (count < 1 || count > TT_IB_RECVS)
      return tt_ib_link_fail(&comm->link, TT_FAIL(ncclRemoteError,
                                                  "net ib: the peer %s receives %u messages at once; 1 to %d "
                                                  "are possible",
                                                  comm->link.peer, count, TT_IB_RECVS));
    for (uint32_t i = 1; i < count; i++)
      if (__atomic_load_n(&entry[i].sequence, __ATOMIC_ACQUIRE) != number + 1) return ncclSuccess;
    memset(group, 0, sizeof *group);
    memcpy(group->entry, entry, count * sizeof *entry);
    group->count = (int)count;
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
    group->active = true;
    group->number = number;
    comm->next = number + 1;
    match_group(comm, number);
  }
}

/* ---- Completions ---- */

static void piece_arrived(struct tt_ib_send_comm *comm, struct group *group, int piece)
{
  group->arrived |= 1u << piece;
  if (--group->left > 0) return;
  for (int i = 0; i < group->count; i++) group->request[i]->done = true;
  group->active = false;
  while (comm->oldest < comm->next && !group_of(comm, comm->oldest)->active) comm->oldest++;
}

static ncclResult_t done(struct tt_ib_link *link, const struct tt_ib_done *done)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  struct group *group = &comm->group[done->slot];
  /* What was sent again another way may be told of twice. */
  if (done->work != TT_IB_WORK_LAST || !group->active || group->carrier[done->piece] != done->qp ||
      (group->arrived & 1u << done->piece))
    return ncclSuccess;
  piece_arrived(comm, group, done->piece);
  return ncclSuccess;
}

/* ---- Failing over: what was on the dead queue pairs waits until the receiver says what it has ---- */

static ncclResult_t down(struct tt_ib_link *link, int qp)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  struct tt_ib_note note = {.kind = TT_IB_DOWN, .value = (uint32_t)qp};
  for (int i = 0; i < link->qps; i++) {
    struct lane *lane = &comm->lane[i];
    if (!tt_ib_same_way(link, qp, i)) continue;
    comm->queued -= lane->tail - lane->head;
    lane->head = lane->tail;
    lane->member = 0;
    lane->offset = 0;
  }
  tt_ib_note_send(link, &note);
  return ncclSuccess;
}

static void queue_again(struct tt_ib_send_comm *comm, int slot, int piece)
{
  tt_count(&comm->link.counted, TT_COUNT_RETRIES, 1);
  queue_piece(comm, slot, piece, tt_ib_alive(&comm->link, comm->group[slot].carrier[piece]));
}

static ncclResult_t take_state(struct tt_ib_link *link, const struct tt_ib_note *note)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  int way = (int)note->value;
  bool saved;
  TT_TRY(tt_ib_fail_over(link, way, "the peer stopped using it", &saved));
  if (!saved)
    return tt_ib_link_fail(link,
                           TT_FAIL(ncclRemoteError, "net ib: the peer %s stopped the last way to it, over %s port %d",
                                   link->peer, link->qp[way].port->name, link->qp[way].port->number));
  for (int slot = 0; slot < TT_IB_SLOTS; slot++) {
    struct group *group = &comm->group[slot];
    if (!group->active || group->matched < group->count) continue;
    int32_t ahead = (int32_t)(note->slot[slot].number - (uint32_t)(group->number + 1));
    uint32_t arrived = ahead > 0 ? UINT32_MAX : ahead == 0 ? note->slot[slot].arrived : 0;
    for (int piece = 0; piece < group->pieces && group->active; piece++) {
      if ((group->arrived & 1u << piece) || !tt_ib_same_way(link, way, group->carrier[piece])) continue;
      if (arrived & 1u << piece)
        piece_arrived(comm, group, piece);
      else
        queue_again(comm, slot, piece);
    }
  }
  return ncclSuccess;
}

static const struct tt_ib_hooks hooks = {.done = done, .down = down, .note = take_state};

/* ---- Calls ---- */

ncclResult_t tt_ib_isend(void *send_comm, void *data, size_t bytes, int tag, void *memory, void **out)
{
  struct tt_ib_send_comm *comm = send_comm;
  struct send_request *request;
  *out = NULL;
  if (!comm) return TT_FAIL(ncclInternalError, "net ib: isend on NULL");
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  if (bytes && !memory) return TT_FAIL(ncclInternalError, "net ib: isend of %zu bytes that are not registered", bytes);
  TT_TRY(look_for_clear(comm));
  if (!take_tag(comm, (uint32_t)tag)) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  ncclResult_t result = new_request(comm, &request);
  if (result != ncclSuccess) {
    give_tag(comm, (uint32_t)tag);
    return result;
  }
  *request = (struct send_request){.base.kind = TT_IB_REQUEST_SEND,
                                   .comm = comm,
                                   .data = data,
                                   .bytes = bytes,
                                   .tag = (uint32_t)tag,
                                   .memory = memory};
  if (!match_request(comm, request)) {
    *comm->waiting_end = request;
    comm->waiting_end = &request->next;
    tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
  }
  tt_count_begun(&comm->link.counted);
  *out = request;
  return post_lanes(comm);
}

ncclResult_t tt_ib_send_test(struct tt_ib_request *base, int *done, int *sizes)
{
  struct send_request *request = (struct send_request *)base;
  struct tt_ib_send_comm *comm = request->comm;
  if (!request->done) {
    TT_TRY(tt_ib_link_progress(&comm->link));
    TT_TRY(look_for_clear(comm));
    TT_TRY(post_lanes(comm));
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
