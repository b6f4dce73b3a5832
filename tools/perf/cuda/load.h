/* What the files of libtutti-perf-cuda.so share: failures, and the load of --load. */
#ifndef PERF_CUDA_LOAD_H
#define PERF_CUDA_LOAD_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include "backend.h"

/* False remembers a failure for the calling thread, and takes it off the runtime's record. */
bool perf_cuda_good(cudaError_t status, const char *doing);
/* The same, of a failure that has its words already. */
void perf_cuda_say(const char *sentence);
/* The calling thread's last failure. */
const char *perf_cuda_said(void);

/* As perf_backend's. */
void *perf_cuda_load_start(int device);
bool perf_cuda_load_stop(void *load, struct perf_load_result *result);

/* Puts c = a b on the stream: n x n floats, n a multiple of 16 (product.cu). */
cudaError_t perf_cuda_product(const float *a, const float *b, float *c, int n, cudaStream_t stream);

#endif
