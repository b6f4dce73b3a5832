/* The pool by itself: its bounds, its queue, and what happens at a standstill. */
#include <check.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "proxy/pool.h"

#define UNIT 256

static struct tt_proxy_pool *make(int limit)
{
  struct tt_proxy_pool *pool;
  const struct tt_proxy_pool_config config = {.device = 1, .unit_bytes = UNIT, .limit = limit};
  ck_assert_int_eq(tt_proxy_pool_create(&config, &pool), ncclSuccess);
  return pool;
}

static struct tt_proxy_unit *take(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait, int held)
{
  struct tt_proxy_unit *unit;
  ck_assert_int_eq(tt_proxy_pool_take(pool, wait, held, &unit), ncclSuccess);
  return unit;
}

/* Takes a unit, waiting as long as it takes. */
static struct tt_proxy_unit *take_patiently(struct tt_proxy_pool *pool, struct tt_proxy_wait *wait)
{
  struct tt_proxy_unit *unit = NULL;
  while (!unit) {
    unit = take(pool, wait, 0);
    if (!unit) usleep(1000);
  }
  return unit;
}

/* Memory comes slab by slab and ends at the limit; units do not overlap and lie as slots must. */
START_TEST(grows_to_its_limit)
{
  struct tt_proxy_pool *pool = make(20);
  struct tt_proxy_wait wait = {0};
  struct tt_proxy_unit *units[20];
  size_t last = 0;
  for (int i = 0; i < 20; i++) {
    units[i] = take(pool, &wait, i);
    ck_assert_ptr_nonnull(units[i]);
    memset(units[i]->data, i, UNIT);
    ck_assert_uint_eq((uintptr_t)units[i]->data % 128, 64);
    size_t bytes = tt_proxy_pool_look(pool).bytes;
    if (i % 8 == 0)
      ck_assert_uint_gt(bytes, last);
    else
      ck_assert_uint_eq(bytes, last);
    last = bytes;
  }
  ck_assert_ptr_null(take(pool, &wait, 20));
  ck_assert(!wait.queued); /* who has units does not queue */
  ck_assert_int_eq(tt_proxy_pool_look(pool).units, 20);
  for (int i = 0; i < 20; i++)
    for (int k = 0; k < UNIT; k++) ck_assert_int_eq(units[i]->data[k], i);
  for (int i = 0; i < 20; i++) tt_proxy_pool_give(pool, units[i]);
  ck_assert_int_eq(tt_proxy_pool_look(pool).free, 20);
  ck_assert_uint_eq(tt_proxy_pool_look(pool).bytes, last);
  ck_assert_uint_eq(tt_proxy_pool_look(pool).spares, 0);
  tt_proxy_pool_destroy(pool);
}
END_TEST

/* Who has nothing waits in turn, and before those that want more. */
START_TEST(first_come_first_served)
{
  struct tt_proxy_pool *pool = make(1);
  struct tt_proxy_wait holder = {0}, waits[3] = {0};
  struct tt_proxy_unit *unit = take(pool, &holder, 0);
  ck_assert_ptr_nonnull(unit);
  for (int i = 0; i < 3; i++) ck_assert_ptr_null(take(pool, &waits[i], 0));
  ck_assert_int_eq(tt_proxy_pool_look(pool).waiting, 3);
  tt_proxy_pool_give(pool, unit);
  ck_assert_ptr_null(take(pool, &holder, 1));
  ck_assert_ptr_null(take(pool, &waits[2], 0));
  tt_proxy_pool_forget(pool, &waits[0]); /* its connection is gone */
  ck_assert_ptr_null(take(pool, &waits[2], 0));
  unit = take(pool, &waits[1], 0);
  ck_assert_ptr_nonnull(unit);
  tt_proxy_pool_give(pool, unit);
  unit = take(pool, &waits[2], 0);
  ck_assert_ptr_nonnull(unit);
  ck_assert_int_eq(tt_proxy_pool_look(pool).waiting, 0);
  tt_proxy_pool_give(pool, unit);
  tt_proxy_pool_destroy(pool);
}
END_TEST

/* Nothing comes back: everybody gets a unit in the end, and the memory of those beyond the limit is given back. */
START_TEST(standstill_ends)
{
  enum { WAITING = 40 };
  struct tt_proxy_pool *pool = make(2);
  struct tt_proxy_wait holder = {0}, waits[WAITING] = {0};
  struct tt_proxy_unit *held[2] = {take(pool, &holder, 0), take(pool, &holder, 1)}, *units[WAITING];
  size_t bytes = tt_proxy_pool_look(pool).bytes;
  for (int i = 0; i < WAITING; i++) ck_assert_ptr_null(take(pool, &waits[i], 0));
  for (int i = 0; i < WAITING; i++) {
    ck_assert_ptr_null(take(pool, &holder, 2)); /* who can go on gets none */
    units[i] = take_patiently(pool, &waits[i]);
    ck_assert(tt_proxy_unit_spare(units[i]));
    memset(units[i]->data, i, UNIT);
  }
  struct tt_proxy_pool_state state = tt_proxy_pool_look(pool);
  ck_assert_uint_eq(state.spares, WAITING);
  ck_assert_int_eq(state.units, 2);
  ck_assert_uint_ge(state.bytes, bytes + WAITING * UNIT);
  for (int i = 0; i < WAITING; i++) tt_proxy_pool_give(pool, units[i]);
  ck_assert_uint_eq(tt_proxy_pool_look(pool).bytes, bytes);
  for (int i = 0; i < 2; i++) tt_proxy_pool_give(pool, held[i]);
  ck_assert_ptr_nonnull(take(pool, &waits[0], 0));
  tt_proxy_pool_destroy(pool);
}
END_TEST

/* While units come back there is no standstill, however long somebody waits. */
START_TEST(no_spares_while_it_moves)
{
  struct tt_proxy_pool *pool = make(1);
  struct tt_proxy_wait waits[2] = {0};
  struct tt_proxy_unit *unit = take(pool, &waits[0], 0);
  for (int i = 0; i < 20; i++) {
    ck_assert_ptr_null(take(pool, &waits[1 - i % 2], 0));
    usleep(1000);
    tt_proxy_pool_give(pool, unit);
    unit = take(pool, &waits[1 - i % 2], 0);
    ck_assert_ptr_nonnull(unit);
    ck_assert(!tt_proxy_unit_spare(unit));
  }
  ck_assert_uint_eq(tt_proxy_pool_look(pool).spares, 0);
  tt_proxy_pool_give(pool, unit);
  tt_proxy_pool_destroy(pool);
}
END_TEST

START_TEST(shares)
{
  struct tt_proxy_pool *pool = make(10);
  ck_assert_int_eq(tt_proxy_pool_share(pool), 10);
  tt_proxy_pool_count(pool, 3);
  ck_assert_int_eq(tt_proxy_pool_share(pool), 3);
  tt_proxy_pool_count(pool, 30);
  ck_assert_int_eq(tt_proxy_pool_share(pool), 1);
  tt_proxy_pool_count(pool, -33);
  tt_proxy_pool_destroy(pool);
}
END_TEST

/* What a link has registered stays when the pool goes. */
START_TEST(slabs_outlive_pools)
{
  struct tt_proxy_pool *pool = make(4);
  struct tt_proxy_wait wait = {0};
  struct tt_proxy_unit *unit = take(pool, &wait, 0);
  struct tt_proxy_slab *slab = tt_proxy_slab_retain(unit->slab);
  size_t bytes;
  tt_proxy_pool_destroy(pool);
  memset(tt_proxy_slab_memory(slab, &bytes), 1, 1);
  ck_assert_uint_eq(bytes, 64 + 4 * UNIT);
  memset(tt_proxy_slab_memory(slab, &bytes), 1, bytes);
  tt_proxy_slab_release(slab);
}
END_TEST

void add_pool(Suite *suite)
{
  TCase *tc = tcase_create("pool");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, grows_to_its_limit);
  tcase_add_test(tc, first_come_first_served);
  tcase_add_test(tc, standstill_ends);
  tcase_add_test(tc, no_spares_while_it_moves);
  tcase_add_test(tc, shares);
  tcase_add_test(tc, slabs_outlive_pools);
  suite_add_tcase(suite, tc);
}
