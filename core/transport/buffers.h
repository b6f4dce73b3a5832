/* Where the buffers of a connection lie in one block of memory, for both transports. */
#ifndef TT_TRANSPORT_BUFFERS_H
#define TT_TRANSPORT_BUFFERS_H

#include <stddef.h>
#include "transport/transport.h"

/* A block: the two counters on cache lines of their own, then the slots of each protocol. */
struct tt_buffers {
  size_t tail, head; /* offsets of the counters */
  size_t slots[TT_NUM_PROTOCOLS];
  size_t slot_bytes[TT_NUM_PROTOCOLS];
  size_t bytes; /* of the block */
};

/* ncclInvalidUsage, naming the variable, if a buffer is too small to hold eight slots. */
ncclResult_t tt_buffers_layout(const struct tt_transport_env *env, struct tt_buffers *buffers);
/* Points conn's counters and slots into the block. */
void tt_buffers_apply(const struct tt_buffers *buffers, unsigned char *block, struct tt_conn *conn);

#endif
