/* LL and LL128 in a hurry: the same messages as in ll.cuh and ll128.cuh, for steps in which nothing is due but data:
 * there is credit, no line is to be cleaned, values are neither scaled nor divided, and local memory is aligned to
 * words of 8 bytes and has whole ones.
 *
 * A step of a small message runs once, so its time is the number of its instructions. Operands are taken four at a
 * time, with one load each for what is needed of them; their words are loaded all before the first is used. */
#ifndef TT_KERNELS_CUDA_LEAN_CUH
#define TT_KERNELS_CUDA_LEAN_CUH

#include "kernels/cuda/ll.cuh"
#include "kernels/cuda/ll128.cuh"

/* What a step needs of an entry; what is not used is not loaded. */
struct tt_spot {
  tt_byte *at, *local;
  uint32_t flag, rest, bytes;
  uint64_t flag128;
  __device__ __forceinline__ tt_spot()
  {
  }
  __device__ __forceinline__ tt_spot(uint32_t number)
  {
    const tt_entry *entry = &block.entries[number];
    uint4 front = *(const uint4 *)entry, middle = *((const uint4 *)entry + 1);
    at = (tt_byte *)(front.x | (uint64_t)front.y << 32);
    flag = front.z;
    rest = front.w;
    local = (tt_byte *)(middle.x | (uint64_t)middle.y << 32);
    flag128 = (middle.z | (uint64_t)middle.w << 32) + 1;
    bytes = entry->bytes;
  }
  __device__ __forceinline__ bool is(int role) const
  {
    return (rest & 0xff) == (uint32_t)role;
  }
  __device__ __forceinline__ int conn() const
  {
    return (int)(rest >> 16);
  }
};

enum { TT_FOUR = 4 };
#define TT_EACH(k) _Pragma("unroll") for (uint32_t k = 0; k < TT_FOUR; k++)

/* LL: a thread's unit is a word, in a line of 16 bytes. */
struct tt_lean_ll {
  typedef uint4 raw;
  static constexpr int WORDS = 1;
  uint32_t first, apart; /* units of this thread */
  __device__ __forceinline__ tt_lean_ll(int thread, int threads) : first(thread), apart(threads)
  {
  }
  __device__ __forceinline__ bool covers(uint32_t u, uint32_t bytes) const
  {
    return 8 * u < bytes;
  }
  /* The warp may leave the loop. */
  __device__ __forceinline__ bool any(uint32_t u, uint32_t bytes) const
  {
    return covers(u, bytes);
  }
  __device__ __forceinline__ void load_local(const tt_byte *at, uint32_t u, uint32_t, uint64_t (&x)[1]) const
  {
    x[0] = tt_load_global(at + 8 * u);
  }
  __device__ __forceinline__ void store_local(tt_byte *at, uint32_t u, uint32_t, const uint64_t (&x)[1]) const
  {
    tt_store_global(at + 8 * u, x[0]);
  }
  __device__ __forceinline__ uint4 fetch(const tt_spot &s, uint32_t u) const
  {
    return tt_load_line(s.at + 16 + 16 * u);
  }
  __device__ __forceinline__ bool take(const tt_spot &s, const uint4 &v, uint64_t (&x)[1]) const
  {
    x[0] = v.x | (uint64_t)v.z << 32;
    return v.y == s.flag && v.w == s.flag;
  }
  __device__ __forceinline__ void store_line(const tt_spot &s, uint32_t u, const uint64_t (&x)[1]) const
  {
    tt_store_line(s.at + 16 + 16 * u, x[0], s.flag);
  }
  static __device__ __forceinline__ bool anyone(bool value)
  {
    return value;
  }
};

/* LL128: an octet's unit is a line, of which a thread has two words. */
struct tt_lean_ll128 {
  typedef tt_vector raw;
  static constexpr int WORDS = 2;
  uint32_t first, apart, part;
  __device__ __forceinline__ tt_lean_ll128(int thread, int threads)
      : first(thread / 8), apart(threads / 8), part(thread % 8)
  {
  }
  __device__ __forceinline__ bool covers(uint32_t u, uint32_t bytes) const
  {
    return tt_ll128::DATA * u < bytes;
  }
  __device__ __forceinline__ bool any(uint32_t u, uint32_t bytes) const
  {
    return covers(u - u % 4, bytes);
  }
  __device__ __forceinline__ void load_local(const tt_byte *at, uint32_t u, uint32_t bytes, uint64_t (&x)[2]) const
  {
    uint32_t place = tt_ll128::DATA * u + 16 * part;
    x[0] = place < bytes ? tt_load_global(at + place) : 0;
    x[1] = part < 7 && place + 8 < bytes ? tt_load_global(at + place + 8) : 0;
  }
  __device__ __forceinline__ void store_local(tt_byte *at, uint32_t u, uint32_t bytes, const uint64_t (&x)[2]) const
  {
    uint32_t place = tt_ll128::DATA * u + 16 * part;
    if (place < bytes) tt_store_global(at + place, x[0]);
    if (part < 7 && place + 8 < bytes) tt_store_global(at + place + 8, x[1]);
  }
  __device__ __forceinline__ tt_vector fetch(const tt_spot &s, uint32_t u) const
  {
    return tt_load_volatile(s.at + tt_ll128::LINE * (1 + u) + 16 * part);
  }
  __device__ __forceinline__ bool take(const tt_spot &s, const tt_vector &v, uint64_t (&x)[2]) const
  {
    x[0] = v.low;
    x[1] = v.high;
    return part < 7 || v.high == s.flag128;
  }
  __device__ __forceinline__ void store_line(const tt_spot &s, uint32_t u, const uint64_t (&x)[2]) const
  {
    tt_store_volatile(s.at + tt_ll128::LINE * (1 + u) + 16 * part, x[0], part < 7 ? x[1] : s.flag128);
  }
  static __device__ __forceinline__ bool anyone(bool value)
  {
    return __any_sync(0xffffffffu, value);
  }
};

/* Loads unit u of the messages among n spots until all are there. */
template <typename U>
static __device__ __forceinline__ bool tt_lean_load(const U unit, const tt_spot (&s)[TT_FOUR], uint32_t n, uint32_t u,
                                                    uint64_t (&x)[TT_FOUR][U::WORDS])
{
  tt_wait wait;
#pragma unroll 1
  for (;;) {
    typename U::raw v[TT_FOUR];
    int late = -1;
    TT_EACH(k) if (k < n && !s[k].is(TT_CUDA_IN_LOCAL) && unit.covers(u, s[k].bytes)) v[k] = unit.fetch(s[k], u);
    TT_EACH(k)
    {
      if (k >= n || !unit.covers(u, s[k].bytes)) continue;
      if (s[k].is(TT_CUDA_IN_LOCAL))
        unit.load_local(s[k].at, u, s[k].bytes, x[k]);
      else if (!unit.take(s[k], v[k], x[k]))
        late = s[k].conn();
    }
    if (!U::anyone(late >= 0)) return true;
    if (U::anyone(!wait.goes_on(late >= 0 ? block.ends[late].peer : -1, false))) return false;
  }
}

/* The data warps of a block, and this one's place among them. */
struct tt_warps {
  uint32_t mine, count;
};

/* One chunk to another place: from local memory or a message, to a message or local memory. */
template <typename U>
static __device__ __forceinline__ void tt_lean_move(const U unit, const tt_spot &from, const tt_byte *local_from,
                                                    const tt_spot &to, tt_byte *local_to)
{
#pragma unroll 1
  for (uint32_t u = unit.first; unit.any(u, to.bytes); u += unit.apart) {
    uint64_t x[U::WORDS];
    if (local_from != NULL) {
      if (unit.covers(u, to.bytes)) unit.load_local(local_from, u, to.bytes, x);
    } else {
      tt_wait wait;
#pragma unroll 1
      for (;;) {
        bool here = true;
        if (unit.covers(u, to.bytes)) here = unit.take(from, unit.fetch(from, u), x);
        if (!U::anyone(!here)) break;
        if (U::anyone(!wait.goes_on(block.ends[from.conn()].peer, false))) return;
      }
    }
    if (!unit.covers(u, to.bytes)) continue;
    if (local_to != NULL)
      unit.store_local(local_to, u, to.bytes, x);
    else
      unit.store_line(to, u, x);
  }
}

/* n moves, shared out among the warps: to entries [first, first + n), from themselves, or from entry `input` if that is
 * none of them. */
template <typename U>
static __device__ __forceinline__ void tt_lean_moves(tt_warps warps, uint32_t first, uint32_t n, uint32_t input,
                                                     bool sends)
{
  uint32_t k = warps.mine, turn = 0, turns = 1;
  if (n < warps.count) {
#pragma unroll 1
    for (; k >= n; k -= n) turn++;
    turns = (warps.count - k + n - 1) / n;
  }
  const U unit(32 * turn + threadIdx.x % 32, 32 * turns);
#pragma unroll 1
  for (; k < n; k += warps.count) {
    const tt_spot to(first + k);
    if (input < first) {
      const tt_spot from(input);
      tt_lean_move(unit, from, from.is(TT_CUDA_IN_LOCAL) ? from.at : NULL, to, to.is(TT_CUDA_OUT_LOCAL) ? to.at : NULL);
    } else {
      tt_lean_move(unit, to, sends ? to.local : NULL, to, sends ? NULL : to.local);
    }
  }
}

template <typename U>
static __device__ __forceinline__ void tt_lean_put(const U unit, uint32_t first, uint32_t n, uint32_t u,
                                                   const uint64_t (&x)[U::WORDS])
{
#pragma unroll 1
  for (uint32_t base = 0; base < n; base += TT_FOUR) {
    tt_spot s[TT_FOUR];
    TT_EACH(k) if (base + k < n) s[k] = tt_spot(first + base + k);
    TT_EACH(k)
    {
      if (base + k >= n || !unit.covers(u, s[k].bytes)) continue;
      if (s[k].is(TT_CUDA_OUT_LOCAL))
        unit.store_local(s[k].at, u, s[k].bytes, x);
      else
        unit.store_line(s[k], u, x);
    }
  }
}

/* The reduction of at least two: inputs [first, first + ninputs), outputs behind them. */
template <typename U, typename T>
static __device__ __forceinline__ void tt_lean_reduce(const U unit, uint32_t first, uint32_t ninputs, uint32_t noutputs,
                                                      const tt_reduce_rule &rule)
{
  uint32_t bytes = block.entries[first].bytes;
#pragma unroll 1
  for (uint32_t u = unit.first; unit.any(u, bytes); u += unit.apart) {
    tt_word<T> sum[U::WORDS];
#pragma unroll 1
    for (uint32_t base = 0; base < ninputs; base += TT_FOUR) {
      uint64_t x[TT_FOUR][U::WORDS] = {};
      tt_spot s[TT_FOUR];
      TT_EACH(k) if (base + k < ninputs) s[k] = tt_spot(first + base + k);
      if (!tt_lean_load(unit, s, ninputs - base, u, x)) return;
      TT_EACH(k) if (base + k < ninputs) tt_take_all<T, U::WORDS>(sum, x[k], base + k == 0, false, rule);
    }
    uint64_t result[U::WORDS];
    _Pragma("unroll") for (int i = 0; i < U::WORDS; i++) result[i] = sum[i].store(rule, false);
    tt_lean_put(unit, first + ninputs, noutputs, u, result);
  }
}

/* Moves are shared out operand by operand, a reduction word by word: so what one step wrote may be read by other
 * threads in the next, and what it read be overwritten. Where a step needs that to be over, TT_CUDA_SHORT_BARRIER says
 * so. */
template <typename U, typename T>
static __device__ __forceinline__ void tt_lean_step(tt_warps warps, const tt_cuda_short_step step,
                                                    const tt_reduce_rule &rule)
{
  uint32_t at = step.first;
  if (step.flags & TT_CUDA_SHORT_BARRIER) tt_barrier(1, 32 * warps.count);
  if (step.nsends > 0) tt_lean_moves<U>(warps, at, step.nsends, at, true);
  at += step.nsends;
  if (step.ninputs == 1)
    tt_lean_moves<U>(warps, at + 1, step.noutputs, at, true);
  else if (step.ninputs > 1)
    tt_lean_reduce<U, T>(U(threadIdx.x, 32 * warps.count), at, step.ninputs, step.noutputs, rule);
  at += step.ninputs + step.noutputs;
  if (step.nreceives > 0) tt_lean_moves<U>(warps, at, step.nreceives, at, false);
}

#endif
