/* Short works (descriptor.h): a work that is a single batch. The host has resolved what it can, and one barrier and one
 * load from memory stand between the launch and the first word sent. All that a launch reads is in the kernel's
 * parameters. */
#ifndef TT_KERNELS_CUDA_SHORT_CUH
#define TT_KERNELS_CUDA_SHORT_CUH

#include "kernels/cuda/lean.cuh"
#include "kernels/cuda/programs.cuh"

/* What is left to do for a connection: its next step, and, for a receiving end, the counter that says so. */
struct short_end {
  tt_cuda_conn *conn;
  uint64_t *head;
  uint64_t next;
};

/* Resolves an entry; returns whether something is due that fast ways leave out. */
template <int PROTOCOL>
static __device__ __forceinline__ bool resolve_short(const tt_cuda_launch &launch, const tt_cuda_work *work,
                                                     const tt_cuda_short_channel *channel, const uint32_t *entries,
                                                     tt_entry *to, short_end *end_of)
{
  const tt_cuda_short_entry from = ((const tt_cuda_short_entry *)entries)[threadIdx.x];
  tt_cuda_conn *conn = NULL;
  tt_vector places = {}, counters = {}, rest = {}; /* of the connection's end, loaded at once */
  tt_entry e;
  if (from.flags & TT_CUDA_SHORT_MESSAGE) {
    conn = launch.conns + ((const uint32_t *)(channel + 1))[from.conn];
    places = tt_load_volatile(&conn->slots);
    counters = tt_load_volatile(&conn->tail);
    rest = tt_load_volatile(&conn->seen);
  }
  bool slow = false, output = from.flags & TT_CUDA_SHORT_OUTPUT;
  uint64_t at = (uint64_t)from.part * channel->part, share = channel->share;
  if (at > share) at = share;
  uint64_t left = share - at;
  e.bytes = left < channel->part ? (uint32_t)left : channel->part;
  e.role = from.role;
  e.flags = from.flags & (TT_ENTRY_FIRST | TT_ENTRY_SCALED);
  e.conn = from.conn;
  e.local = NULL;
  if (from.flags & TT_CUDA_SHORT_LOCAL) {
    e.local = (output ? channel->output : channel->input) + at;
    if (from.row != 0) e.local += from.row * work->strides[output ? TT_OUTPUT : TT_INPUT] * work->element_bytes;
  }
  e.step = counters.high + from.uses_before;
  e.flag = 0;
  e.slot = e.local;
  if (conn != NULL) {
    uint64_t *head = (uint64_t *)places.high, seen = rest.low;
    uint32_t slot_bytes = (uint32_t)rest.high;
    tt_end &end = block.ends[from.conn];
    end.head = head;
    end.slot_bytes = slot_bytes;
    end.peer = (int32_t)(rest.high >> 32);
    e.flag = tt_flag_of(e.step);
    e.slot = (tt_byte *)places.low + (uint32_t)(e.step % TT_SLOTS) * slot_bytes + TT_SLOT_HEADER;
    if (from.flags & TT_CUDA_SHORT_LAST) *end_of = {conn, tt_is_receive(e.role) ? head : NULL, e.step + 1};
    if (tt_is_send(e.role) && seen + TT_SLOTS <= e.step) {
      seen = tt_load_relaxed(head);
      conn->seen = seen;
      if (seen + TT_SLOTS <= e.step) e.flags |= TT_ENTRY_NO_CREDIT, slow = true;
    }
    if (PROTOCOL == TT_PROTO_LL && (e.step & tt_ll::CLEAN_MASK) == tt_ll::CLEAN_MASK) slow = true;
  }
  *to = e;
  return slow || (e.flags & TT_ENTRY_SCALED) != 0 || ((uintptr_t)e.local | e.bytes) % 8 != 0;
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
