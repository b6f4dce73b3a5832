/* A search: attempts with ever looser limits, until the best is found that they allow. See docs/topology.md. */
#include "graph/search.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/search_progress.h"

/* Visits of an attempt, and of all until the search is content with what it has. */
#define VISITS (1 << 14)
#define VISITS_SAME_CHANNELS (1 << 8)
/* Three eighths of NCCL's: on all machines that were compared the channels are the same (docs/topology.md), in less time. */
#define VISITS_IN_ALL (3 << 16)

static int count_bits_below(uint32_t bits, int type)
{
  return __builtin_popcount(bits & ((2u << type) - 1));
}

/* An attempt like one before cannot find anything better: that is worth no time, but its visits count. */
static int *find_made(struct tt_progress *p, bool *is_new)
{
  const struct tt_attempt *a = &p->s->now.attempt;
  const int intra = count_bits_below(p->s->types_intra, a->type_intra);
  const int inter = count_bits_below(p->s->types_inter, a->type_inter);
  struct tt_made *made = &p->made;
  *is_new = false;
  for (int i = 0; i < made->count; i++)
    if (made->attempts[i].pattern == (int)a->pattern && made->attempts[i].cross_nic == a->cross_nic &&
        made->attempts[i].same_channels == a->same_channels && made->attempts[i].intra == intra &&
        made->attempts[i].inter == inter)
      return &made->attempts[i].visits;
  *is_new = true;
  if (made->count == TT_MOST_ATTEMPTS) return NULL;
  made->attempts[made->count].pattern = (int)a->pattern;
  made->attempts[made->count].cross_nic = a->cross_nic;
  made->attempts[made->count].same_channels = a->same_channels;
  made->attempts[made->count].intra = intra;
  made->attempts[made->count].inter = inter;
  return &made->attempts[made->count++].visits;
}

/* Whether an attempt may find something better than there is: more bandwidth, or as much over shorter paths. NVLS is
 * compared in another way, and has few channels anyway. */
static ncclResult_t may_be_better(const struct tt_search *s, bool *may)
{
  const struct tt_attempt *a = &s->now.attempt, *b = &s->best.attempt;
  int most;
  TT_TRY(tt_search_bound(s, &most));
  *may = most >= TT_MAX(a->min_channels, 1);
  if (!*may || a->pattern == TT_PATTERN_NVLS) return ncclSuccess;
  const float bandwidth = (float)most * a->intra, best = (float)s->best.count * b->intra;
  if (bandwidth < best) *may = false;
  if (bandwidth == best && s->best.count > 0)
    *may = a->pattern == b->pattern && a->cross_nic == b->cross_nic && most * tt_search_fewest_hops(s) < s->best.hops;
  return ncclSuccess;
}

/* One attempt. */
static ncclResult_t attempt(struct tt_progress *p)
{
  struct tt_search *s = p->s;
  const int most = s->now.attempt.same_channels ? VISITS_SAME_CHANNELS : VISITS;
  bool is_new;
  int *visits = find_made(p, &is_new);
  p->visits -= most;
  p->left = most - (is_new ? 0 : *visits);
  if (!is_new) return ncclSuccess;
  bool may;
  TT_TRY(may_be_better(s, &may));
  if (!may) {
    p->left = most;
    if (visits) *visits = 0;
    p->record.spared++;
    return ncclSuccess;
  }
  TT_TRY(tt_search_channels(s, most));
  p->left = s->visits;
  if (visits) *visits = most - TT_MAX(s->visits, 0);
  p->record.attempts++;
  p->record.cut_short += s->visits == 0;
  p->record.visits = s->made;
  return ncclSuccess;
}

static bool is_content(const struct tt_progress *p)
{
  const struct tt_channels *best = &p->s->best;
  return p->left == TT_PERFECT || (float)best->count * best->attempt.inter >= p->s->topology->total_bandwidth;
}

static ncclResult_t first_pass(struct tt_progress *p)
{
  for (;;) {
    TT_TRY(attempt(p));
    if (is_content(p)) return ncclSuccess;
    if (tt_search_loosen_same_channels(p)) continue;
    p->visits += p->left;
    if (p->visits < 0 && p->s->best.count > 0) {
      p->record.out_of_visits = true;
      return ncclSuccess;
    }
    if (!tt_search_loosen(p)) return ncclSuccess;
  }
}

/* Fast channels are used twice, each with half the bandwidth, since one channel alone hardly reaches it. */
static void double_channels(struct tt_search *s)
{
  struct tt_channels *best = &s->best;
  struct tt_attempt *a = &best->attempt;
  if (best->count == 0 || a->pattern == TT_PATTERN_NVLS || a->intra < 25.0f) return;
  if (s->sm > 80 && a->intra < 50.0f && best->count > 4) return;
  const int count = TT_MIN(2 * best->count, a->max_channels);
  memcpy(best->gpus + (ptrdiff_t)best->count * s->ngpus, best->gpus,
         (size_t)(count - best->count) * (size_t)s->ngpus * sizeof(*best->gpus));
  memcpy(best->nets + (ptrdiff_t)best->count * 2, best->nets, (size_t)(count - best->count) * 2 * sizeof(*best->nets));
  const int times = (count + best->count - 1) / best->count;
  a->intra /= (float)times;
  a->inter /= (float)times;
  best->count = count;
}

static ncclResult_t second_pass(struct tt_progress *p)
{
  double_channels(p->s);
  tt_search_second_limits(p);
  while (p->left != 0 && tt_search_raise_speed(p)) {
    p->made.count = 0;
    TT_TRY(attempt(p));
  }
  return ncclSuccess;
}

/* The order of the GPUs, and the NETs of the first and the last. The bandwidth is not known. */
static void fall_back(struct tt_progress *p)
{
  struct tt_search *s = p->s;
  struct tt_channels *best = &s->best;
  const int last = s->ngpus - 1;
  p->record.fallback = true;
  best->count = 1;
  for (int g = 0; g < s->ngpus; g++) best->gpus[g] = (int16_t)g;
  best->attempt.intra = 0.1f;
  best->attempt.type_intra = TT_PATH_SYS;
  const bool reachable = s->npreferred[0] > 0 && s->npreferred[last] > 0;
  best->nets[0] = (int16_t)(reachable ? s->preferred[0] : -1);
  best->nets[1] = (int16_t)(reachable ? s->preferred[last * s->nnets] : -1);
  best->attempt.inter = reachable ? 0.1f : 0;
  best->attempt.type_inter = reachable ? TT_PATH_SYS : TT_PATH_DIS;
}

/* What was found, by ranks and NETs' names. */
static ncclResult_t make_graph(const struct tt_search *s, struct tt_graph **out)
{
  const struct tt_channels *best = &s->best;
  const struct tt_attempt *a = &best->attempt;
  const bool heads = a->pattern == TT_PATTERN_NVLS || a->pattern == TT_PATTERN_COLLNET_DIRECT;
  struct tt_graph *graph;
  TT_TRY(tt_graph_new(s->request->kind, TT_MAX(best->count, 1), s->ngpus, out));
  graph = *out;
  graph->pattern = a->pattern;
  graph->cross_nic = a->cross_nic;
  graph->nchannels = best->count;
  graph->same_channels = a->same_channels;
  graph->bandwidth_intra = a->intra;
  graph->bandwidth_inter = a->inter;
  graph->type_intra = (enum tt_path_type)a->type_intra;
  graph->type_inter = (enum tt_path_type)a->type_inter;
  for (int i = 0; i < best->count * s->ngpus; i++)
    if (!heads || i % s->ngpus == 0) graph->ranks[i] = s->topology->nodes[tt_search_gpu(s, best->gpus[i])].gpu.rank;
  for (int i = 0; i < best->count * 2 && (s->topology->inter || graph->type_inter == TT_PATH_SYS); i++) {
    if (best->nets[i] < 0) continue;
    const struct tt_node *net = tt_search_net_node(s, best->nets[i]);
    graph->nets[i] = (int64_t)net->host << 56 | (int64_t)net->net.dev;
    graph->latency_inter = TT_MAX(graph->latency_inter, net->net.latency);
  }
  return ncclSuccess;
}

static ncclResult_t begin(struct tt_search *s, const struct tt_topology *t, const struct tt_graph_request *request)
{
  const size_t ngpus = (size_t)t->count[TT_NODE_GPU], nnets = (size_t)t->count[TT_NODE_NET];
  s->topology = t;
  s->request = request;
  s->ngpus = (int)ngpus;
  s->nnets = (int)nnets;
  s->sm = INT32_MAX;
  for (int d = 0; d < t->count[TT_NODE_DEV]; d++)
    s->sm = TT_MIN(s->sm, t->nodes[tt_topology_node(t, TT_NODE_DEV, d)].gpu.sm);
  const struct tt_node *cpu = &t->nodes[tt_topology_node(t, TT_NODE_CPU, 0)];
  s->amd = cpu->cpu.arch == TT_ARCH_X86 && cpu->cpu.vendor == TT_VENDOR_AMD;
  struct tt_channels *both[] = {&s->now, &s->best};
  for (size_t i = 0; i < TT_COUNT(both); i++) {
    TT_TRY(TT_CALLOC(&both[i]->gpus, TT_GRAPH_MOST_CHANNELS * ngpus));
    TT_TRY(TT_CALLOC(&both[i]->nets, (size_t)TT_GRAPH_MOST_CHANNELS * 2));
    for (int c = 0; c < TT_GRAPH_MOST_CHANNELS * 2; c++) both[i]->nets[c] = -1;
  }
  if (request->pattern == TT_PATTERN_NVLS || request->pattern == TT_PATTERN_COLLNET_DIRECT)
    TT_TRY(TT_CALLOC(&s->head_taken, (size_t)request->max_channels * 4 * ngpus));
  TT_TRY(TT_CALLOC(&s->visited, ngpus));
  /* Of each channel: a start, an entry, two exits, and a choice at each GPU. */
  TT_TRY(TT_CALLOC(&s->choices, (size_t)request->max_channels * (ngpus + 4)));
  TT_TRY(tt_search_paths_begin(s));
  TT_TRY(tt_search_nets_begin(s));
  TT_TRY(tt_search_next_begin(s));
  tt_search_find_types(s);
  return ncclSuccess;
}

static void end(struct tt_search *s)
{
  tt_search_next_end(s);
  tt_search_nets_end(s);
  tt_search_paths_end(s);
  free(s->now.gpus);
  free(s->now.nets);
  free(s->best.gpus);
  free(s->best.nets);
  free(s->visited);
  free(s->head_taken);
  free(s->choices);
  free(s->options);
}

/* NVLS needs a switch that reduces. */
static bool is_possible(const struct tt_search *s)
{
  return s->request->pattern != TT_PATTERN_NVLS || (s->topology->count[TT_NODE_NVS] > 0 && s->sm >= 90);
}

ncclResult_t tt_graph_search(const struct tt_topology *t, const struct tt_graph_request *request,
                             struct tt_graph **graph, struct tt_graph_record *record)
{
  struct tt_search s = {0};
  struct tt_progress *p = NULL;
  ncclResult_t result;
  *graph = NULL;
  TT_TRY_GOTO(begin(&s, t, request), result, out);
  TT_TRY_GOTO(TT_CALLOC(&p, 1), result, out);
  p->s = &s;
  p->visits = VISITS_IN_ALL;
  TT_TRY_GOTO(tt_search_set_limits(p), result, out);
  if (is_possible(&s)) {
    TT_TRY_GOTO(first_pass(p), result, out);
    TT_TRY_GOTO(second_pass(p), result, out);
    if (s.best.count == 0 && request->kind <= TT_GRAPH_TREE) fall_back(p);
  }
  TT_TRY_GOTO(make_graph(&s, graph), result, out);
  if (record) *record = p->record;
out:
  free(p);
  end(&s);
  return result;
}
