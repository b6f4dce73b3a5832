/* Two ports that work as one lose their links and get them back: how long which is waited for. */
#include "ib_ports.h"

#include <stdlib.h>
#include <string.h>

static void expect_under_way(void *const requests[2])
{
  for (int i = 0; i < 2; i++) {
    int done = 0;
    ncclResult_t result = requests[i] ? net->test(requests[i], &done, NULL) : ncclSuccess;
    if (result != ncclSuccess || done) ck_abort_msg("%d: result %d, done %d: %s", i, result, done, log_text);
  }
}

/* Time in which nothing is done, and nothing is given up. */
static void wait_in_vain(int ms, void *const requests[2])
{
  enum { STEP_MS = 10 };
  for (; ms > 0; ms -= STEP_MS) {
    clock_pass(STEP_MS);
    expect_under_way(requests);
    if (logged("is not used any more")) ck_abort_msg("%d ms before the time: %s", ms, log_text);
  }
}

enum { GRACE_MS = 500 }; /* for which a port may be without a link where others have theirs */

/* No port has a link for longer than one may be without, and the two sides lose and get theirs in another order. */
START_TEST(all_ports_come_back)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "20", 1); /* 34 s */
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  all_sent();
  clock_stop();
  set_port(0, "down");
  set_port(3, "down");
  clock_pass(GRACE_MS / 5);
  set_port(1, "down");
  set_port(2, "down");
  void *requests[2] = {post_send(&pair, BYTES, 0), post_recv(&pair, BYTES, 0)};
  wait_in_vain(2 * GRACE_MS, requests);
  set_port(0, "up");
  set_port(3, "up");
  wait_in_vain(GRACE_MS / 2, requests);
  set_port(1, "up");
  set_port(2, "up");
  drive(requests[0], requests[1], results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  ck_assert_ptr_null(logged("is not used any more"));
  pair_close(&pair);
  stop();
}
END_TEST

/* A port stays without a link, and the other one has its own again, if not for long, when the first is given up. */
START_TEST(one_port_comes_back)
{
  enum { FIRST_MS = 150, SECOND_MS = 100, PATIENCE_MS = 536 };
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "14", 1); /* 536.9 ms */
  setenv("NCCL_IB_RETRY_CNT", "7", 1);
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  void *requests[2] = {NULL, post_recv(&pair, BYTES, 0)};
  all_sent();
  clock_stop();
  set_port(3, "down");
  clock_pass(FIRST_MS);
  set_port(2, "down");
  clock_pass(SECOND_MS);
  set_port(2, "up");
  wait_in_vain(PATIENCE_MS / 10 * 10 - FIRST_MS - SECOND_MS, requests);
  clock_pass(20);
  expect_under_way(requests);
  expect_logged("is not used any more");
  drive(post_send(&pair, BYTES, 0), requests[1], results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  pair_close(&pair);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("links");
  tcase_add_test(tcase, all_ports_come_back);
  tcase_add_test(tcase, one_port_comes_back);
  return run_ib_suite(argc, argv, tcase);
}
