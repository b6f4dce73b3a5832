/* Whether peers that say nothing are still there. A process that ends closes its connections, and is noticed by that;
 * one that is stopped, or whose host or network is gone, closes nothing. So while a user's thread of this rank waits,
 * its service asks each peer that it has a connection with, once a second, and a service that lives answers whatever
 * its user's threads do: late is not dead.
 *
 * Each rank asks its own partners, about 2 log2(n) of them, and tells its partners whom it found dead: so every rank is
 * watched by several others, and a death is known to all after a few steps. Who waits may have no connection with the
 * rank that it waits for, while that rank's partners wait for nothing. So who is asked asks its own partners, too, and
 * they theirs, as many steps as it takes to reach everybody: while anybody waits, every rank is watched. */
#include <stdio.h>
#include "base/check.h"
#include "base/param.h"
#include "bootstrap/internal.h"

#define ASK_NS 1000000000ull
/* Who waits says so again and again; this long after the last time nobody waits any more. */
#define WAITING_NS 2000000000ull
/* The service looks once a second. One that did not for so long was stopped itself, and cannot blame others. */
#define STOPPED_NS 3000000000ull
/* Who is asked on behalf of others goes on for so long after the last time, a few of their periods. */
#define RELAY_NS 5000000000ull

/* Steps of powers of two that lead from any rank to any other. */
static unsigned steps_to_all(const struct tt_bootstrap *b)
{
  unsigned steps = 0;
  while ((1u << steps) < (unsigned)b->nranks) steps++;
  return steps;
}

/* How many steps further the partners of this rank ask; false if nobody waits. */
static bool wanted_steps(const struct tt_bootstrap *b, uint64_t now, unsigned *steps)
{
  bool waiting = now - b->waited_ns < WAITING_NS, relaying = now - b->relayed_ns < RELAY_NS;
  *steps = waiting ? steps_to_all(b) : b->relay_steps;
  return waiting || relaying;
}

void tt_liveness_asked(struct tt_bootstrap *b, const void *data, size_t bytes)
{
  uint64_t now = tt_timer_ns();
  if (bytes < 4) return;
  unsigned steps = tt_wire_get_u32(data);
  /* Each asks for fewer steps than it was asked for, so that this ends when nobody waits any more. */
  if (steps == 0 || steps > steps_to_all(b)) return;
  if (steps - 1 < b->relay_steps && now - b->relayed_ns < RELAY_NS) return;
  b->relay_steps = steps - 1;
  b->relayed_ns = now;
}

static ncclResult_t ask(struct tt_service_link *l, unsigned steps)
{
  unsigned char data[4];
  tt_wire_put_u32(data, steps);
  return tt_link_send(l->link, TT_TAG_ASK, data, sizeof(data));
}

void tt_liveness_wait(struct tt_bootstrap *b)
{
  b->waited_ns = tt_timer_ns();
}

void tt_liveness_heard(struct tt_service_link *l)
{
  l->heard_ns = tt_timer_ns();
}

static void declare_dead(struct tt_bootstrap *b, struct tt_service_link *l, int64_t seconds)
{
  char why[240];
  snprintf(why, sizeof(why),
           "has not answered for %lld s (TUTTI_PEER_TIMEOUT): its process is stopped, or its host or the network to it "
           "is down",
           (long long)seconds);
  if (!l->ready) b->peers[l->peer].dialling = false;
  tt_peer_dead(b, l->peer, why, true);
  l->gone = true; /* if it goes on one day, it finds its connections closed */
}

void tt_liveness_look(struct tt_bootstrap *b)
{
  int64_t seconds = tt_param_int(TT_PARAM_TUTTI_PEER_TIMEOUT);
  uint64_t now = tt_timer_ns(), limit = (uint64_t)seconds * 1000000000u;
  unsigned steps;
  bool stopped = now - b->looked_ns > STOPPED_NS, waiting = wanted_steps(b, now, &steps);
  b->looked_ns = now;
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (l->gone || l->closing || l->said || l->peer < 0) continue;
    if (!l->ready) { /* the kernel accepts for a stopped process, too */
      if (stopped) l->made_ns = now;
      if (seconds > 0 && waiting && now - l->made_ns > limit) declare_dead(b, l, seconds);
      continue;
    }
    if (seconds == 0 || stopped || !waiting) {
      l->asked_ns = 0;
      continue;
    }
    bool open = l->asked_ns > l->heard_ns; /* asked, and not answered yet */
    if (open && now - l->asked_ns > limit)
      declare_dead(b, l, seconds);
    else if (!open && now - l->asked_ns > ASK_NS && ask(l, steps) == ncclSuccess)
      l->asked_ns = now;
  }
}
