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
  static constexpr int VECTORS = 4; /* of 16 bytes, of a thread in flight, for each input of a reduction */
  static constexpr int COPY_VECTORS = 8;
  static constexpr uint32_t ROW = 32 * 16; /* bytes: a vector for each lane of a warp */

  static __device__ __forceinline__ bool has_roles(const tt_group &group)
  {
    return group.warps() >= SERVICE_WARPS + 1;
  }

  static __device__ __noinline__ void check_header(const tt_entry *entry)
  {
    const tt_byte *header = entry->slot - TT_SLOT_HEADER;
    bool wrong = tt_load_volatile(header).low != entry->bytes;
    if (entry->flags & TT_ENTRY_FIRST) {
      const uint64_t *mine = (const uint64_t *)&block.work.signature;
      tt_vector a = tt_load_volatile(header + 16), b = tt_load_volatile(header + 32);
      wrong |= a.low != mine[0] || a.high != mine[1] || b.low != mine[2] || b.high != mine[3];
    }
    if (wrong) tt_wrong_message(entry);
  }

  /* One warp: returns when all connections of a repetition can be used, or on abort. */
  static __device__ __noinline__ void wait(int lane, const tt_entry *entries, uint32_t n)
  {
#pragma unroll 1
    for (uint32_t k = lane; k < n; k += 32) {
      const tt_entry *entry = entries + k;
      bool receives = tt_is_receive(entry->role);
      if (!receives && !tt_is_send(entry->role)) continue;
      const tt_end &end = block.ends[entry->conn];
      const uint64_t *counter = receives ? end.tail : end.head;
      uint64_t needed = receives ? entry->step + 1 : entry->step + 1 - TT_SLOTS;
      tt_wait wait;
      bool ready = true;
#pragma unroll 1
      while ((int64_t)(tt_load_acquire(counter) - needed) < 0 && (ready = wait.goes_on(end.peer, !receives))) {
      }
      if (!ready) continue;
      if (end.slots == NULL) /* of a pool: by now it is known which one */
        const_cast<tt_entry *>(entry)->slot =
            *(tt_byte *volatile *)&end.fifo[entry->step % TT_SLOTS].pointer + TT_SLOT_HEADER;
      if (receives)
        check_header(entry);
      else
        tt_write_header(entry);
    }
    __syncwarp();
  }

  /* One warp, after the workers. */
  static __device__ __noinline__ void post(int lane, const tt_entry *entries, uint32_t n)
  {
#pragma unroll 1
    for (uint32_t k = lane; k < n; k += 32) {
      const tt_entry *entry = entries + k;
      bool sends = tt_is_send(entry->role);
      if (!sends && !tt_is_receive(entry->role)) continue;
      const tt_end &end = block.ends[entry->conn];
      if (sends && end.fifo != NULL)
        *(volatile int64_t *)&end.fifo[entry->step % TT_SLOTS].size = TT_SLOT_HEADER + (int64_t)entry->bytes;
      tt_fence_system();
      tt_store_relaxed(sends ? end.tail : end.head, entry->step + 1);
    }
    __syncwarp();
  }

  /* Where an entry's bytes come from, and where they go to. */
  static __device__ __forceinline__ const tt_byte *source(const tt_entry *entry)
  {
    return tt_is_receive(entry->role) ? entry->slot : entry->local;
  }
  static __device__ __forceinline__ tt_byte *target(const tt_entry *entry)
  {
    return tt_is_send(entry->role) ? entry->slot : entry->local;
  }
  static __device__ __forceinline__ bool aligned(const void *a)
  {
    return ((uintptr_t)a & 15) == 0;
  }

  static __device__ __forceinline__ bool all_aligned(const tt_entry *inputs, int ninputs, const tt_entry *outputs,
                                                     int noutputs)
  {
    bool all = true;
#pragma unroll 1
    for (int k = 0; k < ninputs; k++) all &= aligned(source(inputs + k));
#pragma unroll 1
    for (int k = 0; k < noutputs; k++) all &= aligned(target(outputs + k));
    return all;
  }

  /* Aligned data moves in tiles: a warp's lanes take neighbouring vectors, N rows of them at a time, so that a thread
   * has N loads on their way with one address.
   *
   * All loads of vectors are volatile, which goes past the first-level cache: slots were just written by another GPU,
   * and what is read once gains nothing there. A choice between two kinds of load would be worse than either, since a
   * load into a register waits for the one before into the same register, even where that was not executed. */
  template <int N> static __device__ __forceinline__ void load_tile(tt_vector (&x)[N], const tt_byte *from)
  {
#pragma unroll
    for (int u = 0; u < N; u++) x[u] = tt_load_volatile(from + ROW * u);
  }

  template <int N>
  static __device__ __forceinline__ void copy_tile(const tt_byte *from, const tt_entry *outputs, int noutputs,
                                                   size_t at)
  {
    tt_vector x[N];
    load_tile<N>(x, from + at);
#pragma unroll 1
    for (int k = 0; k < noutputs; k++) {
      tt_byte *to = target(outputs + k) + at;
#pragma unroll
      for (int u = 0; u < N; u++) tt_store_plain(to + ROW * u, x[u]);
    }
  }

  /* One input to any number of outputs. */
  static __device__ __noinline__ void copy(const tt_entry *input, const tt_entry *outputs, int noutputs, int thread,
                                           int threads)
  {
    const tt_byte *from = source(input);
    uint32_t bytes = input->bytes, done = 0;
    if (all_aligned(input, 1, outputs, noutputs)) {
      uint32_t tiles = bytes / (COPY_VECTORS * ROW);
#pragma unroll 1
      for (uint32_t t = thread / 32; t < tiles; t += threads / 32)
        copy_tile<COPY_VECTORS>(from, outputs, noutputs, (size_t)t * (COPY_VECTORS * ROW) + thread % 32 * 16);
      done = bytes / 16 * 16;
#pragma unroll 1
      for (uint32_t at = tiles * (COPY_VECTORS * ROW) + thread * 16; at < done; at += threads * 16)
        copy_tile<1>(from, outputs, noutputs, at);
    }
#pragma unroll 1
    for (uint32_t at = done + 8 * thread; at < bytes; at += 8 * threads) {
      uint64_t word = tt_load_word(from, at, bytes);
#pragma unroll 1
      for (int k = 0; k < noutputs; k++) tt_store_word(target(outputs + k), at, bytes, word);
    }
  }

  template <typename T, int N>
  static __device__ __forceinline__ void reduce_tile(const tt_entry *inputs, int ninputs, const tt_entry *outputs,
                                                     int noutputs, const tt_reduce_rule &rule, bool final, size_t at)
  {
    tt_word<T> sum[2 * N];
    tt_vector ahead[N]; /* of the next input */
    load_tile<N>(ahead, source(inputs) + at);
#pragma unroll 1
    for (int k = 0; k < ninputs; k++) {
      uint64_t words[2 * N];
#pragma unroll
      for (int u = 0; u < N; u++) {
        words[2 * u] = ahead[u].low;
        words[2 * u + 1] = ahead[u].high;
      }
      if (k + 1 < ninputs) load_tile<N>(ahead, source(inputs + k + 1) + at);
      tt_take_all<T, 2 * N>(sum, words, k == 0, inputs[k].flags & TT_ENTRY_SCALED, rule);
    }
    tt_vector x[N];
#pragma unroll
    for (int u = 0; u < N; u++) x[u] = tt_vector{sum[2 * u].store(rule, final), sum[2 * u + 1].store(rule, final)};
#pragma unroll 1
    for (int k = 0; k < noutputs; k++) {
      tt_byte *to = target(outputs + k) + at;
#pragma unroll
      for (int u = 0; u < N; u++) tt_store_plain(to + ROW * u, x[u]);
    }
  }

  template <typename T>
  static __device__ __noinline__ void reduce(const tt_entry *inputs, int ninputs, const tt_entry *outputs, int noutputs,
                                             const tt_reduce_rule &rule_here, bool final, int thread, int threads)
  {
    const tt_reduce_rule rule = rule_here;
    uint32_t bytes = inputs[0].bytes, done = 0;
    if (all_aligned(inputs, ninputs, outputs, noutputs)) {
      uint32_t tiles = bytes / (VECTORS * ROW);
#pragma unroll 1
      for (uint32_t t = thread / 32; t < tiles; t += threads / 32)
        reduce_tile<T, VECTORS>(inputs, ninputs, outputs, noutputs, rule, final,
                                (size_t)t * (VECTORS * ROW) + thread % 32 * 16);
      done = bytes / 16 * 16;
#pragma unroll 1
      for (uint32_t at = tiles * (VECTORS * ROW) + thread * 16; at < done; at += threads * 16)
        reduce_tile<T, 1>(inputs, ninputs, outputs, noutputs, rule, final, at);
    }
#pragma unroll 1
    for (uint32_t at = done + 8 * thread; at < bytes; at += 8 * threads) {
      tt_word<T> sum;
#pragma unroll 1
      for (int k = 0; k < ninputs; k++)
        tt_take<T>(&sum, tt_load_word(source(inputs + k), at, bytes), k == 0, inputs[k].flags & TT_ENTRY_SCALED, rule);
      uint64_t word = sum.store(rule, final);
#pragma unroll 1
      for (int k = 0; k < noutputs; k++) tt_store_word(target(outputs + k), at, bytes, word);
    }
  }

  template <typename T>
  static __device__ __forceinline__ void move(const tt_entry *entry, const tt_reduce_rule &rule, int thread,
                                              int threads)
  {
    if (entry->flags & TT_ENTRY_SCALED)
      reduce<T>(entry, 1, entry, 1, rule, false, thread, threads);
    else
      copy(entry, entry, 1, thread, threads);
  }

  /* One worker's part of a repetition. */
  template <typename T>
  static __device__ __forceinline__ void work(const tt_step &step, const tt_reduce_rule &rule, int thread, int threads)
  {
#pragma unroll 1
    for (int k = 0; k < step.nsends; k++) move<T>(step.sends + k, rule, thread, threads);
    if (step.ninputs == 1 && !(step.inputs[0].flags & TT_ENTRY_SCALED) && !(step.final && rule.divide))
      copy(step.inputs, step.outputs, step.noutputs, thread, threads);
    else if (step.ninputs > 0)
      reduce<T>(step.inputs, step.ninputs, step.outputs, step.noutputs, rule, step.final, thread, threads);
#pragma unroll 1
    for (int k = 0; k < step.nreceives; k++) move<T>(step.receives + k, rule, thread, threads);
  }

  /* A whole warp. */
  static __device__ __forceinline__ bool wait_shared(int lane, uint32_t *counter, uint32_t value)
  {
    bool there = true;
    if (lane == 0)
#pragma unroll 1
      while (tt_shared_acquire(counter) < value && (there = !tt_aborted())) {
      }
    return __shfl_sync(0xffffffff, there, 0);
  }

  /* The same for all lanes of a warp, one of which may just now have failed: they meet in what follows. */
  static __device__ __forceinline__ bool goes_on()
  {
    return !__any_sync(0xffffffff, tt_aborted());
  }

  /* Repetitions [0, n), which are resolved, by the roles of P. Leaves with the group's threads at different places: a
   * barrier follows. */
  template <typename T, typename P = tt_simple>
  static __device__ __forceinline__ void run(const tt_group &group, const tt_reduce_rule &rule, uint32_t n,
                                             uint32_t most)
  {
    uint32_t *ready = &block.ready[group.index], *worked = &block.worked[group.index];
    bool roles = has_roles(group);
    int workers = roles ? group.threads - 32 * SERVICE_WARPS : group.threads;
    bool waits = roles && group.warp() == group.warps() - 1, posts = roles && group.warp() == group.warps() - 2;
#pragma unroll 1
    for (uint32_t r = 0; r < n; r++) {
      const tt_step step = tt_batch_step(group, r, most);
      uint32_t operands = step.operands();
      if (waits || (!roles && group.warp() == 0)) {
        if (goes_on()) P::wait(group.lane(), step.sends, operands);
        if (waits && group.lane() == 0) tt_shared_release(ready, r + 1);
      }
      if (!roles) group.sync();
      if (!waits && !posts) {
        if (roles) wait_shared(group.lane(), ready, r + 1);
        if (!tt_aborted()) P::template work<T>(step, rule, group.thread, workers);
        tt_barrier(group.workers_barrier(), workers);
        if (roles && group.thread == 0) tt_shared_release(worked, r + 1);
      }
      if (posts || (!roles && group.warp() == 0)) {
        bool done = !roles || wait_shared(group.lane(), worked, r + 1);
        if (goes_on() && done) P::post(group.lane(), step.sends, operands);
      }
    }
  }
};

#endif
