/* Puts a fused network device into the tree, in place of those that work for it. See merge.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/detect_internal.h"
#include "topology/fuse_key.h"
#include "topology/merge_internal.h"
#include "topology/tree.h"

int tt_merge_find(const struct tt_xml *xml, int dev)
{
  for (int e = 0; e < xml->count; e++) {
    int64_t its;
    const char *text = tt_xml_is(xml, e, "net") ? tt_xml_get(xml, e, "dev") : NULL;
    if (text && tt_text_int(text, &its) && its == dev) return e;
  }
  return -1;
}

int tt_merge_card(const struct tt_xml *xml, int net)
{
  int nic = xml->elements[net].parent;
  return xml->elements[nic].parent;
}

static int depth_of(const struct tt_xml *xml, int element)
{
  int depth = 0;
  while ((element = xml->elements[element].parent) >= 0) depth++;
  return depth;
}

int tt_merge_common(const struct tt_xml *xml, const int *nets, int count)
{
  int common = nets[0];
  for (int i = 1; i < count; i++) {
    int other = nets[i];
    while (common != other) {
      if (depth_of(xml, common) >= depth_of(xml, other))
        common = xml->elements[common].parent;
      else
        other = xml->elements[other].parent;
    }
  }
  return common;
}

bool tt_merge_same_card(const struct tt_xml *xml, int a, int b)
{
  uint64_t x = tt_fuse_bus(xml, a, "busid"), y = tt_fuse_bus(xml, b, "busid");
  return tt_xml_is(xml, a, "pci") && tt_xml_is(xml, b, "pci") && x != ~(uint64_t)0 && x >> 4 == y >> 4;
}

static int width_of(const struct tt_xml *xml, int pci)
{
  int64_t width;
  const char *text = tt_xml_get(xml, pci, "link_width");
  return text && tt_text_int(text, &width) && width > 0 && width <= 1024 ? (int)width : 16; /* as the model assumes */
}

/* Lanes by which the group reaches `common`: those of its cards together, on each bridge at most as many as that has.
 * Functions of one card share its lanes. */
static ncclResult_t sum_widths(const struct tt_xml *xml, const int *nets, int count, int common, int *width)
{
  int *lanes;
  TT_TRY(TT_CALLOC(&lanes, (size_t)xml->count));
  for (int i = 0; i < count; i++) {
    int card = tt_merge_card(xml, nets[i]), before = 0;
    while (before < i && card != tt_merge_card(xml, nets[before]) &&
           !tt_merge_same_card(xml, card, tt_merge_card(xml, nets[before])))
      before++;
    if (before == i && tt_xml_is(xml, card, "pci")) lanes[card] = width_of(xml, card);
  }
  for (int e = xml->count - 1; e > common; e--) { /* children come after their parents */
    if (lanes[e] == 0) continue;
    lanes[e] = TT_MIN(lanes[e], width_of(xml, e));
    lanes[xml->elements[e].parent] += lanes[e];
  }
  *width = TT_MIN(lanes[common], 1024);
  free(lanes);
  return ncclSuccess;
}

static bool is_used(const struct tt_xml *xml, uint64_t card)
{
  for (int e = 0; e < xml->count; e++)
    if (tt_xml_is(xml, e, "pci") && tt_fuse_bus(xml, e, "busid") >> 4 == card) return true;
  return false;
}

/* A <pci> like the first card's, with a bus id that no card has. */
static ncclResult_t add_card(struct tt_xml *xml, int like, int common, int width, int *pci)
{
  uint64_t card = tt_fuse_bus(xml, like, "busid") >> 4;
  char bus[TT_DETECT_BUS];
  do card++;
  while (is_used(xml, card));
  snprintf(bus, sizeof(bus), "%04" PRIx64 ":%02x:%02x.0", card >> 16, (unsigned)(card >> 8 & 0xff),
           (unsigned)(card & 0xff));
  TT_TRY(tt_xml_add(xml, common, "pci", pci));
  TT_TRY(tt_xml_set(xml, *pci, "busid", bus));
  for (int a = xml->elements[like].attributes; a >= 0; a = xml->attributes[a].next) {
    const struct tt_xml_attribute attribute = xml->attributes[a];
    if (strcmp(attribute.name, "busid") != 0) TT_TRY(tt_xml_set(xml, *pci, attribute.name, attribute.value));
  }
  return tt_detect_set_int(xml, *pci, "link_width", width);
}

static ncclResult_t describe(struct tt_xml *xml, int element, const struct tt_detect_net *net)
{
  char text[32];
  TT_TRY(tt_xml_set(xml, element, "name", net->name));
  TT_TRY(tt_detect_set_int(xml, element, "dev", net->dev));
  TT_TRY(tt_xml_set(xml, element, "latency", tt_detect_latency(net, text, sizeof(text))));
  TT_TRY(tt_detect_set_int(xml, element, "speed", net->speed));
  TT_TRY(tt_detect_set_int(xml, element, "port", net->port));
  if (net->rail >= 0) TT_TRY(tt_detect_set_int(xml, element, "rail", net->rail));
  if (net->plane >= 0) TT_TRY(tt_detect_set_int(xml, element, "plane", net->plane));
  snprintf(text, sizeof(text), "0x%" PRIx64, net->guid);
  TT_TRY(tt_xml_set(xml, element, "guid", text));
  if (net->maxconn > 0) TT_TRY(tt_detect_set_int(xml, element, "maxconn", net->maxconn));
  TT_TRY(tt_detect_set_int(xml, element, "gdr", net->gdr));
  if (net->collnet) TT_TRY(tt_xml_set(xml, element, "coll", "1"));
  return tt_xml_set(xml, element, "net", "1");
}

/* The new <net>: in a card of its own below `common`, or in the one that all of the group are in. */
static ncclResult_t add_merged(struct tt_xml *xml, const int *nets, int count, const struct tt_detect_net *merged)
{
  int common = tt_merge_common(xml, nets, count), card = tt_merge_card(xml, nets[0]), nic = common, width, element;
  if (tt_xml_is(xml, common, "net")) nic = xml->elements[common].parent;
  if (tt_xml_is(xml, common, "system"))
    return TT_FAIL(
        ncclInvalidUsage,
        "network devices of different NUMA nodes (%.64s among them) cannot be fused: set NCCL_NET_MERGE_LEVEL "
        "to PHB or nearer, or name others in NCCL_NET_FORCE_MERGE",
        merged->name);
  if (!tt_xml_is(xml, nic, "nic")) {
    TT_TRY(sum_widths(xml, nets, count, common, &width));
    if (tt_xml_is(xml, card, "pci")) TT_TRY(add_card(xml, card, common, width, &card));
    TT_TRY(tt_xml_add(xml, card, "nic", &nic));
  }
  TT_TRY(tt_xml_add(xml, nic, "net", &element));
  return describe(xml, element, merged);
}

static bool contains(const int *elements, int count, int element)
{
  while (count > 0 && elements[count - 1] != element) count--;
  return count > 0;
}

ncclResult_t tt_merge_apply(const struct tt_xml *xml, const struct tt_merge_group *group,
                            const struct tt_detect_net *merged, struct tt_xml **out)
{
  ncclResult_t result;
  struct tt_xml *copy = NULL;
  bool *all;
  int nets[TT_MERGE_MOST];
  *out = NULL;
  TT_TRY(TT_CALLOC(&all, (size_t)xml->count));
  memset(all, 1, (size_t)xml->count);
  TT_TRY_GOTO(tt_tree_copy(xml, all, NULL, &copy), result, out);
  for (int i = 0; i < group->count; i++) {
    nets[i] = tt_merge_find(copy, group->devs[i]);
    if (nets[i] >= 0) continue;
    result = TT_FAIL(ncclInternalError, "the machine has no network device %d that could be fused", group->devs[i]);
    goto out;
  }
  TT_TRY_GOTO(add_merged(copy, nets, group->count, merged), result, out);
  for (int e = 0; e < copy->count; e++) {
    bool stays = tt_xml_is(copy, e, "gpu") || (tt_xml_is(copy, e, "net") && !contains(nets, group->count, e));
    if (stays) TT_TRY_GOTO(tt_xml_set(copy, e, "keep", "1"), result, out);
  }
  TT_TRY_GOTO(tt_detect_trim(copy, out), result, out);
out:
  tt_xml_free(copy);
  free(all);
  return result;
}
