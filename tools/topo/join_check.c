/* See join_check.h. */
#include "join_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static bool wrong(struct join_check *check, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(check->why, sizeof(check->why), format, args);
  va_end(args);
  return false;
}

static void *zeroed(size_t count, size_t size)
{
  void *memory = calloc(count, size);
  if (!memory) abort();
  return memory;
}

/* ---- rings ---- */

static bool check_ring(struct join_check *check, int channel, const int32_t *ring, uint8_t *seen, uint8_t *entered)
{
  const struct tt_joined *j = check->joined;
  memset(seen, 0, (size_t)j->nranks);
  memset(entered, 0, (size_t)j->nnodes);
  if (ring[0] != 0) return wrong(check, "ring %d begins with rank %d, not 0", channel, ring[0]);
  for (int i = 0; i < j->nranks; i++) {
    const int32_t rank = ring[i], before = ring[i == 0 ? j->nranks - 1 : i - 1];
    if (rank < 0 || rank >= j->nranks) return wrong(check, "ring %d has rank %d, which there is not", channel, rank);
    if (seen[rank]++) return wrong(check, "ring %d visits rank %d twice", channel, rank);
    if (before < 0 || before >= j->nranks || j->node[before] == j->node[rank]) continue;
    if (entered[j->node[rank]]++) return wrong(check, "ring %d enters machine %d twice", channel, j->node[rank]);
  }
  return true;
}

/* That no channel of a machine's graph is used by two channels, whose load a NIC would then have twice. */
static bool check_use(struct join_check *check, int node)
{
  const struct tt_joined *j = check->joined;
  uint64_t used = 0;
  for (int c = 0; c < j->nsearched && c < j->nchannels; c++) {
    const int channel = tt_join_graph_channel(j, TT_GRAPH_RING, node, c);
    if (j->base[c] != c) continue; /* one that repeats an earlier one */
    if (channel < 0 || channel >= 64 || used >> channel & 1)
      return wrong(check, "machine %d uses channel %d of its ring graph for two rings", node, channel);
    used |= (uint64_t)1 << channel;
  }
  return true;
}

bool join_check_rings(struct join_check *check)
{
  const struct tt_joined *j = check->joined;
  uint8_t *seen = zeroed((size_t)j->nranks, 1), *entered = zeroed((size_t)j->nnodes, 1);
  bool good = true;
  check->rings = 0;
  for (int c = 0; c < j->nchannels && good; c++) {
    bool known = false;
    for (int before = 0; before < c; before++) known |= j->ring[before] == j->ring[c];
    good = known || check_ring(check, c, j->ring[c], seen, entered);
    check->rings += good;
  }
  for (int n = 0; n < j->nnodes && good; n++) good = check_use(check, n);
  free(seen);
  free(entered);
  return good;
}

/* ---- trees ---- */

/* One tree, and what it says between machines. */
struct tree {
  struct tt_join_tree *places; /* [nranks] */
  int32_t *queue;              /* [nranks] */
  uint8_t *reached;            /* [nranks] */
  int32_t *up[2];              /* [nnodes]: the machine above, in the first and the second tree; -1: the root's */
  uint8_t *inner[2];           /* [nnodes]: has machines below */
  int32_t *depth;              /* [nnodes] */
};

static bool has_down(const struct tt_join_tree *place, int32_t rank)
{
  return place->down[0] == rank || place->down[1] == rank || place->down[2] == rank;
}

static bool check_links(struct join_check *check, int channel, const struct tree *tree, int *root)
{
  const struct tt_joined *j = check->joined;
  *root = -1;
  for (int rank = 0; rank < j->nranks; rank++) {
    const struct tt_join_tree *place = &tree->places[rank];
    if (place->up < -1 || place->up >= j->nranks)
      return wrong(check, "tree %d: rank %d is below rank %d, which there is not", channel, rank, place->up);
    if (place->up < 0 && *root >= 0)
      return wrong(check, "tree %d has two roots, ranks %d and %d", channel, *root, rank);
    if (place->up < 0) *root = rank;
    if (place->up >= 0 && !has_down(&tree->places[place->up], rank))
      return wrong(check, "tree %d: rank %d is below rank %d, which does not know it", channel, rank, place->up);
    for (int i = 0; i < 3; i++) {
      const int32_t down = place->down[i];
      if (down < 0 && (i == 2 || place->down[i + 1] < 0)) continue;
      if (down < 0 || down >= j->nranks || tree->places[down].up != rank)
        return wrong(check, "tree %d: rank %d is above rank %d, which does not know it", channel, rank, down);
      if ((i > 0 && place->down[0] == down) || (i > 1 && place->down[1] == down))
        return wrong(check, "tree %d: rank %d has rank %d twice", channel, rank, down);
    }
  }
  return *root >= 0 || wrong(check, "tree %d has no root", channel);
}

/* From the root down; also how machines hang together. */
static bool check_reach(struct join_check *check, int channel, struct tree *tree, int which, int root)
{
  const struct tt_joined *j = check->joined;
  int32_t *up = tree->up[which];
  int tail = 0, most = 1;
  memset(tree->reached, 0, (size_t)j->nranks);
  memset(tree->inner[which], 0, (size_t)j->nnodes);
  for (int n = 0; n < j->nnodes; n++) up[n] = -2;
  tree->queue[tail++] = root;
  up[j->node[root]] = -1;
  tree->depth[j->node[root]] = 0;
  for (int head = 0; head < tail; head++) {
    const int32_t rank = tree->queue[head], node = j->node[rank];
    if (tree->reached[rank]++) return wrong(check, "tree %d reaches rank %d twice", channel, rank);
    for (int i = 0; i < 3; i++) {
      const int32_t down = tree->places[rank].down[i];
      if (down < 0) continue;
      if (tail == j->nranks) return wrong(check, "tree %d has a circle", channel);
      tree->queue[tail++] = down;
      const int32_t below = j->node[down];
      if (below == node) continue;
      if (up[below] != -2) return wrong(check, "tree %d has two links up from machine %d", channel, below);
      up[below] = node;
      tree->inner[which][node] = 1;
      tree->depth[below] = tree->depth[node] + 1;
      if (tree->depth[below] > most) most = tree->depth[below];
    }
  }
  if (tail != j->nranks) return wrong(check, "tree %d reaches %d of %d ranks", channel, tail, j->nranks);
  int lowest = 1;
  while (1 << lowest < j->nnodes) lowest++;
  return most <= lowest || wrong(check, "tree %d has %d levels of machines, %d would do", channel, most, lowest);
}

static bool check_twins(struct join_check *check, int channel, const struct tree *tree)
{
  const int n = check->joined->nnodes;
  for (int m = 0; m < n && n > 1; m++) {
    const int other = n % 2 == 0 ? n - 1 - m : (m + 1) % n;
    const int up = tree->up[0][m];
    const int mirrored = up < 0 ? -1 : n % 2 == 0 ? n - 1 - up : (up + 1) % n;
    if (tree->up[1][other] != mirrored)
      return wrong(check, "trees of channel %d: machine %d is below %d in the second, not %d", channel, other,
                   tree->up[1][other], mirrored);
    if (!tree->inner[0][m] && !tree->inner[1][m])
      return wrong(check, "trees of channel %d: machine %d is a leaf in both", channel, m);
  }
  return true;
}

static bool check_tree(struct join_check *check, int channel, struct tree *tree, int which)
{
  const struct tt_joined *j = check->joined;
  int root;
  for (int rank = 0; rank < j->nranks; rank++)
    tree->places[rank] =
        check->place ? check->place(check->context, channel, rank) : tt_join_tree_place(j, channel, rank);
  return check_links(check, channel, tree, &root) && check_reach(check, channel, tree, which, root);
}

/* The tree of heads number h: a place a machine. */
static bool check_nvls(struct join_check *check, int h, int parity, struct tree *tree)
{
  const struct tt_joined *j = check->joined;
  int root = -1, tail = 0;
  for (int n = 0; n < j->nnodes; n++) {
    const int32_t rank = tt_join_head(j, TT_GRAPH_NVLS, n, h);
    if (rank < 0 || rank >= j->nranks || j->node[rank] != n || tt_join_head_number(j, TT_GRAPH_NVLS, rank) != h)
      return wrong(check, "head %d of machine %d is rank %d, which is none there", h, n, rank);
    tree->places[n] = tt_join_nvls_place(j, parity, rank);
    tree->up[0][n] = rank;
    if (tree->places[n].down[0] != j->nranks + 1 + h)
      return wrong(check, "head %d of machine %d has switch %d", h, n, tree->places[n].down[0]);
    if (tree->places[n].up < 0) root = n;
  }
  if (root < 0) return wrong(check, "NVLS tree %d of head %d has no root", parity, h);
  memset(tree->reached, 0, (size_t)j->nranks);
  tree->reached[root] = 1;
  tree->queue[tail++] = root;
  for (int head = 0; head < tail; head++) {
    const int n = tree->queue[head];
    for (int i = 1; i < 3; i++) {
      const int32_t down = tree->places[n].down[i];
      if (down < 0) continue;
      const int below = down < j->nranks ? j->node[down] : -1;
      if (below < 0 || tail == j->nnodes || tree->up[0][below] != down || tree->places[below].up != tree->up[0][n])
        return wrong(check, "NVLS tree %d of head %d: rank %d is above rank %d, which does not know it", parity, h,
                     tree->up[0][n], down);
      tree->queue[tail++] = below;
    }
  }
  return tail == j->nnodes ||
         wrong(check, "NVLS tree %d of head %d reaches %d of %d machines", parity, h, tail, j->nnodes);
}

static bool check_all_nvls(struct join_check *check, struct tree *tree)
{
  for (int h = 0; h < check->joined->nvls_heads; h++)
    for (int parity = 0; parity < 2; parity++) {
      if (!check_nvls(check, h, parity, tree)) return false;
      check->nvls_trees++;
    }
  return true;
}

bool join_check_trees(struct join_check *check)
{
  const struct tt_joined *j = check->joined;
  const size_t ranks = (size_t)j->nranks, nodes = (size_t)j->nnodes;
  struct tree tree = {
      zeroed(ranks, sizeof(*tree.places)),  zeroed(ranks, 4), zeroed(ranks, 1), {zeroed(nodes, 4), zeroed(nodes, 4)},
      {zeroed(nodes, 1), zeroed(nodes, 1)}, zeroed(nodes, 4)};
  bool good = true;
  check->trees = check->nvls_trees = 0;
  for (int c = 0; c < j->nchannels && c < j->nsearched && good; c++) {
    if (j->base[c] != c) continue; /* one that repeats an earlier one */
    good = check_tree(check, c, &tree, 0);
    check->trees += good;
    const int twin = c + j->nsearched;
    if (!good || twin >= j->nchannels || j->base[twin] != twin) continue;
    good = check_tree(check, twin, &tree, 1) && check_twins(check, c, &tree);
    check->trees += good;
  }
  good = good && check_all_nvls(check, &tree);
  free(tree.places);
  free(tree.queue);
  free(tree.reached);
  free(tree.depth);
  for (int i = 0; i < 2; i++) free(tree.up[i]), free(tree.inner[i]);
  return good;
}

/* ---- peers ---- */

static bool check_rounds(struct join_check *check, int rank, uint8_t *seen)
{
  const struct tt_joined *j = check->joined;
  memset(seen, 0, (size_t)j->nranks);
  for (int round = 0; round < j->nranks; round++) {
    int32_t to, from, back, ignored;
    tt_join_peers(j, rank, round, &to, &from);
    if (to < 0 || to >= j->nranks || from < 0 || from >= j->nranks || seen[to]++)
      return wrong(check, "round %d: rank %d sends to rank %d once more, or there is none", round, rank, to);
    tt_join_peers(j, to, round, &ignored, &back);
    if (back != rank)
      return wrong(check, "round %d: rank %d sends to %d, which receives from %d", round, rank, to, back);
    if (round == 0 && to != rank) return wrong(check, "rank %d does not begin with itself", rank);
    if (tt_join_round(j, rank, to) != round)
      return wrong(check, "rank %d sends to %d in round %d, said to be %d", rank, to, round,
                   tt_join_round(j, rank, to));
    const int channel = tt_join_peer_channel(j, round, round % j->channels_per_peer);
    if (channel < 0 || channel >= j->peer_channels) return wrong(check, "round %d has channel %d", round, channel);
  }
  return true;
}

bool join_check_peers(struct join_check *check)
{
  const struct tt_joined *j = check->joined;
  const int count = check->sample > 0 && check->sample < j->nranks ? check->sample : j->nranks;
  uint8_t *seen = zeroed((size_t)j->nranks, 1);
  bool good = true;
  check->schedules = 0;
  for (int i = 0; i < count && good; i++) {
    good = check_rounds(check, (int)((int64_t)i * j->nranks / count), seen);
    check->schedules += good;
  }
  free(seen);
  return good;
}

bool join_check_all(struct join_check *check)
{
  return join_check_rings(check) && join_check_trees(check) && join_check_peers(check);
}
