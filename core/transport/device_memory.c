/* Ranks whose devices map each other's memory. Each end has what it polls in its own memory, the receiving end `tail`,
 * the sending end `head`, and writes what the other end polls. Slots lie in the receiver's memory, so that data is
 * written across the link; or, in the Simple protocol where the topology says so, in the sender's, and are read across
 * it. Data that carries its own news (LL, LL128) is always written. A connection serves one protocol.
 *
 * Handshake: version, role, protocol, whether the receiver reads, how this end's slab is exported, its number and
 * bytes, where in it this end's piece begins, the bytes of a slot; for exports of kinds HANDLE and FABRIC the handle.
 */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/buffers.h"
#include "transport/imports.h"
#include "transport/reach.h"
#include "transport/wire.h"

#define DEVICE_VERSION 2

struct device_resources {
  int protocol;
  bool reads;                /* the receiver reads: the sender has the slots */
  uint32_t theirs_kind;      /* TT_EXPORT_*, once connected */
  struct tt_buffers buffers; /* of the piece of the end that has the slots */
  struct tt_slab_piece mine;
  struct tt_import *theirs;
};

static bool is_reachable(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  if (tt_reach_both_ways(env->reach, env->peers, from, to)) return true;
  snprintf(reason, size, "%s devices %s of rank %d and %s of rank %d cannot map each other's memory", env->device->name,
           env->peers[from].pci, from, env->peers[to].pci, to);
  return false;
}

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  const struct tt_peer_info *a = &env->peers[from], *b = &env->peers[to];
  reason[0] = '\0';
  if (!tt_transport_device_memory(env)) return false;
  if (from == to)
    snprintf(reason, size, "a rank does not connect to itself");
  else if (tt_param_int(TT_PARAM_NCCL_P2P_DISABLE))
    snprintf(reason, size, "NCCL_P2P_DISABLE is set");
  else if (a->node != b->node && a->machine != b->machine)
    snprintf(reason, size, "rank %d is on %s, rank %d on %s%s", from, a->host, to, b->host,
             strcmp(a->host, b->host) == 0 ? ", which do not prove to be one (containers?)" : "");
  else if (!env->far || !env->far(env->routes, from, to, reason, size))
    return is_reachable(env, from, to, reason, size);
  return false;
}

static bool same_process(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  return env->peers[connector->peer].process == env->peers[env->rank].process;
}

static int export_for(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  if (same_process(env, connector)) return TT_EXPORT_HERE;
  return env->peers[connector->peer].node == env->peers[env->rank].node ? TT_EXPORT_NEAR : TT_EXPORT_FAR;
}

static bool is_handle(uint32_t kind)
{
  return kind == TT_EXPORT_HANDLE || kind == TT_EXPORT_FABRIC;
}

static bool has_slots(const struct tt_connector *connector, const struct device_resources *resources)
{
  return connector->send == resources->reads;
}

/* Points the connection to what an end's piece has: the counter that it polls, and the slots if they are there. */
static void use_piece(struct tt_conn *conn, const struct device_resources *resources, unsigned char *piece, bool sender)
{
  _Atomic uint64_t **polled = sender ? &conn->head : &conn->tail, *kept = sender ? conn->tail : conn->head;
  if (sender != resources->reads) {
    *polled = (_Atomic uint64_t *)(void *)piece;
    return;
  }
  tt_buffers_apply(&resources->buffers, piece, conn);
  *(sender ? &conn->tail : &conn->head) = kept;
}

static ncclResult_t make_piece(struct tt_transport_env *env, struct tt_connector *connector,
                               struct device_resources *resources)
{
  size_t bytes = has_slots(connector, resources) ? resources->buffers.bytes : TT_SLAB_ALIGNMENT;
  TT_TRY(tt_slabs_alloc(env->slabs, bytes, &resources->mine));
  connector->bytes = resources->mine.bytes;
  use_piece(&connector->conn, resources, resources->mine.ptr, connector->send);
  return ncclSuccess;
}

/* Both ends ask about the same two ranks, the sender first. */
static bool receiver_reads(const struct tt_transport_env *env, const struct tt_connector *connector, int protocol)
{
  int from = connector->send ? env->rank : connector->peer, to = connector->send ? connector->peer : env->rank;
  return protocol == TT_PROTO_SIMPLE && env->reads && env->reads(env->routes, from, to);
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct device_resources *resources;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  resources->protocol = tt_connect_index_protocol(connector->index);
  resources->reads = receiver_reads(env, connector, resources->protocol);
  TT_TRY(tt_buffers_layout(env, 1u << resources->protocol, &resources->buffers));
  if (resources->buffers.slot_bytes[resources->protocol] == 0)
    return TT_FAIL(ncclInternalError, "device %s has no buffers for protocol %d", env->device->name,
                   resources->protocol);
  TT_TRY(make_piece(env, connector, resources));
  struct tt_device_export shown;
  TT_TRY(tt_slab_export(resources->mine.slab, export_for(env, connector), &shown));
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, DEVICE_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, (unsigned)resources->protocol, 1);
  tt_wire_put_int(&w, resources->reads, 1);
  tt_wire_put_int(&w, shown.kind, 1);
  tt_wire_put_int(&w, tt_slab_number(resources->mine.slab), 4);
  tt_wire_put_int(&w, shown.bytes, 8);
  tt_wire_put_int(&w, resources->mine.offset, 8);
  tt_wire_put_int(&w, resources->buffers.slot_bytes[resources->protocol], 8);
  if (is_handle(shown.kind)) tt_wire_put(&w, shown.handle, sizeof(shown.handle));
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

struct theirs {
  struct tt_import_source source;
  uint64_t offset, slot_bytes;
  int protocol;
  bool sends, reads;
};

static ncclResult_t parse(const struct tt_transport_env *env, const struct tt_connector *connector,
                          const struct tt_handshake *handshake, struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  struct tt_device_export *shown = &theirs->source.shown;
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != DEVICE_VERSION)
    return TT_FAIL(ncclRemoteError, "rank %d connects device memory in version %u, this rank in %d", connector->peer,
                   version, DEVICE_VERSION);
  theirs->source.rank = connector->peer;
  theirs->sends = tt_wire_get_int(&r, 1) != 0;
  theirs->protocol = (int)tt_wire_get_int(&r, 1);
  theirs->reads = tt_wire_get_int(&r, 1) != 0;
  shown->kind = (uint32_t)tt_wire_get_int(&r, 1);
  shown->fd = -1;
  theirs->source.number = (uint32_t)tt_wire_get_int(&r, 4);
  shown->bytes = tt_wire_get_int(&r, 8);
  theirs->offset = tt_wire_get_int(&r, 8);
  theirs->slot_bytes = tt_wire_get_int(&r, 8);
  const unsigned char *handle = is_handle(shown->kind) ? tt_wire_get(&r, sizeof(shown->handle)) : NULL;
  if (handle) memcpy(shown->handle, handle, sizeof(shown->handle));
  /* A rank of this process must not be asked by a socket that nobody serves, nor another one by its pointers. */
  int whom = export_for(env, connector);
  bool right_kind = (shown->kind == TT_EXPORT_LOCAL) == (whom == TT_EXPORT_HERE) &&
                    (shown->kind == TT_EXPORT_FABRIC) == (whom == TT_EXPORT_FAR);
  if (theirs->source.number & TT_SLAB_LENT) right_kind = false; /* indirect.c's */
  if (r.bad || r.at != r.size || theirs->sends == connector->send || !right_kind)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for device memory", connector->peer,
                   handshake->bytes);
  return ncclSuccess;
}

/* Ranks that see different topologies may decide otherwise. */
static ncclResult_t check_reads(const struct tt_connector *connector, const struct theirs *theirs)
{
  const struct device_resources *resources = connector->resources;
  if (theirs->reads == resources->reads) return ncclSuccess;
  return TT_FAIL(
      ncclInvalidUsage,
      "rank %d says that data is %s across the link of its GPU and this rank's, this rank that it is %s: set "
      "NCCL_P2P_READ_ENABLE to 0 or 1 on all ranks",
      connector->peer, theirs->reads ? "read" : "written", resources->reads ? "read" : "written");
}

static ncclResult_t check_sizes(const struct tt_connector *connector, const struct theirs *theirs)
{
  const struct device_resources *resources = connector->resources;
  size_t slot_bytes = resources->buffers.slot_bytes[resources->protocol];
  if (theirs->protocol == resources->protocol && theirs->slot_bytes == slot_bytes) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "rank %d has slots of %llu bytes for protocol %d, this rank %zu for protocol %d: buffer sizes must be "
                 "equal on all ranks",
                 connector->peer, (unsigned long long)theirs->slot_bytes, theirs->protocol, slot_bytes,
                 resources->protocol);
}

static ncclResult_t connect_device(struct tt_transport_env *env, struct tt_connector *connector,
                                   const struct tt_handshake *handshake, bool *done)
{
  struct device_resources *resources = connector->resources;
  struct theirs theirs = {0};
  *done = false;
  TT_TRY(parse(env, connector, handshake, &theirs));
  TT_TRY(check_reads(connector, &theirs));
  TT_TRY(check_sizes(connector, &theirs));
  TT_TRY(tt_imports_get(env->imports, &theirs.source, &resources->theirs));
  resources->theirs_kind = theirs.source.shown.kind;
  size_t bytes = has_slots(connector, resources) ? TT_SLAB_ALIGNMENT : resources->buffers.bytes;
  unsigned char *at = tt_import_at(resources->theirs, theirs.offset, bytes);
  if (!at) {
    tt_imports_put(env->imports, resources->theirs);
    resources->theirs = NULL;
    return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which are not in its device memory",
                   connector->peer, bytes, (unsigned long long)theirs.offset);
  }
  use_piece(&connector->conn, resources, at, !connector->send);
  *done = true;
  return ncclSuccess;
}

static void close_device(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct device_resources *resources = connector->resources;
  if (!resources) return;
  tt_imports_put(env->imports, resources->theirs);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

/* As NCCL names them, and the protocol. */
static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  static const char *const protocols[TT_NUM_PROTOCOLS] = {
      [TT_PROTO_LL] = "LL", [TT_PROTO_LL128] = "LL128", [TT_PROTO_SIMPLE] = "Simple"};
  const struct device_resources *resources = connector->resources;
  const char *kind = same_process(env, connector)                 ? "direct pointer"
                     : resources->theirs_kind == TT_EXPORT_HANDLE ? "IPC"
                     : resources->theirs_kind == TT_EXPORT_FABRIC ? "MNNVL"
                                                                  : "CUMEM";
  snprintf(text, size, "P2P/%s%s/%s", kind, resources->reads ? "/read" : "",
           protocols[tt_connect_index_protocol(connector->index)]);
}

const struct tt_transport tt_transport_device = {
    .name = "P2P", .can = can, .setup = setup, .connect = connect_device, .close = close_device, .label = label};
