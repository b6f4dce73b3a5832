/* How many channels there are, who heads them, and the order of peers: numbers worked out by hand from the rules. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "join_check.h"
#include "join_machine.h"
#include "join_suites.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

/* `nnodes` equal machines of `nlocal` GPUs. */
static struct fleet equal(int nnodes, int nlocal, int nchannels, int nheads, float bandwidth, int sm)
{
  uint64_t state = 3;
  struct graphs graphs = graphs_random(&state, nlocal, nchannels, nheads);
  struct fleet fleet = {0};
  graphs.kinds[TT_GRAPH_RING]->bandwidth_intra = bandwidth;
  for (int n = 0; n < nnodes; n++) fleet_add(&fleet, CONST(graphs), NULL, nlocal);
  for (int r = 0; r < fleet.nranks; r++) fleet.cards[r].sm = sm;
  graphs_free(&graphs);
  return fleet;
}

static struct tt_joined *join(struct fleet fleet, const struct tt_join_rules *rules)
{
  struct tt_joined *joined = fleet_join(&fleet, rules);
  ck_assert_msg(joined != NULL, "%s", tt_log_thread_error());
  struct join_check check = {.joined = joined, .sample = 16};
  ck_assert_msg(join_check_all(&check), "%s", check.why);
  return joined;
}

struct counted {
  int nnodes, nchannels, sm;
  float bandwidth;
  struct tt_join_rules rules; /* members that are 0 are the usual ones */
  int expected;
};

START_TEST(channels)
{
  static const struct counted cases[] = {
      {1, 5, 80, 20, {0}, 10},
      {2, 5, 80, 60, {0}, 10}, /* doubled for the second tree */
      {2, 40, 80, 20, {0}, 64},
      {2, 5, 90, 46, {0}, 20}, /* fast GPUs */
      {2, 5, 90, 45, {0}, 10},
      {1, 5, 90, 46, {0}, 10},
      {2, 8, 90, 46, {0}, 16}, /* enough already */
      {2, 5, 80, 20, {.max_channels = 7}, 7},
      {2, 5, 80, 20, {.max_ctas = 3}, 3},
      {2, 5, 80, 20, {.min_channels = 23}, 23},
      {2, 5, 80, 20, {.min_ctas = 12, .min_channels = 11}, 12},
      {2, 5, 80, 20, {.max_channels = 4, .min_channels = 9}, 9}, /* the first four, repeated */
      {2, 5, 80, 20, {.parent_channels = 6}, 6},
      {2, 5, 80, 20, {.parent_channels = 6, .min_channels = 12}, 6},
      {2, 4, 80, 20, {.collnet = true}, 12}, /* more inside than the network takes */
      {1, 4, 80, 20, {.collnet = true}, 8},
  };
  for (size_t i = 0; i < TT_COUNT(cases); i++) {
    struct tt_join_rules rules = cases[i].rules, usual = tt_join_rules_default();
    if (rules.max_channels > 0) usual.max_channels = rules.max_channels;
    if (rules.max_ctas > 0) usual.max_ctas = rules.max_ctas;
    usual.min_channels = rules.min_channels;
    usual.min_ctas = rules.min_ctas;
    usual.parent_channels = rules.parent_channels;
    usual.collnet = rules.collnet;
    struct tt_joined *joined =
        join(equal(cases[i].nnodes, 4, cases[i].nchannels, 2, cases[i].bandwidth, cases[i].sm), &usual);
    ck_assert_msg(joined->nchannels == cases[i].expected, "case %zu: %d, not %d", i, joined->nchannels,
                  cases[i].expected);
    ck_assert_int_eq(joined->nsearched, cases[i].nchannels);
    tt_joined_free(joined);
  }
}
END_TEST

/* Channels beyond the searched ones repeat them: the k-th has ring k mod 3, and in turn the first and second tree. */
START_TEST(repeated_channels)
{
  struct tt_join_rules rules = tt_join_rules_default();
  rules.min_channels = 20;
  struct tt_joined *joined = join(equal(3, 4, 3, 2, 20, 80), &rules);
  ck_assert_int_eq(joined->nchannels, 20);
  for (int c = 0; c < 20; c++) {
    ck_assert_ptr_eq(joined->ring[c], joined->ring[c % 3]);
    for (int r = 0; r < joined->nranks; r++) {
      struct tt_join_tree a = tt_join_tree_place(joined, c, r), b = tt_join_tree_place(joined, c % 6, r);
      ck_assert_mem_eq(&a, &b, sizeof(a));
      struct tt_join_tree twin = tt_join_twin_place(joined, c % 3, c % 6 / 3, r);
      ck_assert_mem_eq(&a, &twin, sizeof(a));
    }
  }
  tt_joined_free(joined);
}
END_TEST

/* The weakest of all machines counts for each number by itself. */
START_TEST(weakest)
{
  uint64_t state = 5;
  struct graphs a = graphs_random(&state, 4, 6, 3), b = graphs_random(&state, 2, 5, 2);
  struct fleet fleet = {0};
  a.kinds[TT_GRAPH_RING]->cross_nic = 0;
  b.kinds[TT_GRAPH_RING]->cross_nic = 2;
  a.kinds[TT_GRAPH_RING]->bandwidth_intra = 10;
  b.kinds[TT_GRAPH_RING]->bandwidth_inter = 12;
  a.kinds[TT_GRAPH_RING]->type_intra = TT_PATH_PHB;
  b.kinds[TT_GRAPH_RING]->type_inter = TT_PATH_SYS;
  b.kinds[TT_GRAPH_RING]->latency_inter = 9;
  a.kinds[TT_GRAPH_RING]->same_channels = true;
  b.kinds[TT_GRAPH_TREE]->nchannels = 4;
  fleet_add(&fleet, CONST(a), NULL, 4);
  fleet_add(&fleet, CONST(b), NULL, 2);
  fleet_add(&fleet, CONST(a), NULL, 4);
  fleet.cards[5].sm = 90;
  fleet.cards[7].vendor = TT_VENDOR_AMD;
  fleet.cards[8].net_bandwidth = 3;
  struct tt_joined *joined = join(fleet, NULL);
  const struct tt_join_graph *ring = &joined->weakest[TT_GRAPH_RING];
  ck_assert_int_eq(joined->nsearched, 4);
  ck_assert_int_eq(ring->nchannels, 5);
  ck_assert_int_eq(ring->cross_nic, 2);
  ck_assert(!ring->same_channels);
  ck_assert_float_eq(ring->bandwidth_intra, 10);
  ck_assert_float_eq(ring->bandwidth_inter, 12);
  ck_assert_float_eq(ring->latency_inter, 9);
  ck_assert_int_eq(ring->type_intra, TT_PATH_PHB);
  ck_assert_int_eq(ring->type_inter, TT_PATH_SYS);
  ck_assert_int_eq(joined->min_sm, 80);
  ck_assert_int_eq(joined->max_sm, 90);
  ck_assert_int_eq(joined->vendor, -1);
  ck_assert_int_eq(joined->arch, TT_ARCH_X86);
  ck_assert_float_eq(joined->net_bandwidth, 3);
  ck_assert_int_eq(joined->min_local, 2);
  ck_assert_int_eq(joined->max_local, 4);
  tt_joined_free(joined);
  graphs_free(&a);
  graphs_free(&b);
}
END_TEST

/* cross_nic 2: every second machine uses the other channel of a pair; with an odd number of channels none does. */
START_TEST(swapped_channels)
{
  uint64_t state = 5;
  for (int nchannels = 3; nchannels <= 4; nchannels++)
    for (int cross = 0; cross <= 2; cross += 2) {
      struct graphs graphs = graphs_random(&state, 4, nchannels, 2);
      struct fleet fleet = {0};
      graphs.kinds[TT_GRAPH_RING]->cross_nic = cross;
      for (int n = 0; n < 5; n++) fleet_add(&fleet, CONST(graphs), NULL, 4);
      struct tt_joined *joined = join(fleet, NULL);
      for (int c = 0; c < joined->nchannels; c++)
        for (int n = 0; n < 5; n++) {
          const int mine = c % nchannels, swapped = mine + 1 - 2 * (mine % 2);
          const bool swap = cross == 2 && nchannels == 4 && n % 2 == 1;
          ck_assert_int_eq(tt_join_graph_channel(joined, TT_GRAPH_RING, n, c), swap ? swapped : mine);
          ck_assert_int_eq(tt_join_graph_channel(joined, TT_GRAPH_TREE, n, c), mine);
        }
      tt_joined_free(joined);
      graphs_free(&graphs);
    }
}
END_TEST

START_TEST(nvls)
{
  static const struct {
    int nnodes, nlocal, sm;
    float net;
    int expected;
  } cases[] = {{1, 8, 90, 25, 16},  {4, 8, 90, 100, 16}, {1, 8, 100, 100, 24}, {3, 8, 100, 25, 32},
               {2, 8, 100, 48, 32}, {3, 8, 100, 48, 24}, {2, 8, 100, 100, 32}, {3, 8, 100, 96, 24},
               {3, 9, 100, 96, 32}, {2, 8, 100, 0, 32}};
  for (size_t i = 0; i < TT_COUNT(cases); i++) {
    struct fleet fleet = equal(cases[i].nnodes, cases[i].nlocal, 2, 4, 20, cases[i].sm);
    for (int r = 0; r < fleet.nranks; r++) fleet.cards[r].net_bandwidth = cases[i].net;
    struct tt_joined *joined = join(fleet, NULL);
    ck_assert_msg(joined->nvls_channels == cases[i].expected, "case %zu: %d", i, joined->nvls_channels);
    ck_assert_int_ge(joined->nvls_heads, 1);
    tt_joined_free(joined);
  }
  struct tt_join_rules rules = tt_join_rules_default();
  rules.nvls_channels = 20;
  rules.max_ctas = 18;
  struct tt_joined *joined = join(equal(2, 4, 2, 4, 20, 90), &rules);
  ck_assert_int_eq(joined->nvls_channels, 18);
  tt_joined_free(joined);
  rules.parent_nvls_channels = 4;
  joined = join(equal(2, 4, 2, 4, 20, 90), &rules);
  ck_assert_int_eq(joined->nvls_channels, 4);
  tt_joined_free(joined);
  rules.nvls = false;
  joined = join(equal(2, 4, 2, 4, 20, 90), &rules);
  ck_assert_int_eq(joined->nvls_channels, 0);
  ck_assert_int_eq(joined->nvls_heads, 0);
  tt_joined_free(joined);
}
END_TEST

/* A rank that heads two channels is one head; the machine with the fewest sets their number. */
START_TEST(heads)
{
  uint64_t state = 5;
  struct graphs a = graphs_random(&state, 4, 2, 4), b = graphs_random(&state, 3, 2, 2);
  static const int heads_a[] = {2, 2, 0, 3}, heads_b[] = {1, 0};
  struct tt_join_rules rules = tt_join_rules_default();
  struct fleet fleet = {0};
  for (int k = TT_GRAPH_NVLS; k <= TT_GRAPH_COLLNET_DIRECT; k++) {
    for (int c = 0; c < 4; c++) a.kinds[k]->ranks[c * 4] = heads_a[c];
    for (int c = 0; c < 2; c++) b.kinds[k]->ranks[c * 3] = heads_b[c];
  }
  fleet_add(&fleet, CONST(a), NULL, 4);
  fleet_add(&fleet, CONST(b), NULL, 3);
  fleet_add(&fleet, CONST(a), NULL, 4);
  rules.collnet = true;
  struct tt_joined *joined = join(fleet, &rules);
  ck_assert_int_eq(joined->nvls_heads, 2);
  ck_assert_int_eq(joined->direct_heads, 2);
  ck_assert_int_eq(joined->chain_depth, 3);
  static const int expected[] = {1, -1, 0, -1, 1, 0, -1, 1, -1, 0, -1};
  for (int r = 0; r < 11; r++) {
    ck_assert_int_eq(tt_join_head_number(joined, TT_GRAPH_NVLS, r), expected[r]);
    ck_assert_int_eq(tt_join_head_number(joined, TT_GRAPH_COLLNET_DIRECT, r), expected[r]);
    if (expected[r] >= 0) ck_assert_int_eq(tt_join_head(joined, TT_GRAPH_NVLS, joined->node[r], expected[r]), r);
  }
  /* The tree over three machines is 0 above 2 above 1, on odd channels 1 above 0 above 2. */
  ck_assert_int_eq(tt_join_nvls_place(joined, 0, 2).up, -1);
  ck_assert_int_eq(tt_join_nvls_place(joined, 0, 2).down[0], 12);
  ck_assert_int_eq(tt_join_nvls_place(joined, 0, 2).down[1], 9);
  ck_assert_int_eq(tt_join_nvls_place(joined, 0, 5).up, 9);
  ck_assert_int_eq(tt_join_nvls_place(joined, 1, 5).down[1], 2);
  ck_assert_int_eq(tt_join_nvls_place(joined, 1, 2).down[1], 9);
  ck_assert_int_eq(tt_join_nvls_place(joined, 0, 1).down[0], 11);
  tt_joined_free(joined);
  graphs_free(&a);
  graphs_free(&b);
}
END_TEST

START_TEST(collnet)
{
  struct tt_join_rules rules = tt_join_rules_default();
  rules.collnet = true;
  struct tt_joined *joined = join(equal(2, 9, 2, 4, 20, 80), &rules);
  ck_assert(joined->collnet);
  ck_assert_int_eq(joined->direct_heads, 0); /* too many ranks on a machine */
  tt_joined_free(joined);
  rules.collnet_nodes = 3;
  joined = join(equal(2, 4, 2, 4, 20, 80), &rules);
  ck_assert(!joined->collnet);
  ck_assert_int_eq(joined->direct_heads, 0);
  tt_joined_free(joined);
}
END_TEST

START_TEST(peer_channels)
{
  static const struct {
    int nnodes, nlocal, nchannels, wanted;
    struct tt_join_rules rules; /* members that are 0 are the usual ones */
    int channels, per_peer;
  } cases[] = {
      {1, 8, 12, 36, {0}, 32, 32},
      {1, 8, 4, 36, {0}, 8, 8},
      {1, 8, 4, 3, {0}, 8, 4},
      {2, 8, 8, 2, {0}, 16, 2},
      {2, 8, 1, 2, {0}, 2, 1}, /* 16 peers are 2 batches */
      {4, 8, 8, 9, {0}, 16, 4},
      {4, 8, 8, 9, {.most_peers = 8}, 16, 16},
      {4, 8, 8, 9, {.channels_per_net_peer = 9}, 16, 16},
      {4, 8, 1, 9, {.channels_per_net_peer = 9}, 2, 2},
      {2, 8, 8, 2, {.max_peer_channels = 3}, 4, 2},
      {2, 8, 2, 2, {.min_peer_channels = 9}, 16, 2},
      {2, 8, 8, 2, {.parent_peer_channels = 4}, 4, 2},
      {64, 8, 8, 2, {0}, 16, 1},
  };
  for (size_t i = 0; i < TT_COUNT(cases); i++) {
    struct tt_join_rules rules = tt_join_rules_default();
    struct fleet fleet = equal(cases[i].nnodes, cases[i].nlocal, cases[i].nchannels, 2, 20, 80);
    rules.most_peers = cases[i].rules.most_peers;
    rules.channels_per_net_peer = cases[i].rules.channels_per_net_peer;
    rules.parent_peer_channels = cases[i].rules.parent_peer_channels;
    if (cases[i].rules.max_peer_channels > 0) rules.max_peer_channels = cases[i].rules.max_peer_channels;
    if (cases[i].rules.min_peer_channels > 0) rules.min_peer_channels = cases[i].rules.min_peer_channels;
    for (int r = 0; r < fleet.nranks; r++) fleet.cards[r].peer_channels = cases[i].wanted + (r != 3);
    struct tt_joined *joined = join(fleet, &rules);
    ck_assert_msg(joined->peer_channels == cases[i].channels && joined->channels_per_peer == cases[i].per_peer,
                  "case %zu: %d, %d", i, joined->peer_channels, joined->channels_per_peer);
    tt_joined_free(joined);
  }
}
END_TEST

/* Distances of 16 groups, and of 5; who sends where within them; the channels of the first rounds. */
START_TEST(peer_order)
{
  static const int sixteen[] = {0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8}, five[] = {0, 1, 3, 2, 4};
  struct tt_joined *joined = join(equal(16, 1, 8, 2, 20, 80), NULL);
  ck_assert_int_eq(joined->group, 1);
  int32_t to, from;
  for (int round = 0; round < 16; round++) {
    tt_join_peers(joined, 3, round, &to, &from);
    ck_assert_int_eq(to, (3 + sixteen[round]) % 16);
    ck_assert_int_eq(from, (3 + 16 - sixteen[round]) % 16);
  }
  static const int bases[] = {0, 8, 4, 12, 2, 10};
  for (int round = 0; round < 6; round++) {
    ck_assert_int_eq(tt_join_peer_channel(joined, round, 0), bases[round]);
    ck_assert_int_eq(tt_join_peer_channel(joined, round, 1), bases[round] + 1);
  }
  tt_joined_free(joined);

  joined = join(equal(5, 4, 8, 2, 20, 80), NULL); /* groups of 4, since 8 are not on a machine */
  ck_assert_int_eq(joined->group, 4);
  for (int round = 0; round < 20; round++) {
    tt_join_peers(joined, 6, round, &to, &from);
    ck_assert_int_eq(to, (1 + five[round / 4]) % 5 * 4 + (2 + round % 4) % 4);
    ck_assert_int_eq(from, (6 - five[round / 4]) % 5 * 4 + (6 - round % 4) % 4);
    ck_assert_int_eq(tt_join_peer_channel(joined, round, 0), bases[round / 4]); /* a group shares one */
  }
  tt_joined_free(joined);
}
END_TEST

START_TEST(groups)
{
  static const struct {
    int nlocal[3], wanted, expected;
  } cases[] = {{{8, 8, 8}, 8, 8}, {{16, 8, 8}, 8, 8}, {{12, 8, 8}, 8, 4}, {{6, 9, 3}, 8, 1}, {{6, 6, 6}, 3, 3}};
  uint64_t state = 5;
  for (size_t i = 0; i < TT_COUNT(cases); i++) {
    struct tt_join_rules rules = tt_join_rules_default();
    struct fleet fleet = {0};
    rules.group = cases[i].wanted;
    for (int n = 0; n < 3; n++) {
      struct graphs graphs = graphs_random(&state, cases[i].nlocal[n], 2, 1);
      fleet_add(&fleet, CONST(graphs), NULL, cases[i].nlocal[n]);
      graphs_free(&graphs);
    }
    struct tt_joined *joined = join(fleet, &rules);
    ck_assert_int_eq(joined->group, cases[i].expected);
    tt_joined_free(joined);
  }
}
END_TEST

/* Each variable that is described changes the rules, and is named when its value is wrong. */
START_TEST(rules_from_parameters)
{
  static const char *const values[][2] = {{"NCCL_MIN_NCHANNELS", "5"},
                                          {"NCCL_MAX_NCHANNELS", "5"},
                                          {"NCCL_MIN_CTAS", "5"},
                                          {"NCCL_MAX_CTAS", "5"},
                                          {"NCCL_MIN_P2P_NCHANNELS", "5"},
                                          {"NCCL_MAX_P2P_NCHANNELS", "5"},
                                          {"NCCL_NCHANNELS_PER_NET_PEER", "5"},
                                          {"NCCL_P2P_MAX_PEERS", "5"},
                                          {"NCCL_P2P_PER_CHANNEL_NET_BW", "5"},
                                          {"NCCL_P2P_SCHEDULE_GROUP_SIZE", "5"},
                                          {"NCCL_COLLNET_NODE_THRESHOLD", "5"},
                                          {"NCCL_NVLS_NCHANNELS", "5"},
                                          {"NCCL_COLLNET_ENABLE", "1"},
                                          {"NCCL_NVLS_ENABLE", "0"}};
  const struct tt_join_rules usual = tt_join_rules_default();
  struct tt_join_rules rules = usual;
  const char *name, *meaning;
  tt_param_reset();
  ck_assert_int_eq(tt_join_rules_from_parameters(&rules), ncclSuccess);
  ck_assert_mem_eq(&rules, &usual, sizeof(rules));
  for (size_t i = 0; i < TT_COUNT(values); i++) {
    ck_assert(tt_join_rules_describe((int)i, &name, &meaning));
    ck_assert_str_eq(name, values[i][0]);
    setenv(name, values[i][1], 1);
    tt_param_reset();
    ck_assert_int_eq(tt_join_rules_from_parameters(&rules), ncclSuccess);
    ck_assert_msg(memcmp(&rules, &usual, sizeof(rules)) != 0, "%s changes nothing", name);
    setenv(name, "-7", 1);
    tt_param_reset();
    ck_assert_int_eq(tt_join_rules_from_parameters(&rules), ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), name));
    unsetenv(name);
    tt_param_reset();
    rules = usual;
  }
  ck_assert(!tt_join_rules_describe((int)TT_COUNT(values), &name, &meaning));
}
END_TEST

Suite *suite_join_counts(void)
{
  Suite *suite = suite_create("join counts");
  TCase *tcase = tcase_create("counts");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, channels);
  tcase_add_test(tcase, repeated_channels);
  tcase_add_test(tcase, weakest);
  tcase_add_test(tcase, swapped_channels);
  tcase_add_test(tcase, nvls);
  tcase_add_test(tcase, heads);
  tcase_add_test(tcase, collnet);
  tcase_add_test(tcase, peer_channels);
  tcase_add_test(tcase, peer_order);
  tcase_add_test(tcase, groups);
  tcase_add_test(tcase, rules_from_parameters);
  suite_add_tcase(suite, tcase);
  return suite;
}
