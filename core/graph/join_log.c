/* See join_log.h. */
#include "graph/join_log.h"

#include "base/check.h"
#include "base/log.h"
#include "base/long_line.h"

static void log_rings(const struct tt_joined *j)
{
  for (int c = 0; c < j->nchannels; c++) {
    struct tt_long_line line = {.at = 0};
    tt_long_line_add(&line, "Channel %02d/%02d :", c, j->nchannels);
    for (int i = 0; i < j->nranks && !tt_long_line_full(&line); i++) tt_long_line_add(&line, " %d", j->ring[c][i]);
    TT_INFO(TT_INIT, "%s", line.text);
  }
}

static void log_heads(const struct tt_joined *j)
{
  for (int h = 0; h < j->nvls_heads; h++) {
    struct tt_long_line line = {.at = 0};
    tt_long_line_add(&line, "NVLS Head %2d:", h);
    for (int n = 0; n < j->nnodes && !tt_long_line_full(&line); n++)
      tt_long_line_add(&line, " %2d", tt_join_head(j, TT_GRAPH_NVLS, n, h));
    TT_INFO(TT_INIT, "%s", line.text);
  }
}

/* Channels with the same ring have the same neighbours. */
static void log_neighbours(const struct tt_joined *j, int rank)
{
  int32_t previous[TT_GRAPH_MOST_CHANNELS], next[TT_GRAPH_MOST_CHANNELS];
  for (int c = 0; c < j->nchannels; c++) {
    int same = 0, at = 0;
    while (j->ring[same] != j->ring[c]) same++;
    while (same == c && j->ring[c][at] != rank) at++;
    previous[c] = same < c ? previous[same] : j->ring[c][(at + j->nranks - 1) % j->nranks];
    next[c] = same < c ? next[same] : j->ring[c][(at + 1) % j->nranks];
    TT_INFO(TT_GRAPH, "Ring %02d : %d -> %d -> %d", c, previous[c], rank, next[c]);
  }
}

static void log_trees(const struct tt_joined *j, int rank)
{
  struct tt_long_line line = {.at = 0};
  for (int c = 0; c < j->nchannels; c++) {
    const struct tt_join_tree t = tt_join_tree_place(j, c, rank);
    tt_long_line_add(&line, " [%d] %d/%d/%d->%d->%d", c, t.down[0], t.down[1], t.down[2], rank, t.up);
  }
  TT_INFO(TT_INIT, "Trees%s", line.text);
  if (j->nvls_channels == 0 || j->nnodes == 1) return;
  const struct tt_join_tree a = tt_join_nvls_place(j, 0, rank), b = tt_join_nvls_place(j, 1, rank);
  TT_INFO(TT_GRAPH, "NVLS Trees : %d/%d/%d->%d->%d %d/%d/%d->%d->%d", a.down[0], a.down[1], a.down[2], rank, a.up,
          b.down[0], b.down[1], b.down[2], rank, b.up);
}

static void warn(const struct tt_joined *j, int rank)
{
  const int odd = j->odd_rank;
  if (odd < 0 || (rank != 0 && rank != odd)) return;
  TT_WARN(
      "rank %d found other channels on its machine than rank %d, whose channels all ranks there use; give all ranks "
      "of a host the same topology and graph files and variables",
      odd, j->members[j->first[j->node[odd]]]);
}

void tt_join_log(const struct tt_joined *j, int rank)
{
  warn(j, rank);
  if (!tt_log_enabled(TT_LOG_INFO, TT_GRAPH | TT_INIT)) return;
  if (rank == 0) {
    log_rings(j);
    log_heads(j);
  }
  log_neighbours(j, rank);
  log_trees(j, rank);
  TT_INFO(TT_INIT, "%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels, %d p2p channels per peer",
          j->nchannels, j->collnet ? j->nchannels : 0, j->nvls_channels, j->peer_channels, j->channels_per_peer);
}
