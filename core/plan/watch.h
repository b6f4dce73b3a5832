/* While a run waits: what other ranks say, and what this one tells them. */
#ifndef TT_PLAN_WATCH_H
#define TT_PLAN_WATCH_H

#include <stdbool.h>
#include "plan/plan.h"

/* Notes the collectives that begin now. */
void tt_watch_begin(const struct tt_plan *plans, int nplans);
/* What other ranks reported; with `idle`, also whether one is gone without a word. */
ncclResult_t tt_watch_check(const struct tt_plan *plans, int nplans, bool idle);
/* A failure of a connection may follow from a rank's own failure, whose account arrives just after: waits a little for
 * it. Returns that, else `result`. */
ncclResult_t tt_watch_cause(const struct tt_plan *plans, int nplans, ncclResult_t result);
/* Nothing has moved for a while: tells the others what this rank is at, and fails where a peer that a send or receive
 * waits for has left. With report_seconds > 0, warns that so much time has passed, with the ranks that are missing. */
ncclResult_t tt_watch_stalled(const struct tt_plan *plans, int nplans, int report_seconds);

#endif
