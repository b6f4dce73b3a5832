/* Half precision and bfloat16 to and from fp32, in portable C: what machines without such instructions use, and
 * bit-identical to those with them (a NaN is made quiet and keeps its sign and upper payload bits). Written without
 * branches, so that compilers vectorise loops over them. Assumes the default rounding mode. */
#ifndef TT_KERNELS_HOST_HALF_H
#define TT_KERNELS_HOST_HALF_H

#include <stdint.h>
#include <string.h>

/* GPUs without instructions for fp8 use these functions, too (kernels/cuda/fp8.cuh). */
#ifdef __CUDACC__
#define TT_ANYWHERE __host__ __device__
#else
#define TT_ANYWHERE
#endif

static inline TT_ANYWHERE uint32_t tt_float_bits(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline TT_ANYWHERE float tt_bits_float(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline float tt_half_to_float(uint16_t half)
{
  uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  uint32_t rest = half & 0x7fff;
  uint32_t normal = (rest << 13) + (112u << 23);
  uint32_t subnormal = tt_float_bits((float)(int32_t)rest * 0x1p-24f); /* the unit of subnormal halves is 2^-24 */
  uint32_t bits = rest < 0x400 ? subnormal : normal;
  bits = rest >= 0x7c00 ? 0x7f800000 | (rest << 13) : bits;
  return tt_bits_float(sign | (rest > 0x7c00 ? bits | 0x400000 : bits));
}

static inline uint16_t tt_float_to_half(float value)
{
  uint32_t bits = tt_float_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t rest = bits & 0x7fffffff;
  uint32_t normal = (rest - (112u << 23) + 0xfff + ((rest >> 13) & 1)) >> 13;
  /* Numbers from 1/2 to 1 are spaced 2^-24, so adding 1/2 rounds to whole units of subnormal halves. */
  uint32_t subnormal = tt_float_bits(tt_bits_float(rest) + 0.5f) - 0x3f000000;
  uint32_t nan = 0x7e00 | ((rest >> 13) & 0x3ff);
  uint32_t half = rest < 0x38800000 ? subnormal : normal; /* below 2^-14 */
  half = rest >= 0x477ff000 ? 0x7c00 : half;              /* 65520 and above round to infinity */
  half = rest > 0x7f800000 ? nan : half;
  return (uint16_t)(sign | half);
}

static inline float tt_bfloat_to_float(uint16_t value)
{
  return tt_bits_float((uint32_t)value << 16);
}

static inline uint16_t tt_float_to_bfloat(float value)
{
  uint32_t bits = tt_float_bits(value);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  uint32_t nan = (bits >> 16) | 0x40;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

#endif
