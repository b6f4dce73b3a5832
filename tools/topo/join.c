/* See join.h: joins, proves, and says what it took. */
#include "join.h"

#include <stdio.h>
#include <time.h>
#include "base/check.h"
#include "join_check.h"

enum {
  FEW_RANKS = 64,    /* of so many all channels are shown */
  ALL_ROUNDS = 2048, /* of so many all ranks are followed through all rounds */
  SOME_ROUNDS = 64   /* else so many ranks */
};

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool prove(const struct tt_joined *joined)
{
  const double begin = now();
  struct join_check check = {.joined = joined, .sample = joined->nranks > ALL_ROUNDS ? SOME_ROUNDS : 0};
  if (!join_check_all(&check)) {
    printf("WRONG: %s\n", check.why);
    return false;
  }
  printf("proved in %.3g s: %d rings visit each rank and enter each machine once; %d trees reach each rank once",
         now() - begin, check.rings, check.trees);
  if (joined->nchannels > joined->nsearched) fputs(", and the second ones mirror the first", stdout);
  if (check.nvls_trees > 0) printf("; so do %d trees of heads", check.nvls_trees);
  printf("; %d ranks meet each rank once\n", check.schedules);
  return true;
}

static ncclResult_t check_range(int value, int count, const char *option)
{
  if (value < count) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "%s %d: there are %d, from 0", option, value, count);
}

ncclResult_t topo_join_rules(struct topo_join *what)
{
  what->topology = tt_topology_rules_default();
  what->search = tt_graph_rules_default();
  what->rules = tt_join_rules_default();
  TT_TRY(tt_topology_rules_from_parameters(&what->topology));
  TT_TRY(tt_graph_rules_from_parameters(&what->search));
  TT_TRY(tt_join_rules_from_parameters(&what->rules));
  what->search.collnet = what->rules.collnet;
  what->search.nvls = what->rules.nvls;
  return ncclSuccess;
}

ncclResult_t topo_join(const struct tt_xml *xml, const struct topo_join *what, bool *valid)
{
  struct join_fleet fleet = {0};
  struct tt_joined *joined = NULL;
  ncclResult_t result;
  *valid = true;
  double begin = now();
  TT_TRY_GOTO(join_fleet_build(xml, what, &fleet), result, out);
  TT_TRY_GOTO(check_range(what->rank, fleet.nlocal * what->nodes, "--rank"), result, out);
  const double searched = now() - begin;
  begin = now();
  TT_TRY_GOTO(tt_graph_join(fleet.cards, fleet.nlocal * what->nodes, &fleet.shapes, &what->rules, &joined), result,
              out);
  const double took = now() - begin;
  TT_TRY_GOTO(check_range(what->channel, joined->nchannels, "--channel"), result, out);
  join_print_counts(joined, &fleet);
  printf("searched in %.3g s, joined in %.3g s; %.3g MB\n", searched, took, (double)tt_joined_bytes(joined) / 1e6);
  *valid = prove(joined);
  if (what->rank >= 0)
    join_print_rank(joined, what->rank, what->channel);
  else if (what->channel >= 0 || joined->nranks <= FEW_RANKS)
    join_print_channels(joined, what->channel);
out:
  tt_joined_free(joined);
  join_fleet_free(&fleet);
  return result;
}
