/* The machine as a tree: each host's CPUs, what hangs off them, and links that leave the tree. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "names.h"
#include "topo.h"
#include "topology/draft.h"
#include "topology/walk.h"

static void label(const struct tt_topology *t, int node)
{
  char text[64];
  fputs(tt_topology_label(t, node, text, sizeof(text)), stdout);
}

static void print_cpu(const struct tt_node *node)
{
  static const char *const archs[] = {"unknown architecture", "x86_64", "ppc64", "arm64"};
  static const char *const vendors[] = {"", " Intel", " AMD", " Zhaoxin"};
  static const char *const models[] = {
      "", ", Broadwell or older", ", Skylake", ", Sapphire Rapids", ", Emerald Rapids or newer", ", Yongfeng"};
  printf("  %s%s%s", archs[node->cpu.arch], vendors[node->cpu.vendor], models[node->cpu.model]);
  if (CPU_COUNT(&node->cpu.cpus) > 0) printf(", %d processors", CPU_COUNT(&node->cpu.cpus));
}

static void print_net(const struct tt_topology *t, const struct tt_xml *xml, const struct tt_node *node)
{
  const char *name = topo_net_name(t, xml, node);
  if (name) printf("  %.32s,", name);
  printf("%s%g GB/s, port %d%s%s", name ? " " : "  ", (double)node->net.bandwidth, node->net.port,
         node->net.gdr ? ", GPUDirect" : "", node->net.collnet ? ", reduces" : "");
  if (node->net.same_as != node->index) fputs(", the same device once more", stdout);
}

static void print_node(const struct tt_topology *t, const struct tt_xml *xml, int n)
{
  const struct tt_node *node = &t->nodes[n];
  label(t, n);
  switch (node->type) {
  case TT_NODE_CPU:
    print_cpu(node);
    break;
  case TT_NODE_DEV:
    printf("  sm %d%s", node->gpu.sm, node->gpu.gdr ? ", GPUDirect" : "");
    break;
  case TT_NODE_GPU:
    printf("  (device %d)", node->gpu.dev);
    break;
  case TT_NODE_NET:
    print_net(t, xml, node);
    break;
  default:
    break;
  }
}

/* How many NVLinks a bandwidth is made of, if it is. */
static void print_count(float bandwidth, int sm)
{
  const float count = bandwidth / tt_speed_nvlink(sm);
  if (count >= 0.99f && fabsf(count - roundf(count)) < 0.01f)
    printf(", %.0f link%s", (double)count, count < 1.5f ? "" : "s");
}

/* Links beside the tree: to NVSwitches, other GPUs, other CPUs, other switches. */
static void print_others(const struct tt_topology *t, int n, int depth)
{
  const struct tt_node *node = &t->nodes[n];
  for (int l = node->first_link; l < node->first_link + node->nlinks; l++) {
    const struct tt_link *link = &t->links[l];
    if (tt_topology_walks_along(t, link)) continue;
    printf("%*s+ %s %g to ", 2 * depth, "", tt_topology_name_link(link->type), (double)link->bandwidth);
    label(t, link->to);
    if (link->type == TT_LINK_NVL && node->type == TT_NODE_DEV) print_count(link->bandwidth, node->gpu.sm);
    putchar('\n');
  }
}

static void show_below(const struct tt_topology *t, const struct tt_xml *xml, int cpu)
{
  struct tt_topology_walk walk;
  tt_topology_walk_begin(&walk, t, cpu);
  for (int down; (down = tt_topology_walk_next(&walk)) >= 0;) {
    printf("%*s", 2 * walk.depth, "");
    if (t->links[down].type == TT_LINK_PCI) printf("- %g - ", (double)t->links[down].bandwidth);
    print_node(t, xml, walk.node);
    putchar('\n');
    print_others(t, walk.node, walk.depth + 1);
  }
}

static void explain_words(const struct tt_topology *t)
{
  puts("\nCPU: the processors of a NUMA node; DEV: a GPU, GPU: the rank on it; NIC: a card, NET: a device of a net "
       "plugin");
  if (t->count[TT_NODE_NVS] > 0) puts("NVS: all NVSwitches as one");
  puts("- N -: the link from above, + TYPE N: another link; N is GB/s in one direction");
}

void topo_show(const struct tt_topology *t, const struct tt_xml *xml)
{
  printf("%d GPUs, %d NETs, %d CPUs, %d hosts; best path %s %g GB/s, links of a GPU together %g GB/s%s\n",
         t->count[TT_NODE_GPU], t->count[TT_NODE_NET], t->count[TT_NODE_CPU], t->nhosts,
         t->inter ? "from a GPU to a NET" : "between GPUs", (double)t->max_bandwidth, (double)t->total_bandwidth,
         t->inter ? "; other ranks are reached by network" : "");
  if (t->count[TT_NODE_GPU] < t->nranks)
    printf("%d more GPUs of the file are reached over the network only\n", t->nranks - t->count[TT_NODE_GPU]);
  for (int c = 0; c < t->count[TT_NODE_CPU]; c++) {
    int node = tt_topology_node(t, TT_NODE_CPU, c);
    print_node(t, xml, node);
    putchar('\n');
    print_others(t, node, 1);
    show_below(t, xml, node);
  }
  explain_words(t);
}
