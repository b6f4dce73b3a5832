/* The same timing loop for every library: bench.c measures, a backend file joins the ranks and reduces. */
#ifndef TT_BENCH_PEERS_H
#define TT_BENCH_PEERS_H

#include <stddef.h>

/* Joins this process to its ranks; may fork. Returns when `rank` and `nranks` are set. argv as main got it. */
void backend_start(int argc, char **argv, int *rank, int *nranks);
/* Sum of floats over all ranks, out of place, complete on return. */
void backend_all_reduce(const float *in, float *out, size_t count);
void backend_stop(void);

#endif
