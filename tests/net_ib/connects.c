/* Two ports that work as one, of which one is gone, or goes, when a connection is made or memory is registered. */
#include "ib_ports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/common/effort.h"

/* Memory that is registered when a NIC has failed goes the other way, though the comm has not heard of it yet: at the
 * sender, whose NIC is gone, and at the receiver, whose NIC would refuse what is not registered with it. */
START_TEST(registered_after_a_failure)
{
  struct pair pair;
  ncclResult_t results[2];
  void *recv = NULL;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  if (_i == 0) recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake(_i ? "event fake2 8" : "remove fake0");
  wait_logged("reports a fatal error");
  void *comm = _i ? pair.recv : pair.send, **memory = _i ? &pair.in_memory : &pair.out_memory;
  ck_assert_int_eq(net->deregMr(comm, *memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(comm, _i ? pair.in : pair.out, BYTES, NCCL_PTR_HOST, memory), ncclSuccess);
  if (_i == 1) recv = post_recv(&pair, BYTES, 0);
  if (_i == 1) all_sent();
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* A NIC is gone, on one side or on both, when a connection is made: it goes over those that are left, whether the
 * events have told of it or not. Without any there is none. */
START_TEST(connects_without_a_nic)
{
  static const char *const removed[][4] = {{"remove fake0", NULL, "remove fake1", "device fake0+fake1"},
                                           {"remove fake3", NULL, "remove fake2", "device fake2+fake3"},
                                           {"remove fake1", "remove fake2", "remove fake3", "device fake2+fake3"}};
  const char *const *action = removed[_i / 2];
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send, *recv;
  struct pair pair;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  if (_i % 2) setenv("NCCL_IB_RETURN_ASYNC_EVENTS", "0", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  for (int i = 0; i < 2; i++)
    if (action[i]) fake(action[i]);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  expect_logged("is made without fake");
  stream(&pair, "reorder", MESSAGES / 2);
  pair_close(&pair);
  fake(action[2]);
  ck_assert_int_eq(net->listen(context, to, handle, &listener), ncclSuccess);
  ck_assert_int_ne(net_meet(from, handle, listener, &send, &recv), ncclSuccess);
  ck_assert_msg(strstr(last_warning, action[3]) && strstr(last_warning, "makes no connection"), "%s", last_warning);
  if (send) ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  stop();
}
END_TEST

/* A NIC is removed while a connection is made, before any call that asks something of one: the others make it. Some are
 * made in each process, over four NICs of their own. */
static const struct {
  const char *call;
  int calls; /* of these while a connection is made */
} steps[] = {{"query_port", 4}, {"create_cq", 4}, {"reg_mr", 4}, {"create_qp", 6}, {"modify_qp", 18}, {"post_recv", 4}};
enum { STEPS = 4 + 4 + 4 + 6 + 18 + 4, RECEIVES = 2 * 32 * 2 / 4 }; /* of post_recv one in so many */
enum { TOGETHER = 4 };

/* A connection is made without the NIC, or one of the sides does not use it any more. */
static bool is_done_without(int nic)
{
  static const char *const lines[] = {"is made without fake%d port 1:", "net ib: fake%d port 1 to fake",
                                      "port 1 to fake%d port 1 of the peer"};
  char line[64];
  bool found = false;
  for (int i = 0; i < 3; i++) {
    snprintf(line, sizeof line, lines[i], nic);
    found |= logged(line) != NULL;
  }
  return found;
}

static void remove_while_it_connects(int first, bool sender, int n)
{
  struct pair pair;
  char action[64];
  int step = 0;
  for (; n >= steps[step].calls; step++) n -= steps[step].calls;
  n = strcmp(steps[step].call, "post_recv") == 0 ? n * RECEIVES : n;
  int from = fuse(first, first + 1), to = fuse(first + 2, first + 3);
  int nic = first + (sender ? n % 2 : 2 + n % 2);
  snprintf(action, sizeof action, "before %s %d remove fake%d", steps[step].call, n + 1, nic);
  fake(action);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  stream(&pair, "reorder", MESSAGES / 2);
  ck_assert_msg(is_done_without(nic), "%s", log_text);
  pair_close(&pair);
}

START_TEST(removed_while_it_connects)
{
  if (_i % EFFORT(1, 3) != 0) return;
  setenv("FAKE_VERBS_DEVICES",
         "fake0,fake1,fake2,fake3,fake4,fake5,fake6,fake7,fake8,fake9,fake10,fake11,fake12,fake13,fake14,fake15", 1);
  start();
  for (int i = 0; i < TOGETHER; i++) remove_while_it_connects(4 * i, _i % 2 == 0, _i / 2 * TOGETHER + i);
  stop();
}
END_TEST

/* So it is where a port loses its link just when a queue pair is to find its way. */
START_TEST(no_link_while_it_connects)
{
  static const struct {
    int device, call;
  } lost[] = {{2, 5}, {3, 7}, {2, 10}, {3, 13}, {0, 15}, {1, 17}};
  struct pair pair;
  char action[64];
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  snprintf(action, sizeof action, "before modify_qp %d down fake%d", lost[_i].call, lost[_i].device);
  fake(action);
  snprintf(action, sizeof action, "fail modify_qp %d 101", lost[_i].call); /* ENETUNREACH */
  fake(action);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  stream(&pair, "reorder", MESSAGES / 2);
  expect_logged("it was lost while the connection was made");
  pair_close(&pair);
  stop();
}
END_TEST

/* Who wants no other port to take over has no connection without one. */
START_TEST(connects_with_all_or_not)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send, *recv;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2", 1);
  setenv("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0", 1);
  start();
  int from = fuse(0, 1);
  fake("remove fake1");
  ck_assert_int_eq(net->listen(context, 2, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(from, handle, listener, &send, &recv), ncclSystemError);
  ck_assert_msg(strstr(last_warning, "on fake1 of device fake0+fake1") != NULL, "%s", last_warning);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("connects");
  tcase_add_loop_test(tcase, registered_after_a_failure, 0, 2);
  tcase_add_loop_test(tcase, connects_without_a_nic, 0, 6);
  tcase_add_loop_test(tcase, removed_while_it_connects, 0, 2 * STEPS / TOGETHER);
  tcase_add_loop_test(tcase, no_link_while_it_connects, 0, 6);
  tcase_add_test(tcase, connects_with_all_or_not);
  return run_ib_suite(argc, argv, tcase);
}
