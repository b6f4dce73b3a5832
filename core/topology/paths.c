/* The best path between nodes: a search from each possible end outward, against the direction of travel. A better type
 * wins, then bandwidth, then fewer hops. See topology.h; core/topology's rules of types are in docs/topology.md. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/internal.h"

static const enum tt_node_type ends[] = {TT_NODE_CPU, TT_NODE_DEV, TT_NODE_GPU, TT_NODE_NET, TT_NODE_NVS};

static ncclResult_t add_step(struct tt_topology *t, int link, int next, int *step)
{
  if (t->nsteps == t->step_room) {
    int room = t->step_room ? t->step_room * 2 : 1024;
    struct tt_step *steps = realloc(t->steps, (size_t)room * sizeof(*steps));
    if (!steps) return TT_FAIL(ncclSystemError, "no memory for %d steps of paths", room);
    t->steps = steps;
    t->step_room = room;
  }
  *step = t->nsteps++;
  t->steps[*step] = (struct tt_step){.link = link, .next = next};
  return ncclSuccess;
}

struct search {
  struct tt_topology *t;
  struct tt_path *paths; /* from each node to the end */
  int own;               /* the device of an end that is a GPU, or the end that is a device; else -1 */
  int relay_hops;        /* hops to the end up to which a device may be a relay */
  int *now, *then, nnow, nthen;
  int *listed, round; /* by node: the last round for which it is in a list */
};

/* A GPU passes on only to its own ranks, and, as a relay, what comes in by NVLink and goes out by NVLink. */
static bool passes(const struct search *s, const struct tt_link *link)
{
  const struct tt_topology *t = s->t;
  const struct tt_node *node = &t->nodes[link->from], *next = &t->nodes[link->to];
  if (node->type != TT_NODE_DEV || link->from == s->own) return true;
  if (next->type == TT_NODE_GPU) return true;
  return next->type == TT_NODE_DEV && link->type == TT_LINK_NVL && t->rules.relays &&
         s->paths[link->from].hops <= s->relay_hops;
}

static enum tt_path_type type_across(const struct search *s, const struct tt_link *link)
{
  const struct tt_node *node = &s->t->nodes[link->from], *next = &s->t->nodes[link->to];
  const struct tt_path *path = &s->paths[link->from];
  int type = link->type == TT_LINK_NET ? TT_PATH_LOC : (int)link->type;
  if (node->type == TT_NODE_PCI && next->type == TT_NODE_PCI) type = TT_PATH_PXB;
  if (link->type == TT_LINK_PCI && (node->type == TT_NODE_CPU || next->type == TT_NODE_CPU)) type = TT_PATH_PHB;
  type = TT_MAX(type, path->type);
  if (type == TT_PATH_NVL && node->type == TT_NODE_DEV && next->type == TT_NODE_DEV && path->hops == s->relay_hops)
    type = TT_PATH_NVB;
  return type;
}

static ncclResult_t relax(struct search *s, const struct tt_link *link)
{
  if (!passes(s, link)) return ncclSuccess;
  const struct tt_path *path = &s->paths[link->from];
  struct tt_path *known = &s->paths[link->to];
  struct tt_path found = {.bandwidth = TT_MIN(path->bandwidth, link->bandwidth),
                          .type = (int8_t)type_across(s, link),
                          .hops = (int16_t)(path->hops + 1)};
  if (found.type > known->type) return ncclSuccess;
  if (found.type == known->type &&
      (found.bandwidth < known->bandwidth || (found.bandwidth == known->bandwidth && found.hops >= known->hops)))
    return ncclSuccess;
  TT_TRY(add_step(s->t, link->reverse, path->first, &found.first));
  *known = found;
  if (s->listed[link->to] == s->round) return ncclSuccess;
  s->listed[link->to] = s->round;
  s->then[s->nthen++] = link->to;
  return ncclSuccess;
}

static ncclResult_t search_from(struct search *s, int end)
{
  struct tt_topology *t = s->t;
  const struct tt_node *node = &t->nodes[end];
  s->paths = &t->paths[(int64_t)end * t->nnodes];
  s->own = node->type == TT_NODE_DEV   ? end
           : node->type == TT_NODE_GPU ? tt_topology_node(t, TT_NODE_DEV, node->gpu.device)
                                       : -1;
  s->relay_hops = node->type == TT_NODE_GPU ? 2 : 1;
  s->paths[end] = (struct tt_path){.bandwidth = TT_LOCAL_BANDWIDTH, .type = TT_PATH_LOC, .first = -1};
  s->now[0] = end;
  for (s->nnow = 1; s->nnow > 0; s->nnow = s->nthen) {
    s->nthen = 0;
    s->round++;
    for (int i = 0; i < s->nnow; i++) {
      const struct tt_node *n = &t->nodes[s->now[i]];
      for (int l = n->first_link; l < n->first_link + n->nlinks; l++) TT_TRY(relax(s, &t->links[l]));
    }
    int *swap = s->now;
    s->now = s->then;
    s->then = swap;
  }
  return ncclSuccess;
}

ncclResult_t tt_topology_find_paths(struct tt_topology *t)
{
  ncclResult_t result;
  struct search s = {.t = t};
  const size_t pairs = (size_t)t->nnodes * (size_t)t->nnodes;
  free(t->paths);
  t->paths = NULL;
  t->nsteps = 0;
  TT_TRY_GOTO(TT_CALLOC(&t->paths, pairs), result, out);
  for (size_t i = 0; i < pairs; i++) t->paths[i] = (struct tt_path){.type = TT_PATH_DIS, .first = -1};
  TT_TRY_GOTO(TT_CALLOC(&s.now, (size_t)t->nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&s.then, (size_t)t->nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&s.listed, (size_t)t->nnodes), result, out);
  for (size_t e = 0; e < TT_COUNT(ends); e++)
    for (int i = 0; i < t->count[ends[e]]; i++)
      if (ends[e] != TT_NODE_NET || t->nodes[tt_topology_node(t, TT_NODE_NET, i)].net.same_as == i)
        TT_TRY_GOTO(search_from(&s, tt_topology_node(t, ends[e], i)), result, out);
out:
  free(s.now);
  free(s.then);
  free(s.listed);
  return result;
}

enum tt_path_type tt_topology_join_types(enum tt_path_type a, enum tt_path_type b)
{
  if (TT_MAX(a, b) == TT_PATH_PHB && TT_MIN(a, b) == TT_PATH_C2C) return TT_PATH_P2C;
  return TT_MAX(a, b);
}

ncclResult_t tt_topology_go_through(struct tt_topology *t, int middle, int from, int to)
{
  const struct tt_path a = *tt_topology_path(t, from, middle), b = *tt_topology_path(t, middle, to);
  struct tt_path joined = {
      .bandwidth = TT_MIN(a.bandwidth, b.bandwidth), .hops = (int16_t)(a.hops + b.hops), .first = b.first};
  joined.type = (int8_t)(t->nodes[middle].type == TT_NODE_GPU ? TT_PATH_PXN : tt_topology_join_types(a.type, b.type));
  int last = -1, step; /* the steps of `a` are copied in front of those of `b`, which are shared */
  for (int s = a.first; s >= 0; s = t->steps[s].next) {
    TT_TRY(add_step(t, t->steps[s].link, b.first, &step));
    if (last >= 0)
      t->steps[last].next = step;
    else
      joined.first = step;
    last = step;
  }
  *tt_topology_path(t, from, to) = joined;
  return ncclSuccess;
}

void tt_topology_find_limits(struct tt_topology *t)
{
  t->max_bandwidth = t->total_bandwidth = 0;
  if (t->count[TT_NODE_GPU] == 1 && !t->inter) t->max_bandwidth = t->total_bandwidth = TT_LOCAL_BANDWIDTH;
  const enum tt_node_type to = t->inter ? TT_NODE_NET : TT_NODE_DEV;
  for (int d = 0; d < t->count[TT_NODE_DEV]; d++) {
    const struct tt_node *dev = &t->nodes[tt_topology_node(t, TT_NODE_DEV, d)];
    float nvlink = 0, pci = 0;
    for (int l = dev->first_link; l < dev->first_link + dev->nlinks; l++) {
      if (t->links[l].type == TT_LINK_NVL) nvlink += t->links[l].bandwidth;
      if (t->links[l].type == TT_LINK_PCI) pci = t->links[l].bandwidth;
    }
    t->total_bandwidth = TT_MAX(t->total_bandwidth, TT_MAX(nvlink, pci));
    for (int i = 0; i < t->count[to]; i++)
      if (t->inter || i != d)
        t->max_bandwidth = TT_MAX(t->max_bandwidth, tt_topology_path_between(t, TT_NODE_DEV, d, to, i)->bandwidth);
  }
}
