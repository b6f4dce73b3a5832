/* Reductions: every set of inner loops that this machine can run, against one element at a time in plain arithmetic. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/host/half.h"
#include "kernels/host/reduce.h"
#include "reference.h"

#define MAX_SOURCES 9
#define MAX_OUTPUTS 3
#define BIG 1100 /* more than two blocks */

/* In the precision that values are combined in. */
static double combine_floats(int type, int op, double a, double b)
{
  double value = op == ncclSum ? a + b : op == ncclProd ? a * b : reference_extreme(op, a, b);
  return type == ncclFloat64 ? value : (float)value;
}

static uint64_t combine_integers(int type, int op, uint64_t a, uint64_t b)
{
  bool b_larger = reference_is_signed(type) ? (int64_t)b > (int64_t)a : b > a;
  uint64_t value = op == ncclSum ? a + b : op == ncclProd ? a * b : (op == ncclMax) == b_larger ? b : a;
  if (op == ncclMin && a == b) value = a;
  unsigned char bytes[8];
  memcpy(bytes, &value, 8);
  return reference_integer(type, bytes); /* wraps */
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
    uint64_t value = reference_integer(type, in[k] + at);
    if (c->scaled[k]) value = combine_integers(type, ncclProd, value, c->reduction.scale.bits);
    result = k == 0 ? value : combine_integers(type, c->reduction.op, result, value);
  }
  if (c->final && c->reduction.divide_result) {
    result = reference_is_signed(type) ? (uint64_t)((int64_t)result / c->reduction.divisor)
                                       : result / (uint64_t)c->reduction.divisor;
  }
  EXPECT(reference_integer(type, out) == result, "type %d op %d nsrc %d: got %llx, expected %llx", type,
         c->reduction.op, c->nsrc, (unsigned long long)reference_integer(type, out), (unsigned long long)result);
}

static void check_float(const struct test_case *c, const unsigned char *const *in, size_t at, const unsigned char *out)
{
  int type = c->reduction.datatype;
  double scale = type == ncclFloat64 ? c->reduction.scale.f64 : c->reduction.scale.f32, result = 0;
  for (int k = 0; k < c->nsrc; k++) {
    double value = reference_float_value(type, in[k] + at);
    if (c->scaled[k]) value = reference_round(type, type == ncclFloat64 ? value * scale : (float)(value * scale));
    result = k == 0 ? value : combine_floats(type, c->reduction.op, result, value);
  }
  if (c->nsrc > 1 || c->scaled[0]) result = reference_round(type, result); /* else it is a copy, infinities too */
  double got = reference_float_value(type, out);
  EXPECT((isnan(got) && isnan(result)) || got == result, "type %d op %d nsrc %d: got %a, expected %a", type,
         c->reduction.op, c->nsrc, got, result);
}

/* Small numbers mostly, so that results stay in range; some of any kind. */
static void fill(int type, unsigned char *at, size_t count)
{
  size_t bytes = tt_datatype_bytes(type);
  for (size_t i = 0; i < count; i++, at += bytes) {
    uint64_t bits = reference_random();
    if (reference_is_float(type) && bits % 8 != 0) {
      double value = (double)(int64_t)(bits % 4096) / 1024 - 1;
      float f = (float)value;
      uint16_t half = type == ncclFloat16 ? tt_float_to_half(f) : tt_float_to_bfloat(f);
      if (bytes == 1) /* from 1/4 to 2 */
        *at = (uint8_t)((bits & 128) | (type == ncclFloat8e4m3 ? 0x28 + (bits >> 8) % 24 : 0x34 + (bits >> 8) % 12));
      else
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
      (reference_is_float(type) ? check_float : check_integer)(c, (const unsigned char *const *)copy, at, out[d] + at);
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
  else if (reference_is_float(type))
    c.reduction.scale.f32 = 1.0f / 3;
  else
    c.reduction.scale.i64 = -3;
  return c;
}

START_TEST(test_all_types)
{
  const struct tt_reduce_kernels *kernels;
  int type = _i % ncclNumTypes, op = _i / ncclNumTypes;
  for (int level = 0; (kernels = tt_reduce_kernels(level)) != NULL; level++) {
    for (int nsrc = 1; nsrc <= MAX_SOURCES; nsrc++) {
      unsigned variant = (unsigned)(nsrc * 7 + op);
      /* All rests of a vector with few inputs and with the most; between them, where the same loops run, some. */
      size_t step = nsrc > 3 && nsrc < MAX_SOURCES ? 7 : 1;
      for (size_t count = 0; count <= 130; count += step, variant++) {
        struct test_case c = make_case(type, op, nsrc, variant);
        run_case(kernels, &c, count, variant % 5, variant / 3 % NALIASINGS);
      }
      for (int k = 0; k < 16; k += (int)step, variant++) {
        struct test_case c = make_case(type, op, nsrc, variant);
        run_case(kernels, &c, BIG + (size_t)k, variant % 3, variant % NALIASINGS);
      }
    }
  }
}
END_TEST

/* A copy moves the bytes of any type as they are, and does nothing where it would be to itself. */
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
  for (int i = 0; i < ncclNumTypes; i++) ck_assert(tt_reduce_supports(i));
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
        double expected = half ? reference_half_value(in[i]) : reference_bfloat_value(in[i]);
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
        double a = half ? reference_half_value((uint16_t)i) : reference_bfloat_value((uint16_t)i);
        double b = half ? reference_half_value((uint16_t)(i + 1)) : reference_bfloat_value((uint16_t)(i + 1));
        if (!isfinite(a) || isnan(b)) continue;
        if (isinf(b)) b = half ? copysign(65536, a) : a * (1 + 0x1p-8);
        float middle = (float)((a + b) / 2);
        float in[12] = {(float)a, nextafterf(middle, 0), middle, nextafterf(middle, copysignf(INFINITY, middle))};
        for (int k = 4; k < 12; k++) in[k] = tt_bits_float((uint32_t)reference_random());
        uint16_t many[12], one;
        kernels->narrow[type](many, in, 12);
        for (int k = 0; k < 12; k++) {
          kernels->narrow[type](&one, &in[k], 1);
          uint16_t portable = half ? tt_float_to_half(in[k]) : tt_float_to_bfloat(in[k]);
          EXPECT(one == portable && many[k] == portable, "%s: %a", kernels->name, (double)in[k]);
          double got = half ? reference_half_value(portable) : reference_bfloat_value(portable),
                 expected = reference_round(type, in[k]);
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
  tcase_add_loop_test(tcase, test_all_types, 0, ncclNumTypes * 4);
  tcase_add_test(tcase, test_copy);
  tcase_add_test(tcase, test_widen_all);
  tcase_add_test(tcase, test_narrow_boundaries);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
