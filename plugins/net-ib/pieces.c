/* How messages are written: in pieces, one on each of some queue pairs; and as much of each at a time as there is room
 * for. */
#include "send.h"

#define ALIGN 128                   /* pieces begin at multiples of it, so that no line of LL128 is torn */
#define ONE_PIECE ((size_t)8 << 10) /* so much goes as one piece: a second request costs more than it saves */

/* The part of a message that belongs to a piece. */
static size_t slice(const struct tt_ib_send_request *request, int piece, int pieces, size_t *begin)
{
  if (request->too_large) return *begin = 0;
  size_t each = ((request->bytes + (size_t)pieces - 1) / (size_t)pieces + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  *begin = TT_MIN(each * (size_t)piece, request->bytes);
  return TT_MIN(each, request->bytes - *begin);
}

static size_t piece_bytes(const struct tt_ib_group *group, int piece)
{
  size_t sum = 0, begin;
  for (int i = 0; i < group->count; i++) sum += slice(group->request[i], piece, group->pieces, &begin);
  return sum;
}

static void queue_piece(struct tt_ib_send_comm *comm, int slot, int piece, int qp)
{
  struct tt_ib_lane *lane = &comm->lane[qp];
  comm->group[slot].carrier[piece] = (uint8_t)qp;
  lane->queue[lane->tail++ % lane->size] = (uint16_t)(slot << 8 | piece);
  comm->queued++;
}

void tt_ib_queue_group(struct tt_ib_send_comm *comm, uint64_t number)
{
  struct tt_ib_group *group = tt_ib_group_of(comm, number);
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

static uint32_t immediate(const struct tt_ib_group *group, int slot, int piece)
{
  uint32_t imm = (uint32_t)slot << TT_IB_IMM_SLOT_SHIFT | (uint32_t)piece << TT_IB_IMM_PIECE_SHIFT;
  if (group->pieces == 1) imm |= TT_IB_IMM_ONLY;
  if (piece > 0) return imm;
  return group->record ? imm | TT_IB_IMM_RECORD : imm | (uint32_t)group->request[0]->bytes;
}

/* The next write of data of the piece at the head of the lane; false if all are out. *ends: none comes after it. */
static bool next_write(struct tt_ib_send_comm *comm, int index, struct tt_ib_group *group, int piece,
                       struct ibv_send_wr *wr, struct ibv_sge *sge, bool *ends)
{
  struct tt_ib_lane *lane = &comm->lane[index];
  const struct tt_ib_qp *qp = &comm->link.qp[index];
  size_t begin = 0, bytes = 0;
  for (; lane->member < group->count; lane->member++, lane->offset = 0) {
    bytes = slice(group->request[lane->member], piece, group->pieces, &begin);
    if (lane->offset < bytes) break;
  }
  if (lane->member == group->count) return false;
  const struct tt_ib_send_request *request = group->request[lane->member];
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
  wr->wr.rdma.remote_addr = comm->link.remote.memory + offsetof(struct tt_ib_inbox, record[slot]);
  wr->wr.rdma.rkey = comm->link.remote.rail[qp->remote_rail].rkey;
  wr->sg_list = sge;
  wr->num_sge = 1;
  if (sge->length <= qp->max_inline) wr->send_flags |= IBV_SEND_INLINE;
}

/* Posts what there is room for on one queue pair. */
static ncclResult_t post_lane(struct tt_ib_send_comm *comm, int index)
{
  struct tt_ib_lane *lane = &comm->lane[index];
  while (lane->head != lane->tail && tt_ib_link_room(&comm->link, index, 1)) {
    uint16_t place = lane->queue[lane->head % lane->size];
    int slot = place >> 8, piece = place & 0xff;
    struct tt_ib_group *group = &comm->group[slot];
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

ncclResult_t tt_ib_post_lanes(struct tt_ib_send_comm *comm)
{
  for (int i = 0; i < comm->link.qps && comm->queued; i++) TT_TRY(post_lane(comm, i));
  return ncclSuccess;
}

/* ---- Failing over ---- */

void tt_ib_queue_again(struct tt_ib_send_comm *comm, int slot, int piece)
{
  tt_count(&comm->link.counted, TT_COUNT_RETRIES, 1);
  queue_piece(comm, slot, piece, tt_ib_alive(&comm->link, comm->group[slot].carrier[piece]));
}

void tt_ib_drop_lanes(struct tt_ib_send_comm *comm, int qp)
{
  for (int i = 0; i < comm->link.qps; i++) {
    struct tt_ib_lane *lane = &comm->lane[i];
    if (!tt_ib_same_way(&comm->link, qp, i)) continue;
    comm->queued -= lane->tail - lane->head;
    lane->head = lane->tail;
    lane->member = 0;
    lane->offset = 0;
  }
}
