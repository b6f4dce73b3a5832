/* The instructions for multicast addresses: reading all copies of a vector combined, and storing a vector to all. */
#ifndef TT_KERNELS_CUDA_MULTIMEM_CUH
#define TT_KERNELS_CUDA_MULTIMEM_CUH

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

struct tt_words {
  uint32_t w[4];
};

/* A vector of all copies, combined. F: float32 and the like; a 64-bit type has two to a vector. */
#define TT_READ_VECTOR(op, type)                                                                                       \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." op "." type " {%0,%1,%2,%3}, [%4];"                            \
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])                                                \
               : "l"(at)                                                                                               \
               : "memory")
#define TT_READ_WORDS(op, type)                                                                                        \
  for (int i = 0; i < 4; i++)                                                                                          \
  asm volatile("multimem.ld_reduce.relaxed.sys.global." op "." type " %0, [%1];"                                       \
               : "=r"(x.w[i])                                                                                          \
               : "l"(at + 4 * i)                                                                                       \
               : "memory")
#define TT_READ_LONGS(op, type)                                                                                        \
  for (int i = 0; i < 2; i++) {                                                                                        \
    uint64_t v;                                                                                                        \
    asm volatile("multimem.ld_reduce.relaxed.sys.global." op "." type " %0, [%1];"                                     \
                 : "=l"(v)                                                                                             \
                 : "l"(at + 8 * i)                                                                                     \
                 : "memory");                                                                                          \
    x.w[2 * i] = (uint32_t)v;                                                                                          \
    x.w[2 * i + 1] = (uint32_t)(v >> 32);                                                                              \
  }

/* How values of a type are combined; `op` is one that the type has (multicast.c). 16-bit floats are added up in fp32.
 */
template <typename T> struct tt_multicast_read;
#define TT_MULTICAST_READ(T, add, min, max)                                                                            \
  template <> struct tt_multicast_read<T> {                                                                            \
    static __device__ __forceinline__ tt_words take(const tt_byte *at, int op)                                         \
    {                                                                                                                  \
      tt_words x;                                                                                                      \
      if (op == ncclMin) {                                                                                             \
        min;                                                                                                           \
      } else if (op == ncclMax) {                                                                                      \
        max;                                                                                                           \
      } else {                                                                                                         \
        add;                                                                                                           \
      }                                                                                                                \
      return x;                                                                                                        \
    }                                                                                                                  \
  }
#define TT_MULTICAST_SUM(T, add)                                                                                       \
  template <> struct tt_multicast_read<T> {                                                                            \
    static __device__ __forceinline__ tt_words take(const tt_byte *at, int)                                            \
    {                                                                                                                  \
      tt_words x;                                                                                                      \
      add;                                                                                                             \
      return x;                                                                                                        \
    }                                                                                                                  \
  }
TT_MULTICAST_READ(int32_t, TT_READ_WORDS("add", "s32"), TT_READ_WORDS("min", "s32"), TT_READ_WORDS("max", "s32"));
TT_MULTICAST_READ(uint32_t, TT_READ_WORDS("add", "u32"), TT_READ_WORDS("min", "u32"), TT_READ_WORDS("max", "u32"));
/* Sums of signed and unsigned numbers are the same. */
TT_MULTICAST_READ(int64_t, TT_READ_LONGS("add", "u64"), TT_READ_LONGS("min", "s64"), TT_READ_LONGS("max", "s64"));
TT_MULTICAST_READ(uint64_t, TT_READ_LONGS("add", "u64"), TT_READ_LONGS("min", "u64"), TT_READ_LONGS("max", "u64"));
TT_MULTICAST_READ(__half, TT_READ_VECTOR("add.acc::f32.v4", "f16x2"), TT_READ_VECTOR("min.v4", "f16x2"),
                  TT_READ_VECTOR("max.v4", "f16x2"));
TT_MULTICAST_READ(__nv_bfloat16, TT_READ_VECTOR("add.acc::f32.v4", "bf16x2"), TT_READ_VECTOR("min.v4", "bf16x2"),
                  TT_READ_VECTOR("max.v4", "bf16x2"));
TT_MULTICAST_SUM(float, TT_READ_VECTOR("add.v4", "f32"));
TT_MULTICAST_SUM(double, TT_READ_LONGS("add", "f64"));
/* Bytes are moved, never read through the address. */
template <> struct tt_multicast_read<uint8_t> {
  static __device__ __forceinline__ tt_words take(const tt_byte *, int)
  {
    return tt_words{};
  }
};

static __device__ __forceinline__ void tt_multicast_store(tt_byte *at, const tt_words &x)
{
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(x.w[0]), "r"(x.w[1]),
               "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}

/* The own copy and the multicast address are two ways to the same memory: what goes by one is ordered behind what went
 * by the other by this fence alone. */
static __device__ __forceinline__ void tt_fence_alias()
{
  asm volatile("fence.proxy.alias;" ::: "memory");
}

#endif
