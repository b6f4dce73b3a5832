/* Pools and zones: memory is used again, within a limit; blocks are whole, aligned and apart. */
#include "support.h"

#include <pthread.h>
#include <string.h>

#include "base/zone.h"

START_TEST(used_again)
{
  struct tt_pool *pool;
  ck_assert_int_eq(tt_pool_create(1 << 20, &pool), ncclSuccess);
  unsigned char *first = tt_pool_take(pool, 1000);
  memset(first, 0xa5, 1000);
  tt_pool_give(first);
  size_t held = tt_pool_bytes(pool);
  ck_assert_uint_gt(held, 1000);
  unsigned char *other = tt_pool_take(pool, 100); /* of another size */
  ck_assert_ptr_ne(other, first);
  unsigned char *second = tt_pool_take_zeroed(pool, 990);
  ck_assert_ptr_eq(second, first);
  for (int i = 0; i < 990; i++) ck_assert_int_eq(second[i], 0);
  tt_pool_give(other);
  tt_pool_give(second);
  tt_pool_give(NULL);
  ck_assert_uint_lt(tt_pool_bytes(pool), held + 256);
  tt_pool_destroy(pool);
  tt_pool_destroy(NULL);
}
END_TEST

/* What exceeds the limit is not kept, nor is a very large block. */
START_TEST(limited)
{
  enum { BLOCKS = 64, BYTES = 1000, KEEP = 8192 };
  struct tt_pool *pool;
  void *blocks[BLOCKS];
  ck_assert_int_eq(tt_pool_create(KEEP, &pool), ncclSuccess);
  for (int i = 0; i < BLOCKS; i++) blocks[i] = tt_pool_take(pool, BYTES);
  ck_assert_uint_ge(tt_pool_bytes(pool), BLOCKS * BYTES);
  for (int i = 0; i < BLOCKS; i++) tt_pool_give(blocks[i]);
  ck_assert_uint_le(tt_pool_bytes(pool), KEEP);
  ck_assert_uint_ge(tt_pool_bytes(pool), KEEP / 2);
  size_t held = tt_pool_bytes(pool);
  blocks[0] = tt_pool_take(pool, 4 << 20);
  ck_assert_uint_ge(tt_pool_bytes(pool), 4 << 20);
  tt_pool_give(blocks[0]);
  ck_assert_uint_eq(tt_pool_bytes(pool), held);
  ck_assert_ptr_null(tt_pool_take(pool, SIZE_MAX));
  ck_assert_ptr_null(tt_pool_take(NULL, SIZE_MAX - 8));
  tt_pool_destroy(pool);
}
END_TEST

/* Blocks of all sizes, filled by their owners, do not touch each other. */
START_TEST(apart)
{
  enum { BLOCKS = 200, ROUNDS = 2000 };
  struct tt_pool *pool;
  struct {
    unsigned char *at;
    size_t bytes;
  } blocks[BLOCKS] = {0};
  uint64_t state = 7;
  ck_assert_int_eq(tt_pool_create(100000, &pool), ncclSuccess);
  for (int round = 0; round < ROUNDS; round++) {
    int b = (int)(next_random(&state) % BLOCKS);
    for (size_t i = 0; i < blocks[b].bytes; i++) ck_assert_int_eq(blocks[b].at[i], b);
    tt_pool_give(blocks[b].at);
    blocks[b].bytes = next_random(&state) % (1u << next_random(&state) % 15);
    blocks[b].at = tt_pool_take(next_random(&state) % 8 ? pool : NULL, blocks[b].bytes);
    ck_assert_uint_eq((uintptr_t)blocks[b].at % _Alignof(max_align_t), 0);
    memset(blocks[b].at, b, blocks[b].bytes);
  }
  for (int b = 0; b < BLOCKS; b++) tt_pool_give(blocks[b].at);
  tt_pool_destroy(pool);
}
END_TEST

static void *take_and_give(void *pool)
{
  for (int i = 0; i < 2000; i++) {
    unsigned char *a = tt_pool_take(pool, 100), *b = tt_pool_take(pool, 100);
    a[0] = 1;
    b[0] = 2;
    ck_assert_int_eq(a[0], 1);
    tt_pool_give(a);
    tt_pool_give(b);
  }
  return NULL;
}

START_TEST(threads)
{
  enum { THREADS = 4 };
  struct tt_pool *pool;
  pthread_t threads[THREADS];
  ck_assert_int_eq(tt_pool_create(1 << 20, &pool), ncclSuccess);
  for (int t = 0; t < THREADS; t++) ck_assert_int_eq(pthread_create(&threads[t], NULL, take_and_give, pool), 0);
  for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  ck_assert_uint_le(tt_pool_bytes(pool), 2 * THREADS * 192);
  tt_pool_destroy(pool);
}
END_TEST

/* Objects of a zone stay where they are until all of them end; a zone made again takes no new memory from its pool. */
START_TEST(zones)
{
  enum { OBJECTS = 300 };
  struct tt_pool *pool;
  size_t held = 0;
  ck_assert_int_eq(tt_pool_create(1 << 20, &pool), ncclSuccess);
  for (int round = 0; round < 3; round++) {
    struct tt_zone zone = {.pool = round < 2 ? pool : NULL};
    unsigned char *objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
      size_t bytes = (size_t)i * (i % 50 == 0 ? 1000 : 1);
      objects[i] = tt_zone_take(&zone, bytes);
      ck_assert_uint_eq((uintptr_t)objects[i] % _Alignof(max_align_t), 0);
      for (size_t k = 0; k < bytes; k++) ck_assert_int_eq(objects[i][k], 0);
      memset(objects[i], i, bytes);
    }
    for (int i = 0; i < OBJECTS; i++)
      for (int k = 0; k < i; k++) ck_assert_int_eq(objects[i][k], (unsigned char)i);
    char *text;
    ck_assert_int_eq(tt_zone_copy(&zone, "a text", &text), ncclSuccess);
    ck_assert_str_eq(text, "a text");
    ck_assert_int_eq(tt_zone_copy(&zone, NULL, &text), ncclSuccess);
    ck_assert_ptr_null(text);
    ck_assert_uint_ge(zone.bytes, 300 * 299 / 2);
    ck_assert_ptr_null(tt_zone_take(&zone, SIZE_MAX));
    tt_zone_clear(&zone);
    ck_assert_uint_eq(zone.bytes, 0);
    if (round == 1) ck_assert_uint_eq(tt_pool_bytes(pool), held);
    held = tt_pool_bytes(pool);
  }
  tt_pool_destroy(pool);
}
END_TEST

/* What was lent is used first; what does not fit it comes from the pool. */
START_TEST(lent)
{
  _Alignas(max_align_t) unsigned char memory[256];
  struct tt_pool *pool;
  ck_assert_int_eq(tt_pool_create(1 << 20, &pool), ncclSuccess);
  for (int round = 0; round < 2; round++) {
    struct tt_zone zone = {.pool = pool};
    memset(memory, 1, sizeof(memory));
    tt_zone_lend(&zone, memory, sizeof(memory));
    unsigned char *first = tt_zone_take(&zone, 100), *second = tt_zone_take(&zone, 144);
    ck_assert_ptr_eq(first, memory);
    ck_assert_ptr_eq(second, memory + 112);
    for (int i = 0; i < 100; i++) ck_assert(first[i] == 0 && second[i] == 0);
    ck_assert_uint_eq(zone.bytes, 0);
    ck_assert_uint_eq(tt_pool_bytes(pool), 0);
    if (round == 1) {
      unsigned char *third = tt_zone_take(&zone, 1);
      ck_assert(third < memory || third >= memory + sizeof(memory));
      memset(third, 2, 1);
    }
    tt_zone_clear(&zone);
    ck_assert(zone.left == 0 && zone.next == NULL);
  }
  tt_pool_destroy(pool);
}
END_TEST

Suite *pool_suite(void)
{
  Suite *suite = suite_create("pool");
  TCase *tests = clean_case(suite, "pool");
  tcase_add_test(tests, used_again);
  tcase_add_test(tests, limited);
  tcase_add_test(tests, apart);
  tcase_add_test(tests, threads);
  tcase_add_test(tests, zones);
  tcase_add_test(tests, lent);
  return suite;
}
