/* See graph_load.h. */
#include "graph_load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct proof {
  const struct tt_topology *t;
  const struct tt_graph *graph;
  double *load; /* of each link */
  bool known;
  const char *wrong;
};

static char text[256];

static void say(struct proof *p, const char *format, ...)
{
  va_list args;
  if (p->wrong) return;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  p->wrong = text;
}

static const struct tt_node *node_at(const struct proof *p, int node)
{
  return &p->t->nodes[node];
}

static int gpu_of(struct proof *p, int channel, int i)
{
  int gpu = tt_topology_gpu_of_rank(p->t, p->graph->ranks[channel * p->graph->nranks + i]);
  if (gpu < 0) say(p, "channel %d has no GPU at %d", channel, i);
  return tt_topology_node(p->t, TT_NODE_GPU, gpu < 0 ? 0 : gpu);
}

static int net_of(struct proof *p, int channel, int end)
{
  int64_t name = p->graph->nets[channel * 2 + end];
  if (!p->known && name == TT_GRAPH_NO_NET) return -1;
  for (int n = 0; n < p->t->count[TT_NODE_NET]; n++) {
    int node = tt_topology_node(p->t, TT_NODE_NET, n);
    if (node_at(p, node)->net.dev == (int)(name & 0xffffffff) && node_at(p, node)->host == (int)(name >> 56))
      return node;
  }
  say(p, "channel %d has a NET %llx that is not there", channel, (unsigned long long)name);
  return tt_topology_node(p->t, TT_NODE_NET, 0);
}

static bool is_cpu(const struct tt_node *node, enum tt_cpu_arch arch)
{
  return node->type == TT_NODE_CPU && node->cpu.arch == arch;
}

/* What a path carries is on all its links. */
static void carry(struct proof *p, int from, int to, double bandwidth)
{
  const struct tt_topology *t = p->t;
  const struct tt_path *path = tt_topology_path(t, from, to);
  const bool net = node_at(p, from)->type == TT_NODE_NET || node_at(p, to)->type == TT_NODE_NET;
  const int type = net ? (int)p->graph->type_inter : (int)p->graph->type_intra;
  const bool tree = p->graph->pattern != TT_PATTERN_RING && p->graph->pattern <= TT_PATTERN_TREE;
  char a[64], b[64];
  if (!p->known) return;
  if (path->type > type || (tree && tt_topology_path(t, to, from)->type > type))
    say(p, "%s to %s is farther than %s", tt_topology_label(t, from, a, sizeof(a)),
        tt_topology_label(t, to, b, sizeof(b)), tt_topology_name_path((enum tt_path_type)type));
  bool intel = false;
  for (int s = path->first; s >= 0; s = t->steps[s].next) {
    const struct tt_node *at = node_at(p, t->links[t->steps[s].link].to);
    intel |= is_cpu(at, TT_ARCH_X86) && at->cpu.vendor == TT_VENDOR_INTEL;
  }
  intel &= node_at(p, from)->type == TT_NODE_GPU && path->type == TT_PATH_PHB;
  for (int s = path->first; s >= 0; s = t->steps[s].next) {
    const struct tt_link *link = &t->links[t->steps[s].link];
    const struct tt_node *into = node_at(p, link->to);
    double there = link->type == TT_LINK_PCI && intel ? bandwidth * 1.2 : bandwidth;
    p->load[t->steps[s].link] += there;
    if (into->type == TT_NODE_DEV && into->gpu.sm < 80 && node_at(p, from)->type != TT_NODE_GPU)
      p->load[link->reverse] += there / 8;
    if (is_cpu(into, TT_ARCH_POWER) && link->type == TT_LINK_NVL) p->load[link->reverse] += there;
  }
}

/* The NETs of a channel, and what goes to and from them. */
static void carry_outside(struct proof *p, int channel, int last)
{
  const struct tt_graph *g = p->graph;
  const double inter = (double)g->bandwidth_inter;
  const int in = net_of(p, channel, 0), out = net_of(p, channel, 1), first = gpu_of(p, channel, 0);
  if (!p->known) return;
  const struct tt_node *from = node_at(p, in), *to = node_at(p, out);
  carry(p, in, first, inter);
  if (g->pattern == TT_PATTERN_RING) {
    carry(p, last, out, inter);
  } else if (g->pattern == TT_PATTERN_BALANCED_TREE) {
    carry(p, first, out, inter / 2);
    carry(p, gpu_of(p, channel, 1), out, inter / 2);
  } else {
    carry(p, first, out, inter);
  }
  if (from->net.plane >= 0 && to->net.plane >= 0 && from->net.plane != to->net.plane)
    say(p, "channel %d goes from plane %d to %d", channel, from->net.plane, to->net.plane);
  if (g->pattern == TT_PATTERN_TREE && in != out) say(p, "channel %d of a tree has two NETs", channel);
  const bool rails = from->net.rail >= 0 && to->net.rail >= 0;
  if (g->cross_nic == 0 &&
      (rails ? from->net.rail != to->net.rail : from->net.asic != to->net.asic || from->net.port != to->net.port))
    say(p, "channel %d crosses from NET %d to %d", channel, from->net.dev, to->net.dev);
  if (g->cross_nic == 2 && g->pattern == TT_PATTERN_RING && channel % 2 == 1 &&
      (g->nets[channel * 2] != g->nets[channel * 2 - 1] || g->nets[channel * 2 + 1] != g->nets[channel * 2 - 2]))
    say(p, "channel %d does not swap the NETs of the one before", channel);
}

static void carry_order(struct proof *p, int channel)
{
  const struct tt_graph *g = p->graph;
  const double intra = (double)g->bandwidth_intra;
  bool *seen = calloc((size_t)p->t->nnodes, sizeof(*seen));
  if (!seen) abort();
  for (int i = 0; i < g->nranks; i++) {
    int gpu = gpu_of(p, channel, i);
    if (seen[gpu]) say(p, "channel %d goes twice over a GPU", channel);
    seen[gpu] = true;
    if (i + 1 < g->nranks) carry(p, gpu, gpu_of(p, channel, i + 1), intra);
  }
  free(seen);
  const int last = gpu_of(p, channel, g->nranks - 1);
  if (p->t->inter)
    carry_outside(p, channel, last);
  else if (g->pattern == TT_PATTERN_RING)
    carry(p, last, gpu_of(p, channel, 0), intra);
}

static void carry_head(struct proof *p, int channel)
{
  const struct tt_graph *g = p->graph;
  const bool nvls = g->pattern == TT_PATTERN_NVLS;
  const int head = gpu_of(p, channel, 0);
  const int center = nvls ? tt_topology_node(p->t, TT_NODE_NVS, 0) : head;
  for (int c = 0; c < channel; c++)
    if (gpu_of(p, c, 0) == head) say(p, "channels %d and %d have the same head", c, channel);
  for (int i = 1; i < g->nranks; i++)
    if (g->ranks[channel * g->nranks + i] != -1) say(p, "channel %d has more than a head", channel);
  for (int i = 0; i < p->t->count[TT_NODE_GPU]; i++) {
    const int gpu = tt_topology_node(p->t, TT_NODE_GPU, i);
    const double share = (double)g->bandwidth_intra * (nvls ? (gpu == head ? 2 : 1) : 1.0 / (g->nranks - 1));
    if (gpu == center) continue;
    carry(p, center, gpu, share);
    carry(p, gpu, center, share);
  }
  if (p->t->inter) carry_outside(p, channel, head);
}

const char *graph_is_wrong(const struct tt_topology *t, const struct tt_graph *graph, bool known)
{
  struct proof p = {.t = t, .graph = graph, .known = known};
  const bool heads = graph->pattern == TT_PATTERN_NVLS || graph->pattern == TT_PATTERN_COLLNET_DIRECT;
  p.load = calloc((size_t)t->nlinks + 1, sizeof(*p.load));
  if (!p.load) abort();
  if (graph->nranks != t->count[TT_NODE_GPU]) say(&p, "it is for %d ranks", graph->nranks);
  for (int c = 0; c < graph->nchannels && !p.wrong; c++) heads ? carry_head(&p, c) : carry_order(&p, c);
  for (int l = 0; l < t->nlinks && known; l++)
    if (p.load[l] > (double)t->links[l].bandwidth + 0.001 * (graph->nchannels + 1))
      say(&p, "link %d of type %s carries %g of %g GB/s", l, tt_topology_name_link(t->links[l].type), p.load[l],
          (double)t->links[l].bandwidth);
  free(p.load);
  return p.wrong;
}
