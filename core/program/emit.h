/* Emitters: from a collective and an algorithm to a program. One file an algorithm. */
#ifndef TT_PROGRAM_EMIT_H
#define TT_PROGRAM_EMIT_H

#include <stdbool.h>
#include "tutti/program.h"

/* A rank's place in a tree: -1 where there is none. */
struct tt_tree {
  int32_t up;
  int32_t down[3];
};

struct tt_emit_request {
  int32_t collective; /* enum tt_collective */
  int32_t algorithm;  /* enum tt_algorithm */
  int32_t nranks, rank;
  int32_t root;               /* where tt_collective_has_root; TT_FUNC_SEND_RECV: who sends to this rank; else 0 */
  int32_t peer;               /* TT_FUNC_SEND, TT_FUNC_RECV; equal to rank: a local copy. TT_FUNC_SEND_RECV: to whom */
  const int32_t *ring;        /* nranks ranks in ring order; NULL: 0, 1, 2, ... */
  const struct tt_tree *tree; /* this rank's place; NULL: double binary tree `tree_index` over all ranks */
  int32_t tree_index;         /* 0 or 1; CollNet chain: any channel's number, which chooses the head */
  const int32_t *node;        /* of each rank, from 0 without gaps; NULL: all ranks are on one node */
  bool apart;                 /* input and output are different memory; all-to-all then has no order between the two */
  int32_t most_pieces;        /* PAT: chunks in a message at most; 0: TT_PAT_PIECES */
};

/* Emits into one allocation that tt_program_free releases. ncclInvalidUsage, naming both, where the algorithm has no
 * program for the collective. */
ncclResult_t tt_program_emit(const struct tt_emit_request *request, struct tt_program **program);
void tt_program_free(struct tt_program *program);

/* Chunks that PAT puts in one message at most. Fewer mean more messages, more mean smaller chunks: eight fill a slot of
 * the host device's Simple protocol with chunks of 16 KiB, whose copy still takes longer than posting a message. */
#define TT_PAT_PIECES 8

/* Chunks in the longest message of a program, at least 1. */
uint32_t tt_program_most_pieces(const struct tt_program *program);

/* Broadcast, reduce, scatter, gather. */
bool tt_collective_has_root(int collective);
/* Send, receive, and both in one program. */
bool tt_collective_is_message(int collective);
/* All-reduce, reduce, reduce-scatter. */
bool tt_collective_reduces(int collective);
/* Whether a buffer of the collective has a block for each rank; of a rooted one, only on the root. */
bool tt_collective_has_blocks(int collective);

/* The ranks that network `network` of CollNet programs reduces for, ascending: on each node the one with that number
 * among its ranks, if all have one. `members` has room for nranks. The nodes are those of a request that was emitted.
 */
ncclResult_t tt_collnet_members(int32_t nranks, const int32_t *node, int32_t network, int32_t *members,
                                int32_t *nmembers);

/* Whether an algorithm has a program for a collective. */
int tt_program_supports(int collective, int algorithm);

/* Whether it may be used where input and output are the same memory, as nccl.h says of the collective. */
bool tt_program_in_place(int collective, int algorithm);

/* This rank's place in tree 0 or 1 of the double binary tree over nranks ranks. */
void tt_tree_double(int nranks, int rank, int tree_index, struct tt_tree *tree);

/* Instructions' names and so on, for logs and tools. Never NULL. */
const char *tt_collective_name(int collective); /* "AllReduce" */
const char *tt_algorithm_name(int algorithm);   /* "RING" */
const char *tt_protocol_name(int protocol);     /* "SIMPLE" */

#endif
