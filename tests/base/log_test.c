/* The shapes of lines, levels, subsystems, files, and a log that cannot be written. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/long_line.h"
#include "base/check.h"
#include "base/host.h"
#include "base/log_filter.h"
#include "base/param.h"

#define WHO "[^ :]+:[0-9]+:[0-9]+"

START_TEST(shapes)
{
  start_log("TRACE", "ALL");
  TT_INFO(TT_INIT, "an info %d", 1);
  TT_WARN("a warning %d", 2);
  TT_TRACE(TT_NET, "a trace");
  TT_TRACE(TT_CALL, "a call");
  tt_log_set_device(3);
  TT_INFO(TT_INIT, "with device");
  tt_log_plugin(TT_LOG_WARN, TT_NET, "net.c", 12, "plugin %s", "warns");
  tt_log_plugin(TT_LOG_INFO, TT_NET, "net.c", 12, "plugin info\n");
  tt_log_plugin(99, TT_NET, NULL, 12, "plugin trace");
  tt_log_plugin(TT_LOG_NONE, TT_NET, "net.c", 12, "never");
  expect_logged("^" WHO " \\[-1\\] NCCL INFO an info 1$");
  expect_logged("^\\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\] " WHO
                " \\[-1\\] base/log_test.c:[0-9]+ \\([a-z_]+\\) NCCL WARN a warning 2$");
  ck_assert_ptr_nonnull(strstr(logged(), "an info 1\n\n["));
  expect_logged("^" WHO " \\[-1\\] [0-9]+\\.[0-9]+ [a-z_]+:[0-9]+ NCCL TRACE a trace$");
  expect_logged("^" WHO " NCCL CALL a call$");
  expect_logged("^" WHO " \\[3\\] NCCL INFO with device$");
  expect_logged("^\\[.*\\] " WHO " \\[3\\] net.c:12 NCCL WARN plugin warns$");
  expect_logged("^" WHO " \\[3\\] NCCL INFO plugin info$");
  expect_logged("^" WHO " \\[3\\] [0-9.]+ \\?:12 NCCL TRACE plugin trace$");
  ck_assert_int_eq(logged_times("never"), 0);
  /* One empty line before each of the two warnings, and none elsewhere. */
  ck_assert_int_eq(logged_times("\n\n"), 2);
  char who[300];
  snprintf(who, sizeof(who), "%s:%d:%d [", tt_host_name(), getpid(), gettid());
  ck_assert_int_gt(logged_times(who), 3);
}
END_TEST

START_TEST(levels_and_subsystems)
{
  start_log("WARN", NULL);
  ck_assert(tt_log_enabled(TT_LOG_WARN, TT_ALL));
  ck_assert(tt_log_enabled(TT_LOG_VERSION, TT_ALL));
  ck_assert(!tt_log_enabled(TT_LOG_INFO, TT_INIT));
  start_log("info", NULL);
  ck_assert(tt_log_enabled(TT_LOG_INFO, TT_INIT));
  ck_assert(tt_log_enabled(TT_LOG_INFO, TT_NET | TT_ENV));
  ck_assert(!tt_log_enabled(TT_LOG_INFO, TT_NET));
  ck_assert(!tt_log_enabled(TT_LOG_INFO, 0));
  ck_assert(!tt_log_enabled(TT_LOG_TRACE, TT_INIT));
  start_log("INFO", "^init,NET");
  ck_assert(!tt_log_enabled(TT_LOG_INFO, TT_INIT));
  ck_assert(!tt_log_enabled(TT_LOG_INFO, TT_NET));
  ck_assert(tt_log_enabled(TT_LOG_INFO, TT_COLL));
  unsetenv("NCCL_DEBUG");
  tt_log_reset();
  ck_assert(!tt_log_enabled(TT_LOG_VERSION, TT_ALL));
}
END_TEST

START_TEST(filter_functions)
{
  int unknown;
  ck_assert_int_eq(tt_log_level("Trace"), TT_LOG_TRACE);
  ck_assert_int_eq(tt_log_level(" NONE "), TT_LOG_NONE);
  ck_assert_int_eq(tt_log_level("LOUD"), -1);
  ck_assert_int_eq(tt_log_level("INFO,WARN"), -1);
  ck_assert_uint_eq(tt_log_subsystems("INIT, coll", &unknown), TT_INIT | TT_COLL);
  ck_assert_int_eq(unknown, 0);
  ck_assert_uint_eq(tt_log_subsystems("ALL", &unknown), ~0ul);
  ck_assert_uint_eq(tt_log_subsystems("^ALL", &unknown), 0);
  ck_assert_uint_eq(tt_log_subsystems("DESTROY,ALLOC_HOST,oops,", &unknown), TT_DESTROY | TT_ALLOC_HOST);
  ck_assert_int_eq(unknown, 1);
  ck_assert_uint_eq(tt_log_level_bits("WARN,INFO", &unknown), 1u << TT_LOG_WARN | 1u << TT_LOG_INFO);
  ck_assert_uint_eq(tt_log_level_bits("^ALL", &unknown), 0);
  struct timespec now = {.tv_sec = 0, .tv_nsec = 123456789};
  char text[64];
  tt_log_time("%3f_%9f%%%1fx", &now, text, sizeof(text));
  ck_assert_str_eq(text, "123 123456789%1x");
  tt_log_time("%Y", &now, text, sizeof(text));
  ck_assert_uint_eq(strlen(text), 4);
}
END_TEST

START_TEST(file_names)
{
  char name[32];
  ck_assert(tt_log_file_name("a.%h.%p.%%.%x%", "box", 42, name, sizeof(name)));
  ck_assert_str_eq(name, "a.box.42.%.%x%");
  ck_assert(!tt_log_file_name("%h%h%h%h", "0123456789", 42, name, sizeof(name)));
  ck_assert(!tt_log_file_name("%h%h%h.1", "0123456789", 42, name, sizeof(name)));
  ck_assert(tt_log_file_name("%h%h%h.", "0123456789", 42, name, sizeof(name)));
}
END_TEST

START_TEST(file_on_disk)
{
  char dir[] = "/tmp/tutti-log-XXXXXX", pattern[64], path[400], text[4096];
  ck_assert_ptr_nonnull(mkdtemp(dir));
  snprintf(pattern, sizeof(pattern), "%s/%%h.%%p.log", dir);
  snprintf(path, sizeof(path), "%s/%s.%d.log", dir, tt_host_name(), getpid());
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", pattern, 1);
  tt_param_reset();
  tt_log_reset();
  TT_INFO(TT_INIT, "in the file");
  int fd = open(path, O_RDONLY);
  ck_assert_int_ge(fd, 0);
  ssize_t bytes = read(fd, text, sizeof(text) - 1);
  ck_assert_int_gt(bytes, 0);
  text[bytes] = 0;
  ck_assert_ptr_nonnull(strstr(text, "in the file\n"));
  close(fd);
  unlink(path);
  rmdir(dir);
}
END_TEST

/* Runs `body` with standard output going to a pipe and returns what came. */
static void with_stdout(void (*body)(void), char *text, size_t size)
{
  int ends[2];
  fflush(stdout);
  int saved = dup(STDOUT_FILENO);
  ck_assert_int_eq(pipe(ends), 0);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  body();
  dup2(saved, STDOUT_FILENO);
  close(saved);
  ssize_t bytes = read(ends[0], text, size - 1);
  close(ends[0]);
  text[bytes > 0 ? bytes : 0] = 0;
}

static void log_without_file(void)
{
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", "/nonexistent/dir/x.log", 1);
  tt_param_reset();
  tt_log_reset();
  TT_WARN("still heard");
}

START_TEST(unwritable_file_falls_back)
{
  char text[4096];
  with_stdout(log_without_file, text, sizeof(text));
  ck_assert_ptr_nonnull(strstr(text, "still heard\n"));
  ck_assert_ptr_nonnull(strstr(text, "NCCL_DEBUG_FILE: cannot write /nonexistent/dir/x.log"));
}
END_TEST

static void print_versions(void)
{
  setenv("NCCL_DEBUG", "VERSION", 1);
  tt_param_reset();
  tt_log_reset();
  tt_log_version("version text", false);
  tt_log_version("version text", true);
  tt_log_version("version text", true);
}

START_TEST(version_once)
{
  char text[4096];
  with_stdout(print_versions, text, sizeof(text));
  ck_assert_str_eq(text, "version text\n");
}
END_TEST

START_TEST(version_of_any_rank_at_info)
{
  start_log("INFO", NULL);
  tt_log_version("version text", false);
  tt_log_version("version text", true);
  expect_logged("^version text$");
  ck_assert_int_eq(logged_times("version text"), 1);
}
END_TEST

START_TEST(long_messages)
{
  start_log("WARN", NULL);
  char *text = malloc(200000);
  memset(text, 'x', 199999);
  text[199999] = 0;
  text[5000] = 0;
  TT_WARN("%s", text);
  ck_assert_uint_gt(strlen(logged()), 5000);
  ck_assert_int_eq(logged_times("(cut)"), 0);
  text[5000] = 'x';
  TT_WARN("%s", text);
  ck_assert_uint_lt(strlen(logged()), 80000);
  ck_assert_int_eq(logged_times("... (cut)\n"), 1);
  ck_assert_uint_eq(strlen(tt_log_thread_error()), 1023);
  char small[10];
  ck_assert_uint_eq(tt_log_last_error(small, sizeof(small)), 1023);
  ck_assert_str_eq(small, "xxxxxxxxx");
  free(text);
}
END_TEST

/* Lengths round the buffer's end: the line end must never be lost. */
START_TEST(lengths_round_the_buffer)
{
  start_log("INFO", "ALL");
  char text[2200];
  for (int bytes = 1900; bytes < 2100; bytes++) {
    memset(text, 'y', sizeof(text));
    text[bytes] = 0;
    TT_INFO(TT_INIT, "%s|", text);
  }
  ck_assert_int_eq(logged_times("y|\n"), 200);
}
END_TEST

static void *warn_elsewhere(void *arg)
{
  (void)arg;
  ck_assert_str_eq(tt_log_thread_error(), "");
  TT_WARN("other thread");
  return NULL;
}

START_TEST(last_errors)
{
  char text[100];
  ck_assert_str_eq(tt_log_thread_error(), "");
  errno = EXDEV;
  ck_assert_int_eq(TT_FAIL(ncclInvalidUsage, "value %d is wrong", 7), ncclInvalidUsage);
  ck_assert_int_eq(errno, EXDEV);
  ck_assert_str_eq(tt_log_thread_error(), "value 7 is wrong");
  pthread_t thread;
  pthread_create(&thread, NULL, warn_elsewhere, NULL);
  pthread_join(thread, NULL);
  ck_assert_str_eq(tt_log_thread_error(), "value 7 is wrong");
  ck_assert_uint_eq(tt_log_last_error(text, sizeof(text)), strlen("other thread"));
  ck_assert_str_eq(text, "other thread");
  tt_log_plugin(TT_LOG_WARN, TT_NET, "f", 1, "from a plugin");
  ck_assert_str_eq(tt_log_thread_error(), "from a plugin");
}
END_TEST

/* What is hushed is the thread's last error, and a line of TRACE only. */
START_TEST(hushed)
{
  char last[64];
  start_log("INFO", "ALL");
  TT_WARN("loud");
  tt_log_hush(true);
  ck_assert_int_eq(TT_FAIL(ncclSystemError, "quiet"), ncclSystemError);
  tt_log_plugin(TT_LOG_WARN, TT_NET, "net.c", 12, "quiet plugin");
  tt_log_hush(false);
  ck_assert_int_eq(logged_times("quiet"), 0);
  ck_assert_str_eq(tt_log_thread_error(), "quiet plugin");
  tt_log_last_error(last, sizeof last);
  ck_assert_str_eq(last, "loud");
  TT_WARN("loud again");
  ck_assert_int_eq(logged_times("NCCL WARN loud again"), 1);
}
END_TEST

START_TEST(unknown_settings)
{
  start_log("LOUD", NULL);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,OOPS", 1);
  tt_log_reset();
  TT_WARN("x");
  expect_logged("NCCL WARN NCCL_DEBUG=LOUD is no level");
  expect_logged("NCCL WARN NCCL_DEBUG_SUBSYS=INIT,OOPS: unknown");
}
END_TEST

/* Not one of them known: the default counts, rather than nothing. */
START_TEST(unknown_subsystems_alone)
{
  start_log("INFO", "OOPS");
  TT_WARN("a warning");
  TT_INFO(TT_INIT, "of init");
  TT_INFO(TT_NET, "of nets");
  expect_logged("NCCL WARN NCCL_DEBUG_SUBSYS=OOPS: unknown names are ignored");
  expect_logged("NCCL WARN a warning");
  ck_assert_int_eq(logged_times("of init"), 1);
  ck_assert_int_eq(logged_times("of nets"), 0);
}
END_TEST

START_TEST(stamps_and_raise)
{
  setenv("NCCL_DEBUG_TIMESTAMP_LEVELS", "INFO", 1);
  setenv("NCCL_DEBUG_TIMESTAMP_FORMAT", "<%Y_%3f>_", 1);
  setenv("NCCL_WARN_ENABLE_DEBUG_INFO", "1", 1);
  start_log("WARN", NULL);
  TT_INFO(TT_INIT, "too early");
  TT_WARN("raises");
  TT_INFO(TT_INIT, "heard");
  ck_assert_int_eq(logged_times("too early"), 0);
  expect_logged("^" WHO " .* NCCL WARN raises$");
  expect_logged("^<[0-9]{4} [0-9]{3}> " WHO " \\[-1\\] NCCL INFO heard$");
}
END_TEST

/* A reader that went away, a full device, a closed descriptor, a file size limit: no signal, no crash, errno kept. */
START_TEST(broken_logs)
{
  int ends[2];
  setenv("NCCL_DEBUG", "WARN", 1);
  tt_param_reset();
  tt_log_reset();
  fflush(stdout);
  int saved = dup(STDOUT_FILENO);
  ck_assert_int_eq(pipe(ends), 0);
  dup2(ends[1], STDOUT_FILENO);
  close(ends[0]);
  close(ends[1]);
  errno = EXDEV;
  TT_WARN("into a closed pipe");
  ck_assert_int_eq(errno, EXDEV);
  close(STDOUT_FILENO);
  TT_WARN("into a closed descriptor");
  dup2(saved, STDOUT_FILENO);
  close(saved);
  sigset_t pending;
  sigpending(&pending);
  ck_assert(!sigismember(&pending, SIGPIPE));

  setenv("NCCL_DEBUG_FILE", "/dev/full", 1);
  tt_log_reset();
  TT_WARN("into a full device");
  start_log("WARN", NULL);
  struct rlimit before, none;
  getrlimit(RLIMIT_FSIZE, &before);
  none = before;
  none.rlim_cur = 10;
  int limited = setrlimit(RLIMIT_FSIZE, &none); /* no ck_ in here: it writes to a file of its own */
  TT_WARN("beyond the size limit");
  TT_WARN("again");
  setrlimit(RLIMIT_FSIZE, &before);
  ck_assert_int_eq(limited, 0);
  ck_assert_uint_eq(strlen(logged()), 10);
  ck_assert_str_eq(tt_log_thread_error(), "again");
}
END_TEST

/* A pipe that nobody reads loses lines after a while and does not stop the caller. */
START_TEST(full_pipe)
{
  int ends[2];
  setenv("NCCL_DEBUG", "WARN", 1);
  tt_param_reset();
  tt_log_reset();
  fflush(stdout);
  int saved = dup(STDOUT_FILENO);
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
  ck_assert_int_gt(fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
  dup2(ends[1], STDOUT_FILENO);
  char text[1000];
  memset(text, 'z', sizeof(text));
  text[sizeof(text) - 1] = 0;
  for (int i = 0; i < 10; i++) TT_WARN("%s", text);
  dup2(saved, STDOUT_FILENO);
  close(saved);
}
END_TEST

#define THREADS 4
#define LINES 200

static void *log_many(void *arg)
{
  for (int i = 0; i < LINES; i++) {
    TT_INFO(TT_INIT, "thread line %d", i);
    if (i % 50 == 0 && arg) tt_log_reset();
  }
  return NULL;
}

START_TEST(threads_write_whole_lines)
{
  start_log("INFO", "INIT");
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, log_many, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  int whole = 0;
  char *save, *copy = strdup(logged());
  for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    int pid, tid, number, end = 0;
    whole += sscanf(line, "%*[^:]:%d:%d [-1] NCCL INFO thread line %d%n", &pid, &tid, &number, &end) == 3 && !line[end];
  }
  free(copy);
  ck_assert_int_eq(whole, THREADS * LINES);
}
END_TEST

START_TEST(reset_while_logging)
{
  start_log("INFO", "INIT");
  int files = held_descriptors();
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, log_many, i == 0 ? "reset" : NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ck_assert_int_le(held_descriptors(), files + 1);
}
END_TEST

static char sunk[3000];

static void sink(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  ck_assert_int_gt(line, 0);
  snprintf(sunk, sizeof(sunk), "%d %lx %s %s %s", level, subsystems, file, func, text);
}

/* What a plugin's copy of the log does: its loader decides what is printed, so all lines are handed on. */
START_TEST(redirected)
{
  start_log("NONE", NULL);
  tt_log_redirect(sink);
  TT_INFO(TT_NET, "line %d", 5);
  ck_assert_ptr_nonnull(strstr(sunk, "3 10 base/log_test.c "));
  ck_assert_ptr_nonnull(strstr(sunk, " line 5"));
  ck_assert_int_eq(TT_FAIL(ncclRemoteError, "gone"), ncclRemoteError);
  ck_assert_ptr_nonnull(strstr(sunk, " gone"));
  tt_log_redirect(NULL);
  sunk[0] = 0;
  TT_WARN("printed again");
  ck_assert_str_eq(sunk, "");
  ck_assert_str_eq(logged(), "");
}
END_TEST

/* Pieces add up; what does not fit ends the line with "...", once, whatever comes after. */
START_TEST(growing_line)
{
  struct tt_long_line line = {.at = 0};
  tt_long_line_add(&line, "a%d", 1);
  tt_long_line_add(&line, " b%d", 2);
  ck_assert_str_eq(line.text, "a1 b2");
  for (int i = 0; i < 1000; i++) {
    tt_long_line_add(&line, " %06d", i);
    ck_assert_uint_eq(line.at, strlen(line.text));
  }
  ck_assert_uint_eq(strlen(line.text), sizeof(line.text) - 1);
  ck_assert_str_eq(line.text + line.at - 4, " ...");
  ck_assert_ptr_eq(strstr(line.text, "..."), line.text + line.at - 3);
  struct tt_long_line whole = {.at = 0};
  tt_long_line_add(&whole, "%0*d", (int)sizeof(whole.text) - 1, 0);
  ck_assert_uint_eq(strlen(whole.text), sizeof(whole.text) - 1);
  ck_assert_ptr_null(strstr(whole.text, "..."));
  tt_long_line_add(&whole, "1");
  ck_assert_str_eq(whole.text + whole.at - 4, " ...");
}
END_TEST

Suite *log_suite(void)
{
  Suite *suite = suite_create("log");
  TCase *one = clean_case(suite, "log");
  tcase_add_test(one, shapes);
  tcase_add_test(one, levels_and_subsystems);
  tcase_add_test(one, filter_functions);
  tcase_add_test(one, file_names);
  tcase_add_test(one, file_on_disk);
  tcase_add_test(one, unwritable_file_falls_back);
  tcase_add_test(one, version_once);
  tcase_add_test(one, version_of_any_rank_at_info);
  tcase_add_test(one, long_messages);
  tcase_add_test(one, lengths_round_the_buffer);
  tcase_add_test(one, growing_line);
  tcase_add_test(one, last_errors);
  tcase_add_test(one, hushed);
  tcase_add_test(one, unknown_settings);
  tcase_add_test(one, unknown_subsystems_alone);
  tcase_add_test(one, stamps_and_raise);
  tcase_add_test(one, broken_logs);
  tcase_add_test(one, full_pipe);
  tcase_add_test(one, redirected);
  tcase_add_test(one, threads_write_whole_lines);
  tcase_add_test(one, reset_while_logging);
  return suite;
}
