/* Joins trees element by element. See fuse.h. */
#include "topology/fuse.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/fuse_key.h"
#include "topology/tree.h"

/* What becomes of an element of the other tree. */
enum fate { JOINED, COPIED, LEFT_OUT };

struct fusing {
  struct tt_xml *into;
  const struct tt_xml *other;
  int *places; /* by element of the other tree: the element of `into` */
  char *fates;
  int differences;
  char first[256]; /* the first thing of which two ranks see different values */
};

/* The host of an element: the hash of the <cpu> above it, 0 if there is none. */
static uint64_t host_of(const struct tt_xml *xml, int element)
{
  while (element >= 0 && !tt_xml_is(xml, element, "cpu")) element = xml->elements[element].parent;
  const char *hash = element < 0 ? NULL : tt_xml_get(xml, element, "host_hash");
  return hash ? strtoull(hash, NULL, 16) : 0;
}

/* A PCI device is the same wherever a rank sees it: some see the bridges above it, some do not. */
static int find_pci(const struct fusing *f, int element)
{
  const uint64_t bus = tt_fuse_bus(f->other, element, "busid"), host = host_of(f->other, element);
  for (int e = 0; e < f->into->count && bus != ~(uint64_t)0; e++)
    if (tt_xml_is(f->into, e, "pci") && tt_fuse_bus(f->into, e, "busid") == bus && host_of(f->into, e) == host)
      return e;
  return -1;
}

/* The same element among the children of `parent`, or -1 and the one before which it belongs (-1: behind all). */
static int find_child(const struct fusing *f, int parent, int element, int *before)
{
  *before = -1;
  for (int e = f->into->elements[parent].first; e >= 0; e = f->into->elements[e].next) {
    int order = tt_fuse_compare(f->into, e, f->other, element);
    if (order == 0) return e;
    if (order < 0) continue;
    *before = e;
    break;
  }
  return -1;
}

static ncclResult_t join_attributes(struct fusing *f, int place, int element)
{
  const struct tt_xml *other = f->other;
  for (int a = other->elements[element].attributes; a >= 0; a = other->attributes[a].next) {
    const char *name = other->attributes[a].name, *value = other->attributes[a].value;
    bool differs;
    char where[160];
    TT_TRY(tt_fuse_value(f->into, place, name, value, &differs));
    if (differs && f->differences++ == 0)
      snprintf(f->first, sizeof(f->first), "%.32s of %s", name, tt_xml_where(f->into, place, where, sizeof(where)));
  }
  return ncclSuccess;
}

static ncclResult_t add(struct fusing *f, int parent, int before, int element)
{
  int place;
  TT_TRY(tt_xml_insert(f->into, parent, before, f->other->elements[element].name, &place));
  f->places[element] = place;
  return tt_tree_copy_attributes(f->other, element, f->into, place, NULL);
}

/* What is below a <gpu> is that rank's word, in its order: it is taken whole, from the first that has any. */
static enum fate fate_below(const struct fusing *f, int element, bool found)
{
  if (!tt_xml_is(f->other, element, "gpu")) return JOINED;
  return found && f->into->elements[f->places[element]].first >= 0 ? LEFT_OUT : COPIED;
}

static ncclResult_t fuse_element(struct fusing *f, int element)
{
  const int above = f->other->elements[element].parent, parent = above < 0 ? -1 : f->places[above];
  int place = -1, before = -1;
  enum fate fate = above < 0 ? JOINED : (enum fate)f->fates[above];
  f->fates[element] = (char)fate;
  if (fate == LEFT_OUT) return ncclSuccess;
  if (fate == COPIED) return add(f, parent, -1, element);
  if (above < 0 && f->into->count > 0) place = 0;
  if (above >= 0) place = find_child(f, parent, element, &before);
  if (place < 0 && above >= 0 && tt_xml_is(f->other, element, "pci")) place = find_pci(f, element);
  const bool found = place >= 0;
  f->places[element] = place;
  if (found)
    TT_TRY(join_attributes(f, place, element));
  else
    TT_TRY(add(f, parent, before, element));
  f->fates[element] = (char)fate_below(f, element, found);
  return ncclSuccess;
}

ncclResult_t tt_topology_fuse(struct tt_xml *into, const struct tt_xml *other)
{
  ncclResult_t result;
  struct fusing f = {.into = into, .other = other};
  TT_TRY_GOTO(TT_CALLOC(&f.places, (size_t)other->count + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&f.fates, (size_t)other->count + 1), result, out);
  for (int e = other->count > 0 ? 0 : -1; e >= 0; e = tt_tree_next(other, 0, e))
    TT_TRY_GOTO(fuse_element(&f, e), result, out);
  if (f.differences > 0)
    TT_INFO(TT_GRAPH | TT_INIT, "topology: ranks see %d values differently, the first is %s; the larger ones are taken",
            f.differences, f.first);
out:
  free(f.places);
  free(f.fates);
  return result;
}
