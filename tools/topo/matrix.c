/* Tables of path types between GPUs and NETs, as people know them from nvidia-smi. See here.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "here.h"
#include "topology/tree.h"

/* "0-3,8", from a set. */
static void print_cpus(const cpu_set_t *cpus)
{
  const char *comma = "";
  if (CPU_COUNT(cpus) == 0) putchar('?');
  for (int c = 0; c < CPU_SETSIZE; c++) {
    int last = c;
    if (!CPU_ISSET((size_t)c, cpus)) continue;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)last + 1, cpus)) last++;
    printf(last > c ? "%s%d-%d" : "%s%d", comma, c, last);
    comma = ",";
    c = last;
  }
}

static void print_end(const struct tt_topology *t, int node)
{
  const struct tt_node *n = &t->nodes[node];
  char text[32];
  snprintf(text, sizeof(text), n->type == TT_NODE_GPU ? "GPU%d" : "NET%d",
           n->type == TT_NODE_GPU ? n->gpu.rank : n->net.dev);
  printf("%-7s", text);
}

static void print_row(const struct tt_topology *t, const int *ends, int nends, int row)
{
  print_end(t, ends[row]);
  for (int e = 0; e < nends; e++)
    printf("%-7s",
           e == row ? "X" : tt_topology_name_path((enum tt_path_type)tt_topology_path(t, ends[row], ends[e])->type));
  if (t->nodes[ends[row]].type == TT_NODE_GPU) {
    const int gpu = t->nodes[ends[row]].index, cpu = tt_topology_cpu_of_gpu(t, gpu);
    cpu_set_t cpus;
    tt_topology_affinity(t, gpu, &cpus);
    print_cpus(&cpus);
    const uint64_t id = cpu < 0 ? ~(uint64_t)0 : t->nodes[tt_topology_node(t, TT_NODE_CPU, cpu)].id;
    if (id == ~(uint64_t)0)
      fputs("  NUMA ?", stdout);
    else
      printf("  NUMA %llu", (unsigned long long)id);
  }
  putchar('\n');
}

/* The name behind a NET's number. */
static void print_net(const struct tt_xml *xml, int dev)
{
  for (int e = 0; e < xml->count; e++) {
    const char *text = tt_xml_is(xml, e, "net") ? tt_xml_get(xml, e, "dev") : NULL;
    const char *name = text && atoi(text) == dev ? tt_xml_get(xml, e, "name") : NULL;
    if (!name) continue;
    printf("NET%d is %s\n", dev, name);
    return;
  }
}

static int compare_ends(const struct tt_topology *t, int a, int b)
{
  const struct tt_node *x = &t->nodes[a], *y = &t->nodes[b];
  if (x->type != y->type) return (int)x->type - (int)y->type;
  return x->type == TT_NODE_GPU ? x->gpu.rank - y->gpu.rank : x->net.dev - y->net.dev;
}

static void insert(const struct tt_topology *t, int *ends, int *nends, int node)
{
  int at = (*nends)++;
  for (; at > 0 && compare_ends(t, ends[at - 1], node) > 0; at--) ends[at] = ends[at - 1];
  ends[at] = node;
}

static void print(const struct tt_topology *t, const struct tt_xml *xml, int *ends)
{
  int nends = 0;
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) insert(t, ends, &nends, tt_topology_node(t, TT_NODE_GPU, g));
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) {
    int node = tt_topology_node(t, TT_NODE_NET, n);
    if (t->nodes[node].net.same_as == n) insert(t, ends, &nends, node);
  }
  printf("\n%-7s", "");
  for (int e = 0; e < nends; e++) print_end(t, ends[e]);
  puts("processors");
  for (int e = 0; e < nends; e++) print_row(t, ends, nends, e);
  puts("X itself, NVL NVLink, PIX at most one PCI bridge, PXB several, PHB through a CPU, SYS between CPUs");
  for (int e = 0; e < nends; e++)
    if (t->nodes[ends[e]].type == TT_NODE_NET) print_net(xml, t->nodes[ends[e]].net.dev);
}

/* The machine with no rule that changes a path: all may use each other's memory. */
static ncclResult_t make_plain(const struct tt_xml *xml, struct tt_topology **t)
{
  ncclResult_t result;
  struct tt_topology_rules none = tt_topology_rules_default();
  struct tt_xml *copy = NULL;
  bool *all;
  TT_TRY(TT_CALLOC(&all, (size_t)xml->count));
  memset(all, 1, (size_t)xml->count);
  none.peer_level = none.gpu_direct_level = TT_PATH_SYS;
  none.net_intra = none.pxn = false;
  TT_TRY_GOTO(tt_tree_copy(xml, all, NULL, &copy), result, out);
  for (int e = 0; e < copy->count; e++)
    if (tt_xml_is(copy, e, "net") || tt_xml_is(copy, e, "gpu"))
      TT_TRY_GOTO(tt_xml_set(copy, e, "gdr", "1"), result, out);
  TT_TRY_GOTO(tt_topology_create(copy, &none, 0, 0, t), result, out);
out:
  tt_xml_free(copy);
  free(all);
  return result;
}

ncclResult_t topo_matrix(const struct tt_xml *xml)
{
  ncclResult_t result;
  struct tt_topology *t = NULL;
  int *ends = NULL;
  TT_TRY_GOTO(make_plain(xml, &t), result, out);
  TT_TRY_GOTO(TT_CALLOC(&ends, (size_t)t->nnodes), result, out);
  print(t, xml, ends);
out:
  free(ends);
  tt_topology_free(t);
  return result;
}
