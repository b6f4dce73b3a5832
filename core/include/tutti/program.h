/*
 * tutti/program.h: a collective as a program.
 *
 * For each collective and algorithm an emitter writes, per rank and channel, a short program. A device backend executes
 * it; the validator proves it without a device. A program says nothing of bytes or types: the plan adds those as a
 * geometry (tutti/device.h).
 *
 * Chunks. A user buffer is a row of *blocks*: one for all-reduce, broadcast and reduce; one a rank for the output of
 * all-gather and of gather (on the root), the input of reduce-scatter and of scatter (on the root), and both buffers of
 * all-to-all. The plan cuts every block alike: the channel's share of a block is moved in *loops*, and what a loop
 * moves of it is cut in `parts` parts. Chunk c of a buffer is part (c % parts) of block (c / parts). Chunks with the
 * same part have the same length in every block; a chunk may be empty, and an empty chunk is still sent.
 *
 * Instructions. An instruction has operands. Those whose buffer is TT_RESULT, and all sources and destinations, form
 * its *reduction*:
 *
 *     result = reduce(sources and receives with TT_RESULT, in operand order)
 *     the result goes to every destination and to every send with TT_RESULT
 *
 * Other sends and receives are *moves*: a send of a local chunk, or a receive straight into one. So one instruction
 * scatters different chunks to all peers. Moves and the reduction may happen in any order within the instruction. All
 * operands of the reduction name chunks of one part. A reduction of one input is a copy.
 *
 * Lists. An operand names a list of `count` chunks, its *pieces*: piece p (0 <= p < count) lies p times `step` behind
 * the first, modulo `modulo`. A send or receive of a list is one message in one slot of its connection. The message
 * holds the pieces one after the other; each begins at the next multiple of TT_PIECE_ALIGN bytes of the payload, and
 * what lies between has no meaning. Both ends give the same count, and pieces p of both are of one part. In a move,
 * piece p of the message is piece p of the local list. In a reduction all operands have the same count, and piece p of
 * the result is the reduction of the inputs' pieces p, which are all of one part. Pieces of an operand are different
 * chunks. The plan cuts chunks so that the longest list of a program fits a slot.
 *
 * On one connection, the chunks sent are received in the same order: the k-th send of a rank to a peer (on a channel)
 * meets the k-th receive of that peer from it.
 *
 * A message of no pieces (count 0) carries no data: it says that everything its strand did before it is done and
 * visible to who receives it. Its buffer is TT_INPUT and without meaning. Only the Simple protocol promises that for
 * memory outside the message, so programs with shared memory run with Simple.
 *
 * Shared memory. `members` are ranks that hold copies of one piece of memory and reach all copies at once through a
 * multicast address. TT_SHARED is this rank's own copy: ordinary local memory. A source in TT_MULTICAST is the
 * reduction of the chunk over all members' copies, in an order that the device chooses; a destination in TT_MULTICAST
 * stores to all copies. Every loop and every operation use the same memory again, and nothing but messages orders what
 * different members do to it. Neither buffer is ever NULL, and shared memory is zero only at first.
 *
 * Members' buffers. A source in TT_MEMBER_INPUT, and a source or destination in TT_MEMBER_OUTPUT, is a chunk of the
 * user's input or output of member members[peer], with that member's blocks, as the collective gives them; the member
 * may be this rank itself. A program may have members for that alone, with no shared memory. Members' buffers are not
 * NULL where the collective gives the member such a buffer. A member's user may still write its buffers until the
 * operation has begun there, and use them again as soon as it has ended there: so a program touches another's buffer
 * only between two messages, one by which it knows that the owner has begun, and one by which the owner knows, before
 * it ends, that this rank is done. All members of such programs have the same parts.
 *
 * The network as a peer. TT_PEER_NETWORK - k in `peers` (k >= 0) is a network that reduces (a collnet plugin's group of
 * ranks), number k of its kind. What all ranks with that peer send to it in the same step, one message each of equal
 * length, it reduces, and each of them receives the result, as the message of that step. It has the order of a
 * connection and its FIFO's depth. A message with a network is a single chunk, not a list. The ranks that have network
 * k among their peers are the same in all programs of a communicator.
 *
 * Strands. A program is a set of strands that run concurrently, each a list of instructions executed `loops` times,
 * without regard to the other strands except through semaphores. Every direction of every connection is used by one
 * strand only. SIGNAL adds one to a semaphore; WAIT waits until it is positive and takes one.
 *
 * Scaling. Inputs of a reducing collective are scaled (average, PreMulSum) when they are read from TT_INPUT or
 * TT_MEMBER_INPUT, with the factor of who reads; TT_FLAG_FINAL marks the instruction whose result is complete, where a
 * division may have to follow.
 *
 * Version 1. It is stable: later versions only append members to struct tt_program, which begins with its size, and
 * values to enums: collectives, algorithms, opcodes, kinds of operands, buffers, flags. The other structs stay as they
 * are. Who meets a later version than it knows, or a value that it does not know, refuses the program: it may mean
 * anything. docs/programs.md says how to write programs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_PROGRAM_H_
#define TUTTI_PROGRAM_H_

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TT_PROGRAM_VERSION 1

/* Collectives, numbered as ncclFunc_t in the plugin ABIs. A program of TT_FUNC_SEND_RECV sends to its last peer and
 * receives from its first, which may be the same. */
enum tt_collective {
  TT_FUNC_BROADCAST = 0,
  TT_FUNC_REDUCE = 1,
  TT_FUNC_ALL_GATHER = 2,
  TT_FUNC_REDUCE_SCATTER = 3,
  TT_FUNC_ALL_REDUCE = 4,
  TT_FUNC_SEND_RECV = 5,
  TT_FUNC_SEND = 6,
  TT_FUNC_RECV = 7,
  TT_FUNC_ALL_TO_ALL = 8,
  TT_FUNC_SCATTER = 9,
  TT_FUNC_GATHER = 10,
  TT_NUM_FUNCS = 11
};

/* Algorithms; the first seven numbered as in the tuner ABI. */
enum tt_algorithm {
  TT_ALGO_TREE = 0,
  TT_ALGO_RING = 1,
  TT_ALGO_COLLNET_DIRECT = 2,
  TT_ALGO_COLLNET_CHAIN = 3,
  TT_ALGO_NVLS = 4,
  TT_ALGO_NVLS_TREE = 5,
  TT_ALGO_PAT = 6,
  TT_ALGO_ONE_SHOT = 7, /* every rank sends its whole input to all; each reduces all of it */
  TT_ALGO_TWO_SHOT = 8, /* every rank reduces one part and sends the result to all */
  TT_ALGO_POINT_TO_POINT = 9,
  TT_ALGO_DIRECT = 10, /* every rank exchanges with every other, in one step; sums run in rank order */
  TT_ALGO_MAPPED = 11, /* ranks read and write each other's user buffers; sums run in rank order */
  TT_NUM_ALGORITHMS = 12
};

/* Protocols, numbered as in the tuner ABI. */
enum tt_protocol { TT_PROTO_LL = 0, TT_PROTO_LL128 = 1, TT_PROTO_SIMPLE = 2, TT_NUM_PROTOCOLS = 3 };

/* Buffers that operands name. TT_SCRATCH + k is scratch buffer k. */
enum tt_buffer {
  TT_INPUT = 0,
  TT_OUTPUT = 1,
  TT_SCRATCH = 2,
  TT_MEMBER_INPUT = 251,  /* a member's input: sources only */
  TT_MEMBER_OUTPUT = 252, /* a member's output: sources and destinations only */
  TT_SHARED = 253,        /* this rank's copy of the members' memory */
  TT_MULTICAST = 254,     /* all copies at once: sources and destinations only */
  TT_RESULT = 255
};

/* Among the peers: the first network that reduces; network k is TT_PEER_NETWORK - k. */
#define TT_PEER_NETWORK (-1)

enum tt_operand_kind {
  TT_SRC,  /* local chunk, an input of the reduction */
  TT_RECV, /* from peers[peer]: TT_RESULT, or the local buffer it is stored to */
  TT_DST,  /* local chunk that gets the result */
  TT_SEND  /* to peers[peer]: TT_RESULT, or the local buffer it is read from */
};

/* At repetition i (0 <= i < repeat) piece p (0 <= p < count) of the operand is chunk (start + i * stride + p * step)
 * mod modulo, never negative. For TT_RESULT it tells only which part, and so which length, is meant. */
struct tt_operand {
  uint8_t kind;   /* tt_operand_kind */
  uint8_t buffer; /* tt_buffer */
  uint16_t peer;  /* index into peers; of a member's buffer: into members; 0 for other local operands */
  int32_t start;
  int32_t stride;
  int32_t modulo; /* >= 1 */
  int32_t count;  /* 1 .. modulo; 0: a message without data */
  int32_t step;   /* without meaning where count is 1 */
};

/* Where the pieces of a message begin: at multiples of this many bytes of its payload. */
#define TT_PIECE_ALIGN 16

enum tt_opcode { TT_OP_DATA = 0, TT_OP_SIGNAL = 1, TT_OP_WAIT = 2 };
enum { TT_FLAG_FINAL = 1 };

struct tt_instruction {
  uint8_t opcode;
  uint8_t flags;
  uint16_t semaphore;     /* SIGNAL, WAIT */
  uint32_t repeat;        /* >= 1 */
  uint32_t first_operand; /* DATA */
  uint32_t noperands;
};

struct tt_strand {
  uint32_t first_instruction;
  uint32_t ninstructions;
};

struct tt_program {
  size_t size;      /* sizeof(struct tt_program) of who wrote it */
  uint32_t version; /* TT_PROGRAM_VERSION */
  int32_t collective;
  int32_t algorithm;
  int32_t nranks, rank, root;
  uint32_t parts;         /* of a block in one loop */
  uint32_t input_blocks;  /* blocks of the user's input; 0 if this rank reads none */
  uint32_t output_blocks; /* likewise, written */
  uint32_t nscratch;      /* scratch buffers, each of scratch_blocks blocks */
  uint32_t scratch_blocks;
  uint32_t nsemaphores;
  uint32_t npeers, nstrands, ninstructions, noperands;
  const int32_t *peers; /* ranks that this program talks to, and networks */
  const struct tt_strand *strands;
  const struct tt_instruction *instructions;
  const struct tt_operand *operands;
  uint32_t shared_blocks; /* of the members' memory; 0: there is none */
  uint32_t nmembers;      /* ranks that share it, or whose buffers are used, this one among them; may be 0 if
                             shared_blocks is */
  const int32_t *members; /* ascending */
};

/* The chunk that is piece `piece` of an operand at a repetition. */
static inline uint32_t tt_operand_piece(const struct tt_operand *operand, uint32_t repetition, uint32_t piece)
{
  int64_t chunk =
      (operand->start + (int64_t)repetition * operand->stride + (int64_t)piece * operand->step) % operand->modulo;
  return (uint32_t)(chunk < 0 ? chunk + operand->modulo : chunk);
}

/* The first, where there is no other. */
static inline uint32_t tt_operand_chunk(const struct tt_operand *operand, uint32_t repetition)
{
  return tt_operand_piece(operand, repetition, 0);
}

#ifdef __cplusplus
}
#endif

#endif
