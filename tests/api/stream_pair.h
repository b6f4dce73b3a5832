/* Two ranks of one process, each with a stream of the host device. */
#ifndef TT_TESTS_API_STREAM_PAIR_H
#define TT_TESTS_API_STREAM_PAIR_H

#include <check.h>
#include "tutti.h"

enum { RANKS = 2, COUNT = 1000, GUARD_MS = 60000 };

/* A pair of ranks, their buffers, and a stream for each. */
struct pair {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  float in[RANKS][COUNT], out[RANKS][COUNT];
};

/* These fail the test if something is not so; `said`: that the thread's last error has the words. */
void ok(ncclResult_t result);
void said(const char *words);
void open_pair(struct pair *pair);
void close_pair(struct pair *pair);
void is_reduced(const struct pair *pair);
void wait_both(struct pair *pair);

/* Rank r's part of an all-reduce of `in`, whose result `is_reduced` knows. */
ncclResult_t reduce(struct pair *pair, int r, cudaStream_t stream);

#endif
