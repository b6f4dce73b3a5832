/* Where the buffers of a connection lie in one block of memory, for both transports. */
#ifndef TT_TRANSPORT_BUFFERS_H
#define TT_TRANSPORT_BUFFERS_H

#include <stddef.h>
#include "transport/transport.h"

/* A block: the two counters on cache lines of their own, then the slots of each protocol. Slots of LL128, and all in
 * device memory, begin at 64 modulo 128, so that their payload begins at a line of 128 bytes. */
struct tt_buffers {
  size_t tail, head; /* offsets of the counters */
  size_t slots_at;   /* where the first protocol's slots begin, at the latest */
  size_t slots[TT_NUM_PROTOCOLS];
  size_t slot_bytes[TT_NUM_PROTOCOLS];
  size_t bytes; /* of the block */
};

/* `protocols`: a bit each of those to have, as far as the env has them. ncclInvalidUsage, naming the variable, if a
 * buffer is too small to hold eight slots. */
ncclResult_t tt_buffers_layout(const struct tt_transport_env *env, uint32_t protocols, struct tt_buffers *buffers);
/* Of a connection over a network, by its index: in devices' memory of one protocol, with slots for messages no larger
 * than tt_transport_far_slot_bytes says. */
ncclResult_t tt_buffers_layout_far(const struct tt_transport_env *env, int index, struct tt_buffers *buffers);
/* Points conn's counters and slots into the block. */
void tt_buffers_apply(const struct tt_buffers *buffers, unsigned char *block, struct tt_conn *conn);
/* Of a device with memory of its own: a connection that serves LL is one of lines. */
void tt_buffers_mark_lines(struct tt_conn *conn);
/* Sets both counters in this host's memory and the end's step to where the connection starts. */
void tt_buffers_start(struct tt_conn *conn, uint64_t first_step);
#define TT_ALL_PROTOCOLS ((1u << TT_NUM_PROTOCOLS) - 1)

#endif
