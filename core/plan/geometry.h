/* How an operation's data is cut: among channels, in loops, in chunks. Pure arithmetic, the same on all ranks. */
#ifndef TT_PLAN_GEOMETRY_H
#define TT_PLAN_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>
#include "tutti/device.h"

/* Bytes that each of `pieces` chunks of one message may have where `capacity` bytes fit a slot, or a piece of it. */
size_t tt_geometry_piece(size_t capacity, uint32_t pieces);

/* Channel `channel` of `nchannels` gets a share of each block of `count` elements; shares begin at multiples of 64
 * bytes, and differ by at most 64 bytes. `capacity` bytes fit a slot. Programs of one part a block are cut at least
 * eight times where that leaves chunks of 4 KiB or more, so that the hops of a chain or tree overlap. */
void tt_geometry_cut(size_t count, size_t element_bytes, uint32_t parts, int channel, int nchannels, size_t capacity,
                     struct tt_geometry *geometry);

#endif
