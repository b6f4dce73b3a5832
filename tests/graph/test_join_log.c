/* The lines that NCCL's users know, of a small join; long lines end in dots. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "graph/join_log.h"
#include "join_machine.h"
#include "join_suites.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

static char seen[1 << 16];

static void see(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                const char *text)
{
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  if (strlen(seen) + strlen(text) + 2 > sizeof(seen)) abort();
  strcat(strcat(seen, text), "\n");
}

static const char *logged(const struct tt_joined *joined, int rank)
{
  seen[0] = 0;
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "ALL", 1);
  tt_param_reset();
  tt_log_reset();
  tt_log_redirect(see);
  tt_join_log(joined, rank);
  tt_log_redirect(NULL);
  return seen;
}

/* Machines of two, whose ranks follow each other in their order. */
static struct tt_joined *join(int nnodes)
{
  uint64_t state = 1;
  struct graphs graphs = graphs_random(&state, 2, 1, 1);
  struct fleet fleet = {0};
  graphs.kinds[TT_GRAPH_TREE]->pattern = TT_PATTERN_TREE;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) graphs.kinds[k]->ranks[0] = 0, graphs.kinds[k]->ranks[1] = 1;
  for (int n = 0; n < nnodes; n++) fleet_add(&fleet, CONST(graphs), NULL, 2);
  graphs_free(&graphs);
  struct tt_joined *joined = fleet_join(&fleet, NULL);
  ck_assert_ptr_nonnull(joined);
  return joined;
}

START_TEST(lines)
{
  struct tt_joined *joined = join(2);
  const char *sums = "2 coll channels, 0 collnet channels, 16 nvls channels, 2 p2p channels, 2 p2p channels per peer\n";
  char expected[1024];
  snprintf(expected, sizeof(expected),
           "Channel 00/02 : 0 1 2 3\nChannel 01/02 : 0 1 2 3\nNVLS Head  0:  0  2\n"
           "Ring 00 : 3 -> 0 -> 1\nRing 01 : 3 -> 0 -> 1\n"
           "Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2\nNVLS Trees : 5/2/-1->0->-1 5/-1/-1->0->2\n%s",
           sums);
  ck_assert_str_eq(logged(joined, 0), expected);
  snprintf(expected, sizeof(expected),
           "Ring 00 : 2 -> 3 -> 0\nRing 01 : 2 -> 3 -> 0\n"
           "Trees [0] -1/-1/-1->3->2 [1] -1/-1/-1->3->2\nNVLS Trees : 4/-1/-1->3->-1 4/-1/-1->3->-1\n%s",
           sums);
  ck_assert_str_eq(logged(joined, 3), expected);
  tt_joined_free(joined);
}
END_TEST

/* Who found something else is told of by itself and by rank 0. */
START_TEST(odd_ranks)
{
  struct tt_joined *joined = join(2);
  ck_assert_ptr_null(strstr(logged(joined, 0), "other channels"));
  joined->odd_rank = 3;
  for (int r = 0; r < 4; r++)
    ck_assert_int_eq(strstr(logged(joined, r), "rank 3 found other channels on its machine than rank 2") != NULL,
                     r == 0 || r == 3);
  tt_joined_free(joined);
}
END_TEST

START_TEST(long_lines)
{
  struct tt_joined *joined = join(600);
  const char *text = logged(joined, 0), *end = strchr(text, '\n');
  ck_assert_int_ge(end - text, 1900);
  ck_assert_int_lt(end - text, 2048);
  ck_assert_int_eq(memcmp(end - 4, " ...", 4), 0);
  setenv("NCCL_DEBUG", "WARN", 1);
  tt_joined_free(joined);
}
END_TEST

Suite *suite_join_log(void)
{
  Suite *suite = suite_create("join log");
  TCase *tcase = tcase_create("log");
  tcase_add_test(tcase, lines);
  tcase_add_test(tcase, odd_ranks);
  tcase_add_test(tcase, long_lines);
  suite_add_tcase(suite, tcase);
  return suite;
}
