/* Reductions: every set of inner loops that this machine can run, against one element at a time in plain arithmetic. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/host/half.h"
#include "kernels/host/reduce.h"

/* check writes to a pipe for every assertion that holds, too slow for millions. */
#define EXPECT(condition, ...)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                       \
  } while (0)

static const int types[] = {ncclInt8,   ncclUint8,   ncclInt32,    ncclUint32,  ncclInt64,
                            ncclUint64, ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64};
#define NTYPES 10
#define MAX_SOURCES 9
#define MAX_OUTPUTS 3
#define BIG 1100 /* more than two blocks */

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
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

static double half_value(uint16_t bits)
{
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31  ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(fraction, -24)
                                 : ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static double bfloat_value(uint16_t bits)
{
  int exponent = bits >> 7 & 255, fraction = bits & 127;
  double value = exponent == 255 ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(fraction, -133)
                                 : ldexp(128 + fraction, exponent - 134);
  return bits & 0x8000 ? -value : value;
}

static double float_type_value(int type, const unsigned char *at)
{
  uint16_t bits;
  float f;
  double d;
  memcpy(&bits, at, 2);
  if (type == ncclFloat16) return half_value(bits);
  if (type == ncclBfloat16) return bfloat_value(bits);
  if (type == ncclFloat32) {
    memcpy(&f, at, 4);
    return f;
  }
  memcpy(&d, at, 8);
  return d;
}

static bool is_float(int type)
{
  return type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32 || type == ncclFloat64;
}

static bool is_signed(int type)
{
  return type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
}

static double round_to_type(int type, double value)
{
  if (type == ncclFloat16) {
    double rounded = round_to(value, 10, -14);
    return fabs(rounded) > 65504 ? copysign(INFINITY, rounded) : rounded;
  }
  if (type == ncclBfloat16) {
    double rounded = round_to(value, 7, -126);
    return fabs(rounded) > 0x1.fep127 ? copysign(INFINITY, rounded) : rounded;
  }
  return type == ncclFloat32 ? (float)value : value;
}

/* In the precision that values are combined in. */
static double combine_floats(int type, int op, double a, double b)
{
  double value = op == ncclSum ? a + b : op == ncclProd ? a * b : op == ncclMax ? (b > a ? b : a) : (b < a ? b : a);
  return type == ncclFloat64 ? value : (float)value;
}

static uint64_t integer_value(int type, const unsigned char *at)
{
  uint64_t value = 0;
  size_t bytes = tt_datatype_bytes(type);
  memcpy(&value, at, bytes);
  if (!is_signed(type)) return value;
  int unused = 64 - 8 * (int)bytes;
  return (uint64_t)((int64_t)(value << unused) >> unused);
}

static uint64_t combine_integers(int type, int op, uint64_t a, uint64_t b)
{
  bool b_larger = is_signed(type) ? (int64_t)b > (int64_t)a : b > a;
  uint64_t value = op == ncclSum ? a + b : op == ncclProd ? a * b : (op == ncclMax) == b_larger ? b : a;
  if (op == ncclMin && a == b) value = a;
  unsigned char bytes[8];
  memcpy(bytes, &value, 8);
  return integer_value(type, bytes); /* wraps */
}

struct test_case {
  struct tt_reduction reduction;
  int nsrc, ndst;
  unsigned char scaled[MAX_SOURCES];
  int final;
};

static void check_integer(const struct test_case *c, const unsigned char *const *in, size_t at,
                          const unsigned char *out)
{
  int type = c->reduction.datatype;
  uint64_t result = 0;
  for (int k = 0; k < c->nsrc; k++) {
    uint64_t value = integer_value(type, in[k] + at);
    if (c->scaled[k]) value = combine_integers(type, ncclProd, value, c->reduction.scale.bits);
    result = k == 0 ? value : combine_integers(type, c->reduction.op, result, value);
  }
  if (c->final && c->reduction.divide_result) {
    result =
        is_signed(type) ? (uint64_t)((int64_t)result / c->reduction.divisor) : result / (uint64_t)c->reduction.divisor;
  }
  EXPECT(integer_value(type, out) == result, "type %d op %d nsrc %d: got %llx, expected %llx", type, c->reduction.op,
         c->nsrc, (unsigned long long)integer_value(type, out), (unsigned long long)result);
}

static void check_float(const struct test_case *c, const unsigned char *const *in, size_t at, const unsigned char *out)
{
  int type = c->reduction.datatype;
  double scale = type == ncclFloat64 ? c->reduction.scale.f64 : c->reduction.scale.f32, result = 0;
  for (int k = 0; k < c->nsrc; k++) {
    double value = float_type_value(type, in[k] + at);
    if (c->scaled[k]) value = round_to_type(type, type == ncclFloat64 ? value * scale : (float)(value * scale));
    result = k == 0 ? value : combine_floats(type, c->reduction.op, result, value);
  }
  result = round_to_type(type, result);
  double got = float_type_value(type, out);
  EXPECT((isnan(got) && isnan(result)) || got == result, "type %d op %d nsrc %d: got %a, expected %a", type,
         c->reduction.op, c->nsrc, got, result);
}

/* Small numbers mostly, so that results stay in range; some of any kind. */
static void fill(int type, unsigned char *at, size_t count)
{
  size_t bytes = tt_datatype_bytes(type);
  for (size_t i = 0; i < count; i++, at += bytes) {
    uint64_t bits = random_bits();
    if (is_float(type) && bits % 8 != 0) {
      double value = (double)(int64_t)(bits % 4096) / 1024 - 1;
      float f = (float)value;
      uint16_t half = type == ncclFloat16 ? tt_float_to_half(f) : tt_float_to_bfloat(f);
      memcpy(at, bytes == 8 ? (void *)&value : bytes == 4 ? (void *)&f : (void *)&half, bytes);
    } else {
      memcpy(at, &bits, bytes);
    }
  }
}

enum aliasing { APART, FIRST_INPUT, LAST_INPUT, CROSSED, NALIASINGS };

/* One reduction in memory of its own, so that sanitizers see any access outside. `shift` misaligns all pointers. */
static void run_case(const struct tt_reduce_kernels *kernels, const struct test_case *c, size_t count, size_t shift,
                     enum aliasing aliasing)
{
  int type = c->reduction.datatype;
  size_t bytes = count * tt_datatype_bytes(type);
  unsigned char *in[MAX_SOURCES], *copy[MAX_SOURCES], *out[MAX_OUTPUTS];
  void *blocks[MAX_SOURCES * 2 + MAX_OUTPUTS];
  int nblocks = 0;
  for (int k = 0; k < c->nsrc; k++) {
    in[k] = (unsigned char *)(blocks[nblocks++] = malloc(bytes + shift)) + shift;
    copy[k] = (unsigned char *)(blocks[nblocks++] = malloc(bytes + shift)) + shift;
    fill(type, in[k], count);
    memcpy(copy[k], in[k], bytes);
  }
  for (int d = 0; d < c->ndst; d++) out[d] = (unsigned char *)(blocks[nblocks++] = malloc(bytes + shift)) + shift;
  if (aliasing == FIRST_INPUT) out[0] = in[0];
  if (aliasing == LAST_INPUT) out[c->ndst - 1] = in[c->nsrc - 1];
  if (aliasing == CROSSED) {
    out[0] = in[c->nsrc - 1];
    if (c->nsrc > 1 && c->ndst > 1) out[c->ndst - 1] = in[0];
  }
  tt_reduce_with(kernels, &c->reduction, (void *const *)out, c->ndst, (const void *const *)in, c->nsrc, c->scaled,
                 c->final, count);
  for (int d = 0; d < c->ndst; d++) {
    for (size_t i = 0; i < count; i++) {
      size_t at = i * tt_datatype_bytes(type);
      (is_float(type) ? check_float : check_integer)(c, (const unsigned char *const *)copy, at, out[d] + at);
    }
  }
  for (int b = 0; b < nblocks; b++) free(blocks[b]);
}

static struct test_case make_case(int type, int op, int nsrc, unsigned variant)
{
  struct test_case c = {.reduction = {.op = (uint8_t)op, .datatype = (uint8_t)type},
                        .nsrc = nsrc,
                        .ndst = 1 + (int)(variant % MAX_OUTPUTS),
                        .final = variant >> 2 & 1};
  c.reduction.divide_result = variant >> 3 & 1;
  c.reduction.divisor = 3 + (int64_t)(variant % 300);
  for (int k = 0; k < nsrc; k++) c.scaled[k] = (variant >> 1 & 1) && (k % 2 == 0 || nsrc == 1);
  if (type == ncclFloat64)
    c.reduction.scale.f64 = 1.0 / 3;
  else if (is_float(type))
    c.reduction.scale.f32 = 1.0f / 3;
  else
    c.reduction.scale.i64 = -3;
  return c;
}

START_TEST(test_all_types)
{
  const struct tt_reduce_kernels *kernels;
  int type = types[_i % NTYPES], op = _i / NTYPES;
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    for (int nsrc = 1; nsrc <= MAX_SOURCES; nsrc++) {
      unsigned variant = (unsigned)(nsrc * 7 + op);
      for (size_t count = 0; count <= 130; count++, variant++) {
        struct test_case c = make_case(type, op, nsrc, variant);
        run_case(kernels, &c, count, variant % 5, variant / 3 % NALIASINGS);
      }
      for (int k = 0; k < 16; k++, variant++) {
        struct test_case c = make_case(type, op, nsrc, variant);
        run_case(kernels, &c, BIG + (size_t)k, variant % 3, variant % NALIASINGS);
      }
    }
  }
}
END_TEST

START_TEST(test_nan_of_min_and_max)
{
  const float one_nan[2][2] = {{NAN, 1}, {1, NAN}};
  for (int level = 0; tt_reduce_kernels(level) != NULL; level++) {
    for (int op = ncclMax; op <= ncclMin; op++) {
      struct tt_reduction reduction = {.op = (uint8_t)op, .datatype = ncclFloat32};
      for (int first = 0; first < 2; first++) {
        float values[2] = {one_nan[first][0], one_nan[first][1]}, out;
        const void *src[] = {&values[0], &values[1]};
        void *dst = &out;
        tt_reduce_with(tt_reduce_kernels(level), &reduction, &dst, 1, src, 2, NULL, 0, 1);
        ck_assert(first == 0 ? isnan(out) : out == 1);
      }
    }
  }
}
END_TEST

/* ---- fp8 ---- */

/* What the formats' tables say. */
static double fp8_value(int type, uint8_t code)
{
  bool e4m3 = type == ncclFloat8e4m3;
  int digits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponent = (code & 127) >> digits,
      fraction = code & ((1 << digits) - 1);
  double value = ldexp(exponent == 0 ? fraction : (1 << digits) + fraction, (exponent ? exponent : 1) - bias - digits);
  if (e4m3 && (code & 127) == 127) value = NAN;
  if (!e4m3 && exponent == 31) value = fraction ? NAN : INFINITY;
  return code & 128 ? -value : value;
}

/* The nearest code, found by looking at all; of two the even one; the largest finite one for what is beyond. */
static uint8_t fp8_code(int type, double value)
{
  int largest = type == ncclFloat8e4m3 ? 0x7e : 0x7b, best = 0;
  double size = fabs(value);
  if (isnan(value)) return 0x7f;
  for (int code = 0; code <= largest; code++) {
    double here = fabs(fp8_value(type, (uint8_t)code) - size), before = fabs(fp8_value(type, (uint8_t)best) - size);
    if (here < before || (here == before && code % 2 == 0)) best = code;
  }
  if (size > fp8_value(type, (uint8_t)largest)) best = largest;
  return (uint8_t)(best | (signbit(value) ? 128 : 0));
}

/* Every pair of codes, with every operation, in every level. fp32 holds all sums and products of two exactly, or so
 * close that rounding once more changes nothing. */
START_TEST(test_fp8_all_pairs)
{
  int type = _i ? ncclFloat8e5m2 : ncclFloat8e4m3;
  static uint8_t a[65536], b[65536], out[65536];
  for (int i = 0; i < 65536; i++) a[i] = (uint8_t)(i >> 8), b[i] = (uint8_t)i;
  for (int op = ncclSum; op <= ncclMin; op++) {
    static uint8_t wanted[65536];
    for (int i = 0; i < 65536; i++) {
      double x = fp8_value(type, a[i]), y = fp8_value(type, b[i]);
      double result = op == ncclSum ? x + y : op == ncclProd ? x * y : op == ncclMax ? (y > x ? y : x) : y < x ? y : x;
      wanted[i] = fp8_code(type, result);
    }
    const struct tt_reduce_kernels *kernels;
    for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
      struct tt_reduction reduction = {.op = (uint8_t)op, .datatype = (uint8_t)type};
      const void *src[] = {a, b};
      void *dst[] = {out};
      tt_reduce_with(kernels, &reduction, dst, 1, src, 2, NULL, 1, sizeof(out));
      for (int i = 0; i < 65536; i++)
        EXPECT(out[i] == wanted[i], "%s type %d op %d: %02x and %02x give %02x, not %02x", kernels->name, type, op,
               a[i], b[i], out[i], wanted[i]);
    }
  }
}
END_TEST

/* Of three inputs the sum is rounded once: 448 + 448 - 448 would end at 0 if the first sum were. */
START_TEST(test_fp8_rounds_once)
{
  uint8_t big = 0x7e, minus = 0xfe, out;
  struct tt_reduction reduction = {.op = ncclSum, .datatype = ncclFloat8e4m3};
  const void *src[] = {&big, &big, &minus};
  void *dst[] = {&out};
  tt_host_reduce(&reduction, dst, 1, src, 3, NULL, 1, 1);
  ck_assert_int_eq(out, big);
}
END_TEST

/* A copy moves the bytes of any type as they are, and does nothing where it would be to itself.
 */
START_TEST(test_copy)
{
  struct tt_reduction reduction = {.op = ncclSum, .datatype = ncclFloat8e4m3};
  unsigned char in[100], out[2][100];
  for (int i = 0; i < 100; i++) in[i] = (unsigned char)(i * 37);
  const void *src[] = {in};
  void *dst[] = {out[0], in, out[1]};
  tt_host_reduce(&reduction, dst, 3, src, 1, NULL, 1, sizeof(in));
  ck_assert_mem_eq(out[0], in, sizeof(in));
  ck_assert_mem_eq(out[1], in, sizeof(in));
  ck_assert(tt_reduce_supports(ncclFloat8e4m3) && tt_reduce_supports(ncclFloat8e5m2) && !tt_reduce_supports(-1) &&
            !tt_reduce_supports(ncclNumTypes));
  for (int i = 0; i < NTYPES; i++) ck_assert(tt_reduce_supports(types[i]));
}
END_TEST

/* Both ways of each conversion, for every 16-bit value, in every level, one value at a time and many at once. */
START_TEST(test_widen_all)
{
  static uint16_t in[65536], back[65536];
  static float out[65536];
  for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
  for (int level = 0; tt_reduce_kernels(level) != NULL; level++) {
    const struct tt_reduce_kernels *kernels = tt_reduce_kernels(level);
    for (int half = 0; half < 2; half++) {
      int type = half ? ncclFloat16 : ncclBfloat16;
      kernels->widen[type](out, in, 65536);
      kernels->narrow[type](back, out, 65536);
      for (int i = 0; i < 65536; i++) {
        double expected = half ? half_value(in[i]) : bfloat_value(in[i]);
        float portable = half ? tt_half_to_float(in[i]) : tt_bfloat_to_float(in[i]), one;
        kernels->widen[type](&one, &in[i], 1);
        EXPECT(memcmp(&portable, &out[i], 4) == 0 && memcmp(&one, &out[i], 4) == 0, "%s: %04x", kernels->name,
               (unsigned)i);
        EXPECT(isnan(expected) ? isnan(out[i]) : out[i] == expected && !signbit(out[i]) == !signbit(expected),
               "%s: %04x became %a", kernels->name, (unsigned)i, (double)out[i]);
        uint16_t quiet = isnan(expected) ? in[i] | (half ? 0x200 : 0x40) : in[i];
        EXPECT(back[i] == quiet, "%s: %04x became %04x", kernels->name, (unsigned)i, back[i]);
      }
    }
  }
}
END_TEST

/* Narrowing where it matters: at, just below and just above every boundary between two 16-bit values. */
START_TEST(test_narrow_boundaries)
{
  for (int level = 0; tt_reduce_kernels(level) != NULL; level++) {
    const struct tt_reduce_kernels *kernels = tt_reduce_kernels(level);
    for (uint32_t i = 0; i < 0x10000; i++) {
      for (int half = 0; half < 2; half++) {
        int type = half ? ncclFloat16 : ncclBfloat16;
        double a = half ? half_value((uint16_t)i) : bfloat_value((uint16_t)i);
        double b = half ? half_value((uint16_t)(i + 1)) : bfloat_value((uint16_t)(i + 1));
        if (!isfinite(a) || isnan(b)) continue;
        if (isinf(b)) b = half ? copysign(65536, a) : a * (1 + 0x1p-8);
        float middle = (float)((a + b) / 2);
        float in[12] = {(float)a, nextafterf(middle, 0), middle, nextafterf(middle, copysignf(INFINITY, middle))};
        for (int k = 4; k < 12; k++) in[k] = tt_bits_float((uint32_t)random_bits());
        uint16_t many[12], one;
        kernels->narrow[type](many, in, 12);
        for (int k = 0; k < 12; k++) {
          kernels->narrow[type](&one, &in[k], 1);
          uint16_t portable = half ? tt_float_to_half(in[k]) : tt_float_to_bfloat(in[k]);
          EXPECT(one == portable && many[k] == portable, "%s: %a", kernels->name, (double)in[k]);
          double got = half ? half_value(portable) : bfloat_value(portable), expected = round_to_type(type, in[k]);
          EXPECT(isnan(in[k]) ? isnan(got) : got == expected, "%a: %a, not %a", (double)in[k], got, expected);
        }
      }
    }
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("reduce");
  TCase *tcase = tcase_create("reduce");
  tcase_set_timeout(tcase, 0);
  tcase_add_loop_test(tcase, test_all_types, 0, NTYPES * 4);
  tcase_add_test(tcase, test_nan_of_min_and_max);
  tcase_add_test(tcase, test_copy);
  tcase_add_loop_test(tcase, test_fp8_all_pairs, 0, 2);
  tcase_add_test(tcase, test_fp8_rounds_once);
  tcase_add_test(tcase, test_widen_all);
  tcase_add_test(tcase, test_narrow_boundaries);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
