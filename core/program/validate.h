/* The validator: proves what the programs of all ranks do together, without a device. It shares no arithmetic with the
 * emitters: what is right is defined here, from the collectives' definitions alone. */
#ifndef TT_PROGRAM_VALIDATE_H
#define TT_PROGRAM_VALIDATE_H

#include <stdbool.h>
#include "tutti/program.h"

/* One operation of a sequence: the programs of all ranks on one channel, and how they are run. */
struct tt_validate_step {
  const struct tt_program *const *programs; /* nranks */
  uint32_t loops;
  bool in_place; /* input and output share memory, as nccl.h says */
};

struct tt_validate_options {
  uint32_t slots;       /* of each connection's FIFO; 0: TT_SLOTS */
  uint64_t seed;        /* order in which ranks and strands advance; several seeds show several skews */
  bool same_everywhere; /* all ranks that get a result must have reduced in the same order */
};

/* What it assumes of an executor is little: an instruction is taken to wait for all its receives and sends and then to
 * happen at once, which deadlocks sooner than any other way; that a FIFO's slot was freed orders nothing; what one
 * instruction reads and writes must not overlap, except that a reduction may overwrite its own source; scratch buffers
 * are used again by each loop. A message proves that the inputs of the reduction it carries were read, not that the
 * rest of its instruction is done. Races are looked for on all ranks with several strands, or on a sample of them where
 * they are more than 64.
 *
 * Memory that ranks share may be laid out anew by each operation. So a rank may touch another's copy only between two
 * events that it knows of, the begin and the end of the operation on the copy's owner; within it, accesses of any two
 * strands of any two members race. A device may add copies up in any order, so no two such sums are the same.
 *
 * A network that reduces holds nothing beyond the FIFOs of its members. In all steps in which a network occurs the same
 * ranks name it, as one that is set up once demands.
 *
 * Of messages `programs` has NULL for ranks that take no part. The first peer of a program that receives is the rank
 * that it receives from; one of TT_FUNC_SEND_RECV sends to its last peer. */

/* Runs the steps one after the other, ranks drifting apart as far as the FIFOs allow. ncclSuccess if every chunk of
 * every step ends as the collective's definition says, each contribution once and scaled once, without deadlock, race
 * or leftover; else ncclInternalError with the reason in `why`. */
ncclResult_t tt_program_validate(int nranks, const struct tt_validate_step *steps, int nsteps,
                                 const struct tt_validate_options *options, char *why, size_t why_size);

/* Checks one program by itself: indices in range, strands own their connections, parts agree; also what keeps programs
 * simple to execute and to prove:
 *
 *   strands' instructions follow each other without gaps;
 *   a semaphore is signalled by one strand and waited for by one strand, so the k-th wait follows the k-th signal;
 *   an instruction uses a direction of a connection at most once, since nothing orders two messages within it;
 *   input_blocks and output_blocks are those of the collective's definition, and the input is never written;
 *   the modulo of an operand is at most the number of chunks of its buffer, and its count at most the modulo;
 *   shared memory has members, ascending and the rank among them; all copies at once are local operands only;
 *   a message without data names TT_INPUT, and no network;
 *   networks are peers in reducing collectives only, and a message with one is a single chunk;
 *   the operands of a reduction have the same count, and their pieces the same parts;
 *   TT_FLAG_FINAL only stands at reductions of reducing collectives. */
ncclResult_t tt_program_check(const struct tt_program *program, char *why, size_t why_size);

#endif
