/* Ranks that a net plugin connects. The receiving end listens and tells its handle; the sending end connects to it;
 * both poll until the plugin has its comm, then the proxy takes over. Slots lie in memory of this end alone, which a
 * device with memory of its own has mapped; its connections serve one protocol each, and are free running: what such a
 * device repeats is announced by nobody. Where the NIC reaches the device's memory, slots lie there (net_direct.h).
 * Connections of point-to-point operations, and of collectives that work like them, take them from the proxy's pool:
 * many ranks may have such connections, of which few are in use at a time. What goes through another rank's proxy lies
 * in memory that this rank shares with that (relay.h); the receiving end does not know of it.
 *
 * Handshake: version, role, device, bytes of each slot; the receiving end adds the plugin's handle, and the number of
 * the network connection if it is one that several share (net_link.h), else 0. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/buffers.h"
#include "transport/net_block.h"
#include "transport/net_direct.h"
#include "transport/net_link.h"
#include "transport/relay.h"
#include "transport/wire.h"

#define NET_VERSION 2
/* Connections that could have slots of a pool have some of their own in the device's memory, where the NIC reaches
 * that, as long as there are no more ranks than this: a megabyte each. */
#define DIRECT_RANKS 16

struct net_resources {
  struct tt_buffers buffers;
  int device, relay; /* relay: whose proxy sends; this rank: none */
  struct tt_relayed relayed;
  bool is_direct; /* slots lie in the device's memory, or are to once there is a network connection */
  struct tt_proxy_direct direct;
  size_t max_bytes;
  int max_recvs;
  bool parsed;
  struct tt_net_link *link;   /* that is shared; NULL: the network connection is this one's own */
  struct tt_proxy_link *wire; /* of the link; until the proxy has it */
  void *listen_comm, *comm;   /* comm: until the proxy has it */
  /* The plugin may keep its state in the handle while it connects, so each retry gets the same storage. */
  struct tt_net_link_offer offer; /* id 0: not shared */
  struct tt_net_block block;
};

static bool can(const struct tt_transport_env *env, int from, int to, char *reason, size_t size)
{
  if (from == to)
    snprintf(reason, size, "a rank does not connect to itself");
  else if (tt_transport_device_memory(env) && !(env->device->features & TT_DEVICE_HOST_MEMORY))
    snprintf(reason, size, "device %s cannot use the host's memory", env->device->name);
  else if (tt_param_int(TT_PARAM_NCCL_NET_DISABLE))
    snprintf(reason, size, "NCCL_NET_DISABLE is set");
  else if (!env->net)
    snprintf(reason, size, "no network plugin is in use; tutti-info lists those found");
  else
    return true;
  return false;
}

static bool has_pools(const struct tt_transport_env *env)
{
  return tt_param_int(TT_PARAM_NCCL_NET_SHARED_BUFFERS) != 0 && env->device &&
         (env->device->features & TT_DEVICE_POOLED);
}

bool tt_transport_pools(const struct tt_transport_env *env, int peer)
{
  char reason[192];
  if (tt_transport_device_memory(env)) return false;
  return has_pools(env) && peer >= 0 && !tt_transport_peer.can(env, env->rank, peer, reason, sizeof(reason));
}

static bool pooled(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  if (tt_transport_device_memory(env) && tt_connect_far_protocol(connector->index) != TT_PROTO_SIMPLE) return false;
  return has_pools(env) && tt_connect_index_point_to_point(connector->index);
}

/* Without a route: spreads the channels of all ranks of a node over its devices; what ranks of a process share, by who
 * receives. */
static struct tt_route spread(const struct tt_transport_env *env, const struct tt_connector *connector, int ndev)
{
  int index = 0;
  for (int r = 0; r < env->rank; r++) index += env->peers[r].node == env->peers[env->rank].node;
  if (connector->send && tt_net_link_wanted(env, connector, pooled(env, connector))) index = connector->peer;
  return (struct tt_route){.device = (index + connector->channel) % ndev, .rank = env->rank};
}

static ncclResult_t check_route(const struct tt_transport_env *env, const struct tt_connector *connector,
                                const struct tt_route *route, int ndev)
{
  const char *direction = connector->send ? "to" : "from";
  if (route->device < 0 || route->device >= ndev)
    return TT_FAIL(
        ncclInternalError, "the route of rank %d %s rank %d on channel %d uses device %d of network %s, which has %d",
        env->rank, direction, connector->peer, connector->channel, route->device, tt_net_name(env->net), ndev);
  bool here =
      route->rank >= 0 && route->rank < env->nranks &&
      (route->rank == env->rank || (connector->send && env->peers[route->rank].node == env->peers[env->rank].node));
  if (!here)
    return TT_FAIL(ncclInternalError,
                   "the route of rank %d %s rank %d on channel %d goes through rank %d, which cannot serve it",
                   env->rank, direction, connector->peer, connector->channel, route->rank);
  return ncclSuccess;
}

static ncclResult_t choose_device(struct tt_transport_env *env, const struct tt_connector *connector,
                                  struct net_resources *resources)
{
  int ndev = 0;
  TT_TRY(tt_net_devices(env->net, &ndev));
  if (ndev < 1) return TT_FAIL(ncclSystemError, "network %s has no devices any more", tt_net_name(env->net));
  struct tt_route route;
  if (!env->route ||
      !env->route(env->routes, connector->peer, connector->channel, connector->index, connector->send, &route))
    route = spread(env, connector, ndev);
  TT_TRY(check_route(env, connector, &route, ndev));
  resources->device = route.device;
  resources->relay = route.rank;
  ncclNetProperties_v12_t props;
  TT_TRY(tt_net_get_properties(env->net, resources->device, &props));
  resources->max_bytes = props.maxP2pBytes;
  resources->max_recvs = props.maxRecvs;
  resources->is_direct = (!pooled(env, connector) || env->nranks <= DIRECT_RANKS) &&
                         tt_net_direct_wanted(env, connector, &route, &props, &resources->direct);
  return ncclSuccess;
}

/* Where the sending end finds this one. */
static ncclResult_t listen_for_sender(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  bool has_pool = (connector->conn.flags & TT_CONN_POOLED) != 0; /* not where slots lie in the device's memory */
  if (tt_net_link_wanted(env, connector, has_pool) && resources->max_recvs > 1)
    return tt_net_link_offer(env, connector, resources->device, &resources->link, &resources->offer);
  return tt_net_listen(env->net, resources->device, resources->offer.handle, &resources->listen_comm);
}

static ncclResult_t setup(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine)
{
  struct net_resources *resources = aligned_alloc(_Alignof(struct net_resources), sizeof(*resources));
  if (!resources) return TT_FAIL(ncclSystemError, "no memory for a connection to rank %d", connector->peer);
  memset(resources, 0, sizeof(*resources));
  connector->resources = resources;
  connector->conn.peer = connector->peer;
  TT_TRY(tt_buffers_layout_far(env, connector->index, &resources->buffers));
  resources->relay = env->rank;
  TT_TRY(choose_device(env, connector, resources));
  if (resources->relay != env->rank && !pooled(env, connector))
    TT_TRY(tt_relayed_setup(env, connector, resources->relay, resources->device, &resources->relayed));
  else if (!resources->is_direct)
    TT_TRY(tt_net_block_make(env, connector, &resources->buffers, pooled(env, connector), &resources->block));
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, NET_VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, (uint32_t)resources->device, 4);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) tt_wire_put_int(&w, resources->buffers.slot_bytes[p], 8);
  if (!connector->send) {
    TT_TRY(listen_for_sender(env, connector));
    tt_wire_put(&w, resources->offer.handle, sizeof(resources->offer.handle));
    tt_wire_put_int(&w, resources->offer.id, 8);
  }
  mine->bytes = (uint16_t)w.at;
  return ncclSuccess;
}

static ncclResult_t parse(const struct tt_transport_env *env, const struct tt_connector *connector,
                          const struct tt_handshake *handshake, struct net_resources *resources)
{
  struct tt_wire_reader r = {.data = handshake->data, .size = TT_MIN(handshake->bytes, sizeof(handshake->data))};
  unsigned version = (unsigned)tt_wire_get_int(&r, 2);
  if (r.bad || version != NET_VERSION)
    return TT_FAIL(ncclRemoteError, "rank %d connects the network in version %u, this rank in %d", connector->peer,
                   version, NET_VERSION);
  bool sends = tt_wire_get_int(&r, 1) != 0;
  tt_wire_get_int(&r, 4); /* the device: for a log of the bytes only */
  uint64_t slot_bytes[TT_NUM_PROTOCOLS];
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) slot_bytes[p] = tt_wire_get_int(&r, 8);
  const unsigned char *handle = connector->send ? tt_wire_get(&r, sizeof(resources->offer.handle)) : NULL;
  uint64_t id = connector->send ? tt_wire_get_int(&r, 8) : 0;
  if (r.bad || r.at != r.size || sends == connector->send)
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake of %u bytes for the network", connector->peer,
                   handshake->bytes);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    if (slot_bytes[p] != resources->buffers.slot_bytes[p])
      return TT_FAIL(
          ncclInvalidUsage,
          "rank %d has slots of %llu bytes for protocol %d, this rank %zu: buffer sizes must be equal on all "
          "ranks",
          connector->peer, (unsigned long long)slot_bytes[p], p, resources->buffers.slot_bytes[p]);
  if (id != 0 && !pooled(env, connector))
    return TT_FAIL(ncclInvalidUsage,
                   "rank %d shares network connections, this rank does not: set NCCL_NET_SHARED_* "
                   "alike on all ranks",
                   connector->peer);
  if (handle) {
    memcpy(resources->offer.handle, handle, sizeof(resources->offer.handle));
    resources->offer.id = id;
  }
  resources->parsed = true;
  return ncclSuccess;
}

static void label(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size)
{
  const struct net_resources *resources = connector->resources;
  const char *shared = connector->conn.flags & TT_CONN_POOLED ? "/Shared" : "", *direct = "";
  if (resources && resources->is_direct) direct = resources->direct.pci ? "/GDRDMA(PCI)" : "/GDRDMA";
  if (resources && resources->relay != env->rank)
    snprintf(text, size, "NET/%s/%d(%d)%s", tt_net_name(env->net), resources->device, resources->relay, shared);
  else
    snprintf(text, size, "NET/%s/%d%s%s", tt_net_name(env->net), resources ? resources->device : -1, direct, shared);
}

static ncclResult_t hand_to_proxy(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  char text[64];
  label(env, connector, text, sizeof(text));
  bool apart = tt_transport_device_memory(env);
  struct tt_proxy_conn_config config = {.send = connector->send,
                                        .comm = resources->comm,
                                        .link = resources->wire,
                                        .conn = apart ? &resources->block.conn : &connector->conn,
                                        .free_running = apart,
                                        .peer = connector->peer,
                                        .tag = connector->send ? env->rank : connector->peer,
                                        .max_bytes = resources->max_bytes,
                                        .label = text,
                                        .device = resources->device};
  if (tt_connect_index_point_to_point(connector->index)) config.ahead = TT_FAR_LINES_AHEAD;
  if (resources->is_direct) config.direct = resources->direct;
  if (connector->conn.flags & TT_CONN_POOLED) config.pool_units = (int)tt_param_int(TT_PARAM_TUTTI_NET_POOL_SLOTS);
  if (apart) config.map = tt_net_pool_map(env);
  TT_TRY(tt_proxy_conn_create(env->proxy, &config, &connector->proxied));
  resources->comm = NULL;
  resources->wire = NULL;
  return ncclSuccess;
}

static ncclResult_t try_direct(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  TT_TRY(tt_net_block_make_direct(env, connector, &resources->buffers, &resources->direct, &resources->block));
  return hand_to_proxy(env, connector);
}

/* What a network says that it can, and a device lets it, shows when memory is registered. The host's always can be. */
static ncclResult_t hand_over(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  if (!resources->is_direct) return hand_to_proxy(env, connector);
  if (!tt_net_direct_fails(env, resources->device)) {
    tt_log_hush(true);
    ncclResult_t result = try_direct(env, connector);
    tt_log_hush(false);
    if (result == ncclSuccess) return ncclSuccess;
    tt_net_direct_failed(env, connector, resources->device, tt_log_thread_error());
    tt_net_block_free(env, &resources->block);
  }
  resources->is_direct = false;
  TT_TRY(tt_net_block_make(env, connector, &resources->buffers, pooled(env, connector), &resources->block));
  return hand_to_proxy(env, connector);
}

/* The relay has left the communicator, and was not asked yet: this rank sends for itself. */
static ncclResult_t go_directly(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  TT_INFO(TT_NET, "Rank %d sends to rank %d itself, since rank %d has left", env->rank, connector->peer,
          resources->relay);
  tt_relayed_close(env, &resources->relayed);
  memset(&resources->relayed, 0, sizeof(resources->relayed));
  resources->relay = env->rank;
  if (resources->block.memory) return ncclSuccess;
  return tt_net_block_make(env, connector, &resources->buffers, false, &resources->block);
}

/* Through another rank's proxy. */
static ncclResult_t connect_relayed(struct tt_transport_env *env, struct tt_connector *connector, bool *done)
{
  struct net_resources *resources = connector->resources;
  char text[64];
  if (!resources->relayed.block)
    TT_TRY(tt_relayed_setup(env, connector, resources->relay, resources->device, &resources->relayed));
  if (connector->conn.flags & TT_CONN_POOLED) resources->relayed.conn = resources->block.conn;
  label(env, connector, text, sizeof(text));
  TT_TRY(tt_relayed_connect(env, connector, &resources->relayed, resources->offer.handle, text, done));
  return resources->relayed.gone ? go_directly(env, connector) : ncclSuccess;
}

/* Over a network connection of its own. */
static ncclResult_t connect_alone(struct tt_transport_env *env, const struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  if (connector->send) return tt_net_connect(env->net, resources->device, resources->offer.handle, &resources->comm);
  TT_TRY(tt_net_accept(env->net, resources->listen_comm, &resources->comm));
  if (!resources->comm) return ncclSuccess;
  TT_TRY(tt_net_close_listen(env->net, resources->listen_comm));
  resources->listen_comm = NULL;
  return ncclSuccess;
}

/* The receiving end offers a network connection that ranks of this process share. What goes over it is sent by their
 * own proxies, from slots of a pool. */
static ncclResult_t share(const struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  resources->relay = env->rank;
  resources->is_direct = false;
  if (resources->block.memory) return ncclSuccess;
  return tt_net_block_make(env, connector, &resources->buffers, true, &resources->block);
}

static ncclResult_t connect_net(struct tt_transport_env *env, struct tt_connector *connector,
                                const struct tt_handshake *handshake, bool *done)
{
  struct net_resources *resources = connector->resources;
  *done = false;
  if (!resources->parsed) TT_TRY(parse(env, connector, handshake, resources));
  if (resources->offer.id != 0) TT_TRY(share(env, connector));
  if (resources->relay != env->rank) return connect_relayed(env, connector, done);
  if (connector->send && resources->offer.id != 0 && !resources->link)
    TT_TRY(tt_net_link_join(env, connector, resources->device, &resources->offer, &resources->link));
  if (resources->link)
    TT_TRY(tt_net_link_connect(env, resources->link, &resources->wire));
  else
    TT_TRY(connect_alone(env, connector));
  if (!resources->wire && !resources->comm) return ncclSuccess;
  TT_TRY(hand_over(env, connector));
  *done = true;
  return ncclSuccess;
}

static void close_net(struct tt_transport_env *env, struct tt_connector *connector)
{
  struct net_resources *resources = connector->resources;
  if (!resources) return;
  tt_relayed_stop(env, connector, &resources->relayed);
  tt_proxy_conn_destroy(connector->proxied);
  connector->proxied = NULL;
  if (resources->listen_comm) tt_net_close_listen(env->net, resources->listen_comm);
  if (resources->comm && connector->send) tt_net_close_send(env->net, resources->comm);
  if (resources->comm && !connector->send) tt_net_close_recv(env->net, resources->comm);
  tt_proxy_link_release(resources->wire);
  tt_net_link_leave(env, resources->link);
  tt_relayed_close(env, &resources->relayed);
  tt_net_block_free(env, &resources->block);
  free(resources);
  connector->resources = NULL;
  connector->bytes = 0;
}

const struct tt_transport tt_transport_net = {
    .name = "NET", .can = can, .setup = setup, .connect = connect_net, .close = close_net, .label = label};
