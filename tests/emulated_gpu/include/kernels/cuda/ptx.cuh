/* In place of kernels/cuda/ptx.cuh, for kernels on a CPU: the same functions, by what they say they do. Unlike a CPU's,
 * a GPU's accesses must be aligned, and what is stored without an order arrives in any (grid.c). */
#ifndef TT_KERNELS_CUDA_PTX_CUH
#define TT_KERNELS_CUDA_PTX_CUH

#include <emmintrin.h>
#include <stdint.h>
#include <time.h>
#include "threads.h"

typedef unsigned char tt_byte;

struct tt_vector {
  uint64_t low, high;
};

template <int BYTES> static inline void emu_check(const void *at)
{
  if (((uintptr_t)at & (BYTES - 1)) != 0) emu_die("an access to memory is not aligned");
}
/* Lines and headers: seen by all when they are stored. */
static inline void emu_store_whole(void *to, uint64_t low, uint64_t high)
{
  emu_check<16>(to);
  emu_settle(to, 16);
  asm volatile("movdqa %1, %0"
               : "=m"(*(__m128i *)to)
               : "x"(_mm_set_epi64x((long long)high, (long long)low))
               : "memory");
  emu_moved();
}

static inline tt_vector tt_load_volatile(const void *from)
{
  tt_vector v;
  emu_check<16>(from);
  emu_load_together(from, &v);
  return v;
}
static inline void tt_store_volatile(void *to, uint64_t low, uint64_t high)
{
  emu_store_whole(to, low, high);
}
static inline uint4 tt_load_line(const void *from)
{
  emu_may_part();
  tt_vector v;
  emu_check<16>(from);
  emu_load(from, &v, 16);
  return make_uint4((uint32_t)v.low, (uint32_t)(v.low >> 32), (uint32_t)v.high, (uint32_t)(v.high >> 32));
}
static inline void tt_store_line(void *to, uint64_t data, uint32_t flag)
{
  emu_store_whole(to, (uint32_t)data | (uint64_t)flag << 32, data >> 32 | (uint64_t)flag << 32);
}

static inline uint64_t tt_load_weak(const tt_byte *from)
{
  uint64_t v;
  emu_check<8>(from);
  emu_load(from, &v, 8);
  return v;
}
static inline void tt_store_weak(tt_byte *to, uint64_t v)
{
  emu_check<8>(to);
  emu_store(to, &v, 8);
}
static inline tt_byte tt_load_byte(const tt_byte *from)
{
  tt_byte v;
  emu_may_part();
  emu_load(from, &v, 1);
  return v;
}
static inline void tt_store_byte(tt_byte *to, tt_byte v)
{
  emu_may_part();
  emu_store(to, &v, 1);
}
static inline uint64_t tt_load_global(const void *from)
{
  emu_may_part();
  return tt_load_weak((const tt_byte *)from);
}
static inline void tt_store_global(void *to, uint64_t v)
{
  tt_store_weak((tt_byte *)to, v);
}

static inline void tt_store_plain(void *to, tt_vector v)
{
  emu_check<16>(to);
  emu_store(to, &v, 16);
}

static inline uint64_t tt_load_acquire(const uint64_t *from)
{
  emu_check<8>(from);
  emu_may_part();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
static inline uint64_t tt_load_relaxed(const uint64_t *from)
{
  return tt_load_acquire(from);
}
static inline void tt_store_relaxed(uint64_t *to, uint64_t v)
{
  emu_check<8>(to);
  __atomic_store_n(to, v, __ATOMIC_RELAXED);
  emu_moved();
}
static inline void tt_fence_system()
{
  emu_fence();
}

static inline uint32_t tt_shared_acquire(uint32_t *from)
{
  emu_may_part();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
static inline void tt_shared_release(uint32_t *to, uint32_t v)
{
  emu_publish();
  __atomic_store_n(to, v, __ATOMIC_RELEASE);
  emu_moved();
}

static inline void tt_barrier_sync(int id, int threads)
{
  emu_barrier(id, threads, false);
}
static inline bool tt_barrier_or(int id, int threads, bool value)
{
  return emu_barrier(id, threads, value);
}

static inline void tt_await_grid_before()
{
  emu_await_grid();
}
static inline void tt_let_next_grid_begin()
{
  emu_let_grid_begin();
}

static inline uint64_t tt_now_ns()
{
  struct timespec now;
  emu_may_part();
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
