/* By which NETs channels enter and leave the machine: first those that each GPU prefers, so that all are in use, then
 * others, from near to far. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/search_internal.h"

static ncclResult_t find_near_gpus(struct tt_search *s)
{
  ncclResult_t result;
  int *found = NULL;
  TT_TRY_GOTO(TT_CALLOC(&found, (size_t)s->ngpus + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&s->near_gpus, (size_t)s->nnets * (size_t)s->ngpus + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&s->near_count, (size_t)s->nnets + 1), result, out);
  for (int n = 0; n < s->nnets; n++) {
    s->near_count[n] = tt_topology_nearest(s->topology, TT_NODE_NET, n, TT_NODE_GPU, found);
    for (int i = 0; i < s->near_count[n]; i++) s->near_gpus[n * s->ngpus + i] = (int16_t)found[i];
  }
out:
  free(found);
  return result;
}

/* The NETs of a GPU channel by channel, until they repeat. */
static void find_preferred(struct tt_search *s, int gpu)
{
  int16_t *nets = s->preferred + (ptrdiff_t)gpu * s->nnets;
  int count = 0;
  for (int c = 0; c < TT_MIN(TT_GRAPH_MOST_CHANNELS, s->nnets); c++) {
    int net = tt_topology_net_of_gpu(s->topology, gpu, c);
    if (net < 0 || (count > 0 && net == nets[0])) break;
    nets[count++] = (int16_t)net;
  }
  s->npreferred[gpu] = count;
}

ncclResult_t tt_search_nets_begin(struct tt_search *s)
{
  TT_TRY(find_near_gpus(s));
  TT_TRY(TT_CALLOC(&s->preferred, (size_t)s->nnets * (size_t)s->ngpus + 1));
  TT_TRY(TT_CALLOC(&s->npreferred, (size_t)s->ngpus));
  for (int g = 0; g < s->ngpus; g++) find_preferred(s, g);
  return ncclSuccess;
}

static void free_lists(struct tt_net_lists *lists)
{
  if (!lists) return;
  free(lists->all);
  free(lists->count);
  free(lists->of);
  free(lists);
}

void tt_search_nets_end(struct tt_search *s)
{
  for (int type = 0; type < TT_PATH_TYPES; type++) free_lists(s->lists[type]);
  free(s->near_gpus);
  free(s->near_count);
  free(s->preferred);
  free(s->npreferred);
}

/* A list that is being made. */
struct list {
  int16_t *nets;
  int count, most;
  uint8_t *has;
};

static void add(struct list *list, int net)
{
  if (list->has[net] || list->count >= list->most) return;
  list->has[net] = 1;
  list->nets[list->count++] = (int16_t)net;
}

/* All that a GPU prefers, GPU by GPU; or with `in_turn` the first of each, then the second of each. */
static void add_preferred(const struct tt_search *s, struct list *list, bool in_turn)
{
  for (int i = 0; i < s->ngpus * s->nnets; i++) {
    int gpu = in_turn ? i % s->ngpus : i / s->nnets, turn = in_turn ? i / s->ngpus : i % s->nnets;
    if (turn < s->npreferred[gpu]) add(list, s->preferred[gpu * s->nnets + turn]);
  }
}

static void add_of_type(const struct tt_search *s, struct list *list, int gpu, int type)
{
  const int nnets = TT_MIN(s->nnets, TT_GRAPH_MOST_CHANNELS);
  for (int n = 0; n < nnets; n++)
    if (tt_topology_path(s->topology, tt_search_gpu(s, gpu), tt_search_net(s, n))->type == type) add(list, n);
}

/* A limit of NETs a GPU holds for what is added to those that it prefers. */
static int most(const struct tt_search *s, int ngpus)
{
  const int limit = s->topology->rules.nets_per_gpu;
  return limit > 0 && limit < s->nnets ? limit * ngpus : s->nnets;
}

static void fill(const struct tt_search *s, struct tt_net_lists *lists, int type, uint8_t *has)
{
  struct list all = {lists->all, 0, s->nnets, has};
  add_preferred(s, &all, s->topology->nhosts > 1 && s->request->rules.scatter_nets);
  all.most = most(s, s->ngpus);
  for (int far = 0; far <= type; far++)
    for (int g = 0; g < s->ngpus && s->types_inter & 1u << far; g++) add_of_type(s, &all, g, far);
  lists->nall = all.count;
  for (int g = 0; g < s->ngpus; g++) {
    struct list one = {lists->of + (ptrdiff_t)g * s->nnets, 0, s->nnets, has};
    memset(has, 0, (size_t)s->nnets);
    for (int i = 0; i < s->npreferred[g]; i++) add(&one, s->preferred[g * s->nnets + i]);
    one.most = most(s, 1);
    for (int far = 0; far <= type; far++)
      if (s->types_inter & 1u << far) add_of_type(s, &one, g, far);
    lists->count[g] = one.count;
  }
}

ncclResult_t tt_search_list_nets(struct tt_search *s, int type, const struct tt_net_lists **out)
{
  ncclResult_t result = ncclSuccess;
  struct tt_net_lists *lists = s->lists[type];
  uint8_t *has = NULL;
  *out = lists;
  if (lists) return ncclSuccess;
  TT_TRY_GOTO(TT_CALLOC(&has, (size_t)s->nnets + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&s->lists[type], 1), result, out);
  lists = s->lists[type];
  TT_TRY_GOTO(TT_CALLOC(&lists->all, (size_t)s->nnets + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&lists->count, (size_t)s->ngpus), result, out);
  TT_TRY_GOTO(TT_CALLOC(&lists->of, (size_t)s->nnets * (size_t)s->ngpus + 1), result, out);
  fill(s, lists, type, has);
  *out = lists;
out:
  free(has);
  return result;
}

bool tt_search_may_start(const struct tt_search *s, int net)
{
  const struct tt_attempt *a = &s->now.attempt;
  const bool collnet = s->request->kind == TT_GRAPH_COLLNET_CHAIN || s->request->kind == TT_GRAPH_COLLNET_DIRECT;
  if (collnet && !tt_search_net_node(s, net)->net.collnet) return false;
  if (a->pattern == TT_PATTERN_RING && a->cross_nic == 2 && s->now.count % 2 == 1)
    return net == tt_search_channel_nets(s)[-1]; /* where the channel before ended */
  return true;
}

/* The card of a NET. */
static uint64_t slot(const struct tt_search *s, const struct tt_node *net)
{
  const struct tt_topology *t = s->topology;
  for (int l = net->first_link; l < net->first_link + net->nlinks; l++)
    if (t->nodes[t->links[l].to].type == TT_NODE_NIC) return t->nodes[t->links[l].to].id;
  return UINT64_MAX;
}

/* Whether switches outside connect two NETs without going through the spine. */
static bool same_rail(const struct tt_search *s, const struct tt_node *a, const struct tt_node *b)
{
  if (a->net.rail >= 0 && b->net.rail >= 0) return a->net.rail == b->net.rail;
  if (a->net.port != b->net.port) return false;
  if (s->request->rules.rail_per_host && a->host != b->host) return slot(s, a) == slot(s, b);
  return a->net.asic == b->net.asic;
}

bool tt_search_may_return(const struct tt_search *s, int net, int position)
{
  const struct tt_attempt *a = &s->now.attempt;
  const int16_t *nets = tt_search_channel_nets(s);
  const struct tt_node *to = tt_search_net_node(s, net), *from = tt_search_net_node(s, nets[0]);
  if (to->net.plane >= 0 && from->net.plane >= 0 && to->net.plane != from->net.plane) return false;
  if (a->pattern == TT_PATTERN_TREE && net != nets[0]) return false;
  if (a->pattern == TT_PATTERN_BALANCED_TREE && position > 0 && net != nets[1]) return false;
  if (a->pattern == TT_PATTERN_RING && a->cross_nic == 2)
    return s->now.count % 2 == 0 || net == nets[-2]; /* where the channel before began */
  return a->cross_nic != 0 || same_rail(s, to, from);
}
