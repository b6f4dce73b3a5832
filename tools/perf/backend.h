/* What depends on the device: memory, streams and graphs. The rest of tutti-perf touches them through `struct
 * perf_backend` alone. The host's is in backend.c; the GPUs' is libtutti-perf-cuda.so, loaded where there is one, so
 * that the program itself needs no GPU's libraries. */
#ifndef PERF_BACKEND_H
#define PERF_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

enum perf_stream_state { PERF_STREAM_DONE, PERF_STREAM_BUSY, PERF_STREAM_FAILED };

/* What --load did. */
struct perf_load_result {
  char kind[40]; /* "cublasSgemm" */
  int size;      /* of the square matrices */
  uint64_t products;
  double seconds;
};

/* Functions work on the calling thread's device (`choose`) unless they name one. False, NULL and FAILED: it did not
 * work, and `error` says why. */
struct perf_backend {
  size_t size;      /* sizeof(struct perf_backend), so that a helper of another build is found out */
  const char *name; /* "host", "cuda" */
  bool streams;     /* operations are always put on streams and run by themselves; there are graphs */
  bool fp8;         /* values of the fp8 types can be reduced, not only moved */
  int (*count)(void);
  /* Of device number `device`: its name, and its PCI id or "". */
  bool (*describe)(int device, char *name, size_t name_size, char *pci, size_t pci_size);
  /* Makes it the calling thread's, for what it does next and for the communicators it creates. */
  bool (*choose)(int device);
  /* Memory that is touched and zero, aligned to a page or, on a GPU, as its runtime aligns. */
  void *(*allocate)(size_t bytes);
  void (*release)(void *memory, size_t bytes);
  bool (*zero)(void *memory, size_t bytes);
  /* Between host memory and a device's, whichever it is; complete on return. They wait for no stream. */
  bool (*copy_in)(void *device, const void *host, size_t bytes);
  bool (*copy_out)(void *host, const void *device, size_t bytes);
  bool (*stream_make)(cudaStream_t *stream);
  void (*stream_drop)(cudaStream_t stream);
  enum perf_stream_state (*stream_state)(cudaStream_t stream);
  /* Sleeps until the stream is done; false if an operation on it failed. NULL: who waits looks at its state. */
  bool (*stream_wait)(cudaStream_t stream);
  /* What is put on the stream between the two goes into a graph, and does not run. Of the calling thread only. */
  bool (*capture_begin)(cudaStream_t stream);
  void *(*capture_end)(cudaStream_t stream);
  bool (*graph_launch)(void *graph, cudaStream_t stream);
  void (*graph_drop)(void *graph);
  /* Multiplies matrices on the device, over and over, until stopped. NULL functions: there is no such load. */
  void *(*load_start)(int device);
  bool (*load_stop)(void *load, struct perf_load_result *result);
  /* The calling thread's last failure. */
  const char *(*error)(void);
};

extern const struct perf_backend perf_backend_host;

/* The helper's one symbol: its backend, or NULL and a sentence where there is no GPU. */
#define PERF_BACKEND_SYMBOL "tutti_perf_backend"
typedef const struct perf_backend *perf_backend_entry(char *why, size_t size);

/* Loads the GPUs' backend: from the file that TUTTI_PERF_CUDA names, else from the places where it is installed or
 * built. NULL: `why` says what is missing. Creates threads and contexts, so not before a fork. */
const struct perf_backend *perf_backend_cuda(char *why, size_t size);

/* As --device has them. */
enum perf_device_choice { PERF_DEVICE_AUTO, PERF_DEVICE_HOST, PERF_DEVICE_CUDA };
bool perf_device_parse(const char *text, enum perf_device_choice *choice);

/* The backend that `choice` means. AUTO: what TUTTI_DEVICE says, else the GPUs if there are any. TUTTI_DEVICE is set to
 * match, so that the library cannot choose otherwise: it would take a GPU's addresses for the host's. NULL: `why`. As
 * perf_backend_cuda, not before a fork. */
const struct perf_backend *perf_backend_select(enum perf_device_choice choice, char *why, size_t size);
/* Whether the choice is the host for certain; may be asked before a fork. */
bool perf_backend_host_only(enum perf_device_choice choice);

#endif
