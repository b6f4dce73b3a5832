/* From graphs to graph file: see file.h. */
#include "graph/file.h"

#include "base/check.h"
#include "base/text.h"

static ncclResult_t set_int(struct tt_xml *xml, int element, const char *name, int value)
{
  char text[16];
  snprintf(text, sizeof(text), "%d", value);
  return tt_xml_set(xml, element, name, text);
}

static ncclResult_t set_float(struct tt_xml *xml, int element, const char *name, float value)
{
  char text[32];
  return tt_xml_set(xml, element, name, tt_text_print_float(value, text, sizeof(text)));
}

static ncclResult_t set_dev(struct tt_xml *xml, int element, uint64_t dev)
{
  char text[32];
  snprintf(text, sizeof(text), "%#llx", (unsigned long long)dev);
  return tt_xml_set(xml, element, "dev", text);
}

/* NCCL knows no word for there being no path. A graph without channels has none, and needs none. */
static ncclResult_t set_type(struct tt_xml *xml, int element, const char *name, const struct tt_graph *graph,
                             enum tt_path_type type)
{
  return tt_xml_set(xml, element, name, tt_topology_name_path(graph->nchannels > 0 ? type : TT_PATH_LOC));
}

/* Where no NET is used, and where there is none to use, channels have none. */
static ncclResult_t add_net(struct tt_xml *xml, int channel, const struct tt_topology *t, int64_t net)
{
  int element;
  if (!t->inter || net == TT_GRAPH_NO_NET) return ncclSuccess;
  TT_TRY(tt_xml_add(xml, channel, "net", &element));
  return set_dev(xml, element, (uint64_t)net);
}

/* Whether two ranks share the device of one. */
static bool is_shared(const struct tt_topology *t, const struct tt_node *gpu)
{
  int same = 0;
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) {
    const struct tt_node *other = &t->nodes[tt_topology_node(t, TT_NODE_GPU, g)];
    same += other->host == gpu->host && other->gpu.dev == gpu->gpu.dev;
  }
  return same > 1;
}

/* The rank only where the device does not say it: a file without ranks is good for all machines of its kind. */
static ncclResult_t add_gpu(struct tt_xml *xml, int channel, const struct tt_topology *t, int32_t rank)
{
  int element, g = tt_topology_gpu_of_rank(t, rank);
  if (g < 0) return TT_FAIL(ncclInternalError, "a graph has rank %d, which is not on this machine", rank);
  const struct tt_node *gpu = &t->nodes[tt_topology_node(t, TT_NODE_GPU, g)];
  TT_TRY(tt_xml_add(xml, channel, "gpu", &element));
  TT_TRY(set_dev(xml, element, (uint64_t)gpu->host << 56 | (uint64_t)gpu->gpu.dev));
  return is_shared(t, gpu) ? set_int(xml, element, "rank", rank) : ncclSuccess;
}

static ncclResult_t add_channel(struct tt_xml *xml, int above, const struct tt_topology *t,
                                const struct tt_graph *graph, int c)
{
  int element;
  TT_TRY(tt_xml_add(xml, above, "channel", &element));
  TT_TRY(add_net(xml, element, t, graph->nets[c * 2]));
  for (int i = 0; i < graph->nranks && graph->ranks[c * graph->nranks + i] >= 0; i++)
    TT_TRY(add_gpu(xml, element, t, graph->ranks[c * graph->nranks + i]));
  return add_net(xml, element, t, graph->nets[c * 2 + 1]);
}

static ncclResult_t add_graph(struct tt_xml *xml, const struct tt_topology *t, const struct tt_graph *graph)
{
  int element;
  TT_TRY(tt_xml_add(xml, 0, "graph", &element));
  TT_TRY(set_int(xml, element, "id", (int)graph->kind));
  TT_TRY(set_int(xml, element, "pattern", (int)graph->pattern));
  TT_TRY(set_int(xml, element, "crossnic", graph->cross_nic));
  TT_TRY(set_int(xml, element, "nchannels", graph->nchannels));
  TT_TRY(set_float(xml, element, "speedintra", graph->bandwidth_intra));
  TT_TRY(set_float(xml, element, "speedinter", graph->bandwidth_inter));
  TT_TRY(set_float(xml, element, "latencyinter", graph->latency_inter));
  TT_TRY(set_type(xml, element, "typeintra", graph, graph->type_intra));
  TT_TRY(set_type(xml, element, "typeinter", graph, graph->type_inter));
  TT_TRY(set_int(xml, element, "samechannels", graph->same_channels));
  for (int c = 0; c < graph->nchannels; c++) TT_TRY(add_channel(xml, element, t, graph, c));
  return ncclSuccess;
}

/* The order is NCCL's. */
static ncclResult_t make(const char *source, const struct tt_topology *t, struct tt_graph *const graphs[TT_GRAPH_KINDS],
                         struct tt_xml **out)
{
  static const enum tt_graph_kind order[] = {TT_GRAPH_RING, TT_GRAPH_TREE, TT_GRAPH_COLLNET_DIRECT,
                                             TT_GRAPH_COLLNET_CHAIN, TT_GRAPH_NVLS};
  ncclResult_t result;
  struct tt_xml *xml;
  int root;
  TT_TRY(tt_xml_create(source, &xml));
  TT_TRY_GOTO(tt_xml_add(xml, -1, "graphs", &root), result, out);
  TT_TRY_GOTO(tt_xml_set(xml, root, "version", "1"), result, out);
  for (size_t i = 0; i < TT_COUNT(order); i++)
    if (graphs[order[i]]) TT_TRY_GOTO(add_graph(xml, t, graphs[order[i]]), result, out);
out:
  if (result == ncclSuccess)
    *out = xml;
  else
    tt_xml_free(xml);
  return result;
}

ncclResult_t tt_graph_write(FILE *out, const struct tt_topology *t, struct tt_graph *const graphs[TT_GRAPH_KINDS])
{
  struct tt_xml *xml;
  TT_TRY(make("graphs", t, graphs, &xml));
  ncclResult_t result = tt_xml_write(xml, out);
  tt_xml_free(xml);
  return result;
}

ncclResult_t tt_graph_write_file(const char *path, const struct tt_topology *t,
                                 struct tt_graph *const graphs[TT_GRAPH_KINDS])
{
  struct tt_xml *xml;
  TT_TRY(make(path, t, graphs, &xml));
  ncclResult_t result = tt_xml_write_file(xml, path);
  tt_xml_free(xml);
  return result;
}
