/* The tree itself: elements, attributes, strings. See xml.h. */
#include "topology/xml.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"

/* Strings lie in blocks, which never move. */
struct tt_xml_text {
  struct tt_xml_text *next;
  size_t used, room;
  char bytes[];
};

static ncclResult_t keep(struct tt_xml *xml, const char *text, const char **kept)
{
  size_t bytes = strlen(text) + 1;
  struct tt_xml_text *block = xml->texts;
  if (!block || block->room - block->used < bytes) {
    size_t room = TT_MAX(bytes, (size_t)16 << 10);
    block = malloc(sizeof(*block) + room);
    if (!block) return TT_FAIL(ncclSystemError, "no memory for %zu bytes of %s", room, xml->source);
    *block = (struct tt_xml_text){.next = xml->texts, .room = room};
    xml->texts = block;
  }
  *kept = memcpy(block->bytes + block->used, text, bytes);
  block->used += bytes;
  return ncclSuccess;
}

ncclResult_t tt_xml_create(const char *source, struct tt_xml **xml)
{
  ncclResult_t result;
  TT_TRY(TT_CALLOC(xml, 1));
  (*xml)->source = "topology";
  TT_TRY_GOTO(keep(*xml, source, &(*xml)->source), result, out);
out:
  if (result != ncclSuccess) {
    tt_xml_free(*xml);
    *xml = NULL;
  }
  return result;
}

void tt_xml_free(struct tt_xml *xml)
{
  if (!xml) return;
  while (xml->texts) {
    struct tt_xml_text *next = xml->texts->next;
    free(xml->texts);
    xml->texts = next;
  }
  free(xml->elements);
  free(xml->attributes);
  free(xml);
}

/* Makes room for one more in an array that doubles. */
static ncclResult_t grow(void **array, int count, int *room, size_t size)
{
  if (count < *room) return ncclSuccess;
  int more = *room ? *room * 2 : 64;
  void *larger = realloc(*array, (size_t)more * size);
  if (!larger) return TT_FAIL(ncclSystemError, "no memory for %d elements of a topology", more);
  *array = larger;
  *room = more;
  return ncclSuccess;
}

/* Makes `e` a child of `parent`, in front of its child `before`; -1: behind all. */
static void hang(struct tt_xml *xml, int e, int parent, int before)
{
  struct tt_xml_element *above = &xml->elements[parent];
  int previous = before < 0 ? above->last : -1;
  if (before >= 0)
    for (int c = above->first; c != before; c = xml->elements[c].next) previous = c;
  xml->elements[e].next = before;
  if (previous >= 0)
    xml->elements[previous].next = e;
  else
    above->first = e;
  if (before < 0) above->last = e;
}

ncclResult_t tt_xml_add(struct tt_xml *xml, int parent, const char *name, int *element)
{
  return tt_xml_insert(xml, parent, -1, name, element);
}

ncclResult_t tt_xml_insert(struct tt_xml *xml, int parent, int before, const char *name, int *element)
{
  if (xml->count == TT_XML_MOST_ELEMENTS)
    return TT_FAIL(ncclInvalidUsage, "%s has more than %d elements; a file that large cannot be right", xml->source,
                   TT_XML_MOST_ELEMENTS);
  TT_TRY(grow((void **)&xml->elements, xml->count, &xml->room, sizeof(*xml->elements)));
  const char *kept;
  TT_TRY(keep(xml, name, &kept));
  int e = *element = xml->count++;
  xml->elements[e] = (struct tt_xml_element){
      .name = kept, .parent = parent, .first = -1, .last = -1, .next = -1, .attributes = -1, .last_attribute = -1};
  if (parent >= 0) hang(xml, e, parent, before);
  return ncclSuccess;
}

ncclResult_t tt_xml_set(struct tt_xml *xml, int element, const char *name, const char *value)
{
  struct tt_xml_element *e = &xml->elements[element];
  for (int a = e->attributes; a >= 0; a = xml->attributes[a].next)
    if (strcmp(xml->attributes[a].name, name) == 0) return keep(xml, value, &xml->attributes[a].value);
  TT_TRY(grow((void **)&xml->attributes, xml->nattributes, &xml->attribute_room, sizeof(*xml->attributes)));
  struct tt_xml_attribute attribute = {.next = -1};
  TT_TRY(keep(xml, name, &attribute.name));
  TT_TRY(keep(xml, value, &attribute.value));
  int a = xml->nattributes++;
  xml->attributes[a] = attribute;
  if (e->last_attribute >= 0)
    xml->attributes[e->last_attribute].next = a;
  else
    e->attributes = a;
  e->last_attribute = a;
  return ncclSuccess;
}

const char *tt_xml_get(const struct tt_xml *xml, int element, const char *name)
{
  for (int a = xml->elements[element].attributes; a >= 0; a = xml->attributes[a].next)
    if (strcmp(xml->attributes[a].name, name) == 0) return xml->attributes[a].value;
  return NULL;
}

bool tt_xml_is(const struct tt_xml *xml, int element, const char *name)
{
  return strcmp(xml->elements[element].name, name) == 0;
}

int tt_xml_child(const struct tt_xml *xml, int from, const char *name)
{
  while (from >= 0 && !tt_xml_is(xml, from, name)) from = xml->elements[from].next;
  return from;
}

const char *tt_xml_where(const struct tt_xml *xml, int element, char *text, size_t size)
{
  static const char *const identities[] = {"busid", "numaid", "name", "dev", "target", "id"};
  const struct tt_xml_element *e = &xml->elements[element];
  const char *which = NULL, *value = NULL;
  for (size_t i = 0; i < TT_COUNT(identities) && !value; i++) value = tt_xml_get(xml, element, which = identities[i]);
  if (value)
    snprintf(text, size, "%s:%d: <%.64s %s=\"%.64s\">", xml->source, e->line, e->name, which, value);
  else
    snprintf(text, size, "%s:%d: <%.64s>", xml->source, e->line, e->name);
  return text;
}

ncclResult_t tt_xml_need(const struct tt_xml *xml, int element, const char *name, const char **value)
{
  char where[512];
  *value = tt_xml_get(xml, element, name);
  if (*value) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage, "%s has no attribute %s; add it", tt_xml_where(xml, element, where, sizeof(where)),
                 name);
}

static ncclResult_t number(const struct tt_xml *xml, int element, const char *name, const char *text, int64_t least,
                           int64_t most, int *value)
{
  char where[512];
  int64_t found;
  if (!tt_text_int(text, &found) || found < least || found > most)
    return TT_FAIL(ncclInvalidUsage, "%s: %s is \"%.64s\"; it must be a number from %lld to %lld",
                   tt_xml_where(xml, element, where, sizeof(where)), name, text, (long long)least, (long long)most);
  *value = (int)found;
  return ncclSuccess;
}

ncclResult_t tt_xml_need_int(const struct tt_xml *xml, int element, const char *name, int64_t least, int64_t most,
                             int *value)
{
  const char *text;
  TT_TRY(tt_xml_need(xml, element, name, &text));
  return number(xml, element, name, text, least, most, value);
}

ncclResult_t tt_xml_int(const struct tt_xml *xml, int element, const char *name, int64_t least, int64_t most,
                        int otherwise, int *value)
{
  const char *text = tt_xml_get(xml, element, name);
  *value = otherwise;
  return text ? number(xml, element, name, text, least, most, value) : ncclSuccess;
}
