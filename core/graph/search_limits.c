/* The limits of a search's attempts: those of the first, in which order they are loosened, and how bandwidth is raised
 * once there are channels. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/search_progress.h"

/* Between GPUs, and between GPUs and NETs: which path types there are, the nearest and the farthest. */
void tt_search_find_types(struct tt_search *s)
{
  const struct tt_topology *t = s->topology;
  s->min_intra = s->ngpus > 1 ? TT_PATH_SYS : TT_PATH_LOC;
  s->max_intra = s->ngpus > 1 ? TT_PATH_LOC : TT_PATH_SYS;
  s->min_inter = t->inter ? TT_PATH_SYS : TT_PATH_PIX;
  s->max_inter = t->inter ? TT_PATH_LOC : TT_PATH_SYS;
  for (int g = 0; g < s->ngpus; g++) {
    for (int p = 0; p < s->ngpus; p++) {
      int type = tt_topology_path(t, tt_search_gpu(s, g), tt_search_gpu(s, p))->type;
      s->types_intra |= 1u << type;
      if (g == p) continue;
      s->min_intra = TT_MIN(s->min_intra, type);
      s->max_intra = TT_MAX(s->max_intra, type);
    }
    for (int n = 0; n < t->count[TT_NODE_NVS]; n++) {
      int nvs = tt_topology_node(t, TT_NODE_NVS, n);
      s->types_intra |= 1u << tt_topology_path(t, tt_search_gpu(s, g), nvs)->type;
      s->types_intra |= 1u << tt_topology_path(t, nvs, tt_search_gpu(s, g))->type;
    }
    for (int n = 0; n < s->nnets; n++) {
      int type = tt_topology_path(t, tt_search_gpu(s, g), tt_search_net(s, n))->type;
      s->types_inter |= 1u << type | 1u << tt_topology_path(t, tt_search_net(s, n), tt_search_gpu(s, g))->type;
      if (!t->inter) continue;
      s->min_inter = TT_MIN(s->min_inter, type);
      s->max_inter = TT_MAX(s->max_inter, type);
    }
  }
  if (t->inter) s->max_intra = s->max_inter;
  if (s->sm < 90) s->max_inter = TT_PATH_SYS; /* balanced trees of these may have to come back by a far path */
}

/* Whether the GPUs form exactly two groups that NVLink connects. */
static ncclResult_t find_split(const struct tt_search *s, bool *is_split)
{
  int *group, *members, groups = 0;
  TT_TRY(TT_CALLOC(&group, 2 * (size_t)s->ngpus));
  members = group + s->ngpus;
  for (int g = 0; g < s->ngpus; g++) group[g] = g;
  for (int g = 0; g < s->ngpus; g++)
    for (int p = g + 1; p < s->ngpus; p++)
      if (tt_topology_path(s->topology, tt_search_gpu(s, g), tt_search_gpu(s, p))->type == TT_PATH_NVL)
        group[p] = group[g];
  for (int g = 0; g < s->ngpus; g++) groups += ++members[group[g]] == 2;
  free(group);
  *is_split = groups == 2;
  return ncclSuccess;
}

/* The limits of the first attempt. */
ncclResult_t tt_search_set_limits(struct tt_progress *p)
{
  struct tt_search *s = p->s;
  const struct tt_topology *t = s->topology;
  const struct tt_graph_request *r = s->request;
  struct tt_attempt *a = &s->now.attempt;
  const bool rings_or_trees = r->pattern != TT_PATTERN_TREE && r->pattern <= TT_PATTERN_RING;
  p->cross_nic = s->nnets > 1 && rings_or_trees ? r->rules.cross_nic : 0;
  p->same_channels = r->pattern != TT_PATTERN_NVLS;
  *a = (struct tt_attempt){.pattern = r->pattern,
                           .cross_nic = p->cross_nic == 1,
                           .same_channels = p->same_channels,
                           .type_intra = s->min_intra,
                           .type_inter = s->min_inter,
                           .min_channels = r->min_channels,
                           .max_channels = r->max_channels};
  if (!p->same_channels && !t->inter)
    a->min_channels = a->max_channels; /* all GPUs are heads, so that none has more to do */
  if (s->ngpus == 1 && r->pattern != TT_PATTERN_RING) a->pattern = TT_PATTERN_TREE;
  /* The slow link between the groups: trees do better there, with a channel in each direction. */
  bool is_split;
  TT_TRY(find_split(s, &is_split));
  if (r->pattern == TT_PATTERN_RING && r->min_channels == 1 && r->max_channels > 1 && is_split) a->min_channels = 2;
  s->best.attempt = *a;
  p->speeds = tt_search_speeds(s->sm, t->inter, &p->nspeeds);
  float total = t->total_bandwidth;
  const int ndevs = t->count[TT_NODE_DEV];
  if (ndevs > 1 && a->pattern != TT_PATTERN_RING) total *= (float)ndevs / (float)(ndevs - 1);
  while (p->speed < p->nspeeds - 1 &&
         (p->speeds[p->speed] > t->max_bandwidth || p->speeds[p->speed] * (float)a->min_channels > total))
    p->speed++;
  a->intra = a->inter = p->speeds[p->speed];
  return ncclSuccess;
}

/* Limits in the order in which they are loosened. Each goes one step and says so; or, where it cannot, back to where it
 * began, and the next one goes. */
bool tt_search_loosen_same_channels(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const bool can = a->same_channels && !(p->s->amd && a->type_intra == TT_PATH_SYS);
  a->same_channels = !can && p->same_channels;
  return can;
}

static bool loosen_pattern(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const bool can = p->s->sm >= 90 && a->pattern == TT_PATTERN_BALANCED_TREE;
  a->pattern = can ? TT_PATTERN_TREE : p->s->best.attempt.pattern;
  return can;
}

static bool loosen_type_intra(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const struct tt_channels *best = &p->s->best;
  const int max = p->s->topology->inter ? a->type_inter : p->s->max_intra;
  bool can = a->type_intra < max && (best->count == 0 || a->type_intra < best->attempt.type_intra);
  can = can && a->type_intra + 1 < TT_PATH_DIS;
  a->type_intra = can ? a->type_intra + 1 : p->s->min_intra;
  return can;
}

static bool loosen_type_inter(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const struct tt_channels *best = &p->s->best;
  bool can = p->s->topology->inter && a->type_inter < p->s->max_inter && a->type_inter + 1 < TT_PATH_DIS;
  can = can && (best->count == 0 || a->type_inter < best->attempt.type_inter || a->type_inter < TT_PATH_PXN);
  a->type_inter = can ? a->type_inter + 1 : p->s->min_inter;
  return can;
}

static bool loosen_cross_nic(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const int pattern = p->s->best.attempt.pattern;
  const bool can =
      p->cross_nic == 2 && a->cross_nic == 0 && (pattern == TT_PATTERN_RING || pattern == TT_PATTERN_BALANCED_TREE);
  a->cross_nic = can ? 2 : p->cross_nic == 1;
  return can;
}

static bool loosen_speed(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const struct tt_channels *best = &p->s->best;
  if (p->speed >= p->nspeeds - 1) return false;
  if (best->count > 0 && p->speeds[p->speed + 1] / best->attempt.inter <= 0.49f) return false;
  a->intra = a->inter = p->speeds[++p->speed];
  p->made.count = 0;
  return true;
}

bool tt_search_loosen(struct tt_progress *p)
{
  static bool (*const limits[])(struct tt_progress *) = {loosen_pattern, loosen_type_intra, loosen_type_inter,
                                                         loosen_cross_nic, loosen_speed};
  for (size_t i = 0; i < TT_COUNT(limits); i++)
    if (limits[i](p)) return true;
  return false;
}

void tt_search_second_limits(struct tt_progress *p)
{
  struct tt_search *s = p->s;
  struct tt_attempt *a = &s->now.attempt;
  *a = s->best.attempt;
  a->min_channels = s->best.count;
  s->now.hops = s->best.hops; /* so that none has fewer: a tie is no reason to change anything now */
  for (p->speed = 0; p->speed < p->nspeeds - 1 && p->speeds[p->speed] > a->inter;) p->speed++;
  a->intra = a->inter = p->speeds[p->speed];
  p->left = TT_PERFECT;
}

/* Rings go up with both; trees with that between
 * GPUs, as long as it helps, and NVLS with that of the network. */
bool tt_search_raise_speed(struct tt_progress *p)
{
  struct tt_attempt *a = &p->s->now.attempt;
  const struct tt_attempt *best = &p->s->best.attempt;
  if (p->speed == 0) return false;
  if (best->pattern == TT_PATTERN_RING) {
    a->intra = a->inter = p->speeds[--p->speed];
  } else if (best->pattern == TT_PATTERN_NVLS && a->inter == best->inter && a->inter < 2 * a->intra) {
    a->min_channels = a->max_channels = p->s->best.count;
    a->inter = p->speeds[--p->speed];
  } else if (a->intra == best->intra && a->intra < 2 * a->inter) {
    a->intra = p->speeds[--p->speed];
  } else {
    return false;
  }
  return true;
}
