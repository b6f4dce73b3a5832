/* Cutting an operation's data. */
#include "plan/geometry.h"

#include "base/check.h"

#define SHARE_ALIGN 64 /* bytes: a cache line */
#define CHUNK_ALIGN 16 /* bytes: a vector */

static size_t divide_up(size_t value, size_t by)
{
  return value / by + (value % by != 0);
}

static size_t round_up(size_t value, size_t to)
{
  return divide_up(value, to) * to;
}

/* First element of a channel's share. */
static size_t share_start(size_t count, size_t align, int channel, int nchannels)
{
  size_t lines = divide_up(count, align);
  size_t each = lines / (size_t)nchannels, more = lines % (size_t)nchannels;
  size_t before = each * (size_t)channel + TT_MIN((size_t)channel, more);
  return TT_MIN(before * align, count);
}

size_t tt_geometry_piece(size_t capacity, uint32_t pieces)
{
  return pieces == 1 ? capacity : capacity / pieces / TT_PIECE_ALIGN * TT_PIECE_ALIGN;
}

void tt_geometry_cut(const struct tt_geometry_cut *cut, int channel, struct tt_geometry *geometry)
{
  size_t element_bytes = cut->element_bytes, parts = cut->parts;
  size_t share_align = TT_MAX(SHARE_ALIGN / element_bytes, 1);
  size_t align = TT_MAX(CHUNK_ALIGN / element_bytes, 1);
  size_t largest = TT_MAX(cut->capacity / element_bytes / align * align, align);

  geometry->lo = share_start(cut->count, share_align, channel, cut->nchannels);
  geometry->hi = share_start(cut->count, share_align, channel + 1, cut->nchannels);
  size_t share = geometry->hi - geometry->lo;

  size_t chunk = largest;
  if (parts == 1) {
    size_t smallest = TT_MAX(cut->smallest / element_bytes / align * align, align);
    size_t overlapped = round_up(divide_up(share, (size_t)cut->chunks), align);
    chunk = TT_MIN(TT_MAX(overlapped, smallest), largest);
  }
  size_t per_loop = chunk * parts;
  geometry->chunk = chunk;
  geometry->loops = share == 0 ? 1 : divide_up(share, per_loop);
  size_t left = share - (size_t)(geometry->loops - 1) * per_loop;
  geometry->last_chunk = TT_MIN(TT_MAX(round_up(divide_up(left, parts), align), align), chunk);
}
