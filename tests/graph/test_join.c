/* Random fleets of machines are joined and proved; damaged joins must be refused by the proof, fleets that do not fit
 * together by the join. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "join_check.h"
#include "join_machine.h"
#include "join_suites.h"

#define CONST(graphs) ((const struct tt_graph *const *)(graphs).kinds)

/* `nnodes` machines of up to `kinds` kinds with up to `most` GPUs. Ranks come machine by machine, or mixed. */
static void random_fleet(uint64_t *state, int nnodes, int kinds, int most, bool mixed, struct fleet *fleet)
{
  struct graphs graphs[4];
  int nlocal[4], kind_of[256], total = 0;
  const int nchannels = 1 + random_below(state, 6), nheads = 1 + random_below(state, 4);
  for (int k = 0; k < kinds; k++) {
    nlocal[k] = 1 + random_below(state, most);
    graphs[k] = graphs_random(state, nlocal[k], nchannels + random_below(state, 3), nheads);
  }
  for (int n = 0; n < nnodes; n++) total += nlocal[kind_of[n] = random_below(state, kinds)];
  int32_t *owner = malloc((size_t)total * sizeof(*owner)), *ranks = malloc((size_t)total * sizeof(*ranks));
  for (int n = 0, at = 0; n < nnodes; n++)
    for (int i = 0; i < nlocal[kind_of[n]]; i++) owner[at++] = n;
  for (int i = total - 1; i > 0 && mixed; i--) {
    const int other = random_below(state, i + 1), kept = owner[i];
    owner[i] = owner[other];
    owner[other] = kept;
  }
  for (int n = 0; n < nnodes; n++) {
    int count = 0;
    for (int r = 0; r < total; r++)
      if (owner[r] == n) ranks[count++] = r;
    fleet_add(fleet, CONST(graphs[kind_of[n]]), ranks, count);
  }
  for (int k = 0; k < kinds; k++) graphs_free(&graphs[k]);
  free(owner);
  free(ranks);
}

static struct tt_joined *random_join(uint64_t *state, int nnodes, int kinds, int most)
{
  struct fleet fleet = {0};
  struct tt_join_rules rules = tt_join_rules_default();
  rules.collnet = random_below(state, 2);
  random_fleet(state, nnodes, kinds, most, random_below(state, 2), &fleet);
  struct tt_joined *joined = fleet_join(&fleet, &rules);
  ck_assert_msg(joined != NULL, "%s", tt_log_thread_error());
  return joined;
}

static void prove(const struct tt_joined *joined, int sample)
{
  struct join_check check = {.joined = joined, .sample = sample};
  ck_assert_msg(join_check_all(&check), "%d ranks on %d machines: %s", joined->nranks, joined->nnodes, check.why);
  ck_assert_int_eq(check.rings, joined->nchannels);
  ck_assert_int_eq(check.trees, TT_MIN(joined->nchannels, 2 * joined->nsearched));
  ck_assert_int_eq(check.nvls_trees, 2 * joined->nvls_heads);
}

/* The chain of CollNet on each machine: one rank at the network, all others below each other. */
static void prove_chains(const struct tt_joined *joined)
{
  int *at_network = calloc((size_t)joined->nnodes, sizeof(int)), below = 0;
  for (int r = 0; r < joined->nranks; r++) {
    struct tt_join_tree tree = tt_join_chain_place(joined, 0, r);
    if (tree.up == joined->nranks) at_network[joined->node[r]]++;
    if (tree.down[0] < 0) continue;
    ck_assert_int_eq(tt_join_chain_place(joined, 0, tree.down[0]).up, r);
    ck_assert_int_eq(joined->node[tree.down[0]], joined->node[r]);
    below++;
  }
  for (int n = 0; n < joined->nnodes; n++) ck_assert_int_eq(at_network[n], 1);
  ck_assert_int_eq(below, joined->nranks - joined->nnodes);
  free(at_network);
}

START_TEST(random_fleets)
{
  uint64_t state = 100 + (uint64_t)_i;
  for (int i = 0; i < 12; i++) {
    struct tt_joined *joined = random_join(&state, 1 + random_below(&state, 200), 1 + random_below(&state, 4), 9);
    ck_assert_int_eq(joined->odd_rank, -1);
    prove(joined, 16);
    if (joined->collnet) prove_chains(joined);
    tt_joined_free(joined);
  }
}
END_TEST

START_TEST(every_number_of_machines)
{
  uint64_t state = 7;
  for (int nnodes = 1; nnodes <= 40; nnodes++)
    for (int most = 1; most <= 3; most += 2) {
      struct tt_joined *joined = random_join(&state, nnodes, 1, most);
      prove(joined, 0);
      tt_joined_free(joined);
    }
}
END_TEST

/* Machines follow each other in a ring in the order of their first ranks, whatever their orders inside. */
START_TEST(machines_in_order)
{
  uint64_t state = 9;
  struct tt_joined *joined = random_join(&state, 23, 3, 5);
  for (int c = 0; c < joined->nchannels; c++)
    for (int i = 0; i < joined->nranks; i++) {
      const int a = joined->node[joined->ring[c][i]], b = joined->node[joined->ring[c][(i + 1) % joined->nranks]];
      ck_assert(a == b || b == (a + 1) % joined->nnodes);
    }
  tt_joined_free(joined);
}
END_TEST

START_TEST(damaged_rings)
{
  uint64_t state = 11 + (uint64_t)_i;
  struct tt_joined *joined = random_join(&state, 3 + random_below(&state, 20), 2, 4);
  struct join_check check = {.joined = joined};
  ck_assert(join_check_rings(&check));
  int32_t *ring = joined->rings[random_below(&state, joined->nrings)];
  for (int i = 0; i < 200 && joined->nranks > 4; i++) {
    const int a = random_below(&state, joined->nranks), b = random_below(&state, joined->nranks), kept = ring[a];
    if (i % 2) { /* a rank twice, another not at all */
      if (a == b) continue;
      ring[a] = ring[b];
      ck_assert(!join_check_rings(&check));
    } else { /* two change places: of different machines, so a machine is entered twice, unless they are all alone */
      if (joined->node[ring[a]] == joined->node[ring[b]] || joined->min_local == 1) continue;
      ring[a] = ring[b];
      ring[b] = kept;
      ck_assert_msg(!join_check_rings(&check), "%d and %d changed places", a, b);
      ring[b] = ring[a];
    }
    ring[a] = kept;
    ck_assert(join_check_rings(&check));
  }
  tt_joined_free(joined);
}
END_TEST

struct damage {
  const struct tt_joined *joined;
  int channel, rank;
  struct tt_join_tree place;
};

static struct tt_join_tree damaged_place(const void *context, int channel, int rank)
{
  const struct damage *damage = context;
  if (channel == damage->channel && rank == damage->rank) return damage->place;
  return tt_join_tree_place(damage->joined, channel, rank);
}

START_TEST(damaged_trees)
{
  uint64_t state = 31 + (uint64_t)_i;
  struct tt_joined *joined = random_join(&state, 2 + random_below(&state, 20), 2, 4);
  struct damage damage = {.joined = joined};
  struct join_check check = {.joined = joined, .place = damaged_place, .context = &damage};
  for (int i = 0; i < 150; i++) {
    damage.channel = random_below(&state, TT_MIN(joined->nchannels, 2 * joined->nsearched));
    damage.rank = random_below(&state, joined->nranks);
    const struct tt_join_tree good = tt_join_tree_place(joined, damage.channel, damage.rank);
    damage.place = good;
    int32_t *const numbers[] = {&damage.place.up, &damage.place.down[0], &damage.place.down[1], &damage.place.down[2]};
    *numbers[random_below(&state, 4)] = random_below(&state, joined->nranks + 1) - 1;
    if (memcmp(&damage.place, &good, sizeof(good)) == 0) continue;
    ck_assert_msg(!join_check_trees(&check), "rank %d channel %d", damage.rank, damage.channel);
  }
  tt_joined_free(joined);
}
END_TEST

/* Ranks whose round is another one's. */
START_TEST(damaged_peers)
{
  uint64_t state = 51;
  struct tt_joined *joined = random_join(&state, 9, 1, 4);
  struct join_check check = {.joined = joined};
  ck_assert(join_check_peers(&check));
  const int32_t kept = joined->delta[2];
  joined->delta[2] = joined->delta[3];
  ck_assert(!join_check_peers(&check));
  joined->delta[2] = kept;
  joined->turn[1]++;
  ck_assert(!join_check_peers(&check));
  tt_joined_free(joined);
}
END_TEST

static void refused(struct fleet *fleet, ncclResult_t result, const char *words)
{
  const struct tt_join_rules rules = tt_join_rules_default();
  struct tt_joined *joined;
  ck_assert_int_eq(tt_graph_join(fleet->cards, fleet->nranks, &fleet->shapes, &rules, &joined), result);
  ck_assert_ptr_null(joined);
  ck_assert_ptr_null(fleet->shapes.shapes);
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "%s", tt_log_thread_error());
  fleet_free(fleet);
}

START_TEST(fleets_that_do_not_fit)
{
  uint64_t state = 61;
  struct graphs four = graphs_random(&state, 4, 2, 2), none = graphs_random(&state, 4, 2, 2);
  none.kinds[TT_GRAPH_TREE]->nchannels = 0;
  struct fleet fleet = {0};
  for (int n = 0; n < 3; n++) fleet_add(&fleet, CONST(four), NULL, 4);
  fleet.cards[6].leader = 5; /* which says 4 */
  refused(&fleet, ncclInvalidUsage, "rank 6 says that the first rank of its machine is 5, but that rank says 4");
  for (int n = 0; n < 3; n++) fleet_add(&fleet, CONST(four), NULL, 4);
  fleet.cards[6].leader = 9;
  refused(&fleet, ncclInvalidUsage, "rank 6 says that the first rank of its machine is 9");
  for (int n = 0; n < 3; n++) fleet_add(&fleet, CONST(four), NULL, 4);
  fleet.cards[7].leader = 0;
  refused(&fleet, ncclInvalidUsage, "rank 0 found 4 ranks on its machine, but 5 say that they are there");
  for (int n = 0; n < 3; n++) fleet_add(&fleet, CONST(four), NULL, 4);
  fleet.cards[8].digest++;
  refused(&fleet, ncclInternalError, "nobody told what rank 8 found");
  fleet_add(&fleet, CONST(four), NULL, 4);
  fleet_add(&fleet, CONST(none), NULL, 4);
  refused(&fleet, ncclInvalidUsage, "rank 4 found no tree on its machine");
  graphs_free(&four);
  graphs_free(&none);
}
END_TEST

/* A rank that found something else than the first of its machine is named; what that one found holds. */
START_TEST(a_rank_that_differs)
{
  uint64_t state = 71;
  struct graphs four = graphs_random(&state, 4, 2, 2);
  struct fleet fleet = {0};
  for (int n = 0; n < 3; n++) fleet_add(&fleet, CONST(four), NULL, 4);
  fleet.cards[6].digest++;
  fleet.cards[10].digest++;
  struct tt_joined *joined = fleet_join(&fleet, NULL);
  ck_assert_ptr_nonnull(joined);
  ck_assert_int_eq(joined->odd_rank, 6);
  prove(joined, 0);
  tt_joined_free(joined);
  graphs_free(&four);
}
END_TEST

START_TEST(graphs_that_are_none)
{
  uint64_t state = 81;
  struct graphs four = graphs_random(&state, 4, 2, 2);
  const int32_t ranks[] = {0, 1, 2, 3}, others[] = {0, 1, 2, 4};
  struct tt_join_shape *shape;
  ck_assert_int_eq(tt_join_shape_new(CONST(four), ranks, 3, &shape), ncclInvalidUsage);
  ck_assert_int_eq(tt_join_shape_new(CONST(four), others, 4, &shape), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "the ring graph has a channel that is no order"));
  four.kinds[TT_GRAPH_TREE]->ranks[5] = four.kinds[TT_GRAPH_TREE]->ranks[6];
  ck_assert_int_eq(tt_join_shape_new(CONST(four), ranks, 4, &shape), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "the tree graph has a channel that is no order"));
  ck_assert_ptr_null(shape);
  ck_assert_int_eq(tt_join_shape_new(CONST(four), ranks, 0, &shape), ncclInvalidUsage);
  graphs_free(&four);
}
END_TEST

Suite *suite_join(void)
{
  Suite *suite = suite_create("join");
  TCase *tcase = tcase_create("fleets");
  tcase_set_timeout(tcase, 120);
  tcase_add_loop_test(tcase, random_fleets, 0, 4);
  tcase_add_test(tcase, every_number_of_machines);
  tcase_add_test(tcase, machines_in_order);
  tcase_add_loop_test(tcase, damaged_rings, 0, 4);
  tcase_add_loop_test(tcase, damaged_trees, 0, 4);
  tcase_add_test(tcase, damaged_peers);
  tcase_add_test(tcase, fleets_that_do_not_fit);
  tcase_add_test(tcase, a_rank_that_differs);
  tcase_add_test(tcase, graphs_that_are_none);
  suite_add_tcase(suite, tcase);
  return suite;
}
