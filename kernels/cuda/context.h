/* One rank's use of one GPU: what the host's files of the CUDA backend share. */
#ifndef TT_KERNELS_CUDA_CONTEXT_H
#define TT_KERNELS_CUDA_CONTEXT_H

#include <stdbool.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "kernels/cuda/shared.h"

struct tt_cuda_executor;   /* launch.c */
struct tt_cuda_attributes; /* attributes.c */

struct tt_device_context {
  int device, rank, nranks;
  int processors;                   /* multiprocessors */
  struct tt_cuda_mapped *mapped;    /* as the host sees it */
  struct tt_cuda_mapped *mapped_at; /* as kernels see it */
  cudaStream_t side;                /* for copies that have nothing to do with the user's streams; non-blocking */
  pthread_mutex_t lock;             /* of `side` and of the executor's tables; recursive */
  struct tt_cuda_executor *executor;
  struct tt_cuda_attributes *attributes; /* NULL: launches have none */
  struct tt_cuda_context_state *state;   /* context.c's own */
};

/* context.c. Makes the context's device the thread's, and puts the thread into the relaxed capture mode, in which
 * calls that a capture forbids are allowed since they have nothing to do with it; `leave` undoes both. Pairs may be
 * nested. */
struct tt_cuda_enter {
  void *previous; /* the driver's context that was the thread's; NULL: none, and none is made for it */
  bool changed;   /* it is another one now */
  enum cudaStreamCaptureMode mode;
};
ncclResult_t tt_cuda_enter(const struct tt_device_context *context, struct tt_cuda_enter *enter);
/* The same for a device, whose context is made if there is none. */
ncclResult_t tt_cuda_enter_device(int device, struct tt_cuda_enter *enter);
void tt_cuda_leave(const struct tt_cuda_enter *enter);
/* Notes that kernels were launched on the stream, for close and drain. Called after each launch outside of capture,
 * between enter and leave. Launches of a context run one after the other, whatever their streams. */
ncclResult_t tt_cuda_launched(struct tt_device_context *context, cudaStream_t stream);

/* small_alloc.c. Zeroed memory of this context only, in small pieces (aligned to 256 bytes), freed with the context.
 * Neither function waits for the user's streams; both enter and lock for themselves. */
ncclResult_t tt_cuda_small_alloc(struct tt_device_context *context, size_t bytes, void **ptr);
/* Copies to device memory and waits until it is there, on the side stream. */
ncclResult_t tt_cuda_upload(struct tt_device_context *context, void *to, const void *from, size_t bytes);

/* executor.c, launch.c and what it calls: programs on the device, connections' ends, launches. load: all kernels' code,
 * so that none is loaded while another one waits for a peer. */
ncclResult_t tt_cuda_executor_create(struct tt_device_context *context);
void tt_cuda_executor_destroy(struct tt_device_context *context); /* also after a create that failed */
ncclResult_t tt_cuda_conn_open(struct tt_device_context *context, struct tt_conn *conn);
void tt_cuda_conn_close(struct tt_device_context *context, struct tt_conn *conn);
ncclResult_t tt_cuda_launch(struct tt_work *const *works, int nworks, void *stream, struct tt_launch **launch);

/* error.c. A CUDA call that failed, as a sentence: what was being done, the error's name and text. */
ncclResult_t tt_cuda_check(cudaError_t error, const char *doing);
#define TT_CUDA_TRY(call, doing)                                                                                       \
  do {                                                                                                                 \
    ncclResult_t tt_cuda_result_ = tt_cuda_check((call), (doing));                                                     \
    if (tt_cuda_result_ != ncclSuccess) return tt_cuda_result_;                                                        \
  } while (0)

#endif
