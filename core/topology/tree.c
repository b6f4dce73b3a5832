/* Copies of trees, without recursion. See tree.h. */
#include "topology/tree.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"

int tt_tree_next(const struct tt_xml *xml, int top, int element)
{
  const struct tt_xml_element *elements = xml->elements;
  if (elements[element].first >= 0) return elements[element].first;
  while (element != top && elements[element].next < 0) element = elements[element].parent;
  return element == top ? -1 : elements[element].next;
}

ncclResult_t tt_tree_copy_attributes(const struct tt_xml *from, int element, struct tt_xml *to, int copy,
                                     const char *without)
{
  for (int a = from->elements[element].attributes; a >= 0; a = from->attributes[a].next) {
    const struct tt_xml_attribute *attribute = &from->attributes[a];
    if (!without || strcmp(attribute->name, without) != 0)
      TT_TRY(tt_xml_set(to, copy, attribute->name, attribute->value));
  }
  return ncclSuccess;
}

ncclResult_t tt_tree_copy(const struct tt_xml *xml, const bool *kept, const char *without, struct tt_xml **copy)
{
  ncclResult_t result;
  int *copied = NULL;
  struct tt_xml *made = NULL;
  *copy = NULL;
  TT_TRY_GOTO(TT_CALLOC(&copied, (size_t)xml->count + 1), result, out);
  TT_TRY_GOTO(tt_xml_create(xml->source, &made), result, out);
  for (int e = xml->count > 0 ? 0 : -1; e >= 0; e = tt_tree_next(xml, 0, e)) {
    if (!kept[e]) continue;
    int parent = xml->elements[e].parent;
    TT_TRY_GOTO(tt_xml_add(made, parent < 0 ? -1 : copied[parent], xml->elements[e].name, &copied[e]), result, out);
    made->elements[copied[e]].line = xml->elements[e].line;
    TT_TRY_GOTO(tt_tree_copy_attributes(xml, e, made, copied[e], without), result, out);
  }
out:
  free(copied);
  if (result == ncclSuccess)
    *copy = made;
  else
    tt_xml_free(made);
  return result;
}
