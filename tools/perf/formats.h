/* Numbers to and from the elements of floating types, computed here from the formats' definitions, sharing nothing with
 * the library. */
#ifndef PERF_FORMATS_H
#define PERF_FORMATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "types.h"

/* 2^exponent for -1022 <= exponent <= 1023, faster than ldexp. */
static inline double perf_power_of_two(int exponent)
{
  uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

/* -1 or 1, without a branch: it would be mispredicted every other time. */
static inline double perf_sign_of(uint64_t bits)
{
  return (double)(1 - 2 * (int)(bits & 1));
}

/* The numbers must be exact in the type, and not subnormal in it, infinite or NaN. Elements need no alignment. */
void perf_format_encode(const struct perf_type *type, const double *from, size_t count, char *to);
/* Any elements. */
void perf_format_decode(const struct perf_type *type, const char *from, size_t count, double *to);

#endif
