/* Paths as tables, a row for each GPU: type, then bandwidth. */
#include <stdio.h>
#include <string.h>
#include "topo.h"

static void cell(const struct tt_topology *t, int from, int to)
{
  char text[32];
  const struct tt_path *path = tt_topology_path(t, from, to);
  if (path->type == TT_PATH_DIS)
    snprintf(text, sizeof(text), "-");
  else if (from == to)
    snprintf(text, sizeof(text), "X");
  else
    snprintf(text, sizeof(text), "%s %.4g", tt_topology_name_path((enum tt_path_type)path->type),
             (double)path->bandwidth);
  printf(" %-10s", text);
}

static void table(const struct tt_topology *t, enum tt_node_type row, enum tt_node_type column)
{
  char text[64];
  if (t->count[row] == 0 || t->count[column] == 0) return;
  printf("from %-10s", tt_topology_name_node(row));
  for (int c = 0; c < t->count[column]; c++)
    printf(" %-10s", tt_topology_label(t, tt_topology_node(t, column, c), text, sizeof(text)));
  putchar('\n');
  for (int r = 0; r < t->count[row]; r++) {
    int from = tt_topology_node(t, row, r);
    printf("%-15s", tt_topology_label(t, from, text, sizeof(text)));
    for (int c = 0; c < t->count[column]; c++) cell(t, from, tt_topology_node(t, column, c));
    putchar('\n');
  }
  putchar('\n');
}

void topo_walk(const struct tt_topology *t, const struct tt_path *path)
{
  char text[64];
  for (int s = path->first; s >= 0; s = t->steps[s].next) {
    const struct tt_link *link = &t->links[t->steps[s].link];
    printf(" -%s-> %s", tt_topology_name_link(link->type), tt_topology_label(t, link->to, text, sizeof(text)));
  }
}

static void walk(const struct tt_topology *t, int from, int to)
{
  char text[64];
  const struct tt_path *path = tt_topology_path(t, from, to);
  if (from == to || path->type == TT_PATH_DIS) return;
  printf("%s -> ", tt_topology_label(t, from, text, sizeof(text)));
  printf("%s: %s %.4g:", tt_topology_label(t, to, text, sizeof(text)),
         tt_topology_name_path((enum tt_path_type)path->type), (double)path->bandwidth);
  topo_walk(t, path);
  putchar('\n');
}

static void walk_all(const struct tt_topology *t, enum tt_node_type from, enum tt_node_type to)
{
  for (int a = 0; a < t->count[from]; a++)
    for (int b = 0; b < t->count[to]; b++) walk(t, tt_topology_node(t, from, a), tt_topology_node(t, to, b));
}

static void near(const struct tt_topology *t)
{
  char text[64];
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) {
    int cpu = tt_topology_cpu_of_gpu(t, g), net = tt_topology_net_of_gpu(t, g, 0);
    printf("%s: nearest", tt_topology_label(t, tt_topology_node(t, TT_NODE_GPU, g), text, sizeof(text)));
    if (cpu >= 0) printf(" %s", tt_topology_label(t, tt_topology_node(t, TT_NODE_CPU, cpu), text, sizeof(text)));
    if (net < 0) {
      putchar('\n');
      continue;
    }
    printf(", %s", tt_topology_label(t, tt_topology_node(t, TT_NODE_NET, net), text, sizeof(text)));
    int owner = tt_topology_owner_of_buffer(t, g, net);
    bool write = tt_topology_gpu_direct(t, g, net, false), read = tt_topology_gpu_direct(t, g, net, true);
    if (owner != g) printf(" by GPU %d", t->nodes[tt_topology_node(t, TT_NODE_GPU, owner)].gpu.rank);
    printf("; GPUDirect %s\n", write && read ? "both ways" : write ? "for receiving" : read ? "for sending" : "off");
  }
}

void topo_paths(const struct tt_topology *t, bool steps)
{
  table(t, TT_NODE_GPU, TT_NODE_GPU);
  table(t, TT_NODE_GPU, TT_NODE_CPU);
  table(t, TT_NODE_GPU, TT_NODE_NET);
  table(t, TT_NODE_NET, TT_NODE_GPU);
  near(t);
  if (!steps) return;
  putchar('\n');
  walk_all(t, TT_NODE_GPU, TT_NODE_GPU);
  walk_all(t, TT_NODE_GPU, TT_NODE_NET);
  walk_all(t, TT_NODE_NET, TT_NODE_GPU);
}
