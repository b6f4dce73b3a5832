/* The test data itself: encodings, exactness of the promised sums and products in any order, and freshness. */
#include <math.h>
#include <string.h>
#include "pattern.h"
#include "suites.h"

START_TEST(encodings)
{
  static const struct {
    const char *type;
    double value;
    uint64_t bits;
  } table[] = {{"half", 1.0, 0x3c00},
               {"half", -2.0, 0xc000},
               {"half", 2048, 0x6800},
               {"half", 0, 0},
               {"half", 65504, 0x7bff},
               {"half", 1.0 / 1024, 0x1400},
               {"bfloat16", 1.0, 0x3f80},
               {"bfloat16", -256, 0xc380},
               {"float", 0.5, 0x3f000000},
               {"float", -3, 0xc0400000},
               {"double", 1, 0x3ff0000000000000},
               {"f8e4m3", 1, 0x38},
               {"f8e4m3", -448, 0xfe},
               {"f8e4m3", 1.0 / 64, 0x08},
               {"f8e4m3", 0, 0},
               {"f8e5m2", 1, 0x3c},
               {"f8e5m2", -57344, 0xfb},
               {"f8e5m2", 0x1p-14, 0x04}};
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    const struct perf_type *type = perf_type_find(table[i].type);
    uint64_t bits = 0;
    perf_pattern_encode(type, table[i].value, &bits);
    ck_assert_msg(bits == table[i].bits, "%s %g: %llx", type->name, table[i].value, (unsigned long long)bits);
    ck_assert_double_eq(perf_pattern_decode(type, &bits), table[i].value);
  }
  uint16_t special[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x8000};
  const struct perf_type *half = perf_type_find("half");
  ck_assert(isinf(perf_pattern_decode(half, &special[0])) && perf_pattern_decode(half, &special[0]) > 0);
  ck_assert(isinf(perf_pattern_decode(half, &special[1])) && perf_pattern_decode(half, &special[1]) < 0);
  ck_assert(isnan(perf_pattern_decode(half, &special[2])));
  ck_assert_double_eq(perf_pattern_decode(half, &special[3]), 0x1p-24);
  ck_assert(perf_pattern_decode(half, &special[4]) == 0);
  uint8_t codes[] = {0x01, 0x7f, 0xff, 0x78, 0x01, 0x7c, 0xfc, 0x7d};
  const struct perf_type *e4m3 = perf_type_find("f8e4m3"), *e5m2 = perf_type_find("f8e5m2");
  ck_assert_double_eq(perf_pattern_decode(e4m3, &codes[0]), 0x1p-9);
  ck_assert(isnan(perf_pattern_decode(e4m3, &codes[1])) && isnan(perf_pattern_decode(e4m3, &codes[2])));
  ck_assert_double_eq(perf_pattern_decode(e4m3, &codes[3]), 256); /* no infinity */
  ck_assert_double_eq(perf_pattern_decode(e5m2, &codes[4]), 0x1p-16);
  ck_assert(perf_pattern_decode(e5m2, &codes[5]) == INFINITY && perf_pattern_decode(e5m2, &codes[6]) == -INFINITY);
  ck_assert(isnan(perf_pattern_decode(e5m2, &codes[7])));
}
END_TEST

/* Does `value` survive a round trip through the type? */
static int exact(const struct perf_type *type, double value)
{
  char element[8];
  perf_pattern_encode(type, value, element);
  return perf_pattern_decode(type, element) == value;
}

/* All partial sums and products, forwards and backwards, are exact in the type. */
START_TEST(promises_of_exactness)
{
  static const int ranks[] = {1, 2, 3, 4, 7, 8, 64, 300, 1000};
  for (int t = 0; perf_type_at(t); t++) {
    const struct perf_type *type = perf_type_at(t);
    if (type->kind != PERF_FLOATING) continue;
    for (int o = 0; o < 2; o++) /* sum, prod */
      for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
        struct perf_pattern pattern = {type, perf_op_at(o), ranks[r], 5};
        for (size_t index = 0; index < 60; index++)
          for (int back = 0; back < 2; back++) {
            double total = o ? 1 : 0;
            for (int i = 0; i < ranks[r]; i++) {
              char element[8];
              perf_pattern_fill(&pattern, back ? ranks[r] - 1 - i : i, index, 1, element);
              double value = perf_pattern_decode(type, element);
              total = o ? total * value : total + value;
              if (!exact(type, total)) /* check itself is slow where all is well */
                ck_abort_msg("%s %s over %d ranks: %g", type->name, perf_op_at(o)->name, ranks[r], total);
            }
          }
      }
  }
}
END_TEST

/* Every number of every reduction is one of the type's, and not so small that it lost digits. */
START_TEST(numbers_fit_their_types)
{
  for (int t = 0; perf_type_at(t); t++)
    for (int o = 0; perf_op_at(o); o++) {
      const struct perf_type *type = perf_type_at(t);
      struct perf_pattern pattern = {type, perf_op_at(o), 4, 5};
      char elements[400 * 8];
      double least = INFINITY, most = 0;
      if (type->kind != PERF_FLOATING) continue;
      perf_pattern_fill(&pattern, 1, 0, 400, elements);
      for (int i = 0; i < 400; i++) {
        double value = fabs(perf_pattern_decode(type, elements + i * type->bytes));
        if (value > 0) least = fmin(least, value);
        most = fmax(most, value);
        ck_assert_msg(exact(type, value), "%s %s: %g", type->name, perf_op_at(o)->name, value);
      }
      ck_assert_msg(least >= ldexp(1, -type->range) && most < ldexp(1, type->range + 2), "%s %s: %g to %g", type->name,
                    perf_op_at(o)->name, least, most);
      ck_assert_msg(most > least, "%s %s: all are %g", type->name, perf_op_at(o)->name, least);
    }
}
END_TEST

START_TEST(averages_of_integers_do_not_overflow)
{
  static const int ranks[] = {1, 2, 5, 100, 127, 128, 1000};
  for (int t = 0; perf_type_at(t); t++) {
    const struct perf_type *type = perf_type_at(t);
    if (type->kind == PERF_FLOATING || type->bytes != 1) continue;
    for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
      struct perf_pattern pattern = {type, perf_op_find("avg"), ranks[r], 5};
      for (size_t index = 0; index < 100; index++) {
        int sum = 0;
        for (int i = 0; i < ranks[r]; i++) {
          unsigned char byte;
          perf_pattern_fill(&pattern, i, index, 1, &byte);
          sum += type->kind == PERF_SIGNED ? (signed char)byte : byte;
          ck_assert(type->kind == PERF_SIGNED ? sum >= -128 && sum <= 127 : sum <= 255);
        }
      }
    }
  }
}
END_TEST

/* A block that is filled in one go is the same as one filled in pieces, and epochs, ranks and indices all matter. */
START_TEST(values_depend_on_all_three)
{
  struct perf_pattern pattern = {perf_type_find("int32"), perf_op_find("sum"), 4, 1}, later = pattern;
  int32_t whole[2000], part[2000], other[2000];
  later.epoch = 2;
  perf_pattern_fill(&pattern, 1, 0, 2000, whole);
  perf_pattern_fill(&pattern, 1, 0, 700, part);
  perf_pattern_fill(&pattern, 1, 700, 1300, part + 700);
  ck_assert_int_eq(memcmp(whole, part, sizeof(whole)), 0);
  int equal_epoch = 0, equal_rank = 0, equal_index = 0;
  perf_pattern_fill(&later, 1, 0, 2000, part);
  perf_pattern_fill(&pattern, 2, 0, 2000, other);
  for (int i = 1; i < 2000; i++) {
    equal_epoch += whole[i] == part[i];
    equal_rank += whole[i] == other[i];
    equal_index += whole[i] == whole[i - 1];
  }
  ck_assert_int_le(equal_epoch, 1);
  ck_assert_int_le(equal_rank, 1);
  ck_assert_int_le(equal_index, 1);
}
END_TEST

START_TEST(tolerance_is_zero_where_results_are_exact)
{
  struct perf_pattern pattern = {perf_type_find("half"), perf_op_find("avg"), 4, 1};
  ck_assert_double_eq(perf_pattern_tolerance(&pattern), 0);
  pattern.nranks = 3;
  ck_assert(perf_pattern_tolerance(&pattern) > 0);
  ck_assert(perf_pattern_tolerance(&pattern) < 0.003);
  pattern.op = perf_op_find("sum");
  ck_assert_double_eq(perf_pattern_tolerance(&pattern), 0);
  pattern = (struct perf_pattern){perf_type_find("int32"), perf_op_find("avg"), 3, 1};
  ck_assert_double_eq(perf_pattern_tolerance(&pattern), 0);
}
END_TEST

Suite *suite_pattern(void)
{
  Suite *suite = suite_create("pattern");
  TCase *tests = tcase_create("pattern");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, encodings);
  tcase_add_test(tests, promises_of_exactness);
  tcase_add_test(tests, numbers_fit_their_types);
  tcase_add_test(tests, averages_of_integers_do_not_overflow);
  tcase_add_test(tests, values_depend_on_all_three);
  tcase_add_test(tests, tolerance_is_zero_where_results_are_exact);
  suite_add_tcase(suite, tests);
  return suite;
}
