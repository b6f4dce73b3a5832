/* The proxy's service for connections whose data copy engines move: what a rank's device has put into slots of its own
 * memory is copied into the receiver's slots, of which no work of either rank needs to know.
 *
 * The sending rank's proxy does it all. It sees both ends' counters, which lie in memory of the host: those of its own
 * end, and those of the receiver's, which that rank shares with it. A connection runs as long as it is there: nobody
 * has to say what will pass (tt_proxy_expect). Only the Simple protocol, and slots in their own places. */
#ifndef TT_PROXY_COPY_H
#define TT_PROXY_COPY_H

#include "proxy/proxy.h"

struct tt_proxy_copy;
struct tt_proxy_copy_config {
  const struct tt_device *device; /* with TT_DEVICE_COPY */
  struct tt_device_context *context;
  struct tt_conn *from;          /* the sending end: slots in the device's memory, all else in the host's */
  unsigned char *to;             /* the receiver's slots, as this rank's device sees them */
  _Atomic uint64_t *tail, *head; /* the receiver's, as this process sees them; and so its FIFO */
  struct tt_conn_fifo *fifo;
  int peer;
  const char *label; /* "P2P/CUMEM/CE", copied */
};

/* Counters start from from->step. Everything in the config outlives the object. */
ncclResult_t tt_proxy_copy_create(struct tt_proxy *proxy, const struct tt_proxy_copy_config *config,
                                  struct tt_proxy_copy **out);
/* Begins no more copies, and waits, at most a second, for those on their way. NULL is allowed. */
void tt_proxy_copy_destroy(struct tt_proxy_copy *copy);

/* ---- For the engine; with its lock held ---- */

ncclResult_t tt_proxy_copies_progress(struct tt_proxy *proxy, bool *moved);
/* The rank for which something was filled and has not been copied; -1: all has. */
int tt_proxy_copies_peer(const struct tt_proxy *proxy);

#endif
