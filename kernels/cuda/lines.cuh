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

/* One lane an operand. */
static __device__ __noinline__ void tt_serve(const tt_group &group, const tt_step &step)
{
  uint32_t n = tt_operands(step.instruction);
#pragma unroll 1
  for (uint32_t k = group.lane(); k < n; k += 32) {
    const tt_entry *entry = step.sends + k;
    if (!tt_is_send(entry->role)) continue;
    if ((entry->flags & TT_ENTRY_NO_CREDIT) && !tt_wait_credit(entry)) continue;
    tt_store_line(entry->slot, tt_first_word(entry), entry->flag);
    tt_write_header(entry);
  }
#pragma unroll 1
  for (uint32_t k = group.lane(); k < n; k += 32) {
    const tt_entry *entry = step.sends + k;
    uint64_t word;
    if (!tt_is_receive(entry->role) || !tt_wait_line(entry, &word) || word == tt_first_word(entry)) continue;
      /* The header comes about when line 0 does. */
#pragma unroll 1
    for (uint64_t start = tt_now_ns(); tt_now_ns() - start < 1000000;) {
    }
    tt_wrong_message(entry);
  }
  __syncwarp();
}

#endif
