/* Walking the PCI tree. */
#include "topology/walk.h"

#include "base/check.h"

bool tt_topology_walks_along(const struct tt_topology *t, const struct tt_link *link)
{
  return link->type == TT_LINK_PCI || link->type == TT_LINK_NET ||
         (link->type == TT_LINK_LOC && t->nodes[link->to].type != TT_NODE_PCI);
}

/* The next link of `node` that leads down, from `link` on; -1: none. Down is away from `up`. */
static int next_down(const struct tt_topology *t, int node, int up, int link)
{
  const int end = t->nodes[node].first_link + t->nodes[node].nlinks;
  for (; link < end; link++) {
    int to = t->links[link].to;
    if (to == up || t->nodes[to].type == TT_NODE_CPU || t->links[link].type == TT_LINK_SYS) continue;
    if (tt_topology_walks_along(t, &t->links[link])) return link;
  }
  return -1;
}

void tt_topology_walk_begin(struct tt_topology_walk *walk, const struct tt_topology *t, int node)
{
  walk->topology = t;
  walk->node = node;
  walk->depth = 0;
  walk->next = t->nodes[node].first_link;
}

int tt_topology_walk_next(struct tt_topology_walk *walk)
{
  const struct tt_topology *t = walk->topology;
  for (;;) {
    int up = walk->depth > 0 ? t->links[walk->via[walk->depth - 1]].from : -1;
    int down = walk->depth < (int)TT_COUNT(walk->via) ? next_down(t, walk->node, up, walk->next) : -1;
    if (down >= 0) {
      walk->via[walk->depth++] = down;
      walk->node = t->links[down].to;
      walk->next = t->nodes[walk->node].first_link;
      return down;
    }
    if (walk->depth == 0) return -1;
    walk->next = walk->via[--walk->depth] + 1;
    walk->node = t->links[walk->via[walk->depth]].from;
  }
}
