/* LL and LL128 in a hurry: the same messages as in ll.cuh and ll128.cuh, for steps in which nothing is due but data:
 * there is credit, no line is to be cleaned, and values are neither scaled nor divided.
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
#define TT_UNITS(i) _Pragma("unroll") for (uint32_t i = 0; i < COUNT; i++)

/* LL: a thread's unit is a word, in a line of 16 bytes.
 *
 * What both units say: MOVES units are moved at a time, so that their loads are under way together, and REDUCES
 * reduced; if KEEPS, spots are kept in registers from one use to the next, which is faster until registers run out. */
struct tt_lean_ll {
  typedef uint4 raw;
  static constexpr int WORDS = 1, MOVES = 1, REDUCES = 1;
  static constexpr bool KEEPS = true;
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
  __device__ __forceinline__ uint4 fetch_local(const tt_byte *at, uint32_t u, uint32_t bytes) const
  {
    uint64_t x = tt_load_global_word(at, 8 * u, bytes);
    return make_uint4((uint32_t)x, 0, (uint32_t)(x >> 32), 0);
  }
  __device__ __forceinline__ void store_local(tt_byte *at, uint32_t u, uint32_t bytes, const uint64_t (&x)[1]) const
  {
    tt_store_global_word(at, 8 * u, bytes, x[0]);
  }
  __device__ __forceinline__ uint4 fetch(const tt_spot &s, uint32_t u) const
  {
    return tt_load_line(s.at + 16 + 16 * u);
  }
  __device__ __forceinline__ bool is_there(const tt_spot &s, const uint4 &v) const
  {
    return v.y == s.flag && v.w == s.flag;
  }
  static __device__ __forceinline__ uint64_t word(const uint4 &v, int)
  {
    return v.x | (uint64_t)v.z << 32;
  }
  __device__ __forceinline__ void store_line(const tt_spot &s, uint32_t u, const uint64_t (&x)[1]) const
  {
    tt_store_line(s.at + 16 + 16 * u, x[0], s.flag);
  }
  static __device__ __forceinline__ bool anyone(bool value)
  {
    return value;
  }
  static __device__ __forceinline__ void converge()
  {
  }
};

/* LL128: an octet's unit is a line, of which a thread has two words. DEEP: chunks have more lines than a block has
 * octets (TT_CUDA_FORM_EXCHANGE_DEEP). */
template <bool DEEP> struct tt_lean_ll128 {
  typedef tt_vector raw;
  static constexpr int WORDS = 2, MOVES = DEEP ? 4 : 2, REDUCES = DEEP ? 2 : 1;
  static constexpr bool KEEPS = !DEEP;
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
  __device__ __forceinline__ tt_vector fetch_local(const tt_byte *at, uint32_t u, uint32_t bytes) const
  {
    uint32_t place = tt_ll128::DATA * u + 16 * part;
    return {tt_load_global_word(at, place, bytes), part < 7 ? tt_load_global_word(at, place + 8, bytes) : 0};
  }
  __device__ __forceinline__ void store_local(tt_byte *at, uint32_t u, uint32_t bytes, const uint64_t (&x)[2]) const
  {
    uint32_t place = tt_ll128::DATA * u + 16 * part;
    tt_store_global_word(at, place, bytes, x[0]);
    if (part < 7) tt_store_global_word(at, place + 8, bytes, x[1]);
  }
  __device__ __forceinline__ tt_vector fetch(const tt_spot &s, uint32_t u) const
  {
    return tt_load_volatile(s.at + tt_ll128::LINE * (1 + u) + 16 * part);
  }
  __device__ __forceinline__ bool is_there(const tt_spot &s, const tt_vector &v) const
  {
    return part < 7 || v.high == s.flag128;
  }
  static __device__ __forceinline__ uint64_t word(const tt_vector &v, int i)
  {
    return i == 0 ? v.low : v.high;
  }
  __device__ __forceinline__ void store_line(const tt_spot &s, uint32_t u, const uint64_t (&x)[2]) const
  {
    tt_store_volatile(s.at + tt_ll128::LINE * (1 + u) + 16 * part, x[0], part < 7 ? x[1] : s.flag128);
  }
  static __device__ __forceinline__ bool anyone(bool value)
  {
    return __any_sync(0xffffffffu, value);
  }
  /* Before a line is stored, or looked for: by one instruction of all its threads, which other words may have parted.
   */
  static __device__ __forceinline__ void converge()
  {
    __syncwarp();
  }
};

/* Loads unit u of inputs [first, first + n) until all are there. */
template <typename U>
static __device__ __forceinline__ bool tt_lean_load_one(const U unit, uint32_t first, uint32_t n, uint32_t u,
                                                        typename U::raw (&x)[TT_FOUR])
{
  tt_spot s[TT_FOUR];
  TT_EACH(k) if (k < n) s[k] = tt_spot(first + k);
  TT_EACH(k)
  if (k < n && s[k].is(TT_CUDA_IN_LOCAL) && unit.covers(u, s[k].bytes)) x[k] = unit.fetch_local(s[k].at, u, s[k].bytes);
  U::converge();
  tt_wait wait;
#pragma unroll 1
  for (;;) {
    int late = -1;
    TT_EACH(k)
    if (k < n && !s[k].is(TT_CUDA_IN_LOCAL) && unit.covers(u, s[k].bytes)) x[k] = unit.fetch(s[k], u);
    TT_EACH(k)
    if (k < n && !s[k].is(TT_CUDA_IN_LOCAL) && unit.covers(u, s[k].bytes) && !unit.is_there(s[k], x[k]))
      late = s[k].conn();
    if (!U::anyone(late >= 0)) return true;
    if (U::anyone(!wait.goes_on(late >= 0 ? block.ends[late].peer : -1, false))) return false;
  }
}

/* The same for COUNT units, `unit.apart` apart from u on. */
template <int COUNT, typename U>
static __device__ __forceinline__ bool tt_lean_load_some(const U unit, uint32_t first, uint32_t n, uint32_t u,
                                                         typename U::raw (&x)[COUNT][TT_FOUR])
{
  TT_EACH(k)
  {
    if (k >= n) continue;
    const tt_spot s(first + k);
    TT_UNITS(i)
    if (s.is(TT_CUDA_IN_LOCAL) && unit.covers(u + i * unit.apart, s.bytes))
      x[i][k] = unit.fetch_local(s.at, u + i * unit.apart, s.bytes);
  }
  U::converge();
  tt_wait wait;
#pragma unroll 1
  for (;;) {
    int late = -1;
    TT_EACH(k)
    {
      if (k >= n) continue;
      const tt_spot s(first + k);
      TT_UNITS(i)
      if (!s.is(TT_CUDA_IN_LOCAL) && unit.covers(u + i * unit.apart, s.bytes))
        x[i][k] = unit.fetch(s, u + i * unit.apart);
    }
    TT_EACH(k)
    {
      if (k >= n) continue;
      const tt_spot s(first + k);
      TT_UNITS(i)
      if (!s.is(TT_CUDA_IN_LOCAL) && unit.covers(u + i * unit.apart, s.bytes) && !unit.is_there(s, x[i][k]))
        late = s.conn();
    }
    if (!U::anyone(late >= 0)) return true;
    if (U::anyone(!wait.goes_on(late >= 0 ? block.ends[late].peer : -1, false))) return false;
  }
}

/* The data warps of a block, and this one's place among them. */
struct tt_warps {
  uint32_t mine, count;
};

/* Unit u, loaded as x, to a message, or to local memory. */
template <typename U>
static __device__ __forceinline__ void tt_lean_store(const U unit, uint32_t u, const typename U::raw &x,
                                                     const tt_spot &to, tt_byte *local_to)
{
  uint64_t words[U::WORDS];
  _Pragma("unroll") for (int w = 0; w < U::WORDS; w++) words[w] = U::word(x, w);
  if (local_to != NULL)
    unit.store_local(local_to, u, to.bytes, words);
  else
    unit.store_line(to, u, words);
}

/* COUNT units, `unit.apart` apart from u on, of one chunk to another place: from local memory or a message, to a
 * message or local memory. All are loaded before the first is stored. */
template <int COUNT, typename U>
static __device__ __forceinline__ bool tt_lean_move_units(const U unit, uint32_t u, const tt_spot &from,
                                                          const tt_byte *local_from, const tt_spot &to,
                                                          tt_byte *local_to)
{
  typename U::raw x[COUNT];
  if (local_from != NULL) {
    TT_UNITS(i)
    if (unit.covers(u + i * unit.apart, to.bytes)) x[i] = unit.fetch_local(local_from, u + i * unit.apart, to.bytes);
  } else {
    U::converge();
    tt_wait wait;
#pragma unroll 1
    for (;;) {
      bool here = true;
      TT_UNITS(i)
      if (unit.covers(u + i * unit.apart, to.bytes)) x[i] = unit.fetch(from, u + i * unit.apart);
      TT_UNITS(i)
      if (unit.covers(u + i * unit.apart, to.bytes)) here &= unit.is_there(from, x[i]);
      if (!U::anyone(!here)) break;
      if (U::anyone(!wait.goes_on(block.ends[from.conn()].peer, false))) return false;
    }
  }
  U::converge();
  TT_UNITS(i)
  if (unit.covers(u + i * unit.apart, to.bytes)) tt_lean_store(unit, u + i * unit.apart, x[i], to, local_to);
  return true;
}

/* A whole chunk. */
template <typename U>
static __device__ __forceinline__ void tt_lean_move(const U unit, const tt_spot &from, const tt_byte *local_from,
                                                    const tt_spot &to, tt_byte *local_to)
{
  uint32_t u = unit.first;
#pragma unroll 1
  for (; U::MOVES > 1 && unit.any(u + unit.apart, to.bytes); u += U::MOVES * unit.apart)
    if (!tt_lean_move_units<U::MOVES>(unit, u, from, local_from, to, local_to)) return;
#pragma unroll 1
  for (; unit.any(u, to.bytes); u += unit.apart)
    if (!tt_lean_move_units<1>(unit, u, from, local_from, to, local_to)) return;
}

/* Shares n moves out among the warps: this one's are *k and each warps.count behind it, or, if there are more warps
 * than moves, the units of *k that are returned. */
template <typename U> static __device__ __forceinline__ U tt_lean_share(tt_warps warps, uint32_t n, uint32_t *k)
{
  uint32_t turn = 0, turns = 1;
  *k = warps.mine;
  if (n < warps.count) {
#pragma unroll 1
    for (; *k >= n; *k -= n) turn++;
    turns = (warps.count - *k + n - 1) / n;
  }
  return U(32 * turn + threadIdx.x % 32, 32 * turns);
}

/* n moves, more than none: to entries [first, first + n), from themselves, or from entry `input` if that is none of
 * them. */
template <typename U>
static __device__ __forceinline__ void tt_lean_moves(tt_warps warps, uint32_t first, uint32_t n, uint32_t input,
                                                     bool sends)
{
  uint32_t k;
  const U unit = tt_lean_share<U>(warps, n, &k);
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

template <int COUNT, typename U>
static __device__ __forceinline__ void tt_lean_put(const U unit, uint32_t first, uint32_t n, uint32_t u,
                                                   const uint64_t (&x)[COUNT][U::WORDS])
{
#pragma unroll 1
  for (uint32_t base = 0; base < n; base += TT_FOUR) {
    tt_spot kept[TT_FOUR];
    if (U::KEEPS) TT_EACH(k) if (base + k < n) kept[k] = tt_spot(first + base + k);
    TT_EACH(k)
    {
      if (base + k >= n) continue;
      const tt_spot s = U::KEEPS ? kept[k] : tt_spot(first + base + k);
      U::converge();
      TT_UNITS(i)
      {
        if (!unit.covers(u + i * unit.apart, s.bytes)) continue;
        if (s.is(TT_CUDA_OUT_LOCAL))
          unit.store_local(s.at, u + i * unit.apart, s.bytes, x[i]);
        else
          unit.store_line(s, u + i * unit.apart, x[i]);
      }
    }
  }
}

/* COUNT units, `unit.apart` apart from u on, of a reduction. */
template <int COUNT, typename U, typename T>
static __device__ __forceinline__ bool tt_lean_reduce_units(const U unit, uint32_t u, uint32_t first, uint32_t ninputs,
                                                            uint32_t noutputs, const tt_reduce_rule &rule)
{
  tt_word<T> sum[COUNT][U::WORDS];
#pragma unroll 1
  for (uint32_t base = 0; base < ninputs; base += TT_FOUR) {
    typename U::raw x[COUNT][TT_FOUR] = {};
    if constexpr (U::KEEPS) {
      static_assert(COUNT == 1, "registers");
      if (!tt_lean_load_one(unit, first + base, ninputs - base, u, x[0])) return false;
    } else {
      if (!tt_lean_load_some<COUNT>(unit, first + base, ninputs - base, u, x)) return false;
    }
    TT_UNITS(i)
    TT_EACH(k)
    {
      if (base + k >= ninputs) continue;
      uint64_t words[U::WORDS];
      _Pragma("unroll") for (int w = 0; w < U::WORDS; w++) words[w] = U::word(x[i][k], w);
      tt_take_all<T, U::WORDS>(sum[i], words, base + k == 0, false, rule);
    }
  }
  uint64_t result[COUNT][U::WORDS];
  TT_UNITS(i) _Pragma("unroll") for (int w = 0; w < U::WORDS; w++) result[i][w] = sum[i][w].store(rule, false);
  tt_lean_put<COUNT>(unit, first + ninputs, noutputs, u, result);
  return true;
}

/* The reduction of at least two: inputs [first, first + ninputs), outputs behind them. */
template <typename U, typename T>
static __device__ __forceinline__ void tt_lean_reduce(const U unit, uint32_t first, uint32_t ninputs, uint32_t noutputs,
                                                      const tt_reduce_rule &rule)
{
  uint32_t bytes = block.entries[first].bytes, u = unit.first;
#pragma unroll 1
  for (; U::REDUCES > 1 && unit.any(u + unit.apart, bytes); u += U::REDUCES * unit.apart)
    if (!tt_lean_reduce_units<U::REDUCES, U, T>(unit, u, first, ninputs, noutputs, rule)) return;
#pragma unroll 1
  for (; unit.any(u, bytes); u += unit.apart)
    if (!tt_lean_reduce_units<1, U, T>(unit, u, first, ninputs, noutputs, rule)) return;
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
