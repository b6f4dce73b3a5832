/* Of a tree, what ranks use. See detect_internal.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/detect_internal.h"
#include "topology/tree.h"

/* Other elements stay or go with their parents. */
static bool must_earn(const struct tt_xml *xml, int element)
{
  static const char *const names[] = {"cpu", "pci", "nic", "net", "gpu"};
  for (size_t i = 0; i < TT_COUNT(names); i++)
    if (tt_xml_is(xml, element, names[i])) return true;
  return false;
}

ncclResult_t tt_detect_trim(const struct tt_xml *xml, struct tt_xml **trimmed)
{
  ncclResult_t result;
  bool *kept;
  *trimmed = NULL;
  TT_TRY(TT_CALLOC(&kept, (size_t)xml->count));
  for (int e = xml->count - 1; e > 0; e--) { /* children come after their parents */
    const char *keep = tt_xml_get(xml, e, "keep");
    kept[e] |= keep && strcmp(keep, "1") == 0;
    if (kept[e]) kept[xml->elements[e].parent] = true;
  }
  for (int e = 0; e < xml->count; e++) {
    int parent = xml->elements[e].parent;
    kept[e] = parent < 0 || (kept[parent] && (kept[e] || !must_earn(xml, e)));
  }
  result = tt_tree_copy(xml, kept, "keep", trimmed);
  free(kept);
  return result;
}
