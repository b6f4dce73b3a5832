/* Where threads of a block wait for each other, and where they may part. See threads.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "block.h"

enum { FEW_LOOKS = 6 };

static const char *const state_names[] = {"can go on", "waits for its warp", "waits at a barrier", "is over"};

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
  if (emu_current != NULL) {
    fprintf(stderr, "  in thread %u of block %u of a kernel of %u blocks\n", emu_current->place.thread.x,
            emu_current->place.block.x, emu_current->place.grid_size.x);
    describe(emu_current->block);
  }
  abort();
}

static void leave(enum emu_state state)
{
  struct lane *lane = emu_current;
  lane->state = state;
  fiber_leave();
}

void emu_moved(void)
{
  emu_current->looks = 0;
  emu_has_moved = true;
}

void emu_may_part(void)
{
  /* Rarely: a message that went ahead of its data must be seen before them, and acted upon. */
  if (emu_random(512) == 0) stores_arrive(&emu_current->block->stores);
  if (emu_random(64) == 0) stores_arrive(&emu_current->stores);
  if (emu_current->looks++ < FEW_LOOKS && emu_random(16) != 0) return; /* who looks again and again waits */
  emu_current->looks = 0;
  emu_current->block->warps[emu_current->place.thread.x / LANES].parted = true;
  leave(READY);
}

void emu_await_grid(void)
{
  while (emu_current->block->grid->held) leave(READY);
  emu_current->awaited = true;
}

void emu_let_grid_begin(void)
{
  struct block *block = emu_current->block;
  if (!emu_current->awaited) emu_die("a thread lets the next grid begin, and has not waited for the one before");
  if (!block->lets) block->grid->nlet++;
  block->lets = true;
}

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
  struct lane *lane = emu_current;
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
  emu_has_moved = true;
}

bool emu_barrier(int id, int threads, bool value)
{
  struct lane *lane = emu_current;
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

void emu_barriers_check(struct block *block)
{
  if (is_open(block, 0)) open_barrier(block, 0);
}
