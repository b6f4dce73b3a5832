/* Ranks as threads, and small measures of this process. */
#ifndef TESTS_BOOTSTRAP_RANKS_H
#define TESTS_BOOTSTRAP_RANKS_H

#include <check.h>
#include <stdatomic.h>
#include <stdint.h>
#include "base/param.h"
#include "bootstrap/bootstrap.h"
#include "tests/common/held.h"

struct rank {
  int rank, nranks;
  const ncclUniqueId *id;
  _Atomic uint32_t *abort;
  void *arg;
  struct tt_bootstrap *b; /* NULL if it was not created */
  ncclResult_t result;
  char error[1500]; /* the thread's last error */
};

/* Runs `body` on nranks threads, each with an object that was created and will be destroyed; fills results. */
typedef ncclResult_t rank_body(struct rank *rank);
void ranks_run(const ncclUniqueId *id, int nranks, rank_body *body, void *arg, struct rank *ranks);
/* The same, where every rank must succeed. */
void ranks_succeed(int nranks, rank_body *body, void *arg);

/* Sets variables ("NAME=value", NULL-terminated) for the time being; all others of the library's are cleared. */
void environment(const char *const *values);

/* As if the rank's process were stopped, until the count is at its end: its service answers nobody. */
void stand_still(struct rank *me, const _Atomic int *count, int end);
extern _Atomic int standing_still; /* ranks that ever did, or do */
/* As if no rank had waited for a long time. */
void forget_waits(struct rank *me);

/* Waits until both are at most so many; fails the test otherwise. */
void expect_quiet(int threads, int descriptors);

/* A small generator with a given seed. */
static inline uint64_t random_next(uint64_t *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

Suite *suite_wire(void);
Suite *suite_basic(void);
Suite *suite_calls(void);
Suite *suite_errors(void);
Suite *suite_scalable(void);
Suite *suite_hostile(void);
Suite *suite_processes(void);
Suite *suite_net(void);
Suite *suite_crowded(void);
Suite *suite_shortage(void);
int process_main(int argc, char **argv); /* a rank that processes.c started */

#endif
