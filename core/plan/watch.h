/* While works run: what other ranks say, and what this one tells them. Used by the thread that drives a host's works
 * (run.c) and by the one that looks after works on streams (monitor.c). */
#ifndef TT_PLAN_WATCH_H
#define TT_PLAN_WATCH_H

#include <stdbool.h>
#include "plan/plan.h"

/* How long nothing has moved. All zero: something moves. Times are those of tt_timer_ns. */
struct tt_watch_clock {
  /* For reports, which read them from other threads. */
  _Atomic uint64_t idle_since; /* 0: something moves */
  _Atomic uint64_t looked;     /* when it was last found that nothing moves */
  _Atomic uint64_t passes;     /* how often was looked whether anything can move */
  uint64_t stalled_since, warn_after;
  bool left; /* a peer that is waited for has left */
};
/* Something moved. */
void tt_watch_moved(struct tt_watch_clock *clock);
/* What is due. */
struct tt_watch_due {
  bool look;          /* for ranks that are gone without a word */
  bool stalled;       /* tt_watch_stalled, again each time: a peer may leave later */
  int report_seconds; /* > 0: the log is told that it has waited for so long */
  int idle_seconds;   /* how long nothing has moved; 0 unless `stalled` */
  bool left_before;   /* a peer had left the last time, and nothing has moved since */
};
/* Nothing moved until `now`. */
struct tt_watch_due tt_watch_idle(struct tt_watch_clock *clock, uint64_t now);

/* An operation that does not go on. */
struct tt_watch_wait {
  struct ncclComm *comm;
  struct tt_signature signature;
  int peer; /* that it waits for; -1: not known */
  bool sending;
  bool unsent;        /* what works have sent lies with the proxy: of which is not known, and there is no signature */
  bool left;          /* the peer has, and what it has sent would be seen when it has come */
  const char *either; /* text: the ranks that have left, one of which it waits for; NULL or "": it is the peer */
};
/* Tells the others what this rank is at, and fails where a peer that a send or receive waits for has left, or where the
 * user does not want to wait for so long (TUTTI_LATE_TIMEOUT). Warns when that is due, with the ranks that are missing.
 * A peer may have sent before it left what has not been looked for since, or is on its way: so its leaving is noted in
 * the clock that `due` is of, and is a failure when nothing has moved until the next time. */
ncclResult_t tt_watch_waits(const struct tt_watch_wait *wait, struct tt_watch_clock *clock,
                            const struct tt_watch_due *due);

/* Being late is no error, unless the user says so: fails after TUTTI_LATE_TIMEOUT. `where` it has waited ends the
 * sentence. */
ncclResult_t tt_watch_patience(const struct ncclComm *comm, int seconds, const char *where);

/* Notes the collectives that begin now. */
void tt_watch_begin(const struct tt_plan *plans, int nplans);
/* What other ranks reported; with `idle`, also whether one is gone without a word. */
ncclResult_t tt_watch_check(const struct tt_plan *plans, int nplans, bool idle);
/* A failure of a connection may follow from a rank's own failure, whose account arrives just after: waits a little for
 * it. Returns that, else `result`. */
ncclResult_t tt_watch_cause(const struct tt_plan *plans, int nplans, ncclResult_t result);
/* Nothing has moved for a while: tt_watch_waits for all operations of the plans. */
ncclResult_t tt_watch_stalled(const struct tt_plan *plans, int nplans, struct tt_watch_clock *clock,
                              const struct tt_watch_due *due);

#endif
