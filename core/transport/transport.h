/* Transports: the ways in which one rank reaches another. `device` maps device memory of the other, `indirect` that of
 * a third one between them, and `copied` has copy engines move the data there; `peer` maps its host memory, and `host`
 * does for devices with memory of their own; `net` moves slots through a net plugin and the proxy.
 *
 * A connection is one direction between two ranks on a channel. Each end makes its half, sends the half's handshake (a
 * versioned byte string) to the other end, and completes when it has the other's. Both ends choose the transport by the
 * same rule from the same exchanged data. */
#ifndef TT_TRANSPORT_TRANSPORT_H
#define TT_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "base/doorbell.h"
#include "base/shm.h"
#include "device/context.h"
#include "device/slab.h"
#include "plugin/net.h"
#include "proxy/proxy.h"
#include "transport/peer_info.h"
#include "tutti/device.h"

struct tt_bootstrap;     /* bootstrap/bootstrap.h */
struct tt_peer_memory;   /* transport/memory.h */
struct tt_resources;     /* transport/resources.h */
struct tt_imports;       /* transport/imports.h */
struct tt_pinned;        /* transport/pinned.h */
struct tt_reach;         /* transport/reach.h */
struct tt_lent;          /* transport/lent.h */
struct tt_collnet_links; /* transport/collnet.h */
struct tt_proxy_reduce;  /* proxy/reduce.h */
struct tt_net_links;     /* transport/net_link.h */
struct tt_relay;         /* transport/relay.h */
struct tt_user_buffers;  /* transport/user_buffers.h */

/* Whether a NIC moves data from and to the memory of this rank's device itself, as far as the machine allows. PCI: it
 * must be given addresses on the PCI bus. */
enum tt_net_direct { TT_NET_STAGED, TT_NET_DIRECT, TT_NET_DIRECT_PCI };

/* Which network device an end of a connection uses, and in which rank's proxy it lives: this rank's, or for sending
 * another's of this host, through which the data goes then (PXN, transport/relay.h). Each end chooses its own. A
 * connection that ranks of this process share goes through no other rank. */
struct tt_route {
  int device, rank;
  enum tt_net_direct direct;
  bool flush; /* what comes into the memory of this rank's device is to be flushed before works read it */
};
/* False: there is no route for that connection, which then uses this rank's devices in turn. */
typedef bool tt_route_find(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route);

/* What all connections of a communicator share on this rank. Made by tt_transport_env_create; one a communicator. */
struct tt_transport_env {
  int rank, nranks;
  uint64_t communicator;            /* its number: several may share this rank's memory, and so its name */
  const struct tt_peer_info *peers; /* nranks */
  const struct tt_device *device;
  struct tt_net *net; /* NULL: none */
  struct tt_proxy *proxy;
  struct tt_shm *shm;       /* this rank's memory */
  struct tt_doorbell *bell; /* in shm */
  uint64_t bell_offset;
  struct tt_peer_memory *memory;         /* mappings of other ranks' memory */
  size_t buffer_bytes[TT_NUM_PROTOCOLS]; /* of a connection, agreed on all ranks */
  uint64_t first_step;                   /* from which connections count */
  const _Atomic uint32_t *abort;
  /* What the topology says of connections over the network, asked when one is set up; NULL: nothing. Set before there
   * is a connection; `routes` outlives the env. */
  tt_route_find *route;
  /* Whether two ranks of a host are to use the network nevertheless; the same on both. NULL: never. Likewise. */
  bool (*apart)(const void *routes, int from, int to);
  /* Whether rank `to` reads what `from` sends in its device's memory, rather than have it written into its own. The
   * same on both. NULL: never. Likewise. */
  bool (*reads)(const void *routes, int from, int to);
  /* The rank whose device lies between those of two ranks of a host, which are to use its memory; -1: they use each
   * other's. The same on both. NULL: never. Likewise. */
  int (*between)(const void *routes, int from, int to);
  /* Whether two ranks of a host are not to use their devices' memory, by their places in the machine, and why. The same
   * on both. NULL: never. Likewise. */
  bool (*far)(const void *routes, int from, int to, char *why, size_t size);
  const void *routes;
  int device_flush;                 /* of memory that NICs wrote: 0 not tried, 1 the device can, -1 it cannot */
  uint64_t no_direct;               /* bit d: device d of the network could not register memory of this rank's device */
  struct tt_net_links *links;       /* network connections that several connections share; NULL: there are none */
  struct tt_relay *relay;           /* for connections through other ranks' proxies; NULL: there are none */
  struct tt_collnet_links *collnet; /* with a network that reduces; NULL: none, or this rank is no member of one */
  /* For devices with memory of their own; else NULL. */
  struct tt_context *context;
  struct tt_slabs *slabs;        /* this rank's */
  struct tt_imports *imports;    /* other ranks' slabs */
  struct tt_pinned *pinned;      /* this host's memory, for the device; NULL: it cannot use that */
  struct tt_reach *reach;        /* which devices reach which */
  struct tt_user_buffers *users; /* windows in users' memory */
  struct tt_lent *lent;          /* of other ranks' devices */
};

struct tt_transport_config {
  int rank, nranks;
  int device_index; /* -1: this rank's index among those of its host */
  const struct tt_device *device;
  struct tt_context *context;                    /* NULL: the device has none; outlives the env */
  const struct tt_device_properties *properties; /* of the device; NULL: it has none */
  struct tt_net *net;                            /* NULL: none; outlives the env */
  size_t buffer_bytes[TT_NUM_PROTOCOLS]; /* of a connection's 8 slots, equal on all ranks; 0: no such protocol */
  const _Atomic uint32_t *abort;         /* outlives the env */
  /* Children may share this rank's memory: it gets more address space, since what they give back is not used again. */
  bool may_be_shared;
  /* The parent's memory, to be shared, and the ranks' numbers in it; NULL: a new one. Used during the call only. */
  struct tt_resources *resources;
  const int *numbers;
};

/* Takes part of all ranks: makes this rank's memory, doorbell and proxy, tells the others, and proves which ranks share
 * a host (peers[r].node). The members of *out may be read; buffer_bytes may still be changed, alike on all ranks, while
 * there is no connection. `bootstrap` is used during the call only, and may be NULL for one rank. */
ncclResult_t tt_transport_env_create(const struct tt_transport_config *config, struct tt_bootstrap *bootstrap,
                                     struct tt_transport_env **out);
/* All connections must be closed before. NULL is allowed. */
void tt_transport_env_destroy(struct tt_transport_env *env);

/* Bytes of one slot, header and payload, of every connection's buffer for a protocol; 0 if there is none. */
size_t tt_transport_slot_bytes(const struct tt_transport_env *env, int protocol);
/* Whether connections of this device lie in its own memory, one protocol in each. */
static inline bool tt_transport_device_memory(const struct tt_transport_env *env)
{
  return env->device != NULL && (env->device->features & TT_DEVICE_MEMORY);
}

/* Connections of a pair on a channel, by index: those of collectives and of point-to-point operations are different
 * ones, so that neither waits for the other; in device memory each protocol has its own. Those of odd indices may share
 * what they hold with others (transport/net.c). */
#define TT_CONN_INDICES (2 * TT_NUM_PROTOCOLS)
/* Of collectives in which each rank has messages for each other rank, between hosts: all of them in host memory; those
 * in Simple of devices with memory of their own, whose LL128, the index's place, is not for networks. */
#define TT_CONN_INDEX_EXCHANGE 3
static inline int tt_connect_index(bool device_memory, int protocol, bool point_to_point)
{
  return (device_memory ? 2 * protocol : 0) + point_to_point;
}
static inline bool tt_connect_index_point_to_point(int index)
{
  return index % 2 != 0;
}
/* Whether connections of odd indices with that rank take slots from a pool of the network's, on a device in host
 * memory. The two ranks agree. */
bool tt_transport_pools(const struct tt_transport_env *env, int peer);
/* Of a connection in device memory. */
static inline int tt_connect_index_protocol(int index)
{
  return index / 2;
}
/* Of a connection of such a device over a network. */
static inline int tt_connect_far_protocol(int index)
{
  return index == TT_CONN_INDEX_EXCHANGE ? TT_PROTO_SIMPLE : tt_connect_index_protocol(index);
}

enum tt_transport_id {
  TT_TRANSPORT_PEER = 0,
  TT_TRANSPORT_NET = 1,
  TT_TRANSPORT_DEVICE = 2,
  TT_TRANSPORT_INDIRECT = 3,
  TT_TRANSPORT_HOST = 4,
  TT_TRANSPORT_COPIED = 5,
  TT_NUM_TRANSPORTS = 6
};

#define TT_HANDSHAKE_MAX 512
struct tt_handshake {
  uint16_t bytes;
  unsigned char data[TT_HANDSHAKE_MAX];
};

/* One end of a connection while it is made and used. */
struct tt_connector {
  struct tt_conn conn;      /* what the executor gets */
  int peer, channel, index; /* index: of tt_connect_index */
  bool send;
  enum tt_transport_id transport;
  bool connected, opened;          /* opened: by the device's conn_open */
  size_t bytes;                    /* of memory held by this end */
  uint64_t planned;                /* steps of all operations planned so far, for reports */
  uint64_t counted;                /* a report's own */
  void *resources;                 /* the transport's */
  struct tt_proxy_conn *proxied;   /* the net transport's engine side, else NULL */
  struct tt_proxy_reduce *reduced; /* of the sending end of a connection with a network, else NULL */
};

struct tt_transport {
  const char *name; /* "SHM", "NET", "P2P" */
  /* Whether `from` can reach `to`; if not, why ("": it has nothing to do with this kind of device). Depends only on
   * exchanged data and agreed parameters. */
  bool (*can)(const struct tt_transport_env *env, int from, int to, char *reason, size_t reason_size);
  /* Makes this end and writes its handshake. */
  ncclResult_t (*setup)(struct tt_transport_env *env, struct tt_connector *connector, struct tt_handshake *mine);
  /* Goes on with the other end's handshake; *done when the connection can carry data. Never blocks; called until done.
   */
  ncclResult_t (*connect)(struct tt_transport_env *env, struct tt_connector *connector,
                          const struct tt_handshake *theirs, bool *done);
  /* Frees this end, complete or not. */
  void (*close)(struct tt_transport_env *env, struct tt_connector *connector);
  /* What follows "via" in the log: "SHM/direct/direct", "NET/Socket/0", "NET/Socket/1(3)" through rank 3,
   * "P2P/CUMEM/read/Simple". While it is connected. */
  void (*label)(const struct tt_transport_env *env, const struct tt_connector *connector, char *text, size_t size);
};

extern const struct tt_transport tt_transport_peer, tt_transport_net, tt_transport_device, tt_transport_indirect,
    tt_transport_host, tt_transport_copied;

/* Devices with memory of their own have connections of their own for messages to each rank that the network leads to.
 * So that there may be many, their slots are no larger than this, header and payload. */
#define TT_FAR_SLOT_BYTES ((size_t)128 << 10)
#define TT_FAR_LINES_BYTES ((size_t)4 << 10) /* in LL */
static inline size_t tt_transport_far_slot_bytes(int protocol)
{
  return protocol == TT_PROTO_LL ? TT_FAR_LINES_BYTES : TT_FAR_SLOT_BYTES;
}
/* Of these, messages in LL that may be on their way to a rank over a connection before it reads them. */
#define TT_FAR_LINES_AHEAD 2
/* Whether these ranks are connected over the network, if at all. The same on both. */
bool tt_transport_by_network(const struct tt_transport_env *env, int from, int to);

/* The transport for from -> to. ncclSystemError listing each transport's reason when none can. */
ncclResult_t tt_transport_choose(const struct tt_transport_env *env, int from, int to, enum tt_transport_id *out);
/* The same for a connection of that index: copy engines, where they can be had, move only some (transport/copied.c). */
ncclResult_t tt_transport_choose_index(const struct tt_transport_env *env, int from, int to, int index,
                                       enum tt_transport_id *out);
const struct tt_transport *tt_transport_get(enum tt_transport_id id);
/* The transports between any two ranks of the communicator, as bits 1 << id; pairs that none can connect, which is an
 * error once they are to be, count as TT_TRANSPORT_NET. Logs, once for this rank, which devices of its host it does not
 * reach directly, and why. Takes part of all ranks. */
ncclResult_t tt_transport_agree(const struct tt_transport_env *env, struct tt_bootstrap *bootstrap, uint32_t *used);

#endif
