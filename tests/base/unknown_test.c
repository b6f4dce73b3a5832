/* Names that are set and not obeyed. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/param.h"

static const char *const other_names[] = {
#define TT_OTHER(name, answer) #name,
#include "base/param_other.h"
#undef TT_OTHER
};

START_TEST(tables_are_disjoint)
{
  for (size_t i = 0; i < TT_COUNT(other_names); i++) {
    for (int id = 0; id < TT_PARAM_COUNT; id++)
      ck_assert_msg(strcmp(other_names[i], tt_param_describe((enum tt_param_id)id)->name) != 0, "%s is in both tables",
                    other_names[i]);
    for (size_t j = 0; j < i; j++)
      ck_assert_msg(strcmp(other_names[i], other_names[j]) != 0, "%s is listed twice", other_names[i]);
  }
}
END_TEST

START_TEST(reports)
{
  setenv("NCCL_SOCKET_IFNAMES", "eth0", 1);
  setenv("TUTTI_SPIN_USECS", "1", 1);
  setenv("NCCL_QQQQQQQQQQQQQQQQQQQQQQQ", "1", 1);
  setenv("NCCL_ASYNC_ERROR_HANDLING", "1", 1);
  setenv("NCCL_TREE_THRESHOLD", "1", 1);
  setenv("NCCL_CUMEM_HANDLE_TYPE", "1", 1);
  setenv("NCCL_GDRCOPY_FIFO_ENABLE", "1", 1);
  setenv("NCCL_FASTRAK_IFNAME", "eth1", 1);
  setenv("NCCL_CONF_FILE", memory_file("NCCL_SOCKET_FAMLY=AF_INET\nLD_PRELOAD=x\n"), 1);
  start_log("INFO", NULL);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  expect_logged("NCCL WARN NCCL_SOCKET_IFNAMES, set by environment, is unknown; did you mean NCCL_SOCKET_IFNAME\\?$");
  expect_logged("NCCL WARN TUTTI_SPIN_USECS, .* did you mean TUTTI_SPIN_USEC\\?$");
  expect_logged("NCCL WARN NCCL_QQQ[Q]*, set by environment, is unknown, unless a plugin reads it$");
  expect_logged("NCCL INFO NCCL_ASYNC_ERROR_HANDLING, .*TORCH_NCCL_ASYNC_ERROR_HANDLING$");
  expect_logged("NCCL INFO NCCL_TREE_THRESHOLD, .*: use NCCL_ALGO$");
  expect_logged("NCCL INFO NCCL_CUMEM_HANDLE_TYPE, .*: use NCCL_CUMEM_ENABLE$");
  expect_logged("NCCL INFO NCCL_GDRCOPY_FIFO_ENABLE, set by environment, has no effect here");
  expect_logged(
      "NCCL INFO NCCL_FASTRAK_IFNAME, set by environment, is not read by the core: a net plugin may read it$");
  expect_logged(
      "NCCL WARN NCCL_SOCKET_FAMLY, set by /proc/self/fd/[0-9]+, is unknown; did you mean NCCL_SOCKET_FAMILY");
  expect_logged("NCCL INFO /proc/self/fd/[0-9]+:2: LD_PRELOAD is neither");
  ck_assert_int_eq(logged_times("NCCL WARN"), 4);
  ck_assert_int_eq(logged_times("NCCL_SOCKET_FAMLY, set by"), 1);
}
END_TEST

Suite *unknown_suite(void)
{
  Suite *suite = suite_create("unknown names");
  TCase *one = clean_case(suite, "unknown");
  tcase_add_test(one, tables_are_disjoint);
  tcase_add_test(one, reports);
  return suite;
}
