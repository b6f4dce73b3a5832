/* The order of measurements: all types, operations and roots asked for, and for each the sizes. */
#ifndef PERF_SWEEP_H
#define PERF_SWEEP_H

#include <stdbool.h>
#include "options.h"

struct perf_sweep {
  const struct perf_options *options;
  int ranks;
  bool fp8;
  int type_index, op_index, root; /* position in the tables; fixed ones stay 0 */
  uint64_t bytes;
  int size_index; /* of bytes in --sizes */
  int cycle;
  bool started;
  /* The measurement: */
  const struct perf_type *type;
  const struct perf_op *op; /* NULL where the collective has none */
};

/* fp8: the device reduces the fp8 types, so that all types have these, too. */
void perf_sweep_begin(struct perf_sweep *sweep, const struct perf_options *options, int ranks, bool fp8);
/* Moves to the next measurement; false at the end. */
bool perf_sweep_next(struct perf_sweep *sweep);
/* How many there will be; 0: endless. */
size_t perf_sweep_count(const struct perf_options *options, int ranks, bool fp8);

#endif
