/* The reductions' inner loops for the instruction set that the whole library is compiled for. */
#include "kernels/host/reduce.h"
#include "kernels/host/half.h"

static void widen_half(float *out, const void *in, size_t count)
{
  const unsigned char *x = in;
  for (size_t i = 0; i < count; i++) {
    uint16_t half;
    memcpy(&half, x + 2 * i, sizeof(half));
    out[i] = tt_half_to_float(half);
  }
}

static void narrow_half(void *out, const float *in, size_t count)
{
  unsigned char *o = out;
  for (size_t i = 0; i < count; i++) {
    uint16_t half = tt_float_to_half(in[i]);
    memcpy(o + 2 * i, &half, sizeof(half));
  }
}

#define TT_LEVEL base
#define TT_WIDEN_HALF widen_half
#define TT_NARROW_HALF narrow_half
#include "kernels/host/reduce_loops.h"
