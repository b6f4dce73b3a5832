/* Ranks whose devices do not reach each other well, but a third one that lies between them (NVLink from the first to
 * the third and on to the second): slots and counters lie in the third device's memory, which its rank lends. The
 * receiving end asks for it; the third rank's user has no part in it.
 *
 * Handshake: version, role, protocol, the rank between, the bytes of a slot; of the receiving end also the slab's
 * number and where in it the connection's piece begins. */
#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/buffers.h"
#include "transport/lent.h"
#include "transport/reach.h"
#include "transport/transport.h"
#include "transport/wire.h"

#define INDIRECT_VERSION 1

struct indirect_resources {
  int protocol, between;
  struct tt_buffers buffers;
  struct tt_import *theirs; /* of the sending end, once connected */
};

/* The rank whose device lies between; -1: none. */
static int rank_between(const struct tt_transport_env *env, int from, int to)
{
  int rank = env->between ? env->between(env->routes, from, to) : -1;
  return rank >= 0 && rank < env->nranks && rank != from && rank != to ? rank : -1;
}

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  reason[0] = '\0';
  if (!tt_transport_device_memory(env) || from == to || tt_param_int(TT_PARAM_NCCL_P2P_DISABLE)) return false;
  char why[192];
  if (env->far && env->far(env->routes, from, to, why, sizeof(why))) return false; /* as device_memory.c says */
  int between = rank_between(env, from, to);
  if (between < 0 || env->peers[from].node != env->peers[between].node ||
      env->peers[to].node != env->peers[between].node)
    return false;
  if (tt_reach_both_ways(env->reach, env->peers, from, between) &&
      tt_reach_both_ways(env->reach, env->peers, between, to))
    return true;
  snprintf(reason, size, "device %s of rank %d, which lies between, cannot be reached by both", env->peers[between].pci,
           between);
  return false;
}

static void use_block(struct tt_connector *connector, const struct indirect_resources *resources, unsigned char *block)
{
  tt_buffers_apply(&resources->buffers, block, &connector->conn);
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct indirect_resources *resources;
  struct tt_lent_piece piece = {0};
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  resources->protocol = tt_connect_index_protocol(connector->index);
  int from = connector->send ? env->rank : connector->peer, to = connector->send ? connector->peer : env->rank;
  resources->between = rank_between(env, from, to);
  if (resources->between < 0)
    return TT_FAIL(ncclInternalError, "no device lies between those of ranks %d and %d", from, to);
  TT_TRY(tt_buffers_layout(env, 1u << resources->protocol, &resources->buffers));
  if (resources->buffers.slot_bytes[resources->protocol] == 0)
    return TT_FAIL(ncclInternalError, "device %s has no buffers for protocol %d", env->device->name,
                   resources->protocol);
  if (!connector->send) {
    TT_TRY(tt_lent_alloc(env->lent, resources->between, resources->buffers.bytes, &piece));
    use_block(connector, resources, piece.ptr);
    connector->bytes = resources->buffers.bytes;
  }
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, INDIRECT_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, (unsigned)resources->protocol, 1);
  tt_wire_put_int(&w, (uint32_t)resources->between, 4);
  tt_wire_put_int(&w, resources->buffers.slot_bytes[resources->protocol], 8);
  if (!connector->send) {
    tt_wire_put_int(&w, piece.number, 4);
    tt_wire_put_int(&w, piece.offset, 8);
  }
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

struct theirs {
  int protocol, between;
  uint64_t slot_bytes, offset;
  uint32_t number;
};

static ncclResult_t parse(const struct tt_connector *connector, const struct tt_handshake *handshake,
                          struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != INDIRECT_VERSION)
    return TT_FAIL(ncclRemoteError, "rank %d connects memory of a third device in version %u, this rank in %d",
                   connector->peer, version, INDIRECT_VERSION);
  bool sends = tt_wire_get_int(&r, 1) != 0;
  theirs->protocol = (int)tt_wire_get_int(&r, 1);
  theirs->between = (int)tt_wire_get_int(&r, 4);
  theirs->slot_bytes = tt_wire_get_int(&r, 8);
  if (connector->send) {
    theirs->number = (uint32_t)tt_wire_get_int(&r, 4);
    theirs->offset = tt_wire_get_int(&r, 8);
  }
  bool lent = !connector->send || (theirs->number & TT_SLAB_LENT);
  if (r.bad || r.at != r.size || sends == connector->send || !lent)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for memory of a third device",
                   connector->peer, handshake->bytes);
  return ncclSuccess;
}

static ncclResult_t check_same(const struct tt_connector *connector, const struct theirs *theirs)
{
  const struct indirect_resources *resources = connector->resources;
  size_t slot_bytes = resources->buffers.slot_bytes[resources->protocol];
  if (theirs->between != resources->between)
    return TT_FAIL(
        ncclInvalidUsage,
        "rank %d goes through the device of rank %d, this rank through that of rank %d: both must see the same "
        "topology",
        connector->peer, theirs->between, resources->between);
  if (theirs->protocol != resources->protocol || theirs->slot_bytes != slot_bytes)
    return TT_FAIL(
        ncclInvalidUsage,
        "rank %d has slots of %llu bytes for protocol %d, this rank %zu for protocol %d: buffer sizes must be "
        "equal on all ranks",
        connector->peer, (unsigned long long)theirs->slot_bytes, theirs->protocol, slot_bytes, resources->protocol);
  return ncclSuccess;
}

static ncclResult_t connect_indirect(struct tt_transport_env *env, struct tt_connector *connector,
                                     const struct tt_handshake *handshake, bool *done)
{
  struct indirect_resources *resources = connector->resources;
  struct theirs theirs = {0};
  *done = false;
  TT_TRY(parse(connector, handshake, &theirs));
  TT_TRY(check_same(connector, &theirs));
  if (connector->send) {
    struct tt_import_source source = tt_lent_source(env, resources->between, theirs.number);
    TT_TRY(tt_imports_get(env->imports, &source, &resources->theirs));
    unsigned char *at = tt_import_at(resources->theirs, theirs.offset, resources->buffers.bytes);
    if (!at) {
      tt_imports_put(env->imports, resources->theirs);
      resources->theirs = NULL;
      return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which are not in what rank %d lends",
                     connector->peer, resources->buffers.bytes, (unsigned long long)theirs.offset, resources->between);
    }
    use_block(connector, resources, at);
  }
  *done = true;
  return ncclSuccess;
}

static void close_indirect(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct indirect_resources *resources = connector->resources;
  if (!resources) return;
  tt_imports_put(env->imports, resources->theirs);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  const struct indirect_resources *resources = connector->resources;
  snprintf(text, size, "P2P/indirect/%d[%s]", resources->between, env->peers[resources->between].pci);
}

const struct tt_transport tt_transport_indirect = {.name = "P2P/indirect",
                                                   .can = can,
                                                   .setup = setup,
                                                   .connect = connect_indirect,
                                                   .close = close_indirect,
                                                   .label = label};
