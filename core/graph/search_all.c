/* All kinds of graphs of a machine, and what users say of them. */
#include "base/check.h"
#include "base/param.h"
#include "graph/search.h"

#define MOST_NVLS_HEADS 32
#define MOST_COLLNET_HEADS 8

struct tt_graph_rules tt_graph_rules_default(void)
{
  return (struct tt_graph_rules){.cross_nic = 2, .scatter_nets = true, .nvls = true};
}

ncclResult_t tt_graph_rules_from_parameters(struct tt_graph_rules *rules)
{
  TT_TRY(tt_param_check());
  rules->cross_nic = (int)tt_param_int(TT_PARAM_NCCL_CROSS_NIC);
  rules->scatter_nets = tt_param_int(TT_PARAM_NCCL_MNNVL_SCATTER_NETS_ENABLE) != 0;
  rules->rail_per_host = tt_param_int(TT_PARAM_NCCL_MNNVL_RAIL_PER_HOST) != 0;
  return ncclSuccess;
}

/* Nothing, where there is nothing to look for. */
static ncclResult_t empty(const struct tt_topology *t, const struct tt_graph_request *request, struct tt_graph **graph)
{
  TT_TRY(tt_graph_new(request->kind, 1, t->count[TT_NODE_GPU], graph));
  (*graph)->pattern = request->pattern;
  (*graph)->type_inter = (*graph)->type_intra = TT_PATH_DIS;
  return ncclSuccess;
}

ncclResult_t tt_graph_search_all(const struct tt_topology *t, const struct tt_graph_rules *rules,
                                 struct tt_graph *graphs[TT_GRAPH_KINDS], struct tt_graph_record *records)
{
  /* Trees and chains have as many channels as there are rings, since they use the same. */
  static const struct {
    enum tt_graph_kind kind;
    enum tt_graph_pattern pattern;
    int most; /* 0: as many as there are rings */
  } searches[] = {{TT_GRAPH_RING, TT_PATTERN_RING, TT_GRAPH_MOST_CHANNELS / 2},
                  {TT_GRAPH_TREE, TT_PATTERN_BALANCED_TREE, 0},
                  {TT_GRAPH_COLLNET_CHAIN, TT_PATTERN_TREE, 0},
                  {TT_GRAPH_COLLNET_DIRECT, TT_PATTERN_COLLNET_DIRECT, MOST_COLLNET_HEADS},
                  {TT_GRAPH_NVLS, TT_PATTERN_NVLS, MOST_NVLS_HEADS}};
  const int ngpus = t->count[TT_NODE_GPU];
  ncclResult_t result = ncclSuccess;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) graphs[k] = NULL;
  for (size_t i = 0; i < TT_COUNT(searches); i++) {
    const enum tt_graph_kind kind = searches[i].kind;
    const bool heads = kind == TT_GRAPH_COLLNET_DIRECT || kind == TT_GRAPH_NVLS;
    const int count = searches[i].most > 0 ? searches[i].most : graphs[TT_GRAPH_RING]->nchannels;
    struct tt_graph_request request = {.kind = kind,
                                       .pattern = searches[i].pattern,
                                       .min_channels = searches[i].most > 0 ? 1 : count,
                                       .max_channels = heads ? TT_MIN(count, ngpus) : count,
                                       .rules = *rules};
    struct tt_graph_record *record = records ? &records[kind] : NULL;
    const bool wanted =
        kind == TT_GRAPH_NVLS ? rules->nvls : kind < TT_GRAPH_COLLNET_CHAIN || (rules->collnet && t->inter);
    if (record) *record = (struct tt_graph_record){0};
    if (wanted)
      TT_TRY_GOTO(tt_graph_search(t, &request, &graphs[kind], record), result, failed);
    else
      TT_TRY_GOTO(empty(t, &request, &graphs[kind]), result, failed);
  }
  return ncclSuccess;
failed:
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    tt_graph_free(graphs[k]);
    graphs[k] = NULL;
  }
  return result;
}
