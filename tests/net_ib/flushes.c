/* Flushes where ports and NICs fail, and where the sender has left: what was received is in a GPU's memory when they
 * are done, and not before. */
#include "ib_ports.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* No other port can flush what the one has written whose flush fails, be it the only one here or not: an error. */
START_TEST(flush_fails)
{
  enum { GPU = 4096 };
  struct pair pair;
  ncclResult_t results[2];
  void *memory, *request;
  int size = GPU;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = _i ? fuse(2, 3) : 2;
  pair_open(&pair, from, to, BYTES);
  exchange(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  all_sent();
  fake("status REM_OP_ERR 1");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  drive(NULL, request, results);
  ck_assert_int_eq(results[1], ncclRemoteError);
  ck_assert_msg(strstr(last_warning, "flushing what was received failed: remote operation error") != NULL, "%s",
                last_warning);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* A NIC that is removed takes its flushes along, those under way and the next, which finds out. Then there are more
 * than a queue has room for, through the other NIC. */
START_TEST(flush_without_a_nic)
{
  enum { GPU = 4096, MANY = 200 };
  struct pair pair;
  void *memory, *requests[MANY];
  int size = GPU, under_way = _i & 1 ? 3 : 0;
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  all_sent();
  fake("late 5");
  for (int i = 0; i < MANY; i++) {
    if (i == under_way) fake(_i & 2 ? "remove fake3" : "remove fake2");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &requests[i]), ncclSuccess);
    ck_assert_ptr_nonnull(requests[i]);
  }
  drive_all(requests, MANY);
  ck_assert_ptr_nonnull(logged("other ports go on"));
  exchange(&pair, BYTES);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* A receiver's rail is given up, for want of the peer's link or its own, and its NIC, which is well, has yet to flush
 * what had come there before: that is not done before the NIC has, over its other port, or when the link is back; or it
 * fails. */
START_TEST(flush_without_a_link)
{
  enum { GPU = 4096, STAYS_DOWN = 0, COMES_BACK, OTHER_PORT, OF_THE_PEER };
  struct pair pair;
  ncclResult_t results[2];
  void *memory, *request;
  int size = GPU, done = 0;
  setenv("FAKE_VERBS_DEVICES", _i == OTHER_PORT ? "fake0,fake1,fake2*2" : "fake0,fake1,fake2,fake3", 1);
  setenv("NCCL_IB_TIMEOUT", _i == COMES_BACK ? "20" : "12", 1); /* 34 s; 34 ms */
  setenv("NCCL_IB_RETRY_CNT", _i == COMES_BACK ? "7" : "1", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(&pair, from, to, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  set_port(_i == OF_THE_PEER ? 0 : 2, "down");
  for (uint64_t end = now_ms() + LONG_MS; !logged("fake2 port 1 to fake0"); exchange(&pair, BYTES))
    if (now_ms() >= end) ck_abort_msg("it is not given up: %s", log_text);
  uint64_t reads = fake_count("read");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  switch (_i) {
  case STAYS_DOWN:
    drive(NULL, request, results);
    ck_assert_int_eq(results[1], ncclRemoteError);
    ck_assert_msg(strstr(last_warning, "flushing what was received failed: transport retry counter exceeded") &&
                      strstr(last_warning, "fake2 port 1") && strstr(last_warning, "has no link"),
                  "%s", last_warning);
    break;
  case COMES_BACK:
    clock_stop();
    for (int ms = 0; ms < 50; ms++) {
      clock_pass(1);
      if (net->test(request, &done, NULL) != ncclSuccess || done) ck_abort_msg("done %d: %s", done, log_text);
    }
    set_port(2, "up");
    finish(request);
    /* Nothing has come there since. */
    reads = fake_count("read");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    ck_assert_int_eq(fake_count("read") - reads, 1);
    finish(request);
    break;
  default:
    ck_assert_int_eq(fake_count("read") - reads, _i == OTHER_PORT ? 1 : 2);
    finish(request);
  }
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* All that came over a port is flushed when it loses its link: a read there that fails means no more than that. */
START_TEST(flush_of_nothing_without_a_link)
{
  enum { GPU = 4096 };
  struct pair pair;
  void *memory, *request;
  int size = GPU;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  for (int i = 0; i < 2; i++) {
    if (i == 1) set_port(2, "down");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    finish(request);
  }
  expect_logged("fake2 port 1 to fake0");
  answered(2);
  exchange(&pair, BYTES);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* The ports of a NIC flush for each other, also where a read fails while they have links. */
START_TEST(flush_over_the_other_port)
{
  enum { GPU = 4096 };
  struct pair pair;
  void *memory, *request;
  int size = GPU;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2*2", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(&pair, from, to, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  all_sent();
  fake("status REM_OP_ERR 1");
  for (int reads = 2; reads >= 1; reads--) {
    uint64_t before = fake_count("read");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    ck_assert_int_eq(fake_count("read") - before, reads);
    finish(request);
    exchange(&pair, BYTES);
  }
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* A sender may leave when all is sent. What came is flushed though a receive behind it has failed for that before, or
 * does while the flush is under way (1). That one may not even have been told (2): its clear-to-send has no answer, and
 * the cause is that the sender has left. */
START_TEST(flush_when_the_sender_has_left)
{
  struct pair pair;
  enum { BYTES = 4096 };
  bool under_way = _i & 1, untold = _i & 2;
  int size = BYTES;
  ncclResult_t results[2];
  void *memory, *request, *behind = NULL;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  pair_open(&pair, 0, 1, BYTES);
  void *data = register_gpu(&pair, BYTES, &memory);
  exchange(&pair, BYTES);
  if (!untold) behind = post_recv(&pair, BYTES, 0);
  all_sent();
  if (under_way) fake("late 600");
  if (under_way) ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  all_sent();
  pair_close_send(&pair);
  if (untold) behind = post_recv(&pair, BYTES, 0);
  if (untold) answered(1);
  drive(NULL, behind, results);
  ck_assert_int_eq(results[1], ncclRemoteError);
  ck_assert_msg(strstr(last_warning, "lost the peer") != NULL, "%s", last_warning);
  if (!under_way)
    ck_assert_msg(net->iflush(pair.recv, 1, &data, &size, &memory, &request) == ncclSuccess, "%s", last_warning);
  ck_assert_ptr_nonnull(request);
  answered(1);
  finish(request);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close_recv(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

/* No flush is done for want of a peer: one that fails is an error, and so are those behind it. */
START_TEST(flush_fails_when_the_sender_has_left)
{
  struct pair pair;
  enum { BYTES = 4096, MANY = 3 };
  int size = BYTES;
  ncclResult_t results[2];
  void *memory, *requests[MANY];
  start();
  pair_open(&pair, 0, 0, BYTES);
  void *data = register_gpu(&pair, BYTES, &memory);
  exchange(&pair, BYTES);
  all_sent();
  pair_close_send(&pair);
  drive(NULL, post_recv(&pair, BYTES, 0), results);
  ck_assert_int_eq(results[1], ncclRemoteError);
  fake(_i ? "remove fake0" : "status LOC_PROT_ERR 1");
  for (int i = 0; i < MANY; i++) {
    requests[i] = NULL;
    results[1] = net->iflush(pair.recv, 1, &data, &size, &memory, &requests[i]);
    if (results[1] == ncclSuccess) drive(NULL, requests[i], results);
    ck_assert_int_eq(results[1], ncclSystemError);
  }
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close_recv(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("flushes");
  tcase_add_loop_test(tcase, flush_fails, 0, 2);
  tcase_add_loop_test(tcase, flush_without_a_nic, 0, 4);
  tcase_add_loop_test(tcase, flush_without_a_link, 0, 4);
  tcase_add_test(tcase, flush_of_nothing_without_a_link);
  tcase_add_test(tcase, flush_over_the_other_port);
  tcase_add_loop_test(tcase, flush_when_the_sender_has_left, 0, 4);
  tcase_add_loop_test(tcase, flush_fails_when_the_sender_has_left, 0, 2);
  return run_ib_suite(argc, argv, tcase);
}
