/* Network connections that several connections share: from the ranks of one process to one rank, over one device, on
 * one channel, for one kind of operations. The receiving rank offers one when the first of these connections is set up,
 * and the same one again for the next. The ranks of the sending process find it in a list of the process, and whoever
 * comes first connects.
 *
 * Messages are told apart by tags, the senders' ranks. Only connections with slots of a pool share one: requests cannot
 * be called back, so what is on its way when one rank leaves must outlive it, and a pool's memory does.
 *
 * Links stay until the last rank of the communicator in this process is gone, since one may be needed again when those
 * that used it have left; what a rank receives on is closed with it. Any thread; nothing here waits. */
#ifndef TT_TRANSPORT_NET_LINK_H
#define TT_TRANSPORT_NET_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include "proxy/link.h"
#include "transport/transport.h"

struct tt_net_link;

/* The links of the env's communicator and process, as env->links. Needs env->peers. */
ncclResult_t tt_net_links_open(struct tt_transport_env *env);
/* All connections of the env must be closed. */
void tt_net_links_close(struct tt_transport_env *env);

/* Whether a connection may share a link, as far as both its ends can tell. `pooled`: with slots of a pool. */
bool tt_net_link_wanted(const struct tt_transport_env *env, const struct tt_connector *connector, bool pooled);

/* What the receiving end tells the sending end. */
struct tt_net_link_offer {
  uint64_t id; /* not 0; of the receiving rank's links */
  _Alignas(64) unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
};
/* The receiving end: finds or makes the link. */
ncclResult_t tt_net_link_offer(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                               struct tt_net_link **link, struct tt_net_link_offer *offer);
/* The sending end. */
ncclResult_t tt_net_link_join(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                              const struct tt_net_link_offer *offer, struct tt_net_link **link);
/* Goes on with connecting; *wire becomes a new reference to the link's comm when that is there, else NULL. */
ncclResult_t tt_net_link_connect(struct tt_transport_env *env, struct tt_net_link *link, struct tt_proxy_link **wire);
/* A connection is closed. NULL is allowed. */
void tt_net_link_leave(struct tt_transport_env *env, struct tt_net_link *link);

#endif
