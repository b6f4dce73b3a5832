/* A world of two ranks, of which rank 0 sends to rank 1 by a program written by hand, and what may be wrong with that.
 */
#ifndef TT_TESTS_KERNELS_HOST_PAIR_H
#define TT_TESTS_KERNELS_HOST_PAIR_H

#include "world.h"

#define COUNT 600

/* A program of one strand that sends its input to, or receives its output from, one peer. */
struct small {
  struct tt_program program;
  struct tt_strand strand;
  struct tt_instruction instruction;
  struct tt_operand operands[2];
  int32_t peer;
};

/* Rank 0 sends, rank 1 receives. */
struct pair {
  struct world world;
  struct small programs[2];
  struct tt_work *works[2];
  struct tt_work **rows[2];
  uint8_t input[COUNT], output[COUNT];
};

/* COUNT bytes in chunks of 100. */
void open_pair(struct pair *pair, int protocol, bool proxied);
void close_pair(struct pair *pair);
void expect_untouched(const struct pair *pair);
/* Kinds: Simple and LL, each with shared memory and proxied. */
int protocol_of(int kind);
/* The thread's last error has it. */
void expect_error(const char *what);

#endif
