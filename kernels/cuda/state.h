/* What the host's files of the CUDA backend know of a context beyond what kernels' launches need. */
#ifndef TT_KERNELS_CUDA_STATE_H
#define TT_KERNELS_CUDA_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include "kernels/cuda/context.h"

/* Page-locked memory of one context: what kernels have mapped, and the way of small copies to the device. */
#define TT_CUDA_STAGING_BYTES 65536
struct tt_cuda_host_block {
  _Alignas(4096) struct tt_cuda_mapped mapped;
  _Alignas(4096) unsigned char staging[TT_CUDA_STAGING_BYTES];
  uint64_t mark;                   /* host_block.c's */
  struct tt_cuda_host_block *next; /* likewise */
};

/* host_block.c. Takes a block with a zeroed page, valid on all devices; gives it back, once no kernel can touch it. */
ncclResult_t tt_cuda_host_block_take(struct tt_cuda_host_block **block);
void tt_cuda_host_block_put(struct tt_cuda_host_block *block);

/* How long a copy on the side stream may take. It waits for nothing but room on the device, which kernels of the user
 * may occupy. Tests have less patience. */
#ifndef TT_CUDA_SIDE_MS
#define TT_CUDA_SIDE_MS 60000
#endif

struct tt_cuda_chunk; /* small_alloc.c */

/* copies.c's, under the context's lock. */
#define TT_CUDA_COPY_EVENTS 64
struct tt_cuda_copies {
  cudaStream_t stream;                     /* NULL: no copy was begun */
  cudaEvent_t events[TT_CUDA_COPY_EVENTS]; /* behind copy n: n modulo their number */
  uint64_t begun, done;
};

/* engines.c's and second.c's, of whoever launches: NULL until they are needed. */
struct tt_cuda_second;
struct tt_cuda_engines {
  struct tt_cuda_second *seconds;
  cudaEvent_t event; /* for a moment, to let one stream follow another */
};

/* gdrcopy.c's: memory of the GPU that the host can read. */
struct tt_cuda_window {
  const volatile uint64_t *_Atomic word; /* NULL: there is none yet */
  void *at;
  unsigned long handle;
  char why[200]; /* there will be none; under the context's lock */
};

struct tt_cuda_context_state {
  void *primary;       /* the device's primary context, as the driver names it */
  bool vmm;            /* memory is allocated by cuMem, else by cudaMalloc */
  bool nics;           /* memory of cuMem can be such that NICs reach it */
  _Atomic bool fabric; /* and so that it can be exported to other hosts */
  struct tt_cuda_host_block *block;
  cudaEvent_t launched;    /* behind the last launch, and recorded by graphs (graph.c) */
  cudaEvent_t joined;      /* for a moment, to join streams */
  _Atomic bool any_launch; /* `launched` was recorded */
  void *asked;             /* a stream that was just found not to be captured, for the launch that follows; or NULL */
  bool side_stuck;         /* a copy on `side` did not end in time: none is waited for again. Under the lock */
  struct tt_cuda_chunk *chunks;
  struct tt_cuda_copies copies;
  struct tt_cuda_engines engines;
  struct tt_cuda_window window;

  _Atomic uint32_t stalls;     /* as last seen */
  _Atomic uint64_t stalled_at; /* when they were seen to grow; 0: never */
};

/* context.c: the life of a context, and its works as a whole; see tt_device. */
ncclResult_t tt_cuda_open(const struct tt_device_config *config, struct tt_device_context **context);
void tt_cuda_close(struct tt_device_context *context);
void tt_cuda_stop(struct tt_device_context *context);
ncclResult_t tt_cuda_drain(struct tt_device_context *context, int timeout_ms, int *done);
/* Waits until what was just put on the side stream, with the result `started`, is done. The lock is held. After a
 * failure with side_stuck set, the device may still do it. */
ncclResult_t tt_cuda_side_wait(struct tt_device_context *context, cudaError_t started, const char *doing);

/* second.c */
void tt_cuda_seconds_close(struct tt_device_context *context);

/* status.c */
ncclResult_t tt_cuda_status(struct tt_device_context *context, struct tt_device_status *status);

/* memory.c: see tt_device. */
ncclResult_t tt_cuda_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory);
void tt_cuda_release(struct tt_device_context *context, struct tt_device_memory *memory);
ncclResult_t tt_cuda_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                            struct tt_device_export *out);
ncclResult_t tt_cuda_import(struct tt_device_context *context, const struct tt_device_export *in,
                            struct tt_device_memory *memory);
/* Whether contexts of a device allocate by cuMem: what NCCL_CUMEM_ENABLE says and the device can do. */
ncclResult_t tt_cuda_memory_choose(int device, bool *vmm);

/* gdrcopy.c: see tt_device. */
ncclResult_t tt_cuda_flush(struct tt_device_context *context);
void tt_cuda_window_close(struct tt_device_context *context);

/* dmabuf.c: see tt_device. */
ncclResult_t tt_cuda_export_dmabuf(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd);

/* user_memory.c: see tt_device. */
ncclResult_t tt_cuda_user_alloc(int index, size_t bytes, void **ptr);
ncclResult_t tt_cuda_user_free(void *ptr);
ncclResult_t tt_cuda_find_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);
ncclResult_t tt_cuda_import_parts(struct tt_device_context *context, const struct tt_device_export *in, int count,
                                  struct tt_device_memory *memory);
ncclResult_t tt_cuda_reach_buffer(struct tt_device_context *context, const void *ptr, struct tt_device_buffer *buffer);
ncclResult_t tt_cuda_export_buffer(struct tt_device_context *context, const void *ptr, int local,
                                   struct tt_device_export *out);

/* check.c: see tt_device. */
ncclResult_t tt_cuda_check_buffer(struct tt_device_context *context, struct tt_device_check *check);

/* host_memory.c: see tt_device. */
ncclResult_t tt_cuda_map_host(struct tt_device_context *context, void *ptr, size_t bytes, void **at);
void tt_cuda_unmap_host(struct tt_device_context *context, void *ptr, size_t bytes);

/* small_alloc.c */
void tt_cuda_small_free_all(struct tt_device_context *context);

/* copies.c: see tt_device. */
ncclResult_t tt_cuda_copy(struct tt_device_context *context, void *to, const void *from, size_t bytes,
                          uint64_t *ticket);
ncclResult_t tt_cuda_copied(struct tt_device_context *context, uint64_t *ticket);
void tt_cuda_copies_close(struct tt_device_context *context);

/* device.c */
const struct tt_device *tt_cuda_device(void);

#endif
