/* How large the buffers of a communicator's connections are. */
#ifndef TT_API_BUFFERS_H
#define TT_API_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "tutti/device.h"

/* Bytes of a connection's slots in a protocol: what the user asks for (NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE,
 * NCCL_LL128_BUFFSIZE), or the device's default, rounded up to whole lines of 128 bytes a slot; 0: the device has no
 * such protocol. ncclInvalidUsage naming the variable if that is too small. */
ncclResult_t tt_comm_buffer_bytes(const struct tt_device *device, int protocol, size_t *bytes);

/* What connections in a GPU's memory may take on a host with more ranks than TT_BUFFERS_ROOMY: all that a rank can
 * have, to and from every other rank of the host, on every channel, in every protocol, for collectives and point to
 * point. Up to TT_BUFFERS_ROOMY ranks slots are as large as was measured to be fastest, and take six times as much at the
 * very most. */
#define TT_BUFFERS_MOST ((size_t)240 << 20) /* and 16 MiB for scratch memory, so that a communicator has 256 in all */
#define TT_BUFFERS_ROOMY 4
/* Simple's slots on the host device where ranks are connected over a network: as large as a second-level cache lets them
 * be, since each costs a message. docs/performance.md, "net-ofi and net-socket", has the measurements. */
#define TT_BUFFERS_NETWORK_SLOT ((size_t)256 << 10)
/* Changes the defaults among `bytes` (of tt_comm_buffer_bytes), which are a GPU's for two ranks: with more `ranks` a host
 * LL128's are lowered, and beyond TT_BUFFERS_ROOMY all of them, so that TT_BUFFERS_MOST holds; and raises those of the host device if some ranks are connected over a network. All ranks must
 * call it alike. */
void tt_comm_fit_buffers(const struct tt_device *device, int ranks, bool network, size_t bytes[TT_NUM_PROTOCOLS]);

#endif
