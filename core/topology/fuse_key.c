/* See fuse_key.h. */
#include "topology/fuse_key.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "base/text.h"

/* Elements in the order in which they stand below a parent, and what makes one of them the same as another. Those that
 * are not here are the same if all their attributes are. */
static const struct kind {
  const char *name;
  const char *keys[3];
} kinds[] = {{"system", {NULL}},
             {"cpu", {"host_hash", "numaid", NULL}},
             {"pci", {"busid", NULL}},
             {"pcilink", {"target", NULL}},
             {"gpu", {"rank", "dev", NULL}},
             {"nic", {NULL}},
             {"net", {"dev", "name", NULL}}};

static int kind_of(const char *name)
{
  size_t i = 0;
  while (i < TT_COUNT(kinds) && strcmp(kinds[i].name, name) != 0) i++;
  return (int)i;
}

uint64_t tt_fuse_bus(const struct tt_xml *xml, int element, const char *attribute)
{
  const char *text = tt_xml_get(xml, element, attribute);
  uint64_t id = 0;
  int digits = 0;
  for (const char *c = text ? text : "x"; *c; c++) {
    if (*c == ':' || *c == '.') continue;
    if (!isxdigit((unsigned char)*c) || ++digits > 15) return ~(uint64_t)0;
    id = id << 4 | (uint64_t)(isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10);
  }
  return digits > 0 ? id : ~(uint64_t)0;
}

static bool is_bus(const char *name)
{
  return strcmp(name, "busid") == 0 || strcmp(name, "target") == 0;
}

/* Numbers by value, bus ids likewise, all else as text; what is absent comes first. */
static int compare_values(const char *name, const char *a, const char *b)
{
  int64_t x, y;
  if (!a || !b) return (a != NULL) - (b != NULL);
  if (is_bus(name)) return strcasecmp(a, b);
  if (strcmp(name, "host_hash") == 0) {
    uint64_t m = strtoull(a, NULL, 16), n = strtoull(b, NULL, 16);
    return (m > n) - (m < n);
  }
  if (tt_text_int(a, &x) && tt_text_int(b, &y)) return (x > y) - (x < y);
  return strcmp(a, b);
}

static int compare_all(const struct tt_xml *a_xml, int a, const struct tt_xml *b_xml, int b)
{
  for (int i = a_xml->elements[a].attributes; i >= 0; i = a_xml->attributes[i].next) {
    const struct tt_xml_attribute *attribute = &a_xml->attributes[i];
    int order = compare_values(attribute->name, attribute->value, tt_xml_get(b_xml, b, attribute->name));
    if (order != 0) return order;
  }
  for (int i = b_xml->elements[b].attributes; i >= 0; i = b_xml->attributes[i].next)
    if (!tt_xml_get(a_xml, a, b_xml->attributes[i].name)) return -1;
  return 0;
}

int tt_fuse_compare(const struct tt_xml *a_xml, int a, const struct tt_xml *b_xml, int b)
{
  const char *a_name = a_xml->elements[a].name, *b_name = b_xml->elements[b].name;
  const int kind = kind_of(a_name), other = kind_of(b_name);
  if (kind != other) return kind - other;
  if (kind == (int)TT_COUNT(kinds)) {
    int order = strcmp(a_name, b_name);
    return order != 0 ? order : compare_all(a_xml, a, b_xml, b);
  }
  for (const char *const *key = kinds[kind].keys; *key; key++) {
    const char *x = tt_xml_get(a_xml, a, *key), *y = tt_xml_get(b_xml, b, *key);
    int order = compare_values(*key, x, y);
    if (is_bus(*key)) {
      uint64_t m = tt_fuse_bus(a_xml, a, *key), n = tt_fuse_bus(b_xml, b, *key);
      if (m != ~(uint64_t)0 || n != ~(uint64_t)0) order = (m > n) - (m < n);
    }
    if (order != 0) return order;
  }
  return 0;
}

static bool is_known(const char *value)
{
  return value[0] && strcmp(value, "0") != 0 && strncasecmp(value, "unknown", 7) != 0;
}

ncclResult_t tt_fuse_value(struct tt_xml *into, int element, const char *name, const char *value, bool *differs)
{
  const char *old = tt_xml_get(into, element, name);
  const char *end;
  *differs = false;
  if (!old) return tt_xml_set(into, element, name, value);
  if (strcmp(old, value) == 0) return ncclSuccess;
  *differs = is_known(old) && is_known(value);
  double x = tt_text_leading(old, &end), y = end == old ? 0 : tt_text_leading(value, &end);
  int order = x != y ? (y > x) - (y < x) : strcmp(value, old);
  if (strcmp(name, "gdr") == 0) order = -order;
  return order > 0 ? tt_xml_set(into, element, name, value) : ncclSuccess;
}
