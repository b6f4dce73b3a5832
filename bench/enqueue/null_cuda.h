/* How often a thread has called each function of a CUDA that does nothing (null_cuda.c): those that an enqueue may
 * call.
 */
#ifndef TT_BENCH_NULL_CUDA_H
#define TT_BENCH_NULL_CUDA_H

struct tt_null_call {
  const char *name; /* NULL: behind the last */
  unsigned long count;
};

/* Of the calling thread; found by its name, "tt_null_calls". */
typedef const struct tt_null_call *tt_null_calls_fn(void);

#endif
