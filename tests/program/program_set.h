/* The programs of all ranks for one operation, and the ways in which a test runs them. */
#ifndef TESTS_PROGRAM_SET_H
#define TESTS_PROGRAM_SET_H

#include <check.h>
#include <stdbool.h>
#include "program/emit.h"
#include "program/validate.h"

/* Proofs are complete in a build without sanitizers. With them, which take five times as long, they are to show that
 * the code reads and writes only what is its own: of many cases of a kind every so manieth is run. */
#ifdef __SANITIZE_ADDRESS__
enum { ONE_OF_MANY = 13 };
#else
enum { ONE_OF_MANY = 1 };
#endif

/* A collective with an algorithm; for point to point, `root` sends to `peer`. `variant` is the tree's number; for PAT
 * the most pieces of a message, 0 for the emitter's own limit; for CollNet a shape of the nodes, plus NODE_SHAPES times
 * the channel's number; for direct all-to-all 1 if input and output are apart. */
struct operation {
  int32_t collective, algorithm, variant;
};

/* NVLS tree: the most ranks of a node, plus these. All nodes have the same number: the largest that divides, or all. */
enum { NVLS_TREE_TWO = 16, NVLS_DEALT = 32 };

enum node_shape {
  NODES_ONE,     /* all ranks on one node */
  NODES_OF_TWO,  /* 0 0 1 1 2 ... */
  NODES_DEALT,   /* 0 1 2 0 1 2 ... */
  NODES_OF_FOUR, /* 0 0 0 0 1 ...: the last node may be small */
  NODES_APART,   /* each rank on a node of its own */
  NODE_SHAPES
};

/* Whether there is a program for buffers that are the same memory. */
bool in_place_is_possible(const struct operation *operation);
/* Whether ranks touch each other's memory. */
bool shares_memory(const struct operation *operation);
/* Whether all ranks exchange messages with all others and with a network besides, which takes longest to run. */
bool is_dense(const struct operation *operation);
/* Whether the algorithm has a look at the nodes. */
bool has_nodes(const struct operation *operation);
/* The node of a rank in the operation's shape. */
int32_t node_of(const struct operation *operation, int32_t rank);

struct program_set {
  int n;
  struct tt_program **programs; /* NULL entries: ranks that take no part */
};

/* All operations among all ranks that there are emitters for; `count` is set. */
const struct operation *all_operations(int *count);
const char *operation_name(const struct operation *operation);
bool has_root(const struct operation *operation);

struct program_set emit_set(const struct operation *operation, int n, int root, const int32_t *ring);
/* from -> to among n ranks; from == to: a local copy. */
struct program_set emit_pair(int n, int from, int to);
void free_set(struct program_set *set);

struct way {
  uint32_t loops, slots;
  bool in_place;
  uint64_t seed;
};

/* tt_program_validate for one operation, same_everywhere. `why` may be NULL. */
bool is_proved(const struct program_set *set, const struct way *way, char *why, size_t why_size);
/* The same, failing the test with all details if it is not. */
void must_prove(const struct operation *operation, const struct program_set *set, const struct way *way);

/* Slots that the operation needs: where each rank of a cycle holds one message and wants to send another, two. */
uint32_t least_slots(const struct operation *operation, int n);

/* A permutation of 0..n-1; the caller frees it. */
int32_t *shuffled_ring(int n, uint64_t seed);
uint64_t next_random(uint64_t *state);

Suite *emit_suite(void);
Suite *dump_suite(void);
Suite *check_suite(void);
Suite *validate_suite(void);
Suite *sequence_suite(void);
Suite *scratch_suite(void);
Suite *shared_suite(void);
Suite *mapped_suite(void);
Suite *mapped_message_suite(void);
Suite *large_suite(void);
Suite *mutation_suite(void);

/* A suite of one case without check's time limit of 4 seconds. */
TCase *add_case(Suite *suite, const char *name);

#endif
