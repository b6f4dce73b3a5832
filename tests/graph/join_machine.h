/* Machines for tests of the join: graphs, and all ranks' cards and shapes. */
#ifndef TEST_JOIN_MACHINE_H
#define TEST_JOIN_MACHINE_H

#include "graph/join.h"

/* What is joined. The lists grow as machines are added. */
struct fleet {
  struct tt_join_card *cards;
  int nranks, nnodes;
  struct tt_join_shapes shapes;
};

/* Adds a machine of these graphs, whose ranks are 0 to nlocal - 1. Its own are `ranks`, ascending; NULL: the next ones.
 * A shape that is there already is not added again. */
void fleet_add(struct fleet *fleet, const struct tt_graph *const graphs[TT_GRAPH_KINDS], const int32_t *ranks,
               int nlocal);
/* Joins; NULL with the reason in tt_log_thread_error. Frees the fleet. */
struct tt_joined *fleet_join(struct fleet *fleet, const struct tt_join_rules *rules);
void fleet_free(struct fleet *fleet);

/* Graphs of a machine with `nlocal` GPUs: `nchannels` of rings and trees, which are random orders, as many of CollNet,
 * and `nheads` of NVLS and CollNet direct. The tree's pattern and the ring's cross_nic are chosen, too. */
struct graphs {
  struct tt_graph *kinds[TT_GRAPH_KINDS];
};
struct graphs graphs_random(uint64_t *state, int nlocal, int nchannels, int nheads);
void graphs_free(struct graphs *graphs);
uint64_t random_next(uint64_t *state);
int random_below(uint64_t *state, int n);

#endif
