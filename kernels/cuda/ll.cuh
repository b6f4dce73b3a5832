/* The LL protocol: lines of 16 bytes, 8 of data and a flag in each half, stored at once. Data carries its own news, so
 * there is no fence and no counter to wait for: the shortest way for small messages.
 *
 * Every thread goes its own way through the lines. Flags, cleaning and line 0 are those of the host device
 * (kernels/host/ll.c). */
#ifndef TT_KERNELS_CUDA_LL_CUH
#define TT_KERNELS_CUDA_LL_CUH

#include "kernels/cuda/lines.cuh"

struct tt_ll {
  static constexpr uint64_t CLEAN_MASK = 0x7ffffff8ull;
  static constexpr int TOGETHER = 4; /* loads of a thread in flight */

  static __device__ __forceinline__ tt_byte *line(const tt_entry *entry, uint32_t w)
  {
    return entry->slot + 16 + 16 * (size_t)w;
  }

  /* Rewrites all lines of a slot with a flag of the past, in the steps in which that is due. */
  static __device__ __noinline__ void clean(const tt_group &group, const tt_entry *entry)
  {
    uint32_t old = tt_flag_of(entry->step - TT_SLOTS), bytes = block.ends[entry->conn].slot_bytes - TT_SLOT_HEADER;
#pragma unroll 1
    for (uint32_t at = 16 * group.thread; at + 16 <= bytes; at += 16 * group.threads)
      tt_store_line(entry->slot + at, 0, old);
  }

  /* Before anything is stored in a repetition; all threads of the group come here. */
  static __device__ __forceinline__ void prepare(const tt_group &group, const tt_step &step)
  {
    bool due = false;
#pragma unroll 1
    for (const tt_entry *e = step.sends; e < step.receives; e++)
      if (tt_is_send(e->role) && (e->step & CLEAN_MASK) == CLEAN_MASK) {
        if (!(e->flags & TT_ENTRY_NO_CREDIT) || tt_wait_credit(e)) clean(group, e);
        due = true;
      }
    if (due) group.sync();
  }

  /* One send of a local chunk, scaled on its way if that is due. */
  template <typename T>
  static __device__ __forceinline__ void send(int thread, int threads, const tt_entry *entry,
                                              const tt_reduce_rule &rule)
  {
    uint32_t flag = entry->flag, bytes = entry->bytes;
#pragma unroll 1
    for (uint32_t w = thread; w < (bytes + 7) / 8; w += threads) {
      uint64_t word = tt_load_word(entry->local, 8 * w, bytes);
      if (entry->flags & TT_ENTRY_SCALED) word = tt_scale_word<T>(word, rule);
      tt_store_line(line(entry, w), word, flag);
    }
  }

  static __device__ __forceinline__ void receive(int thread, int threads, const tt_entry *entry)
  {
    uint32_t flag = entry->flag, bytes = entry->bytes;
#pragma unroll 1
    for (uint32_t w = thread; w < (bytes + 7) / 8; w += threads) {
      tt_wait wait;
      uint4 v;
      for (;;) {
        v = tt_load_line(line(entry, w));
        if (v.y == flag && v.w == flag) break;
        if (!wait.goes_on(block.ends[entry->conn].peer, false)) return;
      }
      tt_store_word(entry->local, 8 * w, bytes, v.x | (uint64_t)v.z << 32);
    }
  }

  /* Loads a word of up to TOGETHER inputs until all are there. */
  static __device__ __forceinline__ bool load_inputs(const tt_entry *inputs, int ninputs, uint32_t w, uint32_t bytes,
                                                     uint64_t (&words)[TOGETHER])
  {
    tt_wait wait;
#pragma unroll 1
    for (;;) {
      uint4 lines[TOGETHER];
      int late = -1;
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs) continue;
        if (inputs[k].role == TT_CUDA_IN_LOCAL) {
          uint64_t word = tt_load_word(inputs[k].local, 8 * w, bytes);
          lines[k] = make_uint4((uint32_t)word, 0, (uint32_t)(word >> 32), 0);
        } else {
          lines[k] = tt_load_line(line(inputs + k, w));
        }
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs) continue;
        uint32_t flag = inputs[k].flag; /* 0 for local memory */
        if (lines[k].y != flag || lines[k].w != flag) late = inputs[k].conn;
        words[k] = lines[k].x | (uint64_t)lines[k].z << 32;
      }
      if (late < 0) return true;
      if (!wait.goes_on(block.ends[late].peer, false)) return false;
    }
  }

  template <typename T>
  static __device__ __forceinline__ void reduce(int thread, int threads, const tt_step &step,
                                                const tt_reduce_rule &rule)
  {
    uint32_t bytes = step.inputs[0].bytes;
    int ninputs = step.ninputs, noutputs = step.noutputs;
#pragma unroll 1
    for (uint32_t w = thread; w < (bytes + 7) / 8; w += threads) {
      tt_word<T> sum;
#pragma unroll 1
      for (int base = 0; base < ninputs; base += TOGETHER) {
        uint64_t words[TOGETHER];
        if (!load_inputs(step.inputs + base, ninputs - base, w, bytes, words)) return;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
          if (base + k < ninputs)
            tt_take<T>(&sum, words[k], base + k == 0, step.inputs[base + k].flags & TT_ENTRY_SCALED, rule);
      }
      uint64_t word = sum.store(rule, step.final);
#pragma unroll 1
      for (int k = 0; k < noutputs; k++) {
        const tt_entry *output = step.outputs + k;
        if (output->role == TT_CUDA_OUT_LOCAL)
          tt_store_word(output->local, 8 * w, bytes, word);
        else
          tt_store_line(line(output, w), word, output->flag);
      }
    }
  }
};

#endif
