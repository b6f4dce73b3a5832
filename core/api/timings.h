/* Where the time of a communicator's creation goes, as one line of the log. */
#ifndef TT_API_TIMINGS_H
#define TT_API_TIMINGS_H

#include <stdint.h>
#include "plan/comm.h"

/* Of one creation, which one thread runs. */
struct tt_timings {
  uint64_t start, last;            /* ns */
  uint64_t device;                 /* finding and opening it, with loading all kernels */
  uint64_t stages[TT_STAGE_READY]; /* by enum tt_stage */
};

void tt_timings_start(struct tt_timings *timings);
/* The device is there, and the communicator goes on to meet the others. */
void tt_timings_device(struct tt_timings *timings);
/* The communicator leaves the stage that it is in for the next one. */
void tt_timings_enter(struct tt_timings *timings, struct ncclComm *comm, enum tt_stage stage);
/* "Init timings - FUNCTION: rank 0 nranks 4 total 0.12 (device 0.03, bootstrap 0.01, ...): ...", in seconds, at INFO.
 */
void tt_timings_log(struct tt_timings *timings, const struct ncclComm *comm, const char *function);

#endif
