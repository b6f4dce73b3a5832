/* Other ranks' allocations, mapped on this rank's device, and descriptors on their way to other processes. */
#include "transport/user_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "transport/memory.h"

/* Numbers of slabs are below; see transport/memory_wire.h. */
#define FIRST_OBJECT ((uint64_t)1 << 32)

/* ---- Descriptors ---- */

ncclResult_t tt_user_show(struct tt_user_buffers *buffers, int fd, uint64_t id, uint64_t bytes, uint64_t *object)
{
  struct tt_user_shown *shown;
  ncclResult_t result = TT_CALLOC(&shown, 1);
  if (result != ncclSuccess) {
    close(fd);
    return result;
  }
  pthread_mutex_lock(&buffers->lock);
  *shown = (struct tt_user_shown){.next = buffers->shown,
                                  .object = FIRST_OBJECT + buffers->last_object++,
                                  .id = id,
                                  .uses = 1,
                                  .fd = fd,
                                  .bytes = bytes};
  buffers->shown = shown;
  *object = shown->object;
  pthread_mutex_unlock(&buffers->lock);
  return ncclSuccess;
}

bool tt_user_show_again(struct tt_user_buffers *buffers, uint64_t id, uint64_t *object)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_shown *shown = buffers->shown;
  while (shown && shown->id != id) shown = shown->next;
  if (shown) {
    shown->uses++;
    *object = shown->object;
  }
  pthread_mutex_unlock(&buffers->lock);
  return shown != NULL;
}

void tt_user_show_longer(struct tt_user_buffers *buffers, uint64_t object)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_shown *shown = buffers->shown;
  while (shown && shown->object != object) shown = shown->next;
  if (shown) shown->uses++;
  pthread_mutex_unlock(&buffers->lock);
}

void tt_user_withdraw(struct tt_user_buffers *buffers, uint64_t object)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_shown **place = &buffers->shown;
  while (*place && (*place)->object != object) place = &(*place)->next;
  struct tt_user_shown *shown = *place;
  if (shown && --shown->uses > 0) shown = NULL;
  if (shown) *place = shown->next;
  pthread_mutex_unlock(&buffers->lock);
  if (!shown) return;
  close(shown->fd);
  free(shown);
}

int tt_user_buffers_descriptor(struct tt_user_buffers *buffers, uint64_t object, uint64_t *bytes)
{
  int fd = -1;
  *bytes = 0;
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_shown *shown = buffers->shown;
  while (shown && shown->object != object) shown = shown->next;
  if (shown) {
    fd = fcntl(shown->fd, F_DUPFD_CLOEXEC, 0);
    *bytes = shown->bytes;
  }
  pthread_mutex_unlock(&buffers->lock);
  return fd;
}

/* ---- Imports ---- */

static bool is_of(const struct tt_user_import *import, int rank, const struct tt_user_range *range)
{
  if (import->rank != rank || import->nparts != range->nparts) return false;
  for (uint32_t p = 0; p < range->nparts; p++)
    if (import->ids[p] != range->parts[p].id) return false;
  return true;
}

static struct tt_user_import *find(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_import *import = buffers->imports;
  while (import && !is_of(import, rank, range)) import = import->next;
  if (import) import->uses++;
  pthread_mutex_unlock(&buffers->lock);
  return import;
}

/* The export of one allocation, as the device takes it. */
static ncclResult_t fetch(const struct tt_transport_env *env, int rank, const struct tt_user_part *part,
                          struct tt_device_export *from)
{
  *from = part->exports[tt_user_way(env, rank)];
  from->fd = -1;
  if (from->kind == TT_EXPORT_FD)
    TT_TRY(tt_peer_memory_fetch(env->memory, rank, part->object, &from->fd, &from->bytes));
  if (from->bytes == part->bytes) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "rank %d's memory has %llu bytes here, and %llu there", rank,
                 (unsigned long long)from->bytes, (unsigned long long)part->bytes);
}

static ncclResult_t import(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                           struct tt_device_memory *memory)
{
  const struct tt_transport_env *env = buffers->env;
  struct tt_device_context *context = buffers->context->handle;
  struct tt_device_export *from;
  ncclResult_t result = ncclSuccess;
  uint64_t bytes = 0;
  TT_TRY(TT_CALLOC(&from, range->nparts));
  for (uint32_t p = 0; p < range->nparts; p++) from[p].fd = -1;
  for (uint32_t p = 0; p < range->nparts; p++) {
    TT_TRY_GOTO(fetch(env, rank, &range->parts[p], &from[p]), result, out);
    bytes += range->parts[p].bytes;
  }
  TT_TRY_GOTO(range->nparts == 1 ? env->device->import_memory(context, from, memory)
                                 : env->device->import_parts(context, from, (int)range->nparts, memory),
              result, out);
  if (memory->bytes >= bytes) goto out;
  result = TT_FAIL(ncclRemoteError, "rank %d's memory has %llu bytes here, and %llu there", rank,
                   (unsigned long long)memory->bytes, (unsigned long long)bytes);
  env->device->release(context, memory);
out:
  for (uint32_t p = 0; p < range->nparts; p++)
    if (from[p].fd >= 0) close(from[p].fd);
  free(from);
  return result;
}

static void free_import(struct tt_user_import *import)
{
  free(import->ids);
  free(import);
}

static ncclResult_t make_import(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                                struct tt_user_import *made)
{
  made->rank = rank;
  made->uses = 1;
  made->nparts = range->nparts;
  TT_TRY(TT_CALLOC(&made->ids, range->nparts));
  for (uint32_t p = 0; p < range->nparts; p++) made->ids[p] = range->parts[p].id;
  return import(buffers, rank, range, &made->memory);
}

/* Only who opens a window or captures imports, one at a time, so that between the look and the entry nobody else does.
 */
ncclResult_t tt_user_import(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                            struct tt_user_import **out)
{
  struct tt_user_import *made;
  if ((*out = find(buffers, rank, range)) != NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&made, 1));
  ncclResult_t result = make_import(buffers, rank, range, made);
  if (result != ncclSuccess) {
    free_import(made);
    return result;
  }
  pthread_mutex_lock(&buffers->lock);
  made->next = buffers->imports;
  buffers->imports = *out = made;
  pthread_mutex_unlock(&buffers->lock);
  return ncclSuccess;
}

void tt_user_import_end(struct tt_user_buffers *buffers, struct tt_user_import *import)
{
  if (!import) return;
  pthread_mutex_lock(&buffers->lock);
  bool last = --import->uses == 0;
  if (last) {
    struct tt_user_import **place = &buffers->imports;
    while (*place != import) place = &(*place)->next;
    *place = import->next;
  }
  pthread_mutex_unlock(&buffers->lock);
  if (!last) return;
  buffers->env->device->release(buffers->context->handle, &import->memory);
  free_import(import);
}
