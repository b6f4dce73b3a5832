/* The graphs of a machine: those of the user's file, and what a search finds in place of those that it lacks. */
#ifndef TT_GRAPH_FIND_H
#define TT_GRAPH_FIND_H

#include "graph/search.h"

/* `path`: a graph file (NCCL_GRAPH_FILE), or NULL. No member is NULL afterwards, but some may have no channels; the
 * graphs are the caller's to free. On failure all are NULL. `loaded` tells which are the file's, `records` what the
 * search did (tt_graph_search_all); either may be NULL. */
ncclResult_t tt_graph_find(const char *path, const struct tt_topology *topology, const struct tt_graph_rules *rules,
                           struct tt_graph *graphs[TT_GRAPH_KINDS], bool loaded[TT_GRAPH_KINDS],
                           struct tt_graph_record *records);

#endif
