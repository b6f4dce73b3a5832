/* The commands of tutti-topo. Each writes to standard output. */
#ifndef TOPO_TOPO_H
#define TOPO_TOPO_H

#include <stdbool.h>
#include <stddef.h>
#include "graph/search.h"
#include "topology/topology.h"

/* Exit statuses. */
enum topo_status { TOPO_GOOD = 0, TOPO_REFUSED = 1, TOPO_USAGE = 2, TOPO_FAILED = 3 };

/* The machine as a tree. `xml`: what it was made of. */
void topo_show(const struct tt_topology *topology, const struct tt_xml *xml);
/* Tables of paths; `steps`: also each path, node by node. */
void topo_paths(const struct tt_topology *topology, bool steps);

/* Prints the nodes of a path after its first. */
void topo_walk(const struct tt_topology *topology, const struct tt_path *path);
/* Why two ends, named as on the command line, are connected as they are, with all rules, in a job of `nranks` ranks (0:
 * those of the file). */
ncclResult_t topo_explain(const struct tt_xml *xml, const struct tt_topology_rules *rules, int nranks, const char *a,
                          const char *b);

/* Graphs: their channels and what they use of the links. */
struct topo_graphs {
  struct tt_graph *const *graphs;                 /* by kind */
  bool loaded[TT_GRAPH_KINDS];                    /* from the user's file */
  struct tt_graph_record records[TT_GRAPH_KINDS]; /* of those that were searched */
  int only;                                       /* a kind; -1: all */
  bool links;                                     /* each, not those that are alike as one */
};
ncclResult_t topo_graph(const struct tt_topology *topology, const struct topo_graphs *what);
ncclResult_t topo_loads(const struct tt_topology *topology, const struct tt_graph *graph, bool each);

/* A copy of a file, in which only the GPUs of some ranks have one (NULL: all). ncclInvalidArgument: the list is wrong.
 */
ncclResult_t topo_select(const struct tt_xml *xml, const char *list, struct tt_xml **copy);
/* 0 if there is none. */
int topo_lowest_rank(const struct tt_xml *xml);
/* Whether it has the GPU of a rank: files that clouds ship have none. */
bool topo_has_ranks(const struct tt_xml *xml);

#endif
