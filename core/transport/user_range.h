/* What a rank tells the others of its host about a range of a user's memory, so that they can map it: the allocations
 * that it lies in, side by side, and how each can be had. */
#ifndef TT_TRANSPORT_USER_RANGE_H
#define TT_TRANSPORT_USER_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "transport/wire.h"
#include "tutti/device.h"

struct tt_user_buffers;
struct tt_user_import;

/* Allocations of a range, at most. Each has a descriptor while it is shown to other processes. */
#define TT_USER_PARTS 256
#define TT_USER_WHY 200

/* For ranks of the same process, and for others. */
enum { TT_USER_LOCAL, TT_USER_REMOTE };

/* One allocation. */
struct tt_user_part {
  uint64_t id, bytes;                 /* its number in its rank's process, and its size */
  uint64_t object;                    /* of export REMOTE, if that is of kind FD: by which it is fetched; 0: none */
  struct tt_device_export exports[2]; /* of kind NONE where nobody needs it */
};

struct tt_user_range {
  uint64_t bytes;  /* of the range */
  uint64_t offset; /* in its first allocation */
  uint32_t nparts;
  struct tt_user_part *parts;
  char why[TT_USER_WHY]; /* it cannot be mapped by others; "": it can */
};

/* Its size as bytes, at most. */
#define TT_USER_RANGE_BYTES (TT_USER_WHY + 20 + TT_USER_PARTS * (24 + 2 * 76))

/* Finds the allocations of [ptr, ptr + bytes), bytes > 0. Where there are none, or too many, `why` says it. */
ncclResult_t tt_user_range_describe(struct tt_user_buffers *buffers, const void *ptr, size_t bytes,
                                    struct tt_user_range *range);
/* Exports them for the ranks of this host; what goes by a descriptor is shown until it is withdrawn. Fills `why` where
 * that fails. */
void tt_user_range_export(struct tt_user_buffers *buffers, const void *ptr, struct tt_user_range *range);
void tt_user_range_withdraw(struct tt_user_buffers *buffers, const struct tt_user_range *range);
void tt_user_range_free(struct tt_user_range *range);

void tt_user_range_put(struct tt_wire_writer *w, const struct tt_user_range *range);
/* Marks the reader as bad where no rank of this version would say such a thing; or there is no memory for it. */
void tt_user_range_get(struct tt_wire_reader *r, struct tt_user_range *range);

/* Maps what another rank of this host told of its memory; `at` is where the range begins. The import is used once more,
 * until tt_user_import_end. May wait, bounded, for the other process to hand out a descriptor. */
ncclResult_t tt_user_range_map(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                               struct tt_user_import **import, void **at);
/* The last use ends it. NULL is allowed. */
void tt_user_import_end(struct tt_user_buffers *buffers, struct tt_user_import *import);

/* ---- user_graph.c: what captured operations use without windows ---- */

/* The graph `number`, which `stream` is captured into, has these imports and what is shown of the ranges until its end.
 * Takes one use of each import over, also on failure. */
ncclResult_t tt_user_graph_hold(struct tt_user_buffers *buffers, void *stream, uint64_t number,
                                struct tt_user_import **imports, int nimports,
                                const struct tt_user_range *const ranges[2]);
/* Unmaps what graphs have used that are gone. Nearly free where none are. */
void tt_user_graphs_reap(struct tt_user_buffers *buffers);

#endif
