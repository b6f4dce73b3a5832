/* Mapped works (descriptor.h): ranks read and write each other's user buffers, and messages without data say when.
 *
 * Such a message is a line of 16 bytes, as those of LL, in the last bytes of the slot's header, which nothing else
 * writes: {word, flag, word, flag}, stored at once, so that what says that it is there needs no fence of its own. The
 * counter of the connection moves too, without an order: it is for a peer that is in another operation and waits for
 * that. A fence stands between this block's data and a message that says it is done; there is one for all peers. */
#ifndef TT_KERNELS_CUDA_MAPPED_CUH
#define TT_KERNELS_CUDA_MAPPED_CUH

#include "kernels/cuda/short.cuh"

enum { TT_MAPPED_LINE = 16 }; /* bytes before the payload */

/* Resolves the entry of this thread. */
static __device__ __forceinline__ void resolve_mapped(const tt_cuda_launch &launch, const tt_cuda_work *work,
                                                      const tt_cuda_short_channel *channel, const tt_cuda_short *list,
                                                      tt_entry *to, short_end *end_of)
{
  const tt_cuda_short_entry from = ((const tt_cuda_short_entry *)(launch.words + 4 * list->entries))[threadIdx.x];
  bool output = from.flags & TT_CUDA_SHORT_OUTPUT;
  tt_entry e = {};
  e.role = from.role;
  e.flags = from.flags & (TT_ENTRY_FIRST | TT_ENTRY_SCALED);
  e.conn = from.conn;
  if (from.flags & TT_CUDA_SHORT_MESSAGE) {
    short_conn conn;
    conn.load(launch, short_index(channel, from.conn));
    e.step = conn.step() + from.uses_before;
    e.flag = tt_flag_of(e.step);
    e.slot = conn.slot(e.step);
    note_end(from.conn, conn);
    tell_empty(list->flags & TT_CUDA_SHORT_TELLS, from, conn, end_of);
    if (tt_is_send(e.role) && !conn.has_credit(e.step)) e.flags |= TT_ENTRY_NO_CREDIT;
  } else {
    uint64_t at = (uint64_t)from.part * channel->part, share = channel->share;
    if (at > share) at = share;
    uint64_t left = share - at;
    e.bytes = left < channel->part ? (uint32_t)left : channel->part;
    tt_byte *base = output ? channel->output : channel->input;
    if (from.flags & TT_CUDA_SHORT_MEMBER) {
      const tt_cuda_short_member *members = (const tt_cuda_short_member *)(launch.words + 4 * list->members);
      const tt_cuda_short_member member = members[from.conn];
      base = (output ? member.output : member.input) + (channel->output - work->buffers[TT_OUTPUT]);
    }
    e.local = base + at + from.row * work->strides[output ? TT_OUTPUT : TT_INPUT] * work->element_bytes;
    e.slot = e.local;
  }
  *to = e;
}

static __device__ __forceinline__ void tell(const tt_entry *entry, bool after_data)
{
  if ((entry->flags & TT_ENTRY_NO_CREDIT) && !tt_wait_credit(entry)) return;
  if (after_data) tt_fence_system();
  tt_store_line(entry->slot - TT_MAPPED_LINE, tt_first_word(entry), entry->flag);
  tt_write_header(entry);
  tt_store_relaxed(block.ends[entry->conn].tail, entry->step + 1);
}

/* Waits for a line. Where the counter has moved and no line comes, the peer is in another operation. */
static __device__ __noinline__ void hear(const tt_entry *entry)
{
  const tt_byte *line = entry->slot - TT_MAPPED_LINE;
  const tt_end &end = block.ends[entry->conn];
  uint64_t moved = 0; /* when it was seen that the counter has */
  tt_wait wait;
#pragma unroll 1
  for (uint32_t spins = 1;; spins++) {
    uint4 v = tt_load_line(line);
    bool here = v.y == entry->flag && v.w == entry->flag;
    if (here && (v.x | (uint64_t)v.z << 32) == tt_first_word(entry)) break;
    if (here || spins % 256 == 0) {
      uint64_t now = tt_now_ns();
      if (moved == 0 && (here || (int64_t)(tt_load_relaxed(end.tail) - entry->step) > 0)) moved = now;
      if (moved != 0 && now - moved > 1000000) {
        tt_wrong_message(entry);
        return;
      }
    }
    if (!wait.goes_on(end.peer, false)) return;
  }
  /* What the peer did before is seen by what this block loads from here on. */
  (void)tt_load_acquire((const uint64_t *)line);
}

/* False: aborted. */
template <typename T>
static __device__ __forceinline__ bool run_mapped(const tt_cuda_short_step *from, uint32_t nsteps,
                                                  const tt_reduce_rule &rule)
{
  bool after_data = false; /* and so it stays: another step's sends may be other threads' */
#pragma unroll 1
  for (uint32_t r = 0; r < nsteps; r++, from++) {
    const tt_step step(block.entries + from->first, from->nsends, from->ninputs, from->noutputs, from->nreceives,
                       (from->flags & TT_FLAG_FINAL) != 0);
    if (step.ninputs > 0) {
      tt_simple::work<T>(tt_step(step.inputs, 0, step.ninputs, step.noutputs, 0, step.final), rule, threadIdx.x,
                         blockDim.x);
      after_data = true;
      continue;
    }
    if (step.nsends > 0) {
      if (after_data) __syncthreads();
      if ((int)threadIdx.x < step.nsends) tell(step.sends + threadIdx.x, after_data);
    }
    if (step.nreceives > 0) {
      if ((int)threadIdx.x < step.nreceives) hear(step.receives + threadIdx.x);
      if (__syncthreads_or(tt_aborted())) return false;
    }
  }
  return !__syncthreads_or(tt_aborted());
}

#endif
