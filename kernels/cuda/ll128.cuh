/* The LL128 protocol: lines of 128 bytes, 120 of data and a flag of 8 bytes at the end. Eight neighbouring threads
 * store a line with one instruction of the warp, and NVLink delivers it whole; so data carries its own news at a cost
 * of 1/16. The flag is the step plus one, in 64 bits: it never comes again. Since other words may part the threads of a
 * warp, it comes together before it stores lines or looks for them.
 *
 * Line 0 carries no data of the user (lines.cuh). A warp stays together: its four octets take four lines at a time, and
 * an octet's thread k holds words 2k and 2k + 1 of its line, the last thread one word and the flag. */
#ifndef TT_KERNELS_CUDA_LL128_CUH
#define TT_KERNELS_CUDA_LL128_CUH

#include "kernels/cuda/lines.cuh"

struct tt_ll128 {
  static constexpr uint32_t LINE = 128, DATA = 120;
  static constexpr int LINES = 2;    /* of an octet in flight, for each input of a reduction */
  static constexpr int TOGETHER = 4; /* inputs in flight */
  static constexpr int MOVE_LINES = 4;

  static __device__ __forceinline__ uint64_t flag_of(const tt_entry *entry)
  {
    return entry->step + 1;
  }
  static __device__ __forceinline__ tt_byte *lines(const tt_entry *entry)
  {
    return entry->slot + LINE;
  }

  static __device__ __forceinline__ void prepare(const tt_group &, const tt_step &)
  {
  }

  /* A thread's place in a line. */
  struct place {
    uint32_t first, count, apart; /* lines of this octet: first, first + apart, ... below count */
    uint32_t part;                /* 0..7 */
    __device__ __forceinline__ place(int thread, int threads, uint32_t bytes)
        : first(thread / 8), count((bytes + DATA - 1) / DATA), apart(threads / 8), part(thread % 8)
    {
    }
    __device__ __forceinline__ bool last() const
    {
      return part == 7;
    }
    /* Whether any octet of the warp has a line left at or behind `line`, this octet's. */
    __device__ __forceinline__ bool warp_has(uint32_t line) const
    {
      return line - line % 4 < count;
    }
  };

  /* This thread's words of a line of local data. */
  static __device__ __forceinline__ tt_vector load_local(const tt_byte *local, uint32_t line, uint32_t part,
                                                         uint32_t bytes)
  {
    uint32_t at = line * DATA + 16 * part;
    tt_vector v;
    v.low = tt_load_word(local, at, bytes);
    v.high = part == 7 ? 0 : tt_load_word(local, at + 8, bytes);
    return v;
  }
  static __device__ __forceinline__ void store_local(tt_byte *local, uint32_t line, uint32_t part, uint32_t bytes,
                                                     tt_vector v)
  {
    uint32_t at = line * DATA + 16 * part;
    tt_store_word(local, at, bytes, v.low);
    if (part != 7) tt_store_word(local, at + 8, bytes, v.high);
  }
  static __device__ __forceinline__ void store_line(tt_byte *lines, uint32_t line, uint32_t part, tt_vector v,
                                                    uint64_t flag)
  {
    tt_store_volatile(lines + (size_t)line * LINE + 16 * part, v.low, part == 7 ? flag : v.high);
  }
  static __device__ __forceinline__ tt_vector load_line(const tt_byte *lines, uint32_t line, uint32_t part)
  {
    return tt_load_volatile(lines + (size_t)line * LINE + 16 * part);
  }

  template <typename T>
  static __device__ __forceinline__ void send(int thread, int threads, const tt_entry *entry,
                                              const tt_reduce_rule &rule)
  {
    place place(thread, threads, entry->bytes);
    uint64_t flag = flag_of(entry);
    bool scaled = entry->flags & TT_ENTRY_SCALED;
#pragma unroll 1
    for (uint32_t line = place.first; place.warp_has(line); line += MOVE_LINES * place.apart) {
      tt_vector v[MOVE_LINES];
#pragma unroll
      for (int u = 0; u < MOVE_LINES; u++)
        if (line + u * place.apart < place.count)
          v[u] = load_local(entry->local, line + u * place.apart, place.part, entry->bytes);
      __syncwarp();
#pragma unroll
      for (int u = 0; u < MOVE_LINES; u++) {
        if (line + u * place.apart >= place.count) continue;
        if (scaled) v[u] = tt_vector{tt_scale_word<T>(v[u].low, rule), tt_scale_word<T>(v[u].high, rule)};
        store_line(lines(entry), line + u * place.apart, place.part, v[u], flag);
      }
    }
  }

  static __device__ __forceinline__ void receive(int thread, int threads, const tt_entry *entry)
  {
    place place(thread, threads, entry->bytes);
    uint64_t flag = flag_of(entry);
#pragma unroll 1
    for (uint32_t line = place.first; place.warp_has(line); line += MOVE_LINES * place.apart) {
      tt_vector v[MOVE_LINES];
      tt_wait wait;
      __syncwarp();
#pragma unroll 1
      for (;;) {
        bool late = false;
#pragma unroll
        for (int u = 0; u < MOVE_LINES; u++)
          if (line + u * place.apart < place.count) v[u] = load_line(lines(entry), line + u * place.apart, place.part);
#pragma unroll
        for (int u = 0; u < MOVE_LINES; u++)
          late |= line + u * place.apart < place.count && place.last() && v[u].high != flag;
        if (!__any_sync(0xffffffffu, late)) break;
        bool on = wait.goes_on(block.ends[entry->conn].peer, false);
        if (__any_sync(0xffffffffu, !on)) return;
      }
#pragma unroll
      for (int u = 0; u < MOVE_LINES; u++)
        if (line + u * place.apart < place.count)
          store_local(entry->local, line + u * place.apart, place.part, entry->bytes, v[u]);
    }
  }

  /* Loads lines of up to TOGETHER inputs until all of them are there; the whole warp comes here. */
  static __device__ __forceinline__ bool load_inputs(const tt_entry *inputs, int ninputs, const place &place,
                                                     uint32_t line, uint32_t bytes, tt_vector (&v)[TOGETHER][LINES])
  {
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      if (k >= ninputs || inputs[k].role != TT_CUDA_IN_LOCAL) continue;
#pragma unroll
      for (int u = 0; u < LINES; u++)
        if (line + u * place.apart < place.count)
          v[k][u] = load_local(inputs[k].local, line + u * place.apart, place.part, bytes);
    }
    tt_wait wait;
    __syncwarp();
#pragma unroll 1
    for (;;) {
      int late = -1; /* a connection whose line is not there */
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs || inputs[k].role == TT_CUDA_IN_LOCAL) continue;
#pragma unroll
        for (int u = 0; u < LINES; u++)
          if (line + u * place.apart < place.count)
            v[k][u] = load_line(lines(inputs + k), line + u * place.apart, place.part);
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs || inputs[k].role == TT_CUDA_IN_LOCAL || !place.last()) continue;
#pragma unroll
        for (int u = 0; u < LINES; u++)
          if (line + u * place.apart < place.count && v[k][u].high != flag_of(inputs + k)) late = inputs[k].conn;
      }
      if (!__any_sync(0xffffffffu, late >= 0)) return true;
      bool on = wait.goes_on(late >= 0 ? block.ends[late].peer : -1, false);
      if (__any_sync(0xffffffffu, !on)) return false;
    }
  }

  template <typename T>
  static __device__ __forceinline__ void reduce(int thread, int threads, const tt_step &step,
                                                const tt_reduce_rule &rule)
  {
    uint32_t bytes = step.inputs[0].bytes;
    int ninputs = step.ninputs, noutputs = step.noutputs;
    bool final = step.final;
    place place(thread, threads, bytes);
#pragma unroll 1
    for (uint32_t line = place.first; place.warp_has(line); line += LINES * place.apart) {
      tt_word<T> sum[2 * LINES];
#pragma unroll 1
      for (int base = 0; base < ninputs; base += TOGETHER) {
        tt_vector v[TOGETHER][LINES];
        if (!load_inputs(step.inputs + base, ninputs - base, place, line, bytes, v)) return;
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
          if (base + k >= ninputs) continue;
          uint64_t words[2 * LINES];
#pragma unroll
          for (int u = 0; u < LINES; u++) words[2 * u] = v[k][u].low, words[2 * u + 1] = v[k][u].high;
          tt_take_all<T, 2 * LINES>(sum, words, base + k == 0, step.inputs[base + k].flags & TT_ENTRY_SCALED, rule);
        }
      }
      tt_vector result[LINES];
#pragma unroll
      for (int u = 0; u < LINES; u++)
        result[u] = tt_vector{sum[2 * u].store(rule, final), sum[2 * u + 1].store(rule, final)};
#pragma unroll 1
      for (int k = 0; k < noutputs; k++) {
        const tt_entry *output = step.outputs + k;
        __syncwarp();
#pragma unroll
        for (int u = 0; u < LINES; u++) {
          uint32_t at = line + u * place.apart;
          if (at >= place.count) continue;
          if (output->role == TT_CUDA_OUT_LOCAL)
            store_local(output->local, at, place.part, bytes, result[u]);
          else
            store_line(lines(output), at, place.part, result[u], flag_of(output));
        }
      }
    }
  }
};

#endif
