/* What communicators of one rank can share: its shared memory with the service that hands it out, and the other ranks'
 * memory, reached once. The first communicator of a family makes it; a child (ncclCommSplit, ncclCommShrink) may use
 * its parent's, and it lives as long as its last user, in whatever order they end.
 *
 * Ranks are numbered here as in the first communicator. Any thread. */
#ifndef TT_TRANSPORT_RESOURCES_H
#define TT_TRANSPORT_RESOURCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/shm.h"
#include "nccl.h"
#include "transport/memory_service.h"
#include "transport/peer_info.h"

struct tt_arena; /* transport/arena.h */
struct tt_resources;

/* Makes the rank's memory of `address_space` bytes and listens. One reference. */
ncclResult_t tt_resources_create(int rank, int nranks, size_t address_space, struct tt_resources **out);
/* One more user. From then on no part of the memory that was given back is used again: a rank that is late, or fails
 * where others go on, may still write to what another user had there. */
struct tt_resources *tt_resources_share(struct tt_resources *resources);
/* The last user's call frees it. Ranks of this process that use this memory keep it alive. NULL is allowed. */
void tt_resources_release(struct tt_resources *resources);

/* Copies what the ranks of the first communicator said of themselves, and hands the memory out if another process may
 * be on this host. Once. */
ncclResult_t tt_resources_start(struct tt_resources *resources, const struct tt_peer_info *infos);

int tt_resources_rank(const struct tt_resources *resources);
struct tt_shm *tt_resources_shm(const struct tt_resources *resources);
struct tt_memory_service *tt_resources_service(const struct tt_resources *resources);
const struct tt_peer_info *tt_resources_info(const struct tt_resources *resources, int rank);

/* Another rank's memory: reached at the first call, which may wait, bounded. Either in this process (*arena), or by a
 * descriptor (*fd), or not at all (NULL and -1). Both stay the object's. Fails only for this side's faults. */
ncclResult_t tt_resources_reach(struct tt_resources *resources, int rank, struct tt_arena **arena, int *fd);
/* Maps a block of another rank's memory. ncclRemoteError if the block lies outside, or the memory cannot be had.
 * `name`: the rank's number in errors. */
ncclResult_t tt_resources_map(struct tt_resources *resources, int rank, int name, uint64_t offset, size_t bytes,
                              void **ptr);
void tt_resources_unmap(struct tt_resources *resources, int rank, void *ptr, size_t bytes); /* NULL is allowed */
/* Whether it was reached in this process. Does not ask. */
bool tt_resources_is_local(struct tt_resources *resources, int rank);
/* A descriptor of another object of that rank, the caller's to close. Bounded; ncclRemoteError if it is not handed out.
 */
ncclResult_t tt_resources_fetch(struct tt_resources *resources, int rank, uint64_t object, int *fd, uint64_t *bytes);

#endif
