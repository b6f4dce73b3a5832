/* Of the ranks that do random operations (mixture.c): what a rank is, and what its batches (batch.c) need of it. A rank
 * is used by its own thread alone. */
#ifndef TT_TESTS_CHAOS_MIXTURE_H
#define TT_TESTS_CHAOS_MIXTURE_H

#include <stdint.h>
#include "nccl.h"
#include "tests/fakes/device/fake.h"

enum { MOST_RANKS = 8, COMMS = 3, STREAMS = 2, WINDOW_BYTES = 4 << 20, PATIENCE_MS = 120000 };
/* Status of a process that found something. */
enum { ENDED_WRONG = 1, ENDED_ERROR = 3, ENDED_LATE = 4, ENDED_LEFT = 5 };

/* `comm` NULL: this rank is not in it. */
struct comm {
  ncclComm_t comm;
  int rank, count;
  char *window; /* NULL: none */
  ncclWindow_t handle;
  size_t used; /* of the window, by the batch at work */
};

struct rank {
  int rank, device, batch;
  uint64_t common, own; /* states of drawing: what all ranks draw alike, and what each draws for itself */
  struct comm comms[COMMS];
  void *streams[STREAMS];
};

/* A number from 0 to below - 1. */
uint32_t tt_mixture_draw(uint64_t *state, uint32_t below);
/* Says what was wrong and ends the process. */
_Noreturn void tt_mixture_end(const struct rank *rank, int status, const char *what);
void tt_mixture_check(const struct rank *rank, const char *what, ncclResult_t result);
#define CHECK(rank, call) tt_mixture_check((rank), #call, (call))

/* Does the next batch, whose numbers all ranks draw alike, and checks it. */
void tt_mixture_batch(struct rank *rank);

#endif
