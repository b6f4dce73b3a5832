/* A rank's shared memory: one memfd, sealed against shrinking, mapped by whoever received the descriptor. Nothing has a
 * name in a file system, so nothing is left after kill -9.
 *
 * The owner reserves address space once and takes memory (fallocate) as blocks are allocated, so a full memory is an
 * error at allocation and never a SIGBUS later. Blocks are page-aligned; a peer maps only the blocks it uses. */
#ifndef TT_BASE_SHM_H
#define TT_BASE_SHM_H

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

struct tt_shm; /* thread-safe */

/* Rounds `address_space` up to whole pages, and down to what the limit of a file's size (ulimit -f) allows: the larger
 * part of it is never used. */
ncclResult_t tt_shm_create(size_t address_space, struct tt_shm **out);
/* Unmaps and closes; peers' mappings stay valid until they unmap. NULL is allowed. */
void tt_shm_destroy(struct tt_shm *shm);
int tt_shm_fd(const struct tt_shm *shm);
/* The bytes of address space. */
size_t tt_shm_size(const struct tt_shm *shm);
/* The beginning of the address space. */
unsigned char *tt_shm_base(const struct tt_shm *shm);
/* Allocates zeroed memory of at least `bytes`; *offset is its place in the memfd. */
ncclResult_t tt_shm_alloc(struct tt_shm *shm, size_t bytes, void **ptr, uint64_t *offset);
/* Gives a block back (hole punched: the memory returns to the system). */
void tt_shm_free(struct tt_shm *shm, void *ptr, size_t bytes);
/* From now on the address space of freed blocks is not given out again, though their memory returns to the system: for
 * blocks that others may still write to. */
void tt_shm_use_once(struct tt_shm *shm);
/* Bytes allocated now. */
size_t tt_shm_used(const struct tt_shm *shm);

/* A peer's side: checks that [offset, offset+bytes), rounded up to pages, lies in the sealed file, then maps it.
 * Offsets are multiples of a page. */
ncclResult_t tt_shm_map(int fd, uint64_t offset, size_t bytes, void **ptr);
void tt_shm_unmap(void *ptr, size_t bytes);

#endif
