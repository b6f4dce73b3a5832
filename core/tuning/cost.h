/* What an operation is expected to take: latency of its steps plus bytes over bandwidth, in whole nanoseconds.
 *
 * Integers, since all ranks must come to the same order of candidates and compilers may round floating point
 * differently. */
#ifndef TT_TUNING_COST_H
#define TT_TUNING_COST_H

#include "tuning/tuning.h"

uint64_t tt_cost_ns(const struct tt_tuning_input *input, int collective, int algorithm, int protocol, size_t bytes);

/* What the model takes a step and a link for: nanoseconds, and bytes in a microsecond. */
void tt_cost_link(bool mapped, int protocol, uint64_t *latency_ns, uint64_t *per_us);

#endif
