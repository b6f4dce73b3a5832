/* What the host's side and the kernels of the CUDA backend share: an end of a connection, and the page through which a
 * running kernel and the host talk. */
#ifndef TT_KERNELS_CUDA_SHARED_H
#define TT_KERNELS_CUDA_SHARED_H

#include "tutti/device.h"

/* One end of a connection, in device memory. A connection serves one protocol. Written by one warp at a time. */
struct tt_cuda_conn {
  unsigned char *slots; /* TT_SLOTS slots; NULL: of a pool, where `fifo` says, for who asks (tt_conn_asked) */
  uint64_t *head, *tail;
  uint64_t step; /* the next */
  uint64_t seen; /* last seen of the counter that the other side moves */
  uint32_t slot_bytes;
  int32_t peer;
  int32_t protocol;
  uint32_t reserved;         /* ends lie at multiples of 64 bytes */
  struct tt_conn_fifo *fifo; /* of an end that a proxy serves: it is told of the size of each message sent; else NULL */
};

/* Why a kernel ended early. */
enum {
  TT_CUDA_NO_ERROR = 0,
  TT_CUDA_WRONG_SIGNATURE = 1, /* a peer is in another operation: `got` holds its signature, as far as it had come */
  TT_CUDA_WRONG_BYTES = 2      /* a message of another length: `expected_bytes`, `got_bytes` */
};

/* A page of host memory that a context's kernels have mapped. `abort` is written by the host, and by a kernel that
 * failed, so that all its blocks end; the rest by kernels. */
struct tt_cuda_mapped {
  uint32_t abort;
  uint32_t error;   /* set last: the rest of the failure is complete */
  uint32_t claimed; /* by the block that reports the first failure */
  int32_t error_peer;
  uint32_t error_channel;
  uint64_t expected_bytes, got_bytes;
  struct tt_signature mine, got;
  /* Since a wait has lasted TT_CUDA_STALL_NS its thread adds one every TT_CUDA_STALL_NS. */
  uint32_t stalls;
  int32_t stall_peer;
  uint32_t stall_sending;
  struct tt_signature stalled;
};
#define TT_CUDA_STALL_NS 50000000u

#endif
