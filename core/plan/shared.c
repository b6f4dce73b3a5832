/* See shared.h. */
#include "plan/shared.h"

#include <stdlib.h>
#include "base/check.h"
#include "base/param.h"
#include "plan/comm.h"
#include "plan/team.h"
#include "transport/memory.h"

/* Chunks of a channel's area begin at multiples of this. */
#define ALIGN 64
/* Chunks of shared memory in any program: at most so many for each rank. */
#define MOST_CHUNKS 4
/* From so many nodes on NVLSTree has smaller chunks, since their steps follow each other: NCCL's numbers. */
#define DEEP_NODES 4
#define DEEP_CHUNK ((size_t)64 << 10)

struct tt_shared_memory {
  int channels;
  size_t area;   /* bytes of a channel */
  int own;       /* this rank's place among the node's */
  int count;     /* the node's ranks */
  int32_t *rank; /* ascending */
  void **copies; /* by place; NULL with a team */
  struct tt_team team;
};

static size_t round_up(size_t value, size_t to)
{
  return (value + to - 1) / to * to;
}

static size_t copy_bytes(const struct tt_shared_memory *shared)
{
  return shared->area * (size_t)shared->channels;
}

/* A channel's area is as large as a connection's buffer. */
static ncclResult_t find_members(const struct ncclComm *comm, struct tt_shared_memory *shared)
{
  shared->area =
      round_up(TT_MAX(comm->env->buffer_bytes[TT_PROTO_SIMPLE], (size_t)comm->nranks * MOST_CHUNKS * ALIGN), ALIGN);
  TT_TRY(TT_CALLOC(&shared->rank, (size_t)comm->local_ranks));
  for (int r = 0; r < comm->nranks; r++) {
    if (comm->node[r] != comm->node[comm->rank]) continue;
    if (r == comm->rank) shared->own = shared->count;
    shared->rank[shared->count++] = r;
  }
  return ncclSuccess;
}

/* What ranks tell each other of their copies. */
struct offer {
  uint64_t offset, bytes; /* 0 bytes: it could not be made */
};

static ncclResult_t map_all(const struct ncclComm *comm, struct tt_shared_memory *shared, const struct offer *offers)
{
  for (int r = 0; r < comm->nranks; r++) {
    if (offers[r].bytes == 0)
      return TT_FAIL(ncclSystemError, "rank %d has no memory for its copy of the %zu bytes that ranks share", r,
                     copy_bytes(shared));
    if (offers[r].bytes != copy_bytes(shared))
      return TT_FAIL(ncclRemoteError, "rank %d shares %llu bytes and rank %d %zu", r,
                     (unsigned long long)offers[r].bytes, comm->rank, copy_bytes(shared));
  }
  for (int m = 0; m < shared->count; m++)
    if (m != shared->own)
      TT_TRY(tt_peer_memory_map(comm->env->memory, shared->rank[m], offers[shared->rank[m]].offset, copy_bytes(shared),
                                &shared->copies[m]));
  return ncclSuccess;
}

/* Where there is no multicast address. */
static ncclResult_t emulate(struct ncclComm *comm, struct tt_shared_memory *shared)
{
  struct offer *offers = NULL;
  TT_TRY(TT_CALLOC(&shared->copies, (size_t)comm->local_ranks));
  TT_TRY(TT_CALLOC(&offers, (size_t)comm->nranks));
  struct offer *mine = &offers[comm->rank];
  ncclResult_t result,
      made = tt_shm_alloc(comm->env->shm, copy_bytes(shared), &shared->copies[shared->own], &mine->offset);
  if (made == ncclSuccess) mine->bytes = copy_bytes(shared); /* else the others learn of it, instead of waiting */
  TT_TRY_GOTO(tt_bootstrap_all_gather(comm->bootstrap, offers, sizeof *offers), result, out);
  TT_TRY_GOTO(made, result, out);
  TT_TRY_GOTO(map_all(comm, shared, offers), result, out);
  TT_INFO(TT_INIT | TT_NVLS,
          "%d ranks of this host share memory, %zu bytes on each, for %d channels; multicast is emulated",
          shared->count, copy_bytes(shared), shared->channels);
out:
  free(offers);
  return result;
}

ncclResult_t tt_shared_join(struct ncclComm *comm, int channels)
{
  struct tt_shared_memory *shared;
  if (channels == 0) return ncclSuccess;
  TT_TRY(TT_CALLOC(&shared, 1));
  comm->shared = shared;
  shared->channels = channels;
  TT_TRY(find_members(comm, shared));
  if (!comm->multicast.possible) return emulate(comm, shared);
  TT_TRY(tt_team_join(comm, copy_bytes(shared), &shared->team));
  TT_INFO(TT_INIT | TT_NVLS, "%d devices share memory with a multicast address, %zu bytes on each, for %d channels",
          shared->count, copy_bytes(shared), channels);
  return ncclSuccess;
}

void tt_shared_leave(struct ncclComm *comm)
{
  struct tt_shared_memory *shared = comm->shared;
  if (shared == NULL) return;
  tt_team_leave(comm, &shared->team);
  for (int m = 0; shared->copies != NULL && m < shared->count; m++)
    if (m != shared->own)
      tt_peer_memory_unmap(comm->env->memory, shared->rank[m], shared->copies[m], copy_bytes(shared));
    else
      tt_shm_free(comm->env->shm, shared->copies[m], copy_bytes(shared));
  free(shared->rank);
  free(shared->copies);
  free(shared);
  comm->shared = NULL;
}

size_t tt_shared_bytes(const struct ncclComm *comm)
{
  return comm->shared == NULL ? 0 : copy_bytes(comm->shared);
}

size_t tt_shared_largest(int nnodes)
{
  size_t largest = (size_t)tt_param_int(TT_PARAM_NCCL_NVLS_CHUNKSIZE);
  int64_t of_trees = tt_param_int(TT_PARAM_NCCL_NVLSTREE_MAX_CHUNKSIZE);
  if (nnodes > 1 && of_trees > 0) largest = TT_MIN(largest, (size_t)of_trees);
  if (nnodes >= DEEP_NODES && of_trees <= 0) largest = TT_MIN(largest, DEEP_CHUNK);
  return TT_MAX(largest / ALIGN * ALIGN, ALIGN);
}

size_t tt_shared_chunk(const struct ncclComm *comm, const struct tt_program *program, size_t capacity)
{
  if (program->shared_blocks == 0 || comm->shared == NULL) return capacity;
  size_t chunks = (size_t)program->shared_blocks * program->parts;
  capacity = TT_MIN(capacity, tt_shared_largest(comm->nnodes));
  return TT_MIN(capacity, comm->shared->area / chunks / ALIGN * ALIGN);
}

ncclResult_t tt_shared_place(const struct ncclComm *comm, struct tt_work *work, int channel, size_t element)
{
  const struct tt_program *program = work->channels[channel].program;
  struct tt_geometry *geometry = &work->channels[channel].geometry;
  const struct tt_shared_memory *shared = comm->shared;
  if (program->shared_blocks == 0) return ncclSuccess;
  if (shared == NULL || channel >= shared->channels || program->nmembers != (uint32_t)shared->count)
    return TT_FAIL(ncclInternalError,
                   "rank %d: a program wants memory shared by %u ranks on channel %d; there is that "
                   "of %d on %d channels",
                   comm->rank, program->nmembers, channel, shared ? shared->count : 0, shared ? shared->channels : 0);
  work->shared = shared->copies != NULL ? shared->copies[shared->own] : shared->team.own;
  work->copies = shared->copies;
  work->multicast = shared->team.all;
  geometry->shared_lo = (size_t)channel * shared->area / element;
  geometry->shared_stride = program->parts * geometry->chunk;
  return ncclSuccess;
}
