/* The kernels of a data type (TT_CUDA_DATATYPE): one a protocol for any works, and for short ones one for LL and two
 * for LL128, and one for mapped ones (enum tt_cuda_form). Collectives that only move data use those of ncclUint8. */
#include "kernels/cuda/mapped.cuh"
#include "kernels/cuda/short.cuh"

template <int PROTOCOL>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_programs(const __grid_constant__ tt_cuda_launch launch)
{
  run_items<PROTOCOL>(launch);
}

/* P: the protocol; U: its way in a hurry (lean.cuh). */
template <int PROTOCOL, typename P, typename U>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_short(const __grid_constant__ tt_cuda_launch launch)
{
  const uint32_t *words = launch.words;
  uint32_t number = blockIdx.x;
  if (launch.nitems > 0) { /* several works: together.c */
    uint32_t item = launch.words[blockIdx.x];
    words += 4 * (item & 0xffff);
    number = item >> 16;
  }
  const tt_cuda_short *list = (const tt_cuda_short *)words;
  const tt_cuda_work *work = (const tt_cuda_work *)(words + TT_CUDA_SHORT_WORK);
  const tt_cuda_short_channel *channel =
      (const tt_cuda_short_channel *)(words + 4 * (list->channels + number * list->channel_quads));
  short_end end = {NULL, NULL, 0};
  bool slow = false;
  if (threadIdx.x < list->nentries)
    slow = resolve_short<PROTOCOL>(launch, work, channel, words + 4 * list->entries, block.entries + threadIdx.x, &end);
  uint32_t from_end = blockDim.x - 1 - threadIdx.x; /* the last warp has the least to do */
  if (from_end == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = launch.mapped;
    block.claim = launch.claim;
    block.channel_index = number;
  }
  if (from_end < TT_CUDA_MAX_SEMAPHORES) block.semaphores[from_end] = 0;
  if (from_end < sizeof(struct tt_signature) / 4 + 2)
    ((uint32_t *)&block.work.signature)[from_end] = ((const uint32_t *)&work->signature)[from_end];
  slow = __syncthreads_or(slow || list->nstrands > 1 || work->divide_result);
  if (end.conn != NULL) end.conn->step = end.next; /* all have read it */

  const tt_reduce_rule rule = {work->scale, work->divisor, work->op, work->divide_result != 0};
  const tt_cuda_short_step *steps = (const tt_cuda_short_step *)(work + 1);
  if (!slow) {
    run_lean<U>(steps, list->nsteps, rule);
  } else {
    tt_group group;
    group.strands = list->nstrands;
    group.threads = list->strand_threads;
    group.index = threadIdx.x / group.threads;
    group.thread = threadIdx.x - group.index * group.threads;
    uint32_t first = list->first_step[group.index];
    if (group.index < group.strands)
      run_short_strand<P>(group, steps + first, list->first_step[group.index + 1] - first, rule);
  }
  if (__syncthreads_or(tt_aborted())) return;
  if (end.head != NULL) tt_store_relaxed(end.head, end.next);
}

static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_mapped(const __grid_constant__ tt_cuda_launch launch)
{
  const tt_cuda_short *list = (const tt_cuda_short *)launch.words;
  const tt_cuda_work *work = (const tt_cuda_work *)(launch.words + TT_CUDA_SHORT_WORK);
  const tt_cuda_short_channel *channel =
      (const tt_cuda_short_channel *)(launch.words + 4 * (list->channels + blockIdx.x * list->channel_quads));
  short_end end = {NULL, NULL, 0};
  uint32_t from_end = blockDim.x - 1 - threadIdx.x; /* others resolve meanwhile */
  if (from_end == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = launch.mapped;
    block.claim = launch.claim;
    block.channel_index = blockIdx.x;
  }
  if (from_end < sizeof(struct tt_signature) / 4 + 2)
    ((uint32_t *)&block.work.signature)[from_end] = ((const uint32_t *)&work->signature)[from_end];
  if (threadIdx.x < list->nentries) resolve_mapped(launch, work, channel, list, block.entries + threadIdx.x, &end);
  __syncthreads();
  if (end.conn != NULL) end.conn->step = end.next; /* all have read it */
  const tt_reduce_rule rule = {work->scale, work->divisor, work->op, work->divide_result != 0};
  if (!run_mapped<element>((const tt_cuda_short_step *)(work + 1), list->nsteps, rule)) return;
  if (end.head != NULL) tt_store_relaxed(end.head, end.next);
}

#define TT_CUDA_PASTE(a, b) a##b
#define TT_CUDA_NAME(number) TT_CUDA_PASTE(tt_cuda_kernel_, number)
extern "C" const void *TT_CUDA_NAME(TT_CUDA_DATATYPE)(int protocol, int form)
{
  if (protocol == TT_PROTO_SIMPLE && form == TT_CUDA_FORM_MAPPED) return (const void *)tt_run_mapped;
  if (protocol == TT_PROTO_SIMPLE) return (const void *)tt_run_programs<TT_PROTO_SIMPLE>;
  if (protocol == TT_PROTO_LL)
    return form == TT_CUDA_FORM_ANY ? (const void *)tt_run_programs<TT_PROTO_LL>
                                    : (const void *)tt_run_short<TT_PROTO_LL, tt_ll, tt_lean_ll>;
  if (form == TT_CUDA_FORM_DEEP) return (const void *)tt_run_short<TT_PROTO_LL128, tt_ll128, tt_lean_ll128<true>>;
  return form == TT_CUDA_FORM_ANY ? (const void *)tt_run_programs<TT_PROTO_LL128>
                                  : (const void *)tt_run_short<TT_PROTO_LL128, tt_ll128, tt_lean_ll128<false>>;
}
