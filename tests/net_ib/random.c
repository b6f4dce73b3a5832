/* net-ib under random traffic, whatever its NICs do. */
#include "ib_fixture.h"

#include <stdlib.h>
#include "tests/common/traffic.h"

#ifdef __SANITIZE_THREAD__ /* which makes all of it ten times as slow */
enum { RECEIVES = 33 };
#else
enum { RECEIVES = 200 };
#endif

/* One port or two as one, some queue pairs, and messages in one piece or several. */
static int start_kind(int kind)
{
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2, .devs = {0, 1}};
  int index = -1;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  setenv("NCCL_IB_QPS_PER_CONNECTION", kind & 1 ? "4" : "1", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", kind & 2 ? "1" : "0", 1);
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  if (!(kind & 4)) return 0;
  ck_assert_int_eq(net->makeVDevice(&index, &two), ncclSuccess);
  return index;
}

START_TEST(comes_whole)
{
  static const char *const words[] = {"reorder", "torn 2", "late 1"};
  int device = start_kind(_i % 8);
  fake(words[_i % 3]);
  traffic_seed((unsigned)_i);
  random_traffic(device, RECEIVES, NULL);
  stop();
}
END_TEST

static const char *const actions[] = {
    "down fake0",         "mute fake1",         "remove fake0",       "status RETRY_EXC_ERR 3",
    "fail post_send 3 5", "fail post_recv 2 5", "fail post_send 40 5"};
enum { ACTIONS = sizeof actions / sizeof actions[0] };
static const char *action;

static void trouble(void)
{
  fake(action);
}

START_TEST(others_take_over)
{
  int device = start_kind(4 | _i % 4);
  action = actions[_i % ACTIONS];
  if (_i % 2) fake("reorder");
  traffic_seed((unsigned)_i + 100);
  random_traffic(device, RECEIVES, trouble);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("random");
  tcase_add_loop_test(tcase, comes_whole, 0, 12);
  tcase_add_loop_test(tcase, others_take_over, 0, ACTIONS);
  return run_ib_suite(argc, argv, tcase);
}
