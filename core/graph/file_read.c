/* From graph file to graphs: see file.h. Whoever uses a graph trusts it, so that all is checked here. */
#include "graph/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"

enum { MOST_SPEED = 1000000 }; /* GB/s: more is a mistake in units */

struct reading {
  const struct tt_xml *xml;
  const struct tt_topology *t;
  int cross_nic;
  int lines[TT_GRAPH_KINDS]; /* of the graphs that were read; 0: none */
};

/* How a file names GPUs and NETs: the host above, the number below. */
static uint64_t name_of(const struct tt_node *node)
{
  uint64_t dev = (uint64_t)(node->type == TT_NODE_NET ? node->net.dev : node->gpu.dev);
  return (uint64_t)node->host << 56 | dev;
}

/* Device numbers are hexadecimal with or without 0x. */
static ncclResult_t read_dev(const struct tt_xml *xml, int element, uint64_t *dev)
{
  const char *text;
  char where[512], *end;
  TT_TRY(tt_xml_need(xml, element, "dev", &text));
  int saved = errno;
  errno = 0;
  *dev = strtoull(text, &end, 16);
  bool good = errno == 0 && end != text && *end == 0 && strspn(text, "0123456789abcdefABCDEFxX") == strlen(text);
  errno = saved;
  if (good) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: dev must be a hexadecimal number, with the host's in its upper byte",
                 tt_xml_where(xml, element, where, sizeof(where)));
}

static ncclResult_t read_speed(const struct tt_xml *xml, int element, const char *name, const char *text, float *value)
{
  char where[512];
  if (tt_text_float(text, value) && *value >= 0 && *value <= MOST_SPEED) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: %s is \"%.64s\"; it must be a number from 0 to %d",
                 tt_xml_where(xml, element, where, sizeof(where)), name, text, MOST_SPEED);
}

static ncclResult_t need_speed(const struct tt_xml *xml, int element, const char *name, float *value)
{
  const char *text;
  TT_TRY(tt_xml_need(xml, element, name, &text));
  return read_speed(xml, element, name, text, value);
}

static ncclResult_t need_type(const struct tt_xml *xml, int element, const char *name, enum tt_path_type *type)
{
  const char *text;
  char where[512];
  TT_TRY(tt_xml_need(xml, element, name, &text));
  for (int p = TT_PATH_LOC; p < TT_PATH_TYPES; p++) {
    *type = (enum tt_path_type)p;
    if (strcmp(text, tt_topology_name_path(*type)) == 0) return ncclSuccess;
  }
  return TT_FAIL(ncclInvalidUsage,
                 "%s: %s is \"%.64s\"; it must be LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET or DIS",
                 tt_xml_where(xml, element, where, sizeof(where)), name, text);
}

static bool has_head(const struct tt_graph *graph)
{
  return graph->kind == TT_GRAPH_NVLS || graph->kind == TT_GRAPH_COLLNET_DIRECT;
}

/* Rings are of one pattern, chains may be of three, and so on. With one GPU all but rings may be simple trees, as a
 * search makes them. */
static ncclResult_t need_pattern(const struct tt_xml *xml, int element, const struct tt_graph *graph,
                                 enum tt_graph_pattern *pattern)
{
  static const struct {
    int least, most;
  } of_kind[TT_GRAPH_KINDS] = {[TT_GRAPH_RING] = {TT_PATTERN_RING, TT_PATTERN_RING},
                               [TT_GRAPH_TREE] = {TT_PATTERN_BALANCED_TREE, TT_PATTERN_TREE},
                               [TT_GRAPH_COLLNET_CHAIN] = {TT_PATTERN_BALANCED_TREE, TT_PATTERN_TREE},
                               [TT_GRAPH_NVLS] = {TT_PATTERN_NVLS, TT_PATTERN_NVLS},
                               [TT_GRAPH_COLLNET_DIRECT] = {TT_PATTERN_COLLNET_DIRECT, TT_PATTERN_COLLNET_DIRECT}};
  int value;
  char where[512];
  TT_TRY(tt_xml_need_int(xml, element, "pattern", TT_PATTERN_BALANCED_TREE, TT_PATTERN_COLLNET_DIRECT, &value));
  *pattern = (enum tt_graph_pattern)value;
  const enum tt_graph_kind kind = graph->kind;
  const int least = of_kind[kind].least, most = of_kind[kind].most;
  if (value >= least && value <= most) return ncclSuccess;
  if (graph->nranks == 1 && kind != TT_GRAPH_RING && value == TT_PATTERN_TREE) return ncclSuccess;
  if (least == most)
    return TT_FAIL(ncclInvalidUsage, "%s: pattern is \"%d\"; that of a %s is %d",
                   tt_xml_where(xml, element, where, sizeof(where)), value, tt_graph_name(kind), least);
  return TT_FAIL(ncclInvalidUsage, "%s: pattern is \"%d\"; that of a %s is from %d to %d",
                 tt_xml_where(xml, element, where, sizeof(where)), value, tt_graph_name(kind), least, most);
}

/* By its rank if that is given and on this machine, else by its device: a file that one machine wrote serves others. */
static ncclResult_t find_gpu(const struct reading *r, int element, int32_t *rank)
{
  const struct tt_topology *t = r->t;
  char where[512];
  uint64_t dev;
  int named, found = -1;
  tt_xml_where(r->xml, element, where, sizeof(where));
  TT_TRY(read_dev(r->xml, element, &dev));
  TT_TRY(tt_xml_int(r->xml, element, "rank", 0, INT32_MAX, -1, &named));
  if (tt_topology_gpu_of_rank(t, named) < 0) named = -1;
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) {
    const struct tt_node *gpu = &t->nodes[tt_topology_node(t, TT_NODE_GPU, g)];
    if (named >= 0 ? gpu->gpu.rank != named : name_of(gpu) != dev) continue;
    if (named >= 0 && name_of(gpu) != dev)
      return TT_FAIL(ncclInvalidUsage,
                     "%s: rank %d is on device 0x%llx here; correct one of both, or remove rank so that dev counts",
                     where, named, (unsigned long long)name_of(gpu));
    if (found >= 0)
      return TT_FAIL(ncclInvalidUsage, "%s: ranks %d and %d are on this device; let the attribute rank name one", where,
                     found, gpu->gpu.rank);
    found = gpu->gpu.rank;
  }
  *rank = found;
  if (found >= 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: no rank is on device 0x%llx of this machine; name the device of one", where,
                 (unsigned long long)dev);
}

/* If all ranks are here, NETs are not used, and the file may be of a machine with other ones. */
static ncclResult_t find_net(const struct reading *r, int element, int64_t *net)
{
  const struct tt_topology *t = r->t;
  char where[512];
  uint64_t dev;
  TT_TRY(read_dev(r->xml, element, &dev));
  *net = TT_GRAPH_NO_NET;
  for (int n = 0; n < t->count[TT_NODE_NET] && t->inter; n++)
    if (name_of(&t->nodes[tt_topology_node(t, TT_NODE_NET, n)]) == dev) *net = (int64_t)dev;
  if (!t->inter || *net >= 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: this machine has no NET 0x%llx; name one that it has, or none in this channel",
                 tt_xml_where(r->xml, element, where, sizeof(where)), (unsigned long long)dev);
}

static int64_t nearest_net(const struct tt_topology *t, int32_t rank, int channel)
{
  int net = tt_topology_net_of_gpu(t, tt_topology_gpu_of_rank(t, rank), channel);
  return net < 0 ? TT_GRAPH_NO_NET : (int64_t)name_of(&t->nodes[tt_topology_node(t, TT_NODE_NET, net)]);
}

/* For a channel that names none: the nearest to the GPUs at which the pattern enters and leaves. */
static void choose_nets(const struct tt_topology *t, struct tt_graph *graph, int channel)
{
  const int32_t *ranks = &graph->ranks[channel * graph->nranks];
  int out = graph->pattern == TT_PATTERN_RING ? graph->nranks - 1 : graph->pattern == TT_PATTERN_SPLIT_TREE;
  if (!t->inter) return;
  graph->nets[channel * 2] = nearest_net(t, ranks[0], channel);
  graph->nets[channel * 2 + 1] = nearest_net(t, ranks[TT_MIN(out, graph->nranks - 1)], channel);
}

static ncclResult_t add_gpu(const struct reading *r, int element, int32_t *ranks, int *ngpus, bool head)
{
  char where[512];
  int32_t rank;
  TT_TRY(find_gpu(r, element, &rank));
  /* Who reaches all others at once needs no order of them, but some versions of NCCL write one. */
  if (head && *ngpus > 0) return ncclSuccess;
  for (int g = 0; g < *ngpus; g++)
    if (ranks[g] == rank)
      return TT_FAIL(ncclInvalidUsage, "%s: the channel visits rank %d twice; name each GPU once",
                     tt_xml_where(r->xml, element, where, sizeof(where)), rank);
  ranks[(*ngpus)++] = rank;
  return ncclSuccess;
}

static ncclResult_t read_channel(const struct reading *r, int element, struct tt_graph *graph, int channel)
{
  const struct tt_xml *xml = r->xml;
  char where[512];
  int32_t *ranks = &graph->ranks[channel * graph->nranks];
  int64_t nets[2];
  int ngpus = 0, nnets = 0;
  const bool head = has_head(graph);
  tt_xml_where(xml, element, where, sizeof(where));
  for (int e = xml->elements[element].first; e >= 0; e = xml->elements[e].next) {
    if (tt_xml_is(xml, e, "gpu")) TT_TRY(add_gpu(r, e, ranks, &ngpus, head));
    if (!tt_xml_is(xml, e, "net")) continue;
    if (nnets == 2) return TT_FAIL(ncclInvalidUsage, "%s: it has more than two <net>; remove some", where);
    TT_TRY(find_net(r, e, &nets[nnets++]));
  }
  if (ngpus == 0) return TT_FAIL(ncclInvalidUsage, "%s: it has no <gpu>; add those that it visits", where);
  if (!head && ngpus != graph->nranks)
    return TT_FAIL(ncclInvalidUsage, "%s: it visits %d GPUs; it must visit each of the %d of this machine once", where,
                   ngpus, graph->nranks);
  if (nnets == 1)
    return TT_FAIL(ncclInvalidUsage, "%s: it has one <net>; it must have two, to come in and to go out, or none",
                   where);
  if (nnets == 2)
    memcpy(&graph->nets[channel * 2], nets, sizeof(nets));
  else
    choose_nets(r->t, graph, channel);
  return ncclSuccess;
}

static ncclResult_t read_attributes(const struct tt_xml *xml, int element, struct tt_graph *graph)
{
  int same;
  TT_TRY(need_pattern(xml, element, graph, &graph->pattern));
  TT_TRY(tt_xml_need_int(xml, element, "crossnic", 0, 2, &graph->cross_nic));
  TT_TRY(tt_xml_need_int(xml, element, "nchannels", 0, TT_GRAPH_MOST_CHANNELS, &graph->nchannels));
  TT_TRY(need_speed(xml, element, "speedintra", &graph->bandwidth_intra));
  TT_TRY(need_speed(xml, element, "speedinter", &graph->bandwidth_inter));
  const char *latency = tt_xml_get(xml, element, "latencyinter");
  if (latency) TT_TRY(read_speed(xml, element, "latencyinter", latency, &graph->latency_inter));
  TT_TRY(need_type(xml, element, "typeintra", &graph->type_intra));
  TT_TRY(need_type(xml, element, "typeinter", &graph->type_inter));
  TT_TRY(tt_xml_need_int(xml, element, "samechannels", 0, 1, &same));
  graph->same_channels = same;
  return ncclSuccess;
}

static ncclResult_t read_channels(const struct reading *r, int element, struct tt_graph *graph)
{
  const struct tt_xml *xml = r->xml;
  char where[512];
  int channels = 0;
  for (int e = tt_xml_child(xml, xml->elements[element].first, "channel"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "channel"), channels++)
    if (channels < graph->nchannels) TT_TRY(read_channel(r, e, graph, channels));
  if (channels == graph->nchannels) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s: nchannels is \"%d\", but there are %d <channel>; make them equal",
                 tt_xml_where(xml, element, where, sizeof(where)), graph->nchannels, channels);
}

static ncclResult_t read_graph(struct reading *r, int element, struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  const struct tt_xml *xml = r->xml;
  char where[512];
  int id;
  struct tt_graph *graph;
  TT_TRY(tt_xml_need_int(xml, element, "id", 0, TT_GRAPH_KINDS - 1, &id));
  if (r->lines[id] > 0)
    return TT_FAIL(ncclInvalidUsage, "%s: line %d has a graph with this id already; remove one of them",
                   tt_xml_where(xml, element, where, sizeof(where)), r->lines[id]);
  r->lines[id] = xml->elements[element].line;
  const enum tt_graph_kind kind = (enum tt_graph_kind)id;
  TT_TRY(tt_graph_new(kind, TT_GRAPH_MOST_CHANNELS, r->t->count[TT_NODE_GPU], &graph));
  ncclResult_t result = read_attributes(xml, element, graph);
  if (result == ncclSuccess) result = read_channels(r, element, graph);
  const bool crosses = result == ncclSuccess && graph->cross_nic == 1 && r->cross_nic == 0;
  if (crosses)
    TT_INFO(TT_GRAPH, "%s: the %s crosses NICs, so that NCCL_CROSS_NIC=0 leaves it out", xml->source,
            tt_graph_name(kind));
  if (result == ncclSuccess && graph->nchannels > 0 && !crosses)
    graphs[kind] = graph;
  else
    tt_graph_free(graph);
  return result;
}

static ncclResult_t read_all(const struct tt_xml *xml, const struct tt_topology *t, int cross_nic,
                             struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  struct reading r = {.xml = xml, .t = t, .cross_nic = cross_nic};
  ncclResult_t result = ncclSuccess;
  for (int e = tt_xml_child(xml, xml->elements[0].first, "graph"); e >= 0 && result == ncclSuccess;
       e = tt_xml_child(xml, xml->elements[e].next, "graph"))
    result = read_graph(&r, e, graphs);
  for (int kind = 0; kind < TT_GRAPH_KINDS && result != ncclSuccess; kind++) {
    tt_graph_free(graphs[kind]);
    graphs[kind] = NULL;
  }
  return result;
}

ncclResult_t tt_graph_parse(const char *text, size_t bytes, const char *source, const struct tt_topology *t,
                            int cross_nic, struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  struct tt_xml *xml;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) graphs[kind] = NULL;
  TT_TRY(tt_xml_parse(text, bytes, source, "graphs", &xml));
  ncclResult_t result = read_all(xml, t, cross_nic, graphs);
  tt_xml_free(xml);
  return result;
}

ncclResult_t tt_graph_read(const char *path, const struct tt_topology *t, int cross_nic,
                           struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  struct tt_xml *xml;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) graphs[kind] = NULL;
  TT_TRY(tt_xml_read(path, "graphs", &xml));
  ncclResult_t result = read_all(xml, t, cross_nic, graphs);
  tt_xml_free(xml);
  return result;
}
