/* What docs/numerics.md promises of single reductions: fp8, one rounding an instruction, NaN, averages of integers, and
 * the same numbers from all sets of inner loops. With argument `all` it converts every float there is to fp8, which
 * takes a minute or more; without, one in 4099. */
#include <math.h>
#include <string.h>
#include "kernels/host/half.h"
#include "kernels/host/reduce.h"
#include "reference.h"

#define PAIRS 65536
#define MOST 4

static const int fp8_types[] = {ncclFloat8e4m3, ncclFloat8e5m2};
static const int float_types[] = {ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
#define NFLOATS 6

/* A number that the type has, as an element. */
static void put(int type, double value, void *at)
{
  float single = (float)value;
  uint16_t narrow = type == ncclFloat16 ? tt_float_to_half(single) : tt_float_to_bfloat(single);
  uint8_t code;
  switch (type) {
  case ncclFloat8e4m3:
  case ncclFloat8e5m2:
    code = reference_fp8_code(type, value);
    memcpy(at, &code, 1);
    break;
  case ncclFloat16:
  case ncclBfloat16:
    memcpy(at, &narrow, 2);
    break;
  case ncclFloat32:
    memcpy(at, &single, 4);
    break;
  default:
    memcpy(at, &value, 8);
  }
}

/* One element of each of `n` inputs, reduced in one go. */
static double reduce_numbers(const struct tt_reduce_kernels *kernels, int type, int op, const double *values, int n)
{
  unsigned char in[MOST][8], out[8];
  const void *src[MOST];
  void *dst[] = {out};
  struct tt_reduction reduction = {.op = (uint8_t)op, .datatype = (uint8_t)type};
  for (int k = 0; k < n && k < MOST; k++) {
    put(type, values[k], in[k]);
    src[k] = in[k];
  }
  tt_reduce_with(kernels, &reduction, dst, 1, src, n, NULL, 1, 1);
  return reference_float_value(type, out);
}

/* ---- fp8 ---- */

START_TEST(test_fp8_all_codes)
{
  int type = fp8_types[_i];
  const struct tt_reduce_kernels *kernels;
  uint8_t codes[256], back[256];
  float values[256];
  for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    kernels->widen[type](values, codes, 256);
    kernels->narrow[type](back, values, 256);
    for (int i = 0; i < 256; i++) {
      double wanted = reference_fp8_value(type, codes[i]);
      EXPECT(isnan(wanted) ? isnan(values[i]) : values[i] == wanted && !signbit(values[i]) == !signbit(wanted),
             "%s type %d: %02x became %a", kernels->name, type, i, (double)values[i]);
      uint8_t code = reference_fp8_code(type, wanted); /* infinity becomes the largest number */
      EXPECT(back[i] == code, "%s type %d: %02x became %02x", kernels->name, type, i, back[i]);
      EXPECT(!isfinite(wanted) || code == i, "the reference of %02x is %02x", i, code);
    }
  }
}
END_TEST

/* Rounding at, just below and just above the middle of neighbours; far beyond them; and anywhere. */
START_TEST(test_fp8_rounding)
{
  int type = fp8_types[_i], largest = type == ncclFloat8e4m3 ? 0x7e : 0x7b, n = 0;
  static float in[8192];
  static uint8_t out[8192];
  for (int code = 0; code <= largest; code++) {
    double low = reference_fp8_value(type, (uint8_t)code);
    double high = code < largest ? reference_fp8_value(type, (uint8_t)(code + 1))
                                 : 2 * low - reference_fp8_value(type, (uint8_t)(code - 1));
    float middle = (float)((low + high) / 2);
    const float near[] = {(float)low, nextafterf(middle, 0), middle, nextafterf(middle, INFINITY), (float)high};
    for (int k = 0; k < 5; k++) {
      in[n++] = near[k];
      in[n++] = -near[k];
    }
  }
  const float far[] = {INFINITY, 0x1.fffffep127f, 0x1p-149f, 0x1p-126f, 65504, 1e6f, NAN};
  for (int k = 0; k < 7; k++) {
    in[n++] = far[k];
    in[n++] = -far[k];
  }
  while (n < 8192) in[n++] = tt_bits_float((uint32_t)reference_random());
  const struct tt_reduce_kernels *kernels;
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    kernels->narrow[type](out, in, 8192);
    for (int i = 0; i < n; i++) {
      uint8_t wanted = reference_fp8_code(type, in[i]);
      EXPECT(out[i] == wanted, "%s type %d: %a became %02x, not %02x", kernels->name, type, (double)in[i], out[i],
             wanted);
    }
  }
}
END_TEST

static size_t float_step = 4099; /* of the floats' bits; a prime, so that all exponents and low bits come */

/* Floats from small to large, of both signs, against the code whose number is nearest: it changes halfway between two
 * neighbours, where the even one is taken. */
START_TEST(test_fp8_all_floats)
{
  enum { MANY = 65536 };
  int type = fp8_types[_i], largest = type == ncclFloat8e4m3 ? 0x7e : 0x7b, code = 0;
  static float in[MANY];
  static uint8_t wanted[MANY], out[MANY];
  uint64_t bits = 0, infinity = 0x7f800000;
  while (bits < infinity) {
    int n = 0;
    for (; n < MANY && bits <= infinity; n += 2, bits += float_step) {
      in[n] = tt_bits_float((uint32_t)bits);
      in[n + 1] = -in[n];
      for (; code < largest; code++) {
        double middle = (reference_fp8_value(type, (uint8_t)code) + reference_fp8_value(type, (uint8_t)(code + 1))) / 2;
        if (in[n] < middle || (in[n] == middle && code % 2 == 0)) break;
      }
      wanted[n] = (uint8_t)code;
      wanted[n + 1] = (uint8_t)(code | 128);
    }
    const struct tt_reduce_kernels *kernels;
    for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
      kernels->narrow[type](out, in, (size_t)n);
      for (int i = 0; i < n; i++)
        if (out[i] != wanted[i])
          ck_abort_msg("%s type %d: %a became %02x, not %02x", kernels->name, type, (double)in[i], out[i], wanted[i]);
    }
  }
  ck_assert_int_eq(code, largest);
  for (bits = infinity + 1; bits <= 0x7fffffff; bits += float_step) {
    float nan[] = {tt_bits_float((uint32_t)bits), tt_bits_float((uint32_t)bits | 0x80000000)};
    tt_reduce_kernels(0)->narrow[type](out, nan, 2);
    if (out[0] != 0x7f || out[1] != 0x7f) ck_abort_msg("type %d: NaN %08x became %02x", type, (unsigned)bits, out[0]);
  }
}
END_TEST

static uint8_t fp8_result(int type, int op, uint8_t a, uint8_t b)
{
  double x = reference_fp8_value(type, a), y = reference_fp8_value(type, b);
  return reference_fp8_code(type, op == ncclSum ? x + y : op == ncclProd ? x * y : reference_extreme(op, x, y));
}

/* Every pair of codes, with every operation, in every level. fp32 holds all sums and products of two exactly, or so
 * close that rounding once more changes nothing. */
START_TEST(test_fp8_all_pairs)
{
  int type = fp8_types[_i];
  static uint8_t a[PAIRS], b[PAIRS], out[PAIRS], wanted[PAIRS];
  const void *src[] = {a, b};
  void *dst[] = {out};
  for (int i = 0; i < PAIRS; i++) a[i] = (uint8_t)(i >> 8), b[i] = (uint8_t)i;
  for (int op = ncclSum; op <= ncclMin; op++) {
    struct tt_reduction reduction = {.op = (uint8_t)op, .datatype = (uint8_t)type};
    const struct tt_reduce_kernels *kernels;
    for (int i = 0; i < PAIRS; i++) wanted[i] = fp8_result(type, op, a[i], b[i]);
    for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
      tt_reduce_with(kernels, &reduction, dst, 1, src, 2, NULL, 1, PAIRS);
      for (int i = 0; i < PAIRS; i++)
        EXPECT(out[i] == wanted[i], "%s type %d op %d: %02x and %02x give %02x, not %02x", kernels->name, type, op,
               a[i], b[i], out[i], wanted[i]);
    }
  }
}
END_TEST

/* Every code times every scalar that an operation of PreMulSum can have. */
START_TEST(test_fp8_all_scales)
{
  int type = fp8_types[_i];
  const unsigned char scaled = 1;
  uint8_t in[256], out[256];
  const void *src[] = {in};
  void *dst[] = {out};
  const struct tt_reduce_kernels *kernels;
  for (int i = 0; i < 256; i++) in[i] = (uint8_t)i;
  for (int scale = 0; scale < 256; scale++) {
    struct tt_reduction reduction = {.op = ncclSum, .datatype = (uint8_t)type, .scale_inputs = 1};
    reduction.scale.f32 = (float)reference_fp8_value(type, (uint8_t)scale);
    for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
      tt_reduce_with(kernels, &reduction, dst, 1, src, 1, &scaled, 1, 256);
      for (int i = 0; i < 256; i++) {
        uint8_t wanted = fp8_result(type, ncclProd, in[i], (uint8_t)scale);
        EXPECT(out[i] == wanted, "%s type %d: %02x times %02x gives %02x, not %02x", kernels->name, type, i, scale,
               out[i], wanted);
      }
    }
  }
}
END_TEST

/* ---- Rounding ---- */

/* Sums that come out differently if every addition is rounded to the type. */
START_TEST(test_rounds_once)
{
  static const struct {
    int type, n;
    double values[MOST], sum;
  } cases[] = {
      {ncclFloat16, 3, {2048, 1, 1}, 2050},
      {ncclFloat16, 4, {2048, 1, 1, -2048}, 2},
      {ncclFloat16, 3, {65504, 65504, -65504}, 65504},
      {ncclBfloat16, 3, {256, 1, 1}, 258},
      {ncclBfloat16, 4, {256, 1, 1, -256}, 2},
      {ncclFloat8e4m3, 3, {16, 1, 1}, 18},
      {ncclFloat8e4m3, 3, {448, 448, -448}, 448},
      {ncclFloat8e5m2, 3, {8, 1, 1}, 10},
      {ncclFloat8e5m2, 4, {8, 1, 1, -8}, 2},
      {ncclFloat8e5m2, 3, {57344, 57344, -57344}, 57344},
  };
  const struct tt_reduce_kernels *kernels;
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
      double pairwise = cases[c].values[0];
      for (int k = 1; k < cases[c].n; k++) pairwise = reference_round(cases[c].type, pairwise + cases[c].values[k]);
      double got = reduce_numbers(kernels, cases[c].type, ncclSum, cases[c].values, cases[c].n);
      EXPECT(pairwise != cases[c].sum, "case %zu does not tell the two apart", c);
      EXPECT(got == cases[c].sum, "%s case %zu: %g, not %g", kernels->name, c, got, cases[c].sum);
    }
  }
}
END_TEST

/* ---- NaN ---- */

/* Whatever stands where, the minimum and maximum are those of the numbers; NaN if there are none. */
START_TEST(test_nan_of_min_and_max)
{
  static const double inputs[][3] = {{NAN, 1, 2}, {NAN, 2, 1}, {1, NAN, 2}, {2, NAN, 1}, {1, 2, NAN}, {2, 1, NAN}};
  const struct tt_reduce_kernels *kernels;
  int type = float_types[_i];
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    for (int k = 0; k < 6; k++) {
      ck_assert(reduce_numbers(kernels, type, ncclMax, inputs[k], 3) == 2);
      ck_assert(reduce_numbers(kernels, type, ncclMin, inputs[k], 3) == 1);
    }
    for (int op = ncclMax; op <= ncclMin; op++) {
      ck_assert(reduce_numbers(kernels, type, op, (const double[]){NAN, NAN, 1}, 3) == 1);
      ck_assert(reduce_numbers(kernels, type, op, (const double[]){1, NAN, NAN}, 3) == 1);
      ck_assert(isnan(reduce_numbers(kernels, type, op, (const double[]){NAN, NAN}, 2)));
    }
    ck_assert(isnan(reduce_numbers(kernels, type, ncclSum, (const double[]){1, NAN, 2}, 3)));
    ck_assert(isnan(reduce_numbers(kernels, type, ncclProd, (const double[]){0, NAN, 2}, 3)));
  }
}
END_TEST

/* ---- Averages of integers ---- */

static uint64_t divide(int type, uint64_t value, int64_t divisor)
{
  unsigned char in[2][8] = {{0}}, out[8];
  const void *src[] = {in[0], in[1]};
  void *dst[] = {out};
  struct tt_reduction reduction = {.op = ncclSum, .datatype = (uint8_t)type, .divide_result = 1, .divisor = divisor};
  memcpy(in[0], &value, 8);
  tt_host_reduce(&reduction, dst, 1, src, 2, NULL, 1, 1);
  return reference_integer(type, out);
}

/* Towards zero: -5 / 3 is -1, where rounding down would give -2. */
START_TEST(test_integer_averages_truncate)
{
  for (int64_t divisor = 1; divisor <= 300; divisor++) {
    for (int value = -128; value < 128; value++) {
      int64_t size = (value < 0 ? -value : value) / divisor, wanted = value < 0 ? -size : size;
      for (int type = ncclInt8; type <= ncclUint64; type++) {
        uint64_t plain = (uint64_t)(int64_t)value;
        if (!reference_is_signed(type)) plain &= 0xff, wanted = (int64_t)plain / divisor;
        int64_t got = (int64_t)divide(type, plain, divisor);
        EXPECT(got == wanted, "type %d: %d / %lld is %lld", type, value, (long long)divisor, (long long)got);
        wanted = value < 0 ? -size : size;
      }
    }
  }
  ck_assert_int_eq((int64_t)divide(ncclInt64, (uint64_t)INT64_MIN, 3), INT64_MIN / 3);
  ck_assert_uint_eq(divide(ncclUint64, UINT64_MAX, 3), UINT64_MAX / 3); /* not as a negative number */
  ck_assert_int_eq((int64_t)divide(ncclInt32, (uint32_t)INT32_MIN, 7), INT32_MIN / 7);
  ck_assert_uint_eq(divide(ncclUint32, UINT32_MAX, 7), UINT32_MAX / 7);
}
END_TEST

/* A sum that its type cannot hold wraps before it is divided, as the sum itself would. */
START_TEST(test_integer_averages_wrap)
{
  for (int type = ncclInt8; type <= ncclUint64; type++) {
    int bits = 8 * (int)tt_datatype_bytes(type);
    uint64_t largest = UINT64_MAX >> (64 - bits + reference_is_signed(type)), sum = 3 * largest;
    unsigned char out[8], wrapped[8];
    const void *src[] = {&largest, &largest, &largest};
    void *dst[] = {out};
    struct tt_reduction reduction = {.op = ncclSum, .datatype = (uint8_t)type, .divide_result = 1, .divisor = 3};
    memcpy(wrapped, &sum, 8);
    uint64_t wanted = reference_integer(type, wrapped);
    wanted = reference_is_signed(type) ? (uint64_t)((int64_t)wanted / 3) : wanted / 3;
    tt_host_reduce(&reduction, dst, 1, src, 3, NULL, 1, 1);
    ck_assert_uint_eq(reference_integer(type, out), wanted);
    ck_assert_uint_ne(wanted, largest);
  }
}
END_TEST

/* ---- Levels ---- */

/* Of NaN no more is promised than that it is one: where two meet, which of them is kept is the processor's affair. */
static bool same_number(int type, const void *a, const void *b)
{
  if (memcmp(a, b, tt_datatype_bytes(type)) == 0) return true;
  return reference_is_float(type) && isnan(reference_float_value(type, a)) && isnan(reference_float_value(type, b));
}

/* Processors that have other instructions give the same bits: so hosts of one communicator may differ. */
START_TEST(test_levels_agree)
{
  enum { COUNT = 4096 };
  static uint64_t in[MOST][COUNT], first[COUNT], other[COUNT];
  const void *src[] = {in[0], in[1], in[2], in[3]};
  const unsigned char scaled[] = {1, 0, 1, 0};
  int type = _i % ncclNumTypes, op = _i / ncclNumTypes;
  size_t bytes = tt_datatype_bytes(type);
  struct tt_reduction reduction = {.op = (uint8_t)op, .datatype = (uint8_t)type};
  if (type == ncclFloat64)
    reduction.scale.f64 = 1.0 / 3;
  else if (reference_is_float(type))
    reduction.scale.f32 = 1.0f / 3;
  else
    reduction.scale.i64 = -3;
  for (int k = 0; k < MOST; k++)
    for (int i = 0; i < COUNT; i++) in[k][i] = reference_random();
  for (int nsrc = 2; nsrc <= MOST; nsrc++) {
    /* Places that are reduced as the rest of a vector in one call are in the middle of one in the other. */
    for (size_t count = COUNT - 9; count <= COUNT; count += 3) {
      const struct tt_reduce_kernels *kernels;
      for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
        void *dst[] = {level == 0 && count == COUNT - 9 ? first : other};
        tt_reduce_with(kernels, &reduction, dst, 1, src, nsrc, nsrc % 2 ? scaled : NULL, 1, count);
        for (size_t at = 0; at < (COUNT - 9) * bytes; at += bytes)
          EXPECT(same_number(type, (char *)dst[0] + at, (char *)first + at), "%s differs: type %d, op %d, %d inputs",
                 kernels->name, type, op, nsrc);
      }
    }
  }
}
END_TEST

int main(int argc, char **argv)
{
  if (argc == 2 && strcmp(argv[1], "all") == 0) float_step = 1;
  Suite *suite = suite_create("numerics");
  TCase *tcase = tcase_create("numerics");
  tcase_set_timeout(tcase, 0);
  tcase_add_loop_test(tcase, test_fp8_all_codes, 0, 2);
  tcase_add_loop_test(tcase, test_fp8_rounding, 0, 2);
  tcase_add_loop_test(tcase, test_fp8_all_floats, 0, 2);
  tcase_add_loop_test(tcase, test_fp8_all_pairs, 0, 2);
  tcase_add_loop_test(tcase, test_fp8_all_scales, 0, 2);
  tcase_add_test(tcase, test_rounds_once);
  tcase_add_loop_test(tcase, test_nan_of_min_and_max, 0, NFLOATS);
  tcase_add_test(tcase, test_integer_averages_truncate);
  tcase_add_test(tcase, test_integer_averages_wrap);
  tcase_add_loop_test(tcase, test_levels_agree, 0, ncclNumTypes * 4);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
