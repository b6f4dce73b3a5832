/* From a file to a join: copies of random machines, and of whole ones, are searched, joined and proved, by the parts
 * that the tool has for it. Some fall apart into machines of their own, of different sizes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "join.h"
#include "join_check.h"
#include "join_suites.h"
#include "machine.h"

static struct topo_join usual(int nodes)
{
  return (struct topo_join){.nodes = nodes,
                            .rank = -1,
                            .channel = -1,
                            .topology = tt_topology_rules_default(),
                            .search = tt_graph_rules_default(),
                            .rules = tt_join_rules_default()};
}

/* The join of copies of a machine, proved. Frees `text`. */
static struct tt_joined *join(char *text, const struct topo_join *what)
{
  struct tt_xml *xml;
  struct join_fleet fleet = {0};
  struct tt_joined *joined = NULL;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  ck_assert_msg(join_fleet_build(xml, what, &fleet) == ncclSuccess, "%s", tt_log_thread_error());
  ck_assert_msg(tt_graph_join(fleet.cards, fleet.nlocal * what->nodes, &fleet.shapes, &what->rules, &joined) ==
                    ncclSuccess,
                "%s", tt_log_thread_error());
  struct join_check check = {.joined = joined};
  ck_assert_msg(join_check_all(&check), "%s", check.why);
  ck_assert_int_eq(joined->nnodes, what->nodes * fleet.nparts);
  ck_assert_int_eq(joined->odd_rank, -1);
  join_fleet_free(&fleet);
  tt_xml_free(xml);
  free(text);
  return joined;
}

START_TEST(random_machines)
{
  int split = 0;
  for (unsigned seed = 0; seed < 40; seed++) {
    struct topo_join what = usual(1 + (int)(seed % 4));
    what.topology.shared_memory = seed % 3 != 0; /* GPUs of different CPUs are then apart */
    struct tt_joined *joined = join(machine_random(seed), &what);
    split += joined->nnodes > what.nodes;
    tt_joined_free(joined);
  }
  ck_assert_int_ge(split, 3);
}
END_TEST

/* What is known of it: 8 NICs of a rail each, all rings and trees of 8 GPUs. */
START_TEST(whole_machine)
{
  struct topo_join what = usual(6);
  struct tt_joined *joined = join(machine_hgx(90, 18), &what);
  ck_assert_int_eq(joined->nranks, 48);
  ck_assert_int_eq(joined->nsearched, 8);
  ck_assert_int_eq(joined->nvls_channels, 16);
  ck_assert_int_eq(joined->nvls_heads, 8);
  ck_assert_int_eq(joined->group, 8);
  ck_assert_int_eq(joined->tree_depth, 9);
  tt_joined_free(joined);
}
END_TEST

Suite *suite_join_searched(void)
{
  Suite *suite = suite_create("join searched");
  TCase *tcase = tcase_create("searched");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, random_machines);
  tcase_add_test(tcase, whole_machine);
  suite_add_tcase(suite, tcase);
  return suite;
}
