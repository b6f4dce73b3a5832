/* Shared memory between the ranks of a communicator: this rank's arena, handed out to the others, and theirs, mapped on
 * demand. Any thread. */
#ifndef TT_TRANSPORT_MEMORY_H
#define TT_TRANSPORT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "base/doorbell.h"
#include "base/shm.h"
#include "transport/memory_service.h"
#include "transport/peer_info.h"
#include "transport/resources.h"

struct tt_peer_memory;

/* Makes this rank's memory of `address_space` bytes, with a doorbell in it, and listens for those who want it. */
ncclResult_t tt_peer_memory_create(int rank, int nranks, size_t address_space, struct tt_peer_memory **out);
/* The same with memory that another communicator of this rank uses too; `numbers` are the new ranks' among the
 * resources' (tt_peer_memory_number of the other communicator). All ranks share, or none. */
ncclResult_t tt_peer_memory_share(struct tt_resources *resources, const int *numbers, int rank, int nranks,
                                  struct tt_peer_memory **out);
struct tt_resources *tt_peer_memory_resources(const struct tt_peer_memory *memory);
int tt_peer_memory_number(const struct tt_peer_memory *memory, int rank);

/* Unmaps and closes everything, unless another communicator uses it. Ranks of this process that mapped this memory keep
 * it alive. NULL is allowed. */
void tt_peer_memory_destroy(struct tt_peer_memory *memory);

struct tt_shm *tt_peer_memory_shm(const struct tt_peer_memory *memory);
struct tt_doorbell *tt_peer_memory_bell(const struct tt_peer_memory *memory, uint64_t *offset);
/* Fills in what others need to reach this memory: uds and key. */
void tt_peer_memory_describe(const struct tt_peer_memory *memory, struct tt_peer_info *info);

/* Sets what all ranks said of themselves (nranks, outlives the object), and starts to hand out this rank's memory if
 * another process may be on this host. */
ncclResult_t tt_peer_memory_start(struct tt_peer_memory *memory, const struct tt_peer_info *peers);

/* Whether `rank`'s memory can be had: it lies in this process, or a socket that only this host's network namespace has
 * leads to a process that proves to be that rank and hands it out. Asked once; bounded. Fails only for this side's
 * faults. */
ncclResult_t tt_peer_memory_reach(struct tt_peer_memory *memory, int rank, bool *reached);

/* Maps a block of another rank's memory. ncclRemoteError if the block lies outside. */
ncclResult_t tt_peer_memory_map(struct tt_peer_memory *memory, int rank, uint64_t offset, size_t bytes, void **ptr);
void tt_peer_memory_unmap(struct tt_peer_memory *memory, int rank, void *ptr, size_t bytes);
/* Another rank's doorbell, mapped once and until the end. */
ncclResult_t tt_peer_memory_peer_bell(struct tt_peer_memory *memory, int rank, uint64_t offset,
                                      struct tt_doorbell **bell);

/* What else this rank hands out, by number. NULL: nothing any more, to be said before `context` ends; a relay that
 * lingers keeps the service alive. */
void tt_peer_memory_set_source(struct tt_peer_memory *memory, tt_memory_source *source, void *context);
/* The descriptor of another process's object, the caller's to close. Bounded; ncclRemoteError if it is not handed out.
 */
ncclResult_t tt_peer_memory_fetch(struct tt_peer_memory *memory, int rank, uint64_t object, int *fd, uint64_t *bytes);

/* Clients of this rank's memory that were dropped. */
uint64_t tt_peer_memory_dropped(const struct tt_peer_memory *memory);

#endif
