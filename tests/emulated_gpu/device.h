/* CUDA C++ for a CPU's compiler: what kernels use of it, by threads.h. Included before a kernel's own file. */
#ifndef TESTS_EMULATED_GPU_DEVICE_H
#define TESTS_EMULATED_GPU_DEVICE_H

/* All that kernels include of others' headers, since their own are included in a namespace (EMU_UNIT). */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <emmintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <vector_functions.h>
#include "grid.h"
#include "threads.h"
#include "tutti/device.h"

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __grid_constant__
#undef __launch_bounds__
#define __device__
#define __global__
#define __shared__ /* the scheduler changes its contents with each block (grid.c) */
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (emu_place->thread)
#define blockIdx (emu_place->block)
#define blockDim (emu_place->block_size)
#define gridDim (emu_place->grid_size)

/* Kernels name all lanes always. */
static inline void __syncwarp()
{
  emu_meet(EMU_SYNC, 0);
}
static inline int __any_sync(unsigned mask, int value)
{
  if (mask != 0xffffffffu) emu_die("a part of a warp meets");
  return (int)emu_meet(EMU_ANY, value != 0);
}
static inline int __all_sync(unsigned mask, int value)
{
  if (mask != 0xffffffffu) emu_die("a part of a warp meets");
  return (int)emu_meet(EMU_ALL, value != 0);
}
static inline int __shfl_sync(unsigned mask, int value, int from)
{
  if (mask != 0xffffffffu || from != 0) emu_die("a shuffle from another lane than the first");
  return (int)(int64_t)emu_meet(EMU_FROM_FIRST, (uint64_t)(int64_t)value);
}
static inline void __syncthreads()
{
  emu_barrier(0, 0, false);
}
static inline int __syncthreads_or(int value)
{
  return emu_barrier(0, 0, value != 0);
}
static inline void __threadfence_block()
{
  emu_publish();
}

static inline uint32_t atomicAdd(uint32_t *at, uint32_t v)
{
  emu_moved();
  return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
}
static inline uint32_t atomicSub(uint32_t *at, uint32_t v)
{
  emu_moved();
  return __atomic_fetch_sub(at, v, __ATOMIC_RELAXED);
}
static inline uint32_t atomicExch(uint32_t *at, uint32_t v)
{
  emu_moved();
  return __atomic_exchange_n(at, v, __ATOMIC_RELAXED);
}
static inline unsigned long long atomicCAS(unsigned long long *at, unsigned long long old, unsigned long long v)
{
  __atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}

static inline uint32_t min(uint32_t a, uint32_t b)
{
  return a < b ? a : b;
}
template <typename TO, typename FROM> static inline TO emu_bits(FROM from)
{
  TO to;
  static_assert(sizeof(to) == sizeof(from), "the same bits");
  memcpy(&to, &from, sizeof(to));
  return to;
}
static inline float __uint_as_float(uint32_t v)
{
  return emu_bits<float>(v);
}
static inline uint32_t __float_as_uint(float v)
{
  return emu_bits<uint32_t>(v);
}
static inline double __longlong_as_double(long long v)
{
  return emu_bits<double>(v);
}
static inline long long __double_as_longlong(double v)
{
  return emu_bits<long long>(v);
}
/* Compiled without contraction. */
static inline float __fadd_rn(float a, float b)
{
  return a + b;
}
static inline float __fmul_rn(float a, float b)
{
  return a * b;
}
static inline double __dadd_rn(double a, double b)
{
  return a + b;
}
static inline double __dmul_rn(double a, double b)
{
  return a * b;
}

/* A GPU's code is linked a unit at a time. Here the linker would take one unit's inline functions, and with them its
 * shared memory, for those of all: so each unit has a namespace of its own. */
#define EMU_PASTE(a, b) a##b
#define EMU_UNIT_OF(type) EMU_PASTE(unit_, type)
#define EMU_UNIT EMU_UNIT_OF(TT_CUDA_DATATYPE)

#endif
