/* Where a channel's program stands, told from how often each of its connections was used. An executor's own state is
 * not for other threads; the steps of connections are, and say as much: a direction of a connection belongs to one
 * strand, and a strand takes its instructions in order. */
#ifndef TT_PLAN_PROGRESS_H
#define TT_PLAN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include "tutti/program.h"

/* One end that a program uses. Arrays of them have 2 * npeers entries: sends by index into peers, then receives. */
struct tt_progress_end {
  uint64_t per_loop; /* messages in one loop; 0: the program does not use it */
  uint64_t done;     /* messages so far */
  bool ready;        /* the next one is there, or there is room for it */
  bool current;      /* the strand stands at it */
  uint64_t seen;     /* the search's own */
};

/* Sets per_loop, and all else to 0. */
void tt_progress_count(const struct tt_program *program, struct tt_progress_end *ends);
/* Sets `current` from per_loop and done. */
void tt_progress_find(const struct tt_program *program, uint64_t loops, struct tt_progress_end *ends);

#endif
