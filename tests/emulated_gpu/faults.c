/* What a kernel or a copy touched that is no memory: a sentence before the process ends of it, as it would have
 * without. A GPU would say no more than that the address is illegal. */
#include "emulated.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GONE = 64, STACK_BYTES = 65536, FAR = 1 << 20 };

static struct gone {
  const char *start;
  size_t bytes;
  int device;
} gone[GONE]; /* ranges that were removed last */
static unsigned ngone;
static struct sigaction before_segv, before_bus;
static _Thread_local bool is_gpu;

void emu_fault_note_gone(const struct emu_range *range)
{
  gone[ngone++ % GONE] = (struct gone){range->start, range->bytes, range->device};
}

static const struct gone *find_gone(const char *at)
{
  for (unsigned i = 1; i <= GONE && i <= ngone; i++) {
    const struct gone *one = &gone[(ngone - i) % GONE];
    if (at >= one->start && at < one->start + one->bytes) return one;
  }
  return NULL;
}

/* The tables may be in change by another thread, which does not matter any more. */
static void describe(const char *at, char *text, size_t size)
{
  const struct emu_range *range = emu_range_find(at), *before = emu_range_before(at);
  const struct gone *freed = find_gone(at);
  if (range != NULL)
    snprintf(text, size, "in %zu bytes at %p, of GPU %d, which %s", range->bytes, (void *)range->start, range->device,
             range->kind == EMU_MAPPED ? "no GPU has the right to access so" : "cannot be accessed so");
  else if (freed != NULL)
    snprintf(text, size, "in %zu bytes at %p, of GPU %d, which were freed or unmapped", freed->bytes,
             (const void *)freed->start, freed->device);
  else if (before != NULL && at - (before->start + before->bytes) < FAR)
    snprintf(text, size, "%td bytes behind the end of %zu bytes at %p, of GPU %d", at - (before->start + before->bytes),
             before->bytes, (void *)before->start, before->device);
  else
    snprintf(text, size, "nowhere near to what CUDA knows");
}

static void explain(int signal, siginfo_t *info, void *unused)
{
  char where[160], text[256];
  (void)unused;
  if (is_gpu) {
    describe(info->si_addr, where, sizeof(where));
    int length =
        snprintf(text, sizeof(text), "emulated GPU: a kernel or a copy touches %p: %s\n", info->si_addr, where);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) is_gpu = false;
  }
  sigaction(signal, signal == SIGSEGV ? &before_segv : &before_bus, NULL); /* it comes again, to these */
}

void emu_faults_watch(void)
{
  struct sigaction action = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  /* A thread of a kernel may have come to the end of its stack. */
  stack_t stack = {.ss_size = STACK_BYTES}, old;
  is_gpu = true;
  if (sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE)) {
    stack.ss_sp = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, NULL);
  }
  sigaction(SIGSEGV, &action, &before_segv);
  sigaction(SIGBUS, &action, &before_bus);
}
