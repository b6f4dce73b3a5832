/* What a rank tells of itself: on whole machines, alone and as one of several. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "join_machine.h"
#include "join_suites.h"
#include "machine.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

static struct tt_topology *topology(char *text, const struct tt_topology_rules *rules, int rank, int nranks)
{
  struct tt_xml *xml;
  struct tt_topology *t;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  ck_assert_int_eq(tt_topology_create(xml, rules, rank, nranks, &t), ncclSuccess);
  tt_xml_free(xml);
  free(text);
  return t;
}

/* The card of a rank, with graphs of random orders. */
static struct tt_join_card card_of(struct tt_topology *t, int rank, const struct tt_join_rules *rules)
{
  uint64_t state = 1;
  struct graphs graphs = graphs_random(&state, t->count[TT_NODE_GPU], 2, 1);
  struct tt_join_card card;
  struct tt_join_shape *shape;
  for (int k = 0; k < TT_GRAPH_KINDS; k++) /* orders are of numbers on the machine; here they become ranks */
    for (int i = 0; i < graphs.kinds[k]->nchannels * graphs.kinds[k]->nranks; i++) {
      int32_t *its = &graphs.kinds[k]->ranks[i];
      *its = t->nodes[tt_topology_node(t, TT_NODE_GPU, *its)].gpu.rank;
    }
  ck_assert_msg(tt_join_describe(t, CONST(graphs), rank, rules, &card, &shape) == ncclSuccess, "%s",
                tt_log_thread_error());
  ck_assert_uint_eq(card.digest, shape->digest);
  ck_assert_uint_eq(card.shape_bytes, shape->bytes);
  ck_assert_int_eq(shape->nranks, t->count[TT_NODE_GPU]);
  tt_join_shape_free(shape);
  graphs_free(&graphs);
  tt_topology_free(t);
  return card;
}

START_TEST(whole_machines)
{
  const struct tt_topology_rules usual = tt_topology_rules_default();
  const struct tt_join_rules rules = tt_join_rules_default();
  struct tt_join_card card = card_of(topology(machine_hgx(90, 18), &usual, 3, 8), 3, &rules);
  ck_assert_int_eq(card.leader, 0);
  ck_assert_int_eq(card.peer_channels, 36); /* two a link */
  ck_assert_int_eq(card.sm, 90);
  ck_assert_int_eq(card.arch, TT_ARCH_X86);
  ck_assert_int_eq(card.vendor, TT_VENDOR_INTEL);
  ck_assert_float_eq(card.net_bandwidth, 24);
  card = card_of(topology(machine_hgx(90, 18), &usual, 3, 16), 3, &rules);
  ck_assert_int_eq(card.peer_channels, 2); /* one for each 14 of 24 GB/s */
  ck_assert_float_eq(card.net_bandwidth, 24);
  card = card_of(topology(machine_pcie("amd", 4), &usual, 1, 4), 1, &rules);
  ck_assert_int_eq(card.peer_channels, 2);
  ck_assert_int_eq(card.vendor, TT_VENDOR_AMD);
  card = card_of(topology(machine_trays(2), &usual, 2, 4), 2, &rules);
  ck_assert_int_eq(card.leader, 0); /* hosts that share NVLink are one machine */
  ck_assert_int_eq(card.peer_channels, 36);
  ck_assert_int_eq(card.arch, TT_ARCH_ARM);
}
END_TEST

START_TEST(rules_of_peers)
{
  const struct tt_topology_rules usual = tt_topology_rules_default();
  struct tt_join_rules rules = tt_join_rules_default();
  rules.channel_bandwidth = 5;
  ck_assert_int_eq(card_of(topology(machine_hgx(90, 18), &usual, 0, 16), 0, &rules).peer_channels, 5);
  rules.channels_per_net_peer = 7;
  ck_assert_int_eq(card_of(topology(machine_hgx(90, 18), &usual, 0, 16), 0, &rules).peer_channels, 7);
  ck_assert_int_eq(card_of(topology(machine_hgx(90, 18), &usual, 0, 8), 0, &rules).peer_channels, 36);
}
END_TEST

/* GPUs that share no memory are machines of their own. */
START_TEST(split_machines)
{
  struct tt_topology_rules apart = tt_topology_rules_default();
  const struct tt_join_rules rules = tt_join_rules_default();
  apart.peers = apart.shared_memory = false;
  for (int rank = 0; rank < 4; rank++) {
    struct tt_join_card card = card_of(topology(machine_pcie("amd", 4), &apart, rank, 4), rank, &rules);
    ck_assert_int_eq(card.leader, rank);
  }
}
END_TEST

START_TEST(graphs_of_others)
{
  const struct tt_topology_rules usual = tt_topology_rules_default();
  const struct tt_join_rules rules = tt_join_rules_default();
  struct tt_topology *t = topology(machine_pcie("amd", 4), &usual, 0, 4);
  uint64_t state = 1;
  struct graphs graphs = graphs_random(&state, 3, 2, 1);
  struct tt_join_card card;
  struct tt_join_shape *shape;
  ck_assert_int_eq(tt_join_describe(t, CONST(graphs), 0, &rules, &card, &shape), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "the ring graph is one of 3 ranks, the machine has 4"));
  ck_assert_int_eq(tt_join_describe(t, CONST(graphs), 4, &rules, &card, &shape), ncclInternalError);
  ck_assert_ptr_null(shape);
  graphs_free(&graphs);
  tt_topology_free(t);
}
END_TEST

Suite *suite_join_describe(void)
{
  Suite *suite = suite_create("join describe");
  TCase *tcase = tcase_create("describe");
  tcase_add_test(tcase, whole_machines);
  tcase_add_test(tcase, rules_of_peers);
  tcase_add_test(tcase, split_machines);
  tcase_add_test(tcase, graphs_of_others);
  suite_add_tcase(suite, tcase);
  return suite;
}
