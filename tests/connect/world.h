/* A communicator's worth of ranks for tests of connection set-up: each a thread, or each a process, with a real
 * bootstrap. */
#ifndef TT_TESTS_CONNECT_WORLD_H
#define TT_TESTS_CONNECT_WORLD_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include "bootstrap/bootstrap.h"
#include "connect/connect.h"

struct rank {
  int rank, nranks;
  bool failed;
  _Atomic uint32_t abort;
  ncclUniqueId id;
  struct tt_bootstrap *bootstrap;
  struct tt_net *net;
  struct tt_context *context;
  struct tt_transport_env *env;
  struct tt_connect *connect;
  void (*body)(struct rank *rank);
};

/* Runs `body` on n ranks, between barriers; the connections are closed afterwards. Fails the test if a rank failed. A
 * body may close all by itself with rank_close. */
void world_run(int n, void (*body)(struct rank *rank));
/* The same with a process a rank. statuses[r] is the exit status or -signal; NULL: all must be 0. */
void world_run_processes(int n, void (*body)(struct rank *rank), int *statuses);
/* Asks for a network from now on, as a communicator does. */
void world_use_net(bool use);
/* Each rank is on the device of its own number from now on. */
void world_use_device(const struct tt_device *device);
/* In host memory, with slots of a pool; its works are the tests' own. */
extern const struct tt_device world_device_by_hand;
/* Called in each rank's process, before anything else. NULL: nothing is. */
void world_before_rank(void (*before)(int rank));

/* Bits of the ranks of which it is said that they have left, whoever asks. Where the socket plugin is built. */
extern _Atomic unsigned ranks_left;

/* Ends the rank before the others do. */
void rank_close(struct rank *rank);

/* In bodies: notes a failure of this rank and returns from the body. */
#define RANK_CHECK(rank, condition)                                                                                    \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, (rank)->rank, #condition);                           \
      (rank)->failed = true;                                                                                           \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

void set_env(const char *name, const char *value); /* NULL: unset; parameters are read again */

/* Moves `count` small messages over an established pair of ends by hand; the peer does the opposite. False if they are
 * not what the peer sends. */
bool send_by_hand(struct rank *rank, struct tt_connector *connector, int count);
bool recv_by_hand(struct rank *rank, struct tt_connector *connector, int count);
/* The two halves of recv_by_hand: others may be expected in between. */
bool expect_by_hand(struct tt_connector *connector, int count);
bool take_by_hand(struct rank *rank, struct tt_connector *connector, int count);

#endif
