/* Connections on demand: to ranks that are no partners of gathers and barriers. They stay for a while, since who had
 * something to say will soon have more; but all ranks of a large communicator together would need more descriptors than
 * there are. So there are only so many, and who wants one more has to wait until an idle one is closed. */
#include "base/check.h"
#include "bootstrap/internal.h"

/* They are closed after so long without a message, or at once when more are needed than may be: there are fewer once the
 * process has used half of its descriptors, whose other half is for the data. */
#define IDLE_MS 30000
#define ON_DEMAND_MAX 64
#define ON_DEMAND_FEW 2

static int on_demand_most(const struct tt_bootstrap *b)
{
  return b->newest_fd > b->most_descriptors / 2 ? ON_DEMAND_FEW : ON_DEMAND_MAX;
}

static bool is_on_demand(const struct tt_bootstrap *b, const struct tt_service_link *l)
{
  return l->link->dialled && !l->gone && !tt_service_log_step(b, l->peer);
}

/* Links that were dialled on demand; *moving: of some it will be known soon whether they are there. */
static int count_on_demand(const struct tt_bootstrap *b, bool *moving)
{
  int count = 0;
  *moving = false;
  for (int i = 0; i < b->nlinks; i++) {
    const struct tt_service_link *l = b->links[i];
    if (!is_on_demand(b, l)) continue;
    count++;
    *moving |= !l->ready || l->closing || l->link->out;
  }
  return count;
}

bool tt_demand_defer(struct tt_bootstrap *b, int peer)
{
  bool moving;
  if (tt_service_log_step(b, peer) || count_on_demand(b, &moving) < on_demand_most(b)) return false;
  b->peers[peer].deferred = true;
  b->ndeferred++;
  tt_service_wake(b);
  return true;
}

/* Dials those that had to wait. If no link will close by itself, there may be more after all. */
static void dial_deferred(struct tt_bootstrap *b)
{
  bool moving;
  if (b->ndeferred == 0) return;
  int count = count_on_demand(b, &moving), most = on_demand_most(b);
  for (int i = 1; b->ndeferred > 0 && i < b->nranks; i++) {
    int peer = (b->rank + i) % b->nranks;
    struct tt_peer *p = &b->peers[peer];
    if (!p->deferred) continue;
    bool needed = !p->out && !p->dialling && !p->closing && !p->dead && !p->left;
    if (needed && count >= most && moving && !b->leaving) return;
    p->deferred = false;
    b->ndeferred--;
    if (!needed) continue;
    if (tt_service_dial_now(b, peer) != ncclSuccess)
      tt_peer_dead(b, peer, "cannot be reached: no memory for a connection", false);
    count++;
    moving = true;
  }
}

/* Asks to close a link that was made on demand and is not used, if there is one; the idlest. */
static bool close_one_idle(struct tt_bootstrap *b)
{
  struct tt_service_link *idlest = NULL;
  int on_demand = 0;
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (!is_on_demand(b, l) || !l->ready || l->closing) continue;
    on_demand++;
    if (l->link->out || b->peers[l->peer].wanted || b->peers[l->peer].closing || b->peers[l->peer].out != l) continue;
    if (!idlest || l->link->used_ns < idlest->link->used_ns) idlest = l;
  }
  if (!idlest) return false;
  bool crowded = on_demand + (b->ndeferred > 0) > on_demand_most(b);
  if (!crowded && tt_timer_ns() - idlest->link->used_ns < (uint64_t)IDLE_MS * 1000000) return false;
  if (tt_link_send(idlest->link, TT_TAG_CLOSE, NULL, 0) != ncclSuccess) return false;
  idlest->closing = b->peers[idlest->peer].closing = true;
  b->peers[idlest->peer].out = NULL;
  return true;
}

void tt_demand_look(struct tt_bootstrap *b)
{
  while (!b->leaving && close_one_idle(b)) continue;
  dial_deferred(b);
}
