/* What a block keeps in shared memory while it works on a channel, and how its threads wait.
 *
 * A block runs the strands of one channel of one work at a time. Its warps are divided among the strands: a strand's
 * warps are its *group*, which has a named barrier. Nothing is ever waited for without a look at the abort word. */
#ifndef TT_KERNELS_CUDA_BLOCK_CUH
#define TT_KERNELS_CUDA_BLOCK_CUH

#include "kernels/cuda/descriptor.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/memory.cuh"

/* An end of a connection while its channel is worked on. */
struct tt_end {
  tt_byte *slots;
  uint64_t *head, *tail;
  uint64_t step; /* at the beginning of the work */
  uint64_t seen; /* last seen of the counter that the other side moves */
  tt_cuda_conn *home;
  uint32_t slot_bytes;
  int32_t peer;
};

enum { TT_ENTRY_FIRST = 1, TT_ENTRY_SCALED = 2, TT_ENTRY_NO_CREDIT = 4 };

/* An operand of one repetition, resolved. */
struct tt_entry {
  tt_byte *local; /* memory of this rank, or NULL */
  uint64_t step;
  uint32_t bytes;
  uint16_t conn;
  uint8_t role;
  uint8_t flags;
};

struct tt_block {
  tt_cuda_work work;
  tt_cuda_channel channel;
  uint32_t conn_index[TT_CUDA_MAX_CONNS];
  tt_end ends[TT_CUDA_MAX_CONNS];
  tt_entry entries[TT_CUDA_ENTRIES];
  uint4 program[TT_CUDA_PROGRAM_BYTES / sizeof(uint4)];
  uint32_t semaphores[TT_CUDA_MAX_SEMAPHORES];
  uint32_t ready[TT_CUDA_MAX_STRANDS], worked[TT_CUDA_MAX_STRANDS]; /* Simple: repetitions, see simple.cuh */
  uint32_t abort;
  uint32_t channel_index;
  unsigned long long polled; /* when the abort word was last looked at, in ns */
  tt_cuda_mapped *mapped;
  uint32_t *claim;
};

/* A strand's warps. */
struct tt_group {
  tt_block *block;
  const tt_cuda_program *program;
  const tt_cuda_strand *strand;
  const tt_cuda_instruction *instructions;
  const tt_cuda_operand *operands;
  tt_entry *entries; /* this group's part */
  int index;         /* of the strand */
  int id;            /* of its barrier */
  int thread, threads;
  __device__ int warp() const
  {
    return thread / 32;
  }
  __device__ int warps() const
  {
    return threads / 32;
  }
  __device__ int lane() const
  {
    return thread % 32;
  }
  __device__ void sync() const
  {
    tt_barrier(id, threads);
  }
};

__device__ __forceinline__ bool tt_aborted(const tt_block *block)
{
  return *(volatile const uint32_t *)&block->abort != 0;
}

/* Looks at the mapped page, at most every 100 us a block, since each look crosses PCIe; notes a wait that lasts. */
static __device__ __noinline__ void tt_poll(tt_block *block, uint64_t *since, int peer, bool sending)
{
  uint64_t now = tt_now_ns();
  if (*since == 0) *since = now;
  if (now - *since > TT_CUDA_STALL_NS) {
    tt_cuda_mapped *mapped = block->mapped;
    const uint64_t *words = (const uint64_t *)&block->work.signature;
    for (unsigned i = 0; i < sizeof(struct tt_signature) / 8; i++)
      ((volatile uint64_t *)&mapped->stalled)[i] = words[i];
    *(volatile int32_t *)&mapped->stall_peer = peer;
    *(volatile uint32_t *)&mapped->stall_sending = sending;
    *(volatile uint32_t *)&mapped->stalls = (uint32_t)(now / TT_CUDA_STALL_NS);
  }
  unsigned long long last = *(volatile unsigned long long *)&block->polled;
  if (now - last < 100000 || atomicCAS(&block->polled, last, now) != last) return;
  if (*(volatile uint32_t *)&block->mapped->abort) *(volatile uint32_t *)&block->abort = 1;
}

/* One wait. */
struct tt_wait {
  uint64_t since = 0;
  uint32_t spins = 0;
  /* Whether to go on waiting for `peer`. */
  __device__ __forceinline__ bool goes_on(tt_block *block, int peer, bool sending)
  {
    if (tt_aborted(block)) return false;
    if ((++spins & 255) == 0) tt_poll(block, &since, peer, sending);
    return true;
  }
};

/* Ends the context's works because of what a peer sent. The first failure is kept. `got` are a signature's words, or
 * NULL. */
static __device__ __noinline__ void tt_fail(tt_block *block, uint32_t error, int peer, uint64_t expected,
                                            uint64_t bytes, const volatile uint64_t *got)
{
  *(volatile uint32_t *)&block->abort = 1;
  if (atomicExch(block->claim, 1) != 0) return;
  tt_cuda_mapped *mapped = block->mapped;
  const uint64_t *mine = (const uint64_t *)&block->work.signature;
  for (unsigned i = 0; i < sizeof(struct tt_signature) / 8; i++) {
    ((volatile uint64_t *)&mapped->mine)[i] = mine[i];
    ((volatile uint64_t *)&mapped->got)[i] = got ? got[i] : 0;
  }
  *(volatile int32_t *)&mapped->error_peer = peer;
  *(volatile uint32_t *)&mapped->error_channel = block->channel_index;
  *(volatile uint64_t *)&mapped->expected_bytes = expected;
  *(volatile uint64_t *)&mapped->got_bytes = bytes;
  tt_fence_system();
  *(volatile uint32_t *)&mapped->error = error;
  *(volatile uint32_t *)&mapped->abort = 1;
}

/* A slot of an end at a step: the payload, behind the header. */
__device__ __forceinline__ tt_byte *tt_slot(const tt_end &end, uint64_t step)
{
  return end.slots + (step % TT_SLOTS) * end.slot_bytes + TT_SLOT_HEADER;
}

/* Sender: waits until step `step` has a slot. */
__device__ __forceinline__ bool tt_wait_credit(tt_block *block, const tt_end &end, uint64_t step)
{
  tt_wait wait;
  while (tt_load_relaxed(end.head) + TT_SLOTS <= step)
    if (!wait.goes_on(block, end.peer, true)) return false;
  return true;
}

/* The instruction of a strand at a repetition of a loop. */
__device__ __forceinline__ const tt_cuda_instruction *tt_find_instruction(const tt_group &group, uint32_t repetition)
{
  const tt_cuda_instruction *instruction = group.instructions + group.strand->first_instruction;
  while (repetition >= instruction->first_repetition + instruction->repeat) instruction++;
  return instruction;
}

/* Resolves one operand; `repetition` counts from the beginning of the work. */
static __device__ __forceinline__ void tt_resolve(const tt_group &group, const tt_cuda_instruction *instruction,
                                                  uint32_t loop, uint32_t repetition, uint32_t number, tt_entry *entry)
{
  tt_block *block = group.block;
  const tt_cuda_operand operand = group.operands[instruction->first_operand + number];
  const tt_cuda_channel &channel = block->channel;
  uint32_t parts = group.program->parts;
  uint32_t chunk = operand.start;
  if (repetition != 0 && operand.stride != 0) chunk = (chunk + repetition * operand.stride) % operand.modulo;
  uint32_t row = 0, part = chunk;
  if (chunk >= parts) {
    row = chunk / parts;
    part = chunk - row * parts;
  }
  uint32_t length = loop + 1 == channel.loops ? channel.last_chunk : channel.chunk;
  uint64_t at = channel.lo + (uint64_t)loop * parts * channel.chunk + (uint64_t)part * length;
  if (at > channel.hi) at = channel.hi;
  uint64_t left = channel.hi - at;
  uint32_t element = block->work.element_bytes;
  tt_entry e;
  e.bytes = (left < length ? (uint32_t)left : length) * element;
  e.role = operand.role;
  e.conn = operand.conn;
  e.flags = 0;
  e.step = 0;
  e.local = NULL;
  if (operand.role != TT_CUDA_IN_RECV && operand.role != TT_CUDA_OUT_SEND) {
    uint64_t element_at;
    if (operand.buffer >= TT_SCRATCH)
      element_at = channel.scratch_lo + row * block->work.strides[2] + (uint64_t)part * channel.chunk;
    else
      element_at = row * block->work.strides[operand.buffer] + at;
    e.local = block->work.buffers[operand.buffer] + element_at * element;
    if (operand.buffer == TT_INPUT && block->work.scale_inputs) e.flags |= TT_ENTRY_SCALED;
  }
  if (operand.role != TT_CUDA_IN_LOCAL && operand.role != TT_CUDA_OUT_LOCAL) {
    tt_end &end = block->ends[operand.conn];
    uint64_t use = (uint64_t)loop * operand.uses_a_loop + operand.uses_before + repetition;
    e.step = end.step + use;
    if (use == 0) e.flags |= TT_ENTRY_FIRST;
    bool sends = operand.role == TT_CUDA_MOVE_SEND || operand.role == TT_CUDA_OUT_SEND;
    if (sends && end.seen + TT_SLOTS <= e.step) {
      uint64_t head = tt_load_relaxed(end.head);
      end.seen = head; /* several threads may write: each a value that was true */
      end.home->seen = head;
      if (head + TT_SLOTS <= e.step) e.flags |= TT_ENTRY_NO_CREDIT;
    }
  }
  *entry = e;
}

/* A repetition as its entries lie. */
struct tt_step {
  const tt_cuda_instruction *instruction;
  const tt_entry *sends, *inputs, *outputs, *receives;
  __device__ tt_step(const tt_cuda_instruction *i, const tt_entry *entries)
      : instruction(i), sends(entries), inputs(sends + i->nsends), outputs(inputs + i->ninputs),
        receives(outputs + i->noutputs)
  {
  }
};

/* What every first message of an operation carries on a connection, and the others. */
__device__ __forceinline__ uint64_t tt_first_word(const tt_block *block, const tt_entry &entry)
{
  uint64_t bytes = entry.bytes;
  return entry.flags & TT_ENTRY_FIRST ? block->work.signature_hash ^ bytes * 0x9e3779b97f4a7c15ull : bytes;
}

/* The header of a message; `lane` 0 to 3 write what is due. Only the first message of an operation carries the
 * signature. */
__device__ __forceinline__ void tt_write_header(const tt_block *block, tt_byte *payload, const tt_entry &entry,
                                                int lane)
{
  tt_byte *header = payload - TT_SLOT_HEADER;
  if (lane == 0) tt_store_volatile(header, entry.bytes, entry.step);
  if (lane > 0 && lane < 3 && (entry.flags & TT_ENTRY_FIRST)) {
    const uint64_t *words = (const uint64_t *)&block->work.signature + 2 * (lane - 1);
    tt_store_volatile(header + 16 * lane, words[0], words[1]);
  }
}

/* Receiver: a first message whose header is complete. */
static __device__ __noinline__ void tt_wrong_message(tt_block *block, const tt_end &end, const tt_entry &entry,
                                                     const tt_byte *payload)
{
  const volatile uint64_t *header = (const volatile uint64_t *)(payload - TT_SLOT_HEADER);
  bool first = entry.flags & TT_ENTRY_FIRST;
  tt_fail(block, first ? TT_CUDA_WRONG_SIGNATURE : TT_CUDA_WRONG_BYTES, end.peer, entry.bytes, header[0],
          first ? header + 2 : NULL);
}

static_assert(sizeof(struct tt_signature) == 32, "the header's signature is written in two vectors");

#endif
