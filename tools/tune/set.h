/* The programs of all ranks for one collective, by one algorithm, and what can be said of them. */
#ifndef TUNE_SET_H
#define TUNE_SET_H

#include "options.h"
#include "program/emit.h"

struct tune_set {
  int nranks, nodes, channel;
  int collective, algorithm;
  struct tt_program **programs; /* NULL entries: ranks that take no part */
  int32_t *node;                /* of each rank */
};

/* False: `error` says why there are none. */
bool tune_set_make(struct tune_set *set, const struct tune_options *options, int collective, int algorithm, int channel,
                   char *error, size_t size);
void tune_set_free(struct tune_set *set);

const struct tt_program *const *tune_set_programs(const struct tune_set *set);
/* Parts of a block; the same for all ranks. */
uint32_t tune_set_parts(const struct tune_set *set);
/* Blocks of the collective's larger buffer. */
uint32_t tune_set_blocks(const struct tune_set *set);

/* Proves the programs in several orders, in place too where the collective can be. False: `why` not. */
bool tune_set_prove(const struct tune_set *set, const struct tune_options *options, char *why, size_t size);

/* What one loop costs without a machine, of `nsets` channels that share the data. */
struct tune_counts {
  double steps;      /* messages and uses of multicast memory one after the other; see tt_simulate_steps */
  uint64_t messages; /* that the busiest rank sends */
  double data;       /* that the busiest rank sends, over what these channels have of the larger buffer */
  double multicast;  /* that it moves through the multicast address, likewise */
};
enum { TUNE_MOST_CHANNELS = 64 };
bool tune_set_count(const struct tune_set *sets, int nsets, struct tune_counts *counts, char *error, size_t size);

/* Channels that an algorithm needs at least: the two trees carry half of the data each. */
int tune_channels(int algorithm);

#endif
