/* Threads, the clock, and who and where this process is. */
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"
#include "base/thread.h"
#include "base/timer.h"

struct seen {
  size_t stack;
  sigset_t mask;
};

static void *look(void *arg)
{
  struct seen *seen = arg;
  pthread_attr_t attr;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstacksize(&attr, &seen->stack);
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, NULL, &seen->mask);
  /* Most of what was promised is there. */
  volatile char deep[900 << 10];
  memset((char *)deep, 1, sizeof(deep));
  return (void *)(intptr_t)deep[100];
}

START_TEST(threads)
{
  static const rlim_t limits[] = {16 << 10, 1 << 20, 8 << 20, RLIM_INFINITY};
  for (size_t i = 0; i < TT_COUNT(limits); i++) {
    struct rlimit own, limit;
    getrlimit(RLIMIT_STACK, &own);
    if (limits[i] > own.rlim_max) continue;
    limit = own;
    limit.rlim_cur = limits[i];
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    struct seen seen;
    pthread_t thread;
    /* Only round the start: the limit is this thread's own, too. */
    setrlimit(RLIMIT_STACK, &limit);
    ncclResult_t result = tt_thread_start(&thread, "tutti-with-a-long-name", look, &seen);
    setrlimit(RLIMIT_STACK, &own);
    ck_assert_int_eq(result, ncclSuccess);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert_uint_ge(seen.stack, 1 << 20);
    ck_assert_uint_le(seen.stack, 10 << 20);
    ck_assert(sigismember(&seen.mask, SIGTERM) && sigismember(&seen.mask, SIGINT));
    ck_assert(sigismember(&seen.mask, SIGUSR1) && sigismember(&seen.mask, SIGCHLD) && sigismember(&seen.mask, SIGPIPE));
    ck_assert(!sigismember(&seen.mask, SIGSEGV));
    for (int signal = 1; signal < SIGRTMAX; signal++)
      ck_assert_int_eq(sigismember(&before, signal), sigismember(&after, signal));
  }
}
END_TEST

static void *wait_for_signal(void *arg)
{
  int ends = *(int *)arg;
  char byte;
  return (void *)(intptr_t)read(ends, &byte, 1);
}

START_TEST(thread_names)
{
  int ends[2];
  char text[64] = "";
  pthread_t thread;
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(tt_thread_start(&thread, "tutti-proxy-123456", wait_for_signal, &ends[0]), ncclSuccess);
  pthread_getname_np(thread, text, sizeof(text));
  ck_assert_str_eq(text, "tutti-proxy-123");
  ck_assert_int_eq(write(ends[1], "x", 1), 1);
  pthread_join(thread, NULL);
}
END_TEST

START_TEST(time_and_deadlines)
{
  uint64_t before = tt_timer_ns();
  usleep(2000);
  ck_assert_uint_ge(tt_timer_ns() - before, 2000000u);
  ck_assert(!tt_deadline_passed(TT_DEADLINE_NEVER));
  ck_assert(tt_deadline_passed(tt_deadline_in_ms(0)));
  ck_assert(tt_deadline_passed(tt_deadline_in_ms(-5)));
  ck_assert_uint_eq(tt_deadline_in_ms(INT64_MAX), TT_DEADLINE_NEVER);
  tt_deadline far = tt_deadline_in_ms(100000);
  ck_assert(!tt_deadline_passed(far));
  ck_assert_int_eq(tt_deadline_poll_ms(far, 50), 50);
  ck_assert_int_gt(tt_deadline_poll_ms(far, 1000000), 90000);
  ck_assert_int_le(tt_deadline_poll_ms(far, 1000000), 100000);
  ck_assert_int_eq(tt_deadline_poll_ms(TT_DEADLINE_NEVER, 7), 7);
  ck_assert_int_eq(tt_deadline_poll_ms(before, 7), 0);
  ck_assert_int_eq(tt_deadline_poll_ms(far, -7), 0);
  /* Part of a millisecond is still waited for. */
  ck_assert_int_eq(tt_deadline_poll_ms(tt_timer_ns() + 400000u, 7), 1);
}
END_TEST

START_TEST(identity)
{
  ck_assert_uint_gt(strlen(tt_host_name()), 0);
  ck_assert_ptr_null(strpbrk(tt_host_name(), ".%/"));
  uint64_t host = tt_host_hash();
  ck_assert_uint_eq(host, tt_host_hash());
  set_variable("NCCL_HOSTID", "a");
  uint64_t a = tt_host_hash();
  ck_assert_uint_ne(a, host);
  set_variable("NCCL_HOSTID", "b");
  ck_assert_uint_ne(a, tt_host_hash());
  set_variable("NCCL_HOSTID", "a");
  ck_assert_uint_eq(a, tt_host_hash());
  uint64_t own = tt_host_process();
  ck_assert_uint_ne(own, 0);
  ck_assert_uint_eq(own, tt_host_process());
  uint64_t *theirs = zone_of_zeros(3 * sizeof(*theirs));
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (child == 0) {
      theirs[i] = tt_host_process();
      _exit(0);
    }
    waitpid(child, NULL, 0);
    ck_assert_uint_ne(theirs[i], 0);
    ck_assert_uint_ne(theirs[i], own);
  }
  ck_assert_uint_ne(theirs[0], theirs[1]);
  ck_assert_uint_eq(own, tt_host_process());
}
END_TEST

static void *process_of_thread(void *arg)
{
  *(uint64_t *)arg = tt_host_process();
  return NULL;
}

START_TEST(one_identity_for_all_threads)
{
  pthread_t threads[4];
  uint64_t ids[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, process_of_thread, &ids[i]);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; i++) ck_assert_uint_eq(ids[i], tt_host_process());
}
END_TEST

START_TEST(library_dir)
{
  char path[4096];
  ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 1);
  ck_assert_int_gt(bytes, 0);
  path[bytes] = 0;
  *strrchr(path, '/') = 0;
  ck_assert_int_eq(chdir("/"), 0);
  ck_assert_str_eq(tt_host_library_dir(), path);
}
END_TEST

START_TEST(file_limit)
{
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t most = limit.rlim_max;
  limit.rlim_cur = 64;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  start_log("INFO", "INIT");
  tt_host_raise_file_limit();
  tt_host_raise_file_limit();
  getrlimit(RLIMIT_NOFILE, &limit);
  ck_assert_uint_eq(limit.rlim_cur, most);
  ck_assert_int_eq(logged_times("raised the limit of open files from 64 to"), 1);
}
END_TEST

Suite *process_suite(void)
{
  Suite *suite = suite_create("process");
  TCase *one = clean_case(suite, "process");
  tcase_add_test(one, threads);
  tcase_add_test(one, thread_names);
  tcase_add_test(one, time_and_deadlines);
  tcase_add_test(one, identity);
  tcase_add_test(one, one_identity_for_all_threads);
  tcase_add_test(one, library_dir);
  tcase_add_test(one, file_limit);
  return suite;
}
