/* Graphs in the log. */
#include "graph/log.h"

#include <stdio.h>
#include "base/check.h"
#include "base/log.h"
#include "base/long_line.h"
#include "topology/log.h"

static void add_net(struct tt_long_line *line, int64_t net)
{
  const uint64_t host_at = 56, id = (uint64_t)net;
  if (net != TT_GRAPH_NO_NET)
    tt_long_line_add(line, " NET/%llx-%llx", (unsigned long long)(id >> host_at),
                     (unsigned long long)(id & (((uint64_t)1 << host_at) - 1)));
}

void tt_graph_log(const struct tt_topology *t, const struct tt_graph *graph)
{
  if (!tt_log_enabled(TT_LOG_INFO, TT_GRAPH)) return;
  TT_INFO(TT_GRAPH, "Pattern %d, crossNic %d, nChannels %d, bw %f/%f, type %s/%s, sameChannels %d", graph->pattern,
          graph->cross_nic, graph->nchannels, (double)graph->bandwidth_intra, (double)graph->bandwidth_inter,
          tt_topology_name_path(graph->type_intra), tt_topology_name_path(graph->type_inter), graph->same_channels);
  for (int c = 0; c < graph->nchannels; c++) {
    struct tt_long_line line = {.at = 0};
    tt_long_line_add(&line, "%2d :", c);
    add_net(&line, graph->nets[2 * c]);
    for (int i = 0; i < graph->nranks; i++) {
      char label[64];
      int gpu = tt_topology_gpu_of_rank(t, graph->ranks[c * graph->nranks + i]);
      if (gpu < 0) break; /* patterns with a head name only that */
      tt_long_line_add(&line, " %s",
                       tt_topology_log_label(t, tt_topology_node(t, TT_NODE_GPU, gpu), label, sizeof(label)));
    }
    add_net(&line, graph->nets[2 * c + 1]);
    TT_INFO(TT_GRAPH, "%s", line.text);
  }
}
