/* Making, freeing and naming graphs. */
#include "graph/graph.h"

#include <stdlib.h>
#include "base/check.h"

ncclResult_t tt_graph_new(enum tt_graph_kind kind, int nchannels, int nranks, struct tt_graph **out)
{
  struct tt_graph *graph;
  ncclResult_t result;
  *out = NULL;
  TT_TRY(TT_CALLOC(&graph, 1));
  graph->kind = kind;
  graph->nranks = nranks;
  TT_TRY_GOTO(TT_CALLOC(&graph->ranks, (size_t)nchannels * (size_t)nranks), result, failed);
  TT_TRY_GOTO(TT_CALLOC(&graph->nets, (size_t)nchannels * 2), result, failed);
  for (int i = 0; i < nchannels * nranks; i++) graph->ranks[i] = -1;
  for (int i = 0; i < nchannels * 2; i++) graph->nets[i] = TT_GRAPH_NO_NET;
  *out = graph;
  return ncclSuccess;
failed:
  tt_graph_free(graph);
  return result;
}

void tt_graph_free(struct tt_graph *graph)
{
  if (!graph) return;
  free(graph->ranks);
  free(graph->nets);
  free(graph);
}

const char *tt_graph_name(enum tt_graph_kind kind)
{
  static const char *const names[TT_GRAPH_KINDS] = {"ring", "tree", "collnetchain", "nvls", "collnetdirect"};
  return (unsigned)kind < TT_GRAPH_KINDS ? names[kind] : "?";
}
