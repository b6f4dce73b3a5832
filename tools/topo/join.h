/* tutti-topo join: what N copies of a machine become together. */
#ifndef TOPO_JOIN_H
#define TOPO_JOIN_H

#include "graph/join.h"
#include "graph/search.h"

/* What is asked for. */
struct topo_join {
  int nodes;        /* copies */
  int rank;         /* whose place is shown; -1: nobody's */
  int channel;      /* that is shown; -1: all, where there are few ranks */
  const char *load; /* a graph file; NULL: all graphs are searched */
  struct tt_topology_rules topology;
  struct tt_graph_rules search;
  struct tt_join_rules rules;
};

/* What was found on one copy. GPUs that reach each other only over the network are machines of their own. */
struct join_part {
  struct tt_topology *topology;
  struct tt_graph *graphs[TT_GRAPH_KINDS];
};

struct join_fleet {
  int32_t *names; /* of each rank of a copy, ascending: its rank in the file */
  int nlocal;     /* ranks of a copy */
  struct join_part *parts;
  int *part_of; /* [nlocal] */
  int nparts;
  struct tt_join_card *cards; /* [nlocal], then [nlocal * nodes] */
  struct tt_join_shapes shapes;
};

/* Sets the rules by what parameters say. */
ncclResult_t topo_join_rules(struct topo_join *what);
/* Joins, proves and prints. *valid: whether the proof held; if not, why was printed. */
ncclResult_t topo_join(const struct tt_xml *xml, const struct topo_join *what, bool *valid);

/* ---- join_fleet.c ---- */
ncclResult_t join_fleet_build(const struct tt_xml *xml, const struct topo_join *what, struct join_fleet *fleet);
void join_fleet_free(struct join_fleet *fleet);

/* ---- join_print.c ---- */
void join_print_counts(const struct tt_joined *joined, const struct join_fleet *fleet);
void join_print_channels(const struct tt_joined *joined, int only);
void join_print_rank(const struct tt_joined *joined, int rank, int only);

#endif
