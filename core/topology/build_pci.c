/* The PCI tree below a CPU: bridges, GPUs and cards, and the network devices of cards. See draft.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/draft.h"

static ncclResult_t add_net(struct tt_draft *draft, int element, int nic)
{
  const struct tt_xml *xml = draft->xml;
  const int host = draft->nodes[nic].node.host, most = INT32_MAX;
  int dev, speed, gdr, collnet, is_net, node;
  char where[512];
  if (!tt_xml_get(xml, element, "dev")) return ncclSuccess; /* no plugin took it */
  TT_TRY(tt_xml_int(xml, element, "net", 0, 1, 1, &is_net));
  if (!is_net) return ncclSuccess;
  TT_TRY(tt_xml_need_int(xml, element, "dev", 0, most, &dev));
  TT_TRY(tt_draft_add(draft, TT_NODE_NET, host, (uint64_t)dev, element, &node));
  struct tt_node net = draft->nodes[node].node;
  TT_TRY(tt_xml_int(xml, element, "speed", INT32_MIN, most, 0, &speed));
  TT_TRY(tt_xml_int(xml, element, "port", INT32_MIN, most, 0, &net.net.port));
  TT_TRY(tt_xml_int(xml, element, "maxconn", 0, most, 64, &net.net.maxconn));
  TT_TRY(tt_xml_int(xml, element, "rail", -1, most, -1, &net.net.rail));
  TT_TRY(tt_xml_int(xml, element, "plane", -1, most, -1, &net.net.plane));
  TT_TRY(tt_xml_int(xml, element, "gdr", 0, 1, 0, &gdr));
  TT_TRY(tt_xml_int(xml, element, "coll", 0, 1, 0, &collnet));
  const char *guid = tt_xml_get(xml, element, "guid"), *latency = tt_xml_get(xml, element, "latency");
  net.net.dev = dev;
  net.net.asic = guid ? strtoull(guid, NULL, 16) : (uint64_t)dev;
  if (latency && (!tt_text_float(latency, &net.net.latency) || net.net.latency < 0))
    return TT_FAIL(ncclInvalidUsage, "%s: latency is \"%.64s\"; it must be microseconds, 0 or more",
                   tt_xml_where(xml, element, where, sizeof(where)), latency);
  net.net.bandwidth = (float)(speed > 0 ? speed : 10000) / 8000.0f; /* of Mb/s; who does not know says nothing */
  net.net.gdr = gdr;
  net.net.collnet = collnet;
  net.net.local_gpu = -1;
  draft->nodes[node].node = net;
  return tt_draft_connect_both(draft, nic, node, TT_LINK_NET, net.net.bandwidth);
}

ncclResult_t tt_draft_add_nets(struct tt_draft *draft, int element, int nic)
{
  const struct tt_xml *xml = draft->xml;
  for (int e = tt_xml_child(xml, xml->elements[element].first, "net"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "net"))
    TT_TRY(add_net(draft, e, nic));
  return ncclSuccess;
}

/* NVLinks name GPUs by their bus ids. */
static ncclResult_t check_bus(const struct tt_draft *draft, int element, uint64_t bus, int host)
{
  char where[512];
  int other = tt_draft_find(draft, TT_NODE_DEV, host, bus);
  if (other < 0) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s is on the same bus id as the GPU of line %d; each needs one of its own",
                 tt_xml_where(draft->xml, element, where, sizeof(where)), draft->nodes[other].node.line);
}

/* Each rank on a device is a GPU; they share the DEV and its links. A GPU without a rank is nobody's. */
static ncclResult_t add_gpus(struct tt_draft *draft, int first, uint64_t bus, int host, int *dev_node)
{
  const struct tt_xml *xml = draft->xml;
  int nth = 0, rank, dev, sm, gdr, node;
  for (int e = first; e >= 0; e = tt_xml_child(xml, xml->elements[e].next, "gpu")) {
    if (!tt_xml_get(xml, e, "rank")) continue;
    TT_TRY(tt_xml_need_int(xml, e, "rank", 0, INT32_MAX, &rank));
    TT_TRY(tt_xml_need_int(xml, e, "sm", 0, 10000, &sm));
    TT_TRY(tt_xml_need_int(xml, e, "dev", 0, 10000, &dev));
    TT_TRY(tt_xml_need_int(xml, e, "gdr", 0, 1, &gdr));
    if (*dev_node < 0) {
      TT_TRY(check_bus(draft, e, bus, host));
      TT_TRY(tt_draft_add(draft, TT_NODE_DEV, host, bus, e, dev_node));
      draft->nodes[*dev_node].node.gpu = (typeof(draft->nodes->node.gpu)){.rank = -1, .dev = dev, .sm = sm, .gdr = gdr};
    }
    TT_TRY(tt_draft_add(draft, TT_NODE_GPU, host, bus | (uint64_t)nth++ << 40, e, &node));
    draft->nodes[node].node.gpu = (typeof(draft->nodes->node.gpu)){.rank = rank, .dev = dev, .sm = sm, .gdr = gdr};
    TT_TRY(tt_draft_connect_both(draft, *dev_node, node, TT_LINK_LOC, TT_LOCAL_BANDWIDTH));
  }
  return ncclSuccess;
}

/* The functions of a card are one NIC. *node is set only by the first of them, which brings the link. */
static ncclResult_t add_nic(struct tt_draft *draft, int element, int nic_element, uint64_t bus, int host, int *node)
{
  bus &= ~(uint64_t)0xf;
  int nic = tt_draft_find(draft, TT_NODE_NIC, host, bus);
  if (nic < 0) {
    TT_TRY(tt_draft_add(draft, TT_NODE_NIC, host, bus, element, &nic));
    *node = nic;
  }
  return tt_draft_add_nets(draft, nic_element, nic);
}

/* Classes that are no bridges; all others, those that nobody knows included, are. */
static bool is_bridge(const char *class)
{
  static const char *const others[] = {"0x068000", "0x068001", "0x03", "0x02"};
  for (size_t i = 0; i < TT_COUNT(others); i++)
    if (strncmp(class, others[i], strlen(others[i])) == 0) return false;
  return true;
}

static uint64_t read_device(const struct tt_xml *xml, int element)
{
  static const char *const parts[] = {"vendor", "device", "subsystem_vendor", "subsystem_device"};
  uint64_t device = 0;
  for (int i = 0; i < 4; i++) {
    const char *text = tt_xml_get(xml, element, parts[i]);
    device |= (uint64_t)((text ? strtoul(text, NULL, 0) : 0) & 0xffff) << (48 - 16 * i);
  }
  return device;
}

/* Makes a node of one <pci>, still without its uplink; *into: what lies below it counts. */
static ncclResult_t add_device(struct tt_draft *draft, int element, int host, int *node, bool *into)
{
  const struct tt_xml *xml = draft->xml;
  const int first = xml->elements[element].first;
  const char *class;
  uint64_t bus;
  *node = -1;
  *into = false;
  TT_TRY(tt_xml_need(xml, element, "class", &class));
  TT_TRY(tt_draft_bus_id(xml, element, "busid", &bus));
  int gpu = tt_xml_child(xml, first, "gpu"), nic = tt_xml_child(xml, first, "nic");
  if (gpu >= 0) return add_gpus(draft, gpu, bus, host, node);
  if (nic >= 0) return add_nic(draft, element, nic, bus, host, node);
  if (!is_bridge(class)) return ncclSuccess;
  TT_TRY(tt_draft_add(draft, TT_NODE_PCI, host, bus, element, node));
  *into = true;
  draft->nodes[*node].node.pci.device = read_device(xml, element);
  return ncclSuccess;
}

static ncclResult_t connect_up(struct tt_draft *draft, int element, int node, int up)
{
  int width;
  const char *speed;
  TT_TRY(tt_xml_need_int(draft->xml, element, "link_width", 0, 1024, &width));
  TT_TRY(tt_xml_need(draft->xml, element, "link_speed", &speed));
  draft->nodes[node].up = up;
  return tt_draft_connect_both(draft, node, up, TT_LINK_PCI, tt_speed_pci(width, speed));
}

/* A device is connected after all that lies below it: of equally fast links, those down come first. */
ncclResult_t tt_draft_add_pci(struct tt_draft *draft, int top, int cpu)
{
  const struct tt_xml *xml = draft->xml;
  const int host = draft->nodes[cpu].node.host;
  for (int e = top;;) {
    int node = -1;
    bool into = false;
    if (tt_xml_is(xml, e, "pci")) TT_TRY(add_device(draft, e, host, &node, &into));
    draft->node_of[e] = node;
    if (into && xml->elements[e].first >= 0) {
      e = xml->elements[e].first;
      continue;
    }
    for (;; e = xml->elements[e].parent) { /* leaves e, and its parents while it is their last */
      node = draft->node_of[e];
      if (node >= 0) TT_TRY(connect_up(draft, e, node, draft->node_of[xml->elements[e].parent]));
      if (e == top) return ncclSuccess;
      if (xml->elements[e].next >= 0) break;
    }
    e = xml->elements[e].next;
  }
}
