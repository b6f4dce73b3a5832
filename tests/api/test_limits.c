/* Large groups, empty messages, messages to oneself; and large counts, which take a minute, where TEST_HUGE_COUNTS is
 * set in the environment. */
#include "suites.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "nccl.h"
#include "tests/common/effort.h"

enum { MESSAGES = EFFORT(100000, 3000) };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

/* More messages than any fixed limit of a group, between two ranks and of a rank with itself. */
START_TEST(many_messages)
{
  ncclComm_t comms[2];
  int *in = malloc(MESSAGES * sizeof *in), *out = calloc(MESSAGES, sizeof *out), *own = calloc(MESSAGES, sizeof *own);
  ok(ncclCommInitAll(comms, 2, NULL));
  for (int i = 0; i < MESSAGES; i++) in[i] = 3 * i + 1;
  ok(ncclGroupStart());
  for (int i = 0; i < MESSAGES; i++) {
    ok(ncclSend(&in[i], 1, ncclInt32, 1, comms[0], NULL));
    ok(ncclRecv(&out[i], 1, ncclInt32, 0, comms[1], NULL));
    if (i % 10 != 0) continue;
    ok(ncclRecv(&own[i], 1, ncclInt32, 1, comms[1], NULL));
    ok(ncclSend(&in[i], 1, ncclInt32, 1, comms[1], NULL));
  }
  ok(ncclGroupEnd());
  for (int i = 0; i < MESSAGES; i++) {
    ck_assert_int_eq(out[i], in[i]);
    if (i % 10 == 0) ck_assert_int_eq(own[i], in[i]);
  }
  for (int r = 0; r < 2; r++) ok(ncclCommDestroy(comms[r]));
  free(in);
  free(out);
  free(own);
}
END_TEST

/* Nothing is moved, nothing is looked at, and who sends nothing still meets who receives it. In groups within a group.
 */
START_TEST(zero_counts)
{
  enum { N = 3 };
  ncclComm_t comms[N];
  ncclRedOp_t op;
  float two = 2;
  ok(ncclCommInitAll(comms, N, NULL));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ncclComm_t c = comms[r];
    ok(ncclGroupStart());
    ok(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclAvg, c, NULL));
    ok(ncclReduce(NULL, NULL, 0, ncclInt8, ncclMax, 1, c, NULL));
    ok(ncclBroadcast(NULL, NULL, 0, ncclFloat8e5m2, 2, c, NULL));
    ok(ncclBcast(NULL, 0, ncclHalf, 0, c, NULL));
    ok(ncclAllGather(NULL, NULL, 0, ncclDouble, c, NULL));
    ok(ncclReduceScatter(NULL, NULL, 0, ncclBfloat16, ncclSum, c, NULL));
    ok(ncclAlltoAll(NULL, NULL, 0, ncclInt64, c, NULL));
    ok(ncclGather(NULL, NULL, 0, ncclUint8, 1, c, NULL));
    ok(ncclScatter(NULL, NULL, 0, ncclUint32, 1, c, NULL));
    ok(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat, ncclScalarHostImmediate, c));
    ok(ncclAllReduce(NULL, NULL, 0, ncclFloat, op, c, NULL));
    for (int p = 0; p < N; p++) {
      ok(ncclSend(NULL, 0, ncclFloat, p, c, NULL));
      ok(ncclRecv(NULL, 0, ncclFloat, p, c, NULL));
    }
    ok(ncclGroupEnd());
  }
  ok(ncclGroupEnd());
  int in = 3, out = 0; /* a receive of nothing is not one of something */
  ok(ncclGroupStart());
  ok(ncclSend(NULL, 0, ncclInt, 1, comms[0], NULL));
  ok(ncclSend(&in, 1, ncclInt, 1, comms[0], NULL));
  ok(ncclRecv(NULL, 0, ncclInt, 0, comms[1], NULL));
  ok(ncclRecv(&out, 1, ncclInt, 0, comms[1], NULL));
  ok(ncclGroupEnd());
  ck_assert_int_eq(out, 3);
  ok(ncclGroupStart());
  ok(ncclSend(NULL, 0, ncclInt, 1, comms[0], NULL));
  ok(ncclRecv(&out, 1, ncclInt, 0, comms[1], NULL));
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  for (int r = 0; r < N; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

/* Sends and receives of a rank to itself, of different sizes, all receives first; messages to others lie between. */
START_TEST(to_self_in_any_order)
{
  enum { N = 2, K = 4, MOST = 4000 };
  static const size_t counts[K] = {1, MOST, 0, 777};
  static int in[N][K][MOST], out[N][K][MOST], passed[N];
  ncclComm_t comms[N];
  ok(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++)
    for (int k = 0; k < K; k++)
      for (int i = 0; i < MOST; i++) in[r][k][i] = 1 + r + 10 * k + 100 * i;
  for (int partners = 0; partners < 2; partners++) {
    memset(out, 0, sizeof out);
    ok(ncclGroupStart());
    for (int r = 0; r < N; r++) {
      for (int k = 0; k < K; k++) ok(ncclRecv(out[r][k], counts[k], ncclInt, r, comms[r], NULL));
      if (partners) ok(ncclSend(&in[r][0][0], 1, ncclInt, 1 - r, comms[r], NULL));
      for (int k = 0; k < K; k++) ok(ncclSend(in[r][k], counts[k], ncclInt, r, comms[r], NULL));
      if (partners) ok(ncclRecv(&passed[r], 1, ncclInt, 1 - r, comms[r], NULL));
    }
    ok(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
      for (int k = 0; k < K; k++) {
        ck_assert_mem_eq(out[r][k], in[r][k], counts[k] * sizeof(int));
        for (size_t i = counts[k]; i < MOST; i++)
          if (out[r][k][i] != 0) ck_abort_msg("message %d of rank %d wrote element %zu", k, r, i);
      }
      if (partners) ck_assert_int_eq(passed[r], in[1 - r][0][0]);
    }
  }
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

/* ---- Counts beyond 32 bits, in little memory: the same 16 MiB again and again ---- */

#define WINDOW ((size_t)16 << 20)

/* `bytes` of addresses that all lie in one window. */
static unsigned char *repeated(size_t bytes)
{
  size_t windows = (bytes + WINDOW - 1) / WINDOW;
  int fd = memfd_create("repeated", 0);
  ck_assert_int_eq(ftruncate(fd, (off_t)WINDOW), 0);
  unsigned char *at = mmap(NULL, windows * WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ck_assert_ptr_ne(at, MAP_FAILED);
  for (size_t w = 0; w < windows; w++)
    ck_assert_ptr_ne(mmap(at + w * WINDOW, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), MAP_FAILED);
  close(fd);
  return at;
}

static void forget(unsigned char *at, size_t bytes)
{
  munmap(at, (bytes + WINDOW - 1) / WINDOW * WINDOW);
}

static unsigned char value(size_t i)
{
  return (unsigned char)(i * 7 + (i >> 12));
}

/* Plain comparisons: check notes each of its own in a file. */
static void expect_window(const unsigned char *at, int factor)
{
  for (size_t i = 0; i < WINDOW; i++)
    if (at[i] != (unsigned char)(factor * value(i))) ck_abort_msg("byte %zu of the window is %d", i, at[i]);
}

/* A count that is cut to 32 bits would leave most of the window untouched. */
START_TEST(huge_counts)
{
  const size_t sent = ((size_t)1 << 32) + 12345, reduced = ((size_t)1 << 31) + 777;
  ncclComm_t comms[2];
  ok(ncclCommInitAll(comms, 2, NULL));
  unsigned char *in = repeated(sent), *out[2] = {repeated(sent), repeated(sent)};
  for (size_t i = 0; i < WINDOW; i++) in[i] = value(i);
  ok(ncclGroupStart());
  ok(ncclSend(in, sent, ncclUint8, 1, comms[0], NULL));
  ok(ncclRecv(out[1], sent, ncclUint8, 0, comms[1], NULL));
  ok(ncclGroupEnd());
  expect_window(out[1], 1);
  memset(out[1], 0, WINDOW);
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclAllReduce(in, out[r], reduced, ncclUint8, ncclSum, comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < 2; r++) expect_window(out[r], 2);
  memset(out[1], 0, WINDOW);
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclBroadcast(r == 0 ? in : NULL, out[r], sent, ncclUint8, 0, comms[r], NULL));
  ok(ncclGroupEnd());
  expect_window(out[1], 1);
  forget(in, sent);
  for (int r = 0; r < 2; r++) {
    forget(out[r], sent);
    ok(ncclCommDestroy(comms[r]));
  }
}
END_TEST

Suite *limits_suite(void)
{
  Suite *suite = suite_create("limits");
  TCase *tests = tcase_create("limits");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, many_messages);
  tcase_add_test(tests, zero_counts);
  tcase_add_test(tests, to_self_in_any_order);
  if (getenv("TEST_HUGE_COUNTS") != NULL) tcase_add_test(tests, huge_counts);
  suite_add_tcase(suite, tests);
  return suite;
}
