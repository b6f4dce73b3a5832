/* Proves what machines were joined to: rings, trees and the order of peers, from the ranks' places alone. It shares no
 * arithmetic with the join. */
#ifndef TOPO_JOIN_CHECK_H
#define TOPO_JOIN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include "graph/join.h"

/* A rank's place in the tree of a channel; what is proved may be another than what was joined. */
typedef struct tt_join_tree join_check_place(const void *context, int channel, int rank);

struct join_check {
  const struct tt_joined *joined;
  join_check_place *place; /* NULL: tt_join_tree_place */
  const void *context;
  int sample;                              /* ranks whose peers are followed through all rounds; 0: all */
  int rings, trees, nvls_trees, schedules; /* what was proved */
  char why[192];                           /* what is wrong */
};

/* Each ring visits each rank once, enters each machine once, begins with rank 0; each machine uses each channel of its
 * graph once. */
bool join_check_rings(struct join_check *check);
/* Each tree has one root, from which each rank is reached once; who is up and who is down agree; each machine but the
 * root's has one link up; the second tree mirrors the first, no machine is a leaf in both, and both are as low as
 * binary trees can be. The same of the trees of NVLS' heads. */
bool join_check_trees(struct join_check *check);
/* Over all rounds a rank sends to each rank once, and receives from whoever sends to it then; channels are in range. */
bool join_check_peers(struct join_check *check);
/* All of it. */
bool join_check_all(struct join_check *check);

#endif
