/* See resources.h. */
#include "transport/resources.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/arena.h"
#include "transport/memory_wire.h"

/* The service answers as soon as its thread runs; the limit is for a machine that is very busy. */
#define REACH_MS 30000

struct reached {
  bool asked;
  struct tt_arena *arena; /* in this process */
  int fd;                 /* in another; -1: none */
};

struct tt_resources {
  _Atomic unsigned users;
  int rank, nranks;
  struct tt_arena *arena; /* this rank's */
  struct tt_shm *shm;
  struct tt_memory_service *service;
  struct tt_peer_info *infos;
  pthread_mutex_t lock; /* guards `reached` */
  struct reached *reached;
};

/* The whole memory is found by ranks of this process by the service's name. */
static ncclResult_t publish(struct tt_resources *resources)
{
  struct tt_shm *shm = resources->shm;
  return tt_arena_publish(tt_memory_service_name(resources->service), shm, tt_shm_base(shm), tt_shm_size(shm),
                          &resources->arena);
}

ncclResult_t tt_resources_create(int rank, int nranks, size_t address_space, struct tt_resources **out)
{
  *out = NULL;
  struct tt_resources *resources;
  struct tt_shm *shm = NULL;
  TT_TRY(TT_CALLOC(&resources, 1));
  pthread_mutex_init(&resources->lock, NULL);
  resources->users = 1;
  resources->rank = rank;
  resources->nranks = nranks;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&resources->infos, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&resources->reached, (size_t)nranks), result, out);
  for (int i = 0; i < nranks; i++) resources->reached[i].fd = -1;
  TT_TRY_GOTO(tt_shm_create(address_space, &shm), result, out);
  TT_TRY_GOTO(tt_memory_service_create(rank, tt_shm_fd(shm), tt_shm_size(shm), &resources->service), result, out);
  resources->shm = shm;
  shm = NULL; /* the arena's, whatever happens */
  TT_TRY_GOTO(publish(resources), result, out);
  *out = resources;
out:
  if (result != ncclSuccess) {
    tt_shm_destroy(shm);
    tt_resources_release(resources);
  }
  return result;
}

struct tt_resources *tt_resources_share(struct tt_resources *resources)
{
  atomic_fetch_add(&resources->users, 1);
  tt_shm_use_once(resources->shm);
  return resources;
}

void tt_resources_release(struct tt_resources *resources)
{
  if (!resources || atomic_fetch_sub(&resources->users, 1) > 1) return;
  tt_memory_service_destroy(resources->service);
  for (int i = 0; resources->reached && i < resources->nranks; i++) {
    if (resources->reached[i].fd >= 0) close(resources->reached[i].fd);
    tt_arena_release(resources->reached[i].arena);
  }
  tt_arena_withdraw(resources->arena);
  tt_arena_release(resources->arena);
  pthread_mutex_destroy(&resources->lock);
  free(resources->reached);
  free(resources->infos);
  free(resources);
}

ncclResult_t tt_resources_start(struct tt_resources *resources, const struct tt_peer_info *infos)
{
  memcpy(resources->infos, infos, (size_t)resources->nranks * sizeof(*infos));
  const struct tt_peer_info *me = &infos[resources->rank];
  for (int i = 0; i < resources->nranks; i++)
    if (infos[i].host_hash == me->host_hash && infos[i].process != me->process)
      return tt_memory_service_start(resources->service);
  return ncclSuccess;
}

int tt_resources_rank(const struct tt_resources *resources)
{
  return resources->rank;
}

struct tt_shm *tt_resources_shm(const struct tt_resources *resources)
{
  return resources->shm;
}

struct tt_memory_service *tt_resources_service(const struct tt_resources *resources)
{
  return resources->service;
}

const struct tt_peer_info *tt_resources_info(const struct tt_resources *resources, int rank)
{
  return &resources->infos[rank];
}

/* A stopped process accepts, and then says nothing. */
static int64_t reach_ms(void)
{
  int64_t seconds = tt_param_int(TT_PARAM_TUTTI_PEER_TIMEOUT);
  return seconds > 0 ? TT_MIN(REACH_MS, seconds * 1000) : REACH_MS;
}

/* The client's side of memory_wire.h on a connected socket. *fd stays -1 if the other side is not that rank. */
static ncclResult_t ask(struct tt_resources *resources, int rank, int socket, uint64_t object, int *fd, uint64_t *bytes)
{
  const struct tt_key *key = &resources->infos[rank].key;
  tt_deadline deadline = tt_deadline_in_ms(reach_ms());
  struct tt_memory_hello hello = {.magic = TT_MEMORY_MAGIC,
                                  .version = TT_MEMORY_VERSION,
                                  .client = resources->rank,
                                  .server = rank,
                                  .object = object};
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

ncclResult_t tt_resources_fetch(struct tt_resources *resources, int rank, uint64_t object, int *fd, uint64_t *bytes)
{
  const struct tt_peer_info *info = &resources->infos[rank];
  int socket = -1;
  *fd = -1;
  *bytes = 0;
  TT_TRY(tt_uds_connect(info->uds, &socket));
  ncclResult_t result = socket >= 0 ? ask(resources, rank, socket, object, fd, bytes) : ncclSuccess;
  if (socket >= 0) close(socket);
  if (result == ncclSystemError || (result == ncclSuccess && *fd >= 0)) return result;
  return TT_FAIL(ncclRemoteError,
                 "rank %d (%s, process %d) does not hand out its memory %llu: it has ended, or is short of open files, "
                 "as its log says then",
                 rank, info->host, info->pid, (unsigned long long)object);
}

/* Called with the lock held. */
static ncclResult_t reach(struct tt_resources *resources, int rank)
{
  struct reached *reached = &resources->reached[rank];
  const struct tt_peer_info *info = &resources->infos[rank], *me = &resources->infos[resources->rank];
  if (reached->asked) return ncclSuccess;
  if (info->process == me->process) {
    reached->arena = tt_arena_find(info->uds);
  } else if (info->host_hash == me->host_hash) {
    int socket = -1;
    uint64_t bytes;
    TT_TRY(tt_uds_connect(info->uds, &socket));
    if (socket >= 0) {
      ncclResult_t result = ask(resources, rank, socket, TT_MEMORY_ARENA, &reached->fd, &bytes);
      close(socket);
      /* What this process lacks, a descriptor most likely, is no fault of the peer. */
      if (result == ncclSystemError) return result;
      if (result != ncclSuccess)
        TT_INFO(TT_INIT | TT_SHM, "Rank %d does not hand out its memory although its socket is on this host", rank);
    }
  }
  reached->asked = true;
  return ncclSuccess;
}

ncclResult_t tt_resources_reach(struct tt_resources *resources, int rank, struct tt_arena **arena, int *fd)
{
  pthread_mutex_lock(&resources->lock);
  ncclResult_t result = reach(resources, rank);
  *arena = resources->reached[rank].arena;
  *fd = resources->reached[rank].fd;
  pthread_mutex_unlock(&resources->lock);
  return result;
}

bool tt_resources_is_local(struct tt_resources *resources, int rank)
{
  pthread_mutex_lock(&resources->lock);
  bool local = resources->reached[rank].arena != NULL;
  pthread_mutex_unlock(&resources->lock);
  return local;
}

ncclResult_t tt_resources_map(struct tt_resources *resources, int rank, int name, uint64_t offset, size_t bytes,
                              void **ptr)
{
  const struct tt_peer_info *info = &resources->infos[rank];
  struct tt_arena *arena;
  int fd;
  *ptr = NULL;
  TT_TRY(tt_resources_reach(resources, rank, &arena, &fd));
  if (arena) {
    *ptr = tt_arena_at(arena, offset, bytes);
    if (*ptr) return ncclSuccess;
    return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which is not in its memory", name, bytes,
                   (unsigned long long)offset);
  }
  if (fd >= 0) return tt_shm_map(fd, offset, bytes, ptr);
  return TT_FAIL(ncclRemoteError,
                 "rank %d (%s, process %d) does not hand out its shared memory any more: it has ended, or is short of "
                 "open files, as its log says then",
                 name, info->host, info->pid);
}

void tt_resources_unmap(struct tt_resources *resources, int rank, void *ptr, size_t bytes)
{
  if (ptr && !tt_resources_is_local(resources, rank)) tt_shm_unmap(ptr, bytes);
}
