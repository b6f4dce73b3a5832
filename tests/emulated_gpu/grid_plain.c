/* In place of grid.c for sanitizers, which know nothing of fibers: each thread is called to its end, one after another.
 * Nothing that waits for another thread works. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "threads.h"

struct emu_grid {
  struct emu_grid *next;
  const struct emu_kernel *kernel;
  unsigned blocks, threads;
  void *arguments;
  bool done;
};
static struct emu_grid *grids;

struct emu_grid *emu_grid_start(const struct emu_kernel *kernel, unsigned blocks, unsigned threads,
                                const void *arguments)
{
  struct emu_grid *grid = calloc(1, sizeof(*grid));
  void *copy = malloc(kernel->bytes + 1);
  if (grid == NULL || copy == NULL) abort();
  memcpy(copy, arguments, kernel->bytes);
  *grid = (struct emu_grid){.next = grids, .kernel = kernel, .blocks = blocks, .threads = threads, .arguments = copy};
  return grids = grid;
}

bool emu_grids_run(void)
{
  struct emu_grid *grid = grids;
  if (grid == NULL) return false;
  grids = grid->next;
  for (unsigned i = 0; i < grid->blocks * grid->threads; i++)
    grid->kernel->call(grid->kernel->address, grid->arguments);
  grid->done = true;
  return true;
}

bool emu_grid_is_done(const struct emu_grid *grid)
{
  return grid->done;
}

/* The next one begins when this one is done, and need not wait. */
bool emu_grid_lets_next(const struct emu_grid *grid)
{
  return grid->done;
}

void emu_grid_hold(struct emu_grid *grid, bool held)
{
  (void)grid, (void)held;
}

void emu_grid_free(struct emu_grid *grid)
{
  free(grid->arguments);
  free(grid);
}

void emu_die(const char *what)
{
  fprintf(stderr, "emulated GPU: %s\n", what);
  abort();
}
