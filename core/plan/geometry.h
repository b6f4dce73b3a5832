/* How an operation's data is cut: among channels, in loops, in chunks. Pure arithmetic, the same on all ranks. */
#ifndef TT_PLAN_GEOMETRY_H
#define TT_PLAN_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>
#include "tutti/device.h"

/* Bytes that each of `pieces` chunks of one message may have where `capacity` bytes fit a slot, or a piece of it. */
size_t tt_geometry_piece(size_t capacity, uint32_t pieces);

/* What is cut, and how. */
struct tt_geometry_cut {
  size_t count, element_bytes; /* of a block */
  uint32_t parts;
  int nchannels;
  size_t capacity; /* bytes that fit a slot, or a piece of it */
  size_t smallest; /* bytes below which a chain's data is not cut for overlap */
  int chunks;      /* into so many a chain's data is cut for overlap */
};

/* Channel `channel` gets a share of each block; shares begin at multiples of 64 bytes, and differ by at most 64 bytes.
 * Large data is cut into whole slots. Programs of one part a block are cut into at least `chunks` where that leaves
 * `smallest` or more of each, so that the hops of a chain or tree overlap. */
void tt_geometry_cut(const struct tt_geometry_cut *cut, int channel, struct tt_geometry *geometry);

#endif
