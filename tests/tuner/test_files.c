/* Where the rules come from, and what a file that is missing, broken or no file at all comes to. */
#include "loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect_refused(int version, ncclResult_t expected, const char *part)
{
  void *context;
  ck_assert_int_eq(start(version, 4, 1, &context), expected);
  ck_assert_ptr_null(context);
  ck_assert_msg(logged(NCCL_LOG_WARN, part) == 1, "\"%s\" is not in the log once", part);
  ck_assert_int_eq(logged(NCCL_LOG_WARN, ""), 1);
}

START_TEST(broken_file)
{
  char place[128];
  const char *path = use_rules("# line 1\nallreduce,0,1,tree,simple,1,1,1\nallreduce,0,1,tree,simpel,1,1,1\n");
  snprintf(place, sizeof place, "tuner rules: %s:3:20: \"simpel\" as protocol is none of the names", path);
  expect_refused(_i, ncclInvalidUsage, place);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "rules from"), 0);
}
END_TEST

START_TEST(missing_file)
{
  setenv("NCCL_TUNER_CONFIG_FILE", "/nonexistent/rules.csv", 1);
  use_plugin();
  expect_refused(_i, ncclSystemError,
                 "/nonexistent/rules.csv, which NCCL_TUNER_CONFIG_FILE names, cannot be opened: No such file");
}
END_TEST

START_TEST(no_regular_file)
{
  char path[64] = "/tmp/tutti-rules-XXXXXX";
  ck_assert_ptr_nonnull(mkdtemp(path));
  setenv("NCCL_TUNER_CONFIG_FILE", path, 1);
  use_plugin();
  expect_refused(6, ncclSystemError, "it is no regular file");
  rmdir(path);
}
END_TEST

/* Nobody ever writes to it. */
START_TEST(pipe_does_not_hang)
{
  char path[64] = "/tmp/tutti-rules-XXXXXX", pipe[80];
  ck_assert_ptr_nonnull(mkdtemp(path));
  snprintf(pipe, sizeof pipe, "%s/pipe", path);
  ck_assert_int_eq(mkfifo(pipe, 0600), 0);
  setenv("NCCL_TUNER_CONFIG_FILE", pipe, 1);
  use_plugin();
  expect_refused(6, ncclSystemError, "is no regular file");
  unlink(pipe);
  rmdir(path);
}
END_TEST

START_TEST(huge_file)
{
  const char *path = use_rules("# sparse\n");
  ck_assert_int_eq(truncate(path, (off_t)1 << 33), 0);
  expect_refused(6, ncclInvalidUsage, "8589934592 bytes, of which at most 16777216 are read");
}
END_TEST

/* Without the variable: the file in the working directory, or no rules. */
START_TEST(default_file)
{
  char path[64] = "/tmp/tutti-rules-XXXXXX";
  void *context;
  struct question question = all_reduce(64);
  ck_assert_ptr_nonnull(mkdtemp(path));
  ck_assert_int_eq(chdir(path), 0);
  use_plugin();
  ck_assert_int_eq(start(_i, 4, 1, &context), ncclSuccess);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "no rules: NCCL_TUNER_CONFIG_FILE is not set"), 1);
  ck_assert_int_eq(ask(_i, context, &question), ncclSuccess);
  ck_assert(unchanged(_i, &question));
  ck_assert_int_eq(finish(_i, context), ncclSuccess);

  FILE *file = fopen("nccl_tuner.conf", "w");
  ck_assert_ptr_nonnull(file);
  fputs("allreduce,0,-1,tree,ll,7,-1,-1\n", file);
  fclose(file);
  ck_assert_int_eq(start(_i, 4, 1, &context), ncclSuccess); /* each communicator reads anew */
  unlink("nccl_tuner.conf");
  rmdir(path);
  ck_assert_int_eq(ask(_i, context, &question), ncclSuccess);
  ck_assert_int_eq(question.nchannels, 7);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "1 rules from /"), 1);
  ck_assert_int_eq(finish(_i, context), ncclSuccess);
}
END_TEST

START_TEST(symbols)
{
  use_plugin();
  const ncclTuner_v6_t *v6 = plugin_symbol("ncclTunerPlugin_v6");
  const tuttiTunerExtension_v1_t *extension = plugin_symbol("tuttiTunerExtension_v1");
  ck_assert_str_eq(v6->name, "Tutti");
  ck_assert_ptr_null(v6->getChunkSize); /* no opinion */
  ck_assert_uint_eq(extension->size, sizeof *extension);
  ck_assert_uint_eq(extension->features, TUTTI_TUNER_ALL_ALGORITHMS);
}
END_TEST

/* A loader's own mistakes are errors, not crashes; one without a logger is served. */
START_TEST(careless_loaders)
{
  float costs[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS] = {{0}};
  int nchannels = 0;
  void *context;
  use_rules("allreduce,0,-1,tree,ll,7,-1,-1\n");
  const ncclTuner_v5_t *v5 = plugin_symbol("ncclTunerPlugin_v5");
  const ncclTuner_v2_t *v2 = plugin_symbol("ncclTunerPlugin_v2");
  ck_assert_int_eq(v5->init(NULL, 1, 4, 1, NULL, NULL, NULL), ncclInvalidArgument);
  ck_assert_int_eq(v5->init(&context, 1, 4, 1, NULL, NULL, NULL), ncclSuccess);
  ck_assert_int_eq(v5->getCollInfo(NULL, ncclFuncAllReduce, 1, 1, (float **)costs, 7, 3, 0, &nchannels),
                   ncclInvalidArgument);
  ck_assert_int_eq(v5->getCollInfo(context, ncclFuncAllReduce, 1, 1, NULL, 7, 3, 0, &nchannels), ncclInvalidArgument);
  ck_assert_int_eq(v5->getCollInfo(context, ncclFuncAllReduce, 1, 1, (float **)costs, 7, 3, 0, NULL),
                   ncclInvalidArgument);
  ck_assert_int_eq(v2->getCollInfo(context, ncclFuncAllReduce, 1, 0, 0, 1, NULL, NULL, &nchannels),
                   ncclInvalidArgument);
  ck_assert_int_eq(v5->getCollInfo(context, ncclFuncAllReduce, 1, 1, (float **)costs, 7, 3, 0, &nchannels),
                   ncclSuccess);
  ck_assert_int_eq(nchannels, 7);
  ck_assert_int_eq(v5->finalize(context), ncclSuccess);
  ck_assert_int_eq(v5->finalize(NULL), ncclSuccess);
}
END_TEST

void add_files(Suite *suite)
{
  TCase *tcase = tcase_create("files");
  tcase_set_timeout(tcase, 100);
  tcase_add_loop_test(tcase, broken_file, OLDEST, NEWEST + 1);
  tcase_add_loop_test(tcase, missing_file, OLDEST, NEWEST + 1);
  tcase_add_test(tcase, no_regular_file);
  tcase_add_test(tcase, pipe_does_not_hang);
  tcase_add_test(tcase, huge_file);
  tcase_add_loop_test(tcase, default_file, OLDEST, NEWEST + 1);
  tcase_add_test(tcase, symbols);
  tcase_add_test(tcase, careless_loaders);
  suite_add_tcase(suite, tcase);
}
