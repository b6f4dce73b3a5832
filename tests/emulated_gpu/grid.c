/* See grid.h and threads.h. What is modelled of the hardware, since kernels rely on it or must not:
 *
 * - The lanes of a warp go on together from a place where all have met (__syncwarp and its like), in the order of their
 *   numbers and with nobody between, until each waits again: so what they store or load with one instruction happens at
 *   once, as lines of LL128 need it. But a load that may part them (threads.h) leaves a lane behind at random, and from
 *   there on that lane goes its own way until all meet again.
 * - A named barrier counts warps: it is an error to come to it with a warp that is not together.
 * - Blocks, warps and grids run in any order, each for a random while.
 * - Stores without an order arrive late and in any order (stores.h); what is stored with one, all loads, and what copy
 *   engines do is in the order of the program. So a fence too few in front of a store shows, and one too few behind a
 *   load does not. */
#include "grid.h"

#include <stdlib.h>
#include <string.h>
#include "block.h"

struct emu_place *emu_place;
struct lane *emu_current;
bool emu_has_moved;

static struct block **running; /* all blocks that are not over */
static size_t nrunning, room;
static struct block *resident; /* whose shared memory is in the kernel's variable */

static void run_lane(void *argument)
{
  struct lane *lane = argument;
  const struct emu_grid *grid = lane->block->grid;
  grid->kernel->call(grid->kernel->address, grid->arguments);
}

static void make_block(struct emu_grid *grid, struct block *block, unsigned number, unsigned threads)
{
  const struct emu_kernel *kernel = grid->kernel;
  block->grid = grid;
  block->nwarps = threads / LANES;
  block->warps = calloc(block->nwarps, sizeof(*block->warps));
  block->lanes = calloc(threads, sizeof(*block->lanes));
  block->shared = malloc(kernel->shared_bytes + 1);
  if (block->warps == NULL || block->lanes == NULL || block->shared == NULL) abort();
  memset(block->shared, 0xa5, kernel->shared_bytes); /* nothing is zero by itself */
  for (unsigned t = 0; t < threads; t++) {
    struct lane *lane = &block->lanes[t];
    lane->block = block;
    lane->place = (struct emu_place){{t, 0, 0}, {number, 0, 0}, {threads, 1, 1}, {grid->nblocks, 1, 1}};
    fiber_make(&lane->fiber, run_lane, lane);
  }
  for (unsigned w = 0; w < block->nwarps; w++) block->warps[w].lanes = block->lanes + w * LANES;
  if (nrunning == room) {
    room = 2 * room + 16;
    running = realloc(running, room * sizeof(struct block *));
    if (running == NULL) abort();
  }
  running[nrunning++] = block;
}

struct emu_grid *emu_grid_start(const struct emu_kernel *kernel, unsigned blocks, unsigned threads,
                                const void *arguments)
{
  emu_current = NULL;
  if (threads == 0 || threads % LANES != 0 || threads > MOST_THREADS || threads > (unsigned)kernel->most_threads)
    emu_die("a block has too many threads, or no whole number of warps");
  struct emu_grid *grid = calloc(1, sizeof(*grid));
  if (grid == NULL) abort();
  grid->kernel = kernel;
  grid->nblocks = blocks;
  grid->blocks = calloc(blocks, sizeof(*grid->blocks));
  grid->arguments = aligned_alloc(64, (kernel->bytes + 63) / 64 * 64);
  if (grid->blocks == NULL || grid->arguments == NULL) abort();
  memcpy(grid->arguments, arguments, kernel->bytes);
  for (unsigned b = 0; b < blocks; b++) make_block(grid, &grid->blocks[b], b, threads);
  return grid;
}

bool emu_grid_is_done(const struct emu_grid *grid)
{
  return grid->nover == grid->nblocks;
}

bool emu_grid_lets_next(const struct emu_grid *grid)
{
  return grid->nlet == grid->nblocks;
}

void emu_grid_hold(struct emu_grid *grid, bool held)
{
  grid->held = held;
}

void emu_grid_free(struct emu_grid *grid)
{
  free(grid->blocks);
  free(grid->arguments);
  free(grid);
}

static void end_block(size_t index)
{
  struct block *block = running[index];
  for (unsigned t = 0; t < LANES * block->nwarps; t++) fiber_free(&block->lanes[t].fiber);
  if (resident == block) resident = NULL;
  stores_arrive_all(&block->stores);
  stores_free(&block->stores);
  free(block->shared);
  free(block->lanes);
  free(block->warps);
  block->grid->nover++;
  if (!block->lets) block->grid->nlet++;
  running[index] = running[--nrunning];
}

static void make_resident(struct block *block)
{
  if (resident == block) return;
  if (resident != NULL) {
    const struct emu_kernel *kernel = resident->grid->kernel;
    memcpy(resident->shared, kernel->shared, kernel->shared_bytes);
  }
  const struct emu_kernel *kernel = block->grid->kernel;
  memcpy(kernel->shared, block->shared, kernel->shared_bytes);
  resident = block;
}

static bool is_ready(const struct warp *warp)
{
  for (int i = 0; i < LANES; i++)
    if (warp->lanes[i].state == READY) return true;
  return false;
}

/* Each lane that can, in the order of their numbers. Who becomes ready on the way has its turn later. */
static void run_warp(struct block *block, struct warp *warp)
{
  bool ready[LANES];
  for (int i = 0; i < LANES; i++) ready[i] = warp->lanes[i].state == READY;
  emu_forget_lines();
  for (int i = 0; i < LANES; i++) {
    if (!ready[i]) continue;
    emu_current = &warp->lanes[i];
    emu_place = &emu_current->place;
    fiber_enter(&emu_current->fiber);
    if (!emu_current->fiber.over) continue;
    emu_publish();
    stores_free(&emu_current->stores);
    emu_current->state = OVER;
    warp->over++;
    block->nover++;
    emu_has_moved = true;
    if (warp->waiting > 0) emu_die("a thread is over, and others of its warp wait for it");
    emu_barriers_check(block);
  }
}

/* Some warps, each time another one, until they do no more than look for what is not there. Returns whether one could
 * go on. */
static bool run_block(struct block *block)
{
  bool could = false;
  uint32_t turns = 1 + emu_random(4 * block->nwarps), idle = 0;
  make_resident(block);
  for (uint32_t i = 0; i < turns && idle < block->nwarps; i++) {
    uint32_t first = emu_random(block->nwarps);
    unsigned k = 0;
    while (k < block->nwarps && !is_ready(&block->warps[(first + k) % block->nwarps])) k++;
    if (k == block->nwarps) break;
    emu_has_moved = false;
    run_warp(block, &block->warps[(first + k) % block->nwarps]);
    idle = emu_has_moved ? 0 : idle + 1;
    could = true;
  }
  emu_has_moved = idle < block->nwarps;
  return could;
}

bool emu_grids_run(void)
{
  /* Copies, and other processes, may be what all of them wait for. */
  for (int busy = 16; busy > 0 && nrunning > 0; busy -= emu_has_moved ? 1 : 4) {
    size_t index = emu_random((uint32_t)nrunning);
    struct block *block = running[index];
    if (!run_block(block)) emu_die("all threads of a block wait, and nothing can come");
    if (block->nover == LANES * block->nwarps) end_block(index);
  }
  emu_current = NULL;
  return nrunning > 0;
}
