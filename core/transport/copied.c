/* Ranks whose devices map each other's memory, where copy engines move the data and not the devices' processors
 * (NCCL_P2P_USE_CUDA_MEMCPY=1). Each end has slots in its own device's memory, and counters in memory of its host; the
 * sending rank's proxy copies from the ones into the others. Simple only: the other protocols have no messages that can
 * be copied as a whole, and use device_memory.c.
 *
 * Handshake: as in device_conn.h; then where in the rank's shared memory this end's counters lie, and the place of its
 * slots. */
#include <stdio.h>
#include "base/check.h"
#include "base/param.h"
#include "proxy/copy.h"
#include "transport/device_conn.h"
#include "transport/memory.h"

#define PAGE ((size_t)4096)

/* What both ends have in memory of the host: the receiver's is shared with the sender. */
struct counters {
  _Alignas(64) _Atomic uint64_t tail;
  _Alignas(64) _Atomic uint64_t head;
  _Alignas(64) struct tt_conn_fifo fifo[TT_SLOTS];
};
_Static_assert(sizeof(struct counters) <= PAGE, "a page has it");

struct copied_resources {
  struct tt_device_conn common;
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
  /* Hosts of a fabric reach each other's devices, but not the counters. */
  if (env->peers[from].node != env->peers[to].node) return false;
  if (!tt_transport_device.can(env, from, to, reason, size)) {
    reason[0] = '\0'; /* that one says it */
    return false;
  }
  if ((env->device->features & features) == features) return true;
  snprintf(reason, size, "device %s has no copy engines that it could use", env->device->name);
  return false;
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
  TT_TRY(tt_device_conn_begin(env, connector, "memory that is copied", &resources->common));
  const struct tt_buffers *buffers = &resources->common.buffers;
  TT_TRY(tt_slabs_alloc(env->slabs, buffers->bytes, &resources->mine));
  connector->bytes = resources->mine.bytes;
  tt_buffers_apply(buffers, resources->mine.ptr, &connector->conn);
  TT_TRY(make_counters(env, connector, resources));
  struct tt_wire_writer w = tt_device_conn_write(connector, &resources->common, mine);
  tt_wire_put_int(&w, resources->counters_at, 8);
  TT_TRY(tt_device_conn_write_place(env, connector, &resources->mine, &w));
  tt_device_conn_written(&w, mine);
  return ncclSuccess;
}

/* The sending end: finds the receiver's slots and counters, and lets the proxy go on. */
static ncclResult_t start_copying(struct tt_transport_env *env, struct tt_connector *connector,
                                  const struct tt_device_place *place, uint64_t counters_at)
{
  struct copied_resources *resources = connector->resources;
  const struct tt_buffers *buffers = &resources->common.buffers;
  unsigned char *at;
  void *block;
  char text[64];
  TT_TRY(tt_device_conn_import(env, connector, place, buffers->bytes, &resources->theirs, &at));
  TT_TRY(tt_peer_memory_map(env->memory, connector->peer, counters_at, PAGE, &block));
  resources->theirs_shown = block;
  tt_transport_copied.label(env, connector, text, sizeof(text));
  struct tt_proxy_copy_config config = {.device = env->device,
                                        .context = env->context->handle,
                                        .from = &connector->conn,
                                        .to = at + buffers->slots[TT_PROTO_SIMPLE],
                                        .tail = &resources->theirs_shown->tail,
                                        .head = &resources->theirs_shown->head,
                                        .fifo = resources->theirs_shown->fifo,
                                        .peer = connector->peer,
                                        .label = text};
  return tt_proxy_copy_create(env->proxy, &config, &resources->copy);
}

static ncclResult_t connect_copied(struct tt_transport_env *env, struct tt_connector *connector,
                                   const struct tt_handshake *theirs, bool *done)
{
  struct copied_resources *resources = connector->resources;
  struct tt_wire_reader r;
  struct tt_device_place place;
  *done = false;
  TT_TRY(tt_device_conn_read(connector, &resources->common, theirs, &r));
  uint64_t counters_at = tt_wire_get_int(&r, 8);
  tt_device_conn_read_place(env, connector, &r, &place);
  if (counters_at % PAGE != 0) r.bad = true;
  TT_TRY(tt_device_conn_read_all(connector, &resources->common, &r));
  resources->kind = place.source.shown.kind;
  if (connector->send) TT_TRY(start_copying(env, connector, &place, counters_at));
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
  tt_device_conn_end(connector);
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  const struct copied_resources *resources = connector->resources;
  (void)env;
  snprintf(text, size, "P2P/%s/CE", tt_device_conn_kind(resources->kind));
}

const struct tt_transport tt_transport_copied = {
    .name = "P2P/CE", .can = can, .setup = setup, .connect = connect_copied, .close = close_copied, .label = label};
