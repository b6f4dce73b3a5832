/* Some ranks of a file only: the others' GPUs lose their rank, and so are nobody's. See topo.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/text.h"
#include "topo.h"

enum { MOST_RANKS = 1 << 20 };

/* "4" and "4-7". */
static bool read_range(const char *piece, size_t bytes, int64_t *first, int64_t *last)
{
  char text[32];
  if (bytes == 0 || bytes >= sizeof(text)) return false;
  memcpy(text, piece, bytes);
  text[bytes] = 0;
  char *dash = strchr(text, '-');
  if (dash) *dash = 0;
  if (!tt_text_int(text, first)) return false;
  *last = *first;
  return (!dash || tt_text_int(dash + 1, last)) && *first >= 0 && *last >= *first && *last < MOST_RANKS;
}

static bool is_rank(const struct tt_xml *xml, int64_t rank)
{
  for (int e = 0; e < xml->count; e++) {
    const char *text = tt_xml_is(xml, e, "gpu") ? tt_xml_get(xml, e, "rank") : NULL;
    int64_t its;
    if (text && tt_text_int(text, &its) && its == rank) return true;
  }
  return false;
}

static ncclResult_t read_list(const struct tt_xml *xml, const char *list, bool *chosen)
{
  const char *cursor = list, *piece;
  size_t bytes;
  while (tt_text_next(&cursor, ',', &piece, &bytes)) {
    int64_t first, last;
    if (!read_range(piece, bytes, &first, &last))
      return TT_FAIL(ncclInvalidArgument, "--ranks \"%s\" must list ranks and ranges of them, as in 0,1,4-7", list);
    for (int64_t rank = first; rank <= last; rank++) {
      if (!is_rank(xml, rank))
        return TT_FAIL(ncclInvalidArgument, "--ranks \"%s\": %s has no <gpu> of rank %lld; name ranks that it has",
                       list, xml->source, (long long)rank);
      chosen[rank] = true;
    }
  }
  return ncclSuccess;
}

static ncclResult_t copy_element(const struct tt_xml *from, int e, const bool *chosen, struct tt_xml *to)
{
  int element;
  TT_TRY(tt_xml_add(to, from->elements[e].parent, from->elements[e].name, &element));
  to->elements[element].line = from->elements[e].line;
  for (int a = from->elements[e].attributes; a >= 0; a = from->attributes[a].next) {
    const struct tt_xml_attribute *attribute = &from->attributes[a];
    int64_t rank;
    bool ranks = chosen && tt_xml_is(from, e, "gpu") && strcmp(attribute->name, "rank") == 0;
    bool left_out = ranks && tt_text_int(attribute->value, &rank) && rank >= 0 && rank < MOST_RANKS && !chosen[rank];
    if (!left_out) TT_TRY(tt_xml_set(to, element, attribute->name, attribute->value));
  }
  return ncclSuccess;
}

ncclResult_t topo_select(const struct tt_xml *xml, const char *list, struct tt_xml **out)
{
  bool *chosen = NULL;
  struct tt_xml *copy = NULL;
  ncclResult_t result;
  if (list) {
    TT_TRY_GOTO(TT_CALLOC(&chosen, MOST_RANKS), result, out);
    TT_TRY_GOTO(read_list(xml, list, chosen), result, out);
  }
  TT_TRY_GOTO(tt_xml_create(xml->source, &copy), result, out);
  /* Elements are in the order of the file, so that parents come first and have the same index in the copy. */
  for (int e = 0; e < xml->count; e++) TT_TRY_GOTO(copy_element(xml, e, chosen, copy), result, out);
out:
  free(chosen);
  if (result == ncclSuccess)
    *out = copy;
  else
    tt_xml_free(copy);
  return result;
}

/* MOST_RANKS: there is none. */
static int64_t lowest_rank(const struct tt_xml *xml)
{
  int64_t lowest = MOST_RANKS, its;
  for (int e = 0; e < xml->count; e++) {
    const char *text = tt_xml_is(xml, e, "gpu") ? tt_xml_get(xml, e, "rank") : NULL;
    if (text && tt_text_int(text, &its) && its >= 0) lowest = TT_MIN(lowest, its);
  }
  return lowest;
}

int topo_lowest_rank(const struct tt_xml *xml)
{
  return topo_has_ranks(xml) ? (int)lowest_rank(xml) : 0;
}

bool topo_has_ranks(const struct tt_xml *xml)
{
  return lowest_rank(xml) < MOST_RANKS;
}
