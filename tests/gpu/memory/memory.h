/* The test of the CUDA backend's memory on real GPUs: what its parts share. Lines begin with PASS, FAIL or SKIP. */
#ifndef TEST_GPU_MEMORY_H
#define TEST_GPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels.h"
#include "tutti/device.h"

#define MOST_GPUS 16
/* Not a multiple of any page. */
#define TEST_BYTES ((size_t)3 * 1024 * 1024 + 8)

/* The backend under test, how it is to allocate, and what the test has on each GPU beside it. */
struct bench {
  const struct tt_device *device;
  const char *kind; /* "cuMem" or "cudaMalloc" */
  bool vmm;
  int ngpus;
  struct {
    cudaStream_t stream;
    unsigned long long *wrong;
    struct tt_device_context *context, *second; /* of two ranks on this GPU */
  } gpus[MOST_GPUS];
};

/* bench.c. The backend, as NCCL_CUMEM_ENABLE says; with `contexts`, two on each GPU. */
bool bench_load(struct bench *bench, const char *library, bool vmm);
bool bench_open(struct bench *bench);
void bench_close(struct bench *bench);
/* What the GPU's own loads and stores do and see at an address that is valid there. */
bool bench_fill(const struct bench *bench, int gpu, void *ptr, size_t bytes, uint64_t seed);
bool bench_holds(const struct bench *bench, int gpu, const void *ptr, size_t bytes, uint64_t seed);
/* Prints a line: PASS if there is no problem. Returns 1 for a failure, else 0. */
int report(const char *problem, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Each returns its number of failures. */
int test_one_process(struct bench *bench);          /* one_process.c */
int test_waits(struct bench *bench);                /* waits.c */
int test_leaks(struct bench *bench);                /* leaks.c */
int test_users(struct bench *bench);                /* users.c */
int test_dmabuf(struct bench *bench);               /* dmabuf.c */
int test_owner(struct bench *bench, int socket);    /* two_processes.c */
int test_importer(struct bench *bench, int socket); /* likewise */

#endif
