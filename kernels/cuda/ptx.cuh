/* The instructions that C++ has no words for: access to memory in the widths and orders that the protocols need, named
 * barriers, the clock. All of a kernel's own assembly is here and in multimem.cuh and fp8.cuh. */
#ifndef TT_KERNELS_CUDA_PTX_CUH
#define TT_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

typedef unsigned char tt_byte;

struct tt_vector {
  uint64_t low, high;
};

/* Volatile: always at the memory itself, in the width given, and neither split nor joined nor left out. */
__device__ __forceinline__ tt_vector tt_load_volatile(const void *from)
{
  tt_vector v;
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void tt_store_volatile(void *to, uint64_t low, uint64_t high)
{
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}
/* LL lines: four words of 32 bits. */
__device__ __forceinline__ uint4 tt_load_line(const void *from)
{
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void tt_store_line(void *to, uint64_t data, uint32_t flag)
{
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%2};" ::"l"(to), "r"((uint32_t)data), "r"(flag),
               "r"((uint32_t)(data >> 32))
               : "memory");
}

/* A word of 8 bytes, in global memory and aligned. */
__device__ __forceinline__ uint64_t tt_load_global(const void *from)
{
  uint64_t v;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(from));
  return v;
}
__device__ __forceinline__ void tt_store_global(void *to, uint64_t v)
{
  asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}

/* A word, or a byte, in any memory, of which nothing is asked but its value. */
__device__ __forceinline__ uint64_t tt_load_weak(const tt_byte *from)
{
  return *(const uint64_t *)from;
}
__device__ __forceinline__ void tt_store_weak(tt_byte *to, uint64_t v)
{
  *(uint64_t *)to = v;
}
__device__ __forceinline__ tt_byte tt_load_byte(const tt_byte *from)
{
  return *from;
}
__device__ __forceinline__ void tt_store_byte(tt_byte *to, tt_byte v)
{
  *to = v;
}

/* Data that no thread of this kernel reads meanwhile. */
__device__ __forceinline__ void tt_store_plain(void *to, tt_vector v)
{
  asm volatile("st.global.v2.u64 [%0], {%1,%2};" ::"l"(to), "l"(v.low), "l"(v.high) : "memory");
}

/* Counters of connections, shared with another GPU. */
__device__ __forceinline__ uint64_t tt_load_acquire(const uint64_t *from)
{
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint64_t tt_load_relaxed(const uint64_t *from)
{
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void tt_store_relaxed(uint64_t *to, uint64_t v)
{
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}
__device__ __forceinline__ void tt_fence_system()
{
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Words of shared memory through which warps of a block talk. Atomic both ways, since that is what NVIDIA's racecheck
 * knows of talk without barriers; one thread of a warp is enough to look. */
__device__ __forceinline__ uint32_t tt_shared_acquire(uint32_t *from)
{
  uint32_t v;
  asm volatile("atom.acquire.cta.shared.or.b32 %0, [%1], 0;"
               : "=r"(v)
               : "r"((uint32_t)__cvta_generic_to_shared(from))
               : "memory");
  return v;
}
__device__ __forceinline__ void tt_shared_release(uint32_t *to, uint32_t v)
{
  asm volatile("{.reg .b32 before; atom.release.cta.shared.exch.b32 before, [%0], %1;}"
               :
               : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(v)
               : "memory");
}

/* A named barrier of so many threads, whose warps are together: the hardware counts warps (tt_barrier). */
__device__ __forceinline__ void tt_barrier_sync(int id, int threads)
{
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* True for all threads if `value` is true for one of them. */
__device__ __forceinline__ bool tt_barrier_or(int id, int threads, bool value)
{
  int any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %3, 0; barrier.cta.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"((int)value)
               : "memory");
  return any != 0;
}

/* Programmatic dependent launch. A grid that was launched to begin while the one before it ends (graph.c) waits here
 * until that is over and all that it stored is seen; any other goes on at once. */
__device__ __forceinline__ void tt_await_grid_before()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next grid may begin as soon as each block has come here or is over. */
__device__ __forceinline__ void tt_let_next_grid_begin()
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint64_t tt_now_ns()
{
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

#endif
