/* What a relay makes of places that its user names: those outside the user's memory lead nowhere. */
#include "side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "proxy/pool.h"
#include "transport/relay_internal.h"

#define SLAB 8192

/* Side 1 sends for side 0, from two slabs of side 0's. */
static void look_for(struct side sides[2], uint64_t slabs[2])
{
  struct tt_relay relay = {.rank = 1, .resources = tt_peer_memory_resources(sides[1].memory)};
  struct tt_proxy_desk *desk = aligned_alloc(64, sizeof(*desk));
  struct tt_relay_user user = {.relay = &relay, .rank = 0, .number = 0, .desk = desk};
  memset(desk, 0, sizeof(*desk));
  struct tt_proxy_found found[3];
  for (unsigned i = 0; i < 3; i++)
    desk->units[i] = (struct tt_desk_unit){
        .slab = slabs[i % 2], .slab_bytes = SLAB, .at = 64 + 100 * i, .bytes = SLAB - 64 - 100 * i};
  for (unsigned i = 0; i < 3; i++) {
    ck_assert_int_eq(tt_relay_slab_find(&user, 8 + i, &found[i]), ncclSuccess);
    ck_assert_uint_eq(found[i].bytes, SLAB - 64 - 100 * i);
    ck_assert_uint_eq(*(unsigned char *)found[i].data, 10 + i % 2);
  }
  ck_assert_int_eq(user.nslabs, 2); /* each is mapped once */
  ck_assert_ptr_eq(found[0].slab, found[2].slab);
  static const struct tt_desk_unit wrong[] = {
      {0, SLAB, 64, SLAB - 63},         {0, SLAB, SLAB + 1, 0},    {0, SLAB, UINT64_MAX, 2}, {0, SLAB, 64, UINT64_MAX},
      {UINT64_MAX - 4095, SLAB, 0, 64}, {1ull << 40, SLAB, 0, 64}, {0, UINT64_MAX, 0, 64}};
  for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    desk->units[0] = wrong[i];
    ck_assert_int_ne(tt_relay_slab_find(&user, 0, &found[0]), ncclSuccess);
  }
  ck_assert_int_eq(user.nslabs, 2);
  tt_relay_slabs_free(&user);
  free(desk);
}

static uint64_t make_slab(struct side *side, unsigned char content)
{
  void *memory;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(side->env.shm, SLAB, &memory, &offset), ncclSuccess);
  memset(memory, content, SLAB);
  return offset;
}

START_TEST(slabs_of_a_thread)
{
  struct side sides[2];
  side_open_both(sides);
  uint64_t slabs[2] = {make_slab(&sides[0], 10), make_slab(&sides[0], 11)};
  look_for(sides, slabs);
  for (int s = 0; s < 2; s++) side_close(&sides[s]);
}
END_TEST

static void own_slabs(int wire)
{
  struct side side;
  uint64_t slabs[2];
  char end;
  side_open(&side, 0, wire, NULL);
  for (int i = 0; i < 2; i++) {
    void *memory;
    SIDE_CHECK(tt_shm_alloc(side.env.shm, SLAB, &memory, &slabs[i]) == ncclSuccess);
    memset(memory, 10 + i, SLAB);
  }
  side_put(wire, slabs, sizeof(slabs));
  side_get(wire, &end, 1);
  side_close(&side);
}

START_TEST(slabs_of_a_process)
{
  struct side sides[2];
  uint64_t slabs[2];
  int wire;
  pid_t pid = side_fork(&wire, own_slabs);
  side_open(&sides[1], 1, wire, NULL);
  side_get(wire, slabs, sizeof(slabs));
  look_for(sides, slabs);
  side_put(wire, "", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  side_close(&sides[1]);
}
END_TEST

void add_relay(Suite *suite)
{
  TCase *tc = tcase_create("relay");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, slabs_of_a_thread);
  tcase_add_test(tc, slabs_of_a_process);
  suite_add_tcase(suite, tc);
}
