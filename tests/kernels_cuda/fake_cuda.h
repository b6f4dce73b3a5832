/* CUDA without a GPU: the runtime's and the driver's functions that the host's side of the CUDA backend calls, on
 * ordinary memory. They count what exists, so that a leak shows, and fail when told to. Memory of cuMem is a file in
 * memory, so that several mappings and a descriptor are really the same memory. */
#ifndef TEST_KERNELS_CUDA_FAKE_CUDA_H
#define TEST_KERNELS_CUDA_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

struct fake_cuda {
  int fail_at;                               /* the call that fails, counting down from here; 0: none */
  bool no_vmm;                               /* devices have no cuMem */
  bool no_multicast, no_multicast_functions; /* devices have none; the driver has none */
  bool running;                              /* what was recorded in events is not done */
  bool stuck;                                /* nothing on streams gets done */
  bool host_reset;                           /* page-locked memory is not known any more */
  /* What exists. */
  int handles, mappings, ranges, mallocs, opened, streams, events, host_blocks;
  int bound;       /* copies of multicast memory */
  int registered;  /* ranges of the host's memory */
  int queries;     /* of streams, so far */
  int freed_hosts; /* calls that would wait for all kernels */
  int peers;       /* enabled */
  bool fabric;     /* handles for a fabric can be asked for; but memory with them only with `imex` */
  bool imex;
  bool joined;     /* devices have joined the fabric */
  bool old_driver; /* it knows no ids of physical memory, and no fabrics */
  int accesses;    /* given to devices other than the thread's */
  int given;       /* the device to which access was given last */
  const void *given_at;
  size_t given_bytes;
  int nics;                        /* allocations that NICs can use */
  bool no_nics;                    /* no memory of cuMem is for NICs */
  bool no_dmabuf;                  /* devices have no dma-bufs */
  unsigned long long dmabuf_flags; /* of the last one that was made */
};
extern struct fake_cuda fake;

/* What the calling thread has. A context is the address of one of these. */
extern char fake_primaries[4];
extern _Thread_local void *fake_current;
extern _Thread_local int fake_mode;

/* Memory as others than the backend make it: of a pool, managed, or of the host; on device 1. Fakes that were made are
 * known until they are forgotten. */
enum fake_kind { FAKE_POOL, FAKE_MANAGED, FAKE_HOST };
void *fake_other_memory(enum fake_kind kind, size_t bytes);
void fake_other_forget(void *ptr);
/* Several allocations mapped side by side in one range, on the thread's device, and what takes them down again. */
void *fake_side_by_side(int count, size_t bytes_each);
void fake_side_by_side_end(void *ptr, int count, size_t bytes_each);
/* A device may not write any more, or not even read, what is mapped at a place by cuMem. */
void fake_take_access(const void *ptr, int device, bool read);
/* Two allocations of cudaMalloc on device 1, without anything between them. */
void *fake_neighbours(size_t bytes_each);
void fake_neighbours_end(void *ptr);

#endif
