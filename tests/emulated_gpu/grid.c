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

#include <emmintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fiber.h"
#include "stores.h"
#include "threads.h"

enum {
  LANES = 32,
  MOST_THREADS = 1024,
  MOST_BARRIERS = 16,
  LINE = 128,
  FEW_LOOKS = 6,
  MOST_OF_LANE = 6,
  MOST_OF_BLOCK = 96
};

/* What a thread waits for. */
enum state { READY, IN_WARP, AT_BARRIER, OVER };
static const char *const state_names[] = {"can go on", "waits for its warp", "waits at a barrier", "is over"};

struct lane {
  struct fiber fiber;
  struct emu_place place;
  struct block *block;
  enum state state;
  int barrier;    /* with AT_BARRIER */
  uint64_t value; /* given to what it waits for, and what came of it */
  enum emu_meeting meeting;
  struct stores stores; /* that no other thread sees */
  int looks;            /* since it stored something, or let others run */
};

struct warp {
  struct lane *lanes;
  int number;
  int waiting, over; /* lanes */
  bool parted;       /* a lane was left behind since the last meeting */
};

struct barrier {
  int threads, arrived;
  bool any;
};

struct block {
  struct emu_grid *grid;
  struct block *next; /* of all that run */
  unsigned nwarps, nover;
  struct warp *warps;
  struct lane *lanes;
  struct barrier barriers[MOST_BARRIERS];
  struct stores stores; /* that the block sees */
  void *shared;         /* what it has in shared memory while another block runs */
};

struct emu_grid {
  const struct emu_kernel *kernel;
  void *arguments;
  struct block *blocks;
  unsigned nblocks, nover;
};

struct emu_place *emu_place;
static struct lane *current;
static struct block **running; /* all blocks that are not over */
static size_t nrunning, room;
static struct block *resident; /* whose shared memory is in the kernel's variable */
static bool has_moved;         /* a thread did more than look */

/* ---- Kernels ---- */

static struct known {
  struct emu_kernel kernel;
  struct known *next;
} * kernels;

void emu_kernel_register(const struct emu_kernel *kernel)
{
  struct known *known = malloc(sizeof(*known));
  if (known == NULL) abort();
  *known = (struct known){*kernel, kernels};
  kernels = known;
}

const struct emu_kernel *emu_kernel_find(const void *address)
{
  for (const struct known *known = kernels; known != NULL; known = known->next)
    if (known->kernel.address == address) return &known->kernel;
  return NULL;
}

/* ---- Chance ---- */

static uint64_t random_state;

uint32_t emu_random(uint32_t n)
{
  if (random_state == 0) {
    const char *seed = getenv("EMULATED_SEED");
    random_state = (seed != NULL ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15ull | 1;
  }
  random_state ^= random_state << 13; /* xorshift64, Marsaglia 2003 */
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)((random_state >> 32) * n >> 32);
}

/* ---- Threads, as kernels call it ---- */

static void describe(const struct block *block)
{
  for (unsigned t = 0; t < LANES * block->nwarps; t++) {
    const struct lane *lane = &block->lanes[t];
    if (t > 0 && lane->state == lane[-1].state && lane->barrier == lane[-1].barrier) continue;
    fprintf(stderr, "  from thread %u on: %s", t, state_names[lane->state]);
    if (lane->state == AT_BARRIER) fprintf(stderr, " (%d)", lane->barrier);
    fprintf(stderr, "\n");
  }
}

void emu_die(const char *what)
{
  fprintf(stderr, "emulated GPU: %s\n", what);
  if (current != NULL) {
    fprintf(stderr, "  in thread %u of block %u of a kernel of %u blocks\n", current->place.thread.x,
            current->place.block.x, current->place.grid_size.x);
    describe(current->block);
  }
  abort();
}

static void leave(enum state state)
{
  struct lane *lane = current;
  lane->state = state;
  fiber_leave();
}

void emu_moved(void)
{
  current->looks = 0;
  has_moved = true;
}

void emu_may_part(void)
{
  /* Rarely: a message that went ahead of its data must be seen before them, and acted upon. */
  if (emu_random(512) == 0) stores_arrive(&current->block->stores);
  if (emu_random(64) == 0) stores_arrive(&current->stores);
  if (current->looks++ < FEW_LOOKS && emu_random(16) != 0) return; /* who looks again and again waits */
  current->looks = 0;
  current->block->warps[current->place.thread.x / LANES].parted = true;
  leave(READY);
}

/* ---- Stores ---- */

void emu_store(void *to, const void *data, uint32_t bytes)
{
  stores_put(&current->stores, to, data, bytes, MOST_OF_LANE);
  emu_moved();
}

static void overlay(const void *from, void *data, uint32_t bytes)
{
  stores_look(&current->block->stores, from, data, bytes);
  stores_look(&current->stores, from, data, bytes);
}

void emu_load(const void *from, void *data, uint32_t bytes)
{
  const volatile uint64_t *words = from;
  if (bytes == 1) {
    *(unsigned char *)data = *(const volatile unsigned char *)from;
  } else if (bytes == 8) {
    *(uint64_t *)data = *words;
  } else {
    _mm_storeu_si128(data, *(const volatile __m128i *)from);
  }
  overlay(from, data, bytes);
}

/* Lines of 128 bytes as the warp found them, since it last began to run. Other processes' GPUs go on meanwhile: so a
 * line is read from its end, where what says that it is there stands, and lanes that read it at once have it from here.
 */
static struct seen_line {
  const unsigned char *at;
  uint32_t lanes; /* that have had theirs */
  _Alignas(16) unsigned char data[LINE];
} seen[8];
static unsigned next_seen;

static void forget_lines(void)
{
  for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) seen[i].at = NULL;
}

static struct seen_line *find_line(const unsigned char *at, uint32_t lane)
{
  for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
    if (seen[i].at == at && !(seen[i].lanes & lane)) return &seen[i];
  struct seen_line *line = &seen[next_seen++ % (sizeof(seen) / sizeof(seen[0]))];
  line->at = at;
  line->lanes = 0;
  for (int i = LINE - 16; i >= 0; i -= 16)
    _mm_store_si128((__m128i *)(void *)(line->data + i), *(const volatile __m128i *)(const void *)(at + i));
  return line;
}

void emu_load_together(const void *from, void *data)
{
  uint32_t place = (uint32_t)((uintptr_t)from % LINE), lane = 1u << current->place.thread.x % LANES;
  struct seen_line *line = find_line((const unsigned char *)from - place, lane);
  line->lanes |= lane;
  memcpy(data, line->data + place, 16);
  overlay(from, data, 16);
}

void emu_publish(void)
{
  stores_move(&current->stores, &current->block->stores, MOST_OF_BLOCK);
}

void emu_fence(void)
{
  emu_publish();
  stores_arrive_all(&current->block->stores);
}

void emu_settle(const void *at, uint32_t bytes)
{
  if (stores_touch(&current->stores, at, bytes) || stores_touch(&current->block->stores, at, bytes)) emu_fence();
}

/* ---- Meetings ---- */

/* The last of its warp to come. */
static void meet(struct warp *warp)
{
  enum emu_meeting kind = warp->lanes[0].meeting;
  uint64_t all = 1, any = 0;
  for (int i = 0; i < LANES; i++) {
    if (warp->lanes[i].meeting != kind) emu_die("lanes of one warp meet at different instructions");
    all &= warp->lanes[i].value != 0;
    any |= warp->lanes[i].value != 0;
  }
  uint64_t first = warp->lanes[0].value;
  for (int i = 0; i < LANES; i++) {
    warp->lanes[i].value = kind == EMU_ALL ? all : kind == EMU_ANY ? any : kind == EMU_FROM_FIRST ? first : 0;
    warp->lanes[i].state = READY;
  }
  warp->waiting = 0;
  warp->parted = false;
}

uint64_t emu_meet(enum emu_meeting kind, uint64_t value)
{
  struct lane *lane = current;
  struct warp *warp = &lane->block->warps[lane->place.thread.x / LANES];
  if (warp->over > 0) emu_die("a warp meets, of which a lane is over");
  emu_publish();
  lane->meeting = kind;
  lane->value = value;
  lane->state = IN_WARP;
  if (++warp->waiting == LANES) meet(warp);
  fiber_leave();
  return lane->value;
}

static bool is_open(const struct block *block, int id)
{
  const struct barrier *barrier = &block->barriers[id];
  int gone = id == 0 ? (int)block->nover : 0; /* the block's own does not wait for who is over */
  return barrier->arrived > 0 && barrier->arrived + gone >= barrier->threads;
}

static void open_barrier(struct block *block, int id)
{
  struct barrier *barrier = &block->barriers[id];
  for (unsigned t = 0; t < LANES * block->nwarps; t++) {
    struct lane *lane = &block->lanes[t];
    if (lane->state != AT_BARRIER || lane->barrier != id) continue;
    lane->state = READY;
    lane->value = barrier->any;
    block->warps[t / LANES].parted = false;
  }
  memset(barrier, 0, sizeof(*barrier));
  has_moved = true;
}

bool emu_barrier(int id, int threads, bool value)
{
  struct lane *lane = current;
  struct block *block = lane->block;
  struct barrier *barrier = &block->barriers[id];
  emu_publish();
  if (id < 0 || id >= MOST_BARRIERS) emu_die("a barrier has a number that there is not");
  if (id != 0 && block->warps[lane->place.thread.x / LANES].parted)
    emu_die("a thread comes to a barrier, which counts warps, and its warp is not together");
  if (threads == 0) threads = LANES * (int)block->nwarps;
  if (threads % LANES != 0) emu_die("a barrier is of no whole number of warps");
  if (barrier->arrived > 0 && barrier->threads != threads) emu_die("threads name different sizes of a barrier");
  barrier->threads = threads;
  barrier->arrived++;
  barrier->any |= value;
  lane->barrier = id;
  lane->state = AT_BARRIER;
  if (is_open(block, id)) open_barrier(block, id);
  fiber_leave();
  return lane->value != 0;
}

/* ---- Grids ---- */

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
  for (unsigned w = 0; w < block->nwarps; w++) {
    block->warps[w].lanes = block->lanes + w * LANES;
    block->warps[w].number = (int)w;
  }
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
  current = NULL;
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
  forget_lines();
  for (int i = 0; i < LANES; i++) {
    if (!ready[i]) continue;
    current = &warp->lanes[i];
    emu_place = &current->place;
    fiber_enter(&current->fiber);
    if (!current->fiber.over) continue;
    emu_publish();
    stores_free(&current->stores);
    current->state = OVER;
    warp->over++;
    block->nover++;
    has_moved = true;
    if (warp->waiting > 0) emu_die("a thread is over, and others of its warp wait for it");
    if (is_open(block, 0)) open_barrier(block, 0);
  }
}

/* Some warps, each time another one, until they do no more than look for what is not there. Returns whether one could go
 * on. */
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
    has_moved = false;
    run_warp(block, &block->warps[(first + k) % block->nwarps]);
    idle = has_moved ? 0 : idle + 1;
    could = true;
  }
  has_moved = idle < block->nwarps;
  return could;
}

bool emu_grids_run(void)
{
  /* Copies, and other processes, may be what all of them wait for. */
  for (int busy = 16; busy > 0 && nrunning > 0; busy -= has_moved ? 1 : 4) {
    size_t index = emu_random((uint32_t)nrunning);
    struct block *block = running[index];
    if (!run_block(block)) emu_die("all threads of a block wait, and nothing can come");
    if (block->nover == LANES * block->nwarps) end_block(index);
  }
  current = NULL;
  return nrunning > 0;
}
