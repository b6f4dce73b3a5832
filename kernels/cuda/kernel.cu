/* The kernels: one for each data type (TT_CUDA_DATATYPE) and protocol. Collectives that only move data use those of
 * ncclUint8. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ll.cuh"
#include "kernels/cuda/ll128.cuh"
#include "kernels/cuda/simple.cuh"

typedef typename tt_datatype<TT_CUDA_DATATYPE>::type element;

/* Repetitions that are resolved at once. LL and LL128 give slots back only behind the last of them: half of a FIFO, so
 * that the other end can go on meanwhile. */
enum { LL_TOGETHER = TT_SLOTS / 2, SIMPLE_TOGETHER = 32 };

static_assert(sizeof(tt_cuda_work) % 16 == 0 && sizeof(tt_cuda_channel) % 16 == 0 && sizeof(tt_end) % 8 == 0,
              "works and channels are copied by words and lie at multiples of four");

/* Posts that the slots of messages received in repetitions [0, n) are free. */
template <typename STEP>
static __device__ __forceinline__ void give_back(const tt_group &group, int n, int most, const STEP &step_of)
{
  for (int e = group.thread; e < n * most; e += group.threads) {
    int r = e / most, k = e - r * most;
    if (k >= tt_simple::operands(step_of(r).instruction)) continue;
    const tt_entry &entry = group.entries[e];
    if (!tt_simple::is_receive(entry.role)) continue;
    bool last = true; /* of these repetitions on this connection */
    for (int later = r + 1; later < n && last; later++) {
      tt_step step = step_of(later);
      int count = tt_simple::operands(step.instruction);
      for (int i = 0; i < count; i++)
        if (step.sends[i].conn == entry.conn && tt_simple::is_receive(step.sends[i].role)) last = false;
    }
    if (last) tt_store_relaxed(group.block->ends[entry.conn].head, entry.step + 1);
  }
}

template <typename P, typename STEP>
static __device__ __forceinline__ void run_lines(const tt_group &group, const tt_reduce_rule &rule, int n,
                                                 const STEP &step_of)
{
  for (int r = 0; r < n; r++) {
    tt_step step = step_of(r);
    const tt_cuda_instruction &i = *step.instruction;
    if (r > 0) group.sync(); /* what a thread wrote before, another may read now */
    for (int k = 0; k < i.nsends; k++) P::begin_send(group, step.sends[k]);
    for (int k = 0; k < i.noutputs; k++)
      if (step.outputs[k].role == TT_CUDA_OUT_SEND) P::begin_send(group, step.outputs[k]);
    bool waits = false;
    for (int k = 0; k < i.nsends; k++) waits |= (step.sends[k].flags & TT_ENTRY_NO_CREDIT) != 0;
    for (int k = 0; k < i.noutputs; k++) waits |= (step.outputs[k].flags & TT_ENTRY_NO_CREDIT) != 0;
    /* Without credit the slots must not be touched. All threads go on to the barriers all the same. */
    if (waits && tt_aborted(group.block)) continue;
    for (int k = 0; k < i.nsends; k++) P::template send<element>(group, step.sends[k], rule);
    if (i.ninputs > 0) P::template reduce<element>(group, step, rule);
    for (int k = 0; k < i.nreceives; k++) P::receive(group, step.receives[k]);
    /* Line 0 of each message: by the last warp, which has the least to do. */
    if (group.warp() == group.warps() - 1) {
      for (int k = 0; k < i.ninputs; k++)
        if (step.inputs[k].role == TT_CUDA_IN_RECV) P::check_receive(group, step.inputs[k]);
      for (int k = 0; k < i.nreceives; k++) P::check_receive(group, step.receives[k]);
    }
  }
}

/* SIGNAL and WAIT: all that the strand did before is visible to the strand that waits. */
static __device__ __forceinline__ void run_semaphore(const tt_group &group, const tt_cuda_instruction *instruction)
{
  tt_block *block = group.block;
  uint32_t *semaphore = &block->semaphores[instruction->semaphore];
  group.sync();
  if (group.thread == 0) {
    __threadfence_block();
    if (instruction->opcode == TT_OP_SIGNAL) {
      atomicAdd(semaphore, 1);
    } else {
      tt_wait wait;
      while (*(volatile uint32_t *)semaphore == 0)
        if (!wait.goes_on(block, -1, false)) break;
      if (!tt_aborted(block)) atomicSub(semaphore, 1);
      __threadfence_block();
    }
  }
  group.sync();
}

/* How many repetitions from `repetition` on are data, at most `limit`. */
static __device__ __forceinline__ int count_data(const tt_group &group, uint32_t repetition, uint32_t limit)
{
  uint32_t n = 0;
  while (n < limit) {
    const tt_cuda_instruction *instruction = tt_find_instruction(group, repetition);
    if (instruction->opcode != TT_OP_DATA) break;
    n += instruction->first_repetition + instruction->repeat - repetition;
    repetition = instruction->first_repetition + instruction->repeat;
    if (repetition == group.strand->repetitions) repetition = 0;
  }
  return n < limit ? n : limit;
}

template <int PROTOCOL>
static __device__ __forceinline__ void run_strand(const tt_group &group, int workers_barrier, uint32_t room)
{
  tt_block *block = group.block;
  const tt_cuda_work &work = block->work;
  const tt_reduce_rule rule = {work.scale, work.divisor, work.op, work.divide_result != 0};
  uint32_t reps = group.strand->repetitions, total = block->channel.loops * reps, most = group.strand->most_operands;
  uint32_t together = PROTOCOL == TT_PROTO_SIMPLE ? SIMPLE_TOGETHER : LL_TOGETHER;
  if (most > 0 && together > room / most) together = room / most;
  uint32_t loop = 0, repetition = 0;
  for (uint32_t done = 0; done < total;) {
    const tt_cuda_instruction *instruction = tt_find_instruction(group, repetition);
    uint32_t n = 1;
    if (instruction->opcode != TT_OP_DATA) {
      run_semaphore(group, instruction);
      if (tt_barrier_any(group.id, group.threads, tt_aborted(block))) return;
    } else {
      n = count_data(group, repetition, total - done < together ? total - done : together);
      if (done > 0) group.sync(); /* the entries of the repetitions before are in use no more */
      for (uint32_t e = group.thread; e < n * most; e += group.threads) {
        uint32_t r = e / most, number = e - r * most, l = loop, at = repetition + r;
        for (; at >= reps; at -= reps) l++;
        const tt_cuda_instruction *i = tt_find_instruction(group, at);
        if (number < (uint32_t)tt_simple::operands(i))
          tt_resolve(group, i, l, at - i->first_repetition, number, &group.entries[e]);
      }
      if (group.thread == 0) block->ready[group.index] = block->worked[group.index] = 0;
      group.sync();
      auto step_of = [&](int r) {
        uint32_t at = repetition + r;
        while (at >= reps) at -= reps;
        return tt_step(tt_find_instruction(group, at), group.entries + r * most);
      };
      if constexpr (PROTOCOL == TT_PROTO_SIMPLE)
        tt_simple::run<element>(group, rule, n, workers_barrier, step_of);
      else if constexpr (PROTOCOL == TT_PROTO_LL128)
        run_lines<tt_ll128>(group, rule, n, step_of);
      else
        run_lines<tt_ll>(group, rule, n, step_of);
      if (tt_barrier_any(group.id, group.threads, tt_aborted(block))) return;
      if (PROTOCOL != TT_PROTO_SIMPLE) give_back(group, n, most, step_of);
    }
    done += n;
    repetition += n;
    for (; repetition >= reps; repetition -= reps) loop++;
  }
}

/* Copies a work and one of its channels, and the program and the ends that they name, to shared memory. NULL: the work
 * has no such channel. */
static __device__ const tt_cuda_program *load_channel(tt_block *block, const tt_cuda_launch &launch, uint32_t work_quad,
                                                      uint32_t channel)
{
  const uint32_t *words = launch.blob ? launch.blob : launch.words;
  const uint32_t *work = words + 4 * work_quad;
  for (uint32_t i = threadIdx.x; i < sizeof(tt_cuda_work) / 4; i += blockDim.x) ((uint32_t *)&block->work)[i] = work[i];
  __syncthreads();
  if (channel >= block->work.nchannels) return NULL;
  const uint32_t *from = words + 4 * (block->work.channels + channel * block->work.channel_quads);
  for (uint32_t i = threadIdx.x; i < sizeof(tt_cuda_channel) / 4; i += blockDim.x)
    ((uint32_t *)&block->channel)[i] = from[i];
  for (uint32_t i = threadIdx.x; i < TT_CUDA_MAX_SEMAPHORES; i += blockDim.x) block->semaphores[i] = 0;
  __syncthreads();
  const tt_cuda_program *program = block->channel.program;
  uint32_t nconns = 2 * block->channel.npeers;
  if (threadIdx.x < nconns) {
    uint32_t index = from[sizeof(tt_cuda_channel) / 4 + threadIdx.x];
    tt_end end = {};
    if (index != UINT32_MAX) {
      tt_cuda_conn *conn = launch.conns + index;
      end.slots = conn->slots;
      end.head = conn->head;
      end.tail = conn->tail;
      end.step = conn->step;
      end.seen = conn->seen;
      end.home = conn;
      end.slot_bytes = conn->slot_bytes;
      end.peer = conn->peer;
    }
    block->ends[threadIdx.x] = end;
  }
  const uint4 *source = (const uint4 *)program;
  uint32_t vectors = program->bytes / 16;
  if (program->bytes <= TT_CUDA_PROGRAM_BYTES) {
    for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) block->program[i] = source[i];
    program = (const tt_cuda_program *)block->program;
  }
  __syncthreads();
  return program;
}

/* What the connections' counters will be when this work is done: written early, since only later works read them. */
static __device__ __forceinline__ void advance_steps(const tt_group &group)
{
  const tt_block *block = group.block;
  const tt_cuda_instruction *first = group.instructions + group.strand->first_instruction;
  for (uint32_t i = 0; i < group.strand->ninstructions; i++) {
    if (first[i].opcode != TT_OP_DATA) continue;
    uint32_t n = tt_simple::operands(&first[i]);
    for (uint32_t k = group.thread; k < n; k += group.threads) {
      const tt_cuda_operand &operand = group.operands[first[i].first_operand + k];
      if (operand.role == TT_CUDA_IN_LOCAL || operand.role == TT_CUDA_OUT_LOCAL) continue;
      const tt_end &end = block->ends[operand.conn];
      end.home->step = end.step + (uint64_t)operand.uses_a_loop * block->channel.loops;
    }
  }
}

template <int PROTOCOL>
static __device__ __forceinline__ void run_channel(tt_block *block, const tt_cuda_program *program)
{
  int strands = program->nstrands, warps = blockDim.x / 32 / strands;
  int index = threadIdx.x / 32 / warps;
  if (index >= strands) return;
  tt_group group;
  group.block = block;
  group.program = program;
  group.strand = (const tt_cuda_strand *)(program + 1) + index;
  group.instructions = (const tt_cuda_instruction *)((const char *)program + program->instructions);
  group.operands = (const tt_cuda_operand *)((const char *)program + program->operands);
  group.entries = block->entries + index * (TT_CUDA_ENTRIES / strands);
  group.index = index;
  group.id = 1 + index;
  group.threads = 32 * warps;
  group.thread = threadIdx.x - index * group.threads;
  advance_steps(group);
  run_strand<PROTOCOL>(group, 1 + strands + index, TT_CUDA_ENTRIES / strands);
}

template <int PROTOCOL>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_programs(const __grid_constant__ tt_cuda_launch launch)
{
  __shared__ tt_block block;
  if (threadIdx.x == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = launch.mapped;
    block.claim = launch.claim;
  }
  const uint32_t *words = launch.blob ? launch.blob : launch.words;
  for (uint32_t i = blockIdx.x; i < launch.nitems; i += gridDim.x) {
    uint32_t item = words[i], channel = item >> 16;
    if (threadIdx.x == 0) block.channel_index = channel;
    for (uint32_t work = item & 0xffff; work != 0;) {
      const tt_cuda_program *program = load_channel(&block, launch, work, channel);
      if (program != NULL) run_channel<PROTOCOL>(&block, program);
      work = block.work.next;
      if (__syncthreads_or(tt_aborted(&block))) return;
    }
  }
}

#define TT_CUDA_PASTE(a, b) a##b
#define TT_CUDA_NAME(number) TT_CUDA_PASTE(tt_cuda_kernel_, number)
extern "C" const void *TT_CUDA_NAME(TT_CUDA_DATATYPE)(int protocol)
{
  if (protocol == TT_PROTO_SIMPLE) return (const void *)tt_run_programs<TT_PROTO_SIMPLE>;
  if (protocol == TT_PROTO_LL128) return (const void *)tt_run_programs<TT_PROTO_LL128>;
  return (const void *)tt_run_programs<TT_PROTO_LL>;
}
