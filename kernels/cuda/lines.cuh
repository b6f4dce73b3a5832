/* What LL and LL128 share: line 0 of each message, and who deals with it.
 *
 * The last warp of a group is its service warp: it writes headers and lines 0 of what is sent and looks at lines 0 of
 * what is received, so that the others do nothing but data. A line 0 has 16 bytes, stored at once, in both protocols:
 * {data, flag, data, flag}. */
#ifndef TT_KERNELS_CUDA_LINES_CUH
#define TT_KERNELS_CUDA_LINES_CUH

#include "kernels/cuda/block.cuh"

/* A group without its service warp. */
__device__ __forceinline__ int tt_data_threads(const tt_group &group)
{
  return group.threads - 32;
}

static __device__ __noinline__ bool tt_wait_line(const tt_entry *entry, uint64_t *word)
{
  tt_wait wait;
  for (;;) {
    uint4 v = tt_load_line(entry->slot);
    if (v.y == entry->flag && v.w == entry->flag) {
      *word = v.x | (uint64_t)v.z << 32;
      return true;
    }
    if (!wait.goes_on(block.ends[entry->conn].peer, false)) return false;
  }
}

/* Waits for line 0 of a message, which must be what it is to be. The header comes about when line 0 does. */
static __device__ __noinline__ void tt_check_line(const tt_entry *entry)
{
  uint64_t word;
  if (!tt_wait_line(entry, &word) || word == tt_first_word(entry)) return;
#pragma unroll 1
  for (uint64_t start = tt_now_ns(); tt_now_ns() - start < 1000000;) {
  }
  tt_wrong_message(entry);
}

/* One lane an operand. */
static __device__ __noinline__ void tt_serve(int lane, const tt_step step)
{
  uint32_t n = step.operands();
#pragma unroll 1
  for (uint32_t k = lane; k < n; k += 32) {
    const tt_entry *entry = step.sends + k;
    if (!tt_is_send(entry->role)) continue;
    if ((entry->flags & TT_ENTRY_NO_CREDIT) && !tt_wait_credit(entry)) continue;
    tt_store_line(entry->slot, tt_first_word(entry), entry->flag);
    tt_write_header(entry);
  }
#pragma unroll 1
  for (uint32_t k = lane; k < n; k += 32) {
    const tt_entry *entry = step.sends + k;
    if (tt_is_receive(entry->role)) tt_check_line(entry);
  }
  __syncwarp();
}

/* Stores nothing but data; all warps but the service warp. No two threads touch the same bytes of a chunk in different
 * repetitions, since a chunk's words are shared out in the same way each time: so there is no barrier between them. */
template <typename P, typename T>
static __device__ __forceinline__ void tt_run_data(int thread, int threads, const tt_step &step,
                                                   const tt_reduce_rule &rule)
{
#pragma unroll 1
  for (int k = 0; k < step.nsends; k++) P::template send<T>(thread, threads, step.sends + k, rule);
  if (step.ninputs > 0) P::template reduce<T>(thread, threads, step, rule);
#pragma unroll 1
  for (int k = 0; k < step.nreceives; k++) P::receive(thread, threads, step.receives + k);
}

#endif
