/* In place of the backend's kernels until they are there: they do nothing. */
#include "grid.h"

static void run_nothing(const void *address, const void *arguments)
{
  (void)address, (void)arguments;
}

static const char nothing;

__attribute__((constructor)) static void add(void)
{
  emu_kernel_register(&(struct emu_kernel){.address = &nothing, .call = run_nothing, .bytes = 64, .most_threads = 512});
}

#define KERNEL(number)                                                                                                 \
  const void *tt_cuda_kernel_##number(int protocol, int form);                                                         \
  const void *tt_cuda_kernel_##number(int protocol, int form)                                                          \
  {                                                                                                                    \
    (void)protocol, (void)form;                                                                                        \
    return &nothing;                                                                                                   \
  }
KERNEL(0)
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
