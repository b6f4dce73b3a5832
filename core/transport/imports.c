/* See imports.h. */
#include "transport/imports.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "device/slab.h"

struct tt_import {
  struct tt_import *next;
  int rank;
  uint32_t number;
  unsigned references;
  struct tt_device_memory memory;
  struct tt_slab *slab; /* of a rank of this process, kept alive; else NULL */
};

struct tt_imports {
  struct tt_context *context;
  struct tt_peer_memory *memory;
  const struct tt_peer_info *peers;
  pthread_mutex_t lock; /* of the list and what is on it */
  struct tt_import *list;
};

ncclResult_t tt_imports_create(struct tt_context *context, struct tt_peer_memory *memory,
                               const struct tt_peer_info *peers, struct tt_imports **out)
{
  *out = NULL;
  struct tt_imports *imports;
  TT_TRY(TT_CALLOC(&imports, 1));
  imports->context = tt_context_retain(context);
  imports->memory = memory;
  imports->peers = peers;
  pthread_mutex_init(&imports->lock, NULL);
  *out = imports;
  return ncclSuccess;
}

/* The import first, then what it is an import of. */
static void end(struct tt_imports *imports, struct tt_import *import)
{
  imports->context->device->release(imports->context->handle, &import->memory);
  tt_slab_release(import->slab);
  free(import);
}

void tt_imports_destroy(struct tt_imports *imports)
{
  if (!imports) return;
  while (imports->list) {
    struct tt_import *next = imports->list->next;
    end(imports, imports->list);
    imports->list = next;
  }
  tt_context_release(imports->context);
  pthread_mutex_destroy(&imports->lock);
  free(imports);
}

/* What the device imports from: of this process the slab itself, else a descriptor, which is the caller's to close, or
 * the handle that was told. */
static ncclResult_t reach(struct tt_imports *imports, const struct tt_import_source *source, struct tt_import *import,
                          struct tt_device_export *from)
{
  const struct tt_peer_info *info = &imports->peers[source->rank];
  switch (source->shown.kind) {
  case TT_EXPORT_LOCAL:
    import->slab = tt_slab_find(info->uds, source->number);
    if (import->slab) return tt_slab_export(import->slab, TT_EXPORT_HERE, from);
    break;
  case TT_EXPORT_FD:
    from->kind = TT_EXPORT_FD;
    return tt_peer_memory_fetch(imports->memory, source->rank, source->number, &from->fd, &from->bytes);
  case TT_EXPORT_HANDLE:
  case TT_EXPORT_FABRIC:
    *from = source->shown;
    from->fd = -1;
    return ncclSuccess;
  default:
    break;
  }
  return TT_FAIL(ncclRemoteError, "rank %d named its device memory %u (kind %u), which is not there", source->rank,
                 source->number, source->shown.kind);
}

static ncclResult_t begin(struct tt_imports *imports, const struct tt_import_source *source, struct tt_import **out)
{
  const struct tt_context *context = imports->context;
  struct tt_import *import;
  struct tt_device_export from = {.fd = -1};
  TT_TRY(TT_CALLOC(&import, 1));
  import->rank = source->rank;
  import->number = source->number;
  ncclResult_t result = reach(imports, source, import, &from);
  if (result == ncclSuccess) {
    result = context->device->import_memory(context->handle, &from, &import->memory);
    if (result != ncclSuccess)
      result =
          TT_FAIL(result, "memory of rank %d (%s, process %d) cannot be used on this rank's device: %s", source->rank,
                  imports->peers[source->rank].host, imports->peers[source->rank].pid, tt_log_thread_error());
  }
  /* A descriptor that the slab keeps is not ours. */
  if (!import->slab && from.fd >= 0) close(from.fd);
  if (result != ncclSuccess) {
    tt_slab_release(import->slab);
    free(import);
    return result;
  }
  import->next = imports->list;
  imports->list = *out = import;
  return ncclSuccess;
}

ncclResult_t tt_imports_get(struct tt_imports *imports, const struct tt_import_source *source, struct tt_import **out)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&imports->lock);
  struct tt_import *import = imports->list;
  while (import && (import->rank != source->rank || import->number != source->number)) import = import->next;
  if (!import) result = begin(imports, source, &import);
  if (result == ncclSuccess) import->references++;
  *out = result == ncclSuccess ? import : NULL;
  pthread_mutex_unlock(&imports->lock);
  return result;
}

void tt_imports_put(struct tt_imports *imports, struct tt_import *import)
{
  if (!import) return;
  pthread_mutex_lock(&imports->lock);
  if (--import->references == 0) {
    struct tt_import **link = &imports->list;
    while (*link != import) link = &(*link)->next;
    *link = import->next;
    end(imports, import);
  }
  pthread_mutex_unlock(&imports->lock);
}

unsigned char *tt_import_at(const struct tt_import *import, uint64_t offset, size_t bytes)
{
  bool inside = offset <= import->memory.bytes && bytes <= import->memory.bytes - offset;
  return inside && offset % TT_SLAB_ALIGNMENT == 0 ? (unsigned char *)import->memory.ptr + offset : NULL;
}
