/* File first, search for the rest: see find.h. */
#include "graph/find.h"

#include "base/check.h"
#include "graph/file.h"

/* Takes a graph away from `from`, which may have none. */
static bool move(struct tt_graph **from, struct tt_graph **to)
{
  if (!*from) return false;
  tt_graph_free(*to);
  *to = *from;
  *from = NULL;
  return true;
}

ncclResult_t tt_graph_find(const char *path, const struct tt_topology *t, const struct tt_graph_rules *rules,
                           struct tt_graph *graphs[TT_GRAPH_KINDS], bool loaded[TT_GRAPH_KINDS],
                           struct tt_graph_record *records)
{
  struct tt_graph *read[TT_GRAPH_KINDS] = {0};
  ncclResult_t result;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) graphs[kind] = NULL;
  if (path) TT_TRY(tt_graph_read(path, t, rules->cross_nic, read));
  TT_TRY_GOTO(tt_graph_search_all(t, rules, graphs, records), result, out);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) {
    const bool moved = move(&read[kind], &graphs[kind]);
    if (loaded) loaded[kind] = moved;
    if (moved)
      TT_INFO(TT_GRAPH, "%s: %d channels taken from %s", tt_graph_name((enum tt_graph_kind)kind),
              graphs[kind]->nchannels, path);
  }
out:
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(read[kind]);
  return result;
}
