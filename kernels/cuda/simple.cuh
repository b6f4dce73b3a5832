/* The Simple protocol: data, then a counter. The most bytes for the wire, and a fence after each step, so it is for
 * large chunks.
 *
 * In a group of enough warps three roles run side by side, so that no worker ever waits for a fence or a poll:
 *
 *     last warp        waits ahead: for data that is to come and for room to send; publishes `ready`
 *     last but one     posts behind: once the workers are through a repetition (`worked`), fences and moves counters
 *     the others       copy and reduce
 *
 * In a smaller group all do everything, one after the other. */
#ifndef TT_KERNELS_CUDA_SIMPLE_CUH
#define TT_KERNELS_CUDA_SIMPLE_CUH

#include "kernels/cuda/block.cuh"

struct tt_simple {
  static constexpr int SERVICE_WARPS = 2;
  static constexpr int VECTORS = 4; /* of 16 bytes, of a thread in flight, for each input */
  static constexpr int COPY_VECTORS = 8;

  static __device__ __forceinline__ bool has_roles(const tt_group &group)
  {
    return group.warps() >= SERVICE_WARPS + 1;
  }

  static __device__ __forceinline__ bool is_receive(int role)
  {
    return role == TT_CUDA_IN_RECV || role == TT_CUDA_MOVE_RECV;
  }
  static __device__ __forceinline__ bool is_send(int role)
  {
    return role == TT_CUDA_OUT_SEND || role == TT_CUDA_MOVE_SEND;
  }
  static __device__ __forceinline__ int operands(const tt_cuda_instruction *i)
  {
    return i->nsends + i->ninputs + i->noutputs + i->nreceives;
  }

  static __device__ __forceinline__ void check_header(tt_block *block, const tt_end &end, const tt_entry &entry)
  {
    const tt_byte *payload = tt_slot(end, entry.step);
    const tt_byte *header = payload - TT_SLOT_HEADER;
    bool wrong = tt_load_volatile(header).low != entry.bytes;
    if (entry.flags & TT_ENTRY_FIRST) {
      const uint64_t *mine = (const uint64_t *)&block->work.signature;
      tt_vector a = tt_load_volatile(header + 16), b = tt_load_volatile(header + 32);
      wrong |= a.low != mine[0] || a.high != mine[1] || b.low != mine[2] || b.high != mine[3];
    }
    if (wrong) tt_wrong_message(block, end, entry, payload);
  }

  /* One warp: returns when all connections of a repetition can be used, or on abort. */
  static __device__ __forceinline__ void wait(const tt_group &group, const tt_step &step)
  {
    tt_block *block = group.block;
    int n = operands(step.instruction);
    for (int k = group.lane(); k < n; k += 32) {
      const tt_entry &entry = step.sends[k];
      const tt_end &end = block->ends[entry.conn];
      if (is_receive(entry.role)) {
        tt_wait wait;
        bool here = true;
        while (tt_load_acquire(end.tail) <= entry.step)
          if (!wait.goes_on(block, end.peer, false)) {
            here = false;
            break;
          }
        if (here) check_header(block, end, entry);
      } else if (is_send(entry.role)) {
        tt_wait wait;
        bool room = true;
        while (tt_load_acquire(end.head) + TT_SLOTS <= entry.step)
          if (!wait.goes_on(block, end.peer, true)) {
            room = false;
            break;
          }
        if (room)
          for (int part = 0; part < 3; part++) tt_write_header(block, tt_slot(end, entry.step), entry, part);
      }
    }
    __syncwarp();
  }

  /* One warp, after the workers. */
  static __device__ __forceinline__ void post(const tt_group &group, const tt_step &step)
  {
    tt_block *block = group.block;
    int n = operands(step.instruction);
    for (int k = group.lane(); k < n; k += 32) {
      const tt_entry &entry = step.sends[k];
      if (!is_receive(entry.role) && !is_send(entry.role)) continue;
      const tt_end &end = block->ends[entry.conn];
      tt_fence_system();
      tt_store_relaxed(is_send(entry.role) ? end.tail : end.head, entry.step + 1);
    }
    __syncwarp();
  }

  /* Memory of an entry: local, or the slot. */
  static __device__ __forceinline__ tt_byte *memory(tt_block *block, const tt_entry &entry)
  {
    return entry.local ? entry.local : tt_slot(block->ends[entry.conn], entry.step);
  }
  static __device__ __forceinline__ bool aligned(const void *a)
  {
    return ((uintptr_t)a & 15) == 0;
  }

  /* Bytes from one place to another; `fresh`: written by another GPU a moment ago. */
  static __device__ __forceinline__ void copy(tt_byte *to, const tt_byte *from, uint32_t bytes, bool fresh, int thread,
                                              int threads)
  {
    uint32_t done = 0;
    if (aligned(to) && aligned(from)) {
      uint32_t vectors = bytes / 16, v = thread;
      for (; v + (COPY_VECTORS - 1) * threads < vectors; v += COPY_VECTORS * threads) {
        tt_vector x[COPY_VECTORS];
#pragma unroll
        for (int u = 0; u < COPY_VECTORS; u++) {
          const tt_byte *at = from + 16 * (size_t)(v + u * threads);
          x[u] = fresh ? tt_load_volatile(at) : tt_load_plain(at);
        }
#pragma unroll
        for (int u = 0; u < COPY_VECTORS; u++) tt_store_plain(to + 16 * (size_t)(v + u * threads), x[u]);
      }
      for (; v < vectors; v += threads) {
        const tt_byte *at = from + 16 * (size_t)v;
        tt_store_plain(to + 16 * (size_t)v, fresh ? tt_load_volatile(at) : tt_load_plain(at));
      }
      done = vectors * 16;
    }
    for (uint32_t at = done + 8 * thread; at < bytes; at += 8 * threads)
      tt_store_word(to, at, bytes, tt_load_word(from, at, bytes));
  }

  /* `U` vectors of each input, `threads` apart, from vector `v` on. */
  template <typename T, int U>
  static __device__ __forceinline__ void reduce_vectors(tt_block *block, const tt_entry *inputs, int ninputs,
                                                        const tt_entry *outputs, int noutputs,
                                                        const tt_reduce_rule &rule, bool final, uint32_t v, int threads)
  {
    tt_word<T> sum[U][2];
    for (int k = 0; k < ninputs; k++) {
      const tt_entry &input = inputs[k];
      const tt_byte *from = memory(block, input);
      bool fresh = input.role == TT_CUDA_IN_RECV, scaled = input.flags & TT_ENTRY_SCALED;
      tt_vector x[U];
#pragma unroll
      for (int u = 0; u < U; u++) {
        const tt_byte *at = from + 16 * (size_t)(v + u * threads);
        x[u] = fresh ? tt_load_volatile(at) : tt_load_plain(at);
      }
#pragma unroll
      for (int u = 0; u < U; u++) {
        tt_take<T>(&sum[u][0], x[u].low, k == 0, scaled, rule);
        tt_take<T>(&sum[u][1], x[u].high, k == 0, scaled, rule);
      }
    }
    tt_vector x[U];
#pragma unroll
    for (int u = 0; u < U; u++) x[u] = tt_vector{sum[u][0].store(rule, final), sum[u][1].store(rule, final)};
    for (int k = 0; k < noutputs; k++) {
      tt_byte *to = memory(block, outputs[k]);
#pragma unroll
      for (int u = 0; u < U; u++) tt_store_plain(to + 16 * (size_t)(v + u * threads), x[u]);
    }
  }

  template <typename T>
  static __device__ __forceinline__ void reduce(tt_block *block, const tt_entry *inputs, int ninputs,
                                                const tt_entry *outputs, int noutputs, const tt_reduce_rule &rule,
                                                bool final, int thread, int threads)
  {
    uint32_t bytes = inputs[0].bytes, done = 0;
    bool all_aligned = true;
    for (int k = 0; k < ninputs; k++) all_aligned &= aligned(memory(block, inputs[k]));
    for (int k = 0; k < noutputs; k++) all_aligned &= aligned(memory(block, outputs[k]));
    if (all_aligned) {
      uint32_t vectors = bytes / 16, v = thread;
      for (; v + (VECTORS - 1) * threads < vectors; v += VECTORS * threads)
        reduce_vectors<T, VECTORS>(block, inputs, ninputs, outputs, noutputs, rule, final, v, threads);
      for (; v < vectors; v += threads)
        reduce_vectors<T, 1>(block, inputs, ninputs, outputs, noutputs, rule, final, v, threads);
      done = vectors * 16;
    }
    for (uint32_t at = done + 8 * thread; at < bytes; at += 8 * threads) {
      tt_word<T> sum;
      for (int k = 0; k < ninputs; k++)
        tt_take<T>(&sum, tt_load_word(memory(block, inputs[k]), at, bytes), k == 0, inputs[k].flags & TT_ENTRY_SCALED,
                   rule);
      uint64_t word = sum.store(rule, final);
      for (int k = 0; k < noutputs; k++) tt_store_word(memory(block, outputs[k]), at, bytes, word);
    }
  }

  /* A copy to several places: the result of a reduction of one. */
  static __device__ __forceinline__ void spread(tt_block *block, const tt_entry &input, const tt_entry *outputs,
                                                int noutputs, int thread, int threads)
  {
    const tt_byte *from = memory(block, input);
    uint32_t bytes = input.bytes, done = 0;
    bool fresh = input.role == TT_CUDA_IN_RECV, all_aligned = aligned(from);
    for (int k = 0; k < noutputs; k++) all_aligned &= aligned(memory(block, outputs[k]));
    if (all_aligned) {
      uint32_t vectors = bytes / 16;
      for (uint32_t v = thread; v < vectors; v += VECTORS * threads) {
        tt_vector x[VECTORS];
#pragma unroll
        for (int u = 0; u < VECTORS; u++) {
          const tt_byte *at = from + 16 * (size_t)(v + u * threads);
          if (v + u * threads < vectors) x[u] = fresh ? tt_load_volatile(at) : tt_load_plain(at);
        }
        for (int k = 0; k < noutputs; k++) {
          tt_byte *to = memory(block, outputs[k]);
#pragma unroll
          for (int u = 0; u < VECTORS; u++)
            if (v + u * threads < vectors) tt_store_plain(to + 16 * (size_t)(v + u * threads), x[u]);
        }
      }
      done = vectors * 16;
    }
    for (uint32_t at = done + 8 * thread; at < bytes; at += 8 * threads) {
      uint64_t word = tt_load_word(from, at, bytes);
      for (int k = 0; k < noutputs; k++) tt_store_word(memory(block, outputs[k]), at, bytes, word);
    }
  }

  /* One worker's part of a repetition. */
  template <typename T>
  static __device__ __forceinline__ void work(const tt_group &group, const tt_step &step, const tt_reduce_rule &rule,
                                              int thread, int threads)
  {
    tt_block *block = group.block;
    const tt_cuda_instruction &i = *step.instruction;
    for (int k = 0; k < i.nsends; k++) {
      const tt_entry &entry = step.sends[k];
      tt_entry out = entry; /* the same message, seen from the other side */
      out.local = NULL;
      if (entry.flags & TT_ENTRY_SCALED) {
        reduce<T>(block, &entry, 1, &out, 1, rule, false, thread, threads);
      } else {
        copy(tt_slot(block->ends[entry.conn], entry.step), entry.local, entry.bytes, false, thread, threads);
      }
    }
    if (i.ninputs > 0) {
      bool final = i.flags & TT_FLAG_FINAL;
      bool plain = i.ninputs == 1 && !(step.inputs[0].flags & TT_ENTRY_SCALED) && !(final && rule.divide);
      if (plain)
        spread(block, step.inputs[0], step.outputs, i.noutputs, thread, threads);
      else
        reduce<T>(block, step.inputs, i.ninputs, step.outputs, i.noutputs, rule, final, thread, threads);
    }
    for (int k = 0; k < i.nreceives; k++) {
      const tt_entry &entry = step.receives[k];
      copy(entry.local, tt_slot(block->ends[entry.conn], entry.step), entry.bytes, true, thread, threads);
    }
  }

  static __device__ __forceinline__ bool wait_shared(tt_block *block, const uint32_t *counter, uint32_t value)
  {
    while (tt_shared_acquire(counter) < value)
      if (tt_aborted(block)) return false;
    return true;
  }

  /* Repetitions [0, n), whose entries are resolved, `stride` entries from one to the next; `step_of(r)`. Leaves with
   * the group's threads at different places: a barrier follows. */
  template <typename T, typename STEP>
  static __device__ __forceinline__ void run(const tt_group &group, const tt_reduce_rule &rule, int n,
                                             int workers_barrier, const STEP &step_of)
  {
    tt_block *block = group.block;
    uint32_t *ready = &block->ready[group.index], *worked = &block->worked[group.index];
    if (!has_roles(group)) {
      for (int r = 0; r < n; r++) {
        tt_step step = step_of(r);
        if (group.warp() == 0) wait(group, step);
        group.sync();
        if (!tt_aborted(block)) work<T>(group, step, rule, group.thread, group.threads);
        group.sync();
        if (group.warp() == 0 && !tt_aborted(block)) post(group, step);
      }
      return;
    }
    int workers = group.threads - 32 * SERVICE_WARPS;
    if (group.warp() == group.warps() - 1) {
      for (int r = 0; r < n && !tt_aborted(block); r++) {
        wait(group, step_of(r));
        if (group.lane() == 0) tt_shared_release(ready, r + 1);
      }
    } else if (group.warp() == group.warps() - 2) {
      for (int r = 0; r < n; r++) {
        if (!wait_shared(block, worked, r + 1)) break;
        __syncwarp();
        post(group, step_of(r));
      }
    } else {
      for (int r = 0; r < n; r++) {
        wait_shared(block, ready, r + 1);
        __syncwarp();
        if (!tt_aborted(block)) work<T>(group, step_of(r), rule, group.thread, workers);
        tt_barrier(workers_barrier, workers);
        if (group.thread == 0) tt_shared_release(worked, r + 1);
      }
    }
  }
};

#endif
