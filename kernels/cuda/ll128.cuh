/* The LL128 protocol: lines of 128 bytes, 120 of data and a flag of 8 bytes at the end. Eight neighbouring threads
 * store a line with one instruction of the warp, and NVLink delivers it whole; so data carries its own news at a cost
 * of 1/16. The flag is the step plus one, in 64 bits: it never comes again.
 *
 * Line 0 carries no data of the user: its first word is that of LL's line 0. A warp stays together: its four octets
 * take four lines at a time, and an octet's thread k holds words 2k and 2k + 1 of its line, the last thread one word
 * and the flag. */
#ifndef TT_KERNELS_CUDA_LL128_CUH
#define TT_KERNELS_CUDA_LL128_CUH

#include "kernels/cuda/block.cuh"

struct tt_ll128 {
  static constexpr uint32_t LINE = 128, DATA = 120;
  static constexpr int LINES = 2;    /* of an octet in flight, for each input */
  static constexpr int TOGETHER = 4; /* inputs in flight */
  static constexpr int SEND_LINES = 4;

  static __device__ __forceinline__ uint64_t flag_of(uint64_t step)
  {
    return step + 1;
  }
  static __device__ __forceinline__ uint32_t lines_of(uint32_t bytes)
  {
    return (bytes + DATA - 1) / DATA;
  }

  /* A thread's place in a line. */
  struct place {
    uint32_t first, count, apart; /* lines of this octet: first, first + apart, ... below count */
    int part;                     /* 0..7 */
    __device__ place(const tt_group &group, uint32_t bytes)
        : first(group.thread / 8), count(lines_of(bytes)), apart(group.threads / 8), part(group.thread % 8)
    {
    }
    __device__ bool last() const
    {
      return part == 7;
    }
    /* Whether any octet of the warp has a line left at or behind `line`, this octet's. */
    __device__ bool warp_has(uint32_t line) const
    {
      return line - line % 4 < count;
    }
  };

  /* This thread's words of a line of local data. */
  static __device__ __forceinline__ tt_vector load_local(const tt_byte *local, uint32_t line, int part, uint32_t bytes)
  {
    size_t at = (size_t)line * DATA + 16 * part;
    tt_vector v;
    v.low = tt_load_word(local, at, bytes);
    v.high = part == 7 ? 0 : tt_load_word(local, at + 8, bytes);
    return v;
  }
  static __device__ __forceinline__ void store_local(tt_byte *local, uint32_t line, int part, uint32_t bytes,
                                                     tt_vector v)
  {
    size_t at = (size_t)line * DATA + 16 * part;
    if (at < bytes) tt_store_word(local, at, bytes, v.low);
    if (part != 7 && at + 8 < bytes) tt_store_word(local, at + 8, bytes, v.high);
  }
  static __device__ __forceinline__ void store_line(tt_byte *lines, uint32_t line, int part, tt_vector v, uint64_t flag)
  {
    tt_store_volatile(lines + (size_t)line * LINE + 16 * part, v.low, part == 7 ? flag : v.high);
  }

  /* Waits for `n` lines of one message, `apart` lines from each other; the whole warp comes here. */
  static __device__ __forceinline__ bool load_again(tt_block *block, const tt_end &end, const tt_byte *lines,
                                                    uint32_t line, const place &place, uint64_t flag, tt_vector *v)
  {
    tt_wait wait;
    for (;;) {
      bool bad = false;
      if (line < place.count) {
        *v = tt_load_volatile(lines + (size_t)line * LINE + 16 * place.part);
        bad = place.last() && v->high != flag;
      }
      if (!__any_sync(0xffffffffu, bad)) return true;
      if (__any_sync(0xffffffffu, !wait.goes_on(block, end.peer, false))) return false;
    }
  }

  static __device__ __forceinline__ void begin_send(const tt_group &group, const tt_entry &entry)
  {
    tt_block *block = group.block;
    const tt_end &end = block->ends[entry.conn];
    if ((entry.flags & TT_ENTRY_NO_CREDIT) && !tt_wait_credit(block, end, entry.step)) return;
    tt_byte *payload = tt_slot(end, entry.step);
    if (group.thread < 8) {
      uint64_t first = group.thread == 0 ? tt_first_word(block, entry) : 0;
      store_line(payload, 0, group.thread, tt_vector{first, 0}, flag_of(entry.step));
    } else if (group.thread < 11) {
      tt_write_header(block, payload, entry, group.thread - 8);
    }
  }

  /* Called by a whole warp. */
  static __device__ __forceinline__ void check_receive(const tt_group &group, const tt_entry &entry)
  {
    tt_block *block = group.block;
    const tt_end &end = block->ends[entry.conn];
    const tt_byte *payload = tt_slot(end, entry.step);
    tt_wait wait;
    const uint64_t *words = (const uint64_t *)payload;
    for (;;) {
      bool bad = group.lane() == 0 && tt_load_relaxed(words + LINE / 8 - 1) != flag_of(entry.step);
      if (!__any_sync(0xffffffffu, bad)) break;
      if (__any_sync(0xffffffffu, !wait.goes_on(block, end.peer, false))) return;
    }
    if (group.lane() != 0 || tt_load_relaxed(words) == tt_first_word(block, entry)) return;
    for (uint64_t start = tt_now_ns(); tt_now_ns() - start < 1000000;) { /* the header may come after line 0 */
    }
    tt_wrong_message(block, end, entry, payload);
  }

  template <typename T>
  static __device__ __forceinline__ void send(const tt_group &group, const tt_entry &entry, const tt_reduce_rule &rule)
  {
    place place(group, entry.bytes);
    tt_byte *lines = tt_slot(group.block->ends[entry.conn], entry.step) + LINE;
    uint64_t flag = flag_of(entry.step);
    bool scaled = entry.flags & TT_ENTRY_SCALED;
    for (uint32_t line = place.first; line < place.count; line += SEND_LINES * place.apart) {
      tt_vector v[SEND_LINES];
#pragma unroll
      for (int u = 0; u < SEND_LINES; u++)
        if (line + u * place.apart < place.count)
          v[u] = load_local(entry.local, line + u * place.apart, place.part, entry.bytes);
#pragma unroll
      for (int u = 0; u < SEND_LINES; u++) {
        if (line + u * place.apart >= place.count) continue;
        if (scaled) v[u] = tt_vector{tt_scale_word<T>(v[u].low, rule), tt_scale_word<T>(v[u].high, rule)};
        store_line(lines, line + u * place.apart, place.part, v[u], flag);
      }
    }
  }

  static __device__ __forceinline__ void receive(const tt_group &group, const tt_entry &entry)
  {
    place place(group, entry.bytes);
    const tt_end &end = group.block->ends[entry.conn];
    const tt_byte *lines = tt_slot(end, entry.step) + LINE;
    uint64_t flag = flag_of(entry.step);
    for (uint32_t line = place.first; place.warp_has(line); line += SEND_LINES * place.apart) {
      tt_vector v[SEND_LINES];
#pragma unroll
      for (int u = 0; u < SEND_LINES; u++)
        if (line + u * place.apart < place.count)
          v[u] = tt_load_volatile(lines + (size_t)(line + u * place.apart) * LINE + 16 * place.part);
#pragma unroll
      for (int u = 0; u < SEND_LINES; u++) {
        uint32_t at = line + u * place.apart;
        bool bad = at < place.count && place.last() && v[u].high != flag;
        if (__any_sync(0xffffffffu, bad) && !load_again(group.block, end, lines, at, place, flag, &v[u])) return;
        if (at < place.count) store_local(entry.local, at, place.part, entry.bytes, v[u]);
      }
    }
  }

  /* Loads lines of up to TOGETHER inputs until all of them are there; the whole warp comes here. */
  static __device__ __forceinline__ bool load_inputs(tt_block *block, const tt_entry *inputs, int ninputs,
                                                     const place &place, uint32_t line, uint32_t bytes,
                                                     tt_vector (&v)[TOGETHER][LINES])
  {
    tt_wait wait;
    for (;;) {
      int late = -1; /* a peer whose line is not there */
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs) continue;
        const tt_entry &input = inputs[k];
        bool local = input.role == TT_CUDA_IN_LOCAL;
        const tt_byte *from = local ? input.local : tt_slot(block->ends[input.conn], input.step) + LINE;
#pragma unroll
        for (int u = 0; u < LINES; u++) {
          uint32_t at = line + u * place.apart;
          if (at >= place.count) continue;
          if (local)
            v[k][u] = load_local(from, at, place.part, bytes);
          else
            v[k][u] = tt_load_volatile(from + (size_t)at * LINE + 16 * place.part);
        }
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (k >= ninputs || inputs[k].role == TT_CUDA_IN_LOCAL) continue;
#pragma unroll
        for (int u = 0; u < LINES; u++)
          if (line + u * place.apart < place.count && place.last() && v[k][u].high != flag_of(inputs[k].step))
            late = inputs[k].conn;
      }
      if (!__any_sync(0xffffffffu, late >= 0)) return true;
      int peer = late >= 0 ? block->ends[late].peer : -1;
      if (__any_sync(0xffffffffu, !wait.goes_on(block, peer, false))) return false;
    }
  }

  /* The inputs of an octet's lines, reduced in order. */
  template <typename T>
  static __device__ __forceinline__ bool reduce_lines(const tt_group &group, const tt_step &step,
                                                      const tt_reduce_rule &rule, const place &place, uint32_t line,
                                                      uint32_t bytes, tt_vector *result)
  {
    int ninputs = step.instruction->ninputs;
    tt_word<T> sum[LINES][2];
    for (int base = 0; base < ninputs; base += TOGETHER) {
      tt_vector v[TOGETHER][LINES];
      if (!load_inputs(group.block, step.inputs + base, ninputs - base, place, line, bytes, v)) return false;
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        if (base + k >= ninputs) continue;
        bool scaled = step.inputs[base + k].flags & TT_ENTRY_SCALED;
#pragma unroll
        for (int u = 0; u < LINES; u++) {
          tt_take<T>(&sum[u][0], v[k][u].low, base + k == 0, scaled, rule);
          tt_take<T>(&sum[u][1], v[k][u].high, base + k == 0, scaled, rule);
        }
      }
    }
    bool final = step.instruction->flags & TT_FLAG_FINAL;
#pragma unroll
    for (int u = 0; u < LINES; u++) result[u] = tt_vector{sum[u][0].store(rule, final), sum[u][1].store(rule, final)};
    return true;
  }

  template <typename T>
  static __device__ __forceinline__ void reduce(const tt_group &group, const tt_step &step, const tt_reduce_rule &rule)
  {
    tt_block *block = group.block;
    uint32_t bytes = step.inputs[0].bytes;
    int noutputs = step.instruction->noutputs;
    place place(group, bytes);
    for (uint32_t line = place.first; place.warp_has(line); line += LINES * place.apart) {
      tt_vector v[LINES];
      if (!reduce_lines<T>(group, step, rule, place, line, bytes, v)) return;
      for (int k = 0; k < noutputs; k++) {
        const tt_entry &output = step.outputs[k];
        bool local = output.role == TT_CUDA_OUT_LOCAL;
        tt_byte *lines = local ? output.local : tt_slot(block->ends[output.conn], output.step) + LINE;
        uint64_t flag = flag_of(output.step);
#pragma unroll
        for (int u = 0; u < LINES; u++) {
          uint32_t at = line + u * place.apart;
          if (at >= place.count) continue;
          if (local)
            store_local(lines, at, place.part, bytes, v[u]);
          else
            store_line(lines, at, place.part, v[u], flag);
        }
      }
    }
  }
};

#endif
