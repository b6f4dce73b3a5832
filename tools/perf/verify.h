/* The correctness check of one collective on one rank: fills the buffers before the call, and afterwards verifies every
 * element of the output, that inputs are unchanged, and that nothing outside the buffers was written. */
#ifndef PERF_VERIFY_H
#define PERF_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "buffers.h"
#include "collective.h"
#include "pattern.h"

struct perf_case {
  const struct perf_collective *collective;
  const struct perf_type *type;
  const struct perf_op *op; /* NULL where the collective has none */
  int root, rank, nranks;
  bool in_place;
  uint64_t epoch; /* new for each check; the same on all ranks */
  struct perf_shape shape;
  struct perf_buffer *send, *recv; /* in place, only recv is used */
};

/* Where the call's two buffers are. */
char *perf_case_send(const struct perf_case *c);
char *perf_case_recv(const struct perf_case *c);

struct perf_verdict {
  uint64_t wrong;  /* elements of output or input, and damaged guard bytes */
  char first[200]; /* a sentence about the first of them, or "" */
};

/* False: a buffer cannot be reached, and the backend's `error` says why. */
bool perf_check_prepare(const struct perf_case *c);
bool perf_check_verify(const struct perf_case *c, struct perf_verdict *verdict);
/* Fills both buffers with ones: data for timing, which no number of repetitions turns into slow subnormals. */
bool perf_check_ones(const struct perf_case *c);

#endif
