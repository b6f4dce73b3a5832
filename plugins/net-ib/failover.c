/* When a port of several that work as one fails, the others take over. A way is what all queue pairs between the same
 * two rails have in common, and they fail together.
 *
 * The danger is to write a message twice: where only the answer was lost, the receiver has it, and may use its buffer
 * for something else. So whoever notices stops the queue pairs, and tells the other side. The receiver stops its own
 * too, waits until nothing of them is left, and only then says what has arrived (STATE); the rest is sent again another
 * way. A NIC that has failed may never say that a queue pair is empty, but what it did before it may have left unread.
 * A receiver that has all it waits for may not be called again for long; then the sender finds in its memory that it is
 * done. What the receiver has told the sender can be said twice, and is; but what takes its place in the ring waits
 * until the sender's end is stopped as well, since the first may still come that way. A way that has failed stays
 * unused by this connection. */
#include "net_ib.h"

bool tt_ib_same_way(const struct tt_ib_link *link, int qp, int other)
{
  const struct tt_ib_qp *one = &link->qp[qp], *two = &link->qp[other];
  return one->rail == two->rail && one->remote_rail == two->remote_rail;
}

int tt_ib_alive(const struct tt_ib_link *link, int qp)
{
  for (int i = 0; i < link->qps; i++) {
    int index = (qp + i) % link->qps;
    if (!link->qp[index].dead) return index;
  }
  return -1;
}

bool tt_ib_rail_alive(const struct tt_ib_link *link, int rail)
{
  for (int i = 0; i < link->qps; i++)
    if (link->qp[i].rail == rail && !link->qp[i].dead) return true;
  return false;
}

static bool is_same_nic(const struct tt_ib_link *link, int rail, int other)
{
  return link->rail[rail].port->nic == link->rail[other].port->nic;
}

void tt_ib_unflushed(struct tt_ib_link *link, int rail)
{
  for (int r = 0; r < link->loops; r++)
    if (is_same_nic(link, r, rail)) link->rail[r].covered = link->qp[link->qps + r].posted + 1;
}

bool tt_ib_is_flushed(const struct tt_ib_link *link, int rail)
{
  for (int r = 0; r < link->loops; r++)
    if (is_same_nic(link, r, rail) && (int32_t)(link->qp[link->qps + r].retired - link->rail[r].covered) >= 0)
      return true;
  return false;
}

bool tt_ib_other_flushes(const struct tt_ib_link *link, int rail)
{
  for (int r = 0; r < link->loops; r++)
    if (r != rail && is_same_nic(link, r, rail) && tt_ib_rail_alive(link, r) && !link->qp[link->qps + r].dead)
      return true;
  return false;
}

ncclResult_t tt_ib_fail_over(struct tt_ib_link *link, int qp, const char *why, bool *saved)
{
  const struct tt_ib_qp *failed = &link->qp[qp];
  bool others = false;
  *saved = failed->dead;
  if (failed->dead) return ncclSuccess;
  for (int i = 0; i < link->qps; i++) others |= !link->qp[i].dead && !tt_ib_same_way(link, qp, i);
  if (!others || !tt_param_int(TT_PARAM_NCCL_IB_RESILIENCY_PORT_FAILOVER)) return ncclSuccess;
  for (int i = 0; i < link->qps; i++) {
    if (link->qp[i].dead || !tt_ib_same_way(link, qp, i)) continue;
    link->qp[i].dead = true;
    tt_ib_qp_stop(&link->qp[i]);
  }
  TT_WARN("net ib: %s port %d to %s of the peer %s is not used any more: %s; the other ports go on, with less speed",
          failed->port->name, failed->port->number, link->remote.rail[failed->remote_rail].name, link->peer, why);
  *saved = true;
  link->drains = !link->sends;
  return link->hooks->down(link, qp);
}

static int first_qp(const struct tt_ib_link *link, int rail)
{
  int qp = 0;
  while (qp + 1 < link->qps && (link->qp[qp].rail != rail || link->qp[qp].dead)) qp++;
  return qp;
}

ncclResult_t tt_ib_fail_over_rail(struct tt_ib_link *link, int rail, const char *why, bool *saved)
{
  *saved = !tt_ib_rail_alive(link, rail);
  while (tt_ib_rail_alive(link, rail)) {
    TT_TRY(tt_ib_fail_over(link, first_qp(link, rail), why, saved));
    if (!*saved) break;
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_report_drained(struct tt_ib_link *link, void (*describe)(struct tt_ib_link *, struct tt_ib_note *))
{
  bool all = true;
  for (int i = 0; i < link->qps; i++) {
    if (!link->qp[i].dead || link->reported[i]) continue;
    bool drained = true;
    for (int k = 0; k < link->qps; k++)
      if (tt_ib_same_way(link, i, k)) drained &= link->qp[k].receives == 0 || link->rail[link->qp[k].rail].spent;
    all &= drained;
    if (!drained) continue;
    struct tt_ib_note note = {.kind = TT_IB_STATE, .value = (uint32_t)i};
    describe(link, &note);
    tt_ib_note_send(link, &note);
    for (int k = 0; k < link->qps; k++)
      if (tt_ib_same_way(link, i, k)) link->reported[k] = true;
  }
  link->drains = !all;
  return ncclSuccess;
}
