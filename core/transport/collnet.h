/* Connections with a network that reduces: on each channel one for sending and one for receiving, both served by the
 * proxy. They are made once, when the communicator is, since all members of the network take part. */
#ifndef TT_TRANSPORT_COLLNET_H
#define TT_TRANSPORT_COLLNET_H

#include "plugin/collnet.h"
#include "transport/transport.h"

struct tt_proxy_reduce;  /* proxy/reduce.h */
struct tt_collnet_links; /* one a communicator, on ranks that are members of a network */

struct tt_collnet_links_config {
  struct tt_collnet *collnet; /* outlives the links */
  int network;                /* its number: peer TT_PEER_NETWORK - network */
  const int *members;         /* ranks, ascending, this one at `me` */
  int me, nmembers;
  int nchannels;
};

/* Why the links could not be made: what happened to which rank. */
struct tt_collnet_failure {
  int32_t result, rank;
  char why[248];
};

/* Takes part of all members, which call it with the same arguments but `me`. Fails on all of them if it does on one,
 * naming that rank; whose own part failed names itself. Only the plugin knows whether its connect ends on all members
 * if it fails on one. */
ncclResult_t tt_collnet_links_create(struct tt_transport_env *env, struct tt_bootstrap *bootstrap,
                                     const struct tt_collnet_links_config *config, struct tt_collnet_links **out,
                                     struct tt_collnet_failure *failure);
/* NULL is allowed. */
void tt_collnet_links_destroy(struct tt_collnet_links *links);

/* NULL if there is none: another network, or a channel out of range. `links` may be NULL. */
struct tt_connector *tt_collnet_links_connector(struct tt_collnet_links *links, int peer, int channel, bool send);

/* The bytes held. `links` may be NULL. */
size_t tt_collnet_links_bytes(const struct tt_collnet_links *links);

#endif
