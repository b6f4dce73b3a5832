/* A stack of its own for a function that can be left in the middle and gone on with later. All fibers belong to one
 * thread of the system. */
#ifndef TESTS_EMULATED_GPU_FIBER_H
#define TESTS_EMULATED_GPU_FIBER_H

#include <setjmp.h>
#include <stdbool.h>

struct fiber {
  jmp_buf here;
  void *stack;
  void (*run)(void *argument);
  void *argument;
  bool begun, over;
};

void fiber_make(struct fiber *fiber, void (*run)(void *argument), void *argument);
/* Runs the fiber until it calls fiber_leave, or ends. Not for fibers to call. */
void fiber_enter(struct fiber *fiber);
/* Called by the fiber that runs. */
void fiber_leave(void);
/* Of one that is over. Stacks are kept for others. */
void fiber_free(struct fiber *fiber);

#endif
