/* See reference.h. */
#include "reference.h"

#include <math.h>
#include <string.h>
#include "tutti/device.h"

static uint64_t random_state = 1;

uint64_t reference_random(void)
{
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

bool reference_is_float(int type)
{
  return type >= ncclFloat16 && type < ncclNumTypes;
}

bool reference_is_signed(int type)
{
  return type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
}

uint64_t reference_integer(int type, const unsigned char *at)
{
  uint64_t value = 0;
  size_t bytes = tt_datatype_bytes(type);
  memcpy(&value, at, bytes);
  if (!reference_is_signed(type)) return value;
  int unused = 64 - 8 * (int)bytes;
  return (uint64_t)((int64_t)(value << unused) >> unused);
}

/* A format with a sign, exponents with a bias and `digits` bits of fraction. */
static double decode(unsigned magnitude, bool negative, int digits, int bias)
{
  int exponent = (int)(magnitude >> digits), fraction = (int)(magnitude & ((1u << digits) - 1));
  double value =
      exponent == 0 ? ldexp(fraction, 1 - bias - digits) : ldexp((1 << digits) + fraction, exponent - bias - digits);
  return negative ? -value : value;
}

/* What the largest exponent means in formats that have infinities. */
static double special(unsigned fraction, bool negative)
{
  double value = fraction ? NAN : INFINITY;
  return negative ? -value : value;
}

/* Tables, since tests look up millions. */
static double halves[65536], bfloats[65536], fp8s[2][256];

static void make_tables(void)
{
  for (unsigned i = 0; i < 65536; i++) {
    halves[i] = (i >> 10 & 31) == 31 ? special(i & 1023, i >> 15) : decode(i & 0x7fff, i >> 15, 10, 15);
    bfloats[i] = (i >> 7 & 255) == 255 ? special(i & 127, i >> 15) : decode(i & 0x7fff, i >> 15, 7, 127);
  }
  for (unsigned i = 0; i < 256; i++) {
    unsigned magnitude = i & 127;
    fp8s[0][i] = magnitude == 127 ? (double)NAN : decode(magnitude, i >> 7, 3, 7);
    fp8s[1][i] = magnitude >= 124 ? special(magnitude & 3, i >> 7) : decode(magnitude, i >> 7, 2, 15);
  }
}

double reference_half_value(uint16_t bits)
{
  if (halves[1] == 0) make_tables();
  return halves[bits];
}

double reference_bfloat_value(uint16_t bits)
{
  if (halves[1] == 0) make_tables();
  return bfloats[bits];
}

double reference_fp8_value(int type, uint8_t code)
{
  if (halves[1] == 0) make_tables();
  return fp8s[type == ncclFloat8e5m2][code];
}

double reference_float_value(int type, const unsigned char *at)
{
  uint16_t bits;
  float single;
  double value;
  switch (type) {
  case ncclFloat8e4m3:
  case ncclFloat8e5m2:
    return reference_fp8_value(type, *at);
  case ncclFloat16:
    memcpy(&bits, at, 2);
    return reference_half_value(bits);
  case ncclBfloat16:
    memcpy(&bits, at, 2);
    return reference_bfloat_value(bits);
  case ncclFloat32:
    memcpy(&single, at, 4);
    return single;
  default:
    memcpy(&value, at, 8);
    return value;
  }
}

/* Rounds to nearest even by exact arithmetic on doubles: `digits` bits of fraction, `lowest` the smallest exponent. */
static double round_to(double value, int digits, int lowest)
{
  if (value == 0 || !isfinite(value)) return value;
  int exponent;
  frexp(value, &exponent);
  exponent--;
  double unit = ldexp(1.0, (exponent < lowest ? lowest : exponent) - digits);
  return nearbyint(value / unit) * unit;
}

/* Beyond the largest number there is `beyond`. */
static double limit(double value, double largest, double beyond)
{
  return fabs(value) > largest ? copysign(beyond, value) : value;
}

double reference_round(int type, double value)
{
  switch (type) {
  case ncclFloat8e4m3:
    return limit(round_to(value, 3, -6), 448, 448);
  case ncclFloat8e5m2:
    return limit(round_to(value, 2, -14), 57344, 57344);
  case ncclFloat16:
    return limit(round_to(value, 10, -14), 65504, INFINITY);
  case ncclBfloat16:
    return limit(round_to(value, 7, -126), 0x1.fep127, INFINITY);
  default:
    return type == ncclFloat32 ? (float)value : value;
  }
}

uint8_t reference_fp8_code(int type, double value)
{
  int largest = type == ncclFloat8e4m3 ? 0x7e : 0x7b, best = 0;
  double size = fabs(value);
  if (isnan(value)) return 0x7f;
  for (int code = 0; code <= largest; code++) {
    double here = fabs(reference_fp8_value(type, (uint8_t)code) - size);
    double before = fabs(reference_fp8_value(type, (uint8_t)best) - size);
    if (here < before || (here == before && code % 2 == 0)) best = code;
  }
  if (size > reference_fp8_value(type, (uint8_t)largest)) best = largest;
  return (uint8_t)(best | (signbit(value) ? 128 : 0));
}

double reference_extreme(int op, double a, double b)
{
  if (isnan(a) || isnan(b)) return isnan(a) ? b : a;
  return op == ncclMax ? (b > a ? b : a) : (b < a ? b : a);
}
