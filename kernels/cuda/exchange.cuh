/* Exchanges (struct tt_cuda_exchange): the way of most small messages, in as few instructions as there are and one
 * after the other, since each runs once and is fetched from far for that.
 *
 * Each data warp reads of the kernel's parameters and of memory what its own messages need, all at once, and stores
 * them: so the way to the first word sent is two loads long. Meanwhile the service warp, a lane an entry, resolves the
 * rest, and writes headers and lines 0. A barrier follows, so that what was sent may be overwritten, as in all-to-all
 * in place. Then comes all else; what is copied or reduced there is read by who writes it, if buffers are in place as
 * NCCL has it. */
#ifndef TT_KERNELS_CUDA_EXCHANGE_CUH
#define TT_KERNELS_CUDA_EXCHANGE_CUH

#include "kernels/cuda/short.cuh"

/* Where the words of a block lie. */
struct tt_exchange {
  const tt_cuda_launch &launch;
  const tt_cuda_exchange *shape;
  const tt_cuda_exchange_entry *entries;
  const tt_cuda_exchange_channel *channel;
  __device__ __forceinline__ uint32_t index(uint32_t entry) const
  {
    return ((const uint32_t *)(channel + 1))[entry];
  }
  /* An entry's chunk in this rank's memory. */
  __device__ __forceinline__ tt_byte *place(uint32_t number, uint32_t *bytes) const
  {
    const tt_cuda_exchange_entry *entry = entries + number;
    uint32_t part = channel->part, share = channel->share, at = min(entry->part * part, share);
    *bytes = min(share - at, part);
    return (entry->flags & TT_CUDA_SHORT_OUTPUT ? channel->output : channel->input) + entry->offset + at;
  }
};

/* As tt_lean_share; `share` is that of n. */
template <typename U>
static __device__ __forceinline__ U share_out(tt_warps warps, uint32_t n, uint32_t share, uint32_t *k)
{
  uint32_t turn = 0, turns = 1;
  *k = warps.mine;
  if (n < warps.count) {
    turn = warps.mine * share >> TT_CUDA_SHARE_BITS;
    *k -= turn * n;
    turns = (warps.count - *k + n - 1) * share >> TT_CUDA_SHARE_BITS;
  }
  return U(32 * turn + threadIdx.x % 32, 32 * turns);
}

static __device__ __forceinline__ uint32_t copy_of(const tt_cuda_exchange *shape)
{
  return shape->nsends + shape->ninputs + shape->noutputs + shape->nreceives;
}

template <typename U> static __device__ __forceinline__ void copy_local(const tt_exchange &x, const U unit)
{
  tt_spot to;
  const uint32_t number = copy_of(x.shape);
  const tt_byte *from = x.place(number, &to.bytes);
  tt_lean_move(unit, to, from, to, x.place(number + 1, &to.bytes));
}

/* ---- What leaves ---- */

/* Where a message of input goes. */
struct tt_outbound {
  tt_spot spot;
  bool free; /* nothing else is due for it */
};
template <int PROTOCOL>
static __device__ __forceinline__ tt_outbound find_slot(const short_conn &conn, const tt_cuda_exchange_entry &entry,
                                                        uint32_t bytes)
{
  tt_outbound to;
  const uint64_t step = conn.step() + entry.uses_before;
  to.spot.at = conn.slot(step);
  to.spot.flag = tt_flag_of(step);
  to.spot.flag128 = step + 1;
  to.spot.bytes = bytes;
  to.free = conn.has_credit(step) && !short_is_cleaned<PROTOCOL>(step);
  return to;
}

/* The messages of input, and a copy that goes beside them. Returns whether a message was left out, since more is due
 * for it; `late`: that has been done. */
template <int PROTOCOL, typename U>
static __device__ __forceinline__ bool send_input(const tt_exchange &x, tt_warps warps, bool late)
{
  const uint32_t nsends = x.shape->nsends, n = nsends + (x.shape->flags & TT_CUDA_EXCHANGE_BESIDE);
  bool missed = false;
  uint32_t k;
  U unit = share_out<U>(warps, n, x.shape->send_share, &k);
  const uint32_t u = unit.first;
#pragma unroll 1
  for (; k < n; k += warps.count) {
    unit.first = u;
    if (k == nsends) {
      copy_local(x, unit);
      break;
    }
    short_conn conn;
    conn.load(x.launch, x.index(k));
    uint32_t bytes;
    const tt_byte *from = x.place(k, &bytes);
    const bool covers = unit.covers(u, bytes);
    typename U::raw words; /* loaded beside what is needed of the end */
    if (covers) words = unit.fetch_local(from, u, bytes);
    const tt_outbound to = find_slot<PROTOCOL>(conn, x.entries[k], bytes);
    if (!__all_sync(0xffffffffu, to.free || late)) { /* for all of a line, or none of it */
      missed = true;
      continue;
    }
    U::converge();
    if (covers) tt_lean_store(unit, u, words, to.spot, NULL);
    unit.first += unit.apart;
    tt_lean_move(unit, to.spot, from, to.spot, NULL);
  }
  return missed;
}

/* ---- The service warp ---- */

/* A lane of the service warp resolves its entry; returns whether that is a message for which more is due. */
template <int PROTOCOL>
static __device__ __forceinline__ bool serve_begin(const tt_exchange &x, uint32_t lane, short_end *end)
{
  const tt_cuda_exchange_entry from = x.entries[lane];
  short_conn conn;
  tt_entry e;
  const bool message = from.flags & TT_CUDA_SHORT_MESSAGE;
  if (message) conn.load(x.launch, x.index(lane));
  e.local = x.place(lane, &e.bytes);
  e.role = from.role;
  e.flags = from.flags & TT_ENTRY_FIRST;
  e.conn = (uint16_t)lane;
  e.step = 0;
  e.flag = 0;
  e.slot = e.local;
  bool missed = false;
  if (message) {
    e.step = conn.step() + from.uses_before;
    e.flag = tt_flag_of(e.step);
    e.slot = conn.slot(e.step);
    note_end(lane, conn);
    tell_empty(x.shape->flags & TT_CUDA_EXCHANGE_TELLS, from, conn, end);
    if (tt_is_send(e.role)) {
      missed = short_is_cleaned<PROTOCOL>(e.step) || !conn.has_credit(e.step);
      if (!missed) {
        bool first = e.flags & TT_ENTRY_FIRST;
        tt_store_line(e.slot, tt_first_word(x.shape->signature_hash, first, e.bytes), e.flag);
        tt_write_header(e.slot, first ? &x.shape->signature : NULL, e.bytes, e.step);
      }
    }
  }
  block.entries[lane] = e;
  return missed;
}

/* A lane does what is due for its message before data follows. False: there is no slot, since the work is aborted. */
template <int PROTOCOL> static __device__ __noinline__ bool serve_late(const tt_entry *entry)
{
  if (!tt_is_send(entry->role)) return true;
  if (!tt_wait_credit(entry)) return false;
  if (short_is_cleaned<PROTOCOL>(entry->step)) {
    uint32_t old = tt_flag_of(entry->step - TT_SLOTS), bytes = block.ends[entry->conn].slot_bytes - TT_SLOT_HEADER;
#pragma unroll 1
    for (uint32_t at = 0; at + 16 <= bytes; at += 16) tt_store_line(entry->slot + at, 0, old);
  }
  tt_store_line(entry->slot, tt_first_word(entry), entry->flag);
  tt_write_header(entry);
  return true;
}

/* All messages once more, those that were sent too: the same words to the same places. False for all threads: without
 * slots nothing may be sent. */
template <int PROTOCOL, typename U> static __device__ __noinline__ bool send_late(const tt_exchange x, tt_warps warps)
{
  const bool serves = warps.mine == warps.count;
  const bool resolves = serves && threadIdx.x % 32 < x.shape->nentries;
  if (__syncthreads_or(resolves && !serve_late<PROTOCOL>(block.entries + threadIdx.x % 32))) return false;
  if (!serves) send_input<PROTOCOL, U>(x, warps, true);
  __syncthreads();
  return true;
}

/* ---- What comes, and what becomes of it: the service warp has resolved all of that ---- */

/* The sum of a chunk of this rank and a message. */
template <typename U> struct tt_pair {
  const tt_byte *local;
  uint32_t bytes;
  typename U::raw mine; /* of the first unit */
  __device__ __forceinline__ void begin(const tt_exchange &x, const U unit)
  {
    local = x.place(x.shape->nsends + x.shape->local_input, &bytes);
    if (unit.covers(unit.first, bytes)) mine = unit.fetch_local(local, unit.first, bytes);
  }
  template <typename T> __device__ __forceinline__ void finish(const tt_exchange &x, const U unit)
  {
    const uint32_t inputs = x.shape->nsends, outputs = inputs + 2, noutputs = x.shape->noutputs;
    const bool after = x.shape->local_input;
    const tt_reduce_rule rule = {0, 0, x.shape->op, false};
    const tt_spot from(inputs + !after);
    tt_byte *output = block.entries[outputs].local;
    uint32_t u = unit.first;
#pragma unroll 1
    while (unit.any(u, bytes)) {
      const bool covers = unit.covers(u, bytes);
      typename U::raw theirs;
      if (!look_for(unit, from, u, covers, &theirs)) return;
      tt_word<T> sum[U::WORDS];
      uint64_t first[U::WORDS], second[U::WORDS], result[U::WORDS];
      _Pragma("unroll") for (int w = 0; w < U::WORDS; w++)
      {
        const uint64_t a = U::word(mine, w), b = U::word(theirs, w);
        first[w] = after ? b : a;
        second[w] = after ? a : b;
      }
      tt_take_all<T, U::WORDS>(sum, first, true, false, rule);
      tt_take_all<T, U::WORDS>(sum, second, false, false, rule);
      _Pragma("unroll") for (int w = 0; w < U::WORDS; w++) result[w] = sum[w].store(rule, false);
      if (covers) unit.store_local(output, u, bytes, result);
#pragma unroll 1
      for (uint32_t k = 1; k < noutputs; k++) {
        const tt_spot to(outputs + k);
        U::converge();
        if (covers) unit.store_line(to, u, result);
      }
      u += unit.apart;
      if (unit.covers(u, bytes)) mine = unit.fetch_local(local, u, bytes);
    }
  }
  /* Looks for unit u of a message until it is there. */
  static __device__ __forceinline__ bool look_for(const U unit, const tt_spot &from, uint32_t u, bool covers,
                                                  typename U::raw *words)
  {
    U::converge();
    tt_wait wait;
#pragma unroll 1
    for (;;) {
      if (covers) *words = unit.fetch(from, u);
      if (!U::anyone(covers && !unit.is_there(from, *words))) return true;
      if (U::anyone(!wait.goes_on(block.ends[from.conn()].peer, false))) return false;
    }
  }
};

template <typename U> static __device__ __forceinline__ void receive(const tt_exchange &x, tt_warps warps)
{
  const uint32_t n = x.shape->nreceives, first = x.shape->nsends + x.shape->ninputs + x.shape->noutputs;
  uint32_t k;
  const U unit = share_out<U>(warps, n, x.shape->receive_share, &k);
#pragma unroll 1
  for (; k < n; k += warps.count) {
    const tt_spot spot(first + k);
    tt_lean_move(unit, spot, NULL, spot, spot.local);
  }
}

template <int PROTOCOL, typename U>
static __device__ __forceinline__ void run_data(const tt_exchange &x, tt_warps warps)
{
  const tt_cuda_exchange *shape = x.shape;
  const U all(threadIdx.x, 32 * warps.count);
  /* Several units at a time are worth more than a short way. */
  const bool is_pair = U::REDUCES == 1 && (shape->flags & TT_CUDA_EXCHANGE_PAIR);
  tt_pair<U> pair;
  const bool missed = send_input<PROTOCOL, U>(x, warps, false);
  if (is_pair) pair.begin(x, all);
  if (__syncthreads_or(missed) && !send_late<PROTOCOL, U>(x, warps)) return;
  if (is_pair) {
    pair.template finish<element>(x, all);
  } else if (shape->ninputs > 0) {
    const tt_reduce_rule rule = {0, 0, shape->op, false};
    tt_lean_reduce<U, element>(all, shape->nsends, shape->ninputs, shape->noutputs, rule);
  }
  if (shape->nreceives > 0) receive<U>(x, warps);
  if (shape->ncopies > 0 && !(shape->flags & TT_CUDA_EXCHANGE_BESIDE)) copy_local(x, all);
  if (shape->flags & TT_CUDA_EXCHANGE_TELLS) __syncthreads();
}

template <int PROTOCOL, typename U>
static __device__ __forceinline__ void run_service(const tt_exchange &x, tt_warps warps)
{
  const uint32_t lane = threadIdx.x % 32;
  const bool has_entry = lane < x.shape->nentries;
  short_end end = {NULL, NULL, 0};
  bool missed = has_entry && serve_begin<PROTOCOL>(x, lane, &end);
  if (lane == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = x.launch.mapped;
    block.claim = x.launch.claim;
    block.channel_index = x.channel->number;
  }
  if (lane < sizeof(struct tt_signature) / 4 + 2)
    ((uint32_t *)&block.work.signature)[lane] = ((const uint32_t *)&x.shape->signature)[lane];
  if (__syncthreads_or(missed) && !send_late<PROTOCOL, U>(x, warps)) return;
  if (end.conn != NULL) end.conn->step = end.next; /* all have read it */
  if (has_entry && tt_is_receive(block.entries[lane].role)) tt_check_line(block.entries + lane);
  if (!(x.shape->flags & TT_CUDA_EXCHANGE_TELLS)) return;
  __syncthreads();
  if (end.head != NULL && !tt_aborted()) tt_store_relaxed(end.head, end.next);
}

#endif
