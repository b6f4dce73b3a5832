/* tutti-topo: what a topology file says of a machine, without that machine; or what this machine says of itself. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "draw.h"
#include "graph/file.h"
#include "graph/find.h"
#include "here.h"
#include "join.h"
#include "options.h"
#include "topo.h"

/* Ranks of N equal machines: those of one are known once it is built. */
static ncclResult_t make(const struct topo_options *o, const struct tt_xml *xml, struct tt_topology **t)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  ncclResult_t result = tt_topology_rules_from_parameters(&rules);
  topo_peer_status(&rules);
  if (result == ncclSuccess) result = tt_topology_create(xml, &rules, o->rank, 0, t);
  if (result != ncclSuccess || o->nodes == 1) return result;
  int nranks = (*t)->nranks * o->nodes;
  tt_topology_free(*t);
  return tt_topology_create(xml, &rules, o->rank, nranks, t);
}

/* What a graph file has, and what a search finds of the rest. */
static ncclResult_t find(const struct topo_options *o, const struct tt_topology *t,
                         struct tt_graph *graphs[TT_GRAPH_KINDS], bool loaded[TT_GRAPH_KINDS],
                         struct tt_graph_record *records)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  TT_TRY(tt_graph_rules_from_parameters(&rules));
  rules.collnet = tt_param_int(TT_PARAM_NCCL_COLLNET_ENABLE) != 0;
  rules.nvls = tt_param_int(TT_PARAM_NCCL_NVLS_ENABLE) != 0;
  return tt_graph_find(o->load, t, &rules, graphs, loaded, records);
}

static ncclResult_t graph(const struct topo_options *o, const struct tt_topology *t)
{
  struct tt_graph *graphs[TT_GRAPH_KINDS] = {0};
  struct topo_graphs what = {.graphs = graphs, .only = o->graph, .links = o->links};
  TT_TRY(find(o, t, graphs, what.loaded, what.records));
  ncclResult_t result = o->dump ? tt_graph_write_file(o->dump, t, graphs) : ncclSuccess;
  if (result == ncclSuccess) result = topo_graph(t, &what);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(graphs[kind]);
  return result;
}

/* Pictures of the machine, with its graphs. */
static ncclResult_t draw(const struct topo_options *o, const struct tt_xml *xml, const struct tt_topology *t)
{
  struct tt_graph *graphs[TT_GRAPH_KINDS] = {0};
  const char *slash = o->file ? strrchr(o->file, '/') : NULL;
  const struct topo_draw what = {.name = !o->file ? "This machine"
                                         : slash  ? slash + 1
                                                  : o->file,
                                 .xml = xml,
                                 .svg = o->svg,
                                 .html = o->html,
                                 .graphs = graphs,
                                 .graph = o->graph,
                                 .channel = o->channel < 0 ? 0 : o->channel};
  ncclResult_t result = find(o, t, graphs, NULL, NULL);
  if (result == ncclSuccess) result = topo_draw(t, &what);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(graphs[kind]);
  return result;
}

static ncclResult_t join(const struct topo_options *o, const struct tt_xml *xml)
{
  struct topo_join what = {.nodes = o->nodes, .rank = o->rank, .channel = o->channel, .load = o->load};
  bool valid;
  TT_TRY(topo_join_rules(&what));
  topo_peer_status(&what.topology);
  TT_TRY(topo_join(xml, &what, &valid));
  return valid ? ncclSuccess : TT_FAIL(ncclInternalError, "what was joined is wrong; please report it");
}

/* A pipe will do, too: who calls this program sees that it waits for one. */
static ncclResult_t read_any(const char *path, struct tt_xml **xml)
{
  FILE *file = fopen(path, "re");
  if (!file) return TT_FAIL(ncclInvalidUsage, "cannot open %s: %s; name a file", path, strerror(errno));
  ncclResult_t result = tt_xml_read_open(file, path, "system", xml);
  fclose(file);
  return result;
}

/* Reads the file, or looks at this machine, and leaves out who does not take part. */
static ncclResult_t read_file(struct topo_options *o, struct tt_xml **xml)
{
  ncclResult_t result = o->here ? topo_detect(o->sysfs, xml) : read_any(o->file, xml);
  if (result == ncclSuccess && o->ranks) {
    struct tt_xml *whole = *xml;
    *xml = NULL;
    result = topo_select(whole, o->ranks, xml);
    tt_xml_free(whole);
  }
  if (result == ncclSuccess && o->rank < 0 && strcmp(o->command, "join") != 0) o->rank = topo_lowest_rank(*xml);
  return result;
}

static ncclResult_t work(const struct topo_options *o, const struct tt_xml *xml, struct tt_topology **t)
{
  if (strcmp(o->command, "copy") == 0) return tt_xml_write(xml, stdout);
  if (strcmp(o->command, "join") == 0) return join(o, xml);
  ncclResult_t result = make(o, xml, t);
  if (result != ncclSuccess) return result;
  if (strcmp(o->command, "explain") == 0)
    return topo_explain(xml, &(*t)->rules, (*t)->nranks * o->nodes, o->ends[0], o->ends[1]);
  if (strcmp(o->command, "show") == 0) topo_show(*t, xml);
  if (strcmp(o->command, "show") == 0 && o->here) {
    TT_TRY(topo_matrix(xml));
    topo_warn(o->sysfs, xml);
  }
  if (strcmp(o->command, "paths") == 0) topo_paths(*t, o->steps);
  if (strcmp(o->command, "draw") == 0) TT_TRY(draw(o, xml, *t));
  return strcmp(o->command, "graph") == 0 ? graph(o, *t) : ncclSuccess;
}

/* Files that clouds ship are skeletons, which each job fills with what it detects: a file of one is whole. */
static void explain_skeleton(const struct topo_options *o, const struct tt_xml *xml)
{
  if (o->here || !xml || topo_has_ranks(xml)) return;
  fprintf(stderr,
          "tutti-topo: %s has no GPU of a rank. If it is a skeleton, have a job fill it, on any machine: "
          "NCCL_TOPO_FILE=%s NCCL_TOPO_DUMP_FILE=full.xml tutti-perf all_reduce --device host -n 8 -b 8 -e 8; "
          "then look at full.xml\n",
          o->file, o->file);
}

/* `status`, if all output could be written. */
static int finish(int status)
{
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fputs("tutti-topo: the output could not be written\n", stderr);
  return TOPO_FAILED;
}

int main(int argc, char **argv)
{
  struct topo_options o;
  struct tt_xml *xml = NULL;
  struct tt_topology *t = NULL;
  int status = topo_options_parse(&o, argc, argv);
  if (status >= 0) return finish(status);
  ncclResult_t result = read_file(&o, &xml);
  if (result == ncclSuccess) result = work(&o, xml, &t);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti-topo: %s\n", tt_log_thread_error());
    explain_skeleton(&o, xml);
  }
  status = result == ncclSuccess ? TOPO_GOOD : result == ncclSystemError ? TOPO_FAILED : TOPO_REFUSED;
  tt_topology_free(t);
  tt_xml_free(xml);
  return finish(status);
}
