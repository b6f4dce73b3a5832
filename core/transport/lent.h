/* Device memory that another rank of the host lends to this one: pieces of its slabs, as this rank's device sees them.
 * A rank asks for its slabs by its own number and a count, so that ranks need not agree on who has which. Pieces are
 * not used twice, as in device/slab.h. Any thread. */
#ifndef TT_TRANSPORT_LENT_H
#define TT_TRANSPORT_LENT_H

#include "transport/imports.h"
#include "transport/transport.h"

struct tt_lent;

ncclResult_t tt_lent_create(struct tt_transport_env *env, struct tt_lent **out);
/* Gives back what was lent. NULL is allowed. */
void tt_lent_destroy(struct tt_lent *lent);

struct tt_lent_piece {
  struct tt_import *import; /* stays the tt_lent's */
  uint32_t number;          /* of the slab, for others that import it */
  uint64_t offset;
  unsigned char *ptr; /* on this rank's device */
};
/* `bytes` of zeroed memory of rank `owner`'s device, aligned to TT_SLAB_ALIGNMENT. May wait, bounded, for the owner's
 * service. */
ncclResult_t tt_lent_alloc(struct tt_lent *lent, int owner, size_t bytes, struct tt_lent_piece *piece);
/* Whether a slab of that number is lent to that rank. */
bool tt_lent_is_for(uint32_t number, int rank);
/* How others ask for it. */
struct tt_import_source tt_lent_source(const struct tt_transport_env *env, int owner, uint32_t number);

#endif
