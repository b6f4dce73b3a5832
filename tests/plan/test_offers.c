/* Captured messages of ranks that know of each other by notes only: in place, or copied on both sides. */
#include <stdlib.h>
#include <unistd.h>
#include "base/param.h"
#include "collectives.h"
#include "message_ranks.h"
#include "tests/common/faulty_device.h"
#include "tests/fakes/device/fake.h"

/* ---- In place ---- */

/* Memory is mapped once a graph, and no longer. Eager messages are copied. _i: ranks - 2. */
START_TEST(rings)
{
  ranks_open_patient(_i + 2);
  ck_assert_int_eq(ranks_capture(rank_ring), 3 * nranks);
  ranks_expect_good();
  int with_graphs = held_memories();
  ranks_each(rank_destroy_graph);
  expect_memories(with_graphs - nranks * (nranks > 2 ? 2 : 1)); /* both neighbours' outputs */
  ck_assert_int_eq(ranks_capture(rank_ring), 3 * nranks);
  ranks_expect_good();
  ranks_close();
}
END_TEST

/* From 0 to 1 by turns with messages back, each in a group of its own, and one that is small between. */
static void ping_pong(struct rank *rank)
{
  int peer = 1 - rank->number;
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 5; i++) {
    bool sends = (i + rank->number) % 2 == 0;
    rank_call_group(rank, sends ? peer : -1, sends ? -1 : peer, i == 2 ? 100 : MESSAGE_COUNT + (size_t)i);
  }
  rank_end_capture(rank);
}

START_TEST(one_way)
{
  ranks_open_patient(2);
  ck_assert_int_eq(ranks_capture(ping_pong), 8);
  ranks_expect_good();
  ranks_close();
}
END_TEST

/* Two pairs and no ring; the ranks of a pair take no notice of the others. */
static void pairs_only(struct rank *rank)
{
  int peer = rank->number ^ 1;
  fake_capture_begin(rank->stream);
  if (rank->number >= 2) usleep(300000);
  rank_call_group(rank, peer, peer, MESSAGE_COUNT);
  rank_end_capture(rank);
}

START_TEST(two_pairs)
{
  ranks_open_patient(4);
  ck_assert_int_eq(ranks_capture(pairs_only), 4);
  ranks_expect_good();
  ranks_close();
}
END_TEST

/* ---- Copied on both sides ---- */

/* Ranks that each send first, and receive in a later group, as works while buffers take a message. */
static void send_first(struct rank *rank)
{
  int peer = 1 - rank->number;
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 2; i++) {
    rank_call_group(rank, peer, -1, MESSAGE_COUNT + (size_t)i);
    rank_call_group(rank, -1, peer, MESSAGE_COUNT + (size_t)i);
  }
  rank_end_capture(rank);
}

/* So too, and rank 1 comes to the first of its receives only when rank 0 is behind its second send. That has not been
 * waited for, and what comes after it is copied like it: in place it would be the wrong way round. */
static void send_first_by_steps(struct rank *rank)
{
  int peer = 1 - rank->number;
  fake_capture_begin(rank->stream);
  for (int i = 0; i < 2; i++) {
    rank_call_group(rank, peer, -1, MESSAGE_COUNT + (size_t)i);
    if (i == 0 && rank->number == 1) usleep(200000);
    if (i == 1 && rank->number == 0) usleep(600000);
    rank_call_group(rank, -1, peer, MESSAGE_COUNT + (size_t)i);
  }
  rank_end_capture(rank);
}

/* Rank 0 sends to 1, which sends to 2 in the same group. */
static void chain(struct rank *rank)
{
  static const int to[] = {1, 2, -1}, from[] = {-1, 0, 1};
  fake_capture_begin(rank->stream);
  rank_call_group(rank, to[rank->number], from[rank->number], MESSAGE_COUNT);
  rank_end_capture(rank);
}

/* All to all of sends: more than one work can do. Nobody waits for offers that do not come. */
static void all_to_all(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  ok(ncclGroupStart());
  for (int d = 1; d < nranks; d++)
    rank_call(rank, (rank->number + d) % nranks, (rank->number + nranks - d) % nranks, MESSAGE_COUNT + (size_t)d);
  ok(ncclGroupEnd());
  rank_end_capture(rank);
}

/* A ring in which rank 1 has two messages more in its group, and the ranks that it has them with one each. */
static void ring_with_more(struct rank *rank)
{
  fake_capture_begin(rank->stream);
  ok(ncclGroupStart());
  rank_call(rank, (rank->number + 1) % nranks, (rank->number + nranks - 1) % nranks, MESSAGE_COUNT);
  if (rank->number == 1) rank_call(rank, 2, -1, 50);
  if (rank->number == 2) rank_call(rank, -1, 1, 50);
  ok(ncclGroupEnd());
  rank_end_capture(rank);
}

static const struct {
  int n;
  rank_body *body;
} copied[] = {{2, send_first}, {2, send_first_by_steps}, {3, chain},
              {3, all_to_all}, {4, all_to_all},          {4, ring_with_more}};

/* Buffers take what is sent first. */
START_TEST(copied_by_both)
{
  setenv("NCCL_BUFFSIZE", "16777216", 1);
  ranks_open(copied[_i].n);
  unsetenv("NCCL_BUFFSIZE");
  uint64_t start = now_ms();
  ck_assert_int_eq(ranks_capture(copied[_i].body), 0);
  ck_assert_uint_lt(now_ms() - start, 8000);
  int had = held_memories();
  ranks_expect_good();
  ranks_each(rank_destroy_graph);
  expect_memories(had);
  ranks_close();
}
END_TEST

/* A buffer of rank 2's that nobody can map (0), a rank that cannot map (1), what the user does not want (2). Then it is
 * all as it should be. */
START_TEST(cannot_be_mapped)
{
  if (_i == 2) setenv("NCCL_GRAPH_REGISTER", "0", 1);
  faulty_device_next(0, 0);
  ranks_open_patient(3);
  unsetenv("NCCL_GRAPH_REGISTER");
  for (int time = 0; time < 2; time++) {
    bool good = time == 1 && _i < 2;
    if (_i == 0) {
      ck_assert(fake_user_free(ranks[2].outputs));
      ranks[2].outputs = fake_user_alloc(2, SLOTS * ROOM, good, NULL);
    }
    ranks_each(rank_ring); /* connections, while the device works */
    ranks_each(rank_destroy_graph);
    if (!good && _i == 1) faulty_device.imports = 0;
    ck_assert_int_eq(ranks_capture(rank_ring), good ? 9 : 0);
    faulty_device.imports = FAULTY_NEVER;
    ranks_expect_good();
    ranks_each(rank_destroy_graph);
  }
  ranks_close();
}
END_TEST

/* One side does not capture. Rank 0 sends; who captures, and who is first (_i). */
static int way;

static void one_captures(struct rank *rank)
{
  bool captures = rank->number == way % 2;
  if ((rank->number == 0) == (way / 2 == 0)) usleep(300000);
  if (captures) fake_capture_begin(rank->stream);
  rank_call_group(rank, rank->number == 0 ? 1 : -1, rank->number == 0 ? -1 : 0, MESSAGE_COUNT);
  if (captures) rank_end_capture(rank);
}

START_TEST(not_captured_there)
{
  way = _i;
  ranks_open(2);
  for (int r = 0; r < 2; r++) fake_stream_hold(ranks[r].stream, true);
  ck_assert_int_eq(ranks_capture(one_captures), 0);
  for (int r = 0; r < 2; r++) rank_fill(&ranks[r], 3);
  fake_graph_replay(ranks[_i % 2].graph, ranks[_i % 2].stream);
  for (int r = 0; r < 2; r++) fake_stream_hold(ranks[r].stream, false);
  for (int r = 0; r < 2; r++) rank_check(&ranks[r], 3);
  ranks_close();
}
END_TEST

/* One thread captures what rank 1 receives, and then what rank 0 sends; or the other way round (_i). Again that takes
 * less. */
START_TEST(one_after_the_other)
{
  ranks_open(2);
  int before = fake_mapped_works();
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    fake_capture_begin(ranks[r].stream);
  }
  for (int i = 0; i < 2; i++) {
    for (int turn = 0; turn < 2; turn++) {
      int r = turn == _i ? 1 : 0;
      uint64_t start = now_ms();
      rank_call_group(&ranks[r], r == 0 ? 1 : -1, r == 0 ? -1 : 0, MESSAGE_COUNT + (size_t)i);
      ck_assert_uint_lt(now_ms() - start, (uint64_t)(10000 >> i));
    }
  }
  for (int r = 0; r < 2; r++) rank_end_capture(&ranks[r]);
  ck_assert_int_eq(fake_mapped_works(), before);
  ranks_expect_good();
  ranks_close();
}
END_TEST

/* Two ranks of one thread and one group, which does not want to know it from that. */
START_TEST(one_group)
{
  setenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE", "0", 1);
  ranks_open_patient(3);
  unsetenv("NCCL_SINGLE_PROC_MEM_REG_ENABLE");
  int before = fake_mapped_works();
  for (int r = 0; r < 3; r++) {
    fake_set_device(r);
    fake_capture_begin(ranks[r].stream);
  }
  for (int i = 0; i < 4; i++) {
    ok(ncclGroupStart());
    for (int r = 0; r < 3; r++) rank_call(&ranks[r], (r + 1) % 3, (r + 2) % 3, MESSAGE_COUNT + (size_t)i);
    ok(ncclGroupEnd());
  }
  for (int r = 0; r < 3; r++) rank_end_capture(&ranks[r]);
  ck_assert_int_eq(fake_mapped_works() - before, 12);
  ranks_expect_good();
  ranks_close();
}
END_TEST

void add_offers(Suite *suite)
{
  TCase *tests = tcase_create("captured messages");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, rings, 0, MOST - 1);
  tcase_add_test(tests, one_way);
  tcase_add_test(tests, two_pairs);
  tcase_add_loop_test(tests, copied_by_both, 0, sizeof copied / sizeof *copied);
  tcase_add_loop_test(tests, cannot_be_mapped, 0, 3);
  tcase_add_loop_test(tests, not_captured_there, 0, 4);
  tcase_add_loop_test(tests, one_after_the_other, 0, 2);
  tcase_add_test(tests, one_group);
  suite_add_tcase(suite, tests);
}
