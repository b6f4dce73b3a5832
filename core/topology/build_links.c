/* Links that do not follow the PCI tree, and switches that are one though they show as several. See draft.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/draft.h"

static ncclResult_t add_nvlink(struct tt_draft *draft, int element, int dev, int cpu)
{
  const struct tt_xml *xml = draft->xml;
  const struct tt_node from = draft->nodes[dev].node;
  const char *class;
  int count, to = -1;
  TT_TRY(tt_xml_need_int(xml, element, "count", 1, 1024, &count));
  TT_TRY(tt_xml_need(xml, element, "tclass", &class));
  const float bandwidth = (float)count * tt_speed_nvlink(from.gpu.sm);
  if (strncmp(class, "0x03", 4) == 0) {
    /* Each GPU lists its own direction. One that lists a GPU which is no part of this job says nothing. */
    uint64_t target;
    TT_TRY(tt_draft_bus_id(xml, element, "target", &target));
    to = tt_draft_find(draft, TT_NODE_DEV, from.host, target);
    return to < 0 ? ncclSuccess : tt_draft_connect(draft, dev, to, TT_LINK_NVL, bandwidth);
  }
  if (strncmp(class, "0x068001", 8) == 0) return tt_draft_connect_both(draft, dev, cpu, TT_LINK_NVL, bandwidth);
  char where[512];
  if (strncmp(class, "0x068000", 8) != 0)
    return TT_FAIL(ncclInvalidUsage,
                   "%s: tclass is \"%.64s\"; it must be 0x03.... (a GPU), 0x068000 (an NVSwitch) or 0x068001 (a CPU)",
                   tt_xml_where(xml, element, where, sizeof(where)), class);
  to = tt_draft_find(draft, TT_NODE_NVS, 0, 0);
  if (to < 0) TT_TRY(tt_draft_add(draft, TT_NODE_NVS, 0, 0, element, &to));
  return tt_draft_connect_both(draft, dev, to, TT_LINK_NVL, bandwidth);
}

static ncclResult_t add_c2c(struct tt_draft *draft, int element, int dev, int cpu)
{
  int megabytes, count;
  TT_TRY(tt_xml_need_int(draft->xml, element, "bw", 1, 1 << 30, &megabytes));
  TT_TRY(tt_xml_need_int(draft->xml, element, "count", 1, 1024, &count));
  return tt_draft_connect_both(draft, dev, cpu, TT_LINK_C2C, (float)megabytes * (float)count / 1000.0f);
}

static ncclResult_t add_switch_link(struct tt_draft *draft, int element, int from)
{
  uint64_t target;
  TT_TRY(tt_draft_bus_id(draft->xml, element, "target", &target));
  int to = tt_draft_find(draft, TT_NODE_PCI, draft->nodes[from].node.host, target);
  return to < 0 ? ncclSuccess : tt_draft_connect(draft, from, to, TT_LINK_LOC, TT_LOCAL_BANDWIDTH);
}

/* All ranks on a device see its links, and list them again: those of the first that has any count. */
static bool is_first_with(const struct tt_xml *xml, int element, const char *name)
{
  int gpu = xml->elements[element].parent;
  int first = tt_xml_child(xml, xml->elements[xml->elements[gpu].parent].first, "gpu");
  while (first != gpu && tt_xml_child(xml, xml->elements[first].first, name) < 0)
    first = tt_xml_child(xml, xml->elements[first].next, "gpu");
  return first == gpu;
}

typedef ncclResult_t adder(struct tt_draft *draft, int element, int dev, int cpu);

static ncclResult_t add_gpu_links(struct tt_draft *draft, const char *name, adder *add)
{
  const struct tt_xml *xml = draft->xml;
  for (int e = 0; e < xml->count; e++) {
    int gpu = xml->elements[e].parent, pci = gpu < 0 ? -1 : xml->elements[gpu].parent;
    if (pci < 0 || !tt_xml_is(xml, e, name) || !tt_xml_is(xml, gpu, "gpu") || draft->node_of[pci] < 0) continue;
    int dev = draft->node_of[pci], cpu = pci;
    if (draft->nodes[dev].node.type != TT_NODE_DEV || !is_first_with(xml, e, name)) continue;
    while (!tt_xml_is(xml, cpu, "cpu")) cpu = xml->elements[cpu].parent;
    TT_TRY(add(draft, e, dev, draft->node_of[cpu]));
  }
  return ncclSuccess;
}

ncclResult_t tt_draft_add_links(struct tt_draft *draft)
{
  const struct tt_xml *xml = draft->xml;
  TT_TRY(add_gpu_links(draft, "nvlink", add_nvlink));
  TT_TRY(add_gpu_links(draft, "c2c", add_c2c));
  for (int e = 1; e < xml->count; e++) {
    int above = draft->node_of[xml->elements[e].parent];
    if (above >= 0 && tt_xml_is(xml, e, "pcilink") && draft->nodes[above].node.type == TT_NODE_PCI)
      TT_TRY(add_switch_link(draft, e, above));
  }
  return ncclSuccess;
}

/* Every CPU of a host reaches every other, at the speed of the first. */
ncclResult_t tt_draft_mesh_cpus(struct tt_draft *draft)
{
  float bandwidth = -1;
  for (int a = 0; a < draft->count; a++) {
    const struct tt_node from = draft->nodes[a].node;
    if (from.type != TT_NODE_CPU) continue;
    if (bandwidth < 0) bandwidth = tt_speed_between_cpus(&from);
    for (int b = 0; b < draft->count; b++) {
      const struct tt_node *to = &draft->nodes[b].node;
      if (a != b && to->type == TT_NODE_CPU && to->host == from.host)
        TT_TRY(tt_draft_connect(draft, a, b, TT_LINK_SYS, bandwidth));
    }
  }
  return ncclSuccess;
}

/* Generation of a Broadcom switch that can show as several, one below the other, and has the speed of one; 0: it is
 * something else. The fifth generation tells its levels apart. */
static int split_switch(uint64_t device, int level)
{
  device &= ~(uint64_t)0xfff;
  if (device == 0x1000c0101000a000) return 4;
  return device == (0x1000c03010000000 | (uint64_t)level << 12) ? 5 : 0;
}

/* What hung off `sub` hangs off `top`. */
static ncclResult_t absorb(struct tt_draft *draft, int top, int sub)
{
  if (draft->nodes[sub].gone) return ncclSuccess; /* it has several links to the top */
  for (int i = 0; i < draft->nodes[sub].nlinks; i++) {
    struct tt_draft_link link = draft->nodes[sub].links[i];
    if (link.to == top) continue;
    struct tt_draft_node *below = &draft->nodes[link.to];
    for (int k = 0; k < below->nlinks; k++)
      if (below->links[k].to == sub) below->links[k].to = top;
    if (below->up == sub) below->up = top;
    TT_TRY(tt_draft_append(draft, top, link));
  }
  draft->nodes[sub].gone = true;
  return ncclSuccess;
}

/* Parts of one switch may also be linked to each other. */
static void drop_links_inside(struct tt_draft *draft, struct tt_draft_node *top)
{
  int kept = 0;
  for (int i = 0; i < top->nlinks; i++)
    if (!draft->nodes[top->links[i].to].gone) top->links[kept++] = top->links[i];
  top->nlinks = kept;
}

ncclResult_t tt_draft_join_switches(struct tt_draft *draft)
{
  for (int top = 0; top < draft->count; top++) {
    struct tt_draft_node *n = &draft->nodes[top];
    int generation = n->node.type == TT_NODE_PCI && !n->gone ? split_switch(n->node.pci.device, 0) : 0;
    if (generation == 0) continue;
    int nsubs = 0, subs[TT_TOPOLOGY_MOST_LINKS];
    for (int i = 0; i < n->nlinks;) {
      const struct tt_draft_node *sub = &draft->nodes[n->links[i].to];
      if (sub->up == top && sub->node.type == TT_NODE_PCI && split_switch(sub->node.pci.device, 1) == generation) {
        subs[nsubs++] = n->links[i].to;
        memmove(&n->links[i], &n->links[i + 1], (size_t)(--n->nlinks - i) * sizeof(*n->links));
      } else {
        i++;
      }
    }
    for (int i = 0; i < nsubs; i++) TT_TRY(absorb(draft, top, subs[i]));
    drop_links_inside(draft, n);
  }
  return ncclSuccess;
}
