/* Finds channels in a topology: rings, trees and heads that use its links as well as they can be used.
 *
 * A search depends on nothing but the topology and the rules: it counts the places it visits, not time, so all ranks
 * that see the same machine find the same. It needs little stack, whatever the machine. docs/topology.md says how it
 * works. Any thread. */
#ifndef TT_GRAPH_SEARCH_H
#define TT_GRAPH_SEARCH_H

#include <stdbool.h>
#include "graph/graph.h"

/* What users say of channels. Equal on all ranks. */
struct tt_graph_rules {
  int cross_nic; /* whether a ring may leave a machine by another NIC than it came: 0 never, 1 always, 2 if better */
  bool scatter_nets;  /* with several hosts: GPUs take turns in the order of NETs, so that hosts do, too */
  bool rail_per_host; /* NICs in the same slot of different hosts are on one rail */
  bool collnet;       /* a plugin reduces in the network: look for its graphs, where a network is */
  bool nvls;          /* multicast works: look for NVLS heads */
};

struct tt_graph_rules tt_graph_rules_default(void);
/* Sets what parameters say: ncclInvalidUsage naming the variable, its value and the values allowed. */
ncclResult_t tt_graph_rules_from_parameters(struct tt_graph_rules *rules);

struct tt_graph_request {
  enum tt_graph_kind kind;
  enum tt_graph_pattern pattern;  /* with which it begins; balanced trees may become simple ones */
  int min_channels, max_channels; /* 1..TT_GRAPH_MOST_CHANNELS */
  struct tt_graph_rules rules;
};

/* What a search did, for people. */
struct tt_graph_record {
  int attempts;       /* with different limits */
  int spared;         /* more, which could not have found anything better */
  int cut_short;      /* of those, how many ended because they had made all their visits */
  int visits;         /* of all attempts */
  bool out_of_visits; /* no more attempts were made for that reason, although there were some */
  bool fallback;      /* nothing was found: the GPUs in their order, with a bandwidth that says that it is unknown */
};

/* A graph of one kind. Nothing found is no error: rings and trees fall back to the order of GPUs, the other kinds have
 * no channels then. `record` may be NULL. */
ncclResult_t tt_graph_search(const struct tt_topology *topology, const struct tt_graph_request *request,
                             struct tt_graph **graph, struct tt_graph_record *record);

/* All kinds, each with the channel counts that go together; those that rules exclude have no channels. On failure all
 * are NULL. `records` has room for TT_GRAPH_KINDS, or is NULL. */
ncclResult_t tt_graph_search_all(const struct tt_topology *topology, const struct tt_graph_rules *rules,
                                 struct tt_graph *graphs[TT_GRAPH_KINDS], struct tt_graph_record *records);

#endif
