/* Tuner plugins: the list, loading, versions, and what shims hand over. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "plugin/tuner.h"
#include "plugin/tuner_list.h"
#include "search.h"

#define STUB(name) STUBS "/lib" name ".so"

static const struct tt_tuner_request request = {
    .comm_id = 7,
    .nranks = 4,
    .nnodes = 2,
    .domains = {.nNvlDomains = 2, .minRanksPerNvlDomain = 1, .maxRanksPerNvlDomain = 3},
};
static char calls_path[64];

static void forget_calls_file(void)
{
  unlink(calls_path);
}

static void start(const char *plugins, const char *does)
{
  if (!calls_path[0]) atexit(forget_calls_file);
  snprintf(calls_path, sizeof calls_path, "/tmp/test_tuners.%d", (int)getpid());
  unlink(calls_path);
  setenv("STUB_TUNER_LOG", calls_path, 1);
  setenv("STUB_TUNER_DOES", does, 1);
  unsetenv("NCCL_TUNER_CONFIG_FILE");
  if (plugins)
    setenv("NCCL_TUNER_PLUGIN", plugins, 1);
  else
    unsetenv("NCCL_TUNER_PLUGIN");
  tt_param_reset();
  ck_assert_int_eq(tt_tuner_reset(), ncclSuccess);
}

/* What the stub was called with. */
static void check_calls(const char *wanted)
{
  char calls[2048] = "";
  FILE *file = fopen(calls_path, "r");
  if (file) {
    calls[fread(calls, 1, sizeof calls - 1, file)] = '\0';
    fclose(file);
  }
  unlink(calls_path);
  ck_assert_str_eq(calls, wanted);
}

static struct tt_tuner *open_one(struct tt_tuner_offer *offer)
{
  struct tt_tuner *tuner;
  tt_tuner_open(&request, &tuner, offer);
  return tuner;
}

static void fill(float table[TUTTI_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS])
{
  for (int a = 0; a < TUTTI_NUM_ALGORITHMS; a++)
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++) table[a][p] = a < 2 ? (float)(10 * a + p + 1) : -1;
}

/* Each version is asked in its own way, and its answer comes back as a table. */
START_TEST(versions)
{
  static const char *const calls[] = {
      [2] = "init 4 ranks 2 nodes\nask 4 4096 bytes, 1 ops, collnet 0 nvls 0\nfinalize 1\n",
      [3] = "init 4 ranks 2 nodes\nask 4 4096 bytes, 1 ops, 7 x 3, reg -1\nfinalize 1\n",
      [4] = "init 4 ranks 2 nodes\nask 4 4096 bytes, 1 ops, 7 x 3, reg 0\nfinalize 1\n",
      [5] = "id 1, 2 domains of 1 to 3, a step takes 0 ns\ninit 4 ranks 2 nodes\n"
            "ask 4 4096 bytes, 1 ops, 7 x 3, reg 0\nfinalize 1\n",
      [6] = "id 1, 2 domains of 1 to 3, a step takes 0 ns\ninit 4 ranks 2 nodes\n"
            "ask 4 4096 bytes, 1 ops, 7 x 3, reg 0\nchunk 4 4096 bytes, 1 2 5: 999\nfinalize 1\n",
  };
  char path[256];
  struct tt_tuner_offer offer;
  struct tt_tuner_reply reply;
  const struct tt_tuner_question question = {.collective = 4, .bytes = 4096, .pipe_ops = 1};
  float table[TUTTI_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
  size_t chunk = 999;
  snprintf(path, sizeof path, "%s/libtuner%d.so", STUBS, _i);
  start(path, "price=1,2,0.0 channels=5 chunk=512");
  struct tt_tuner *tuner = open_one(&offer);
  ck_assert_ptr_nonnull(tuner);
  ck_assert_str_eq(offer.name, "Stub");
  ck_assert_int_eq(offer.version, _i);
  ck_assert_uint_eq(tt_tuner_features(tuner), 0);
  fill(table);
  ck_assert_int_eq(tt_tuner_ask(tuner, &question, table, NCCL_NUM_ALGORITHMS, &reply), ncclSuccess);
  ck_assert(table[1][2] == 0.0f && table[1][1] == 12.0f && table[2][0] == -1.0f);
  ck_assert_int_eq(reply.nchannels, 5);
  ck_assert(!reply.odd);
  ck_assert_int_eq(tt_tuner_ask_chunk(tuner, &question, 1, 2, 5, &chunk), ncclSuccess);
  ck_assert_uint_eq(chunk, _i == 6 ? 512 : 999);
  tt_tuner_close(tuner);
  check_calls(calls[_i]);
}
END_TEST

/* v2 answers by numbers: half an answer and numbers that do not exist touch no table. */
START_TEST(odd_numbers)
{
  static const char *const odd[] = {"price=1,-1", "price=-1,2", "price=7,2", "price=1,3", "price=-5,0"};
  struct tt_tuner_offer offer;
  struct tt_tuner_reply reply;
  const struct tt_tuner_question question = {.collective = 0, .bytes = 1, .pipe_ops = 1};
  float table[TUTTI_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS], before[TUTTI_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
  start(STUB("tuner2"), odd[_i]);
  struct tt_tuner *tuner = open_one(&offer);
  fill(table);
  fill(before);
  ck_assert_int_eq(tt_tuner_ask(tuner, &question, table, NCCL_NUM_ALGORITHMS, &reply), ncclSuccess);
  ck_assert(reply.odd);
  ck_assert_mem_eq(table, before, sizeof table);
  tt_tuner_close(tuner);
}
END_TEST

START_TEST(no_tuner)
{
  static const struct {
    const char *plugins, *reason;
  } cases[] = {
      {STUB("tuner-future"), "it exports the tuner ABI v9 only, and this library knows v2 to v6"},
      {STUB("tuner-mute"), "its ncclTunerPlugin_v4 has no getCollInfo"},
      {STUB("stub12"), "it exports no ncclTunerPlugin_v2 to v6, so it is no tuner"},
      {STUBS "/libtext.so", "libtext.so"},
      {STUBS "/absent.so", "no such file"},
      {"none", "NCCL_TUNER_PLUGIN is none"},
  };
  struct tt_tuner_offer offer;
  start(cases[_i].plugins, "");
  ck_assert_ptr_null(open_one(&offer));
  ck_assert_str_eq(offer.name, "");
  ck_assert_int_eq(offer.result, ncclSuccess);
  ck_assert_msg(strstr(offer.reason, cases[_i].reason) != NULL, "%s", offer.reason);
  bool named = strcmp(cases[_i].plugins, "none") != 0;
  ck_assert_int_eq(strstr(tt_log_thread_error(), cases[_i].plugins) != NULL, named);
}
END_TEST

/* Of alternatives the first that loads counts, and the others are passed over. */
START_TEST(alternatives)
{
  struct tt_tuner_offer offer;
  start(STUBS "/absent.so," STUB("tuner-mute") "," STUB("tuner3") "," STUB("tuner6"), "");
  struct tt_tuner *tuner = open_one(&offer);
  ck_assert_int_eq(tt_tuner_version(tuner), 3);
  ck_assert_str_eq(tt_tuner_path(tuner), STUB("tuner3"));
  struct tt_tuner *second = open_one(&offer);
  ck_assert_int_eq(tt_tuner_reset(), ncclInvalidUsage); /* it is used */
  tt_tuner_close(tuner);
  tt_tuner_close(second);
  check_calls("init 4 ranks 2 nodes\ninit 4 ranks 2 nodes\nfinalize 1\nfinalize 1\n");
}
END_TEST

/* A folder has the very name, and the library is libnccl-tuner-<name>.so: each communicator gets it. */
START_TEST(later_file)
{
  struct tt_tuner_offer offer;
  start("folder", "");
  struct tt_tuner *tuner = open_one(&offer);
  ck_assert_msg(tuner != NULL, "%s", offer.reason);
  struct tt_tuner *second = open_one(&offer);
  ck_assert_msg(second != NULL, "%s", offer.reason);
  tt_tuner_close(second);
  tt_tuner_close(tuner);
  tuner = open_one(&offer); /* it was unloaded */
  ck_assert_msg(tuner != NULL, "%s", offer.reason);
  ck_assert_str_eq(tt_tuner_path(tuner), STUB("nccl-tuner-folder"));
  tt_tuner_close(tuner);
}
END_TEST

START_TEST(of_the_net)
{
  struct tt_tuner_offer offer;
  struct tt_tuner_request with_net = request;
  struct tt_tuner *tuner;
  with_net.net_path = STUB("tuner4");
  start(NULL, "");
  tt_tuner_open(&with_net, &tuner, &offer);
  ck_assert_ptr_nonnull(tuner);
  ck_assert_int_eq(offer.version, 4);
  tt_tuner_close(tuner);
  with_net.net_path = STUB("stub12");
  tt_tuner_open(&with_net, &tuner, &offer);
  ck_assert_ptr_null(tuner);
}
END_TEST

START_TEST(failing_init)
{
  struct tt_tuner_offer offer;
  start(STUB("tuner5"), "init=2");
  ck_assert_ptr_null(open_one(&offer));
  ck_assert_int_eq(offer.result, ncclSystemError);
  ck_assert_str_eq(offer.name, "Stub");
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "Stub"));
  ck_assert_int_eq(tt_tuner_reset(), ncclSuccess); /* nothing keeps the library */
}
END_TEST

START_TEST(extension)
{
  struct tt_tuner_offer offer;
  start(STUB("tuner-all"), "");
  struct tt_tuner *tuner = open_one(&offer);
  ck_assert_uint_eq(offer.features, TUTTI_TUNER_ALL_ALGORITHMS);
  ck_assert_uint_eq(tt_tuner_features(tuner), TUTTI_TUNER_ALL_ALGORITHMS);
  tt_tuner_close(tuner);
}
END_TEST

static ncclResult_t no_stats(void *core, tuttiNetStats_t *stats)
{
  ck_assert_ptr_eq(core, calls_path);
  ck_assert_uint_eq(stats->size, sizeof *stats);
  return ncclInProgress;
}

/* Who asks to be asked again is told which question it is, and can read what was counted; only while it wants to. */
START_TEST(again)
{
  struct tt_tuner_request with_stats = request;
  struct tt_tuner_offer offer;
  struct tt_tuner_reply reply;
  struct tt_tuner *tuner;
  const struct tt_tuner_question question = {
      .collective = 4, .bytes = 64, .pipe_ops = 1, .variant = 5, .epoch = 3, .calls = 8};
  float table[TUTTI_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS] = {{0}};
  with_stats.net_stats = no_stats;
  with_stats.core = calls_path;
  start(STUB("tuner-again"), "again=9 odd=1,2 price=0,0,7");
  tt_tuner_open(&with_stats, &tuner, &offer);
  ck_assert(tt_tuner_asks_again(tuner));
  ck_assert_uint_eq(offer.features, TT_TUNER_ASKS_AGAIN);
  check_calls("id 1, 2 domains of 1 to 3, a step takes 0 ns\ninit 4 ranks 2 nodes\n");
  ck_assert_int_eq(tt_tuner_ask(tuner, &question, table, NCCL_NUM_ALGORITHMS, &reply), ncclSuccess);
  ck_assert_uint_eq(reply.again, 9);
  ck_assert(table[0][0] == 7);
  check_calls("epoch 4 64 bytes, variant 5, 3 after 8 calls, stats 7\nask 4 64 bytes, 1 ops, 7 x 3, reg 0\n");
  tt_tuner_close(tuner);
  start(STUB("tuner-again"), "again=9 once");
  tuner = open_one(&offer);
  ck_assert(!tt_tuner_asks_again(tuner));
  ck_assert_uint_eq(offer.features, 0);
  check_calls("id 1, 2 domains of 1 to 3, a step takes 0 ns\ninit 4 ranks 2 nodes\n");
  ck_assert_int_eq(tt_tuner_ask(tuner, &question, table, NCCL_NUM_ALGORITHMS, &reply), ncclSuccess);
  ck_assert_uint_eq(reply.again, 0);
  check_calls("ask 4 64 bytes, 1 ops, 7 x 3, reg 0\n");
  tt_tuner_close(tuner);
}
END_TEST

START_TEST(agreement)
{
  char why[800];
  struct tt_tuner_offer offers[3] = {
      {.name = "A", .version = 4}, {.name = "A", .version = 4}, {.name = "A", .version = 4}};
  ck_assert(tt_tuner_agree(offers, 3, why, sizeof why));
  offers[2].version = 5;
  ck_assert(!tt_tuner_agree(offers, 3, why, sizeof why));
  ck_assert_str_eq(why, "rank 0 has A (v4), rank 2 has A (v5)");
  offers[1] = (struct tt_tuner_offer){.reason = "x: not installed"};
  ck_assert(!tt_tuner_agree(offers, 3, why, sizeof why));
  ck_assert_str_eq(why, "rank 0 has A (v4), rank 1 has none (x: not installed)");
  offers[0] = offers[2] = offers[1];
  snprintf(offers[2].reason, sizeof offers[2].reason, "another");
  ck_assert(tt_tuner_agree(offers, 3, why, sizeof why)); /* none is none */
}
END_TEST

/* What tutti-info shows: each candidate in its place, without a context, and nothing stays loaded. */
START_TEST(reports)
{
  struct tt_tuner_report report;
  start("nosuch," STUB("tuner4") "," STUB("tuner-mute"), "");
  ck_assert(tt_tuner_report(0, STUB("stub12"), &report));
  ck_assert(!report.usable && report.version == 0 && report.path[0] == '\0');
  ck_assert_str_eq(report.asked, "nosuch");
  ck_assert_str_eq(report.asked_by, "NCCL_TUNER_PLUGIN");
  ck_assert_str_eq(report.reason, "no such file, and no libnccl-tuner-nosuch.so");
  ck_assert(tt_tuner_report(1, STUB("stub12"), &report));
  ck_assert(report.usable && report.reason[0] == '\0');
  ck_assert_int_eq(report.version, 4);
  ck_assert_str_ne(report.name, "");
  ck_assert(tt_tuner_report(2, STUB("stub12"), &report));
  ck_assert(!report.usable && report.reason[0] != '\0');
  ck_assert(tt_tuner_report(3, STUB("stub12"), &report));
  ck_assert_str_eq(report.asked_by, "the net plugin");
  ck_assert_str_eq(report.reason, "the net plugin's library holds no tuner");
  ck_assert(!tt_tuner_report(4, STUB("stub12"), &report));
  check_calls("");
  ck_assert_int_eq(tt_tuner_reset(), ncclSuccess);
  start("none", "");
  ck_assert(!tt_tuner_report(0, STUB("stub12"), &report));
}
END_TEST

/* With raised privileges the environment's paths count for nothing. */
START_TEST(privileges)
{
  struct tt_tuner_library libraries[TT_TUNER_MAX_LIBRARIES];
  ck_assert_int_eq(tt_tuner_list_parse("a.so,,b", false, false, "/own", libraries), 2);
  ck_assert_str_eq(libraries[1].files[1], "libnccl-tuner-b.so");
  ck_assert_int_eq(tt_tuner_list_parse("a.so", false, true, "/own", libraries), 1);
  ck_assert_str_eq(libraries[0].asked, "libnccl-tuner.so");
  ck_assert_int_eq(tt_tuner_list_parse("NONE", false, true, "/own", libraries), 0);
}
END_TEST

int main(int argc, char **argv)
{
  (void)argc;
  search_stubs(argv);
  Suite *suite = suite_create("tuner plugins");
  TCase *tcase = tcase_create("tuner plugins");
  suite_add_tcase(suite, tcase);
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, versions, 2, 7);
  tcase_add_loop_test(tcase, odd_numbers, 0, 5);
  tcase_add_loop_test(tcase, no_tuner, 0, 6);
  tcase_add_test(tcase, alternatives);
  tcase_add_test(tcase, later_file);
  tcase_add_test(tcase, of_the_net);
  tcase_add_test(tcase, failing_init);
  tcase_add_test(tcase, extension);
  tcase_add_test(tcase, again);
  tcase_add_test(tcase, agreement);
  tcase_add_test(tcase, reports);
  tcase_add_test(tcase, privileges);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
