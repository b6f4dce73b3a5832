/* How much of each link the channels of a graph use together. Of chains the way up is counted, as a search does: the
 * way down uses the same links in the other direction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topo.h"

struct loads {
  const struct tt_topology *t;
  float *used; /* of each link */
};

static void follow(struct loads *l, int from, int to, float bandwidth)
{
  const struct tt_topology *t = l->t;
  if (from < 0 || to < 0) return;
  for (int s = tt_topology_path(t, from, to)->first; s >= 0; s = t->steps[s].next)
    l->used[t->steps[s].link] += bandwidth;
}

static int node_of_rank(const struct tt_topology *t, int32_t rank)
{
  int g = tt_topology_gpu_of_rank(t, rank);
  return g < 0 ? -1 : tt_topology_node(t, TT_NODE_GPU, g);
}

static int node_of_net(const struct tt_topology *t, int64_t net)
{
  if (net == TT_GRAPH_NO_NET) return -1;
  int n = tt_topology_find(t, TT_NODE_NET, (int)(net >> 56), (uint64_t)net & 0xffffffffffffff);
  return n < 0 ? -1 : tt_topology_node(t, TT_NODE_NET, n);
}

/* A head and the others exchange data: by the switch, where the head has the double share, or each by its own path. */
static void load_head(struct loads *l, const struct tt_graph *g, int head)
{
  const struct tt_topology *t = l->t;
  const bool nvls = g->kind == TT_GRAPH_NVLS;
  for (int i = 0; i < t->count[TT_NODE_GPU]; i++) {
    const int gpu = tt_topology_node(t, TT_NODE_GPU, i);
    if (!nvls && gpu == head) continue;
    const int other = !nvls ? head : t->count[TT_NODE_NVS] > 0 ? tt_topology_node(t, TT_NODE_NVS, 0) : -1;
    const float share = !nvls ? 1.0f / (float)(g->nranks - 1) : gpu == head ? 2 : 1;
    follow(l, gpu, other, g->bandwidth_intra * share);
    follow(l, other, gpu, g->bandwidth_intra * share);
  }
}

static void load_channel(struct loads *l, const struct tt_graph *g, int c)
{
  const struct tt_topology *t = l->t;
  const int32_t *ranks = &g->ranks[c * g->nranks];
  const int in = node_of_net(t, g->nets[c * 2]), out = node_of_net(t, g->nets[c * 2 + 1]);
  const int first = node_of_rank(t, ranks[0]), last = node_of_rank(t, ranks[g->nranks - 1]);
  const bool ring = g->kind == TT_GRAPH_RING;
  int back = ring ? last : first;
  if (g->pattern == TT_PATTERN_SPLIT_TREE && g->nranks > 1) back = node_of_rank(t, ranks[1]);
  if (g->kind == TT_GRAPH_NVLS || g->kind == TT_GRAPH_COLLNET_DIRECT) load_head(l, g, first);
  for (int i = 0; i + 1 < g->nranks && ranks[i + 1] >= 0; i++)
    follow(l, node_of_rank(t, ranks[i]), node_of_rank(t, ranks[i + 1]), g->bandwidth_intra);
  if (ring && out < 0 && g->nranks > 1) follow(l, last, first, g->bandwidth_intra);
  const bool balanced = g->pattern == TT_PATTERN_BALANCED_TREE && g->nranks > 1;
  follow(l, in, first, g->bandwidth_inter);
  follow(l, back, out, balanced ? g->bandwidth_inter / 2 : g->bandwidth_inter);
  if (balanced) follow(l, node_of_rank(t, ranks[1]), out, g->bandwidth_inter / 2);
}

static void print_link(const struct tt_topology *t, int link)
{
  char from[64], to[64];
  const struct tt_link *l = &t->links[link];
  printf("%s -%s-> %s", tt_topology_label(t, l->from, from, sizeof(from)), tt_topology_name_link(l->type),
         tt_topology_label(t, l->to, to, sizeof(to)));
}

/* Links between nodes of the same types that carry the same. */
static bool alike(const struct loads *l, int a, int b)
{
  const struct tt_topology *t = l->t;
  const struct tt_link *x = &t->links[a], *y = &t->links[b];
  return x->type == y->type && x->bandwidth == y->bandwidth && l->used[a] == l->used[b] &&
         t->nodes[x->from].type == t->nodes[y->from].type && t->nodes[x->to].type == t->nodes[y->to].type;
}

static void print_row(const struct loads *l, int link, int count)
{
  const struct tt_topology *t = l->t;
  const float of = t->links[link].bandwidth, used = l->used[link];
  printf("  %8.4g of %-8.4g %3.0f%%  ", (double)used, (double)of, (double)(of > 0 ? used * 100 / of : 0));
  if (count > 1)
    printf("%d links %s -%s-> %s, such as ", count, tt_topology_name_node(t->nodes[t->links[link].from].type),
           tt_topology_name_link(t->links[link].type), tt_topology_name_node(t->nodes[t->links[link].to].type));
  print_link(t, link);
  puts(used > of * 1.001f ? "; more than it carries" : ""); /* sums of floats may be a little more */
}

/* The busiest first. What is inside a device is no link that anything has to share. */
static int next(const struct loads *l, const bool *done)
{
  const struct tt_topology *t = l->t;
  int best = -1;
  float most = 0;
  for (int i = 0; i < t->nlinks; i++) {
    const float share = t->links[i].bandwidth > 0 ? l->used[i] / t->links[i].bandwidth : 0;
    if (done[i] || t->links[i].type == TT_LINK_LOC || share <= most) continue;
    most = share;
    best = i;
  }
  return best;
}

ncclResult_t topo_loads(const struct tt_topology *t, const struct tt_graph *graph, bool each)
{
  struct loads l = {.t = t};
  bool *done = NULL;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&l.used, (size_t)t->nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&done, (size_t)t->nlinks), result, out);
  for (int c = 0; c < graph->nchannels; c++) load_channel(&l, graph, c);
  puts("  links used:");
  for (int link; (link = next(&l, done)) >= 0;) {
    int count = 0;
    for (int i = link; i < t->nlinks; i++)
      if (i == link || (!each && !done[i] && alike(&l, link, i))) {
        done[i] = true;
        count++;
      }
    print_row(&l, link, count);
  }
out:
  free(l.used);
  free(done);
  return result;
}
