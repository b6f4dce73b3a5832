/* Every collective with data that tells where it came from, for any number of ranks of this process or one of several:
 * buffers, the call, the check. */
#ifndef TT_TESTS_PLAN_COLLECTIVES_H
#define TT_TESTS_PLAN_COLLECTIVES_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "tests/common/held.h"

enum kind {
  ALL_REDUCE,
  ALL_GATHER,
  REDUCE_SCATTER,
  BROADCAST,
  REDUCE,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  SEND_RECV, /* to the next rank, from the one before */
  KINDS
};

/* One operation as one rank sees it. */
struct operation {
  enum kind kind;
  int n, rank, root;
  size_t count;
  uint32_t seed;
  uint32_t *in, *out;
};

void ok(ncclResult_t result);
/* Allocates and fills. */
void operation_open(struct operation *operation);
/* New data, and nothing left of the last result. */
void operation_fill(struct operation *operation, uint32_t seed);
ncclResult_t operation_call(const struct operation *operation, ncclComm_t comm, void *stream);
void operation_check(const struct operation *operation);
/* Elements of the larger of both buffers, and one more behind. */
size_t operation_room(const struct operation *operation);
void operation_close(struct operation *operation);

/* Threads and descriptors of this process. */
uint64_t now_ms(void);

void add_streams(Suite *suite);
void add_joins(Suite *suite);
void add_graphs(Suite *suite);
void add_nonblocking(Suite *suite);
void add_failures(Suite *suite);
void add_processes(Suite *suite);
void add_gate(Suite *suite);
void add_scalars(Suite *suite);
void add_teams(Suite *suite);
void add_mapped(Suite *suite);
void add_plain(Suite *suite);
void add_captured(Suite *suite);
void add_again(Suite *suite);
void add_hints(Suite *suite);
void add_as_messages(Suite *suite);

/* main.c: devices reach each other over a network only, in Simple. */
extern bool over_network;

#endif
