/* Ranks of a host whose devices have memory of their own, but do not reach each other's, or are not to: slots and
 * counters lie in the host's memory, which both devices have mapped. It is the receiving end's, as in peer.c; a
 * connection serves one protocol, as in device_memory.c.
 *
 * Handshake: version, role, protocol, bytes of a slot; the receiving end adds its piece's place. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/buffers.h"
#include "transport/pinned.h"
#include "transport/wire.h"

#define HOST_VERSION 1

struct host_resources {
  int protocol;
  struct tt_buffers buffers;
  struct tt_pinned_import *theirs; /* of the sending end, once connected */
};

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  const struct tt_peer_info *a = &env->peers[from], *b = &env->peers[to];
  reason[0] = '\0';
  if (!tt_transport_device_memory(env)) return false;
  if (from == to)
    snprintf(reason, size, "a rank does not connect to itself");
  else if (!(env->device->features & TT_DEVICE_HOST_MEMORY))
    snprintf(reason, size, "device %s cannot use the host's memory", env->device->name);
  else if (tt_param_int(TT_PARAM_NCCL_SHM_DISABLE))
    snprintf(reason, size, "NCCL_SHM_DISABLE is set");
  else if (a->node != b->node)
    snprintf(reason, size, "rank %d is on %s, rank %d on %s%s", from, a->host, to, b->host,
             strcmp(a->host, b->host) == 0 ? ", which do not prove to be one (containers?)" : "");
  else if (env->apart && env->net && env->apart(env->routes, from, to))
    snprintf(reason, size, "by the topology the network is the better way (NCCL_NET_DISABLE_INTRA=1: never)");
  else
    return true;
  return false;
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct host_resources *resources;
  struct tt_pinned_place place = {0};
  unsigned char *at;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  resources->protocol = tt_connect_index_protocol(connector->index);
  TT_TRY(tt_buffers_layout(env, 1u << resources->protocol, &resources->buffers));
  if (resources->buffers.slot_bytes[resources->protocol] == 0)
    return TT_FAIL(ncclInternalError, "device %s has no buffers for protocol %d", env->device->name,
                   resources->protocol);
  if (resources->protocol == TT_PROTO_LL128)
    return TT_FAIL(ncclInternalError,
                   "a connection to rank %d in the host's memory is to serve LL128, whose lines do "
                   "not stay whole there",
                   connector->peer);
  if (!connector->send) {
    TT_TRY(tt_pinned_alloc(env->pinned, resources->buffers.bytes, &place, &at));
    connector->bytes = resources->buffers.bytes;
    tt_buffers_apply(&resources->buffers, at, &connector->conn);
  }
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, HOST_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, (unsigned)resources->protocol, 1);
  tt_wire_put_int(&w, resources->buffers.slot_bytes[resources->protocol], 8);
  if (!connector->send) {
    tt_wire_put_int(&w, place.slab, 8);
    tt_wire_put_int(&w, place.slab_bytes, 8);
    tt_wire_put_int(&w, place.offset, 8);
  }
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

struct theirs {
  int protocol;
  uint64_t slot_bytes;
  struct tt_pinned_place place;
};

static ncclResult_t parse(const struct tt_connector *connector, const struct tt_handshake *handshake,
                          struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != HOST_VERSION)
    return TT_FAIL(ncclRemoteError, "rank %d connects devices by the host's memory in version %u, this rank in %d",
                   connector->peer, version, HOST_VERSION);
  bool sends = tt_wire_get_int(&r, 1) != 0;
  theirs->protocol = (int)tt_wire_get_int(&r, 1);
  theirs->slot_bytes = tt_wire_get_int(&r, 8);
  if (connector->send) {
    theirs->place.slab = tt_wire_get_int(&r, 8);
    theirs->place.slab_bytes = tt_wire_get_int(&r, 8);
    theirs->place.offset = tt_wire_get_int(&r, 8);
  }
  if (r.bad || r.at != r.size || sends == connector->send)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for devices and the host's memory",
                   connector->peer, handshake->bytes);
  return ncclSuccess;
}

static ncclResult_t connect_host(struct tt_transport_env *env, struct tt_connector *connector,
                                 const struct tt_handshake *handshake, bool *done)
{
  struct host_resources *resources = connector->resources;
  struct theirs theirs = {0};
  size_t slot_bytes = resources->buffers.slot_bytes[resources->protocol];
  *done = false;
  TT_TRY(parse(connector, handshake, &theirs));
  if (theirs.protocol != resources->protocol || theirs.slot_bytes != slot_bytes)
    return TT_FAIL(ncclInvalidUsage,
                   "rank %d has slots of %llu bytes for protocol %d, this rank %zu for protocol %d: buffer sizes must "
                   "be equal on all ranks",
                   connector->peer, (unsigned long long)theirs.slot_bytes, theirs.protocol, slot_bytes,
                   resources->protocol);
  if (connector->send) {
    unsigned char *at;
    TT_TRY(
        tt_pinned_get(env->pinned, connector->peer, &theirs.place, resources->buffers.bytes, &resources->theirs, &at));
    tt_buffers_apply(&resources->buffers, at, &connector->conn);
  }
  *done = true;
  return ncclSuccess;
}

static void close_host(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct host_resources *resources = connector->resources;
  if (!resources) return;
  tt_pinned_put(env->pinned, resources->theirs);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  (void)env, (void)connector;
  snprintf(text, size, "SHM/direct/direct");
}

const struct tt_transport tt_transport_host = {
    .name = "SHM", .can = can, .setup = setup, .connect = connect_host, .close = close_host, .label = label};
