/* See zone.h. Pieces double in size, so that a large zone has few, and a small one is not larger than it must be. */
#include "base/zone.h"

#include <stdint.h>
#include <string.h>
#include "base/check.h"

#define ALIGN _Alignof(max_align_t)
#define FIRST_PIECE 1024
#define LARGEST_PIECE ((size_t)64 << 10)

struct tt_zone_piece {
  _Alignas(max_align_t) struct tt_zone_piece *older;
};

static bool grow(struct tt_zone *zone, size_t bytes)
{
  size_t room = zone->bytes < FIRST_PIECE ? FIRST_PIECE : zone->bytes;
  if (room > LARGEST_PIECE) room = LARGEST_PIECE;
  if (room < bytes) room = bytes;
  struct tt_zone_piece *piece = tt_pool_take(zone->pool, sizeof(*piece) + room);
  if (!piece) return false;
  piece->older = zone->pieces;
  zone->pieces = piece;
  zone->next = (unsigned char *)(piece + 1);
  zone->left = room;
  zone->bytes += sizeof(*piece) + room;
  return true;
}

void tt_zone_lend(struct tt_zone *zone, void *memory, size_t bytes)
{
  zone->next = memory;
  zone->left = bytes / ALIGN * ALIGN;
}

void *tt_zone_take(struct tt_zone *zone, size_t bytes)
{
  if (bytes > PTRDIFF_MAX / 2) return NULL;
  size_t rounded = bytes == 0 ? ALIGN : (bytes + ALIGN - 1) / ALIGN * ALIGN;
  if (rounded > zone->left && !grow(zone, rounded)) return NULL;
  void *object = memset(zone->next, 0, rounded);
  zone->next += rounded;
  zone->left -= rounded;
  return object;
}

ncclResult_t tt_zone_new(struct tt_zone *zone, void **out, size_t count, size_t size, const char *file, int line,
                         const char *func)
{
  bool possible = size == 0 || count <= PTRDIFF_MAX / size;
  *out = possible ? tt_zone_take(zone, count * size) : NULL;
  if (*out) return ncclSuccess;
  return tt_log_fail(ncclSystemError, file, line, func, "out of memory: %zu objects of %zu bytes", count, size);
}

ncclResult_t tt_zone_copy(struct tt_zone *zone, const char *text, char **out)
{
  *out = NULL;
  if (!text) return ncclSuccess;
  size_t bytes = strlen(text) + 1;
  TT_TRY(TT_ZONE_NEW(zone, out, bytes));
  memcpy(*out, text, bytes);
  return ncclSuccess;
}

void tt_zone_clear(struct tt_zone *zone)
{
  while (zone->pieces) {
    struct tt_zone_piece *piece = zone->pieces;
    zone->pieces = piece->older;
    tt_pool_give(piece);
  }
  zone->next = NULL;
  zone->left = zone->bytes = 0;
}
