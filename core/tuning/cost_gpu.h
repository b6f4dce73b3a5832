/* What operations are expected to take on GPUs of one host that map each other's memory, and how many channels they
 * use. All figures are in the tables of cost_gpu.c. */
#ifndef TT_TUNING_COST_GPU_H
#define TT_TUNING_COST_GPU_H

#include "tuning/tuning.h"

/* UINT64_MAX for what is not to be chosen at this size. */
uint64_t tt_cost_gpu_ns(const struct tt_tuning_input *input, int collective, int algorithm, int protocol, size_t bytes,
                        int nchannels);
/* Whether copy engines do what Mapped only moves: always, or where that takes less time than its kernels, a second
 * launch and the start of each copy against faster wires; but never what reads a peer's memory where ranks share a
 * process. */
bool tt_cost_gpu_by_engines(const struct tt_tuning_input *input, int collective, size_t bytes);
/* Channels that pay for themselves, of those that the device likes to use. */
int tt_cost_gpu_channels(const struct tt_tuning_input *input, int collective, int algorithm, int protocol,
                         size_t bytes);
/* Bytes below which a further cut of a chain's data costs more than it overlaps. */
size_t tt_cost_gpu_smallest_chunk(int protocol);
/* Into how many a chain's data is cut so that its hops overlap: fewer where no rank passes anything on. */
int tt_cost_gpu_chunks(const struct tt_tuning_input *input, int algorithm);
/* What the model takes a ring's step for, and a channel's bandwidth: nanoseconds, and bytes in a microsecond. */
void tt_cost_gpu_link(int protocol, uint64_t *latency_ns, uint64_t *per_us);

#endif
