/* Graphs in words: what a channel is, what it is worth, and the channels. */
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "topo.h"

static void print_net(const struct tt_topology *t, int64_t net)
{
  if (t->nhosts > 1)
    printf("net %d/%d", (int)(net >> 56), (int)(net & INT32_MAX));
  else
    printf("net %d", (int)(net & INT32_MAX));
}

static void print_channel(const struct tt_topology *t, const struct tt_graph *g, int c)
{
  const int32_t *ranks = &g->ranks[c * g->nranks];
  const int64_t in = t->inter ? g->nets[c * 2] : TT_GRAPH_NO_NET, out = t->inter ? g->nets[c * 2 + 1] : TT_GRAPH_NO_NET;
  printf("  %s %d: ", tt_graph_name(g->kind), c);
  if (in != TT_GRAPH_NO_NET) {
    print_net(t, in);
    fputs(" -> ", stdout);
  }
  printf("%d", ranks[0]);
  for (int i = 1; i < g->nranks && ranks[i] >= 0; i++) printf(" %d", ranks[i]);
  if (out != TT_GRAPH_NO_NET) {
    fputs(" -> ", stdout);
    print_net(t, out);
  } else if (g->kind == TT_GRAPH_RING && g->nranks > 1) {
    printf(" -> %d", ranks[0]);
  }
  putchar('\n');
}

static const char *meaning(enum tt_graph_pattern pattern)
{
  switch (pattern) {
  case TT_PATTERN_BALANCED_TREE:
    return "chains; of other machines, parent and one child are at the first GPU, the other child is at the second";
  case TT_PATTERN_SPLIT_TREE:
    return "chains; of other machines, the parent is at the first GPU, the children are at the second";
  case TT_PATTERN_TREE:
    return "chains; parent and children of other machines are at the first GPU";
  case TT_PATTERN_RING:
    return "rings; data comes in at the first GPU and goes out at the last";
  case TT_PATTERN_NVLS:
    return "heads, which reach all others through the switch";
  case TT_PATTERN_COLLNET_DIRECT:
    return "heads, which reach all others by their paths";
  }
  return "?";
}

/* How it was found. */
static void print_record(const struct tt_graph_record *record)
{
  if (record->fallback)
    puts("  nothing was found, so this is the order of the GPUs, at a bandwidth that means that it is unknown");
  printf("  searched under %d different limits, %d places looked at", record->attempts, record->visits);
  if (record->cut_short > 0) printf("; under %d limits not all, since they were too many", record->cut_short);
  puts(record->out_of_visits ? "; there were more limits to try" : "");
}

static void print_graph(const struct tt_topology *t, const struct tt_graph *g, bool loaded)
{
  printf("%s%s: %d channel%s, each %.4g GB/s between GPUs (%s)", tt_graph_name(g->kind), loaded ? " of the file" : "",
         g->nchannels, g->nchannels == 1 ? "" : "s", (double)g->bandwidth_intra, tt_topology_name_path(g->type_intra));
  if (t->inter) printf(", %.4g to NETs (%s)", (double)g->bandwidth_inter, tt_topology_name_path(g->type_inter));
  printf("; together %.4g", (double)(g->bandwidth_intra * (float)g->nchannels));
  if (t->inter) printf(" and %.4g", (double)(g->bandwidth_inter * (float)g->nchannels));
  const char *words = meaning(g->pattern);
  /* Where data comes in and goes out is of no interest if it does neither. */
  printf("\n  %.*s", t->inter ? (int)strlen(words) : (int)strcspn(words, ";"), words);
  if (t->inter && g->kind == TT_GRAPH_RING)
    fputs(g->cross_nic == 0   ? "; by the same NIC as it came"
          : g->cross_nic == 1 ? "; by any NIC"
                              : "; pairs of channels swap their NICs",
          stdout);
  if (g->same_channels && g->nchannels > 1) fputs("; all channels follow the same paths", stdout);
  putchar('\n');
  for (int c = 0; c < g->nchannels; c++) print_channel(t, g, c);
}

/* Why there are no channels: what a search needs of a machine. */
static const char *why_none(const struct tt_topology *t, enum tt_graph_kind kind)
{
  if (kind == TT_GRAPH_NVLS) {
    if (tt_param_int(TT_PARAM_NCCL_NVLS_ENABLE) == 0) return ": NCCL_NVLS_ENABLE is 0";
    for (int d = 0; d < t->count[TT_NODE_DEV]; d++)
      if (t->nodes[tt_topology_node(t, TT_NODE_DEV, d)].gpu.sm < 90) return ": multicast needs sm 90";
    return t->count[TT_NODE_NVS] == 0 ? ": there is no NVSwitch" : "";
  }
  if (tt_param_int(TT_PARAM_NCCL_COLLNET_ENABLE) == 0) return ": NCCL_COLLNET_ENABLE is not 1";
  for (int n = 0; n < t->count[TT_NODE_NET]; n++)
    if (t->nodes[tt_topology_node(t, TT_NODE_NET, n)].net.collnet) return t->inter ? "" : ": all ranks are here";
  return ": no NET reduces";
}

ncclResult_t topo_graph(const struct tt_topology *t, const struct topo_graphs *what)
{
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    const enum tt_graph_kind kind = (enum tt_graph_kind)k;
    const struct tt_graph *graph = what->graphs[k];
    if (what->only >= 0 && k != what->only) continue;
    if (graph->nchannels == 0) {
      printf("%s: none%s\n\n", tt_graph_name(kind), why_none(t, kind));
      continue;
    }
    print_graph(t, graph, what->loaded[k]);
    if (!what->loaded[k]) print_record(&what->records[k]);
    TT_TRY(topo_loads(t, graph, what->links));
    putchar('\n');
  }
  return ncclSuccess;
}
