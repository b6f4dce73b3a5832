/* What the log says: rules loaded at the start, each rule's first use, and at the end which were of use and which not.
 */
#include "loader.h"

#include <stdio.h>
#include <string.h>

static const char rules[] = "# numbers of lines count these, too\n"
                            "allreduce,0,100,tree,ll,-1,1,-1\n"           /* applied */
                            "allreduce,0,100,pat,ll,-1,-1,-1\n"           /* hidden by the one before */
                            "allreduce,101,200,nvls,ll,-1,-1,-1\n"        /* not possible */
                            "allreduce,201,300,ring,ll,-1,2,-1\n"         /* other nodes */
                            "allreduce,201,300,ring,ll,-1,-1,16\n"        /* other ranks */
                            "broadcast,0,-1,ring,simple,2,-1,-1,-1,-1\n"; /* not asked for */

START_TEST(of_everything)
{
  void *context;
  char text[256];
  const char *path = use_rules(rules);
  ck_assert_int_eq(start(_i, 4, 1, &context), ncclSuccess);
  snprintf(text, sizeof text, "TUNER/Tutti: 6 rules from %s, of which 4 can match with 1 nodes and 4 ranks", path);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, text), 1);

  for (size_t bytes = 0; bytes <= 300; bytes += 50) {
    struct question question = all_reduce(bytes); /* 3 in the first range, 2 in the second, 2 in the third */
    question.costs[NCCL_ALGO_NVLS][NCCL_PROTO_LL] = NCCL_ALGO_PROTO_IGNORE;
    question.costs[NCCL_ALGO_NVLS][NCCL_PROTO_SIMPLE] = NCCL_ALGO_PROTO_IGNORE;
    ck_assert_int_eq(ask(_i, context, &question), ncclSuccess);
  }
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "line 2 (allreduce,0,100,tree,ll,-1,1,-1,-1,-1) is applied to allreduce of 0 "
                                         "bytes"),
                   1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "is applied"), 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "line 4 (allreduce,101,200,nvls,ll,-1,-1,-1,-1,-1) matches allreduce of 150 "
                                         "bytes and is passed over"),
                   1);

  ck_assert_int_eq(finish(_i, context), ncclSuccess);
  snprintf(text, sizeof text,
           "of 6 rules from %s, 2 matched and 1 were applied; of 7 questions, a rule matched 5 and was applied to 3",
           path);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, text), 1);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "line 4 (allreduce,101,200,nvls,ll,-1,-1,-1,-1,-1) matched 2 times and was "
                                         "never possible"),
                   1);
  static const char *const never[] = {
      "line 3 (allreduce,0,100,pat,ll,-1,-1,-1,-1,-1) never matched: nothing that was asked for fits it and no earlier",
      "line 5 (allreduce,201,300,ring,ll,-1,2,-1,-1,-1) never matched: it is for other numbers of nodes",
      "line 6 (allreduce,201,300,ring,ll,-1,-1,16,-1,-1) never matched: it is for other numbers of ranks",
      "line 7 (broadcast,0,-1,ring,simple,2,-1,-1,-1,-1) never matched: nothing that was asked for fits it"};
  for (int i = 0; i < 4; i++) ck_assert_msg(logged(NCCL_LOG_INFO, never[i]) == 1, "%s", never[i]);
  ck_assert_int_eq(logged(NCCL_LOG_INFO, "never matched"), 4);
  ck_assert_int_eq(logged(NCCL_LOG_WARN, ""), 0);
}
END_TEST

void add_reports(Suite *suite)
{
  TCase *tcase = tcase_create("reports");
  tcase_set_timeout(tcase, 100);
  tcase_add_loop_test(tcase, of_everything, OLDEST, NEWEST + 1);
  suite_add_tcase(suite, tcase);
}
