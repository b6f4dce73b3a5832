/* The ranges of addresses that CUDA knows, in their order. */
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

static struct emu_range **ranges;
static size_t count, room;

/* The first that ends behind the address; `count`: none. */
static size_t place_of(const void *at)
{
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle]->start + ranges[middle]->bytes > (const char *)at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct emu_range *emu_range_first(const void *at)
{
  size_t place = place_of(at);
  return place < count ? ranges[place] : NULL;
}

struct emu_range *emu_range_before(const void *at)
{
  size_t place = place_of(at);
  return place > 0 ? ranges[place - 1] : NULL;
}

struct emu_range *emu_range_find(const void *at)
{
  struct emu_range *range = emu_range_first(at);
  return range != NULL && range->start <= (const char *)at ? range : NULL;
}

void emu_range_add(struct emu_range *range)
{
  size_t place = place_of(range->start);
  if (count == room) {
    room = room > 0 ? 2 * room : 64;
    struct emu_range **more = emu_calloc(room, sizeof(struct emu_range *));
    if (count > 0) memcpy(more, ranges, count * sizeof(*ranges));
    free(ranges);
    ranges = more;
  }
  memmove(ranges + place + 1, ranges + place, (count - place) * sizeof(*ranges));
  ranges[place] = range;
  count++;
}

void emu_range_remove(struct emu_range *range)
{
  size_t place = place_of(range->start);
  emu_fault_note_gone(range);
  memmove(ranges + place, ranges + place + 1, (count - place - 1) * sizeof(*ranges));
  count--;
  free(range);
}

bool emu_range_is_device(const struct emu_range *range)
{
  return range->kind == EMU_MALLOCED || range->kind == EMU_OPENED || range->kind == EMU_MAPPED;
}

/* Pieces that may lie side by side as one buffer: the others end where nobody may touch anything. */
static bool may_go_on(const struct emu_range *range)
{
  return range->kind == EMU_MAPPED || range->kind == EMU_REGISTERED;
}

/* Somebody has access to it. */
static bool is_open(const struct emu_range *range)
{
  bool open = range->kind != EMU_MAPPED;
  for (int d = 0; d < EMU_MAX_DEVICES; d++) open |= range->rights[d] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return open;
}

bool emu_range_covers(const void *at, size_t bytes, struct emu_range **first)
{
  const char *start = at, *end = start + bytes;
  struct emu_range *range = *first = emu_range_find(at);
  while (range != NULL) {
    if (!is_open(range)) return false;
    const char *range_end = range->start + range->bytes;
    if (end <= range_end) return true;
    struct emu_range *next = may_go_on(range) ? emu_range_find(range_end) : NULL;
    range = next != NULL && next->kind == range->kind ? next : NULL;
  }
  return false;
}
