/* Blocks of threads, as grid.c runs them. */
#ifndef TESTS_EMULATED_GPU_BLOCK_H
#define TESTS_EMULATED_GPU_BLOCK_H

#include "fiber.h"
#include "grid.h"
#include "stores.h"
#include "threads.h"

enum { LANES = 32, MOST_THREADS = 1024, MOST_BARRIERS = 16 };

/* What a thread waits for. */
enum emu_state { READY, IN_WARP, AT_BARRIER, OVER };

struct lane {
  struct fiber fiber;
  struct emu_place place;
  struct block *block;
  enum emu_state state;
  int barrier;    /* with AT_BARRIER */
  uint64_t value; /* given to what it waits for, and what came of it */
  enum emu_meeting meeting;
  struct stores stores; /* that no other thread sees */
  int looks;            /* since it stored something, or let others run */
  bool awaited;         /* the grid before */
};

struct warp {
  struct lane *lanes;
  int waiting, over; /* lanes */
  bool parted;       /* a lane was left behind since the last meeting */
};

struct barrier {
  int threads, arrived;
  bool any;
};

struct block {
  struct emu_grid *grid;
  unsigned nwarps, nover;
  struct warp *warps;
  struct lane *lanes;
  struct barrier barriers[MOST_BARRIERS];
  struct stores stores; /* that the block sees */
  bool lets;            /* the next grid begin, as far as this block goes */
  void *shared;         /* what it has in shared memory while another block runs */
};

struct emu_grid {
  const struct emu_kernel *kernel;
  void *arguments;
  struct block *blocks;
  unsigned nblocks, nover, nlet; /* nlet: blocks that let the next grid begin, or are over */
  bool held;
};

extern struct lane *emu_current; /* that runs; NULL: none */
extern bool emu_has_moved;       /* a thread did more than look */

/* accesses.c. Before a warp runs: what it read of lines is read again. */
void emu_forget_lines(void);
/* barriers.c. A thread of the block is over. */
void emu_barriers_check(struct block *block);

#endif
