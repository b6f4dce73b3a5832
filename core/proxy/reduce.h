/* The proxy's service for a network that reduces: takes what a rank sends to it, has the plugin reduce it with what the
 * other ranks of the group send, and puts the result into the slots that the rank receives from it.
 *
 * Two connections of the rank belong together: one that its device sends on, one that it receives on. Their counters
 * start from the same step, and the message of step k of the one becomes that of step k of the other: the payload is
 * what the network made of it, the header is the sent one. Only slots in their own places are served (NORMAL), and only
 * the Simple protocol, whose payload is the data. */
#ifndef TT_PROXY_REDUCE_H
#define TT_PROXY_REDUCE_H

#include "plugin/collnet.h"
#include "proxy/proxy.h"

struct tt_proxy_reduce;
struct tt_proxy_reduce_config {
  struct tt_collnet *collnet;
  void *comm; /* the plugin's collComm */
  struct tt_conn *send, *recv;
  const char *label; /* "COLLNET/SHARP/0", copied */
};

/* On success the engine owns the comm and its registrations. */
ncclResult_t tt_proxy_reduce_create(struct tt_proxy *proxy, const struct tt_proxy_reduce_config *config,
                                    struct tt_proxy_reduce **out);
/* Requests in flight are given up. NULL is allowed. */
void tt_proxy_reduce_destroy(struct tt_proxy_reduce *reduce);

/* An operation will send `steps` more messages of elements of a type, to be reduced by `op` (ncclSum to ncclMin).
 * Operations run in the order of these calls. */
ncclResult_t tt_proxy_reduce_expect(struct tt_proxy_reduce *reduce, uint64_t steps, ncclDataType_t datatype,
                                    ncclRedOp_t op);

#endif
