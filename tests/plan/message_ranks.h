/* Ranks that capture messages and repeat them, with a thread each: what the tests of captured messages have in common.
 * Failures end the test. */
#ifndef TT_TESTS_PLAN_MESSAGE_RANKS_H
#define TT_TESTS_PLAN_MESSAGE_RANKS_H

#include "messages.h"

/* Messages of a rank in one graph, at most. */
enum { MOST = 4, SLOTS = 8, LONG_MS = 100000, ROOM = MESSAGE_BYTES + 4096 };

struct rank {
  int number;
  ncclComm_t comm;
  void *stream;
  char *inputs, *outputs; /* SLOTS each */
  struct fake_graph *graph;
  struct messages messages[SLOTS]; /* what it has called */
  int ncalls;
};

extern int nranks;
extern struct rank ranks[MOST];

typedef void rank_body(struct rank *rank);

/* On all ranks at the same time, on threads. */
void ranks_each(rank_body *body);
void ranks_open(int n);
/* Of ranks that all come, however busy the machine is. */
void ranks_open_patient(int n);
void ranks_close(void);
void rank_allocate(struct rank *rank);
void rank_close(struct rank *rank);

/* One more send and receive, -1: none; which the caller puts in a group, or which is one. */
void rank_call(struct rank *rank, int to, int from, size_t count);
void rank_call_group(struct rank *rank, int to, int from, size_t count);
/* Three calls, in which all ranks are in a ring. */
void rank_ring(struct rank *rank);
void rank_end_capture(struct rank *rank);
void rank_destroy_graph(struct rank *rank);
/* Captures on all ranks, and tells how many works are in place. */
int ranks_capture(rank_body *body);

void rank_fill(struct rank *rank, uint32_t time);
void rank_check(struct rank *rank, uint32_t time);
/* Repeats what all have captured. */
void ranks_expect_good(void);

/* Memories of the fake device; and a wait until they are as many. */
int held_memories(void);
void expect_memories(int wanted);

#endif
