/* Kernels on the CPU: a launched grid, its blocks, warps and threads. Each CUDA thread is a fiber; one thread of the
 * system runs all fibers of the process, in an order that EMULATED_SEED chooses. Only that thread calls these
 * functions, but emu_kernel_find and emu_kernel_register. */
#ifndef TESTS_EMULATED_GPU_GRID_H
#define TESTS_EMULATED_GPU_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a translation unit with kernels says of each of them when it is loaded (device.h). */
struct emu_kernel {
  const void *address;                                      /* by which it is launched */
  void (*call)(const void *address, const void *arguments); /* one thread's run */
  size_t bytes;                                             /* of its only parameter */
  void *shared;                                             /* its variable in shared memory */
  size_t shared_bytes;
  int most_threads; /* of a block */
};
void emu_kernel_register(const struct emu_kernel *kernel); /* is copied; when a library is loaded */
/* NULL: no such kernel. */
const struct emu_kernel *emu_kernel_find(const void *address);

/* Makes the blocks' threads; they run in emu_grids_run. Takes a copy of the kernel->bytes bytes at `arguments`. Aborts
 * the process, with a sentence, where a block has too many threads or no whole number of warps. */
struct emu_grid *emu_grid_start(const struct emu_kernel *kernel, unsigned blocks, unsigned threads,
                                const void *arguments);
/* Runs threads of all grids for a short while. False: none can go on, since there are no grids. Aborts the process with
 * a description of each thread that waits, where all threads of a block wait at barriers that cannot open. */
bool emu_grids_run(void);
bool emu_grid_is_done(const struct emu_grid *grid);
/* Whether the next grid may begin, whose threads wait where they must until the one before is over: it is held. */
bool emu_grid_lets_next(const struct emu_grid *grid);
void emu_grid_hold(struct emu_grid *grid, bool held);
/* Of one that is done. */
void emu_grid_free(struct emu_grid *grid);

/* A number below n, of the same sequence that chooses the order of threads. */
uint32_t emu_random(uint32_t n);

#ifdef __cplusplus
}
#endif

#endif
