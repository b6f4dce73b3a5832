/* Short works (descriptor.h): a work that is a single batch. The host has resolved what it can, and one barrier and one
 * load from memory stand between the launch and the first word sent. All that a launch reads is in the kernel's
 * parameters. */
#ifndef TT_KERNELS_CUDA_SHORT_CUH
#define TT_KERNELS_CUDA_SHORT_CUH

#include "kernels/cuda/lean.cuh"
#include "kernels/cuda/programs.cuh"

/* An end of a connection, as the kernel finds it; its loads are under way together. */
struct short_conn {
  tt_cuda_conn *home;
  tt_vector places, counters, rest;
  __device__ __forceinline__ void load(const tt_cuda_launch &launch, uint32_t index)
  {
    home = launch.conns + index;
    places = tt_load_volatile(&home->slots);
    counters = tt_load_volatile(&home->tail);
    rest = tt_load_volatile(&home->seen);
  }
  __device__ __forceinline__ uint64_t *head() const
  {
    return (uint64_t *)places.high;
  }
  __device__ __forceinline__ uint64_t *tail() const
  {
    return (uint64_t *)counters.low;
  }
  __device__ __forceinline__ uint64_t step() const
  {
    return counters.high;
  }
  __device__ __forceinline__ uint32_t slot_bytes() const
  {
    return (uint32_t)rest.high;
  }
  __device__ __forceinline__ int32_t peer() const
  {
    return (int32_t)(rest.high >> 32);
  }
  __device__ __forceinline__ tt_byte *slot(uint64_t step) const
  {
    return (tt_byte *)places.low + (uint32_t)(step % TT_SLOTS) * slot_bytes() + TT_SLOT_HEADER;
  }
  __device__ __forceinline__ bool has_credit(uint64_t step) const
  {
    uint64_t seen = rest.low;
    if (seen + TT_SLOTS <= step) home->seen = seen = tt_load_relaxed(head());
    return seen + TT_SLOTS > step;
  }
};

__device__ __forceinline__ uint32_t short_index(const tt_cuda_short_channel *channel, uint32_t number)
{
  return ((const uint32_t *)(channel + 1))[number];
}

/* Where an entry's chunk lies in this rank's memory. */
__device__ __forceinline__ tt_byte *short_place(const tt_cuda_work *work, const tt_cuda_short_channel *channel,
                                                const tt_cuda_short_entry &entry, uint32_t *bytes)
{
  bool output = entry.flags & TT_CUDA_SHORT_OUTPUT;
  uint64_t at = (uint64_t)entry.part * channel->part, share = channel->share;
  if (at > share) at = share;
  uint64_t left = share - at;
  *bytes = left < channel->part ? (uint32_t)left : channel->part;
  if (!(entry.flags & TT_CUDA_SHORT_LOCAL)) return NULL;
  tt_byte *local = (output ? channel->output : channel->input) + at;
  if (entry.row != 0) local += entry.row * work->strides[output ? TT_OUTPUT : TT_INPUT] * work->element_bytes;
  return local;
}

/* In LL each slot is rewritten when flags have gone round. */
template <int PROTOCOL> __device__ __forceinline__ bool short_is_cleaned(uint64_t step)
{
  return PROTOCOL == TT_PROTO_LL && (step & tt_ll::CLEAN_MASK) == tt_ll::CLEAN_MASK;
}

/* What is left to do for a connection: its next step, and, for a receiving end that tells it at the end, the counter
 * that says so. */
struct short_end {
  tt_cuda_conn *conn;
  uint64_t *head;
  uint64_t next;
};

/* A receiving end tells its sender at the end of a work what slots are empty, or, which costs no time, at the beginning
 * of its next one: kernels end when all that they stored has arrived. A short work uses no more than half of the slots,
 * so those of one may stay untold while the next one is sent, and nobody waits for that but who is ahead by a work. */
template <typename E>
static __device__ __forceinline__ void tell_empty(bool tells, const E &entry, const short_conn &conn, short_end *end)
{
  bool receives = tt_is_receive(entry.role);
  if (receives && !tells && (entry.flags & TT_ENTRY_FIRST)) tt_store_relaxed(conn.head(), conn.step());
  if (entry.flags & TT_CUDA_SHORT_LAST)
    *end = {conn.home, receives && tells ? conn.head() : NULL, conn.step() + entry.uses_before + 1};
}

/* Notes an end for waits and failures. */
static __device__ __forceinline__ void note_end(uint32_t number, const short_conn &conn)
{
  tt_end &end = block.ends[number];
  end.head = conn.head();
  end.tail = conn.tail();
  end.slot_bytes = conn.slot_bytes();
  end.peer = conn.peer();
}

/* Resolves an entry; returns whether something is due that fast ways leave out. */
template <int PROTOCOL>
static __device__ __forceinline__ bool
resolve_short(const tt_cuda_short *list, const tt_cuda_work *work, const tt_cuda_short_channel *channel,
              const tt_cuda_short_entry &from, const short_conn &conn, tt_entry *to, short_end *end_of)
{
  bool slow = false;
  tt_entry e;
  e.local = short_place(work, channel, from, &e.bytes);
  e.role = from.role;
  e.flags = from.flags & (TT_ENTRY_FIRST | TT_ENTRY_SCALED);
  e.conn = from.conn;
  e.step = 0;
  e.flag = 0;
  e.slot = e.local;
  if (from.flags & TT_CUDA_SHORT_MESSAGE) {
    e.step = conn.step() + from.uses_before;
    e.flag = tt_flag_of(e.step);
    e.slot = conn.slot(e.step);
    note_end(from.conn, conn);
    tell_empty(list->flags & TT_CUDA_SHORT_TELLS, from, conn, end_of);
    if (tt_is_send(e.role) && !conn.has_credit(e.step)) e.flags |= TT_ENTRY_NO_CREDIT, slow = true;
    slow |= short_is_cleaned<PROTOCOL>(e.step);
  }
  *to = e;
  return slow || (e.flags & TT_ENTRY_SCALED) != 0;
}

/* Everything that a step may need; for who is not in a hurry. */
template <typename P>
static __device__ __noinline__ void run_short_strand(const tt_group group, const tt_cuda_short_step *from,
                                                     uint32_t nsteps, const tt_reduce_rule rule)
{
  bool serves = group.warp() == group.warps() - 1;
#pragma unroll 1
  for (uint32_t r = 0; r < nsteps; r++, from++) {
    if (from->opcode != TT_OP_DATA) {
      run_semaphore(group, from->opcode, from->first);
      continue;
    }
    const tt_step step(block.entries + from->first, from->nsends, from->ninputs, from->noutputs, from->nreceives,
                       (from->flags & TT_FLAG_FINAL) != 0);
    bool credit = true;
    P::prepare(group, step);
#pragma unroll 1
    for (const tt_entry *e = step.sends; e < step.receives; e++)
      if (e->flags & TT_ENTRY_NO_CREDIT) credit &= tt_wait_credit(e);
    credit = __all_sync(0xffffffffu, credit);
    if (serves)
      tt_serve(group.lane(), step);
    else if (credit)
      tt_run_data<P, element>(group.thread, tt_data_threads(group), step, rule);
  }
}

/* The same where nothing is due but data: see lean.cuh. */
template <typename U>
static __device__ __forceinline__ void run_lean(const tt_cuda_short_step *from, uint32_t nsteps,
                                                const tt_reduce_rule &rule)
{
  const tt_warps warps = {threadIdx.x / 32, blockDim.x / 32 - 1};
  if (warps.mine < warps.count) {
#pragma unroll 1
    for (uint32_t r = 0; r < nsteps; r++) tt_lean_step<U, element>(warps, from[r], rule);
  } else {
#pragma unroll 1
    for (uint32_t r = 0; r < nsteps; r++)
      tt_serve(threadIdx.x % 32, tt_step(block.entries + from[r].first, from[r].nsends, from[r].ninputs,
                                         from[r].noutputs, from[r].nreceives, false));
  }
}

#endif
