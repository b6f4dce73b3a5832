/* A plugin's comm as connections use it: one of their own, or one that several share, told apart by tags.
 *
 * Connections of several proxies may share a link for sending, so its lock is held around every call of the plugin that
 * names the comm or a request of it: a comm's data path is used by one thread at a time. Requests cannot be called
 * back. So what a link has registered it keeps alive until its comm is closed, by whoever uses it last. */
#ifndef TT_PROXY_LINK_H
#define TT_PROXY_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include "plugin/net.h"

struct tt_proxy_slab;
struct tt_proxy_conn;

struct tt_proxy_registration {
  struct tt_proxy_slab *slab; /* referenced */
  void *mhandle;
};

struct tt_proxy_link {
  struct tt_net *net; /* referenced */
  void *comm;
  bool send;
  pthread_mutex_t lock; /* guards all below, and the comm */
  int references, conns;
  int requests; /* that the comm takes at a time, by the ABI */
  struct tt_proxy_registration *registrations;
  int nregistrations, capacity;
  /* Of a link for receiving, which is one proxy's, and guarded by that proxy's lock: connections whose last message
   * that is expected may be received in a group (group.c). */
  int max_recvs;
  struct tt_proxy_conn *ready, **ready_end;
  bool listed; /* with the proxy: somebody is ready */
  struct tt_proxy_link *next_listed;
};

/* `max_recvs`: as many messages the plugin receives in one request; 1 for sending. The link owns the comm on success.
 */
ncclResult_t tt_proxy_link_create(struct tt_net *net, bool send, void *comm, int max_recvs, struct tt_proxy_link **out);
struct tt_proxy_link *tt_proxy_link_retain(struct tt_proxy_link *link);
/* Forgets a link that nobody else has: its comm is the caller's again. NULL is allowed. */
void tt_proxy_link_abandon(struct tt_proxy_link *link);
/* The last one closes the comm, with requests in flight. NULL is allowed. */
void tt_proxy_link_release(struct tt_proxy_link *link);
/* The plugin's handle for a slab, which is registered when first asked for. Called with the lock held. */
ncclResult_t tt_proxy_link_register(struct tt_proxy_link *link, struct tt_proxy_slab *slab, void **mhandle);
/* Keeps a slab with a registration of its own until the comm is closed: the network may still touch it. Called with the
 * lock held. */
void tt_proxy_link_keep(struct tt_proxy_link *link, struct tt_proxy_slab *slab, void *mhandle);
/* One more or one less connection that is served over the link. */
void tt_proxy_link_count(struct tt_proxy_link *link, int more);

#endif
