/* The plugin in the core's own loader: it is found, understands tables with all of Tutti's algorithms, and a broken
 * file is an error of its init. */
#include "loader.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "plugin/tuner.h"

static void prepare(const char *rules)
{
  use_rules(rules);
  setenv("NCCL_TUNER_PLUGIN", TUNER, 1);
  tt_param_reset();
  ck_assert_int_eq(tt_tuner_reset(), ncclSuccess);
}

START_TEST(asked_by_the_core)
{
  struct tt_tuner_request request = {.comm_id = 1, .nranks = 4, .nnodes = 1};
  struct tt_tuner_question question = {.collective = ncclFuncAllReduce, .bytes = 64, .pipe_ops = 1};
  struct tt_tuner_reply reply;
  struct tt_tuner_offer offer;
  struct tt_tuner *tuner;
  struct question table = all_reduce(64);
  prepare("allreduce,0,-1,direct,simple,3,-1,-1\n");
  tt_tuner_open(&request, &tuner, &offer);
  ck_assert_msg(tuner != NULL, "%s", offer.reason);
  ck_assert_str_eq(offer.name, "Tutti");
  ck_assert_int_eq(tt_tuner_version(tuner), 6);
  ck_assert_uint_eq(tt_tuner_features(tuner), TUTTI_TUNER_ALL_ALGORITHMS);
  ck_assert_int_eq(tt_tuner_ask(tuner, &question, table.costs, TUTTI_NUM_ALGORITHMS, &reply), ncclSuccess);
  ck_assert(table.costs[TUTTI_ALGO_DIRECT][NCCL_PROTO_SIMPLE] == 0);
  ck_assert_int_eq(reply.nchannels, 3);
  tt_tuner_close(tuner);
}
END_TEST

START_TEST(refused_by_the_core)
{
  struct tt_tuner_request request = {.comm_id = 1, .nranks = 4, .nnodes = 1};
  struct tt_tuner_offer offer;
  struct tt_tuner *tuner;
  prepare("allreduce,0,-1,direct,simpel,3,-1,-1\n");
  tt_tuner_open(&request, &tuner, &offer);
  ck_assert_ptr_null(tuner);
  ck_assert_int_eq(offer.result, ncclInvalidUsage);
}
END_TEST

void add_core(Suite *suite)
{
  TCase *tcase = tcase_create("core");
  tcase_set_timeout(tcase, 100);
  tcase_add_test(tcase, asked_by_the_core);
  tcase_add_test(tcase, refused_by_the_core);
  suite_add_tcase(suite, tcase);
}
