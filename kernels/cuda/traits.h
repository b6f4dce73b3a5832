/* What the CUDA backend says of itself that needs neither CUDA nor a GPU to be known, so that tools can tell what
 * would be chosen on GPUs. */
#ifndef TT_CUDA_TRAITS_H
#define TT_CUDA_TRAITS_H

#include "tutti/device.h"

#define TT_CUDA_PROTOCOLS (1u << TT_PROTO_LL | 1u << TT_PROTO_LL128 | 1u << TT_PROTO_SIMPLE)
#define TT_CUDA_CHANNELS 64
/* A block keeps two ends for each, and a program's packed form, which these fill (descriptor.h). */
#define TT_CUDA_PEERS 32

/* Bytes of a connection's eight slots, with their headers, between two GPUs: more share the largest of them
 * (core/api/buffers.h). LL is for small messages. A slot of LL128 holds 128 KiB in lines of 120 bytes, and line 0, so
 * that messages of a power of two fill whole slots: what fits its slots goes in one loop, with all threads at whatever
 * is to be done, and faster than Simple. A step of Simple costs about 0.65 us on an H100 whatever its size, so slots
 * are large (docs/performance.md). */
#define TT_CUDA_LL128_LINES ((131072 + 119) / 120 + 1)
#define TT_CUDA_SLOTS(payload) (TT_SLOTS * ((payload) + TT_SLOT_HEADER))
#define TT_CUDA_BUFFERS                                                                                                \
  {                                                                                                                    \
    [TT_PROTO_LL] = TT_CUDA_SLOTS(16384), [TT_PROTO_LL128] = TT_CUDA_SLOTS(TT_CUDA_LL128_LINES * 128),                 \
    [TT_PROTO_SIMPLE] = TT_CUDA_SLOTS(524288)                                                                          \
  }

#endif
