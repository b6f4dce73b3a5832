/* The kernels of a data type (TT_CUDA_DATATYPE): one a protocol for any works, and for short ones, exchanges and mapped
 * ones their own (enum tt_cuda_form). Collectives that only move data use those of ncclUint8.
 *
 * Each reads nothing but its parameters before it has waited for the grid before it, and lets the next one begin when
 * a warp of each block has done its part: sooner, the next one's blocks would take processors and do nothing. */
#include "kernels/cuda/exchange.cuh"
#include "kernels/cuda/mapped.cuh"

template <int PROTOCOL>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_programs(const __grid_constant__ tt_cuda_launch launch)
{
  tt_await_grid_before();
  run_items<PROTOCOL>(launch);
  tt_let_next_grid_begin();
}

#if TT_CUDA_DATATYPE == 1 /* ncclUint8: sends and receives */
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_mixed(const __grid_constant__ tt_cuda_launch launch)
{
  tt_await_grid_before();
  run_items<OWN_PROTOCOL>(launch);
  tt_let_next_grid_begin();
}
#endif

/* Where the words of this block's work lie, and its channel. */
static __device__ __forceinline__ const uint32_t *find_item(const tt_cuda_launch &launch, uint32_t *channel)
{
  *channel = blockIdx.x;
  if (launch.nitems == 0) return launch.words;
  uint32_t item = launch.words[blockIdx.x]; /* several works: together.c */
  *channel = item >> 16;
  return launch.words + 4 * (item & 0xffff);
}

/* P: the protocol; U: its way in a hurry (lean.cuh). */
template <int PROTOCOL, typename P, typename U>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_short(const __grid_constant__ tt_cuda_launch launch)
{
  uint32_t number;
  const uint32_t *words = find_item(launch, &number);
  const tt_cuda_short *list = (const tt_cuda_short *)words;
  const tt_cuda_work *work = (const tt_cuda_work *)(words + TT_CUDA_SHORT_WORK);
  const tt_cuda_short_channel *channel =
      (const tt_cuda_short_channel *)(words + 4 * (list->channels + number * list->channel_quads));
  short_end end = {NULL, NULL, 0};
  bool slow = false;
  tt_await_grid_before();
  if (threadIdx.x < list->nentries) {
    const tt_cuda_short_entry entry = ((const tt_cuda_short_entry *)(words + 4 * list->entries))[threadIdx.x];
    short_conn conn;
    if (entry.flags & TT_CUDA_SHORT_MESSAGE) conn.load(launch, short_index(channel, entry.conn));
    slow = resolve_short<PROTOCOL>(list, work, channel, entry, conn, block.entries + threadIdx.x, &end);
  }
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
  tt_let_next_grid_begin();
}

/* LAUNCH: with as many words as there are; a launch costs the host half a microsecond more for all that it can have. */
template <int PROTOCOL, typename U, typename LAUNCH>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1) tt_run_exchange(const __grid_constant__ LAUNCH given)
{
  const tt_cuda_launch &launch = (const tt_cuda_launch &)given;
  uint32_t at = 0, channel_at = launch.channels + blockIdx.x * launch.channel_quads;
  if (launch.nitems > 0) { /* several works: together.c */
    at = launch.words[blockIdx.x];
    channel_at = at >> 16;
    at &= 0xffff;
  }
  const tt_cuda_exchange *shape = (const tt_cuda_exchange *)(launch.words + 4 * at);
  const tt_exchange exchange = {launch, shape, (const tt_cuda_exchange_entry *)(shape + 1),
                                (const tt_cuda_exchange_channel *)(launch.words + 4 * channel_at)};
  const tt_warps warps = {threadIdx.x / 32, blockDim.x / 32 - 1};
  tt_await_grid_before();
  if (warps.mine < warps.count) {
    run_data<PROTOCOL, U>(exchange, warps);
    tt_let_next_grid_begin();
  } else {
    run_service<PROTOCOL, U>(exchange, warps);
  }
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
  tt_await_grid_before();
  if (threadIdx.x < list->nentries) resolve_mapped(launch, work, channel, list, block.entries + threadIdx.x, &end);
  __syncthreads();
  if (end.conn != NULL) end.conn->step = end.next; /* all have read it */
  const tt_reduce_rule rule = {work->scale, work->divisor, work->op, work->divide_result != 0};
  if (!run_mapped<element>((const tt_cuda_short_step *)(work + 1), list->nsteps, rule)) return;
  if (end.head != NULL) tt_store_relaxed(end.head, end.next);
  tt_let_next_grid_begin();
}

#define TT_CUDA_PASTE(a, b) a##b
#define TT_CUDA_NAME(number) TT_CUDA_PASTE(tt_cuda_kernel_, number)
extern "C" const void *TT_CUDA_NAME(TT_CUDA_DATATYPE)(int protocol, int form)
{
#if TT_CUDA_DATATYPE == 1
  if (form == TT_CUDA_FORM_MIXED) return (const void *)tt_run_mixed;
#endif
  if (protocol == TT_PROTO_SIMPLE)
    return form == TT_CUDA_FORM_MAPPED ? (const void *)tt_run_mapped : (const void *)tt_run_programs<TT_PROTO_SIMPLE>;
  bool lines128 = protocol == TT_PROTO_LL128;
  switch (form) {
  case TT_CUDA_FORM_ANY:
  case TT_CUDA_FORM_MIXED:
    return lines128 ? (const void *)tt_run_programs<TT_PROTO_LL128> : (const void *)tt_run_programs<TT_PROTO_LL>;
  case TT_CUDA_FORM_EXCHANGE_DEEP:
    if (lines128) return (const void *)tt_run_exchange<TT_PROTO_LL128, tt_lean_ll128<true>, tt_cuda_launch>;
    return (const void *)tt_run_exchange<TT_PROTO_LL, tt_lean_ll, tt_cuda_launch>;
  case TT_CUDA_FORM_EXCHANGE:
    return lines128 ? (const void *)tt_run_exchange<TT_PROTO_LL128, tt_lean_ll128<false>, tt_cuda_launch>
                    : (const void *)tt_run_exchange<TT_PROTO_LL, tt_lean_ll, tt_cuda_launch>;
  case TT_CUDA_FORM_BRIEF:
    return lines128 ? (const void *)tt_run_exchange<TT_PROTO_LL128, tt_lean_ll128<false>, tt_cuda_brief>
                    : (const void *)tt_run_exchange<TT_PROTO_LL, tt_lean_ll, tt_cuda_brief>;
  }
  return lines128 ? (const void *)tt_run_short<TT_PROTO_LL128, tt_ll128, tt_lean_ll128<false>>
                  : (const void *)tt_run_short<TT_PROTO_LL, tt_ll, tt_lean_ll>;
}
