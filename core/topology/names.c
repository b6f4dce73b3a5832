/* Words for nodes, links and paths. See topology.h. */
#include <stdio.h>
#include "base/check.h"
#include "topology/topology.h"

const char *tt_topology_name_node(enum tt_node_type type)
{
  static const char *const names[TT_NODE_TYPES] = {"GPU", "PCI", "NVS", "CPU", "NIC", "NET", "DEV"};
  return names[type];
}

const char *tt_topology_name_path(enum tt_path_type type)
{
  static const char *const names[TT_PATH_TYPES] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                                   "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
  return names[type];
}

const char *tt_topology_name_link(enum tt_link_type type)
{
  return type == TT_LINK_PCI ? "PCI" : tt_topology_name_path((enum tt_path_type)type);
}

static void print_bus(char *text, size_t size, const char *prefix, uint64_t id)
{
  id &= ((uint64_t)1 << 40) - 1; /* above: which of a device's ranks */
  snprintf(text, size, "%s%04llx:%02x:%02x.%x", prefix, (unsigned long long)(id >> 20), (unsigned)(id >> 12 & 0xff),
           (unsigned)(id >> 4 & 0xff), (unsigned)(id & 0xf));
}

const char *tt_topology_label(const struct tt_topology *t, int node, char *text, size_t size)
{
  const struct tt_node *n = &t->nodes[node];
  char prefix[32] = "";
  if (t->nhosts > 1 && n->type != TT_NODE_NVS) snprintf(prefix, sizeof(prefix), "%d/", n->host);
  int used = snprintf(text, size, "%s ", tt_topology_name_node(n->type));
  if (used < 0 || (size_t)used >= size) return text;
  text += used;
  size -= (size_t)used;
  switch (n->type) {
  case TT_NODE_GPU:
    snprintf(text, size, "%s%d", prefix, n->gpu.rank);
    break;
  case TT_NODE_NET:
    snprintf(text, size, "%s%d", prefix, n->net.dev);
    break;
  case TT_NODE_NVS:
    text[-1] = 0;
    break;
  case TT_NODE_CPU:
    if (n->id == ~(uint64_t)0)
      snprintf(text, size, "%s-", prefix);
    else
      snprintf(text, size, "%s%llu", prefix, (unsigned long long)n->id);
    break;
  case TT_NODE_NIC:
    if (n->id >> 56 || n->id == 0) { /* on no bus: named by its CPU */
      snprintf(text, size, "%sof CPU %d", prefix, (int)(int8_t)(n->id >> 56));
      break;
    }
    print_bus(text, size, prefix, n->id);
    break;
  case TT_NODE_DEV:
    if (n->id & TT_HOST_DEVICE) {
      snprintf(text, size, "%shost of rank %llu", prefix, (unsigned long long)(n->id & ~TT_HOST_DEVICE));
      break;
    }
    print_bus(text, size, prefix, n->id);
    break;
  default:
    print_bus(text, size, prefix, n->id);
  }
  return text - used;
}
