/* The kernels: one for each data type (TT_CUDA_DATATYPE) and protocol. Collectives that only move data use those of
 * ncclUint8. */
#include <stddef.h>
#include <type_traits>
#include "kernels/cuda/lean.cuh"
#include "kernels/cuda/simple.cuh"

typedef typename tt_datatype<TT_CUDA_DATATYPE>::type element;

/* Repetitions that are resolved at once. LL and LL128 give slots back only behind the last of them: half of a FIFO, so
 * that the other end can go on meanwhile. */
enum { LL_TOGETHER = TT_SLOTS / 2, SIMPLE_TOGETHER = TT_BATCH };

static_assert(offsetof(tt_cuda_conn, head) == 8 && offsetof(tt_cuda_conn, tail) == 16 &&
                  offsetof(tt_cuda_conn, step) == 24 && offsetof(tt_cuda_conn, seen) == 32 &&
                  offsetof(tt_cuda_conn, slot_bytes) == 40 && offsetof(tt_cuda_conn, peer) == 44,
              "an end is loaded in vectors");
static_assert(sizeof(tt_cuda_conn) % 16 == 0, "and lies at their multiples");
static_assert(sizeof(tt_cuda_work) % 16 == 0 && sizeof(tt_cuda_channel) % 16 == 0,
              "works and channels are copied by words and lie at multiples of four");

/* LL and LL128: says that the slots of messages received in repetitions [0, n) are free. */
static __device__ __forceinline__ void give_back(const tt_group &group, uint32_t n, uint32_t most)
{
#pragma unroll 1
  for (uint32_t e = group.thread; e < n * most; e += group.threads) {
    const tt_entry *entry = group.entries() + e;
    if (!tt_is_receive(entry->role)) continue;
    bool last = true; /* of these repetitions on this connection */
#pragma unroll 1
    for (uint32_t later = (e / most + 1) * most; later < n * most; later++)
      last &= !tt_is_receive(group.entries()[later].role) || group.entries()[later].conn != entry->conn;
    if (last) tt_store_relaxed(block.ends[entry->conn].head, entry->step + 1);
  }
}

template <typename P>
static __device__ __forceinline__ void run_lines(const tt_group &group, const tt_reduce_rule &rule, uint32_t n,
                                                 uint32_t most)
{
  bool serves = group.warp() == group.warps() - 1;
#pragma unroll 1
  for (uint32_t r = 0; r < n; r++) {
    const tt_step step = tt_batch_step(group, r, most);
    P::prepare(group, step);
    if (serves) {
      tt_serve(group.lane(), step);
      continue;
    }
    bool credit = true;
#pragma unroll 1
    for (const tt_entry *e = step.sends; e < step.receives; e++)
      if (e->flags & TT_ENTRY_NO_CREDIT) credit &= tt_wait_credit(e);
    /* Without credit the slots must not be touched. All threads go on to the barriers all the same. */
    if (__any_sync(0xffffffffu, !credit)) continue;
    tt_run_data<P, element>(group.thread, tt_data_threads(group), step, rule);
  }
}

/* SIGNAL and WAIT: all that the strand did before is visible to the strand that waits. */
static __device__ __noinline__ void run_semaphore(const tt_group &group, int opcode, uint32_t index)
{
  uint32_t *semaphore = &block.semaphores[index];
  group.sync();
  if (group.thread == 0) {
    __threadfence_block();
    if (opcode == TT_OP_SIGNAL) {
      atomicAdd(semaphore, 1);
    } else {
      tt_wait wait;
      bool there = true;
      while (*(volatile uint32_t *)semaphore == 0 && (there = wait.goes_on(-1, false))) {
      }
      if (there) atomicSub(semaphore, 1);
      __threadfence_block();
    }
  }
  group.sync();
}

/* Resolves repetitions from `repetition` of `loop` on, as many as are data, at most `limit`; returns how many. */
static __device__ __forceinline__ uint32_t resolve_batch(const tt_group &group, uint32_t loop, uint32_t repetition,
                                                         uint32_t limit, uint32_t reps, uint32_t most)
{
  uint32_t n = 0, at = repetition;
#pragma unroll 1
  while (n < limit) {
    const tt_cuda_instruction *instruction = tt_instruction_here(tt_find_instruction(group, at));
    if (instruction->opcode != TT_OP_DATA) break;
    n += instruction->first_repetition + instruction->repeat - at;
    at = instruction->first_repetition + instruction->repeat;
    if (at == reps) at = 0;
  }
  if (n > limit) n = limit;
#pragma unroll 1
  for (uint32_t e = group.thread; e < n * most; e += group.threads) {
    uint32_t r = most > e ? 0 : e / most, number = e - r * most, l = loop;
    at = repetition + r;
#pragma unroll 1
    for (; at >= reps; at -= reps) l++;
    uint32_t index = tt_find_instruction(group, at);
    const tt_cuda_instruction *instruction = tt_instruction_here(index);
    if (number == 0) block.instructions[group.index][r] = (uint16_t)index;
    if (number < tt_operands(instruction))
      tt_resolve(instruction, l, at - instruction->first_repetition, number, group.entries() + e);
    else
      group.entries()[e].role = TT_CUDA_IN_LOCAL; /* nothing that is given back */
  }
  return n;
}

template <int PROTOCOL> static __device__ __forceinline__ void run_strand(const tt_group &group)
{
  const tt_reduce_rule rule = {block.work.scale, block.work.divisor, block.work.op, block.work.divide_result != 0};
  const tt_cuda_strand *strand = tt_strand_here(group);
  uint32_t reps = strand->repetitions, total = block.channel.loops * reps, most = strand->most_operands;
  uint32_t together = PROTOCOL == TT_PROTO_SIMPLE ? SIMPLE_TOGETHER : LL_TOGETHER;
  if (most * together > group.room()) together = group.room() / most;
  uint32_t loop = 0, repetition = 0;
#pragma unroll 1
  for (uint32_t done = 0; done < total;) {
    const tt_cuda_instruction *instruction = tt_instruction_here(tt_find_instruction(group, repetition));
    uint32_t n = 1;
    if (instruction->opcode != TT_OP_DATA) {
      run_semaphore(group, instruction->opcode, instruction->semaphore);
      if (tt_barrier_any(group.barrier(), group.threads, tt_aborted())) return;
    } else {
      if (done > 0) group.sync(); /* the entries of the repetitions before are in use no more */
      n = resolve_batch(group, loop, repetition, total - done < together ? total - done : together, reps, most);
      if (group.thread == 0) block.ready[group.index] = block.worked[group.index] = 0;
      group.sync();
      if constexpr (PROTOCOL == TT_PROTO_SIMPLE)
        tt_simple::run<element>(group, rule, n, most);
      else if constexpr (PROTOCOL == TT_PROTO_LL128)
        run_lines<tt_ll128>(group, rule, n, most);
      else
        run_lines<tt_ll>(group, rule, n, most);
      if (tt_barrier_any(group.barrier(), group.threads, tt_aborted())) return;
      if (PROTOCOL != TT_PROTO_SIMPLE) give_back(group, n, most);
    }
    done += n;
    repetition += n;
#pragma unroll 1
    for (; repetition >= reps; repetition -= reps) loop++;
  }
}

/* Copies a work and one of its channels, and the program and the ends that they name, to shared memory. False: the work
 * has no such channel. */
static __device__ __forceinline__ bool load_channel(const tt_cuda_launch &launch, uint32_t work_quad, uint32_t channel)
{
  const uint32_t *words = launch.blob ? launch.blob : launch.words;
  const uint32_t *work = words + 4 * work_quad;
  const uint16_t *places = (const uint16_t *)&((const tt_cuda_work *)work)->next;
  uint32_t nchannels = places[1], first = places[2], quads = places[3];
  const uint32_t *from = words + 4 * (first + channel * quads);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < sizeof(tt_cuda_work) / 4; i += blockDim.x) ((uint32_t *)&block.work)[i] = work[i];
  if (channel >= nchannels) return false;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < sizeof(tt_cuda_channel) / 4; i += blockDim.x)
    ((uint32_t *)&block.channel)[i] = from[i];
  const tt_cuda_channel *here = (const tt_cuda_channel *)from;
  const uint4 *program = (const uint4 *)here->program;
  uint32_t vectors = here->program_bytes / 16, nconns = 2 * here->npeers;
  if (threadIdx.x < nconns) {
    uint32_t index = from[sizeof(tt_cuda_channel) / 4 + threadIdx.x];
    if (index != UINT32_MAX) {
      tt_cuda_conn *conn = launch.conns + index;
      tt_end end;
      end.slots = conn->slots;
      end.head = conn->head;
      end.tail = conn->tail;
      end.step = conn->step;
      end.seen = conn->seen;
      end.home = conn;
      end.slot_bytes = conn->slot_bytes;
      end.peer = conn->peer;
      block.ends[threadIdx.x] = end;
    }
  }
  if (threadIdx.x < TT_CUDA_MAX_SEMAPHORES) block.semaphores[threadIdx.x] = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) block.program[i] = program[i];
  return true;
}

/* What the connections' counters will be when this work is done: written early, since only later works read them. */
static __device__ __noinline__ void advance_steps(const tt_group &group)
{
  const tt_cuda_strand *strand = tt_strand_here(group);
#pragma unroll 1
  for (uint32_t i = 0; i < strand->ninstructions; i++) {
    const tt_cuda_instruction *instruction = tt_instruction_here(strand->first_instruction + i);
    if (instruction->opcode != TT_OP_DATA) continue;
    uint32_t n = tt_operands(instruction);
#pragma unroll 1
    for (uint32_t k = group.lane(); k < n; k += 32) {
      const tt_cuda_operand *operand = tt_operand_here(instruction->first_operand + k);
      if (!tt_is_send(operand->role) && !tt_is_receive(operand->role)) continue;
      const tt_end &end = block.ends[operand->conn];
      end.home->step = end.step + (uint64_t)operand->uses_a_loop * block.channel.loops;
    }
  }
}

template <int PROTOCOL> static __device__ __forceinline__ void run_channel()
{
  int strands = tt_program_here()->nstrands, warp = threadIdx.x / 32;
  int warps = strands == 1 ? blockDim.x / 32 : blockDim.x / 32 / strands;
  int index = strands == 1 ? 0 : warp / warps;
  if (index >= strands) return;
  tt_group group;
  group.index = index;
  group.strands = strands;
  group.threads = 32 * warps;
  group.thread = threadIdx.x - index * group.threads;
  if (group.warp() == group.warps() - 1) advance_steps(group);
  run_strand<PROTOCOL>(group);
}

template <int PROTOCOL>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_programs(const __grid_constant__ tt_cuda_launch launch)
{
  if (threadIdx.x == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = launch.mapped;
    block.claim = launch.claim;
  }
  const uint32_t *words = launch.blob ? launch.blob : launch.words;
#pragma unroll 1
  for (uint32_t i = blockIdx.x; i < launch.nitems; i += gridDim.x) {
    uint32_t item = words[i], channel = item >> 16;
    if (threadIdx.x == 0) block.channel_index = channel;
#pragma unroll 1
    for (uint32_t work = item & 0xffff; work != 0;) {
      bool has_channel = load_channel(launch, work, channel);
      __syncthreads();
      if (has_channel) run_channel<PROTOCOL>();
      work = block.work.next;
      if (__syncthreads_or(tt_aborted())) return;
    }
  }
}

/* ---- Short works ---- */

/* A work that is a single batch (descriptor.h): the host has resolved what it can, and one barrier and one load from
 * memory stand between the launch and the first word sent. All that a launch reads is in the kernel's parameters. */

/* What is left to do for a connection: its next step, and, for a receiving end, the counter that says so. */
struct short_end {
  tt_cuda_conn *conn;
  uint64_t *head;
  uint64_t next;
};

/* Resolves an entry; returns whether something is due that fast ways leave out. */
template <int PROTOCOL>
static __device__ __forceinline__ bool resolve_short(const tt_cuda_launch &launch, const tt_cuda_work *work,
                                                     const tt_cuda_short_channel *channel, uint32_t entries,
                                                     tt_entry *to, short_end *end_of)
{
  const tt_cuda_short_entry from = ((const tt_cuda_short_entry *)(launch.words + 4 * entries))[threadIdx.x];
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

template <int PROTOCOL>
static __global__ void __launch_bounds__(TT_CUDA_MAX_THREADS, 1)
    tt_run_short(const __grid_constant__ tt_cuda_launch launch)
{
  typedef typename std::conditional<PROTOCOL == TT_PROTO_LL128, tt_ll128, tt_ll>::type protocol;
  const tt_cuda_short *list = (const tt_cuda_short *)launch.words;
  const tt_cuda_work *work = (const tt_cuda_work *)(launch.words + TT_CUDA_SHORT_WORK);
  const tt_cuda_short_channel *channel =
      (const tt_cuda_short_channel *)(launch.words + 4 * (list->channels + blockIdx.x * list->channel_quads));
  short_end end = {NULL, NULL, 0};
  bool slow = false;
  if (threadIdx.x < list->nentries)
    slow = resolve_short<PROTOCOL>(launch, work, channel, list->entries, block.entries + threadIdx.x, &end);
  uint32_t from_end = blockDim.x - 1 - threadIdx.x; /* the last warp has the least to do */
  if (from_end == 0) {
    block.abort = 0;
    block.polled = 0;
    block.mapped = launch.mapped;
    block.claim = launch.claim;
    block.channel_index = blockIdx.x;
  }
  if (from_end < TT_CUDA_MAX_SEMAPHORES) block.semaphores[from_end] = 0;
  if (from_end < sizeof(struct tt_signature) / 4 + 2)
    ((uint32_t *)&block.work.signature)[from_end] = ((const uint32_t *)&work->signature)[from_end];
  slow = __syncthreads_or(slow || list->nstrands > 1 || work->divide_result);
  if (end.conn != NULL) end.conn->step = end.next; /* all have read it */

  const tt_reduce_rule rule = {work->scale, work->divisor, work->op, work->divide_result != 0};
  const tt_cuda_short_step *steps = (const tt_cuda_short_step *)(work + 1);
  if (!slow) {
    run_lean<typename std::conditional<PROTOCOL == TT_PROTO_LL128, tt_lean_ll128, tt_lean_ll>::type>(
        steps, list->nsteps, rule);
  } else {
    tt_group group;
    group.strands = list->nstrands;
    group.threads = list->strand_threads;
    group.index = threadIdx.x / group.threads;
    group.thread = threadIdx.x - group.index * group.threads;
    uint32_t first = list->first_step[group.index];
    if (group.index < group.strands)
      run_short_strand<protocol>(group, steps + first, list->first_step[group.index + 1] - first, rule);
  }
  if (__syncthreads_or(tt_aborted())) return;
  if (end.head != NULL) tt_store_relaxed(end.head, end.next);
}

#define TT_CUDA_PASTE(a, b) a##b
#define TT_CUDA_NAME(number) TT_CUDA_PASTE(tt_cuda_kernel_, number)
extern "C" const void *TT_CUDA_NAME(TT_CUDA_DATATYPE)(int protocol, int is_short)
{
  if (protocol == TT_PROTO_SIMPLE) return (const void *)tt_run_programs<TT_PROTO_SIMPLE>;
  if (protocol == TT_PROTO_LL128)
    return is_short ? (const void *)tt_run_short<TT_PROTO_LL128> : (const void *)tt_run_programs<TT_PROTO_LL128>;
  return is_short ? (const void *)tt_run_short<TT_PROTO_LL> : (const void *)tt_run_programs<TT_PROTO_LL>;
}
