/* Reads what NCCL found and joined on a machine: the lines graph, ch, ringorder, tree, nvlstree and # coll of a section
 * of NAME.expected.txt. */
#ifndef TEST_JOIN_EXPECTED_H
#define TEST_JOIN_EXPECTED_H

#include "graph/join.h"

struct join_section {
  int nodes, ngpus, nranks; /* ranks of all nodes, those included that were trimmed */
  char name[64], value[64]; /* a variable; "": none */
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  bool joined; /* it has the line of counts */
  int coll_channels, nvls_channels, peer_channels, per_peer, tree_depth;
  char **lines; /* ringorder, tree and nvlstree as they are */
  int nlines;
};

struct join_section *join_sections_read(const char *path, int *count);
void join_sections_free(struct join_section *sections, int count);

#endif
