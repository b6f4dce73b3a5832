/* Machines at random, whose paths must keep their word. Damaged files are those of tests/graph/fuzz.c. */
#include "machine.h"
#include "suites.h"

/* Follows a path: it leads from node to node to its end, over relays of its kind only, at the bandwidth it promises. */
static void check_path(const struct tt_topology *t, int from, int to)
{
  const struct tt_path *path = tt_topology_path(t, from, to);
  float bandwidth = TT_LOCAL_BANDWIDTH;
  int at = from, hops = 0, gpus = 0, worst = TT_PATH_LOC;
  if (path->type == TT_PATH_DIS) {
    ck_assert_int_eq(path->first, -1);
    return;
  }
  for (int s = path->first; s >= 0; s = t->steps[s].next, hops++) {
    const struct tt_link *link = &t->links[t->steps[s].link];
    ck_assert_int_eq(link->from, at);
    at = link->to;
    if (link->bandwidth < bandwidth) bandwidth = link->bandwidth;
    if (link->type != TT_LINK_NET && (int)link->type > worst) worst = (int)link->type;
    gpus += t->nodes[at].type == TT_NODE_GPU && at != to;
  }
  ck_assert_int_eq(at, to);
  ck_assert_int_eq(hops, path->hops);
  ck_assert_float_eq(bandwidth, path->bandwidth);
  ck_assert_int_eq(gpus, path->type == TT_PATH_PXN);
  ck_assert_int_ge(path->type, TT_PATH_LOC);
  if (path->type != TT_PATH_PXN && path->type != TT_PATH_P2C) ck_assert_int_ge(path->type, worst);
}

START_TEST(random_machines)
{
  static const enum tt_node_type ends[] = {TT_NODE_CPU, TT_NODE_DEV, TT_NODE_GPU, TT_NODE_NET, TT_NODE_NVS};
  char *text = machine_random((unsigned)_i);
  struct tt_topology *t = machine_topology(text, NULL);
  for (int from = 0; from < t->nnodes; from++)
    for (size_t e = 0; e < sizeof(ends) / sizeof(ends[0]); e++)
      for (int i = 0; i < t->count[ends[e]]; i++) {
        int to = tt_topology_node(t, ends[e], i);
        bool again = t->nodes[from].type == TT_NODE_NET && t->nodes[from].net.same_as != t->nodes[from].index;
        if (!again) check_path(t, from, to);
      }
  /* On one host every GPU that is left reaches every other and each NET, and the best of both directions is the same.
   */
  for (int a = 0; a < t->count[TT_NODE_GPU]; a++)
    for (int b = 0; b < a; b++) {
      const struct tt_path *there = tt_topology_path_between(t, TT_NODE_GPU, a, TT_NODE_GPU, b);
      const struct tt_path *back = tt_topology_path_between(t, TT_NODE_GPU, b, TT_NODE_GPU, a);
      ck_assert_int_lt(there->type, TT_PATH_NET);
      ck_assert_int_eq(there->type, back->type);
      ck_assert_float_eq(there->bandwidth, back->bandwidth);
    }
  tt_topology_free(t);
}
END_TEST

Suite *suite_random(void)
{
  Suite *suite = suite_create("random");
  TCase *tests = tcase_create("random");
  tcase_add_loop_test(tests, random_machines, 0, 50);
  suite_add_tcase(suite, tests);
  return suite;
}
