/* Test data: the value of any element of any rank's input, computed from (epoch, rank, index) alone, and the comparison
 * of outputs with what the reduction of all ranks' inputs must be. Every check uses a new epoch, so that data left over
 * from an earlier one is wrong.
 *
 * Data that is only moved is random bits. Data that is reduced is chosen so that the result is exact in any order:
 *
 * - integers: any value for sum, prod, min, max (arithmetic modulo 2^bits); for avg, small ones that cannot overflow;
 * - floating sum: integers whose sum over all ranks stays below 2^digits;
 * - floating prod: signed powers of two, and one rank (another for each index) with a full mantissa;
 * - floating avg: as sum; exact if the number of ranks is a power of two, else compared with the bound that
 *   perf_pattern_tolerance derives. */
#ifndef PERF_PATTERN_H
#define PERF_PATTERN_H

#include <stddef.h>
#include <stdint.h>
#include "types.h"

enum { PERF_POISON = -1 }; /* as a rank: what outputs are filled with before the call */

struct perf_pattern {
  const struct perf_type *type;
  const struct perf_op *op; /* NULL: data is only moved */
  int nranks;
  uint64_t epoch;
};

/* Writes elements first..first+count-1 of `rank`'s data. */
void perf_pattern_fill(const struct perf_pattern *pattern, int rank, size_t first, size_t count, void *out);

/* Compares `count` elements with elements first.. of `origin`'s data (a rank or PERF_POISON), or, if `reduced`, with
 * the reduction over all ranks. Returns how many differ; *where is the first that does. */
size_t perf_pattern_compare(const struct perf_pattern *pattern, int origin, int reduced, size_t first, size_t count,
                            const void *actual, size_t *where);

/* The printable expected and actual value of one element, for messages. */
void perf_pattern_explain(const struct perf_pattern *pattern, int origin, int reduced, size_t index, const void *actual,
                          char *expected_text, char *actual_text, size_t size);

/* Largest error of an average, as a multiple of the mean of the absolute inputs; 0 where it must be exact. */
double perf_pattern_tolerance(const struct perf_pattern *pattern);

/* One value to and from a floating type; `value` must be exact in the type (formats.h). */
void perf_pattern_encode(const struct perf_type *type, double value, void *out);
double perf_pattern_decode(const struct perf_type *type, const void *in);

#endif
