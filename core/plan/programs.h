/* A communicator's programs, emitted when first needed and kept. */
#ifndef TT_PLAN_PROGRAMS_H
#define TT_PLAN_PROGRAMS_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "program/emit.h"
#include "tutti/program.h"

struct tt_programs;

/* The ways through the ranks, by channel. All of it outlives the programs. */
struct tt_programs_ways {
  int nchannels;               /* that differ: channel c goes the way of c % nchannels */
  const int32_t *const *rings; /* of each, nranks ranks in ring order; equal pointers: equal rings */
  const struct tt_tree *trees; /* 2 * nchannels places of this rank: [c] in the first tree of a channel, [nchannels + c]
                                  in its second; NULL: double binary trees along the first ring */
  const int32_t *node;         /* of each rank, from 0 */
};

ncclResult_t tt_programs_create(int rank, int nranks, const struct tt_programs_ways *ways, struct tt_programs **out);
void tt_programs_destroy(struct tt_programs *programs);

struct tt_programs_key {
  int collective, algorithm;
  int root;   /* the peer for TT_FUNC_SEND and TT_FUNC_RECV; tt_programs_pair for TT_FUNC_SEND_RECV */
  bool apart; /* see struct tt_emit_request */
};

/* The ranks that a program sends to and receives from, as one number. */
static inline int tt_programs_pair(int to, int from, int nranks)
{
  return to * nranks + from;
}

/* The program of this rank. `channel` chooses among rings, trees and heads. Owned by `programs`. */
ncclResult_t tt_programs_get(struct tt_programs *programs, const struct tt_programs_key *key, int channel,
                             const struct tt_program **out);

#endif
