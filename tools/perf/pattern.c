/* See pattern.h. Expectations are computed here with 64-bit integers and doubles, sharing nothing with the library. */
#include "pattern.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 512 /* elements computed at once: two blocks of 8-byte values stay in the first-level cache */

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t mix(uint64_t x)
{
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline uint64_t seed_of(const struct perf_pattern *p, int rank)
{
  return mix(mix(p->epoch * 0x9e3779b97f4a7c15u + 1) + (uint64_t)(rank + 2) * 0xd1342543de82ef95u);
}

static inline uint64_t bits_at(uint64_t seed, size_t index)
{
  return mix(seed + (uint64_t)index * 0x9e3779b97f4a7c15u);
}

/* A number below `limit` (at most 2^32) from 32 random bits. */
static inline uint64_t below(uint64_t bits, uint64_t limit)
{
  return ((bits >> 32) * limit) >> 32;
}

/* Sign- or zero-extends the low bits of `value`, which is then the value itself for every integer type. */
static inline uint64_t narrow(const struct perf_type *type, uint64_t value)
{
  int unused = 64 - 8 * type->bytes;
  if (type->kind == PERF_SIGNED) return (uint64_t)((int64_t)(value << unused) >> unused);
  return value << unused >> unused;
}

/* The largest magnitude of an input such that the sum over all ranks is exact. 0 if there are more ranks than that:
 * then only as many ranks as fit contribute 0 or 1. */
static uint64_t sum_bound(const struct perf_pattern *p)
{
  int digits = p->type->digits - (p->type->kind == PERF_UNSIGNED);
  uint64_t most = p->type->kind == PERF_FLOATING ? 1ull << digits : (1ull << digits) - 1;
  uint64_t bound = most / (uint64_t)p->nranks;
  return bound < (1u << 30) ? bound : (1u << 30);
}

static int64_t small_integer(const struct perf_pattern *p, uint64_t bound, int rank, uint64_t bits)
{
  if (bound == 0) return (uint64_t)rank < (1ull << (p->type->digits - 1)) ? (int64_t)(bits & 1) : 0;
  int64_t value = (int64_t)below(bits, 2 * bound + 1);
  return p->type->kind == PERF_UNSIGNED ? value : value - (int64_t)bound;
}

static void integers(const struct perf_pattern *p, int rank, size_t first, size_t count, uint64_t *out)
{
  uint64_t seed = seed_of(p, rank), bound = sum_bound(p);
  for (size_t i = 0; i < count; i++) {
    uint64_t bits = bits_at(seed, first + i);
    if (p->op->op == ncclProd) bits |= 1; /* odd: even ones would soon multiply to zero */
    if (p->op->op == ncclAvg) bits = (uint64_t)small_integer(p, bound, rank, bits);
    out[i] = narrow(p->type, bits);
  }
}

/* A factor whose product over all ranks is exact: only 12 ranks have an exponent other than 0 (in -1..1), and only the
 * rank that owns the index has more than one bit of mantissa, so products stay within 2^-12 .. 2^13. */
static double factor(const struct perf_pattern *p, int digits, int rank, size_t index, uint64_t bits)
{
  int exponent = rank < 12 ? (int)below(bits, 3) - 1 : 0;
  double value = 1.0;
  if ((uint32_t)(index + p->epoch) % (uint32_t)p->nranks == (uint32_t)rank)
    value = 1.0 + ldexp((double)(bits & ((1u << (digits - 1)) - 1)), 1 - digits);
  return ldexp(bits & (1u << 31) ? -value : value, exponent);
}

static void floats(const struct perf_pattern *p, int rank, size_t first, size_t count, double *out)
{
  uint64_t seed = seed_of(p, rank), bound = sum_bound(p);
  int digits = p->type->digits < 30 ? p->type->digits : 30;
  for (size_t i = 0; i < count; i++) {
    uint64_t bits = bits_at(seed, first + i);
    if (p->op->op == ncclProd) {
      out[i] = factor(p, digits, rank, first + i, bits);
    } else if (p->op->op == ncclMin || p->op->op == ncclMax) {
      double value = ldexp(1.0 + (double)below(bits, (1u << digits) - 1), (int)((bits >> 8) & 7) - 7 + (16 - digits));
      out[i] = bits & 1 ? -value : value;
    } else {
      out[i] = (double)small_integer(p, bound, rank, bits);
    }
  }
}

void perf_pattern_encode(const struct perf_type *type, double value, void *out)
{
  if (type->type == ncclFloat64) {
    memcpy(out, &value, 8);
    return;
  }
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (type->type == ncclFloat32) {
    memcpy(out, &bits, 4);
    return;
  }
  uint16_t low = (uint16_t)(bits >> 16);
  if (type->type == ncclFloat16) {
    /* Rebias the exponent from 127 to 15; the test data has no subnormals, infinities or NaNs. */
    uint32_t magnitude = bits & 0x7fffffffu;
    low = (uint16_t)((bits >> 16 & 0x8000u) | (magnitude ? (magnitude - (112u << 23)) >> 13 : 0));
  }
  memcpy(out, &low, 2);
}

double perf_pattern_decode(const struct perf_type *type, const void *in)
{
  double value;
  float single;
  uint16_t low;
  uint32_t bits;
  if (type->type == ncclFloat64) {
    memcpy(&value, in, 8);
    return value;
  }
  if (type->type == ncclFloat32) {
    memcpy(&single, in, 4);
    return single;
  }
  memcpy(&low, in, 2);
  if (type->type == ncclBfloat16) {
    bits = (uint32_t)low << 16;
    memcpy(&single, &bits, 4);
    return single;
  }
  int exponent = low >> 10 & 31, mantissa = low & 1023;
  if (exponent == 31) value = mantissa ? NAN : INFINITY;
  else value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  return low & 0x8000 ? -value : value;
}

void perf_pattern_fill(const struct perf_pattern *p, int rank, size_t first, size_t count, void *out)
{
  char *to = out;
  int bytes = p->type->bytes;
  union {
    uint64_t integer[BLOCK];
    double floating[BLOCK];
  } block;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t n = count - done < BLOCK ? count - done : BLOCK;
    bool raw = rank == PERF_POISON || !p->op, floating = !raw && p->type->kind == PERF_FLOATING;
    if (raw) {
      uint64_t seed = seed_of(p, rank);
      for (size_t i = 0; i < n; i++) block.integer[i] = bits_at(seed, first + done + i);
    } else if (floating) {
      floats(p, rank, first + done, n, block.floating);
    } else {
      integers(p, rank, first + done, n, block.integer);
    }
    for (size_t i = 0; i < n; i++, to += bytes) {
      if (floating) perf_pattern_encode(p->type, block.floating[i], to);
      else memcpy(to, &block.integer[i], (size_t)bytes); /* little-endian: the low bytes come first */
    }
  }
}

static uint64_t combine_integers(const struct perf_pattern *p, uint64_t a, uint64_t b)
{
  bool less = p->type->kind == PERF_SIGNED ? (int64_t)b < (int64_t)a : b < a;
  switch (p->op->op) {
  case ncclProd: return narrow(p->type, a * b);
  case ncclMin: return less ? b : a;
  case ncclMax: return less ? a : b;
  default: return narrow(p->type, a + b);
  }
}

static void reduce_integers(const struct perf_pattern *p, size_t first, size_t count, uint64_t *result)
{
  uint64_t input[BLOCK];
  integers(p, 0, first, count, result);
  for (int rank = 1; rank < p->nranks; rank++) {
    integers(p, rank, first, count, input);
    for (size_t i = 0; i < count; i++) result[i] = combine_integers(p, result[i], input[i]);
  }
  if (p->op->op != ncclAvg) return;
  for (size_t i = 0; i < count; i++) {
    if (p->type->kind == PERF_SIGNED) result[i] = (uint64_t)((int64_t)result[i] / p->nranks);
    else result[i] /= (uint64_t)p->nranks;
  }
}

/* `size` receives the sum of the absolute inputs, which bounds the error of an average. */
static void reduce_floats(const struct perf_pattern *p, size_t first, size_t count, double *result, double *size)
{
  double input[BLOCK];
  for (int rank = 0; rank < p->nranks; rank++) {
    floats(p, rank, first, count, input);
    for (size_t i = 0; i < count; i++) {
      double value = input[i];
      if (rank == 0) result[i] = value, size[i] = fabs(value);
      else if (p->op->op == ncclProd) result[i] *= value;
      else if (p->op->op == ncclMin) result[i] = value < result[i] ? value : result[i];
      else if (p->op->op == ncclMax) result[i] = value > result[i] ? value : result[i];
      else result[i] += value, size[i] += fabs(value);
    }
  }
}

double perf_pattern_tolerance(const struct perf_pattern *p)
{
  int n = p->nranks;
  if (!p->op || p->op->op != ncclAvg || p->type->kind != PERF_FLOATING || (n & (n - 1)) == 0) return 0;
  /* Rounding 1/n, each product, n - 1 additions and the final conversion: at most n + 2 roundings touch a term, each
   * with a relative error of at most u, so that the error is at most k u / (1 - k u) times the mean magnitude (Higham,
   * Accuracy and Stability, lemma 3.1). Beyond k u = 1/2 that says no more than that the result has the right size. */
  double ku = (n + 2) * ldexp(1.0, -p->type->digits);
  return ku < 0.5 ? ku / (1 - ku) : 1.0;
}

static bool floats_equal(const struct perf_pattern *p, double sum, double size, double actual, double tolerance)
{
  if (p->op->op != ncclAvg) return actual == sum;
  if (tolerance == 0) return actual == sum / p->nranks;
  /* Doubles are checked with the extra digits of long double. */
  long double error = (long double)actual - (long double)sum / p->nranks;
  return fabsl(error) <= (long double)tolerance * size / p->nranks;
}

size_t perf_pattern_compare(const struct perf_pattern *p, int origin, int reduced, size_t first, size_t count,
                            const void *actual, size_t *where)
{
  const char *from = actual;
  size_t wrong = 0, bytes = (size_t)p->type->bytes;
  double tolerance = perf_pattern_tolerance(p), floating[BLOCK], size[BLOCK];
  uint64_t integer[BLOCK];
  char moved[BLOCK * 8];
  for (size_t done = 0; done < count; done += BLOCK, from += BLOCK * bytes) {
    size_t n = count - done < BLOCK ? count - done : BLOCK;
    if (!reduced) {
      perf_pattern_fill(p, origin, first + done, n, moved);
      if (!memcmp(from, moved, n * bytes)) continue;
    } else if (p->type->kind == PERF_FLOATING) {
      reduce_floats(p, first + done, n, floating, size);
    } else {
      reduce_integers(p, first + done, n, integer);
    }
    for (size_t i = 0; i < n; i++) {
      const char *at = from + i * bytes;
      bool equal;
      if (!reduced) equal = !memcmp(at, moved + i * bytes, bytes);
      else if (p->type->kind == PERF_FLOATING)
        equal = floats_equal(p, floating[i], size[i], perf_pattern_decode(p->type, at), tolerance);
      else equal = !memcmp(at, &integer[i], bytes);
      if (!equal && wrong++ == 0) *where = done + i;
    }
  }
  return wrong;
}

/* Prints an element: floating values as numbers where the data is arithmetic, else the bits. */
static void print_element(const struct perf_pattern *p, const void *element, char *text, size_t size)
{
  uint64_t bits = 0;
  memcpy(&bits, element, (size_t)p->type->bytes);
  if (p->op && p->type->kind == PERF_FLOATING) snprintf(text, size, "%.17g", perf_pattern_decode(p->type, element));
  else if (p->op && p->type->kind == PERF_SIGNED) snprintf(text, size, "%" PRId64, (int64_t)narrow(p->type, bits));
  else if (p->op) snprintf(text, size, "%" PRIu64, bits);
  else snprintf(text, size, "0x%0*" PRIx64, 2 * p->type->bytes, bits);
}

void perf_pattern_explain(const struct perf_pattern *p, int origin, int reduced, size_t index, const void *actual,
                          char *expected_text, char *actual_text, size_t size)
{
  char element[8];
  print_element(p, actual, actual_text, size);
  if (!reduced) {
    perf_pattern_fill(p, origin, index, 1, element);
    print_element(p, element, expected_text, size);
  } else if (p->type->kind == PERF_FLOATING) {
    double value, magnitude;
    reduce_floats(p, index, 1, &value, &magnitude);
    snprintf(expected_text, size, "%.17g", p->op->op == ncclAvg ? value / p->nranks : value);
  } else {
    uint64_t value;
    reduce_integers(p, index, 1, &value);
    print_element(p, &value, expected_text, size);
  }
}
