/* Two ports that work as one: when one fails, in whatever way and moment, every message arrives once, whole and in
 * order. */
#include "ib_ports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const actions[] = {"down fake0",         "down fake1",
                                      "mute fake0",         "mute fake1",
                                      "remove fake0",       "status RETRY_EXC_ERR 1",
                                      "status FATAL_ERR 2", "status WR_FLUSH_ERR 5",
                                      "fail post_send 1 5", "fail post_recv 1 5"};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

START_TEST(others_take_over)
{
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", _i % 2 ? "2" : "1", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", _i % 2 ? "1" : "0", 1);
  open_fused(&pair);
  if (_i % 2) fake("reorder");
  stream(&pair, actions[_i / 2], 3 + 4 * _i);
  ck_assert_msg(logged("is not used any more") && logged("other ports go on"), "%s", log_text);
  /* And it goes on. */
  exchange(&pair, BYTES);
  int clears = clears_of(&pair, 8, MESSAGES, 1);
  ck_assert_msg(clears <= MESSAGES / 3, "%d clear-to-sends", clears);
  pair_close(&pair);
  stop();
}
END_TEST

/* What has arrived when a way is stopped may show only later, and must not be sent again: the receiver waits for it
 * before it says what it has. The sender's call fails at once, so that the receiver hears of it before. */
START_TEST(seen_late)
{
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", "2", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  open_fused(&pair);
  fake("late 20");
  stream(&pair, "fail post_send 1 5", 20 + _i);
  ck_assert_msg(logged("is not used any more") && logged("other ports go on"), "%s", log_text);
  pair_close(&pair);
  stop();
}
END_TEST

/* The receiver's NIC is removed when more has come over it than one call looks at: what the others find later has
 * arrived as well, and its buffers are the user's then. */
START_TEST(removed_with_much_unseen)
{
  enum { MANY = 32, EACH = 16384 };
  static char spoiled[MANY * EACH];
  struct pair pair;
  void *sends[MANY], *recvs[MANY];
  size_t bytes = EACH;
  int tag = 0;
  open_apart(&pair, sizeof spoiled);
  for (int i = 0; i < MANY; i++) {
    void *data = pair.in + i * EACH;
    ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &pair.in_memory, NULL, &recvs[i]), ncclSuccess);
    ck_assert_ptr_nonnull(recvs[i]);
  }
  all_sent();
  memset(pair.out, 7, sizeof spoiled);
  for (int i = 0; i < MANY; i++) {
    ck_assert_int_eq(net->isend(pair.send, pair.out + i * EACH, EACH, tag, pair.out_memory, NULL, &sends[i]),
                     ncclSuccess);
    ck_assert_ptr_nonnull(sends[i]);
  }
  all_sent();
  fake("remove fake2");
  wait_logged("fake2 reports a fatal error");
  drive_all(recvs, MANY);
  ck_assert_int_eq(memcmp(pair.in, pair.out, sizeof spoiled), 0);
  memset(spoiled, 0x5a, sizeof spoiled);
  memset(pair.in, 0x5a, sizeof spoiled);
  drive_all(sends, MANY);
  ck_assert_msg(memcmp(pair.in, spoiled, sizeof spoiled) == 0, "a buffer was written after its receive was done");
  exchange(&pair, EACH);
  pair_close(&pair);
  stop();
}
END_TEST

/* What a NIC did before it failed shows late, and the thread that looks for it is held up meanwhile: it is there, and
 * is not sent again. */
START_TEST(held_up_when_a_nic_fails)
{
  struct pair pair;
  ncclResult_t results[2];
  clock_stop();
  open_apart(&pair, BYTES);
  void *recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake("late 1000");
  fake("status RETRY_EXC_ERR 1");
  uint64_t stored = fake_count("stored");
  void *send = post_send(&pair, 1000, 0);
  while (fake_count("stored") == stored) usleep(1000);
  fake("remove fake2");
  wait_logged("fake2 reports a fatal error");
  clock_step(150);
  drive(NULL, recv, results);
  ck_assert_msg(results[1] == ncclSuccess, "result %d: %s", results[1], log_text);
  clock_step(0);
  fake("late 0");
  drive(send, NULL, results);
  ck_assert_msg(results[0] == ncclSuccess, "result %d: %s", results[0], log_text);
  ck_assert_uint_eq(fake_count("write_imm"), 1);
  exchange(&pair, BYTES);
  pair_close(&pair);
  stop();
}
END_TEST

/* Only the answer to the last message is lost, or to one of its pieces, and its receiver, who has it, calls nothing any
 * more: the sender finds out by itself, though it may have to look twice. */
START_TEST(receiver_calls_no_more)
{
  struct pair pair;
  bool split = _i & 1, early = _i & 2;
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", split ? "1" : "0", 1);
  open_fused(&pair);
  exchange(&pair, BYTES);
  uint64_t answered = fake_count("sent"), reads = fake_count("read");
  void *recv = post_recv(&pair, BYTES, 0);
  while (fake_count("sent") == answered) usleep(1000);
  fake("status RETRY_EXC_ERR 1");
  void *send = post_send(&pair, BYTES, 0);
  for (int done = 0; early && fake_count("read") < reads + 2;) {
    if (net->test(send, &done, NULL) != ncclSuccess || done) ck_abort_msg("done %d: %s", done, log_text);
  }
  finish(recv);
  finish(send);
  ck_assert_ptr_nonnull(logged("is not used any more"));
  /* What the receiver says once it is called again is news to nobody. */
  exchange(&pair, BYTES);
  pair_close(&pair);
  stop();
}
END_TEST

/* As before, or no way's answer comes, and the receiver closes: its last word counts. */
START_TEST(receiver_closes)
{
  struct pair pair;
  open_fused(&pair);
  exchange(&pair, BYTES);
  all_sent();
  void *recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake(_i ? "status RETRY_EXC_ERR 2" : "status RETRY_EXC_ERR 1");
  void *send = post_send(&pair, BYTES, 0);
  finish(recv);
  pair_close_recv(&pair);
  finish(send);
  pair_close_send(&pair);
  stop();
}
END_TEST

START_TEST(not_wanted)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0", 1);
  open_fused(&pair);
  exchange(&pair, BYTES);
  fake("mute fake0");
  void *recv = post_recv(&pair, BYTES, 0);
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] != ncclSuccess && results[1] != ncclSuccess, "results %d %d", results[0], results[1]);
  ck_assert_ptr_null(logged("other ports go on"));
  pair_close(&pair);
  stop();
}
END_TEST

/* The last port's failure is the connection's. */
START_TEST(none_left)
{
  struct pair pair;
  ncclResult_t results[2];
  open_fused(&pair);
  stream(&pair, "mute fake0", 50);
  fake("mute fake1");
  void *recv = post_recv(&pair, BYTES, 0);
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] != ncclSuccess && results[1] != ncclSuccess, "results %d %d", results[0], results[1]);
  ck_assert_ptr_nonnull(logged("transport retry counter exceeded"));
  pair_close(&pair);
  stop();
}
END_TEST

/* Clear-to-sends stay on a way, which the receiver gives up, so that it tells of its receives another way. The first
 * come at last when one of those receives is done, and another has its slot. */
START_TEST(entries_come_late)
{
  enum { ALL = NCCL_NET_MAX_REQUESTS, EACH = 8 };
  struct pair pair;
  void *requests[2 * (ALL + 1)], **recvs = requests, **sends = requests + ALL + 1;
  size_t bytes = EACH;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, (ALL + 1) * EACH);
  exchange(&pair, EACH);
  all_sent();
  fake("mute fake0");
  for (int i = 0; i <= ALL; i++) {
    void *data = pair.in + i * EACH;
    int tag = i == ALL; /* told at once, since it is unlike the others */
    if (i == ALL) {
      /* The way of the first message is the other one, and it needs no call that hears of the failure. */
      memset(pair.out, 1, EACH);
      ck_assert_int_eq(net->isend(pair.send, pair.out, EACH, 0, pair.out_memory, NULL, &sends[0]), ncclSuccess);
      finish(recvs[0]);
      recvs[0] = NULL;
    }
    ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &pair.in_memory, NULL, &recvs[i]), ncclSuccess);
    ck_assert_ptr_nonnull(recvs[i]);
    for (uint64_t end = now_ms() + LONG_MS; i == ALL - 1 && !logged("is not used any more");) {
      int done = 0;
      if (net->test(recvs[0], &done, NULL) != ncclSuccess || done || now_ms() >= end)
        ck_abort_msg("done %d: %s", done, log_text);
    }
    if (i >= ALL - 1) answered(3);
  }
  uint64_t stored = fake_count("stored");
  fake("up fake0");
  for (uint64_t end = now_ms() + LONG_MS; fake_count("stored") == stored; usleep(1000))
    if (now_ms() >= end) ck_abort_msg("nothing comes late");
  finish(sends[0]);
  sends[0] = NULL;
  for (int i = 1; i <= ALL; i++) {
    memset(pair.out + i * EACH, i + 1, EACH);
    ck_assert_int_eq(net->isend(pair.send, pair.out + i * EACH, EACH, i == ALL, pair.out_memory, NULL, &sends[i]),
                     ncclSuccess);
    ck_assert_ptr_nonnull(sends[i]);
  }
  drive_all(requests, 2 * (ALL + 1));
  ck_assert_int_eq(memcmp(pair.in, pair.out, (ALL + 1) * EACH), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* Whichever write fails: of the last receives, in a row that wraps, the first is told again though it may be the only
 * one that the sender does not know. */
START_TEST(any_write_fails)
{
  enum { AHEAD = 10, BEFORE = 5, LAST = 36, EACH = 20 };
  struct pair pair;
  char action[32];
  int index = open_fused(&pair);
  pair_close(&pair);
  for (int n = 1; n <= EACH; n++) {
    pair_open(&pair, index, index, 8 * NCCL_NET_MAX_REQUESTS);
    for (int i = 0; i < BEFORE; i++) exchange(&pair, 8);
    snprintf(action, sizeof action, "fail post_send %d 5", EACH * _i + n);
    fake(action);
    clears_of(&pair, AHEAD, LAST - BEFORE, 1);
    pair_close(&pair);
  }
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("failover");
  tcase_add_loop_test(tcase, others_take_over, 0, 2 * ACTIONS);
  tcase_add_loop_test(tcase, seen_late, 0, 3);
  tcase_add_test(tcase, removed_with_much_unseen);
  tcase_add_test(tcase, held_up_when_a_nic_fails);
  tcase_add_loop_test(tcase, any_write_fails, 0, 4);
  tcase_add_test(tcase, entries_come_late);
  tcase_add_loop_test(tcase, receiver_calls_no_more, 0, 4);
  tcase_add_loop_test(tcase, receiver_closes, 0, 2);
  tcase_add_test(tcase, not_wanted);
  tcase_add_test(tcase, none_left);
  return run_ib_suite(argc, argv, tcase);
}
