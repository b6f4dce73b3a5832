/* The collectives under test: how a size becomes counts, what each rank's output must hold, the bandwidth factor that
 * nccl-tests documents, and the call itself. Adding a collective means adding a row to the table in collective.c. */
#ifndef PERF_COLLECTIVE_H
#define PERF_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"

/* Counts in elements. In place, both buffers lie in one area of max(send, recv) elements at these offsets. */
struct perf_shape {
  size_t count; /* the argument of the call */
  size_t send, recv;
  size_t send_offset, recv_offset;
};

/* A piece of a rank's output: `count` elements from `first` on are those from `source` on of rank `origin`'s input. */
enum { PERF_REDUCED = -1 /* the reduction of all ranks' */, PERF_UNTOUCHED = -2 /* what was there before */ };
struct perf_segment {
  size_t first, count;
  int origin;
  size_t source;
};

struct perf_call {
  const void *send;
  void *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root, rank, nranks;
  ncclComm_t comm;
  cudaStream_t stream;
};

struct perf_collective {
  const char *name;     /* "all_reduce" */
  bool reduces, rooted; /* has an op, has a root */
  bool in_place;        /* has an in-place form */
  void (*shape)(struct perf_shape *shape, size_t elements, int rank, int nranks);
  /* Piece number i of the output of `rank`; false past the last. */
  bool (*segment)(struct perf_segment *segment, int i, const struct perf_shape *shape, int rank, int nranks, int root);
  /* Bytes on a bus for each byte of the size: bus bandwidth / algorithm bandwidth. */
  double (*bus_factor)(int nranks);
  ncclResult_t (*run)(const struct perf_call *call);
};

const struct perf_collective *perf_collective_at(int i); /* NULL past the end */
/* "all_reduce", "all-reduce", "allreduce", "all_reduce_perf", "all_reduce_perf_mpi"; NULL if unknown. */
const struct perf_collective *perf_collective_find(const char *name);

#endif
