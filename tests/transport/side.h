/* Two ranks for tests, or three, in two processes or in one; processes share nothing but a socket pair. */
#ifndef TT_TESTS_TRANSPORT_SIDE_H
#define TT_TESTS_TRANSPORT_SIDE_H

#include <check.h>
#include <stdbool.h>
#include <sys/types.h>
#include "transport/memory.h"
#include "transport/transport.h"

#define SIDE_RANKS 3 /* at most */

struct side {
  int rank;
  int wire; /* to the other side */
  struct tt_peer_info peers[SIDE_RANKS];
  struct tt_peer_memory *memory;
  struct tt_transport_env env;
};

/* Makes this side's memory; exchanges peer infos over `wire`. change, if any, alters what is told to the other side. */
void side_open(struct side *side, int rank, int wire, void (*change)(struct tt_peer_info *info));
/* Both ranks in this process. */
void side_open_both(struct side sides[2]);
/* Those ranks of `nranks` whose bits are in `here`, in this process: sides[r] is rank r's. The others are in the
 * process behind `wire`, which calls this, too. */
void side_open_group(struct side *sides, uint32_t here, int nranks, int wire);
void side_close(struct side *side);
/* From now on sides have a context on this device, number `rank`, whose memory connections use. NULL: none. */
void side_use_device(const struct tt_device *device);

/* Whole messages over the wire; they end the test when the other side is gone or silent for 60 s. */
void side_put(int wire, const void *data, size_t bytes);
void side_get(int wire, void *data, size_t bytes);

/* Runs `child` in a forked process with its end of a socket pair; returns this end. A failed check there gives exit
 * status 1. */
pid_t side_fork(int *wire, void (*child)(int wire));
/* The child's exit status, or -signal. */
int side_wait(pid_t pid);

/* In processes that side_fork made: ends the process with status 1 and a line if the condition does not hold. */
#define SIDE_CHECK(condition)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: child: %s\n", __FILE__, __LINE__, #condition);                                           \
      _exit(1);                                                                                                        \
    }                                                                                                                  \
  } while (0)

#endif
