/* Ranks of a host whose devices have memory of their own, but do not reach each other's, or are not to: slots and
 * counters lie in the host's memory, which both devices have mapped. It is the receiving end's, as in peer.c; a
 * connection serves one protocol, as in device_memory.c.
 *
 * Handshake: as in device_conn.h; the receiving end adds where in its rank's shared memory its piece lies. */
#include <stdio.h>
#include "base/check.h"
#include "transport/device_conn.h"
#include "transport/near.h"
#include "transport/pinned.h"

struct host_resources {
  struct tt_device_conn common;
  struct tt_pinned_import *theirs; /* of the sending end, once connected */
};

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  reason[0] = '\0';
  if (!tt_transport_device_memory(env)) return false;
  if (env->device->features & TT_DEVICE_HOST_MEMORY) return tt_near_can_share(env, from, to, reason, size);
  snprintf(reason, size, "device %s cannot use the host's memory", env->device->name);
  return false;
}

/* The receiving end's block, and its place in the handshake. */
static ncclResult_t make_block(struct tt_transport_env *env, struct tt_connector *connector, struct tt_wire_writer *w)
{
  struct host_resources *resources = connector->resources;
  const struct tt_buffers *buffers = &resources->common.buffers;
  struct tt_pinned_place place;
  unsigned char *at;
  TT_TRY(tt_pinned_alloc(env->pinned, buffers->bytes, &place, &at));
  connector->bytes = buffers->bytes;
  tt_buffers_apply(buffers, at, &connector->conn);
  tt_wire_put_int(w, place.slab, 8);
  tt_wire_put_int(w, place.slab_bytes, 8);
  tt_wire_put_int(w, place.offset, 8);
  return ncclSuccess;
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct host_resources *resources;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  TT_TRY(tt_device_conn_begin(env, connector, "devices and the host's memory", &resources->common));
  if (resources->common.protocol == TT_PROTO_LL128)
    return TT_FAIL(ncclInternalError,
                   "a connection to rank %d in the host's memory is to serve LL128, whose lines do "
                   "not stay whole there",
                   connector->peer);
  struct tt_wire_writer w = tt_device_conn_write(connector, &resources->common, mine);
  if (!connector->send) TT_TRY(make_block(env, connector, &w));
  tt_device_conn_written(&w, mine);
  return ncclSuccess;
}

static ncclResult_t connect_host(struct tt_transport_env *env, struct tt_connector *connector,
                                 const struct tt_handshake *theirs, bool *done)
{
  struct host_resources *resources = connector->resources;
  const struct tt_buffers *buffers = &resources->common.buffers;
  struct tt_pinned_place place = {0};
  struct tt_wire_reader r;
  unsigned char *at;
  *done = false;
  TT_TRY(tt_device_conn_read(connector, &resources->common, theirs, &r));
  if (connector->send) {
    place.slab = tt_wire_get_int(&r, 8);
    place.slab_bytes = tt_wire_get_int(&r, 8);
    place.offset = tt_wire_get_int(&r, 8);
  }
  TT_TRY(tt_device_conn_read_all(connector, &resources->common, &r));
  if (connector->send) {
    TT_TRY(tt_pinned_get(env->pinned, connector->peer, &place, buffers->bytes, &resources->theirs, &at));
    tt_buffers_apply(buffers, at, &connector->conn);
  }
  *done = true;
  return ncclSuccess;
}

static void close_host(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct host_resources *resources = connector->resources;
  if (!resources) return;
  tt_pinned_put(env->pinned, resources->theirs);
  tt_device_conn_end(connector);
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  (void)env, (void)connector;
  snprintf(text, size, "SHM/direct/direct");
}

const struct tt_transport tt_transport_host = {
    .name = "SHM", .can = can, .setup = setup, .connect = connect_host, .close = close_host, .label = label};
