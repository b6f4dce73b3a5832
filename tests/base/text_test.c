/* Numbers, lists, port ranges, nearest names. */
#include "support.h"

#include <string.h>

#include "base/check.h"
#include "base/text.h"
#include "tests/common/comma.h"

START_TEST(integers)
{
  static const struct {
    const char *text;
    bool good;
    int64_t value;
  } rows[] = {
      {"0", true, 0},
      {"-2", true, -2},
      {" 17 ", true, 17},
      {"0x10", true, 16},
      {"010", true, 8},
      {"9223372036854775807", true, INT64_MAX},
      {"-9223372036854775808", true, INT64_MIN},
      {"9223372036854775808", false, 0},
      {"", false, 0},
      {" ", false, 0},
      {"x", false, 0},
      {"1x", false, 0},
      {"1 2", false, 0},
      {"0x", false, 0},
      {"1.5", false, 0},
      {NULL, false, 0},
  };
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    int64_t value = 77;
    ck_assert_msg(tt_text_int(rows[i].text, &value) == rows[i].good, "\"%s\"", rows[i].text ? rows[i].text : "NULL");
    ck_assert_int_eq(value, rows[i].good ? rows[i].value : 77);
  }
}
END_TEST

START_TEST(floats)
{
  static const char *const wrong[] = {"", " 1", "1 ", "x", "1,5", "nan", "inf", "1e99", "--1", "1.5x"};
  static const float values[] = {0, 1, 0.1f, 12.36f, 370.8f / 9, 5000, 1e-8f, 16777217, 3.4e38f, -2.5f};
  float value = 7;
  char text[32];
  for (size_t i = 0; i < TT_COUNT(wrong); i++) ck_assert_msg(!tt_text_float(wrong[i], &value), "\"%s\"", wrong[i]);
  ck_assert(!tt_text_float(NULL, &value));
  ck_assert_float_eq(value, 7);
  /* A locale with a comma changes nothing, where there is one. */
  for (int turn = 0; turn < 2; turn++) {
    for (size_t i = 0; i < TT_COUNT(values); i++) {
      ck_assert_msg(tt_text_float(tt_text_print_float(values[i], text, sizeof(text)), &value), "\"%s\"", text);
      ck_assert_float_eq(value, values[i]);
    }
    ck_assert_str_eq(tt_text_print_float(12.36f, text, sizeof(text)), "12.36");
    ck_assert_str_eq(tt_text_print_float(20, text, sizeof(text)), "20");
    if (!comma_locale()) break;
  }
}
END_TEST

START_TEST(leading_numbers)
{
  static const struct {
    const char *text;
    double number;
    const char *rest;
  } rows[] = {
      {"16.5 GT/s", 16.5, " GT/s"},
      {"2.5e3", 2500, ""},
      {"0x10", 16, ""},
      {"1,5", 1, ",5"},
      {"", 0, ""},
      {"x1", 0, "x1"},
  };
  const char *end;
  for (int turn = 0; turn < 2; turn++) {
    for (size_t i = 0; i < TT_COUNT(rows); i++) {
      ck_assert_double_eq(tt_text_leading(rows[i].text, &end), rows[i].number);
      ck_assert_str_eq(end, rows[i].rest);
    }
    if (!comma_locale()) break;
  }
}
END_TEST

START_TEST(lists)
{
  const char *cursor = " a ,,b c,", *piece;
  size_t bytes;
  const char *expected[] = {"a", "", "b c", ""};
  for (size_t i = 0; i < TT_COUNT(expected); i++) {
    ck_assert(tt_text_next(&cursor, ',', &piece, &bytes));
    ck_assert_uint_eq(bytes, strlen(expected[i]));
    ck_assert(memcmp(piece, expected[i], bytes) == 0);
  }
  ck_assert(!tt_text_next(&cursor, ',', &piece, &bytes));
  ck_assert(tt_text_equal_nocase("InFoX", 4, "info"));
  ck_assert(!tt_text_equal_nocase("InFoX", 5, "info"));
}
END_TEST

START_TEST(port_ranges)
{
  uint16_t first, last;
  ck_assert(tt_text_port_range("40000-40009", &first, &last));
  ck_assert(first == 40000 && last == 40009);
  ck_assert(tt_text_port_range(" 1 - 65535 ", &first, &last));
  ck_assert(tt_text_port_range("7-7", &first, &last));
  static const char *const bad[] = {"",      "40000", "40009-40000", "0-5",  "1-65536", "-5",           "5-",
                                    "1-2-3", "0x1-5", "a-b",         "1--2", "+1-2",    "100000-100001"};
  for (size_t i = 0; i < TT_COUNT(bad); i++) ck_assert_msg(!tt_text_port_range(bad[i], &first, &last), "%s", bad[i]);
}
END_TEST

START_TEST(nearest)
{
  static const char *const names[] = {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_ALGO"};
  ck_assert_int_eq(tt_text_nearest("NCCL_SOCKET_IFNAMES", names, 3), 1);
  ck_assert_int_eq(tt_text_nearest("NCCL_SOKET_IFNAME", names, 3), 1);
  ck_assert_int_eq(tt_text_nearest("nccl_debug", names, 3), 0);
  ck_assert_int_eq(tt_text_nearest("NCCL_ALGOS", names, 3), 2);
  ck_assert_int_eq(tt_text_nearest("SOMETHING_ELSE", names, 3), -1);
  char endless[500];
  memset(endless, 'N', sizeof(endless) - 1);
  endless[sizeof(endless) - 1] = 0;
  ck_assert_int_eq(tt_text_nearest(endless, names, 3), -1);
  /* The limit itself: 3 of 9 characters differ, then 4. */
  static const char *const word[] = {"abcdefghi"};
  ck_assert_int_eq(tt_text_nearest("abcdefxyz", word, 1), 0);
  ck_assert_int_eq(tt_text_nearest("abcdewxyz", word, 1), -1);
}
END_TEST

Suite *text_suite(void)
{
  Suite *suite = suite_create("text");
  TCase *one = clean_case(suite, "text");
  tcase_add_test(one, integers);
  tcase_add_test(one, floats);
  tcase_add_test(one, leading_numbers);
  tcase_add_test(one, lists);
  tcase_add_test(one, port_ranges);
  tcase_add_test(one, nearest);
  return suite;
}
