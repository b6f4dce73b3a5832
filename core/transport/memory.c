/* Other ranks' memory as one communicator sees it: by its own ranks, with doorbells of its own, block by block. */
#include "transport/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

struct peer {
  int number; /* among the resources' ranks */
  struct tt_doorbell *bell;
  bool bell_mapped;
  uint64_t bell_offset;
};

struct tt_peer_memory {
  int rank, nranks;
  bool shared; /* the resources are another communicator's too */
  struct tt_resources *resources;
  struct tt_doorbell *bell; /* this rank's */
  uint64_t bell_offset;
  pthread_mutex_t lock; /* guards the peers' bells */
  struct peer *peers;
};

/* Takes over the reference to the resources. */
static ncclResult_t create(struct tt_resources *resources, int rank, int nranks, const int *numbers,
                           struct tt_peer_memory **out)
{
  struct tt_peer_memory *memory;
  void *bell;
  *out = NULL;
  ncclResult_t result = TT_CALLOC(&memory, 1);
  if (result != ncclSuccess) {
    tt_resources_release(resources);
    return result;
  }
  pthread_mutex_init(&memory->lock, NULL);
  memory->resources = resources;
  memory->rank = rank;
  memory->nranks = nranks;
  memory->shared = numbers != NULL;
  TT_TRY_GOTO(TT_CALLOC(&memory->peers, (size_t)nranks), result, out);
  for (int r = 0; r < nranks; r++) memory->peers[r].number = numbers ? numbers[r] : r;
  TT_TRY_GOTO(tt_shm_alloc(tt_resources_shm(resources), sizeof(*memory->bell), &bell, &memory->bell_offset), result,
              out);
  memory->bell = bell;
  *out = memory;
out:
  if (result != ncclSuccess) tt_peer_memory_destroy(memory);
  return result;
}

ncclResult_t tt_peer_memory_create(int rank, int nranks, size_t address_space, struct tt_peer_memory **out)
{
  struct tt_resources *resources;
  *out = NULL;
  TT_TRY(tt_resources_create(rank, nranks, address_space, &resources));
  return create(resources, rank, nranks, NULL, out);
}

ncclResult_t tt_peer_memory_share(struct tt_resources *resources, const int *numbers, int rank, int nranks,
                                  struct tt_peer_memory **out)
{
  return create(tt_resources_share(resources), rank, nranks, numbers, out);
}

void tt_peer_memory_destroy(struct tt_peer_memory *memory)
{
  if (!memory) return;
  for (int i = 0; memory->peers && i < memory->nranks; i++)
    if (memory->peers[i].bell_mapped) tt_shm_unmap(memory->peers[i].bell, sizeof(*memory->bell));
  tt_shm_free(tt_resources_shm(memory->resources), memory->bell, sizeof(*memory->bell));
  tt_resources_release(memory->resources);
  pthread_mutex_destroy(&memory->lock);
  free(memory->peers);
  free(memory);
}

struct tt_resources *tt_peer_memory_resources(const struct tt_peer_memory *memory)
{
  return memory->resources;
}

int tt_peer_memory_number(const struct tt_peer_memory *memory, int rank)
{
  return memory->peers[rank].number;
}

struct tt_shm *tt_peer_memory_shm(const struct tt_peer_memory *memory)
{
  return tt_resources_shm(memory->resources);
}

struct tt_doorbell *tt_peer_memory_bell(const struct tt_peer_memory *memory, uint64_t *offset)
{
  *offset = memory->bell_offset;
  return memory->bell;
}

void tt_peer_memory_describe(const struct tt_peer_memory *memory, struct tt_peer_info *info)
{
  struct tt_memory_service *service = tt_resources_service(memory->resources);
  strncpy(info->uds, tt_memory_service_name(service), sizeof(info->uds) - 1);
  info->key = *tt_memory_service_key(service);
}

/* Who shares says the same of itself in every communicator of the family. */
static ncclResult_t check_shared(const struct tt_peer_memory *memory, const struct tt_peer_info *peers)
{
  for (int r = 0; r < memory->nranks; r++)
    if (strcmp(peers[r].uds, tt_resources_info(memory->resources, memory->peers[r].number)->uds) != 0)
      return TT_FAIL(ncclInternalError, "rank %d does not share the parent's memory, as rank %d does", r, memory->rank);
  return ncclSuccess;
}

ncclResult_t tt_peer_memory_start(struct tt_peer_memory *memory, const struct tt_peer_info *peers)
{
  return memory->shared ? check_shared(memory, peers) : tt_resources_start(memory->resources, peers);
}

void tt_peer_memory_set_source(struct tt_peer_memory *memory, tt_memory_source *source, void *context)
{
  tt_memory_service_set_source(tt_resources_service(memory->resources), source, context);
}

ncclResult_t tt_peer_memory_fetch(struct tt_peer_memory *memory, int rank, uint64_t object, int *fd, uint64_t *bytes)
{
  return tt_resources_fetch(memory->resources, memory->peers[rank].number, object, fd, bytes);
}

ncclResult_t tt_peer_memory_reach(struct tt_peer_memory *memory, int rank, bool *reached)
{
  struct tt_arena *arena;
  int fd;
  ncclResult_t result = tt_resources_reach(memory->resources, memory->peers[rank].number, &arena, &fd);
  *reached = arena || fd >= 0;
  return result;
}

ncclResult_t tt_peer_memory_map(struct tt_peer_memory *memory, int rank, uint64_t offset, size_t bytes, void **ptr)
{
  return tt_resources_map(memory->resources, memory->peers[rank].number, rank, offset, bytes, ptr);
}

void tt_peer_memory_unmap(struct tt_peer_memory *memory, int rank, void *ptr, size_t bytes)
{
  tt_resources_unmap(memory->resources, memory->peers[rank].number, ptr, bytes);
}

ncclResult_t tt_peer_memory_peer_bell(struct tt_peer_memory *memory, int rank, uint64_t offset,
                                      struct tt_doorbell **bell)
{
  pthread_mutex_lock(&memory->lock);
  struct peer *peer = &memory->peers[rank];
  ncclResult_t result = ncclSuccess;
  if (!peer->bell) {
    void *ptr = NULL;
    result = tt_peer_memory_map(memory, rank, offset, sizeof(*peer->bell), &ptr);
    peer->bell = ptr;
    peer->bell_offset = offset;
    peer->bell_mapped = ptr && !tt_resources_is_local(memory->resources, peer->number);
  }
  if (result == ncclSuccess && (peer->bell_offset != offset || offset % _Alignof(struct tt_doorbell)))
    result = TT_FAIL(ncclRemoteError, "rank %d named doorbells at %llu and %llu", rank,
                     (unsigned long long)peer->bell_offset, (unsigned long long)offset);
  *bell = result == ncclSuccess ? peer->bell : NULL;
  pthread_mutex_unlock(&memory->lock);
  return result;
}

uint64_t tt_peer_memory_dropped(const struct tt_peer_memory *memory)
{
  return tt_memory_service_dropped(tt_resources_service(memory->resources));
}
