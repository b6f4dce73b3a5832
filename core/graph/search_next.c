/* Where a channel goes next. A search makes so many visits and no more, so what is likely to be best comes first: GPUs
 * near the NET while the channel has to return to it, then those with the best path. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/search_internal.h"

struct score {
  int net_bandwidth, net_hops, bandwidth, hops, turn, gpu;
};

static int compare(const void *a, const void *b)
{
  const struct score *x = a, *y = b;
  if (x->net_bandwidth != y->net_bandwidth) return y->net_bandwidth - x->net_bandwidth;
  if (x->net_hops != y->net_hops) return x->net_hops - y->net_hops;
  if (x->bandwidth != y->bandwidth) return y->bandwidth - x->bandwidth;
  if (x->hops != y->hops) return x->hops - y->hops;
  return x->turn - y->turn;
}

/* The other GPUs in order of their scores; after them -1. */
static ncclResult_t sort(struct tt_search *s, int net, int gpu, int16_t **order)
{
  const struct tt_topology *t = s->topology;
  ncclResult_t result;
  struct score *scores = NULL;
  int count = 0;
  TT_TRY_GOTO(TT_CALLOC(&scores, (size_t)s->ngpus), result, out);
  TT_TRY_GOTO(TT_CALLOC(order, (size_t)s->ngpus), result, out);
  for (int turn = 1; turn < s->ngpus; turn++) {
    int other = (gpu + turn) % s->ngpus;
    const struct tt_path *path = tt_topology_path(t, tt_search_gpu(s, gpu), tt_search_gpu(s, other));
    if (path->hops == 0) continue;
    struct score *score = &scores[count++];
    *score = (struct score){.bandwidth = (int)path->bandwidth, .hops = path->hops, .turn = turn, .gpu = other};
    if (net < 0) continue;
    path = tt_topology_path(t, tt_search_net(s, net), tt_search_gpu(s, other));
    score->net_bandwidth = (int)path->bandwidth;
    score->net_hops = path->hops;
  }
  qsort(scores, (size_t)count, sizeof(*scores), compare);
  for (int i = 0; i < count; i++) (*order)[i] = (int16_t)scores[i].gpu;
  (*order)[count] = -1;
out:
  free(scores);
  return result;
}

void tt_search_next_end(struct tt_search *s)
{
  for (int i = 0; s->orders && i < (s->nnets + 1) * s->ngpus; i++) free(s->orders[i]);
  free(s->orders);
  free(s->keys);
  free(s->alike);
  free(s->net_bandwidth);
  free(s->types_forth);
  free(s->types_both);
}

static bool is_free(const struct tt_search *s, int gpu)
{
  return !(s->visited[gpu] >> s->now.count & 1);
}

/* Among GPUs that the NET reaches equally well, those first whose PCI slot has most left. Few ever change places. */
static void prefer_free_slots(struct tt_search *s, int net, int *next, int count)
{
  const int *bandwidth = s->net_bandwidth + (ptrdiff_t)net * s->ngpus;
  int *keys = s->keys;
  for (int i = 0; i < count; i++) {
    const int gpu = next[i], key = bandwidth[gpu] * 8192 + tt_search_left_of_slot(s, gpu);
    int k = i;
    for (; k > 0 && key > keys[k - 1]; k--) {
      keys[k] = keys[k - 1];
      next[k] = next[k - 1];
    }
    keys[k] = key;
    next[k] = gpu;
  }
}

static bool all_alike(const struct tt_search *s, int gpu, const int *next, int count)
{
  const int16_t *alike = s->alike + (ptrdiff_t)gpu * s->ngpus;
  for (int i = 1; i < count; i++)
    if (alike[next[i]] != alike[next[0]]) return false;
  return true;
}

/* For each GPU: types of paths to others, bandwidth from each NET in whole GB/s, and the first GPU to which the path
 * from it is alike. */
ncclResult_t tt_search_next_begin(struct tt_search *s)
{
  const struct tt_topology *t = s->topology;
  TT_TRY(TT_CALLOC(&s->orders, (size_t)(s->nnets + 1) * (size_t)s->ngpus));
  TT_TRY(TT_CALLOC(&s->keys, (size_t)s->ngpus));
  TT_TRY(TT_CALLOC(&s->alike, (size_t)s->ngpus * (size_t)s->ngpus));
  TT_TRY(TT_CALLOC(&s->net_bandwidth, (size_t)s->nnets * (size_t)s->ngpus + 1));
  TT_TRY(TT_CALLOC(&s->types_forth, (size_t)s->ngpus * (size_t)s->ngpus));
  TT_TRY(TT_CALLOC(&s->types_both, (size_t)s->ngpus * (size_t)s->ngpus));
  for (int g = 0; g < s->ngpus; g++) {
    for (int p = 0; p < s->ngpus; p++) {
      const int8_t forth = tt_topology_path(t, tt_search_gpu(s, g), tt_search_gpu(s, p))->type;
      const int8_t back = tt_topology_path(t, tt_search_gpu(s, p), tt_search_gpu(s, g))->type;
      s->types_forth[g * s->ngpus + p] = forth;
      s->types_both[g * s->ngpus + p] = TT_MAX(forth, back);
    }
    for (int n = 0; n < s->nnets; n++)
      s->net_bandwidth[n * s->ngpus + g] =
          (int)tt_topology_path(t, tt_search_net(s, n), tt_search_gpu(s, g))->bandwidth;
    for (int p = 0; p < s->ngpus; p++) {
      const struct tt_path *path = tt_topology_path(t, tt_search_gpu(s, g), tt_search_gpu(s, p)), *other;
      int first = 0;
      for (;; first++) {
        other = tt_topology_path(t, tt_search_gpu(s, g), tt_search_gpu(s, first));
        if ((int)other->bandwidth == (int)path->bandwidth && other->hops == path->hops) break;
      }
      s->alike[g * s->ngpus + p] = (int16_t)first;
    }
  }
  return ncclSuccess;
}

/* Behind a switch all are alike; then it matters that a GPU talks to few others. */
static int neighbours(const struct tt_search *s, int gpu, int *next)
{
  const bool ring = s->now.attempt.pattern == TT_PATTERN_RING;
  const bool two = ring || s->now.attempt.pattern <= TT_PATTERN_SPLIT_TREE;
  const int before = gpu > 0 ? gpu - 1 : s->ngpus - 1, after = gpu < s->ngpus - 1 ? gpu + 1 : 0;
  const int wanted[2] = {ring ? before : after, ring ? after : before};
  int count = 0;
  for (int i = 0; i < (two && before != after ? 2 : 1); i++) {
    int other = two ? wanted[i] : after;
    const struct tt_path *path = tt_topology_path(s->topology, tt_search_gpu(s, gpu), tt_search_gpu(s, other));
    if (other != gpu && path->hops > 0 && is_free(s, other)) next[count++] = other;
  }
  return count;
}

/* Leaves out GPUs to which the attempt allows no path. */
static int keep_near(const struct tt_search *s, int gpu, int *next, int count)
{
  const struct tt_attempt *a = &s->now.attempt;
  const int8_t *types = (a->pattern <= TT_PATTERN_TREE ? s->types_both : s->types_forth) + (ptrdiff_t)gpu * s->ngpus;
  int kept = 0;
  for (int i = 0; i < count; i++)
    if (types[next[i]] <= a->type_intra) next[kept++] = next[i];
  return kept;
}

ncclResult_t tt_search_next(struct tt_search *s, int gpu, int position, int exit_at, int *next, int *count)
{
  *count = 0;
  if (s->topology->count[TT_NODE_NVS] > 0) {
    *count = neighbours(s, gpu, next);
    return ncclSuccess;
  }
  const int net = exit_at < 0 ? -1 : tt_search_channel_nets(s)[0];
  int16_t **order = &s->orders[(net + 1) * s->ngpus + gpu];
  if (!*order) TT_TRY(sort(s, net, gpu, order));
  int n = 0;
  for (const int16_t *other = *order; *other >= 0; other++)
    if (is_free(s, *other)) next[n++] = *other;
  /* The GPU where it will be due is one of the last then: take the others in reverse, to leave the nearest for it. */
  const bool reverse = exit_at > position + 1 && n > 1 && all_alike(s, gpu, next, n);
  n = keep_near(s, gpu, next, n);
  if (net >= 0) prefer_free_slots(s, net, next, n);
  if (reverse)
    for (int i = 0; i < n / 2; i++) {
      int swapped = next[i];
      next[i] = next[n - 1 - i];
      next[n - 1 - i] = swapped;
    }
  *count = n;
  return ncclSuccess;
}
