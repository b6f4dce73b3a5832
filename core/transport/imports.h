/* Other ranks' slabs of device memory, as this rank's device sees them: each imported once, and kept while connections
 * use it. Any thread. */
#ifndef TT_TRANSPORT_IMPORTS_H
#define TT_TRANSPORT_IMPORTS_H

#include <stdint.h>
#include "device/context.h"
#include "nccl.h"
#include "transport/memory.h"
#include "transport/peer_info.h"

struct tt_imports;
struct tt_import;

/* What a rank says of a slab of its own: its number, and how it is exported. The handle is used for kinds HANDLE and FABRIC. */
struct tt_import_source {
  int rank;
  uint32_t number;
  struct tt_device_export shown;
};

/* Keeps a reference to the context; the rest outlives the object. */
ncclResult_t tt_imports_create(struct tt_context *context, struct tt_peer_memory *memory,
                               const struct tt_peer_info *peers, struct tt_imports **out);
/* Gives back what is left. NULL is allowed. */
void tt_imports_destroy(struct tt_imports *imports);

/* One more reference to the import of a slab. May wait, bounded, for the other process to hand out a descriptor.
 * ncclRemoteError if it cannot be had. */
ncclResult_t tt_imports_get(struct tt_imports *imports, const struct tt_import_source *source, struct tt_import **out);
/* The last reference ends the import. NULL is allowed. */
void tt_imports_put(struct tt_imports *imports, struct tt_import *import);
/* The address of [offset, offset + bytes) on this rank's device; NULL if that is outside or not aligned. */
unsigned char *tt_import_at(const struct tt_import *import, uint64_t offset, size_t bytes);

#endif
