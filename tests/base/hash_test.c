/* Hashes against published values; random numbers. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

START_TEST(fnv)
{
  ck_assert_uint_eq(tt_hash("", 0), 0xcbf29ce484222325u);
  ck_assert_uint_eq(tt_hash("a", 1), 0xaf63dc4c8601ec8cu);
  ck_assert_uint_eq(tt_hash("foobar", 6), 0x85944171f73967e8u);
  ck_assert_uint_eq(tt_hash_more(tt_hash("foo", 3), "bar", 3), 0x85944171f73967e8u);
}
END_TEST

/* From the reference implementation's vectors_sip64: key 00..0f, message 00..(n-1). */
START_TEST(siphash)
{
  static const struct {
    size_t bytes;
    unsigned char sum[8];
  } rows[] = {
      {0, {0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72}},  {1, {0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74}},
      {2, {0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d}},  {3, {0x2d, 0x7e, 0xfb, 0xd7, 0x96, 0x66, 0x67, 0x85}},
      {7, {0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab}},  {8, {0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93}},
      {15, {0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1}},
  };
  struct tt_key key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  unsigned char message[64];
  for (int i = 0; i < 64; i++) message[i] = (unsigned char)i;
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    uint64_t expected = 0;
    for (int b = 0; b < 8; b++) expected |= (uint64_t)rows[i].sum[b] << (8 * b);
    ck_assert_msg(tt_hash_keyed(&key, message, rows[i].bytes) == expected, "%zu bytes", rows[i].bytes);
  }
}
END_TEST

START_TEST(random_numbers)
{
  uint64_t a[4] = {0}, b[4] = {0};
  ck_assert_int_eq(tt_random(a, sizeof(a)), ncclSuccess);
  ck_assert_int_eq(tt_random(b, sizeof(b)), ncclSuccess);
  ck_assert(memcmp(a, b, sizeof(a)) != 0);
  ck_assert(a[3] != 0);
}
END_TEST

START_TEST(allocation)
{
  uint64_t *array;
  ck_assert_int_eq(TT_CALLOC(&array, 3), ncclSuccess);
  ck_assert(array[0] == 0 && array[2] == 0);
  free(array);
  ck_assert_int_eq(TT_CALLOC(&array, SIZE_MAX / 4), ncclSystemError);
  ck_assert_ptr_null(array);
  expect_error("out of memory");
  ck_assert_int_eq(TT_CALLOC(&array, 0), ncclSuccess);
  free(array);
}
END_TEST

Suite *hash_suite(void)
{
  Suite *suite = suite_create("hash");
  TCase *one = clean_case(suite, "hash");
  tcase_add_test(one, fnv);
  tcase_add_test(one, siphash);
  tcase_add_test(one, random_numbers);
  tcase_add_test(one, allocation);
  return suite;
}
