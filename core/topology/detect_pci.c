/* PCI devices: where they hang, and what their links carry. See detect_internal.h. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topology/detect_internal.h"

enum { MOST_BRIDGES = 24 }; /* one above the other; the uppermost of more are left out */

ncclResult_t tt_detect_set_int(struct tt_xml *xml, int element, const char *name, int64_t value)
{
  char text[32];
  snprintf(text, sizeof(text), "%lld", (long long)value);
  return tt_xml_set(xml, element, name, text);
}

ncclResult_t tt_detect_default(struct tt_xml *xml, int element, const char *name, const char *value)
{
  return tt_xml_get(xml, element, name) ? ncclSuccess : tt_xml_set(xml, element, name, value);
}

ncclResult_t tt_detect_default_int(struct tt_xml *xml, int element, const char *name, int64_t value)
{
  return tt_xml_get(xml, element, name) ? ncclSuccess : tt_detect_set_int(xml, element, name, value);
}

static bool bus_of(const struct tt_xml *xml, int element, char bus[TT_DETECT_BUS])
{
  const char *text = tt_xml_get(xml, element, "busid");
  return text && tt_xml_is(xml, element, "pci") && tt_detect_bus(text, bus);
}

/* The <pci> of a bus id, wherever it is; -1: none. */
static int find(const struct tt_xml *xml, const char *bus)
{
  char other[TT_DETECT_BUS];
  for (int e = 0; e < xml->count; e++)
    if (bus_of(xml, e, other) && strcmp(other, bus) == 0) return e;
  return -1;
}

/* Below a parent, in the order of bus ids: searches try devices as they come. */
static ncclResult_t insert(struct tt_xml *xml, int parent, const char *bus, int *element)
{
  char other[TT_DETECT_BUS];
  int before = xml->elements[parent].first;
  while (before >= 0 && (!bus_of(xml, before, other) || strcmp(other, bus) < 0)) before = xml->elements[before].next;
  TT_TRY(tt_xml_insert(xml, parent, before, "pci", element));
  return tt_xml_set(xml, *element, "busid", bus);
}

/* The device at the end of a path and the bridges above it, upwards. They are the last parts of the path that are bus
 * ids; above them is a root complex, and sometimes (VMD) another device, which is none of their bridges. */
static int read_chain(const char *directory, char chain[MOST_BRIDGES][TT_DETECT_BUS], char **top)
{
  int length = 0;
  char *path = strdup(directory);
  *top = NULL;
  while (path && length < MOST_BRIDGES && tt_detect_bus(tt_detect_last(path), chain[length])) {
    free(*top);
    *top = strdup(path);
    length++;
    char *slash = strrchr(path, '/');
    if (!slash) break;
    *slash = 0;
  }
  free(path);
  return length;
}

ncclResult_t tt_detect_pci(struct tt_detection *d, const char *bus, const char *directory, int numa, int *element)
{
  char chain[MOST_BRIDGES][TT_DETECT_BUS], *top = NULL;
  int length = directory ? read_chain(directory, chain, &top) : 0, have = 0, at = -1;
  if (length == 0) {
    snprintf(chain[0], TT_DETECT_BUS, "%s", bus);
    length = 1;
    if (find(d->xml, bus) < 0) tt_detect_miss(d, "PCI device %s", bus);
  }
  while (have < length && (at = find(d->xml, chain[have])) < 0) have++;
  ncclResult_t result = ncclSuccess;
  if (at < 0) {
    int node = -1;
    if (!top || !tt_detect_read_int(top, "numa_node", 0, 1 << 20, &node))
      if (!directory || !tt_detect_read_int(directory, "numa_node", 0, 1 << 20, &node)) node = numa;
    TT_TRY_GOTO(tt_detect_cpu_element(d, node, &at), result, out);
  }
  while (have-- > 0) TT_TRY_GOTO(insert(d->xml, at, chain[have], &at), result, out);
  *element = at;
out:
  free(top);
  return result;
}

/* Gigatransfers a second of "16.0 GT/s PCIe"; 0: unknown. */
static double rate_of(const char *text)
{
  const char *unit;
  double rate = tt_text_leading(text, &unit);
  while (*unit == ' ') unit++;
  return strncmp(unit, "GT/s", 4) == 0 && rate > 0 && rate < 1e6 ? rate : 0;
}

/* The slower of a device and of the port above it, of which either may be unknown. */
static ncclResult_t fill_speed(struct tt_xml *xml, int element, const char *directory)
{
  char own[TT_DETECT_VALUE] = "", port[TT_DETECT_VALUE] = "";
  if (tt_xml_get(xml, element, "link_speed")) return ncclSuccess;
  if (directory) {
    tt_detect_read(directory, "max_link_speed", own, sizeof(own));
    tt_detect_read(directory, "../max_link_speed", port, sizeof(port));
  }
  double rate = rate_of(own), above = rate_of(port);
  const char *known = rate > 0 && (above == 0 || rate <= above) ? own : above > 0 ? port : "";
  return tt_xml_set(xml, element, "link_speed", known);
}

static ncclResult_t fill_width(struct tt_xml *xml, int element, const char *directory)
{
  int own = 0, port = 0; /* unknown: nothing, 0, or all ones of 8 bits */
  if (tt_xml_get(xml, element, "link_width")) return ncclSuccess;
  if (directory) {
    tt_detect_read_int(directory, "max_link_width", 1, 254, &own);
    tt_detect_read_int(directory, "../max_link_width", 1, 254, &port);
  }
  return tt_detect_set_int(xml, element, "link_width", own == 0 || port == 0 ? TT_MAX(own, port) : TT_MIN(own, port));
}

static ncclResult_t fill_text(struct tt_xml *xml, int element, const char *directory, const char *name)
{
  char text[TT_DETECT_VALUE];
  if (tt_xml_get(xml, element, name) || !directory || !tt_detect_read(directory, name, text, sizeof(text)))
    return ncclSuccess;
  return tt_xml_set(xml, element, name, text);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
  return strcmp((*a)->d_name, (*b)->d_name);
}

static bool has_link(const struct tt_xml *xml, int element, const char *target)
{
  for (int e = tt_xml_child(xml, xml->elements[element].first, "pcilink"); e >= 0;
       e = tt_xml_child(xml, xml->elements[e].next, "pcilink")) {
    const char *other = tt_xml_get(xml, e, "target");
    if (other && strcmp(other, target) == 0) return true;
  }
  return false;
}

/* Links between Broadcom's switches, which their driver lists by bus id. */
static ncclResult_t add_switch_links(struct tt_detection *d, int element, const char *bus)
{
  ncclResult_t result = ncclSuccess;
  const char *vendor = tt_xml_get(d->xml, element, "vendor");
  char *path;
  struct dirent **entries = NULL;
  if (!vendor || strcmp(vendor, "0x1000") != 0) return ncclSuccess;
  if (asprintf(&path, "%s/kernel/pci_switch_link/virtual_switch_links/%s", d->sysfs, bus) < 0) return ncclSuccess;
  int count = scandir(path, &entries, NULL, compare_names), link;
  for (int i = 0; i < count; i++) {
    char target[TT_DETECT_BUS];
    if (result != ncclSuccess || !tt_detect_bus(entries[i]->d_name, target) || has_link(d->xml, element, target))
      continue;
    result = tt_xml_add(d->xml, element, "pcilink", &link);
    if (result == ncclSuccess) result = tt_xml_set(d->xml, link, "target", target);
  }
  for (int i = 0; i < count; i++) free(entries[i]);
  free(entries);
  free(path);
  return result;
}

static ncclResult_t fill(struct tt_detection *d, int element, const char *class)
{
  static const char *const ids[] = {"vendor", "device", "subsystem_vendor", "subsystem_device"};
  ncclResult_t result;
  char bus[TT_DETECT_BUS];
  bool is_bus = bus_of(d->xml, element, bus);
  char *directory = is_bus ? tt_detect_directory(d, bus) : NULL;
  TT_TRY_GOTO(fill_text(d->xml, element, directory, "class"), result, out);
  TT_TRY_GOTO(tt_detect_default(d->xml, element, "class", class), result, out);
  for (size_t i = 0; i < TT_COUNT(ids); i++) TT_TRY_GOTO(fill_text(d->xml, element, directory, ids[i]), result, out);
  TT_TRY_GOTO(fill_speed(d->xml, element, directory), result, out);
  TT_TRY_GOTO(fill_width(d->xml, element, directory), result, out);
  if (is_bus) TT_TRY_GOTO(add_switch_links(d, element, bus), result, out);
out:
  free(directory);
  return result;
}

ncclResult_t tt_detect_fill_pci(struct tt_detection *d, int element, const char *class)
{
  for (; element >= 0 && tt_xml_is(d->xml, element, "pci"); element = d->xml->elements[element].parent) {
    TT_TRY(fill(d, element, class));
    class = "0x060400"; /* what others hang off is a bridge */
  }
  return ncclSuccess;
}
