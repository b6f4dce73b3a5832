/* Works with memory that several GPUs share (TT_SHARED, TT_MULTICAST), in the Simple protocol: its waits, posts and
 * roles, and workers that read the multicast address by multimem.ld_reduce, which has the switch combine all copies,
 * and write to it by multimem.st, which reaches all copies.
 *
 * Chunks of shared memory begin at multiples of 16 bytes and have room for a whole number of vectors, which nobody else
 * uses: so vectors of the multicast address are never cut. */
#ifndef TT_KERNELS_CUDA_NVLS_CUH
#define TT_KERNELS_CUDA_NVLS_CUH

#include "kernels/cuda/programs.cuh"

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

struct tt_nvls : tt_simple {
  static constexpr int VECTORS = 4;

  static __device__ __forceinline__ bool is_multicast(const tt_entry *entry)
  {
    return entry->conn == TT_CUDA_OF_MULTICAST && (entry->role == TT_CUDA_IN_LOCAL || entry->role == TT_CUDA_OUT_LOCAL);
  }

  static __device__ __forceinline__ void wait(int lane, const tt_entry *entries, uint32_t n)
  {
    tt_simple::wait(lane, entries, n);
    tt_fence_alias();
  }
  static __device__ __forceinline__ void post(int lane, const tt_entry *entries, uint32_t n)
  {
    tt_fence_alias();
    tt_simple::post(lane, entries, n);
  }

  template <typename T>
  static __device__ __forceinline__ tt_words take(const tt_entry *entry, uint32_t at, const tt_reduce_rule &rule)
  {
    if (is_multicast(entry)) return tt_multicast_read<T>::take(entry->local + at, rule.op);
    const tt_byte *from = source(entry);
    tt_vector v;
    if (at + 16 <= entry->bytes && aligned(from)) {
      v = tt_load_volatile(from + at);
    } else {
      v.low = tt_load_word(from, at, entry->bytes);
      v.high = tt_load_word(from, at + 8, entry->bytes);
    }
    return tt_words{{(uint32_t)v.low, (uint32_t)(v.low >> 32), (uint32_t)v.high, (uint32_t)(v.high >> 32)}};
  }

  static __device__ __forceinline__ void put(const tt_entry *entry, uint32_t at, const tt_words &x)
  {
    if (is_multicast(entry)) {
      tt_multicast_store(entry->local + at, x);
      return;
    }
    tt_byte *to = target(entry);
    const uint64_t low = x.w[0] | (uint64_t)x.w[1] << 32, high = x.w[2] | (uint64_t)x.w[3] << 32;
    if (at + 16 <= entry->bytes && aligned(to)) {
      tt_store_plain(to + at, tt_vector{low, high});
    } else {
      tt_store_word(to, at, entry->bytes, low);
      tt_store_word(to, at + 8, entry->bytes, high);
    }
  }

  /* One input, whose values stay as they are. */
  template <typename T>
  static __device__ __noinline__ void carry(const tt_entry *input, const tt_entry *outputs, int noutputs,
                                            const tt_reduce_rule &rule_here, int thread, int threads)
  {
    const tt_reduce_rule rule = rule_here;
    const uint32_t bytes = input->bytes;
#pragma unroll 1
    for (uint32_t at = 16 * thread; at < bytes; at += 16 * VECTORS * threads) {
      tt_words x[VECTORS];
#pragma unroll
      for (int u = 0; u < VECTORS; u++)
        if (at + 16 * u * threads < bytes) x[u] = take<T>(input, at + 16 * u * threads, rule);
#pragma unroll 1
      for (int k = 0; k < noutputs; k++)
#pragma unroll
        for (int u = 0; u < VECTORS; u++)
          if (at + 16 * u * threads < bytes) put(outputs + k, at + 16 * u * threads, x[u]);
    }
  }

  template <typename T>
  static __device__ __noinline__ void combine(const tt_step &step, const tt_reduce_rule &rule_here, int thread,
                                              int threads)
  {
    const tt_reduce_rule rule = rule_here;
    const uint32_t bytes = step.inputs[0].bytes;
#pragma unroll 1
    for (uint32_t at = 16 * thread; at < bytes; at += 16 * threads) {
      tt_word<T> sum[2];
#pragma unroll 1
      for (int k = 0; k < step.ninputs; k++) {
        const tt_words x = take<T>(step.inputs + k, at, rule);
        const uint64_t words[2] = {x.w[0] | (uint64_t)x.w[1] << 32, x.w[2] | (uint64_t)x.w[3] << 32};
        tt_take_all<T, 2>(sum, words, k == 0, step.inputs[k].flags & TT_ENTRY_SCALED, rule);
      }
      const uint64_t low = sum[0].store(rule, step.final), high = sum[1].store(rule, step.final);
      const tt_words x = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
#pragma unroll 1
      for (int k = 0; k < step.noutputs; k++) put(step.outputs + k, at, x);
    }
  }

  /* One worker's part of a repetition. */
  template <typename T>
  static __device__ __forceinline__ void work(const tt_step &step, const tt_reduce_rule &rule, int thread, int threads)
  {
    bool shared = false;
#pragma unroll 1
    for (int k = 0; k < step.ninputs + step.noutputs; k++) shared |= is_multicast(step.inputs + k);
    if (!shared) {
      tt_simple::work<T>(step, rule, thread, threads);
      return;
    }
#pragma unroll 1
    for (int k = 0; k < step.nsends; k++) move<T>(step.sends + k, rule, thread, threads);
    if (step.ninputs == 1 && !(step.inputs[0].flags & TT_ENTRY_SCALED) && !(step.final && rule.divide))
      carry<T>(step.inputs, step.outputs, step.noutputs, rule, thread, threads);
    else
      combine<T>(step, rule, thread, threads);
#pragma unroll 1
    for (int k = 0; k < step.nreceives; k++) move<T>(step.receives + k, rule, thread, threads);
  }
};

#endif
