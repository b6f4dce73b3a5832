/* Values, precedence of their sources, and what is said about wrong ones. */
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/param_file.h"
#include "base/param_source.h"

#define CNT TT_PARAM_NCCL_SOCKET_RETRY_CNT
#define NET TT_PARAM_NCCL_NET

static void use_files(const char *user, const char *system)
{
  if (user) setenv("NCCL_CONF_FILE", memory_file(user), 1);
  tt_param_source_system_file(system ? memory_file(system) : "/nonexistent/nccl.conf");
  tt_param_reset();
}

START_TEST(defaults)
{
  ck_assert_int_eq(tt_param_int(CNT), 34);
  ck_assert_ptr_null(tt_param_string(NET));
  ck_assert_ptr_null(tt_param_text(CNT));
  ck_assert_int_eq(tt_param_origin(CNT, NULL), TT_PARAM_FROM_DEFAULT);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    const struct tt_param *param = tt_param_describe((enum tt_param_id)id);
    ck_assert_msg(strlen(param->help) > 10, "%s", param->name);
    if (param->type == TT_PARAM_STRING) continue;
    ck_assert_msg(param->min < param->max, "%s", param->name);
    ck_assert_msg(param->default_int >= param->min && param->default_int <= param->max, "%s", param->name);
  }
}
END_TEST

START_TEST(precedence)
{
  use_files("NCCL_NET=user\nNCCL_ALGO = ring \n", "NCCL_NET=system\nNCCL_SOCKET_RETRY_CNT=5\nNCCL_ALGO=tree\n");
  setenv("NCCL_NET", "env", 1);
  tt_param_reset();
  const char *file;
  ck_assert_str_eq(tt_param_string(NET), "env");
  ck_assert_int_eq(tt_param_origin(NET, &file), TT_PARAM_FROM_ENV);
  ck_assert_ptr_null(file);
  ck_assert_str_eq(tt_param_string(TT_PARAM_NCCL_ALGO), "ring");
  ck_assert_int_eq(tt_param_origin(TT_PARAM_NCCL_ALGO, &file), TT_PARAM_FROM_USER_FILE);
  ck_assert_str_eq(file, getenv("NCCL_CONF_FILE"));
  ck_assert_int_eq(tt_param_int(CNT), 5);
  ck_assert_int_eq(tt_param_origin(CNT, &file), TT_PARAM_FROM_SYSTEM_FILE);
}
END_TEST

START_TEST(empty_hides_lower)
{
  use_files("NCCL_ALGO=\n", "NCCL_NET=system\nNCCL_ALGO=tree\n");
  setenv("NCCL_NET", "", 1);
  tt_param_reset();
  ck_assert_ptr_null(tt_param_string(NET));
  ck_assert_int_eq(tt_param_origin(NET, NULL), TT_PARAM_FROM_DEFAULT);
  ck_assert_ptr_null(tt_param_string(TT_PARAM_NCCL_ALGO));
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
}
END_TEST

START_TEST(home_file)
{
  char dir[] = "/tmp/tutti-home-XXXXXX", path[64];
  ck_assert_ptr_nonnull(mkdtemp(dir));
  snprintf(path, sizeof(path), "%s/.nccl.conf", dir);
  FILE *file = fopen(path, "w");
  fputs("# comment\n\n  NCCL_NET=home\r\nno newline at the end is needed=1", file);
  fclose(file);
  set_variable("HOME", dir);
  ck_assert_str_eq(tt_param_string(NET), "home");
  /* A named file replaces it. */
  use_files("NCCL_ALGO=ring\n", NULL);
  ck_assert_ptr_null(tt_param_string(NET));
  unlink(path);
  rmdir(dir);
}
END_TEST

START_TEST(plugins_see_files)
{
  use_files("NCCL_FOR_A_PLUGIN=7\nNCCL_NET=user\nTUTTI_SPIN_USEC=3\n", NULL);
  setenv("NCCL_NET", "env", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_param_int(TT_PARAM_TUTTI_SPIN_USEC), 3);
  ck_assert_str_eq(getenv("NCCL_FOR_A_PLUGIN"), "7");
  ck_assert_str_eq(getenv("NCCL_NET"), "env");
  ck_assert_ptr_null(getenv("TUTTI_SPIN_USEC"));
  /* What was put there is taken back, and never mistaken for the user's. */
  use_files("NCCL_NET=user\n", NULL);
  ck_assert_ptr_null(getenv("NCCL_FOR_A_PLUGIN"));
  set_variable("NCCL_NET", NULL);
  ck_assert_str_eq(tt_param_string(NET), "user");
  ck_assert_str_eq(getenv("NCCL_NET"), "user");
  ck_assert_int_eq(tt_param_origin(NET, NULL), TT_PARAM_FROM_USER_FILE);
}
END_TEST

START_TEST(malformed_values)
{
  static const struct {
    const char *name, *value, *allowed;
  } rows[] = {
      {"NCCL_SOCKET_RETRY_CNT", "many", "an integer from 0 to 1000000"},
      {"NCCL_SOCKET_RETRY_CNT", "-1", "an integer from 0 to 1000000"},
      {"NCCL_SOCKET_RETRY_CNT", "1000001", "an integer from 0 to 1000000"},
      {"NCCL_SOCKET_RETRY_CNT", "5 apples", "an integer from 0 to 1000000"},
      {"NCCL_SOCKET_RETRY_CNT", "99999999999999999999", "an integer from 0 to 1000000"},
      {"NCCL_SHM_DISABLE", "2", "0 or 1"},
      {"NCCL_SHM_DISABLE", "yes", "0 or 1"},
      {"NCCL_LAUNCH_MODE", "SERIAL", "PARALLEL or GROUP"},
      {"NCCL_SOCKET_FAMILY", "INET", "AF_INET or AF_INET6"},
      {"TUTTI_PORT_RANGE", "5", "first-last"},
  };
  for (size_t i = 0; i < TT_COUNT(rows); i++) {
    set_variable(rows[i].name, rows[i].value);
    ck_assert_int_eq(tt_param_check(), ncclInvalidUsage);
    expect_error(rows[i].name);
    expect_error(rows[i].value);
    expect_error(rows[i].allowed);
    expect_error("set by environment");
    ck_assert_int_eq(tt_param_check(), ncclInvalidUsage);
    set_variable(rows[i].name, NULL);
    ck_assert_int_eq(tt_param_check(), ncclSuccess);
  }
  set_variable("NCCL_SOCKET_RETRY_CNT", "many");
  ck_assert_int_eq(tt_param_int(CNT), 34);
  use_files("NCCL_SHM_DISABLE=2\n", NULL);
  set_variable("NCCL_SOCKET_RETRY_CNT", "0x10");
  ck_assert_int_eq(tt_param_int(CNT), 16);
  ck_assert_int_eq(tt_param_check(), ncclInvalidUsage);
  expect_error(getenv("NCCL_CONF_FILE"));
}
END_TEST

START_TEST(sources_are_said_once)
{
  start_log("INFO", NULL);
  use_files("NCCL_ALGO=ring\n", "NCCL_SOCKET_RETRY_CNT=5\n");
  setenv("NCCL_NET", "Socket", 1);
  tt_param_reset();
  for (int i = 0; i < 3; i++) {
    tt_param_string(NET);
    tt_param_int(CNT);
    tt_param_string(TT_PARAM_NCCL_ALGO);
    ck_assert_int_eq(tt_param_check(), ncclSuccess);
  }
  expect_logged("NCCL INFO NCCL_NET set by environment to Socket\\.$");
  expect_logged("NCCL INFO NCCL_SOCKET_RETRY_CNT set by /proc/self/fd/[0-9]+ to 5\\.$");
  expect_logged("NCCL INFO NCCL_ALGO set by /proc/self/fd/[0-9]+ to ring\\.$");
  expect_logged("NCCL INFO NCCL_DEBUG set by environment to INFO\\.$");
  ck_assert_int_eq(logged_times("NCCL_NET set by"), 1);
  ck_assert_int_eq(logged_times("NCCL_ALGO set by"), 1);
  ck_assert_int_eq(logged_times("NCCL_SOCKET_RETRY_CNT set by"), 1);
}
END_TEST

START_TEST(bad_lines_are_named)
{
  start_log("WARN", NULL);
  use_files("NCCL_NET=a\nthis is no setting\n\n=5\nNCCL_NET=b\nNCCL_CONF_FILE=/x\n9A=1\n", NULL);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  expect_logged("/proc/self/fd/[0-9]+:2: \"this is no setting\" is not NAME=VALUE");
  expect_logged("/proc/self/fd/[0-9]+:4: \"=5\" is not NAME=VALUE");
  expect_logged("/proc/self/fd/[0-9]+:5: NCCL_NET is set a second time; line 1 counts");
  expect_logged("/proc/self/fd/[0-9]+:6: NCCL_CONF_FILE counts only in the environment");
  expect_logged("/proc/self/fd/[0-9]+:7: \"9A=1\" is not NAME=VALUE");
  ck_assert_int_eq(logged_times("NCCL WARN"), 5);
  ck_assert_str_eq(tt_param_string(NET), "a");
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
  char dir[] = "/tmp/tutti-conf-XXXXXX", path[64];
  ck_assert_ptr_nonnull(mkdtemp(dir));
  snprintf(path, sizeof(path), "%s/pipe", dir);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  const char *const bad[] = {"/nonexistent/file", dir, path, "/dev/zero"};
  for (size_t i = 0; i < TT_COUNT(bad); i++) {
    start_log("WARN", NULL);
    set_variable("NCCL_CONF_FILE", bad[i]);
    int files = held_descriptors();
    ck_assert_int_eq(tt_param_check(), ncclSuccess);
    ck_assert_int_le(held_descriptors(), files + 1); /* the log's own */
    expect_error(bad[i]);
    expect_error("cannot be read");
  }
  unlink(path);
  rmdir(dir);
}
END_TEST

START_TEST(agreed_values)
{
  char text[200], before[200];
  uint64_t hash = tt_param_agreed_hash();
  ck_assert_uint_eq(hash, tt_param_agreed_hash());
  set_variable("NCCL_DEBUG_FILE", "/dev/null");
  ck_assert_uint_eq(hash, tt_param_agreed_hash());
  set_variable("NCCL_SHM_DISABLE", "1");
  ck_assert_uint_ne(hash, tt_param_agreed_hash());
  set_variable("NCCL_SHM_DISABLE", "0x0");
  ck_assert_uint_eq(hash, tt_param_agreed_hash());
  set_variable("NCCL_NET", "x");
  ck_assert_uint_ne(hash, tt_param_agreed_hash());
  int count = 0, agreed = 0;
  bool found = false;
  for (; tt_param_agreed(count, text, sizeof(text)); count++) {
    ck_assert_str_ne(text, count ? before : "");
    found |= strcmp(text, "NCCL_NET=x") == 0;
    strcpy(before, text);
  }
  for (int id = 0; id < TT_PARAM_COUNT; id++) agreed += tt_param_describe((enum tt_param_id)id)->agreed;
  ck_assert_int_eq(count, agreed);
  ck_assert(found);
}
END_TEST

static void *read_all(void *arg)
{
  (void)arg;
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    if (tt_param_describe((enum tt_param_id)id)->type == TT_PARAM_STRING)
      tt_param_string((enum tt_param_id)id);
    else
      tt_param_int((enum tt_param_id)id);
  }
  return (void *)(intptr_t)tt_param_check();
}

START_TEST(threads)
{
  start_log("INFO", NULL);
  use_files("NCCL_NET=x\n", "NCCL_ALGO=ring\n");
  pthread_t all[4];
  for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, read_all, NULL);
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(all[i], &result);
    ck_assert_ptr_null(result);
  }
  ck_assert_int_eq(logged_times("NCCL_NET set by"), 1);
}
END_TEST

Suite *param_suite(void)
{
  Suite *suite = suite_create("param");
  TCase *one = clean_case(suite, "param");
  tcase_add_test(one, defaults);
  tcase_add_test(one, precedence);
  tcase_add_test(one, empty_hides_lower);
  tcase_add_test(one, home_file);
  tcase_add_test(one, plugins_see_files);
  tcase_add_test(one, malformed_values);
  tcase_add_test(one, sources_are_said_once);
  tcase_add_test(one, bad_lines_are_named);
  tcase_add_test(one, files_that_cannot_be_read);
  tcase_add_test(one, agreed_values);
  tcase_add_test(one, threads);
  return suite;
}
