/* Links of which only one end speaks, once all ranks are fused. See fuse.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/fuse.h"
#include "topology/fuse_key.h"
#include "topology/tree.h"

/* A link's end: the <pci> that lists it. -1: it lies elsewhere. */
static int owner(const struct tt_xml *xml, int link)
{
  int up = xml->elements[link].parent;
  if (up >= 0 && tt_xml_is(xml, link, "nvlink") && tt_xml_is(xml, up, "gpu")) up = xml->elements[up].parent;
  return up >= 0 && tt_xml_is(xml, up, "pci") ? up : -1;
}

static const char *host_of(const struct tt_xml *xml, int element)
{
  while (element >= 0 && !tt_xml_is(xml, element, "cpu")) element = xml->elements[element].parent;
  const char *hash = element < 0 ? NULL : tt_xml_get(xml, element, "host_hash");
  return hash ? hash : "";
}

/* Only links between devices of the same kind have an end that could list them back. */
static bool is_mutual(const struct tt_xml *xml, int element)
{
  const char *class = tt_xml_get(xml, element, "tclass");
  return tt_xml_is(xml, element, "pcilink") ||
         (tt_xml_is(xml, element, "nvlink") && class && strncmp(class, "0x03", 4) == 0);
}

/* The <pci> at the other end; -1: it is no part of this job. */
static int target_of(const struct tt_xml *xml, int link, int from)
{
  const uint64_t bus = tt_fuse_bus(xml, link, "target");
  for (int e = 0; e < xml->count && bus != ~(uint64_t)0; e++)
    if (tt_xml_is(xml, e, "pci") && tt_fuse_bus(xml, e, "busid") == bus &&
        strcmp(host_of(xml, e), host_of(xml, from)) == 0)
      return e;
  return -1;
}

static bool lists(const struct tt_xml *xml, const char *kind, int from, int to)
{
  const uint64_t bus = tt_fuse_bus(xml, to, "busid");
  for (int e = 0; e < xml->count; e++)
    if (tt_xml_is(xml, e, kind) && owner(xml, e) == from && tt_fuse_bus(xml, e, "target") == bus) return true;
  return false;
}

/* Whether the model would take a link in one direction only. */
static bool is_one_way(const struct tt_xml *xml, int link)
{
  const int from = is_mutual(xml, link) ? owner(xml, link) : -1;
  const int to = from < 0 ? -1 : target_of(xml, link, from);
  const bool gpu = tt_xml_is(xml, link, "nvlink");
  if (to < 0 || (gpu && tt_xml_child(xml, xml->elements[to].first, "gpu") < 0)) return false;
  return to == from || !lists(xml, gpu ? "nvlink" : "pcilink", to, from);
}

ncclResult_t tt_topology_settle(const struct tt_xml *xml, struct tt_xml **settled)
{
  ncclResult_t result;
  bool *kept;
  *settled = NULL;
  TT_TRY(TT_CALLOC(&kept, (size_t)xml->count + 1));
  for (int e = 0; e < xml->count; e++) {
    int parent = xml->elements[e].parent;
    bool one_way = is_one_way(xml, e);
    kept[e] = (parent < 0 || kept[parent]) && !one_way;
    if (!one_way) continue;
    const char *from = tt_xml_get(xml, owner(xml, e), "busid"), *to = tt_xml_get(xml, e, "target");
    const char *count = tt_xml_get(xml, e, "count");
    TT_WARN("%s %.32s has %.8s links to %.32s, which has none back: they are not used. Look at the drivers of both, "
            "and at the file in NCCL_TOPO_FILE if there is one%s",
            tt_xml_is(xml, e, "nvlink") ? "GPU" : "the PCI switch", from ? from : "without a busid", count ? count : "",
            to ? to : "an unnamed device", tt_xml_is(xml, e, "nvlink") ? ", and at nvidia-smi nvlink --status" : "");
  }
  result = tt_tree_copy(xml, kept, NULL, settled);
  free(kept);
  return result;
}
