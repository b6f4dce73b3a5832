/* See pattern.h. Expectations are computed here with 64-bit integers and doubles, sharing nothing with the library. */
#include "pattern.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "formats.h"

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

/* The loops below have their conditions outside, since they run for every element of every rank. */
static void integers(const struct perf_pattern *p, int rank, size_t first, size_t count, uint64_t *out)
{
  const struct perf_type *type = p->type;
  uint64_t seed = seed_of(p, rank), bound = sum_bound(p);
  for (size_t i = 0; i < count; i++) out[i] = bits_at(seed, first + i);
  if (p->op->op == ncclProd) /* odd: even ones would soon multiply to zero */
    for (size_t i = 0; i < count; i++) out[i] |= 1;
  if (p->op->op == ncclAvg)
    for (size_t i = 0; i < count; i++) out[i] = (uint64_t)small_integer(p, bound, rank, out[i]);
  for (size_t i = 0; i < count; i++) out[i] = narrow(type, out[i]);
}

/* A factor whose product over all ranks is exact: only 12 ranks have an exponent other than 0 (in -1..1), fewer where
 * the type has fewer, and only the rank that owns the index has more than one bit of mantissa. So products stay within
 * 2^-12 .. 2^13. */
static double factor(const struct perf_pattern *p, int digits, int rank, size_t index, uint64_t bits)
{
  int exponent = rank < 12 && rank < p->type->range ? (int)below(bits, 3) - 1 : 0;
  double value = 1.0;
  if ((uint32_t)(index + p->epoch) % (uint32_t)p->nranks == (uint32_t)rank)
    value = 1.0 + (double)(int64_t)(bits & ((1u << (digits - 1)) - 1)) * perf_power_of_two(1 - digits);
  value *= perf_power_of_two(exponent);
  return value * perf_sign_of(bits >> 31);
}

/* Numbers of all digits over 7 powers of two; the largest are below 2^16, or what the type has. */
static double any_number(const struct perf_type *type, int digits, uint64_t bits)
{
  int lowest = (type->range < 14 ? type->range - 5 : 9) - digits;
  double value =
      (1.0 + (double)(int64_t)below(bits, (1u << digits) - 1)) * perf_power_of_two((int)(bits >> 8 & 7) + lowest);
  return value * perf_sign_of(bits);
}

static void floats(const struct perf_pattern *p, int rank, size_t first, size_t count, double *out)
{
  uint64_t seed = seed_of(p, rank), bound = sum_bound(p);
  int digits = p->type->digits < 30 ? p->type->digits : 30;
  switch (p->op->op) {
  case ncclProd:
    for (size_t i = 0; i < count; i++) out[i] = factor(p, digits, rank, first + i, bits_at(seed, first + i));
    break;
  case ncclMin:
  case ncclMax:
    for (size_t i = 0; i < count; i++) out[i] = any_number(p->type, digits, bits_at(seed, first + i));
    break;
  default:
    for (size_t i = 0; i < count; i++) out[i] = (double)small_integer(p, bound, rank, bits_at(seed, first + i));
  }
}

void perf_pattern_encode(const struct perf_type *type, double value, void *out)
{
  perf_format_encode(type, &value, 1, out);
}

double perf_pattern_decode(const struct perf_type *type, const void *in)
{
  double value;
  perf_format_decode(type, in, 1, &value);
  return value;
}

/* The low bytes of each, whatever the byte order and alignment. */
static void put_integers(const uint64_t *from, size_t count, size_t bytes, char *to)
{
  uint32_t four;
  uint8_t one;
  uint16_t two;
  for (size_t i = 0; bytes == 1 && i < count; i++) one = (uint8_t)from[i], memcpy(to + i, &one, 1);
  for (size_t i = 0; bytes == 2 && i < count; i++) two = (uint16_t)from[i], memcpy(to + 2 * i, &two, 2);
  for (size_t i = 0; bytes == 4 && i < count; i++) four = (uint32_t)from[i], memcpy(to + 4 * i, &four, 4);
  if (bytes == 8) memcpy(to, from, 8 * count);
}

void perf_pattern_fill(const struct perf_pattern *p, int rank, size_t first, size_t count, void *out)
{
  char *to = out;
  size_t bytes = (size_t)p->type->bytes;
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
    if (floating)
      perf_format_encode(p->type, block.floating, n, to);
    else
      put_integers(block.integer, n, bytes, to);
    to += n * bytes;
  }
}

#define EACH(expression)                                                                                               \
  for (size_t i = 0; i < count; i++) a[i] = (expression)

/* a = a op b. */
static void combine_integers(const struct perf_pattern *p, size_t count, uint64_t *a, const uint64_t *b)
{
  const struct perf_type *type = p->type;
  bool is_signed = type->kind == PERF_SIGNED;
  switch (p->op->op) {
  case ncclProd:
    EACH(narrow(type, a[i] * b[i]));
    break;
  case ncclMin:
    if (is_signed)
      EACH((int64_t)b[i] < (int64_t)a[i] ? b[i] : a[i]);
    else
      EACH(b[i] < a[i] ? b[i] : a[i]);
    break;
  case ncclMax:
    if (is_signed)
      EACH((int64_t)b[i] > (int64_t)a[i] ? b[i] : a[i]);
    else
      EACH(b[i] > a[i] ? b[i] : a[i]);
    break;
  default:
    EACH(narrow(type, a[i] + b[i]));
    break;
  }
}

static void reduce_integers(const struct perf_pattern *p, size_t first, size_t count, uint64_t *result)
{
  uint64_t input[BLOCK];
  integers(p, 0, first, count, result);
  for (int rank = 1; rank < p->nranks; rank++) {
    integers(p, rank, first, count, input);
    combine_integers(p, count, result, input);
  }
  if (p->op->op != ncclAvg) return;
  for (size_t i = 0; i < count; i++) {
    if (p->type->kind == PERF_SIGNED)
      result[i] = (uint64_t)((int64_t)result[i] / p->nranks);
    else
      result[i] /= (uint64_t)p->nranks;
  }
}

/* `size` receives the sum of the absolute inputs, which bounds the error of an average. */
static void reduce_floats(const struct perf_pattern *p, size_t first, size_t count, double *a, double *size)
{
  double b[BLOCK];
  floats(p, 0, first, count, a);
  for (size_t i = 0; i < count; i++) size[i] = fabs(a[i]);
  for (int rank = 1; rank < p->nranks; rank++) {
    floats(p, rank, first, count, b);
    switch (p->op->op) {
    case ncclProd:
      EACH(a[i] * b[i]);
      break;
    case ncclMin:
      EACH(b[i] < a[i] ? b[i] : a[i]);
      break;
    case ncclMax:
      EACH(b[i] > a[i] ? b[i] : a[i]);
      break;
    default:
      EACH(a[i] + b[i]);
      break;
    }
    for (size_t i = 0; i < count; i++) size[i] += fabs(b[i]);
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
  double tolerance = perf_pattern_tolerance(p), floating[BLOCK], size[BLOCK], found[BLOCK];
  uint64_t integer[BLOCK];
  char bits[BLOCK * 8];
  for (size_t done = 0; done < count; done += BLOCK, from += BLOCK * bytes) {
    size_t n = count - done < BLOCK ? count - done : BLOCK;
    bool by_value = reduced && p->type->kind == PERF_FLOATING;
    if (by_value) {
      reduce_floats(p, first + done, n, floating, size);
      perf_format_decode(p->type, from, n, found);
    } else {
      if (reduced)
        reduce_integers(p, first + done, n, integer), put_integers(integer, n, bytes, bits);
      else
        perf_pattern_fill(p, origin, first + done, n, bits);
      if (!memcmp(from, bits, n * bytes)) continue;
    }
    for (size_t i = 0; i < n; i++) {
      const char *at = from + i * bytes;
      bool equal =
          by_value ? floats_equal(p, floating[i], size[i], found[i], tolerance) : !memcmp(at, bits + i * bytes, bytes);
      if (!equal && wrong++ == 0) *where = done + i;
    }
  }
  return wrong;
}

static uint64_t get_integer(const void *element, size_t bytes)
{
  uint8_t one;
  uint16_t two;
  uint32_t four;
  uint64_t eight;
  switch (bytes) {
  case 1:
    return memcpy(&one, element, 1), one;
  case 2:
    return memcpy(&two, element, 2), two;
  case 4:
    return memcpy(&four, element, 4), four;
  default:
    return memcpy(&eight, element, 8), eight;
  }
}

/* Prints an element: floating values as numbers where the data is arithmetic, else the bits. */
static void print_element(const struct perf_pattern *p, const void *element, char *text, size_t size)
{
  uint64_t bits = get_integer(element, (size_t)p->type->bytes);
  if (p->op && p->type->kind == PERF_FLOATING)
    snprintf(text, size, "%.17g", perf_pattern_decode(p->type, element));
  else if (p->op && p->type->kind == PERF_SIGNED)
    snprintf(text, size, "%" PRId64, (int64_t)narrow(p->type, bits));
  else if (p->op)
    snprintf(text, size, "%" PRIu64, bits);
  else
    snprintf(text, size, "0x%0*" PRIx64, 2 * p->type->bytes, bits);
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
    put_integers(&value, 1, (size_t)p->type->bytes, element);
    print_element(p, element, expected_text, size);
  }
}
