// Kernels of the memory test: they fill memory, compare it, and spin.
#include "kernels.h"

static __device__ uint64_t value(size_t index, uint64_t seed)
{
  return (index + 1) * seed; // seed 0: zeroed memory
}

static __global__ void fill(uint64_t *to, size_t words, uint64_t seed)
{
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x)
    to[i] = value(i, seed);
}

static __global__ void compare(const uint64_t *from, size_t words, uint64_t seed, unsigned long long *wrong)
{
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x)
    if (from[i] != value(i, seed)) atomicAdd(wrong, 1ull);
}

static __global__ void spin(const volatile unsigned *flag)
{
  while (*flag == 0) {
  }
}

cudaError_t kernel_fill(void *to, size_t bytes, uint64_t seed, cudaStream_t stream)
{
  fill<<<8, 256, 0, stream>>>((uint64_t *)to, bytes / sizeof(uint64_t), seed);
  return cudaGetLastError();
}

cudaError_t kernel_compare(const void *from, size_t bytes, uint64_t seed, unsigned long long *wrong,
                           cudaStream_t stream)
{
  compare<<<8, 256, 0, stream>>>((const uint64_t *)from, bytes / sizeof(uint64_t), seed, wrong);
  return cudaGetLastError();
}

cudaError_t kernel_spin(const unsigned *flag, cudaStream_t stream)
{
  spin<<<1, 32, 0, stream>>>(flag);
  return cudaGetLastError();
}

cudaError_t kernel_load(void)
{
  struct cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)spin);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, (const void *)fill);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, (const void *)compare);
  return error;
}
