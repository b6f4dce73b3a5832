/* Which ranks of several hosts are one clique. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "suites.h"
#include "topology/clique.h"

enum { RANKS = 12 };

/* Three hosts of four ranks; the first two are one clique, the third another of the same cluster. */
static void make(struct tt_fabric *fabrics)
{
  memset(fabrics, 0, RANKS * sizeof(*fabrics));
  for (int r = 0; r < RANKS; r++) {
    fabrics[r] = (struct tt_fabric){.host = (uint64_t)r / 4 + 1, .clique = r < 8 ? 5 : 6, .joined = 1, .exported = 1};
    memset(fabrics[r].cluster, 0xab, sizeof(fabrics[r].cluster));
  }
}

/* Its ranks as "0,1,2 of 3"; "" for none. */
static const char *find(const struct tt_fabric *fabrics, int nranks, int rank, const struct tt_clique_rules *rules)
{
  static char text[128];
  struct tt_clique clique;
  ck_assert_int_eq(tt_clique_find(fabrics, nranks, rank, rules, &clique), ncclSuccess);
  text[0] = 0;
  for (int i = 0; i < clique.size; i++) sprintf(text + strlen(text), i ? ",%d" : "%d", clique.ranks[i]);
  if (clique.size > 0) sprintf(text + strlen(text), " of %d", clique.domain);
  if (clique.size > 0) ck_assert_int_eq(clique.ranks[clique.index], rank);
  tt_clique_free(&clique);
  return text;
}

START_TEST(cliques)
{
  struct tt_fabric fabrics[RANKS];
  struct tt_clique_rules rules = tt_clique_rules_default();
  make(fabrics);
  ck_assert_str_eq(find(fabrics, RANKS, 3, &rules), "0,1,2,3,4,5,6,7 of 12");
  ck_assert_str_eq(find(fabrics, RANKS, 9, &rules), "8,9,10,11 of 12");
  ck_assert_str_eq(find(fabrics, 4, 0, &rules), ""); /* one host needs none */
  fabrics[9].cluster[15] = 1;
  ck_assert_str_eq(find(fabrics, RANKS, 9, &rules), "9 of 1");
  ck_assert_str_eq(find(fabrics, RANKS, 8, &rules), "8,10,11 of 11");
}
END_TEST

START_TEST(rules)
{
  struct tt_fabric fabrics[RANKS];
  struct tt_clique_rules rules = tt_clique_rules_default();
  make(fabrics);
  rules.enable = 0;
  ck_assert_str_eq(find(fabrics, RANKS, 3, &rules), "");
  rules.enable = 1;
  ck_assert_str_eq(find(fabrics, 4, 1, &rules), "0,1,2,3 of 4");
  rules.peers = false;
  ck_assert_str_eq(find(fabrics, 4, 1, &rules), "");
  rules = tt_clique_rules_default();
  rules.clique = 7;
  for (int r = 0; r < RANKS; r++) tt_clique_override(&fabrics[r], &rules);
  ck_assert_str_eq(find(fabrics, RANKS, 9, &rules), "0,1,2,3,4,5,6,7,8,9,10,11 of 12");
  rules.cluster = 1;
  for (int r = 0; r < 6; r++) tt_clique_override(&fabrics[r], &rules);
  ck_assert_str_eq(find(fabrics, RANKS, 9, &rules), "6,7,8,9,10,11 of 6");
  ck_assert_int_eq(fabrics[0].cluster[0], 1);
  ck_assert_int_eq(fabrics[0].cluster[8], 1);
}
END_TEST

START_TEST(outsiders)
{
  struct tt_fabric fabrics[RANKS];
  struct tt_clique_rules rules = tt_clique_rules_default();
  struct tt_clique clique;
  make(fabrics);
  fabrics[11].joined = 0; /* one is enough, and what users say makes it no member */
  rules.cluster = 1;
  tt_clique_override(&fabrics[11], &rules);
  ck_assert_int_eq(fabrics[11].cluster[0], 0xab);
  ck_assert_str_eq(find(fabrics, RANKS, 0, &rules), "");
  make(fabrics);
  memset(fabrics[5].cluster, 0, sizeof(fabrics[5].cluster));
  ck_assert_str_eq(find(fabrics, RANKS, 0, &rules), "");
  make(fabrics);
  fabrics[10].exported = 0; /* in another clique: all do without, so that all have the same */
  ck_assert_str_eq(find(fabrics, RANKS, 0, &rules), "");
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 10 cannot share"));
  rules.enable = 1;
  ck_assert_int_eq(tt_clique_find(fabrics, RANKS, 0, &rules, &clique), ncclSystemError);
  ck_assert_ptr_null(clique.ranks);
  for (int r = 0; r < RANKS; r++) fabrics[r].cluster[0] = (unsigned char)(r + 1);
  ck_assert_str_eq(find(fabrics, RANKS, 0, &rules), ""); /* nobody to share with, so it does not matter */
}
END_TEST

Suite *suite_clique(void)
{
  Suite *suite = suite_create("clique");
  TCase *tests = tcase_create("clique");
  tcase_add_test(tests, cliques);
  tcase_add_test(tests, rules);
  tcase_add_test(tests, outsiders);
  suite_add_tcase(suite, tests);
  return suite;
}
