/* Ranks whose devices do not reach each other well, but a third one that lies between them (NVLink from the first to
 * the third and on to the second): slots and counters lie in the third device's memory, which its rank lends. The
 * receiving end asks for it; the third rank's user has no part in it.
 *
 * Handshake: as in device_conn.h; then the rank between; the receiving end adds the lent slab's number and where in it
 * the connection's piece begins. */
#include <stdio.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/device_conn.h"
#include "transport/lent.h"
#include "transport/reach.h"

struct indirect_resources {
  struct tt_device_conn common;
  int between;
  struct tt_import *theirs; /* of the sending end, once connected */
};

/* The rank whose device lies between; -1: none. */
static int rank_between(const struct tt_transport_env *env, int from, int to)
{
  int rank = env->between ? env->between(env->routes, from, to) : -1;
  return rank >= 0 && rank < env->nranks && rank != from && rank != to ? rank : -1;
}

static bool in_one_process(const struct tt_transport_env *env, int from, int between, int to)
{
  const struct tt_peer_info *peers = env->peers;
  return peers[from].process == peers[between].process && peers[to].process == peers[between].process;
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
  /* What is lent goes by descriptors, which other memory has not. */
  if (tt_param_int(TT_PARAM_NCCL_CUMEM_ENABLE) == 0 && !in_one_process(env, from, between, to)) {
    snprintf(reason, size,
             "the memory of rank %d's device, which lies between, can be lent by cuMem only, and "
             "NCCL_CUMEM_ENABLE is 0",
             between);
    return false;
  }
  if (tt_reach_both_ways(env->reach, env->peers, from, between) &&
      tt_reach_both_ways(env->reach, env->peers, between, to))
    return true;
  snprintf(reason, size, "device %s of rank %d, which lies between, cannot be reached by both", env->peers[between].pci,
           between);
  return false;
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct indirect_resources *resources;
  TT_TRY(TT_CALLOC(&resources, 1));
  connector->resources = resources;
  TT_TRY(tt_device_conn_begin(env, connector, "memory of a third device", &resources->common));
  const struct tt_buffers *buffers = &resources->common.buffers;
  int from = connector->send ? env->rank : connector->peer, to = connector->send ? connector->peer : env->rank;
  resources->between = rank_between(env, from, to);
  if (resources->between < 0)
    return TT_FAIL(ncclInternalError, "no device lies between those of ranks %d and %d", from, to);
  struct tt_wire_writer w = tt_device_conn_write(connector, &resources->common, mine);
  tt_wire_put_int(&w, (uint32_t)resources->between, 4);
  if (!connector->send) {
    struct tt_lent_piece piece;
    TT_TRY(tt_lent_alloc(env->lent, resources->between, buffers->bytes, &piece));
    tt_buffers_apply(buffers, piece.ptr, &connector->conn);
    connector->bytes = buffers->bytes;
    tt_wire_put_int(&w, piece.number, 4);
    tt_wire_put_int(&w, piece.offset, 8);
  }
  tt_device_conn_written(&w, mine);
  return ncclSuccess;
}

/* The receiving end's piece, as its handshake goes on. What is lent to others is none of its. */
static void read_lent(const struct tt_transport_env *env, const struct tt_connector *connector,
                      struct tt_wire_reader *r, struct tt_device_place *place)
{
  const struct indirect_resources *resources = connector->resources;
  place->source = tt_lent_source(env, resources->between, (uint32_t)tt_wire_get_int(r, 4));
  place->offset = tt_wire_get_int(r, 8);
  if (!tt_lent_is_for(place->source.number, connector->peer)) r->bad = true;
}

static ncclResult_t connect_indirect(struct tt_transport_env *env, struct tt_connector *connector,
                                     const struct tt_handshake *theirs, bool *done)
{
  struct indirect_resources *resources = connector->resources;
  const struct tt_buffers *buffers = &resources->common.buffers;
  struct tt_wire_reader r;
  struct tt_device_place place;
  unsigned char *at;
  *done = false;
  TT_TRY(tt_device_conn_read(connector, &resources->common, theirs, &r));
  int between = (int)tt_wire_get_int(&r, 4);
  if (connector->send) read_lent(env, connector, &r, &place);
  TT_TRY(tt_device_conn_read_all(connector, &resources->common, &r));
  if (between != resources->between)
    return TT_FAIL(
        ncclInvalidUsage,
        "rank %d goes through the device of rank %d, this rank through that of rank %d: both must see the same "
        "topology",
        connector->peer, between, resources->between);
  if (connector->send) {
    TT_TRY(tt_device_conn_import(env, connector, &place, buffers->bytes, &resources->theirs, &at));
    tt_buffers_apply(buffers, at, &connector->conn);
  }
  *done = true;
  return ncclSuccess;
}

static void close_indirect(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct indirect_resources *resources = connector->resources;
  if (!resources) return;
  tt_imports_put(env->imports, resources->theirs);
  tt_device_conn_end(connector);
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
