/* Ranks that share memory. The receiving end has the block in its memory; the sending end maps it and writes. Each end
 * rings the other's doorbell.
 *
 * Handshake: version, role, doorbell; the receiving end adds its block's place and the bytes of each slot. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "transport/buffers.h"
#include "transport/memory.h"
#include "transport/near.h"
#include "transport/wire.h"

#define PEER_VERSION 1

struct peer_resources {
  struct tt_buffers buffers;
  void *block; /* receiving: allocated; sending: mapped */
  uint64_t offset;
};

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  if (tt_transport_device_memory(env)) return false; /* host_memory.c is for them */
  return tt_near_can_share(env, from, to, reason, size);
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct peer_resources *resources;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  TT_TRY(tt_buffers_layout(env, TT_ALL_PROTOCOLS, &resources->buffers));
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, PEER_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, env->bell_offset, 8);
  if (!connector->send) {
    TT_TRY(tt_shm_alloc(env->shm, resources->buffers.bytes, &resources->block, &resources->offset));
    connector->bytes = resources->buffers.bytes;
    tt_buffers_apply(&resources->buffers, resources->block, &connector->conn);
    tt_buffers_start(&connector->conn, env->first_step);
    tt_wire_put_int(&w, resources->offset, 8);
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) tt_wire_put_int(&w, resources->buffers.slot_bytes[p], 8);
  }
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

struct theirs {
  uint64_t bell, block, slot_bytes[TT_NUM_PROTOCOLS];
};

static ncclResult_t parse(const struct tt_connector *connector, const struct tt_handshake *handshake,
                          struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != PEER_VERSION)
    return TT_FAIL(ncclRemoteError, "rank %d connects shared memory in version %u, this rank in %d", connector->peer,
                   version, PEER_VERSION);
  bool sends = tt_wire_get_int(&r, 1) != 0;
  theirs->bell = tt_wire_get_int(&r, 8);
  if (connector->send) {
    theirs->block = tt_wire_get_int(&r, 8);
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) theirs->slot_bytes[p] = tt_wire_get_int(&r, 8);
  }
  if (r.bad || r.at != r.size || sends == connector->send)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for shared memory", connector->peer,
                   handshake->bytes);
  return ncclSuccess;
}

static ncclResult_t map_block(struct tt_transport_env *env, struct tt_connector *connector, const struct theirs *theirs)
{
  struct peer_resources *resources = connector->resources;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (theirs->slot_bytes[p] != resources->buffers.slot_bytes[p])
      return TT_FAIL(
          ncclInvalidUsage,
          "rank %d has slots of %llu bytes for protocol %d, this rank %zu: buffer sizes must be equal on all "
          "ranks",
          connector->peer, (unsigned long long)theirs->slot_bytes[p], p, resources->buffers.slot_bytes[p]);
  if (theirs->block % 64 != 0)
    return TT_FAIL(ncclRemoteError, "rank %d named a block at %llu, which is not aligned", connector->peer,
                   (unsigned long long)theirs->block);
  TT_TRY(tt_peer_memory_map(env->memory, connector->peer, theirs->block, resources->buffers.bytes, &resources->block));
  tt_buffers_apply(&resources->buffers, resources->block, &connector->conn);
  return ncclSuccess;
}

static ncclResult_t connect_peer(struct tt_transport_env *env, struct tt_connector *connector,
                                 const struct tt_handshake *handshake, bool *done)
{
  struct theirs theirs;
  *done = false;
  TT_TRY(parse(connector, handshake, &theirs));
  if (connector->send) TT_TRY(map_block(env, connector, &theirs));
  TT_TRY(tt_peer_memory_peer_bell(env->memory, connector->peer, theirs.bell, &connector->conn.peer_bell));
  *done = true;
  return ncclSuccess;
}

static void close_peer(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct peer_resources *resources = connector->resources;
  if (!resources) return;
  if (connector->send)
    tt_peer_memory_unmap(env->memory, connector->peer, resources->block, resources->buffers.bytes);
  else if (resources->block)
    tt_shm_free(env->shm, resources->block, resources->buffers.bytes);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  (void)env;
  (void)connector;
  snprintf(text, size, "SHM/direct/direct");
}

const struct tt_transport tt_transport_peer = {
    .name = "SHM", .can = can, .setup = setup, .connect = connect_peer, .close = close_peer, .label = label};
