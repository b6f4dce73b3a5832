/* How much of each link the channels of a graph use together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "hops.h"
#include "topo.h"

struct loads {
  const struct tt_topology *t;
  float *used; /* of each link */
};

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

/* The busiest first. What is inside a device, or on no bus, is nothing that anybody has to share. */
static int next(const struct loads *l, const bool *done)
{
  const struct tt_topology *t = l->t;
  int best = -1;
  float most = 0;
  for (int i = 0; i < t->nlinks; i++) {
    const float share = t->links[i].bandwidth > 0 ? l->used[i] / t->links[i].bandwidth : 0;
    if (done[i] || t->links[i].bandwidth >= TT_LOCAL_BANDWIDTH || share <= most) continue;
    most = share;
    best = i;
  }
  return best;
}

ncclResult_t topo_loads(const struct tt_topology *t, const struct tt_graph *graph, bool each)
{
  struct loads l = {.t = t};
  bool *done = NULL;
  struct topo_hop *hops = NULL;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&l.used, (size_t)t->nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&done, (size_t)t->nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&hops, (size_t)topo_most_hops(t, graph)), result, out);
  for (int c = 0; c < graph->nchannels; c++)
    for (int i = topo_hops(t, graph, c, hops) - 1; i >= 0; i--)
      for (int s = tt_topology_path(t, hops[i].from, hops[i].to)->first; s >= 0; s = t->steps[s].next)
        l.used[t->steps[s].link] += hops[i].bandwidth;
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
  free(hops);
  return result;
}
