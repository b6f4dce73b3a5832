/* How few and how many channels there may be: each variable by each name, the configuration, and both at once. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "tuning/limits.h"

#define MIN_CTAS "NCCL_MIN_CTAS"
#define MAX_CTAS "NCCL_MAX_CTAS"
#define MIN_NCHANNELS "NCCL_MIN_NCHANNELS"
#define MAX_NCHANNELS "NCCL_MAX_NCHANNELS"
#define MIN_CONFIG "config member minCTAs"
#define MAX_CONFIG "config member maxCTAs"

static const char *const names[4] = {MIN_CTAS, MAX_CTAS, MIN_NCHANNELS, MAX_NCHANNELS};

static const struct row {
  const char *values[4]; /* of `names` */
  int min_ctas, max_ctas;
  int least, most;
  const char *least_by, *most_by;
} rows[] = {
    {{0}, 1, 64, 1, 64, MIN_CONFIG, MAX_CONFIG},
    {{0}, 3, 5, 3, 5, MIN_CONFIG, MAX_CONFIG},
    {{0}, 300, 500, 64, 64, MIN_CONFIG, MAX_CONFIG},
    {{"4", "8"}, 1, 64, 4, 8, MIN_CTAS, MAX_CTAS},
    {{"4", "8"}, 6, 7, 4, 8, MIN_CTAS, MAX_CTAS}, /* the configuration does not count, however strict */
    {{NULL, NULL, "4", "8"}, 6, 7, 4, 8, MIN_NCHANNELS, MAX_NCHANNELS},
    {{"4", NULL, NULL, "8"}, 1, 64, 4, 8, MIN_CTAS, MAX_NCHANNELS},
    {{NULL, "8", "4", NULL}, 1, 64, 4, 8, MIN_NCHANNELS, MAX_CTAS},
    {{"4", "8", "2", "16"}, 1, 64, 4, 8, MIN_CTAS, MAX_CTAS},
    {{"2", "16", "4", "8"}, 1, 64, 4, 8, MIN_NCHANNELS, MAX_NCHANNELS},
    {{"4", "8", "4", "8"}, 1, 64, 4, 8, MIN_CTAS, MAX_CTAS},
    {{"0", "-2", "-1", "0"}, 2, 3, 2, 3, MIN_CONFIG, MAX_CONFIG},
    {{"0", "0", "4", "8"}, 2, 3, 4, 8, MIN_NCHANNELS, MAX_NCHANNELS},
};

static void use(const char *const values[4])
{
  for (int i = 0; i < 4; i++)
    if (values[i] != NULL)
      setenv(names[i], values[i], 1);
    else
      unsetenv(names[i]);
  tt_param_reset();
}

START_TEST(who_says_what)
{
  const struct row *row = &rows[_i];
  struct tt_channel_limits limits;
  use(row->values);
  ck_assert_int_eq(tt_param_check(), ncclSuccess);
  ck_assert_int_eq(tt_tuning_limits(row->min_ctas, row->max_ctas, 64, &limits), ncclSuccess);
  ck_assert_int_eq(limits.least, row->least);
  ck_assert_int_eq(limits.most, row->most);
  ck_assert_str_eq(limits.least_by, row->least_by);
  ck_assert_str_eq(limits.most_by, row->most_by);
}
END_TEST

/* Contradictions name what was given, and nothing else. */
static const struct wrong {
  const char *values[4];
  int min_ctas, max_ctas;
  const char *least_by, *most_by;
} wrong[] = {
    {{"4", "2"}, 1, 64, "4 channels (" MIN_CTAS ")", "2 (" MAX_CTAS ")"},
    {{NULL, NULL, "4", "2"}, 1, 64, "4 channels (" MIN_NCHANNELS ")", "2 (" MAX_NCHANNELS ")"},
    {{"4", NULL, NULL, "2"}, 1, 64, "4 channels (" MIN_CTAS ")", "2 (" MAX_NCHANNELS ")"},
    {{"4"}, 1, 3, "4 channels (" MIN_CTAS ")", "3 (" MAX_CONFIG ")"},
    {{NULL, "2"}, 3, 64, "3 channels (" MIN_CONFIG ")", "2 (" MAX_CTAS ")"},
    {{"1", "8", "6", "5"}, 1, 64, "6 channels (" MIN_NCHANNELS ")", "5 (" MAX_NCHANNELS ")"},
};

START_TEST(contradictions)
{
  struct tt_channel_limits limits;
  use(wrong[_i].values);
  ck_assert_int_eq(tt_tuning_limits(wrong[_i].min_ctas, wrong[_i].max_ctas, 64, &limits), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), wrong[_i].least_by));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), wrong[_i].most_by));
}
END_TEST

/* A value that is none is the variable's, by the name that was given. */
START_TEST(wrong_values)
{
  const char *values[4] = {NULL};
  values[_i % 4] = _i < 4 ? "65" : "some";
  use(values);
  ck_assert_int_eq(tt_param_check(), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), names[_i % 4]));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "from -2 to 64"));
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("limits");
  TCase *tests = tcase_create("limits");
  tcase_add_loop_test(tests, who_says_what, 0, sizeof(rows) / sizeof(rows[0]));
  tcase_add_loop_test(tests, contradictions, 0, sizeof(wrong) / sizeof(wrong[0]));
  tcase_add_loop_test(tests, wrong_values, 0, 8);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
