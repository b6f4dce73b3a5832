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

ncclResult_t tt_user_show(struct tt_user_buffers *buffers, int fd, uint64_t bytes, uint64_t *object)
{
  struct tt_user_shown *shown;
  ncclResult_t result = TT_CALLOC(&shown, 1);
  if (result != ncclSuccess) {
    close(fd);
    return result;
  }
  pthread_mutex_lock(&buffers->lock);
  *shown = (struct tt_user_shown){
      .next = buffers->shown, .object = FIRST_OBJECT + buffers->last_object++, .fd = fd, .bytes = bytes};
  buffers->shown = shown;
  *object = shown->object;
  pthread_mutex_unlock(&buffers->lock);
  return ncclSuccess;
}

void tt_user_withdraw(struct tt_user_buffers *buffers, uint64_t object)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_shown **place = &buffers->shown;
  while (*place && (*place)->object != object) place = &(*place)->next;
  struct tt_user_shown *shown = *place;
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

static struct tt_user_import *find(struct tt_user_buffers *buffers, const struct tt_user_source *source)
{
  pthread_mutex_lock(&buffers->lock);
  struct tt_user_import *import = buffers->imports;
  while (import && (import->rank != source->rank || import->id != source->id)) import = import->next;
  if (import) import->uses++;
  pthread_mutex_unlock(&buffers->lock);
  return import;
}

static ncclResult_t import(struct tt_user_buffers *buffers, const struct tt_user_source *source,
                           struct tt_device_memory *memory)
{
  struct tt_transport_env *env = buffers->env;
  struct tt_device_export from = source->shown;
  from.fd = -1;
  if (from.kind == TT_EXPORT_FD)
    TT_TRY(tt_peer_memory_fetch(env->memory, source->rank, source->object, &from.fd, &from.bytes));
  ncclResult_t result = env->device->import_memory(buffers->context->handle, &from, memory);
  if (from.fd >= 0) close(from.fd);
  if (result == ncclSuccess && memory->bytes < source->shown.bytes) {
    env->device->release(buffers->context->handle, memory);
    result = TT_FAIL(ncclRemoteError, "rank %d's memory has %llu bytes here, and %llu there", source->rank,
                     (unsigned long long)memory->bytes, (unsigned long long)source->shown.bytes);
  }
  return result;
}

/* Only who opens a window imports, one at a time, so that between the look and the entry nobody else does. */
ncclResult_t tt_user_import(struct tt_user_buffers *buffers, const struct tt_user_source *source,
                            struct tt_user_import **out)
{
  struct tt_user_import *made;
  if ((*out = find(buffers, source)) != NULL) return ncclSuccess;
  TT_TRY(TT_CALLOC(&made, 1));
  made->rank = source->rank;
  made->id = source->id;
  made->uses = 1;
  ncclResult_t result = import(buffers, source, &made->memory);
  if (result != ncclSuccess) {
    free(made);
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
  free(import);
}
