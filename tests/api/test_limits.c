/* Large groups; and large counts, which take a minute, where TEST_HUGE_COUNTS is set in the environment. */
#include "suites.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "nccl.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MESSAGES = 3000 };
#else
enum { MESSAGES = 100000 };
#endif

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
  for (size_t i = 0; i < WINDOW; i++) ck_assert_int_eq(out[1][i], value(i));
  memset(out[1], 0, WINDOW);
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclAllReduce(in, out[r], reduced, ncclUint8, ncclSum, comms[r], NULL));
  ok(ncclGroupEnd());
  for (int r = 0; r < 2; r++)
    for (size_t i = 0; i < WINDOW; i++) ck_assert_int_eq(out[r][i], (unsigned char)(2 * value(i)));
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
  if (getenv("TEST_HUGE_COUNTS") != NULL) tcase_add_test(tests, huge_counts);
  suite_add_tcase(suite, tests);
  return suite;
}
