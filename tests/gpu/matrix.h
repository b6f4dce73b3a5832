/* The parts of gpu_matrix: its options, and what it checks beside single operations. */
#ifndef TESTS_GPU_MATRIX_H
#define TESTS_GPU_MATRIX_H

#include <stdint.h>
#include "operate.h"
#include "options.h"
#include "types.h"

enum { MATRIX_MOST_WORLDS = 8, MATRIX_MOST_RANKS = 64 };
enum matrix_amount { MATRIX_FULL, MATRIX_QUICK, MATRIX_SMALL, MATRIX_TINY, MATRIX_ROWS, MATRIX_TYPES };

struct matrix {
  struct perf_options options;
  int worlds[MATRIX_MOST_WORLDS], world_count;
  const char *set, *label;
  enum matrix_amount amount;
  size_t large;
  bool registers, windows;
  int hosts;
};

/* False: not what matrix.c says at its beginning. */
bool matrix_parse(struct matrix *matrix, int argc, char **argv);
/* Whether a collective, or "grouped", is among what is to be tried. */
bool matrix_has(const struct matrix *matrix, const char *name);

/* The next functions are called by all ranks of a communicator, have no barrier at their ends, and return how many
 * elements are wrong on this rank, with a sentence about the first. */

/* All-reduces each pair of codes of an fp8 type, on two ranks, and compares with the host's arithmetic. The buffers
 * hold at least 64 KiB. */
uint64_t matrix_fp8(struct perf_worker *worker, int rank, const struct perf_type *type, const struct perf_op *op,
                    char *first, size_t first_size);

/* One group of sends and receives between all ranks, itself included: of several messages a pair, of counts that differ
 * from pair to pair, and 0 between some. */
enum matrix_group { MATRIX_PAIRS, MATRIX_MANY, MATRIX_MIXED /* with an all-reduce among them */, MATRIX_GROUPS };
extern const char *const matrix_group_names[MATRIX_GROUPS];
/* Bytes that it needs in each buffer. */
size_t matrix_group_bytes(int ranks);
uint64_t matrix_grouped(struct perf_worker *worker, int rank, int ranks, enum matrix_group form, bool graph,
                        char *first, size_t first_size);

#endif
