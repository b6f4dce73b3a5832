/* What a context was opened with comes with each of its launches: short works, several, long ones, those with members'
 * buffers, between which copy engines copy, and those with shared memory. */
#include <check.h>
#include <stdlib.h>
#include "base/check.h"
#include "fake_hints.h"
#include "fake_launch.h"
#include "kernels/cuda/attributes.h"
#include "short_work.h"
#include "tests/program/program_set.h"

static void ask(uint32_t cluster, bool links, bool apart)
{
  const struct tt_device_config config = {.size = sizeof(config), .cluster = cluster, .links = links, .apart = apart};
  free(fake_context.attributes);
  fake_context.attributes = NULL;
  ck_assert_int_eq(tt_cuda_attributes_choose(&fake_context, &config), ncclSuccess);
}

static void forget(void)
{
  free(fake_context.attributes);
  fake_context.attributes = NULL;
  fake_hints_reset();
  forget_programs();
}

/* Launches `made.work` on so many channels. */
static void launch_on(uint32_t nchannels)
{
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch;
  int before = launched.count;
  made.work.nchannels = nchannels;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert_int_gt(launched.count, before);
  ck_assert_uint_eq(launched.grid.x, nchannels);
}

static void expect(unsigned cluster, bool links, bool apart)
{
  links = links && FAKE_LINKS;
  ck_assert_uint_eq(launched.cluster, cluster);
  ck_assert(launched.spread == (cluster > 0) && launched.links == links && launched.remote == apart);
  ck_assert_int_eq(launched.nattributes, 2 * (cluster > 0) + links + apart);
}

/* _i: 0 a short work, 1 a long one, 2 one with shared memory. */
START_TEST(single_works)
{
  static const struct operation operations[] = {{TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0},
                                                {TT_FUNC_ALL_REDUCE, TT_ALGO_RING, 0},
                                                {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, 0}};
  static char own[16], all[16];
  struct program_set set = emit_set(&operations[_i], 4, 0, NULL);
  make_work(set.programs[1], MOST_CHANNELS, _i == 0 ? TT_PROTO_LL : TT_PROTO_SIMPLE, false);
  made.work.shared = own;
  made.work.multicast = all;
  fake_hints.capability = 100;
  ask(0, false, false);
  launch_on(2);
  ck_assert(launched.shares == (_i == 2) && (launched.form == TT_CUDA_FORM_SHORT) == (_i == 0));
  expect(0, false, false);
  ask(0, false, true);
  launch_on(2);
  expect(0, false, true);
  ask(0, true, false);
  launch_on(2);
  expect(0, true, false);
  ask(2, false, false);
  launch_on(1);
  expect(0, false, false);
  launch_on(2);
  expect(2, false, false);
  launch_on(3); /* which two do not divide */
  expect(0, false, false);
  ask(8, true, true);
  for (uint32_t n = 1; n <= MOST_CHANNELS; n++) {
    launch_on(n);
    expect(n == 1 ? 0 : n, true, true);
  }
  fake_hints.at_once[3] = 0; /* no three blocks run in one */
  ask(8, true, true);
  launch_on(3);
  expect(0, true, true);
  fake_hints.capability = 80;
  ask(8, true, true);
  launch_on(2);
  expect(0, false, false);
  forget();
  free_set(&set);
}
END_TEST

/* Several works in one kernel, of four blocks; together and by the general kernel. */
START_TEST(several_works)
{
  struct program_set pair = emit_pair(2, 0, 1);
  static struct made_work group[2];
  struct tt_work *works[] = {&group[0].work, &group[1].work};
  struct tt_launch *launch;
  for (int general = 0; general < 2; general++) {
    for (int w = 0; w < 2; w++) {
      make_work(pair.programs[w], 2, general ? TT_PROTO_SIMPLE : TT_PROTO_LL128, false);
      group[w] = made;
      group[w].work.channels = group[w].channels;
      group[w].work.signature.collective = TT_FUNC_SEND_RECV;
      group[w].work.order = (uint64_t)w + 1;
    }
    for (uint32_t cluster = 0; cluster <= 4; cluster++) {
      ask(cluster, false, true);
      ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
      ck_assert_uint_eq(launched.grid.x, 4);
      ck_assert_int_eq(launched.form, general ? TT_CUDA_FORM_ANY : TT_CUDA_FORM_SHORT);
      expect(cluster < 2 ? 0 : cluster == 3 ? 2 : cluster, false, true);
    }
    fake_hints.at_once[4] = 3; /* not all of the four */
    ask(4, false, true);
    ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
    expect(2, false, true);
    fake_hints_reset();
  }
  forget();
  free_set(&pair);
}
END_TEST

/* _i: 0 a kernel; 1 copy engines between two, of which the last is looked at. */
START_TEST(members_buffers)
{
  static const struct operation gather = {TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED, 0};
  struct program_set set = emit_set(&gather, 4, 0, NULL);
  make_work(set.programs[1], 2, TT_PROTO_SIMPLE, false);
  made.work.engines = (uint32_t)_i;
  ask(2, false, true);
  launch_on(_i == 0 ? 2 : 1);
  ck_assert(launched.form == TT_CUDA_FORM_MAPPED && launched.count == 1 + _i);
  expect(_i == 0 ? 2 : 0, false, true);
  forget();
  free_set(&set);
}
END_TEST

/* A launch that may begin while the one before it ends says so beside what all have; the next one does not. _i: 0
 * others have nothing, 1 as much as there is. */
START_TEST(early)
{
  static const struct operation reduce = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set set = emit_set(&reduce, 4, 0, NULL);
  make_work(set.programs[1], 2, TT_PROTO_LL, false);
  fake_hints.capability = 100;
  ask(_i ? 2 : 0, _i, _i);
  launch_on(2);
  int usual = launched.nattributes;
  for (int n = 0; n < 2; n++) {
    fake_context.executor->begins_early = true;
    launch_on(2);
    ck_assert(launched.early && launched.nattributes == usual + 1 && launched.remote == _i);
    ck_assert_uint_eq(launched.cluster, _i ? 2 : 0);
    launch_on(2);
    ck_assert(!launched.early);
    expect(_i ? 2 : 0, _i, _i);
  }
  forget();
  free_set(&set);
}
END_TEST

void add_attributes(TCase *tc)
{
  tcase_add_loop_test(tc, single_works, 0, 3);
  tcase_add_test(tc, several_works);
  tcase_add_loop_test(tc, members_buffers, 0, 2);
  tcase_add_loop_test(tc, early, 0, 2);
}
