/* Waiting for another thread or process without a kernel object: spin, then yield, then sleep on a futex.
 *
 * A doorbell lives in memory that both sides map. Who waits sets `sleeping`, looks once more at what it waits for, and
 * sleeps; who posts stores its data, then calls tt_doorbell_ring, which costs a fence and a load unless somebody
 * sleeps. Every sleep is bounded, so a lost ring costs time, never a hang. */
#ifndef TT_BASE_DOORBELL_H
#define TT_BASE_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One waiter sleeps on a doorbell at a time; any number may ring it. All zero at start. */
struct tt_doorbell {
  _Alignas(64) _Atomic uint32_t word; /* how many rings found a sleeper */
  _Atomic uint32_t sleeping;          /* 1 while the owner sleeps or is about to; a ring clears it */
};

/* Called by who posted, after its stores. NULL is allowed. Any process that maps the doorbell. */
void tt_doorbell_ring(struct tt_doorbell *bell);

/* The waiting side: one object a thread and wait. */
struct tt_waiter {
  struct tt_doorbell **bells; /* the doorbells whose ring ends the sleep */
  int nbells;
  int spin_usec;       /* tt_waiter_init: from TUTTI_SPIN_USEC and the load */
  int look_usec;       /* then yields, where it polls */
  uint64_t idle_since; /* ns; 0 while progress is made */
  bool armed;
};
/* `crowd`: how many threads of this host wait and work like this one, the caller included. */
void tt_waiter_init(struct tt_waiter *waiter, struct tt_doorbell **bells, int nbells, int crowd);
/* Call when something was done: the next idle phase starts from the spin again. */
void tt_waiter_progress(struct tt_waiter *waiter);
/* Call when nothing could be done. Returns at once (spin, pause), after a yield, or after a sleep of at most max_usec
 * or until a ring. Before it sleeps it arms the doorbells and returns once, so that the caller looks again. */
void tt_waiter_idle(struct tt_waiter *waiter, int max_usec);
/* The same where something that rings no bell is waited for too, as requests of networks: looks for longer, and sleeps
 * for a part of the time that it has waited, a millisecond at most. */
void tt_waiter_idle_polled(struct tt_waiter *waiter);
/* Call when the wait is over: disarms. */
void tt_waiter_done(struct tt_waiter *waiter);

#endif
