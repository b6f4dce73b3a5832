/* Shared memory by name within one process. */
#include "transport/arena.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/uds.h"

struct tt_arena {
  struct tt_arena *next;
  char name[TT_UDS_NAME_BYTES];
  struct tt_shm *shm;
  unsigned char *base;
  size_t bytes;
  unsigned references; /* guarded by `lock`, as is the list */
  bool listed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_arena *arenas;

ncclResult_t tt_arena_publish(const char *name, struct tt_shm *shm, unsigned char *base, size_t bytes,
                              struct tt_arena **out)
{
  *out = NULL;
  struct tt_arena *arena;
  ncclResult_t result = TT_CALLOC(&arena, 1);
  if (result != ncclSuccess) {
    tt_shm_destroy(shm);
    return result;
  }
  strncpy(arena->name, name, sizeof(arena->name) - 1);
  arena->shm = shm;
  arena->base = base;
  arena->bytes = bytes;
  arena->references = 1;
  arena->listed = true;
  pthread_mutex_lock(&lock);
  arena->next = arenas;
  arenas = arena;
  pthread_mutex_unlock(&lock);
  *out = arena;
  return ncclSuccess;
}

struct tt_arena *tt_arena_find(const char *name)
{
  pthread_mutex_lock(&lock);
  struct tt_arena *arena = arenas;
  while (arena && strcmp(arena->name, name) != 0) arena = arena->next;
  if (arena) arena->references++;
  pthread_mutex_unlock(&lock);
  return arena;
}

static void unlist(struct tt_arena *arena)
{
  if (!arena->listed) return;
  struct tt_arena **link = &arenas;
  while (*link != arena) link = &(*link)->next;
  *link = arena->next;
  arena->listed = false;
}

void tt_arena_withdraw(struct tt_arena *arena)
{
  if (!arena) return;
  pthread_mutex_lock(&lock);
  unlist(arena);
  pthread_mutex_unlock(&lock);
}

void tt_arena_release(struct tt_arena *arena)
{
  if (!arena) return;
  pthread_mutex_lock(&lock);
  bool last = --arena->references == 0;
  if (last) unlist(arena);
  pthread_mutex_unlock(&lock);
  if (!last) return;
  tt_shm_destroy(arena->shm);
  free(arena);
}

void *tt_arena_at(const struct tt_arena *arena, uint64_t offset, size_t bytes)
{
  if (offset > arena->bytes || bytes > arena->bytes - offset) return NULL;
  return arena->base + offset;
}
