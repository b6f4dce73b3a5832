/* The fp8 types to and from fp32, in portable C without branches. E4M3 has no infinities and one NaN for each sign;
 * E5M2 is the upper half of a half. As CUDA's conversions do, rounding to nearest even stops at the largest finite
 * number, infinity included, and a NaN loses its sign and payload. Assumes the default rounding mode. */
#ifndef TT_KERNELS_HOST_FP8_H
#define TT_KERNELS_HOST_FP8_H

#include "kernels/host/half.h"

static inline TT_ANYWHERE float tt_e4m3_to_float(uint8_t value)
{
  uint32_t sign = (uint32_t)(value & 0x80) << 24, rest = value & 0x7f;
  uint32_t normal = (rest << 20) + (120u << 23);
  uint32_t subnormal = tt_float_bits((float)(int32_t)rest * 0x1p-9f); /* the unit of subnormals */
  uint32_t bits = rest < 8 ? subnormal : normal;
  return tt_bits_float(sign | (rest == 0x7f ? 0x7fc00000 : bits));
}

static inline TT_ANYWHERE uint8_t tt_float_to_e4m3(float value)
{
  uint32_t bits = tt_float_bits(value), sign = (bits >> 24) & 0x80, rest = bits & 0x7fffffff;
  uint32_t normal = (rest - (120u << 23) + 0x7ffff + ((rest >> 20) & 1)) >> 20;
  /* Numbers from 2^14 on are spaced 2^-9, so adding 2^14 rounds to whole units of subnormals. */
  uint32_t subnormal = tt_float_bits(tt_bits_float(rest) + 0x1p14f) - 0x46800000;
  uint32_t code = rest < 0x3c800000 ? subnormal : normal; /* below 2^-6 */
  code = rest > 0x43e00000 ? 0x7e : code;                 /* above 448 */
  return rest > 0x7f800000 ? 0x7f : (uint8_t)(sign | code);
}

/* Not by way of a half: so that the loop over it is vectorised. */
static inline TT_ANYWHERE float tt_e5m2_to_float(uint8_t value)
{
  uint32_t sign = (uint32_t)(value & 0x80) << 24, rest = value & 0x7f;
  uint32_t normal = (rest << 21) + (112u << 23);
  uint32_t subnormal = tt_float_bits((float)(int32_t)rest * 0x1p-16f); /* the unit of subnormals */
  uint32_t bits = rest < 4 ? subnormal : normal;
  bits = rest >= 0x7c ? 0x7f800000 | rest << 21 : bits; /* 0x7c is infinity */
  return tt_bits_float(sign | (rest > 0x7c ? 0x7fc00000 : bits));
}

static inline TT_ANYWHERE uint8_t tt_float_to_e5m2(float value)
{
  uint32_t bits = tt_float_bits(value), sign = (bits >> 24) & 0x80, rest = bits & 0x7fffffff;
  uint32_t normal = (rest - (112u << 23) + 0xfffff + ((rest >> 21) & 1)) >> 21;
  uint32_t subnormal = tt_float_bits(tt_bits_float(rest) + 0x1p7f) - 0x43000000; /* as above, with 2^7 and 2^-16 */
  uint32_t code = rest < 0x38800000 ? subnormal : normal;                        /* below 2^-14 */
  code = rest > 0x47600000 ? 0x7b : code;                                        /* above 57344 */
  return rest > 0x7f800000 ? 0x7f : (uint8_t)(sign | code);
}

#endif
