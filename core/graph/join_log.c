/* See join_log.h. */
#include "graph/join_log.h"

#include <stdarg.h>
#include <stdio.h>
#include "base/check.h"
#include "base/log.h"

/* A line while it grows; what no longer fits is "...". */
struct line {
  char text[1024];
  size_t at;
};

/* False: it is full. */
__attribute__((format(printf, 2, 3))) static bool add(struct line *line, const char *format, ...)
{
  const size_t left = sizeof(line->text) - sizeof(" ...") - line->at;
  va_list arguments;
  va_start(arguments, format);
  const int wrote = vsnprintf(line->text + line->at, left, format, arguments);
  va_end(arguments);
  if (wrote >= 0 && (size_t)wrote < left) {
    line->at += (size_t)wrote;
    return true;
  }
  snprintf(line->text + line->at, sizeof(" ..."), " ...");
  return false;
}

static void log_rings(const struct tt_joined *j)
{
  for (int c = 0; c < j->nchannels; c++) {
    struct line line = {.at = 0};
    add(&line, "Channel %02d/%02d :", c, j->nchannels);
    for (int i = 0; i < j->nranks && add(&line, " %d", j->ring[c][i]); i++) continue;
    TT_INFO(TT_INIT, "%s", line.text);
  }
}

static void log_heads(const struct tt_joined *j)
{
  for (int h = 0; h < j->nvls_heads; h++) {
    struct line line = {.at = 0};
    add(&line, "NVLS Head %2d:", h);
    for (int n = 0; n < j->nnodes && add(&line, " %2d", tt_join_head(j, TT_GRAPH_NVLS, n, h)); n++) continue;
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
  struct line line = {.at = 0};
  for (int c = 0; c < j->nchannels; c++) {
    const struct tt_join_tree t = tt_join_tree_place(j, c, rank);
    if (!add(&line, " [%d] %d/%d/%d->%d->%d", c, t.down[0], t.down[1], t.down[2], rank, t.up)) break;
  }
  TT_INFO(TT_INIT, "Trees%s", line.text);
  if (j->nvls_channels == 0 || j->nnodes == 1) return;
  const struct tt_join_tree a = tt_join_nvls_place(j, 0, rank), b = tt_join_nvls_place(j, 1, rank);
  TT_INFO(TT_GRAPH, "NVLS Trees : %d/%d/%d->%d->%d %d/%d/%d->%d->%d", a.down[0], a.down[1], a.down[2], rank, a.up,
          b.down[0], b.down[1], b.down[2], rank, b.up);
}

void tt_join_log(const struct tt_joined *j, int rank)
{
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
