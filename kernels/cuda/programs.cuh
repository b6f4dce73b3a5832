/* Works of any length: a block loads a channel of a work, and its groups go through their strands, batch by batch: the
 * operands of some repetitions are resolved by all threads at once, then the repetitions are run. */
#ifndef TT_KERNELS_CUDA_PROGRAMS_CUH
#define TT_KERNELS_CUDA_PROGRAMS_CUH

#include <stddef.h>
#include "kernels/cuda/ll.cuh"
#include "kernels/cuda/ll128.cuh"
#include "kernels/cuda/simple.cuh"

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
      while (tt_shared_acquire(semaphore) == 0 && (there = wait.goes_on(-1, false))) {
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

/* A factor in memory may have been written on this stream just before. */
static __device__ __forceinline__ uint64_t tt_scale_of_work()
{
  const void *at = block.work.scale_at;
  return at == NULL ? block.work.scale : tt_scale_bits<element>(at);
}

/* S: the Simple protocol's roles. */
template <int PROTOCOL, typename S> static __device__ __forceinline__ void run_strand(const tt_group &group)
{
  const tt_reduce_rule rule = {tt_scale_of_work(), block.work.divisor, block.work.op, block.work.divide_result != 0};
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
        tt_simple::run<element, S>(group, rule, n, most);
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
      end.fifo = conn->fifo;
      block.ends[threadIdx.x] = end;
      /* What a short work before has emptied (short.cuh). */
      if (threadIdx.x >= here->npeers && end.fifo == NULL) tt_store_relaxed(end.head, end.step);
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
      uint64_t next = end.step + (uint64_t)operand->uses_a_loop * block.channel.loops;
      end.home->step = next;
      if (end.slots == NULL) *(volatile uint64_t *)(end.fifo + TT_SLOTS) = next; /* asks for slots */
    }
  }
}

template <int PROTOCOL, typename S> static __device__ __forceinline__ void run_channel()
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
  run_strand<PROTOCOL, S>(group);
}

/* Each work has a protocol of its own. Such works only move, and leave out what reduces in Simple: a kernel's stack has
 * room for all that it may call. */
enum { OWN_PROTOCOL = TT_NUM_PROTOCOLS };

struct tt_simple_moves : tt_simple {
  template <typename T>
  static __device__ __forceinline__ void work(const tt_step &step, const tt_reduce_rule &, int thread, int threads)
  {
#pragma unroll 1
    for (int k = 0; k < step.nsends; k++) copy(step.sends + k, step.sends + k, 1, thread, threads);
    if (step.ninputs > 0) copy(step.inputs, step.outputs, step.noutputs, thread, threads);
#pragma unroll 1
    for (int k = 0; k < step.nreceives; k++) copy(step.receives + k, step.receives + k, 1, thread, threads);
  }
};

template <int PROTOCOL, typename S> static __device__ __forceinline__ void run_in_protocol()
{
  if constexpr (PROTOCOL != OWN_PROTOCOL)
    run_channel<PROTOCOL, S>();
  else if (block.work.protocol == TT_PROTO_LL)
    run_channel<TT_PROTO_LL, S>();
  else if (block.work.protocol == TT_PROTO_LL128)
    run_channel<TT_PROTO_LL128, S>();
  else
    run_channel<TT_PROTO_SIMPLE, tt_simple_moves>();
}

/* All that a block has to do in a launch. */
template <int PROTOCOL, typename S = tt_simple>
static __device__ __forceinline__ void run_items(const tt_cuda_launch &launch)
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
      if (has_channel) run_in_protocol<PROTOCOL, S>();
      work = block.work.next;
      if (__syncthreads_or(tt_aborted())) return;
    }
  }
}

#endif
