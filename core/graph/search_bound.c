/* How many channels an attempt can find at most: more than the links of a GPU carry, or the links between GPUs and
 * NETs, there cannot be. Attempts that cannot be better than what there is need not be made. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/search_internal.h"

/* Channels that leave or enter a GPU over links on which it talks to other GPUs, and over all its links. */
static void count_slots(const struct tt_search *s, int gpu, bool leave, int amount, int *inside, int *all)
{
  const struct tt_topology *t = s->topology;
  const struct tt_node *device = &t->nodes[t->first[TT_NODE_DEV] + t->nodes[tt_search_gpu(s, gpu)].gpu.device];
  const int type = s->now.attempt.type_intra;
  *inside = *all = 0;
  for (int l = device->first_link; l < device->first_link + device->nlinks; l++) {
    const struct tt_link *link = &t->links[l];
    if (link->type == TT_LINK_LOC) continue;
    const int channels = s->left[leave ? l : link->reverse] / amount;
    *all += channels;
    if (link->type == TT_LINK_NVL || (link->type == TT_LINK_C2C && type >= TT_PATH_C2C) || type >= TT_PATH_PIX)
      *inside += channels;
  }
}

/* A channel leaves all GPUs but one, and enters as many, over the links between GPUs; a ring that does not leave the
 * machine leaves all. */
static int most_by_gpus(const struct tt_search *s, bool leave)
{
  const struct tt_attempt *a = &s->now.attempt;
  const int amount = TT_THOUSANDTHS(a->intra);
  const bool ring = a->pattern == TT_PATTERN_RING;
  int64_t sum = 0;
  int least = INT32_MAX;
  for (int g = 0; g < s->ngpus; g++) {
    int inside, all;
    count_slots(s, g, leave, amount, &inside, &all);
    sum += inside;
    least = TT_MIN(least, s->topology->inter ? all : inside);
  }
  sum /= s->ngpus - 1;
  return ring ? (int)TT_MIN((int64_t)least, sum) : (int)sum;
}

/* A path with room for one more from any GPU to any NET, or back; found breadth first, true: it is taken. */
struct flow {
  int *room;  /* of each link: channels */
  int *queue; /* nodes */
  int *by;    /* of each node: the link by which it was found; -1: not found, -2: it is a source */
};

static bool may_use(const struct tt_search *s, const struct tt_link *link)
{
  const int type = s->now.attempt.type_inter;
  if (link->type == TT_LINK_SYS) return type >= TT_PATH_SYS;
  return type >= TT_PATH_P2C || s->topology->nodes[link->to].type != TT_NODE_CPU;
}

static bool add_path(const struct tt_search *s, struct flow *f, enum tt_node_type from, enum tt_node_type to)
{
  const struct tt_topology *t = s->topology;
  int count = 0;
  for (int n = 0; n < t->nnodes; n++) {
    f->by[n] = t->nodes[n].type == from ? -2 : -1;
    if (f->by[n] == -2) f->queue[count++] = n;
  }
  for (int i = 0; i < count; i++) {
    const struct tt_node *node = &t->nodes[f->queue[i]];
    for (int l = node->first_link; l < node->first_link + node->nlinks; l++) {
      int at = t->links[l].to;
      if (f->by[at] != -1 || f->room[l] <= 0 || !may_use(s, &t->links[l])) continue;
      f->by[at] = l;
      f->queue[count++] = at;
      if (t->nodes[at].type != to) continue;
      for (; f->by[at] >= 0; at = t->links[f->by[at]].from) {
        f->room[f->by[at]]--;
        f->room[t->links[f->by[at]].reverse]++;
      }
      return true;
    }
  }
  return false;
}

/* Channels of `amount` that get from GPUs to NETs, or back, at the same time: paths one by one, each of which may push
 * others aside, until there is none any more. */
static int most_by_nets(const struct tt_search *s, struct flow *f, bool leave, int amount, int enough)
{
  const struct tt_topology *t = s->topology;
  int channels = 0;
  for (int l = 0; l < t->nlinks; l++) f->room[l] = s->left[l] / amount;
  while (channels < enough && add_path(s, f, leave ? TT_NODE_GPU : TT_NODE_NET, leave ? TT_NODE_NET : TT_NODE_GPU))
    channels++;
  return channels;
}

ncclResult_t tt_search_bound(const struct tt_search *s, int *most)
{
  const struct tt_attempt *a = &s->now.attempt;
  const struct tt_topology *t = s->topology;
  ncclResult_t result = ncclSuccess;
  struct flow f = {NULL, NULL, NULL};
  *most = a->max_channels;
  const bool shared = s->ngpus > t->count[TT_NODE_DEV]; /* ranks on one device need no links between them */
  if (s->ngpus > 1 && !shared && a->pattern <= TT_PATTERN_RING) {
    *most = TT_MIN(*most, most_by_gpus(s, true));
    *most = TT_MIN(*most, most_by_gpus(s, false));
  }
  if (!t->inter || *most < a->min_channels) return ncclSuccess;
  TT_TRY_GOTO(TT_CALLOC(&f.room, (size_t)t->nlinks + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&f.queue, (size_t)t->nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&f.by, (size_t)t->nnodes), result, out);
  const int amount = TT_THOUSANDTHS(a->inter), halves = a->pattern == TT_PATTERN_BALANCED_TREE ? 2 : 1;
  *most = TT_MIN(*most, most_by_nets(s, &f, false, amount, *most));
  *most = TT_MIN(*most, most_by_nets(s, &f, true, amount / halves, *most * halves) / halves);
out:
  free(f.room);
  free(f.queue);
  free(f.by);
  return result;
}

/* The fewest hops of a path of a type or a nearer one. */
static int fewest_hops(const struct tt_search *s, enum tt_node_type from, enum tt_node_type to, int type)
{
  const struct tt_topology *t = s->topology;
  int fewest = INT32_MAX;
  for (int i = 0; i < t->count[from]; i++)
    for (int k = 0; k < t->count[to]; k++) {
      if (from == to && i == k) continue;
      const struct tt_path *path = tt_topology_path_between(t, from, i, to, k);
      if (path->type <= type) fewest = TT_MIN(fewest, path->hops);
    }
  return fewest == INT32_MAX ? 0 : fewest;
}

int tt_search_fewest_hops(const struct tt_search *s)
{
  const struct tt_attempt *a = &s->now.attempt;
  const bool closes = a->pattern == TT_PATTERN_RING && !s->topology->inter;
  int hops = (s->ngpus - !closes) * fewest_hops(s, TT_NODE_GPU, TT_NODE_GPU, a->type_intra);
  if (!s->topology->inter) return hops;
  hops += fewest_hops(s, TT_NODE_NET, TT_NODE_GPU, a->type_inter);
  const int exits = a->pattern == TT_PATTERN_BALANCED_TREE ? 2 : 1;
  return hops + exits * fewest_hops(s, TT_NODE_GPU, TT_NODE_NET, a->type_inter);
}
