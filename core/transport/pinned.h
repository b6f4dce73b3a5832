/* The host's memory as devices use it: this rank's, in slabs of its shared memory, and other ranks', each slab mapped
 * once for this rank's device. A slab is mapped as a whole, since mapping costs milliseconds and a descriptor of the
 * driver's, and connections get pieces of it, which are not used twice: they must be zero. Any thread. */
#ifndef TT_TRANSPORT_PINNED_H
#define TT_TRANSPORT_PINNED_H

#include <stdint.h>
#include "device/context.h"
#include "nccl.h"
#include "transport/memory.h"

/* Bytes of a slab, unless four pieces of the size that is asked for need more. One that is very large has its own. */
#define TT_PINNED_SLAB_BYTES ((size_t)4 << 20)
#define TT_PINNED_LARGE_PIECE ((size_t)32 << 20)
#define TT_PINNED_ALIGNMENT 128

struct tt_pinned;
struct tt_pinned_import;

/* Where a piece lies, as other ranks are told: its slab in the owner's shared memory, and its place there. */
struct tt_pinned_place {
  uint64_t slab, slab_bytes, offset;
};

/* For a device with TT_DEVICE_HOST_MEMORY. Keeps a reference to the context; `memory` outlives the object. */
ncclResult_t tt_pinned_create(struct tt_context *context, struct tt_peer_memory *memory, struct tt_pinned **out);
/* Gives back everything, imports too. NULL is allowed. */
void tt_pinned_destroy(struct tt_pinned *pinned);

/* Zeroed memory of this rank, aligned to TT_PINNED_ALIGNMENT; *at is its address on the device. */
ncclResult_t tt_pinned_alloc(struct tt_pinned *pinned, size_t bytes, struct tt_pinned_place *place, unsigned char **at);

/* The same of another rank of the host, with one more reference to its slab. ncclRemoteError if the place is none. */
ncclResult_t tt_pinned_get(struct tt_pinned *pinned, int rank, const struct tt_pinned_place *place, size_t bytes,
                           struct tt_pinned_import **out, unsigned char **at);
/* The last reference ends the mapping. NULL is allowed. */
void tt_pinned_put(struct tt_pinned *pinned, struct tt_pinned_import *import);

#endif
