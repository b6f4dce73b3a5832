/* Ranks whose devices map each other's memory. Each end has what it polls in its own memory, the receiving end `tail`,
 * the sending end `head`, and writes what the other end polls. Slots lie in the receiver's memory, so that data is
 * written across the link; or, in the Simple protocol where the topology says so, in the sender's, and are read across
 * it. Data that carries its own news (LL, LL128) is always written. A connection serves one protocol.
 *
 * Handshake: as in device_conn.h; then whether the receiver reads, and the place of this end's piece.
 */
#include <stdio.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/device_conn.h"
#include "transport/near.h"
#include "transport/reach.h"

struct device_resources {
  struct tt_device_conn common; /* its buffers: of the piece of the end that has the slots */
  bool reads;                   /* the receiver reads: the sender has the slots */
  uint32_t kind;                /* TT_EXPORT_* of the other end's slab, once connected */
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

/* On one host, or by a fabric: within a clique, and if the user wants that also beyond. */
static bool is_near(const struct tt_peer_info *a, const struct tt_peer_info *b)
{
  return a->node == b->node || a->machine == b->machine || (a->fabric != 0 && a->fabric == b->fabric);
}

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  reason[0] = '\0';
  if (!tt_transport_device_memory(env)) return false;
  if (from == to)
    snprintf(reason, size, "a rank does not connect to itself");
  else if (tt_param_int(TT_PARAM_NCCL_P2P_DISABLE))
    snprintf(reason, size, "NCCL_P2P_DISABLE is set");
  else if (!is_near(&env->peers[from], &env->peers[to]))
    tt_near_explain(env, from, to, reason, size);
  else if (!env->far || !env->far(env->routes, from, to, reason, size))
    return is_reachable(env, from, to, reason, size);
  return false;
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
  tt_buffers_apply(&resources->common.buffers, piece, conn);
  *(sender ? &conn->tail : &conn->head) = kept;
}

static ncclResult_t make_piece(struct tt_transport_env *env, struct tt_connector *connector,
                               struct device_resources *resources)
{
  size_t bytes = has_slots(connector, resources) ? resources->common.buffers.bytes : TT_SLAB_ALIGNMENT;
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
  TT_TRY(tt_device_conn_begin(env, connector, "device memory", &resources->common));
  resources->reads = receiver_reads(env, connector, resources->common.protocol);
  TT_TRY(make_piece(env, connector, resources));
  struct tt_wire_writer w = tt_device_conn_write(connector, &resources->common, mine);
  tt_wire_put_int(&w, resources->reads, 1);
  TT_TRY(tt_device_conn_write_place(env, connector, &resources->mine, &w));
  tt_device_conn_written(&w, mine);
  return ncclSuccess;
}

/* Ranks that see different topologies may decide otherwise. */
static ncclResult_t check_reads(const struct tt_connector *connector, bool theirs)
{
  const struct device_resources *resources = connector->resources;
  if (theirs == resources->reads) return ncclSuccess;
  return TT_FAIL(
      ncclInvalidUsage,
      "rank %d says that data is %s across the link of its GPU and this rank's, this rank that it is %s: set "
      "NCCL_P2P_READ_ENABLE to 0 or 1 on all ranks",
      connector->peer, theirs ? "read" : "written", resources->reads ? "read" : "written");
}

static ncclResult_t connect_device(struct tt_transport_env *env, struct tt_connector *connector,
                                   const struct tt_handshake *theirs, bool *done)
{
  struct device_resources *resources = connector->resources;
  struct tt_wire_reader r;
  struct tt_device_place place;
  unsigned char *at;
  *done = false;
  TT_TRY(tt_device_conn_read(connector, &resources->common, theirs, &r));
  bool reads = tt_wire_get_int(&r, 1) != 0;
  tt_device_conn_read_place(env, connector, &r, &place);
  TT_TRY(tt_device_conn_read_all(connector, &resources->common, &r));
  TT_TRY(check_reads(connector, reads));
  size_t bytes = has_slots(connector, resources) ? TT_SLAB_ALIGNMENT : resources->common.buffers.bytes;
  TT_TRY(tt_device_conn_import(env, connector, &place, bytes, &resources->theirs, &at));
  resources->kind = place.source.shown.kind;
  use_piece(&connector->conn, resources, at, !connector->send);
  *done = true;
  return ncclSuccess;
}

static void close_device(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct device_resources *resources = connector->resources;
  if (!resources) return;
  tt_imports_put(env->imports, resources->theirs);
  tt_device_conn_end(connector);
}

/* As NCCL names them, and the protocol. */
static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  static const char *const protocols[TT_NUM_PROTOCOLS] = {
      [TT_PROTO_LL] = "LL", [TT_PROTO_LL128] = "LL128", [TT_PROTO_SIMPLE] = "Simple"};
  const struct device_resources *resources = connector->resources;
  (void)env;
  snprintf(text, size, "P2P/%s%s/%s", tt_device_conn_kind(resources->kind), resources->reads ? "/read" : "",
           protocols[resources->common.protocol]);
}

const struct tt_transport tt_transport_device = {
    .name = "P2P", .can = can, .setup = setup, .connect = connect_device, .close = close_device, .label = label};
