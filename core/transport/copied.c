/* Ranks whose devices map each other's memory, where copy engines move the data and not the devices' processors
 * (NCCL_P2P_USE_CUDA_MEMCPY=1). Each end has slots in its own device's memory, and counters in memory of its host; the
 * sending rank's proxy copies from the ones into the others. Simple only: the other protocols have no messages that can
 * be copied as a whole, and use device_memory.c.
 *
 * Handshake: version, role, how this end's slab is exported, its number and bytes, where in it this end's slots begin,
 * the bytes of a slot; where in the rank's shared memory its counters lie; for exports of kind HANDLE the handle. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/check.h"
#include "base/param.h"
#include "proxy/copy.h"
#include "transport/buffers.h"
#include "transport/imports.h"
#include "transport/memory.h"
#include "transport/transport.h"
#include "transport/wire.h"

#define COPIED_VERSION 1
#define PAGE ((size_t)4096)

/* What both ends have in memory of the host: the receiver's is shared with the sender. */
struct counters {
  _Alignas(64) _Atomic uint64_t tail;
  _Alignas(64) _Atomic uint64_t head;
  _Alignas(64) struct tt_conn_fifo fifo[TT_SLOTS];
};
_Static_assert(sizeof(struct counters) <= PAGE, "a page has it");

struct copied_resources {
  struct tt_buffers buffers;
  struct tt_slab_piece mine;
  struct tt_import *theirs;  /* of the sending end: the receiver's slots */
  struct counters *counters; /* this end's, a page in this rank's shared memory */
  uint64_t counters_at;
  bool mapped;                   /* the device has them mapped */
  struct counters *theirs_shown; /* of the sending end: the receiver's */
  struct tt_proxy_copy *copy;
  uint32_t kind; /* TT_EXPORT_*, as the log names it */
};

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  const uint32_t features = TT_DEVICE_COPY | TT_DEVICE_HOST_MEMORY;
  reason[0] = '\0';
  if (!tt_param_int(TT_PARAM_NCCL_P2P_USE_CUDA_MEMCPY) || !tt_transport_device_memory(env)) return false;
  if (!tt_transport_device.can(env, from, to, reason, size)) {
    reason[0] = '\0'; /* that one says it */
    return false;
  }
  if ((env->device->features & features) == features) return true;
  snprintf(reason, size, "device %s has no copy engines that it could use", env->device->name);
  return false;
}

static bool same_process(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  return env->peers[connector->peer].process == env->peers[env->rank].process;
}

/* This end's counters, in memory of the host that its device has mapped. */
static ncclResult_t make_counters(struct tt_transport_env *env, struct tt_connector *connector,
                                  struct copied_resources *resources)
{
  void *block, *at;
  TT_TRY(tt_shm_alloc(env->shm, PAGE, &block, &resources->counters_at));
  resources->counters = block;
  atomic_store(&resources->counters->tail, env->first_step);
  atomic_store(&resources->counters->head, env->first_step);
  TT_TRY(env->device->map_host(env->context->handle, block, PAGE, &at));
  resources->mapped = true;
  struct counters *shown = at;
  connector->conn.tail = &shown->tail;
  connector->conn.head = &shown->head;
  connector->conn.fifo = shown->fifo;
  connector->conn.flags = TT_CONN_PROXIED;
  return ncclSuccess;
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct copied_resources *resources;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  TT_TRY(tt_buffers_layout(env, 1u << TT_PROTO_SIMPLE, &resources->buffers));
  TT_TRY(tt_slabs_alloc(env->slabs, resources->buffers.bytes, &resources->mine));
  connector->bytes = resources->mine.bytes;
  tt_buffers_apply(&resources->buffers, resources->mine.ptr, &connector->conn);
  TT_TRY(make_counters(env, connector, resources));
  struct tt_device_export shown;
  TT_TRY(tt_slab_export(resources->mine.slab, same_process(env, connector), &shown));
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, COPIED_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, shown.kind, 1);
  tt_wire_put_int(&w, tt_slab_number(resources->mine.slab), 4);
  tt_wire_put_int(&w, shown.bytes, 8);
  tt_wire_put_int(&w, resources->mine.offset, 8);
  tt_wire_put_int(&w, resources->buffers.slot_bytes[TT_PROTO_SIMPLE], 8);
  tt_wire_put_int(&w, resources->counters_at, 8);
  if (shown.kind == TT_EXPORT_HANDLE) tt_wire_put(&w, shown.handle, sizeof(shown.handle));
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

struct theirs {
  struct tt_import_source source;
  uint64_t offset, slot_bytes, counters_at;
};

static ncclResult_t parse(const struct tt_transport_env *env, const struct tt_connector *connector,
                          const struct tt_handshake *handshake, struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  struct tt_device_export *shown = &theirs->source.shown;
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != COPIED_VERSION)
    return TT_FAIL(ncclRemoteError,
                   "rank %d connects memory that is copied in version %u, this rank in %d: set "
                   "NCCL_P2P_USE_CUDA_MEMCPY alike on all ranks",
                   connector->peer, version, COPIED_VERSION);
  theirs->source.rank = connector->peer;
  bool sends = tt_wire_get_int(&r, 1) != 0;
  shown->kind = (uint32_t)tt_wire_get_int(&r, 1);
  shown->fd = -1;
  theirs->source.number = (uint32_t)tt_wire_get_int(&r, 4);
  shown->bytes = tt_wire_get_int(&r, 8);
  theirs->offset = tt_wire_get_int(&r, 8);
  theirs->slot_bytes = tt_wire_get_int(&r, 8);
  theirs->counters_at = tt_wire_get_int(&r, 8);
  const unsigned char *handle = shown->kind == TT_EXPORT_HANDLE ? tt_wire_get(&r, sizeof(shown->handle)) : NULL;
  if (handle) memcpy(shown->handle, handle, sizeof(shown->handle));
  bool good = (shown->kind == TT_EXPORT_LOCAL) == same_process(env, connector) &&
              !(theirs->source.number & TT_SLAB_LENT) && theirs->counters_at % PAGE == 0;
  if (r.bad || r.at != r.size || sends == connector->send || !good)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for memory that is copied",
                   connector->peer, handshake->bytes);
  return ncclSuccess;
}

/* The sending end: finds the receiver's slots and counters, and lets the proxy go on. */
static ncclResult_t start_copying(struct tt_transport_env *env, struct tt_connector *connector,
                                  const struct theirs *theirs)
{
  struct copied_resources *resources = connector->resources;
  void *block;
  char text[64];
  TT_TRY(tt_imports_get(env->imports, &theirs->source, &resources->theirs));
  unsigned char *at = tt_import_at(resources->theirs, theirs->offset, resources->buffers.bytes);
  if (!at)
    return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which are not in its device memory",
                   connector->peer, resources->buffers.bytes, (unsigned long long)theirs->offset);
  TT_TRY(tt_peer_memory_map(env->memory, connector->peer, theirs->counters_at, PAGE, &block));
  resources->theirs_shown = block;
  tt_transport_copied.label(env, connector, text, sizeof(text));
  struct tt_proxy_copy_config config = {.device = env->device,
                                        .context = env->context->handle,
                                        .from = &connector->conn,
                                        .to = at + resources->buffers.slots[TT_PROTO_SIMPLE],
                                        .tail = &resources->theirs_shown->tail,
                                        .head = &resources->theirs_shown->head,
                                        .fifo = resources->theirs_shown->fifo,
                                        .peer = connector->peer,
                                        .label = text};
  return tt_proxy_copy_create(env->proxy, &config, &resources->copy);
}

static ncclResult_t connect_copied(struct tt_transport_env *env, struct tt_connector *connector,
                                   const struct tt_handshake *handshake, bool *done)
{
  struct copied_resources *resources = connector->resources;
  struct theirs theirs = {0};
  *done = false;
  TT_TRY(parse(env, connector, handshake, &theirs));
  if (theirs.slot_bytes != resources->buffers.slot_bytes[TT_PROTO_SIMPLE])
    return TT_FAIL(
        ncclInvalidUsage, "rank %d has slots of %llu bytes, this rank %zu: buffer sizes must be equal on all ranks",
        connector->peer, (unsigned long long)theirs.slot_bytes, resources->buffers.slot_bytes[TT_PROTO_SIMPLE]);
  resources->kind = theirs.source.shown.kind;
  if (connector->send) TT_TRY(start_copying(env, connector, &theirs));
  *done = true;
  return ncclSuccess;
}

static void close_copied(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct copied_resources *resources = connector->resources;
  if (!resources) return;
  tt_proxy_copy_destroy(resources->copy);
  if (resources->theirs_shown) tt_peer_memory_unmap(env->memory, connector->peer, resources->theirs_shown, PAGE);
  tt_imports_put(env->imports, resources->theirs);
  if (resources->mapped) env->device->unmap_host(env->context->handle, resources->counters, PAGE);
  if (resources->counters) tt_shm_free(env->shm, resources->counters, PAGE);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  const struct copied_resources *resources = connector->resources;
  (void)env;
  const char *kind = resources->kind == TT_EXPORT_HANDLE  ? "IPC"
                     : resources->kind == TT_EXPORT_LOCAL ? "direct pointer"
                                                          : "CUMEM";
  snprintf(text, size, "P2P/%s/CE", kind);
}

const struct tt_transport tt_transport_copied = {
    .name = "P2P/CE", .can = can, .setup = setup, .connect = connect_copied, .close = close_copied, .label = label};
