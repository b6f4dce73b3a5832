/* Programs that can be changed, to show that wrong ones are found out. */
#ifndef TESTS_PROGRAM_MUTANT_H
#define TESTS_PROGRAM_MUTANT_H

#include <stdbool.h>
#include "tutti/program.h"

/* `program` points to the arrays behind it, which have room for one more strand, one more instruction and a second copy
 * of all operands. */
struct mutant {
  struct tt_program program;
  struct tt_strand *strands;
  struct tt_instruction *instructions;
  struct tt_operand *operands;
  int32_t *peers, *members;
};

struct mutant *mutant_new(const struct tt_program *original);
void mutant_free(struct mutant *mutant);

void mutant_drop_instruction(struct mutant *mutant, uint32_t instruction);
void mutant_double_instruction(struct mutant *mutant, uint32_t instruction);
/* With the next one; false if that is in another strand. */
bool mutant_swap_instructions(struct mutant *mutant, uint32_t instruction);
/* Lets a new strand begin at the instruction; false if one does already. */
bool mutant_split_strand(struct mutant *mutant, uint32_t instruction);
/* Whether a local operand names a member's buffer; and then its own rank's, TT_INPUT or TT_OUTPUT, if that is the
 * member. */
bool is_of_member(const struct tt_program *program, const struct tt_operand *operand);
bool is_of_other_member(const struct tt_program *program, const struct tt_operand *operand);
uint8_t own_buffer(const struct tt_program *program, const struct tt_operand *operand);

void mutant_drop_operand(struct mutant *mutant, uint32_t instruction, uint32_t operand);
void mutant_double_operand(struct mutant *mutant, uint32_t instruction, uint32_t operand);

/* mutant_rules.c: when a changed program is as right as the original, for these reasons and no others.
 *
 * Same meaning: each instruction still takes the same inputs in the same order, and gives to the same outputs. The
 * order of outputs and moves is not part of it, nor is the chunk of a TT_RESULT operand beyond its part, nor a stride
 * that is never applied. Where an instruction only sends one source on, some of the sends may be moves of the same
 * chunk, not of the result. Without `order_matters` the order of inputs is not part of it either: where a chunk is
 * reduced on one rank only, any order is as good as another. */
bool same_meaning(const struct tt_program *original, const struct tt_program *changed, bool order_matters);
/* A copy from input to output that is not part of a reducing collective may be done twice; one to scratch or shared
 * memory always, and what is read from shared memory and goes to the output alone, or from a member's output that the
 * copy does not write. */
bool may_repeat(const struct tt_program *program, uint32_t instruction);
/* A broadcast's root has in its input what it has in its output. */
bool holds_the_same(const struct tt_program *program, const struct tt_operand *source, uint8_t buffer);

/* mutant_order.c. Two data instructions are independent if they share no direction of a connection and no memory that
 * one of them writes, in place or not. A message without data is about the shared memory, all of it. Other ranks keep
 * their order. */

/* An instruction and the next may change places if they are independent data, or if the change only makes a wait come
 * earlier or a signal later, or if the data shares no memory with what the semaphore's other side does between this use
 * and its neighbour, which is all that the order was for. Two signals, or two waits, may always; a signal and the wait
 * behind it if the wait is for a strand that does not itself wait for that signal first. */
bool may_swap(const struct tt_program *program, uint32_t instruction);
/* A new strand may begin at the instruction if everything before it is independent of everything from it on: data of
 * data, and of a semaphore if it shares no memory with the data of the strand at the semaphore's other side. */
bool may_split(const struct tt_program *program, uint32_t strand, uint32_t instruction);

#endif
