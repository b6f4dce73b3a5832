/* Collectives that copy engines do, rather than kernels: those that only move data, between buffers that all ranks have
 * mapped. Kernels then do no more than exchange the messages before and after. Engines are a little faster than kernels
 * for large data, and leave the device's processors to others. */
#ifndef TT_PLAN_ENGINES_H
#define TT_PLAN_ENGINES_H

#include "plan/comm.h"
#include "tuning/tuning.h"

/* Has copy engines do what was chosen, if they can and should. The same on all ranks: it depends on agreed settings,
 * the collective and its size alone. */
void tt_engines_choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes, struct tt_choice *choice);

#endif
