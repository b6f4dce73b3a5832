/* What a block keeps in shared memory while it works on a channel, and how its threads wait.
 *
 * A block runs the strands of one channel of one work at a time. Its warps are divided among the strands: a strand's
 * warps are its *group*, which has named barriers. Nothing is ever waited for without a look at the abort word.
 *
 * Small messages take a few microseconds, of which fetching instructions is a large part, since most of them run once.
 * So what is not on the way of each word is kept out of line, and loops are not unrolled unless that is said. */
#ifndef TT_KERNELS_CUDA_BLOCK_CUH
#define TT_KERNELS_CUDA_BLOCK_CUH

/* Whether messages may have no pieces: nvls.cu. */
#ifndef TT_CUDA_TELLS
#define TT_CUDA_TELLS 0
#endif

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
  tt_conn_fifo *fifo; /* Simple: see tt_cuda_conn */
};

/* An operand of one repetition, resolved. What ways that are in a hurry need lies in front, for one load. */
struct alignas(16) tt_entry {
  tt_byte *slot; /* the message's payload; of a local operand what `local` is */
  uint32_t flag; /* LL's, also that of line 0 in LL128; 0 for local operands */
  uint8_t role;
  uint8_t flags;
  uint16_t conn;
  tt_byte *local; /* memory of this rank, or NULL */
  uint64_t step;
  uint32_t bytes;
  uint32_t pad[3];
};

enum { TT_BATCH = 32 }; /* repetitions resolved at once, at most */

struct tt_block {
  tt_cuda_work work;
  tt_cuda_channel channel;
  tt_end ends[TT_CUDA_MAX_CONNS];
  tt_entry entries[TT_CUDA_ENTRIES];
  uint4 program[TT_CUDA_PROGRAM_BYTES / sizeof(uint4)];
  uint16_t instructions[TT_CUDA_MAX_STRANDS][TT_BATCH]; /* that of each repetition resolved */
  uint32_t semaphores[TT_CUDA_MAX_SEMAPHORES];
  uint32_t ready[TT_CUDA_MAX_STRANDS], worked[TT_CUDA_MAX_STRANDS]; /* Simple: repetitions, see simple.cuh */
  uint32_t abort;
  uint32_t channel_index;
  unsigned long long polled; /* when the abort word was last looked at, in ns */
  tt_cuda_mapped *mapped;
  uint32_t *claim;
};

static __shared__ tt_block block;

/* A strand's warps. */
struct tt_group {
  int index; /* of the strand */
  int strands;
  int thread, threads;
  __device__ __forceinline__ int warp() const
  {
    return thread / 32;
  }
  __device__ __forceinline__ int warps() const
  {
    return threads / 32;
  }
  __device__ __forceinline__ int lane() const
  {
    return thread % 32;
  }
  /* Barrier 0 is the block's; each group has one for all its threads and one for its workers. */
  __device__ __forceinline__ int barrier() const
  {
    return 1 + index;
  }
  __device__ __forceinline__ int workers_barrier() const
  {
    return 1 + strands + index;
  }
  __device__ __forceinline__ void sync() const
  {
    tt_barrier(barrier(), threads);
  }
  /* This group's part of the entries. */
  __device__ __forceinline__ uint32_t room() const
  {
    return TT_CUDA_ENTRIES / strands;
  }
  __device__ __forceinline__ tt_entry *entries() const
  {
    return block.entries + index * room();
  }
};

__device__ __forceinline__ const tt_cuda_program *tt_program_here()
{
  return (const tt_cuda_program *)block.program;
}
__device__ __forceinline__ const tt_cuda_strand *tt_strand_here(const tt_group &group)
{
  return (const tt_cuda_strand *)(tt_program_here() + 1) + group.index;
}
__device__ __forceinline__ const tt_cuda_instruction *tt_instruction_here(uint32_t index)
{
  return (const tt_cuda_instruction *)((const char *)block.program + tt_program_here()->instructions) + index;
}
__device__ __forceinline__ const tt_cuda_operand *tt_operand_here(uint32_t index)
{
  return (const tt_cuda_operand *)((const char *)block.program + tt_program_here()->operands) + index;
}

__device__ __forceinline__ bool tt_aborted()
{
  return *(volatile const uint32_t *)&block.abort != 0;
}

/* Looks at the mapped page, at most every 100 us a block, since each look crosses PCIe; notes a wait that lasts.
 * `since`: when the wait was first seen here, 0 for not yet; returned. */
static __device__ __noinline__ uint64_t tt_poll(uint64_t since, int peer, bool sending)
{
  uint64_t now = tt_now_ns();
  if (since == 0) since = now;
  if (now - since > TT_CUDA_STALL_NS) {
    tt_cuda_mapped *mapped = block.mapped;
    const uint64_t *words = (const uint64_t *)&block.work.signature;
    for (unsigned i = 0; i < sizeof(struct tt_signature) / 8; i++)
      ((volatile uint64_t *)&mapped->stalled)[i] = words[i];
    *(volatile int32_t *)&mapped->stall_peer = peer;
    *(volatile uint32_t *)&mapped->stall_sending = sending;
    *(volatile uint32_t *)&mapped->stalls = (uint32_t)(now / TT_CUDA_STALL_NS);
  }
  unsigned long long last = *(volatile unsigned long long *)&block.polled;
  if (now - last < 100000 || atomicCAS(&block.polled, last, now) != last) return since;
  if (*(volatile uint32_t *)&block.mapped->abort) *(volatile uint32_t *)&block.abort = 1;
  return since;
}

/* One wait. */
struct tt_wait {
  uint64_t since = 0;
  uint32_t spins = 0;
  /* Whether to go on waiting for `peer`. */
  __device__ __forceinline__ bool goes_on(int peer, bool sending)
  {
    if (tt_aborted()) return false;
    if ((++spins & 255) == 0) since = tt_poll(since, peer, sending);
    return true;
  }
};

/* Ends the context's works because of what a peer sent. The first failure is kept. `got` are a signature's words, or
 * NULL. */
static __device__ __noinline__ void tt_fail(uint32_t error, int peer, uint64_t expected, uint64_t bytes,
                                            const volatile uint64_t *got)
{
  *(volatile uint32_t *)&block.abort = 1;
  if (atomicExch(block.claim, 1) != 0) return;
  tt_cuda_mapped *mapped = block.mapped;
  const uint64_t *mine = (const uint64_t *)&block.work.signature;
  for (unsigned i = 0; i < sizeof(struct tt_signature) / 8; i++) {
    ((volatile uint64_t *)&mapped->mine)[i] = mine[i];
    ((volatile uint64_t *)&mapped->got)[i] = got ? got[i] : 0;
  }
  *(volatile int32_t *)&mapped->error_peer = peer;
  *(volatile uint32_t *)&mapped->error_channel = block.channel_index;
  *(volatile uint64_t *)&mapped->expected_bytes = expected;
  *(volatile uint64_t *)&mapped->got_bytes = bytes;
  tt_fence_system();
  *(volatile uint32_t *)&mapped->error = error;
  *(volatile uint32_t *)&mapped->abort = 1;
}

/* Sender: waits until step `step` has a slot. */
static __device__ __noinline__ bool tt_wait_credit(const tt_entry *entry)
{
  const tt_end &end = block.ends[entry->conn];
  tt_wait wait;
  while (tt_load_relaxed(end.head) + TT_SLOTS <= entry->step)
    if (!wait.goes_on(end.peer, true)) return false;
  return true;
}

__device__ __forceinline__ bool tt_is_receive(int role)
{
  return role == TT_CUDA_IN_RECV || role == TT_CUDA_MOVE_RECV;
}
__device__ __forceinline__ bool tt_is_send(int role)
{
  return role == TT_CUDA_OUT_SEND || role == TT_CUDA_MOVE_SEND;
}
__device__ __forceinline__ uint32_t tt_operands(const tt_cuda_instruction *i)
{
  return i->nsends + i->ninputs + i->noutputs + i->nreceives;
}

/* LL's flags: see kernels/host/ll.c. */
static constexpr uint64_t tt_flag_period = 0xfffffff8ull;
static __device__ __noinline__ uint32_t tt_flag_of_late(uint64_t step)
{
  return (uint32_t)(step % tt_flag_period) + 1;
}
__device__ __forceinline__ uint32_t tt_flag_of(uint64_t step)
{
  return step < tt_flag_period ? (uint32_t)step + 1 : tt_flag_of_late(step);
}

/* The instruction of a strand at a repetition of a loop. */
__device__ __forceinline__ uint32_t tt_find_instruction(const tt_group &group, uint32_t repetition)
{
  uint32_t index = tt_strand_here(group)->first_instruction;
  const tt_cuda_instruction *instruction = tt_instruction_here(index);
#pragma unroll 1
  while (repetition >= instruction->first_repetition + instruction->repeat) instruction++, index++;
  return index;
}

/* Where a chunk lies, in elements. */
static __device__ __forceinline__ uint64_t tt_chunk_place(const tt_cuda_operand *operand, uint32_t loop,
                                                          uint32_t repetition, uint32_t *elements)
{
  const tt_cuda_channel &channel = block.channel;
  uint32_t parts = tt_program_here()->parts;
  uint32_t chunk = operand->start;
  if (repetition != 0 && operand->stride != 0) chunk = (chunk + repetition * operand->stride) % operand->modulo;
  uint32_t row = 0, part = chunk;
  if (chunk >= parts) {
    row = chunk / parts;
    part = chunk - row * parts;
  }
  uint32_t length = loop + 1 == channel.loops ? channel.last_chunk : channel.chunk;
  uint64_t at = channel.lo + (uint64_t)part * length;
  if (loop != 0) at += (uint64_t)loop * parts * channel.chunk;
  if (at > channel.hi) at = channel.hi;
  uint64_t left = channel.hi - at;
  *elements = left < length ? (uint32_t)left : length;
  if (operand->buffer >= TT_SCRATCH)
    return channel.scratch_lo + row * block.work.strides[2] + (uint64_t)part * channel.chunk;
  return row * block.work.strides[operand->buffer] + at;
}

/* Resolves one operand; `repetition` counts from the instruction's first. */
static __device__ __noinline__ void tt_resolve(const tt_cuda_instruction *instruction, uint32_t loop,
                                               uint32_t repetition, uint32_t number, tt_entry *entry)
{
  const tt_cuda_operand *operand = tt_operand_here(instruction->first_operand + number);
  uint32_t element = block.work.element_bytes, elements = 0;
  uint64_t place = 0;
  if (!TT_CUDA_TELLS || operand->modulo != 0) place = tt_chunk_place(operand, loop, repetition, &elements);
  int role = operand->role;
  tt_entry e = {};
  e.bytes = elements * element;
  e.role = role;
  e.conn = operand->conn;
  if (role != TT_CUDA_IN_RECV && role != TT_CUDA_OUT_SEND) {
    e.local = block.work.buffers[operand->buffer] + place * element;
    if (operand->buffer == TT_INPUT && block.work.scale_inputs) e.flags |= TT_ENTRY_SCALED;
  }
  if (role != TT_CUDA_IN_LOCAL && role != TT_CUDA_OUT_LOCAL) {
    tt_end &end = block.ends[operand->conn];
    uint64_t use = operand->uses_before + repetition;
    if (loop != 0) use += (uint64_t)loop * operand->uses_a_loop;
    e.step = end.step + use;
    e.flag = tt_flag_of(e.step);
    e.slot = end.slots + (uint32_t)(e.step % TT_SLOTS) * end.slot_bytes + TT_SLOT_HEADER;
    if (use == 0) e.flags |= TT_ENTRY_FIRST;
    if (tt_is_send(role) && end.seen + TT_SLOTS <= e.step) {
      uint64_t head = tt_load_relaxed(end.head);
      end.seen = head; /* several threads may write: each a value that was true */
      end.home->seen = head;
      if (head + TT_SLOTS <= e.step) e.flags |= TT_ENTRY_NO_CREDIT;
    }
  }
  if (e.slot == NULL) e.slot = e.local;
  *entry = e;
}

/* A repetition as its entries lie: sends of local chunks, the reduction's inputs and outputs, receives into local
 * chunks. */
struct tt_step {
  const tt_entry *sends, *inputs, *outputs, *receives;
  int nsends, ninputs, noutputs, nreceives;
  bool final;
  __device__ __forceinline__ tt_step(const tt_entry *entries, int ns, int ni, int no, int nr, bool f)
      : sends(entries), inputs(sends + ns), outputs(inputs + ni), receives(outputs + no), nsends(ns), ninputs(ni),
        noutputs(no), nreceives(nr), final(f)
  {
  }
  __device__ __forceinline__ tt_step(const tt_entry *entries, const tt_cuda_instruction *i)
      : tt_step(entries, i->nsends, i->ninputs, i->noutputs, i->nreceives, (i->flags & TT_FLAG_FINAL) != 0)
  {
  }
  __device__ __forceinline__ uint32_t operands() const
  {
    return nsends + ninputs + noutputs + nreceives;
  }
};

/* Number r of the batch that is resolved, with room for `most` operands each. */
__device__ __forceinline__ tt_step tt_batch_step(const tt_group &group, uint32_t r, uint32_t most)
{
  return tt_step(group.entries() + r * most, tt_instruction_here(block.instructions[group.index][r]));
}

/* Line 0 of a message: what the first one of an operation carries on a connection, and others. */
__device__ __forceinline__ uint64_t tt_first_word(uint64_t signature_hash, bool first, uint64_t bytes)
{
  return first ? signature_hash ^ bytes * 0x9e3779b97f4a7c15ull : bytes;
}
__device__ __forceinline__ uint64_t tt_first_word(const tt_entry *entry)
{
  return tt_first_word(block.work.signature_hash, entry->flags & TT_ENTRY_FIRST, entry->bytes);
}

/* The header of a message; only the first of an operation carries the signature. Bytes and step come last: in LL over a
 * network a proxy waits for them, and sends what else is there. */
__device__ __forceinline__ void tt_write_header(tt_byte *slot, const struct tt_signature *first, uint64_t bytes,
                                                uint64_t step)
{
  tt_byte *header = slot - TT_SLOT_HEADER;
  if (first != NULL) {
    const uint64_t *words = (const uint64_t *)first;
    tt_store_volatile(header + 16, words[0], words[1]);
    tt_store_volatile(header + 32, words[2], words[3]);
  }
  tt_store_volatile(header, bytes, step);
}
__device__ __forceinline__ void tt_write_header(const tt_entry *entry)
{
  tt_write_header(entry->slot, entry->flags & TT_ENTRY_FIRST ? &block.work.signature : NULL, entry->bytes, entry->step);
}

/* Receiver: what came is not what was expected; its header is complete. */
static __device__ __noinline__ void tt_wrong_message(const tt_entry *entry)
{
  const volatile uint64_t *header = (const volatile uint64_t *)(entry->slot - TT_SLOT_HEADER);
  bool first = entry->flags & TT_ENTRY_FIRST;
  tt_fail(first ? TT_CUDA_WRONG_SIGNATURE : TT_CUDA_WRONG_BYTES, block.ends[entry->conn].peer, entry->bytes, header[0],
          first ? header + 2 : NULL);
}

static_assert(sizeof(struct tt_signature) == 32, "the header's signature is written in two vectors");

#endif
