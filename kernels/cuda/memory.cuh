/* Words at any address, and barriers among warps. */
#ifndef TT_KERNELS_CUDA_MEMORY_CUH
#define TT_KERNELS_CUDA_MEMORY_CUH

#include "kernels/cuda/ptx.cuh"

/* The word at `offset` of `bytes` bytes at any address; what lies beyond the end is zero. */
static __device__ __noinline__ uint64_t tt_load_odd_word(const tt_byte *at, uint32_t bytes)
{
  uint64_t word = 0;
  if (bytes > 8) bytes = 8;
#pragma unroll 1
  for (uint32_t i = 0; i < bytes; i++) word |= (uint64_t)tt_load_byte(at + i) << (8 * i);
  return word;
}
static __device__ __noinline__ void tt_store_odd_word(tt_byte *at, uint32_t bytes, uint64_t word)
{
  if (bytes > 8) bytes = 8;
#pragma unroll 1
  for (uint32_t i = 0; i < bytes; i++) tt_store_byte(at + i, (tt_byte)(word >> (8 * i)));
}
__device__ __forceinline__ uint64_t tt_load_word(const tt_byte *base, uint32_t offset, uint32_t bytes)
{
  const tt_byte *at = base + offset;
  if (offset + 8 <= bytes && ((uintptr_t)at & 7) == 0) return tt_load_weak(at);
  return offset < bytes ? tt_load_odd_word(at, bytes - offset) : 0;
}
__device__ __forceinline__ void tt_store_word(tt_byte *base, uint32_t offset, uint32_t bytes, uint64_t word)
{
  tt_byte *at = base + offset;
  if (offset + 8 <= bytes && ((uintptr_t)at & 7) == 0)
    tt_store_weak(at, word);
  else if (offset < bytes)
    tt_store_odd_word(at, bytes - offset, word);
}

/* The same in global memory, in order with other accesses. */
__device__ __forceinline__ uint64_t tt_load_global_word(const tt_byte *base, uint32_t offset, uint32_t bytes)
{
  const tt_byte *at = base + offset;
  if (offset + 8 <= bytes && ((uintptr_t)at & 7) == 0) return tt_load_global(at);
  return offset < bytes ? tt_load_odd_word(at, bytes - offset) : 0;
}
__device__ __forceinline__ void tt_store_global_word(tt_byte *base, uint32_t offset, uint32_t bytes, uint64_t word)
{
  tt_byte *at = base + offset;
  if (offset + 8 <= bytes && ((uintptr_t)at & 7) == 0)
    tt_store_global(at, word);
  else if (offset < bytes)
    tt_store_odd_word(at, bytes - offset, word);
}

/* Barriers among the warps of a strand. The hardware counts warps, not threads: if a thread of a warp came before the
 * others, it would count for all of them, and those would later wait in vain. So a warp comes together first. */
__device__ __forceinline__ void tt_barrier(int id, int threads)
{
  __syncwarp();
  tt_barrier_sync(id, threads);
}
__device__ __forceinline__ bool tt_barrier_any(int id, int threads, bool value)
{
  __syncwarp();
  return tt_barrier_or(id, threads, value);
}

#endif
