/* Device memory that other ranks of the host use, in slabs: few large pieces, since each is exported and imported as a
 * whole, and each costs a descriptor. Pieces of a slab are not used twice: the device's memory is zero once only, and
 * connections need it so.
 *
 * A slab has a number, from 1, and with its owner's name it is found by ranks of the same process, whose references
 * keep it, and the context that it belongs to, alive. Any thread. */
#ifndef TT_DEVICE_SLAB_H
#define TT_DEVICE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/context.h"
#include "nccl.h"

#define TT_SLAB_ALIGNMENT 128
/* Bytes of a slab, unless four pieces of the size that is asked for need more: pieces are just larger than a power of
 * two, so that two of them would leave a third of a slab unused. One that is very large has a slab of its own. */
#define TT_SLAB_BYTES ((size_t)8 << 20)
#define TT_SLAB_LARGE_PIECE ((size_t)32 << 20)

/* Slabs that a rank lends: others ask for them by a number of their own choice, so that the same number is the same
 * slab for whoever asks. Whose device lies between those of two others lends them memory that both reach. */
#define TT_SLAB_LENT (UINT32_C(1) << 31)
#define TT_SLAB_LENT_BYTES ((size_t)32 << 20)
#define TT_SLAB_MOST_LENT 64 /* by one rank */

struct tt_slab;
struct tt_slabs; /* of one rank */

struct tt_slab_piece {
  struct tt_slab *slab;
  uint64_t offset;
  size_t bytes;
  unsigned char *ptr;
};

/* `name` is the owner's and no other's; at most 63 characters. Keeps a reference to the context. */
ncclResult_t tt_slabs_create(struct tt_context *context, const char *name, struct tt_slabs **out);
/* Slabs that ranks of this process use stay until they are released. NULL is allowed. */
void tt_slabs_destroy(struct tt_slabs *slabs);

/* Zeroed memory, aligned to TT_SLAB_ALIGNMENT. */
ncclResult_t tt_slabs_alloc(struct tt_slabs *slabs, size_t bytes, struct tt_slab_piece *piece);

uint32_t tt_slab_number(const struct tt_slab *slab);
/* How the slab goes to a rank (`whom`: TT_EXPORT_NEAR, HERE or FAR): made once, then the same. The descriptor stays the
 * slab's. */
ncclResult_t tt_slab_export(struct tt_slab *slab, int whom, struct tt_device_export *out);
/* A copy of the descriptor by which slab `number` was exported to other processes; -1 if it was not. The caller closes
 * it. A slab with TT_SLAB_LENT is made, and exported, when it is first asked for; for others no function of the device
 * is called. */
int tt_slabs_descriptor(struct tt_slabs *slabs, uint64_t number, uint64_t *bytes);

/* Hands out a copy of one more descriptor, by the number TT_SLAB_OFFERED, while `fd` stays open: until the next call.
 * -1: none any more. */
#define TT_SLAB_OFFERED (UINT64_C(1) << 63)
void tt_slabs_offer(struct tt_slabs *slabs, int fd, uint64_t bytes);

/* One more reference to a slab of a rank of this process; NULL if there is none such. One with TT_SLAB_LENT is made
 * when it is first asked for. */
struct tt_slab *tt_slab_find(const char *name, uint32_t number);
void tt_slab_release(struct tt_slab *slab); /* NULL is allowed */

#endif
