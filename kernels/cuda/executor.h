/* What a context needs to launch: kernels, its connections' ends and its programs in device memory. */
#ifndef TT_KERNELS_CUDA_EXECUTOR_H
#define TT_KERNELS_CUDA_EXECUTOR_H

#include <stdbool.h>
#include "kernels/cuda/context.h"
#include "kernels/cuda/descriptor.h"

struct tt_cuda_program_entry;
struct tt_cuda_blob;
struct tt_cuda_graph;
struct tt_cuda_repeats;

struct tt_cuda_executor {
  struct tt_cuda_conn *conns; /* device memory, TT_CUDA_CONTEXT_CONNS of them */
  uint32_t nconns;            /* ever used */
  uint32_t *free_conns, nfree;
  uint32_t *claim;                            /* device memory: see tt_cuda_launch */
  struct tt_cuda_program_entry *programs[64]; /* by address and by content */
  /* blob.c: pieces that launches use, the first of these first; that graphs use; that nobody does. */
  struct tt_cuda_blob *launched, **launched_end, *captured, *idle;
  /* graph.c */
  cudaStream_t last_stream;        /* of the last launch outside of captures */
  struct tt_cuda_graph *graphs;    /* that have launches, as far as they are not known to be gone */
  bool replayed;                   /* one that is gone may have been launched since the last launch */
  bool can_begin_early;            /* kernels, GPU and driver know of it: executor.c, attributes.c */
  bool begins_early;               /* the next launch, which is captured right behind the last one */
  struct tt_cuda_repeats *repeats; /* repeat.c; NULL: nothing is kept yet */
};

/* Ends of connections that a context can have: 64 channels to 32 peers, both ways, in two protocols; over networks two
 * channels to 2048 ranks. */
enum { TT_CUDA_CONTEXT_CONNS = 16384 };

/* From which on kernels and GPUs know of programmatic dependent launch: 9.0. */
enum { TT_CUDA_EARLY_CAPABILITY = 90 };

/* kernel.cu, by ncclDataType_t. */
extern tt_cuda_kernel *const tt_cuda_kernels[12];

/* A program's packed form, here and in device memory, made when it is first asked for. `program` stays as it is until
 * the context is closed. */
ncclResult_t tt_cuda_program_get(struct tt_device_context *context, const struct tt_program *program,
                                 const struct tt_cuda_program **packed, const struct tt_cuda_program **on_device);
/* start.c. All of a launch but its words, and none of these; and its way to the stream. */
void tt_cuda_launch_begin(const struct tt_device_context *context, struct tt_cuda_launch *launch);
ncclResult_t tt_cuda_start(const struct tt_device_context *context, const void *kernel, unsigned nblocks,
                           unsigned threads, struct tt_cuda_launch *launch, cudaStream_t stream);
/* general.c. Runs works, of one protocol or `mixed`, by the kernel that runs any; *launched false: they are too many.
 */
ncclResult_t tt_cuda_launch_general(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                    bool mixed, cudaStream_t stream, struct tt_cuda_graph *graph, bool *launched);
bool tt_cuda_shares_memory(const struct tt_work *work); /* with other devices */
/* What a work's channels share. */
void tt_cuda_put_header(const struct tt_work *work, struct tt_cuda_work *header);
/* What a short work takes; no words: it is none, and goes the usual way. */
struct tt_cuda_short_shape {
  uint32_t nwords;
  uint32_t nsteps;  /* 0: there is nothing to launch */
  unsigned threads; /* of each block */
  enum tt_cuda_form form;
  uint16_t channels, channel_quads; /* of an exchange: see struct tt_cuda_launch */
};
/* What is written of a work: all, or only the messages before, or after, what copy engines copy; GENERAL: all, and not
 * as an exchange, since others beside it are none. */
enum tt_cuda_phase { TT_CUDA_WHOLE, TT_CUDA_BEFORE, TT_CUDA_AFTER, TT_CUDA_GENERAL, TT_CUDA_PHASES };
/* short.c: writes a short work (descriptor.h). */
ncclResult_t tt_cuda_put_short(struct tt_device_context *context, const struct tt_work *work, enum tt_cuda_phase phase,
                               uint32_t *words, struct tt_cuda_short_shape *shape);
/* exchange.c: the form of its own that a short work has if it is an exchange; false: it is none, or that does not fit.
 */
bool tt_cuda_put_exchange(const struct tt_work *work, const uint32_t *from, uint32_t *words,
                          struct tt_cuda_short_shape *shape);
/* Gives what was written of a work the buffers of another one that differs from it in nothing else. */
void tt_cuda_point_short(const struct tt_work *work, const struct tt_cuda_short_shape *shape, uint32_t *words);
/* Whether chunks of the input may lie where chunks of the output do, and whether all do: what is written of a work
 * depends on it. */
enum tt_cuda_overlap { TT_CUDA_APART, TT_CUDA_OVERLAPPING, TT_CUDA_SAME, TT_CUDA_OVERLAPS };
enum tt_cuda_overlap tt_cuda_overlap_of(const struct tt_work *work);
/* repeat.c: the same as tt_cuda_put_short, of which it keeps what is said to come again (tt_work.repeat). */
ncclResult_t tt_cuda_get_short(struct tt_device_context *context, const struct tt_work *work, enum tt_cuda_phase phase,
                               uint32_t *words, struct tt_cuda_short_shape *shape);
void tt_cuda_repeats_free(struct tt_device_context *context);
/* together.c: several short works for one kernel: its blocks (`nitems`) and words. No words: they cannot be together.
 */
ncclResult_t tt_cuda_put_together(struct tt_device_context *context, struct tt_work *const *works, int nworks,
                                  struct tt_cuda_launch *launch, struct tt_cuda_short_shape *shape);
/* engines.c. Whether copy engines are to do a work's copies; puts them on the stream. */
bool tt_cuda_has_engines(const struct tt_work *work);
ncclResult_t tt_cuda_copy_by_engines(struct tt_device_context *context, const struct tt_work *work, cudaStream_t stream,
                                     const struct tt_cuda_graph *graph);
/* Works that only copy this rank's memory, as sends to oneself do, on a second stream: beside what is put on `stream`
 * between begin and end. Whether they are so large that it is worth that. `end` follows each `begin` that succeeded, is
 * given the result of what came between, and returns that if it is a failure. */
bool tt_cuda_only_copies(const struct tt_work *work);
bool tt_cuda_are_large(struct tt_work *const *copies, int ncopies);
ncclResult_t tt_cuda_copies_begin(struct tt_device_context *context, struct tt_work *const *copies, int ncopies,
                                  cudaStream_t stream, const struct tt_cuda_graph *graph, cudaStream_t *second);
ncclResult_t tt_cuda_copies_end(struct tt_device_context *context, cudaStream_t second, cudaStream_t stream,
                                ncclResult_t result);
/* second.c: the stream beside the user's, which is captured into the graph, or not (NULL); and engines.event is there.
 */
ncclResult_t tt_cuda_second_get(struct tt_device_context *context, const struct tt_cuda_graph *graph,
                                cudaStream_t *stream);
/* Whether a program uses members' buffers. */
bool tt_cuda_is_mapped(const struct tt_program *program);
/* Threads of a block: as many as have something to do in a chunk of `bytes`, and no fewer than the roles need. */
unsigned tt_cuda_threads(int protocol, uint64_t bytes, int strands);
/* blob.c: copies the words of a launch to a piece of device memory. The launch follows, and then tt_cuda_blob_launched,
 * whether it went well or not: the piece stays until the launch is done, or the graph that it is captured into is gone.
 */
ncclResult_t tt_cuda_blob_take(struct tt_device_context *context, const uint32_t *words, size_t bytes,
                               struct tt_cuda_blob **blob, const uint32_t **on_device);
ncclResult_t tt_cuda_blob_launched(struct tt_device_context *context, struct tt_cuda_blob *blob, cudaStream_t stream,
                                   struct tt_cuda_graph *graph);
void tt_cuda_blobs_free(struct tt_device_context *context);

static inline uint32_t tt_cuda_conn_index(const struct tt_conn *conn)
{
  return (uint32_t)((uintptr_t)conn->twin - 1);
}

#endif
