/* The inner loops of reductions, compiled once for each instruction set. All of them give the same bits,
 * except where two NaNs meet: then one of them comes out, and which one is the compiler's choice. */
#ifndef TT_KERNELS_HOST_REDUCE_H
#define TT_KERNELS_HOST_REDUCE_H

#include "kernels/host/host.h"

/* Pointers need no alignment. Where an output is also an input it is exactly the same range. Indexed by
 * ncclDataType_t; NULL where a type has no such loop. */
struct tt_reduce_kernels {
  const char *name;
  /* out = a op b, by ncclRedOp_t. Not for the types of 16 and 8 bits that are
   * floating-point numbers, which are combined in fp32. */
  void (*combine[ncclNumTypes][4])(void *out, const void *a, const void *b, size_t count);
  void (*scale[ncclNumTypes])(void *out, const void *in, const struct tt_reduction *reduction, size_t count);
  void (*divide[ncclNumTypes])(void *values, int64_t divisor, size_t count); /* integers only */
  void (*widen[ncclNumTypes])(float *out, const void *in, size_t count);     /* those types only */
  void (*narrow[ncclNumTypes])(void *out, const float *in, size_t count);
};

extern const struct tt_reduce_kernels tt_reduce_kernels_base;
#ifdef __x86_64__
extern const struct tt_reduce_kernels tt_reduce_kernels_avx2;
extern const struct tt_reduce_kernels tt_reduce_kernels_avx512;
#endif

/* Those that this machine can run, best first: number 0, 1, ...; NULL after the last. */
const struct tt_reduce_kernels *tt_reduce_kernels(int number);

/* tt_host_reduce with given kernels. */
void tt_reduce_with(const struct tt_reduce_kernels *kernels, const struct tt_reduction *reduction, void *const *dst,
                    int ndst, const void *const *src, int nsrc, const unsigned char *scaled, int final, size_t count);

/* Whether values of this type can be reduced, not only moved. */
int tt_reduce_supports(int datatype);

#endif
