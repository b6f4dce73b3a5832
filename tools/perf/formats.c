/* See formats.h. */
#include "formats.h"

#include <math.h>

static inline uint32_t float_bits(double value)
{
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  return bits;
}

/* A smaller format: its exponents have this bias, and of a float's 23 fraction bits it has none of the last `lost`. The
 * sign is apart. */
static inline uint32_t small_bits(double value, uint32_t bias, int lost)
{
  uint32_t magnitude = float_bits(value) & 0x7fffffffu;
  return magnitude ? (magnitude - ((127 - bias) << 23)) >> lost : 0;
}

static inline uint16_t half_bits(double value)
{
  return (uint16_t)((float_bits(value) >> 16 & 0x8000u) | small_bits(value, 15, 13));
}

static inline uint8_t e4m3_bits(double value)
{
  return (uint8_t)((float_bits(value) >> 24 & 0x80u) | small_bits(value, 7, 20));
}

static inline double e4m3_value(uint8_t bits)
{
  int exponent = bits >> 3 & 15, mantissa = bits & 7;
  double value = exponent ? (8 + mantissa) * perf_power_of_two(exponent - 10) : mantissa * 0x1p-9;
  return (bits & 127) == 127 ? (double)NAN : value * perf_sign_of(bits >> 7);
}

static inline double half_value(uint16_t bits)
{
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value;
  if (exponent == 31)
    value = mantissa ? NAN : INFINITY;
  else
    value = exponent ? (1024 + mantissa) * perf_power_of_two(exponent - 25) : mantissa * 0x1p-24;
  return value * perf_sign_of(bits >> 15);
}

void perf_format_encode(const struct perf_type *type, const double *from, size_t count, char *to)
{
  uint32_t bits;
  uint16_t low;
  switch (type->type) {
  case ncclFloat64:
    memcpy(to, from, 8 * count);
    break;
  case ncclFloat32:
    for (size_t i = 0; i < count; i++) bits = float_bits(from[i]), memcpy(to + 4 * i, &bits, 4);
    break;
  case ncclFloat16:
    for (size_t i = 0; i < count; i++) low = half_bits(from[i]), memcpy(to + 2 * i, &low, 2);
    break;
  case ncclFloat8e4m3:
    for (size_t i = 0; i < count; i++) to[i] = (char)e4m3_bits(from[i]);
    break;
  case ncclFloat8e5m2: /* the upper half of a half */
    for (size_t i = 0; i < count; i++) to[i] = (char)(half_bits(from[i]) >> 8);
    break;
  default: /* bfloat16: the upper half of a float */
    for (size_t i = 0; i < count; i++) low = (uint16_t)(float_bits(from[i]) >> 16), memcpy(to + 2 * i, &low, 2);
  }
}

void perf_format_decode(const struct perf_type *type, const char *from, size_t count, double *to)
{
  float single;
  uint32_t bits;
  uint16_t low;
  switch (type->type) {
  case ncclFloat64:
    memcpy(to, from, 8 * count);
    break;
  case ncclFloat32:
    for (size_t i = 0; i < count; i++) memcpy(&single, from + 4 * i, 4), to[i] = single;
    break;
  case ncclFloat16:
    for (size_t i = 0; i < count; i++) memcpy(&low, from + 2 * i, 2), to[i] = half_value(low);
    break;
  case ncclFloat8e4m3:
    for (size_t i = 0; i < count; i++) to[i] = e4m3_value((uint8_t)from[i]);
    break;
  case ncclFloat8e5m2:
    for (size_t i = 0; i < count; i++) to[i] = half_value((uint16_t)((uint8_t)from[i] << 8));
    break;
  default:
    for (size_t i = 0; i < count; i++) {
      memcpy(&low, from + 2 * i, 2);
      bits = (uint32_t)low << 16;
      memcpy(&single, &bits, 4);
      to[i] = single;
    }
  }
}
