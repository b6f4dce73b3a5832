/* Other ranks' memory: reached once, mapped block by block. */
#include "transport/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/arena.h"
#include "transport/memory_wire.h"

/* The service answers as soon as its thread runs; the limit is for a machine that is very busy. */
#define REACH_MS 30000

struct peer {
  bool asked;
  struct tt_arena *arena; /* in this process */
  int fd;                 /* in another; -1: none */
  struct tt_doorbell *bell;
  uint64_t bell_offset;
};

struct tt_peer_memory {
  int rank, nranks;
  struct tt_arena *arena; /* this rank's */
  struct tt_shm *shm;
  struct tt_doorbell *bell;
  uint64_t bell_offset;
  struct tt_memory_service *service;
  const struct tt_peer_info *infos;
  pthread_mutex_t lock; /* guards `peers` */
  struct peer *peers;
};

ncclResult_t tt_peer_memory_create(int rank, int nranks, size_t address_space, struct tt_peer_memory **out)
{
  *out = NULL;
  struct tt_peer_memory *memory;
  struct tt_shm *shm = NULL;
  void *bell;
  TT_TRY(TT_CALLOC(&memory, 1));
  pthread_mutex_init(&memory->lock, NULL);
  memory->rank = rank;
  memory->nranks = nranks;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&memory->peers, (size_t)nranks), result, out);
  for (int i = 0; i < nranks; i++) memory->peers[i].fd = -1;
  TT_TRY_GOTO(tt_shm_create(address_space, &shm), result, out);
  TT_TRY_GOTO(tt_shm_alloc(shm, sizeof(*memory->bell), &bell, &memory->bell_offset), result, out);
  TT_TRY_GOTO(tt_memory_service_create(rank, tt_shm_fd(shm), address_space, &memory->service), result, out);
  memory->bell = bell;
  memory->shm = shm;
  shm = NULL; /* the arena's, whatever happens */
  TT_TRY_GOTO(tt_arena_publish(tt_memory_service_name(memory->service), memory->shm,
                               (unsigned char *)bell - memory->bell_offset, address_space, &memory->arena),
              result, out);
  *out = memory;
out:
  if (result != ncclSuccess) {
    tt_shm_destroy(shm);
    tt_peer_memory_destroy(memory);
  }
  return result;
}

void tt_peer_memory_destroy(struct tt_peer_memory *memory)
{
  if (!memory) return;
  tt_memory_service_destroy(memory->service);
  for (int i = 0; memory->peers && i < memory->nranks; i++) {
    struct peer *peer = &memory->peers[i];
    if (peer->bell && !peer->arena) tt_shm_unmap(peer->bell, sizeof(*peer->bell));
    if (peer->fd >= 0) close(peer->fd);
    tt_arena_release(peer->arena);
  }
  tt_arena_withdraw(memory->arena);
  tt_arena_release(memory->arena);
  pthread_mutex_destroy(&memory->lock);
  free(memory->peers);
  free(memory);
}

struct tt_shm *tt_peer_memory_shm(const struct tt_peer_memory *memory)
{
  return memory->shm;
}

struct tt_doorbell *tt_peer_memory_bell(const struct tt_peer_memory *memory, uint64_t *offset)
{
  *offset = memory->bell_offset;
  return memory->bell;
}

void tt_peer_memory_describe(const struct tt_peer_memory *memory, struct tt_peer_info *info)
{
  strncpy(info->uds, tt_memory_service_name(memory->service), sizeof(info->uds) - 1);
  info->key = *tt_memory_service_key(memory->service);
}

ncclResult_t tt_peer_memory_start(struct tt_peer_memory *memory, const struct tt_peer_info *peers)
{
  memory->infos = peers;
  const struct tt_peer_info *me = &peers[memory->rank];
  for (int i = 0; i < memory->nranks; i++)
    if (peers[i].host_hash == me->host_hash && peers[i].process != me->process)
      return tt_memory_service_start(memory->service);
  return ncclSuccess;
}

/* A stopped process accepts, and then says nothing. */
static int64_t reach_ms(void)
{
  int64_t seconds = tt_param_int(TT_PARAM_TUTTI_PEER_TIMEOUT);
  return seconds > 0 ? TT_MIN(REACH_MS, seconds * 1000) : REACH_MS;
}

/* The client's side of memory_wire.h on a connected socket. *fd stays -1 if the other side is not that rank. */
static ncclResult_t ask(struct tt_peer_memory *memory, int rank, int socket, uint64_t object, int *fd, uint64_t *bytes)
{
  const struct tt_key *key = &memory->infos[rank].key;
  tt_deadline deadline = tt_deadline_in_ms(reach_ms());
  struct tt_memory_hello hello = {
      .magic = TT_MEMORY_MAGIC, .version = TT_MEMORY_VERSION, .client = memory->rank, .server = rank, .object = object};
  TT_TRY(tt_random(hello.nonce, sizeof(hello.nonce)));
  TT_TRY(tt_uds_send(socket, &hello, sizeof(hello), -1, deadline));
  struct tt_memory_challenge challenge;
  TT_TRY(tt_uds_recv(socket, &challenge, sizeof(challenge), NULL, deadline));
  if (challenge.proof != tt_memory_prove(key, 'S', &hello, challenge.nonce, 0)) return ncclSuccess;
  struct tt_memory_proof proof = {tt_memory_prove(key, 'C', &hello, challenge.nonce, 0)};
  struct tt_memory_grant last;
  TT_TRY(tt_uds_send(socket, &proof, sizeof(proof), -1, deadline));
  int got = -1;
  TT_TRY(tt_uds_recv(socket, &last, sizeof(last), &got, deadline));
  if (last.proof != tt_memory_prove(key, 'G', &hello, challenge.nonce, last.bytes)) {
    if (got >= 0) close(got);
    return ncclSuccess;
  }
  *fd = got;
  *bytes = last.bytes;
  return ncclSuccess;
}

void tt_peer_memory_set_source(struct tt_peer_memory *memory, tt_memory_source *source, void *context)
{
  tt_memory_service_set_source(memory->service, source, context);
}

ncclResult_t tt_peer_memory_fetch(struct tt_peer_memory *memory, int rank, uint64_t object, int *fd, uint64_t *bytes)
{
  const struct tt_peer_info *info = &memory->infos[rank];
  int socket = -1;
  *fd = -1;
  *bytes = 0;
  TT_TRY(tt_uds_connect(info->uds, &socket));
  ncclResult_t result = socket >= 0 ? ask(memory, rank, socket, object, fd, bytes) : ncclSuccess;
  if (socket >= 0) close(socket);
  if (result == ncclSuccess && *fd >= 0) return ncclSuccess;
  return TT_FAIL(ncclRemoteError,
                 "rank %d (%s, process %d) does not hand out its memory %llu: it has ended, or is short of open files, "
                 "as its log says then",
                 rank, info->host, info->pid, (unsigned long long)object);
}

static ncclResult_t reach(struct tt_peer_memory *memory, int rank)
{
  struct peer *peer = &memory->peers[rank];
  const struct tt_peer_info *info = &memory->infos[rank], *me = &memory->infos[memory->rank];
  if (peer->asked) return ncclSuccess;
  if (info->process == me->process) {
    peer->arena = tt_arena_find(info->uds);
  } else if (info->host_hash == me->host_hash) {
    int socket = -1;
    uint64_t bytes;
    TT_TRY(tt_uds_connect(info->uds, &socket));
    if (socket >= 0) {
      ncclResult_t result = ask(memory, rank, socket, TT_MEMORY_ARENA, &peer->fd, &bytes);
      close(socket);
      if (result != ncclSuccess)
        TT_INFO(TT_INIT | TT_SHM, "Rank %d does not hand out its memory although its socket is on this host", rank);
    }
  }
  peer->asked = true;
  return ncclSuccess;
}

ncclResult_t tt_peer_memory_reach(struct tt_peer_memory *memory, int rank, bool *reached)
{
  pthread_mutex_lock(&memory->lock);
  ncclResult_t result = reach(memory, rank);
  *reached = memory->peers[rank].arena || memory->peers[rank].fd >= 0;
  pthread_mutex_unlock(&memory->lock);
  return result;
}

/* Called with the lock held. */
static ncclResult_t map(struct tt_peer_memory *memory, int rank, uint64_t offset, size_t bytes, void **ptr)
{
  *ptr = NULL;
  TT_TRY(reach(memory, rank));
  struct peer *peer = &memory->peers[rank];
  if (peer->arena) {
    *ptr = tt_arena_at(peer->arena, offset, bytes);
    if (*ptr) return ncclSuccess;
    return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which is not in its memory", rank, bytes,
                   (unsigned long long)offset);
  }
  if (peer->fd >= 0) return tt_shm_map(peer->fd, offset, bytes, ptr);
  return TT_FAIL(ncclRemoteError,
                 "rank %d (%s, process %d) does not hand out its shared memory any more: it has ended, or is short of "
                 "open files, as its log says then",
                 rank, memory->infos[rank].host, memory->infos[rank].pid);
}

ncclResult_t tt_peer_memory_map(struct tt_peer_memory *memory, int rank, uint64_t offset, size_t bytes, void **ptr)
{
  pthread_mutex_lock(&memory->lock);
  ncclResult_t result = map(memory, rank, offset, bytes, ptr);
  pthread_mutex_unlock(&memory->lock);
  return result;
}

void tt_peer_memory_unmap(struct tt_peer_memory *memory, int rank, void *ptr, size_t bytes)
{
  if (!ptr) return;
  pthread_mutex_lock(&memory->lock);
  bool mapped = !memory->peers[rank].arena;
  pthread_mutex_unlock(&memory->lock);
  if (mapped) tt_shm_unmap(ptr, bytes);
}

ncclResult_t tt_peer_memory_peer_bell(struct tt_peer_memory *memory, int rank, uint64_t offset,
                                      struct tt_doorbell **bell)
{
  pthread_mutex_lock(&memory->lock);
  struct peer *peer = &memory->peers[rank];
  ncclResult_t result = ncclSuccess;
  if (!peer->bell) {
    void *ptr = NULL;
    result = map(memory, rank, offset, sizeof(*peer->bell), &ptr);
    peer->bell = ptr;
    peer->bell_offset = offset;
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
  return tt_memory_service_dropped(memory->service);
}
