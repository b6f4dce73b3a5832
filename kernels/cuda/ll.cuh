/* The LL protocol: lines of 16 bytes, 8 of data and a flag in each half, stored at once. Data carries its own news, so
 * there is no fence and no counter to wait for: the shortest way for small messages.
 *
 * Every thread goes its own way through the lines. Flags, cleaning and line 0 are those of the host device
 * (kernels/host/ll.c). */
#ifndef TT_KERNELS_CUDA_LL_CUH
#define TT_KERNELS_CUDA_LL_CUH

#include "kernels/cuda/block.cuh"

struct tt_ll {
  static constexpr uint64_t PERIOD = 0xfffffff8ull;
  static constexpr uint64_t CLEAN_MASK = 0x7ffffff8ull;
  static constexpr int TOGETHER = 4; /* loads of a thread in flight */

  static __device__ __forceinline__ uint32_t flag_of(uint64_t step)
  {
    return (uint32_t)(step % PERIOD) + 1;
  }

  static __device__ __forceinline__ bool load(tt_block *block, const tt_end &end, const tt_byte *line, uint32_t flag,
                                              uint64_t *word)
  {
    tt_wait wait;
    for (;;) {
      uint4 v = tt_load_line(line);
      if (v.y == flag && v.w == flag) {
        *word = v.x | (uint64_t)v.z << 32;
        return true;
      }
      if (!wait.goes_on(block, end.peer, false)) return false;
    }
  }

  /* A sender's duties before the lines: a free slot, the old flags gone when that is due, header and line 0. */
  static __device__ __forceinline__ void begin_send(const tt_group &group, const tt_entry &entry)
  {
    tt_block *block = group.block;
    const tt_end &end = block->ends[entry.conn];
    tt_byte *payload = tt_slot(end, entry.step);
    bool room = !(entry.flags & TT_ENTRY_NO_CREDIT) || tt_wait_credit(block, end, entry.step);
    if ((entry.step & CLEAN_MASK) == CLEAN_MASK) {
      uint32_t old = flag_of(entry.step - TT_SLOTS), bytes = end.slot_bytes - TT_SLOT_HEADER;
      for (uint32_t at = 16 * group.thread; room && at + 16 <= bytes; at += 16 * group.threads)
        tt_store_line(payload + at, 0, old);
      group.sync(); /* all threads come here: they see the same step */
    }
    if (!room) return;
    if (group.thread < 3) tt_write_header(block, payload, entry, group.thread);
    if (group.thread == 0) tt_store_line(payload, tt_first_word(block, entry), flag_of(entry.step));
  }

  static __device__ __forceinline__ void check_receive(const tt_group &group, const tt_entry &entry)
  {
    tt_block *block = group.block;
    const tt_end &end = block->ends[entry.conn];
    const tt_byte *payload = tt_slot(end, entry.step);
    uint64_t word;
    if (!load(block, end, payload, flag_of(entry.step), &word)) return;
    if (word == tt_first_word(block, entry)) return;
    /* The header was stored before line 0 but may come after it. */
    for (uint64_t start = tt_now_ns(); tt_now_ns() - start < 1000000;) {
    }
    tt_wrong_message(block, end, entry, payload);
  }

  /* One send of a local chunk, scaled on its way if that is due. */
  template <typename T>
  static __device__ __forceinline__ void send(const tt_group &group, const tt_entry &entry, const tt_reduce_rule &rule)
  {
    const tt_end &end = group.block->ends[entry.conn];
    tt_byte *line = tt_slot(end, entry.step) + 16;
    uint32_t flag = flag_of(entry.step), bytes = entry.bytes;
    for (uint32_t w = group.thread; w < (bytes + 7) / 8; w += group.threads) {
      uint64_t word = tt_load_word(entry.local, 8 * (size_t)w, bytes);
      if (entry.flags & TT_ENTRY_SCALED) word = tt_scale_word<T>(word, rule);
      tt_store_line(line + 16 * (size_t)w, word, flag);
    }
  }

  static __device__ __forceinline__ void receive(const tt_group &group, const tt_entry &entry)
  {
    const tt_end &end = group.block->ends[entry.conn];
    const tt_byte *line = tt_slot(end, entry.step) + 16;
    uint32_t flag = flag_of(entry.step), bytes = entry.bytes;
    uint64_t word;
    for (uint32_t w = group.thread; w < (bytes + 7) / 8; w += group.threads) {
      if (!load(group.block, end, line + 16 * (size_t)w, flag, &word)) return;
      tt_store_word(entry.local, 8 * (size_t)w, bytes, word);
    }
  }

  /* Loads a word of up to TOGETHER inputs until all are there. */
  static __device__ __forceinline__ bool load_inputs(tt_block *block, const tt_entry *inputs, int ninputs, uint32_t w,
                                                     uint32_t bytes, uint64_t (&words)[TOGETHER])
  {
    tt_wait wait;
    for (;;) {
      uint4 lines[TOGETHER];
      int late = -1;
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs) continue;
        const tt_entry &input = inputs[k];
        if (input.role == TT_CUDA_IN_LOCAL)
          words[k] = tt_load_word(input.local, 8 * (size_t)w, bytes);
        else
          lines[k] = tt_load_line(tt_slot(block->ends[input.conn], input.step) + 16 + 16 * (size_t)w);
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs || inputs[k].role == TT_CUDA_IN_LOCAL) continue;
        uint32_t flag = flag_of(inputs[k].step);
        if (lines[k].y != flag || lines[k].w != flag) late = inputs[k].conn;
        words[k] = lines[k].x | (uint64_t)lines[k].z << 32;
      }
      if (late < 0) return true;
      if (!wait.goes_on(block, block->ends[late].peer, false)) return false;
    }
  }

  template <typename T>
  static __device__ __forceinline__ bool reduce_word(const tt_group &group, const tt_step &step,
                                                     const tt_reduce_rule &rule, uint32_t w, uint32_t bytes,
                                                     uint64_t *result)
  {
    int ninputs = step.instruction->ninputs;
    tt_word<T> sum;
    for (int base = 0; base < ninputs; base += TOGETHER) {
      uint64_t words[TOGETHER];
      if (!load_inputs(group.block, step.inputs + base, ninputs - base, w, bytes, words)) return false;
#pragma unroll
      for (int k = 0; k < TOGETHER; k++)
        if (base + k < ninputs)
          tt_take<T>(&sum, words[k], base + k == 0, step.inputs[base + k].flags & TT_ENTRY_SCALED, rule);
    }
    *result = sum.store(rule, step.instruction->flags & TT_FLAG_FINAL);
    return true;
  }

  template <typename T>
  static __device__ __forceinline__ void reduce(const tt_group &group, const tt_step &step, const tt_reduce_rule &rule)
  {
    tt_block *block = group.block;
    uint32_t bytes = step.inputs[0].bytes;
    int noutputs = step.instruction->noutputs;
    for (uint32_t w = group.thread; w < (bytes + 7) / 8; w += group.threads) {
      uint64_t word;
      if (!reduce_word<T>(group, step, rule, w, bytes, &word)) return;
      for (int k = 0; k < noutputs; k++) {
        const tt_entry &output = step.outputs[k];
        if (output.role == TT_CUDA_OUT_LOCAL)
          tt_store_word(output.local, 8 * (size_t)w, bytes, word);
        else
          tt_store_line(tt_slot(block->ends[output.conn], output.step) + 16 + 16 * (size_t)w, word,
                        flag_of(output.step));
      }
    }
  }
};

#endif
