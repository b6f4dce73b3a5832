/* What became of the pieces that went a way that failed. The receiver says it, as soon as it is called and nothing more
 * can come that way (STATE). It need not be called any more once it has everything, and then its inbox tells: it is
 * read another way, which takes nothing of the receiver but its NIC. Where it closes it says what it has of everything
 * (END). */
#include "send.h"

#define LOOK_MS 10 /* between two reads */

static bool is_unsettled(const struct tt_ib_send_comm *comm, const struct tt_ib_group *group, int piece)
{
  return !(group->arrived & 1u << piece) && comm->link.qp[group->carrier[piece]].dead;
}

static bool is_written(const struct tt_ib_group *group)
{
  return group->active && group->matched == group->count;
}

static bool any_unsettled(const struct tt_ib_send_comm *comm)
{
  for (int slot = 0; slot < TT_IB_SLOTS; slot++)
    for (int piece = 0; is_written(&comm->group[slot]) && piece < comm->group[slot].pieces; piece++)
      if (is_unsettled(comm, &comm->group[slot], piece)) return true;
  return false;
}

/* ---- The receiver says it ---- */

ncclResult_t tt_ib_settle_later(struct tt_ib_link *link, int qp)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  struct tt_ib_note note = {.kind = TT_IB_DOWN, .value = (uint32_t)qp};
  tt_ib_drop_lanes(comm, qp);
  tt_ib_note_send(link, &note);
  comm->unsettled = true;
  comm->looking = false; /* it may have gone this way */
  comm->look_at = tt_deadline_in_ms(0);
  return ncclSuccess;
}

/* The pieces of a slot's receive that have arrived, as bits. */
static uint32_t arrived_by(const struct tt_ib_note *note, int slot, const struct tt_ib_group *group)
{
  int32_t ahead = (int32_t)(note->slot[slot].number - (uint32_t)(group->number + 1));
  return ahead > 0 ? UINT32_MAX : ahead == 0 ? note->slot[slot].arrived : 0;
}

/* Whatever way they went: no more answers come. What still waits to be written nobody would take. */
static void take_end(struct tt_ib_send_comm *comm, const struct tt_ib_note *note)
{
  comm->link.ended = true;
  for (int i = 0; i < comm->link.qps; i++) tt_ib_drop_lanes(comm, i);
  for (int slot = 0; slot < TT_IB_SLOTS; slot++) {
    struct tt_ib_group *group = &comm->group[slot];
    uint32_t arrived = arrived_by(note, slot, group);
    for (int piece = 0; is_written(group) && piece < group->pieces; piece++)
      if (arrived & ~group->arrived & 1u << piece) tt_ib_piece_arrived(comm, group, piece);
  }
}

static ncclResult_t take_state(struct tt_ib_send_comm *comm, const struct tt_ib_note *note)
{
  struct tt_ib_link *link = &comm->link;
  int way = (int)note->value;
  bool saved;
  TT_TRY(tt_ib_fail_over(link, way, "the peer stopped using it", &saved));
  if (!saved)
    return tt_ib_link_fail(link,
                           TT_FAIL(ncclRemoteError, "net ib: the peer %s stopped the last way to it, over %s port %d",
                                   link->peer, link->qp[way].port->name, link->qp[way].port->number));
  for (int slot = 0; slot < TT_IB_SLOTS; slot++) {
    struct tt_ib_group *group = &comm->group[slot];
    uint32_t arrived = arrived_by(note, slot, group);
    for (int piece = 0; is_written(group) && piece < group->pieces; piece++) {
      if (!is_unsettled(comm, group, piece) || !tt_ib_same_way(link, way, group->carrier[piece])) continue;
      if (arrived & 1u << piece)
        tt_ib_piece_arrived(comm, group, piece);
      else
        tt_ib_queue_again(comm, slot, piece);
    }
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_take_note(struct tt_ib_link *link, const struct tt_ib_note *note)
{
  struct tt_ib_send_comm *comm = (struct tt_ib_send_comm *)link;
  if (note->kind == TT_IB_STATE) return take_state(comm, note);
  take_end(comm, note);
  return ncclSuccess;
}

/* ---- Its inbox tells ---- */

static ncclResult_t look(struct tt_ib_send_comm *comm)
{
  int index = tt_ib_alive(&comm->link, 0);
  if (!tt_ib_link_room(&comm->link, index, 1)) return ncclSuccess;
  const struct tt_ib_qp *qp = &comm->link.qp[index];
  struct ibv_sge sge = {.addr = (uintptr_t)comm->memory->done,
                        .length = sizeof comm->memory->done,
                        .lkey = comm->link.rail[qp->rail].mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1};
  wr.wr.rdma.remote_addr = comm->link.remote.memory + offsetof(struct tt_ib_inbox, done);
  wr.wr.rdma.rkey = comm->link.remote.rail[qp->remote_rail].rkey;
  comm->looking = true;
  return tt_ib_link_post(&comm->link, index, &wr, (struct tt_ib_done){.work = TT_IB_WORK_LOOK}, true);
}

ncclResult_t tt_ib_settle(struct tt_ib_send_comm *comm)
{
  if (comm->looking || !tt_deadline_passed(comm->look_at)) return ncclSuccess;
  comm->unsettled = any_unsettled(comm);
  return comm->unsettled ? look(comm) : ncclSuccess;
}

/* Pieces that went other ways have completions of their own. */
void tt_ib_take_look(struct tt_ib_send_comm *comm)
{
  comm->looking = false;
  comm->look_at = tt_deadline_in_ms(LOOK_MS);
  for (int slot = 0; slot < TT_IB_SLOTS; slot++) {
    struct tt_ib_group *group = &comm->group[slot];
    if (comm->memory->done[slot] <= group->number) continue;
    for (int piece = 0; is_written(group) && piece < group->pieces; piece++)
      if (is_unsettled(comm, group, piece)) tt_ib_piece_arrived(comm, group, piece);
  }
}
