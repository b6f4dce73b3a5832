/* Works with memory that several GPUs share (TT_SHARED, TT_MULTICAST), in the Simple protocol: its waits, posts and
 * roles, and workers that read the multicast address by multimem.ld_reduce, which has the switch combine all copies,
 * and write to it by multimem.st, which reaches all copies.
 *
 * Chunks of shared memory begin at multiples of 16 bytes and have room for a whole number of vectors, which nobody else
 * uses: so vectors of the multicast address are never cut. */
#ifndef TT_KERNELS_CUDA_NVLS_CUH
#define TT_KERNELS_CUDA_NVLS_CUH

#include "kernels/cuda/multimem.cuh"
#include "kernels/cuda/programs.cuh"

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
