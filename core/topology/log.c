/* The machine in the log. */
#include "topology/log.h"

#include <stdio.h>
#include "base/check.h"
#include "base/log.h"
#include "base/long_line.h"
#include "topology/walk.h"

const char *tt_topology_log_label(const struct tt_topology *t, int node, char *text, size_t size)
{
  const struct tt_node *n = &t->nodes[node];
  uint64_t id = n->type == TT_NODE_NET ? (uint64_t)n->net.dev : n->id;
  snprintf(text, size, "%s/%x-%llx", tt_topology_name_node(n->type), (unsigned)n->host, (unsigned long long)id);
  return text;
}

static void add_node(struct tt_long_line *line, const struct tt_topology *t, int node)
{
  char label[64];
  const struct tt_node *n = &t->nodes[node];
  tt_long_line_add(line, "%s", tt_topology_log_label(t, node, label, sizeof(label)));
  if (n->type == TT_NODE_GPU) tt_long_line_add(line, " (%d)", n->gpu.rank);
  if (n->type == TT_NODE_CPU) tt_long_line_add(line, " (%d/%d/%d)", n->cpu.arch, n->cpu.vendor, n->cpu.model);
  if (n->type == TT_NODE_PCI) tt_long_line_add(line, " (%llx)", (unsigned long long)n->pci.device);
  if (n->type == TT_NODE_NET)
    tt_long_line_add(line, " (%llx/%d/%.1f)", (unsigned long long)n->net.asic, n->net.port, (double)n->net.bandwidth);
}

static void log_link(const struct tt_topology *t, const struct tt_link *link, int depth)
{
  struct tt_long_line line = {.at = 0};
  tt_long_line_add(&line, "%*s+ %s[%.1f] - ", 14 * depth, "", tt_topology_name_link(link->type),
                   (double)link->bandwidth);
  add_node(&line, t, link->to);
  TT_INFO(TT_GRAPH, "%s", line.text);
}

/* Links that lead across the tree. */
static void log_others(const struct tt_topology *t, int node, int depth)
{
  const struct tt_node *n = &t->nodes[node];
  for (int l = n->first_link; l < n->first_link + n->nlinks; l++)
    if (!tt_topology_walks_along(t, &t->links[l])) log_link(t, &t->links[l], depth);
}

static void log_tree(const struct tt_topology *t, int cpu)
{
  struct tt_long_line line = {.at = 0};
  struct tt_topology_walk walk;
  add_node(&line, t, cpu);
  TT_INFO(TT_GRAPH, "%s", line.text);
  tt_topology_walk_begin(&walk, t, cpu);
  for (int down; (down = tt_topology_walk_next(&walk)) >= 0;) {
    log_link(t, &t->links[down], walk.depth - 1);
    log_others(t, walk.node, walk.depth);
  }
  log_others(t, cpu, 0);
}

static void log_paths(const struct tt_topology *t, int from)
{
  static const enum tt_node_type ends[] = {TT_NODE_GPU, TT_NODE_CPU, TT_NODE_NET};
  char label[64];
  struct tt_long_line line = {.at = 0};
  tt_long_line_add(&line, "%s :", tt_topology_log_label(t, from, label, sizeof(label)));
  for (size_t e = 0; e < TT_COUNT(ends); e++) {
    for (int i = 0; i < t->count[ends[e]]; i++) {
      int to = tt_topology_node(t, ends[e], i);
      const struct tt_path *path = tt_topology_path(t, from, to);
      tt_long_line_add(&line, "%s (%d/%.1f/%s) ", tt_topology_log_label(t, to, label, sizeof(label)), path->hops,
                       (double)path->bandwidth, tt_topology_name_path((enum tt_path_type)path->type));
    }
  }
  TT_INFO(TT_GRAPH, "%s", line.text);
}

void tt_topology_log(const struct tt_topology *t)
{
  if (!tt_log_enabled(TT_LOG_INFO, TT_GRAPH)) return;
  TT_INFO(TT_GRAPH, "=== System : maxBw %.1f totalBw %.1f ===", (double)t->max_bandwidth, (double)t->total_bandwidth);
  for (int c = 0; c < t->count[TT_NODE_CPU]; c++) log_tree(t, tt_topology_node(t, TT_NODE_CPU, c));
  TT_INFO(TT_GRAPH, "==========================================");
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) log_paths(t, tt_topology_node(t, TT_NODE_GPU, g));
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) log_paths(t, tt_topology_node(t, TT_NODE_NET, n));
}
