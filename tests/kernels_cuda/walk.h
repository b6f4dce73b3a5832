/* A program read plainly, as a test does to compare it with what the CUDA backend made of it: repetition by repetition,
 * counting messages one at a time. */
#ifndef TEST_KERNELS_CUDA_WALK_H
#define TEST_KERNELS_CUDA_WALK_H

#include <stdbool.h>
#include "tutti/program.h"

enum { WALK_OPERANDS = 256 };

/* In the order in which the device wants them: sends of local chunks, the reduction's inputs in their order, its
 * outputs, receives into local chunks. */
enum walk_kind { WALK_SEND, WALK_INPUT, WALK_OUTPUT, WALK_RECEIVE, WALK_KINDS };

struct walk_operand {
  const struct tt_operand *source;
  enum walk_kind kind;
  bool message, local; /* it has a connection; it has a chunk of this rank's memory */
  uint32_t conn;       /* sends by peer, then receives by peer */
  uint32_t chunk;
  uint32_t use;  /* messages before it on its connection, in this loop */
  uint32_t uses; /* of its connection, in a loop */
};

/* One repetition. */
struct walk_step {
  uint32_t strand, index; /* of the instruction, in the program */
  const struct tt_instruction *instruction;
  uint32_t repetition;
  uint32_t number; /* of this repetition in its strand, in this loop */
  uint32_t noperands;
  uint32_t counts[WALK_KINDS];
  struct walk_operand operands[WALK_OPERANDS];
};

typedef void walk_visit(void *context, const struct walk_step *step);
/* All repetitions of a loop, strand by strand. */
void walk(const struct tt_program *program, walk_visit *visit, void *context);

#endif
