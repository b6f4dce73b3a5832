/* See fiber.h. A context of the C library begins a fiber, since only it can give it a stack; from then on jumps change
 * between fibers, which need no call of the system. */
#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

/* A kernel's parameter, of up to 8 KiB, lies on its thread's stack. Stacks lie side by side, since the system has only
 * so many mappings for a process; the lowest word of each says whether it was too small. */
enum { STACK_BYTES = 64 * 1024, SLAB = 256 };
static const uint64_t untouched = 0x5ca1ab1e0ddba115;

static struct fiber *running;
static jmp_buf outside;
static ucontext_t outside_context;

/* Stacks that nobody uses; behind the lowest word of each is the address of the next. */
struct stack {
  uint64_t lowest;
  struct stack *next;
};
static struct stack *kept;

static void make_slab(void)
{
  char *slab = mmap(NULL, (size_t)SLAB * STACK_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (slab == MAP_FAILED) {
    perror("emulated GPU: no memory for the stacks of more threads (fewer channels take fewer, NCCL_MAX_CTAS)");
    abort();
  }
  for (size_t i = 0; i < SLAB; i++) {
    struct stack *stack = (struct stack *)(void *)(slab + i * STACK_BYTES);
    *stack = (struct stack){untouched, kept};
    kept = stack;
  }
}

static void *take_stack(void)
{
  if (kept == NULL) make_slab();
  struct stack *stack = kept;
  kept = stack->next;
  return stack;
}

static void begin(void)
{
  running->run(running->argument);
  running->over = true;
  fiber_leave();
}

void fiber_make(struct fiber *fiber, void (*run)(void *argument), void *argument)
{
  fiber->stack = take_stack();
  fiber->run = run;
  fiber->argument = argument;
  fiber->begun = fiber->over = false;
}

void fiber_enter(struct fiber *fiber)
{
  running = fiber;
  if (_setjmp(outside) != 0) return;
  if (fiber->begun) _longjmp(fiber->here, 1);
  fiber->begun = true;
  ucontext_t first;
  getcontext(&first);
  first.uc_stack.ss_sp = fiber->stack;
  first.uc_stack.ss_size = STACK_BYTES;
  first.uc_link = NULL;
  makecontext(&first, begin, 0);
  swapcontext(&outside_context, &first); /* it comes back by the jump */
}

void fiber_leave(void)
{
  struct fiber *fiber = running;
  if (_setjmp(fiber->here) == 0) _longjmp(outside, 1);
}

void fiber_free(struct fiber *fiber)
{
  struct stack *stack = fiber->stack;
  if (stack->lowest != untouched) {
    fprintf(stderr, "emulated GPU: a thread took more than its %d bytes of stack\n", STACK_BYTES);
    abort();
  }
  stack->next = kept;
  kept = stack;
  fiber->stack = NULL;
}
