/* Bandwidth that channels take of links, and give back. It is counted in thousandths of a GB/s, so that what is given
 * back is exactly what was taken. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/search_internal.h"

/* What a path costs on one of its links, as bits. */
enum {
  OVERHEAD = 1,    /* a fifth more: PCI packets that Intel's root ports pass on from GPU to GPU or NIC */
  EIGHTH_BACK = 2, /* the reverse link carries an eighth: writes into the memory of old GPUs cost reads */
  ALL_BACK = 4     /* the reverse link carries as much: NVLink to POWER is one direction at a time */
};

ncclResult_t tt_search_paths_begin(struct tt_search *s)
{
  const struct tt_topology *t = s->topology;
  s->nends = s->ngpus + s->nnets + t->count[TT_NODE_NVS];
  TT_TRY(TT_CALLOC(&s->left, (size_t)t->nlinks + 1));
  TT_TRY(TT_CALLOC(&s->net_left, (size_t)s->nnets + 1));
  TT_TRY(TT_CALLOC(&s->port, (size_t)s->nnets + 1));
  TT_TRY(TT_CALLOC(&s->port_taken, (size_t)s->nnets + 1));
  TT_TRY(TT_CALLOC(&s->slot, (size_t)s->ngpus));
  TT_TRY(TT_CALLOC(&s->routes, (size_t)s->nends * (size_t)s->nends));
  for (int l = 0; l < t->nlinks; l++) s->left[l] = TT_THOUSANDTHS(t->links[l].bandwidth);
  for (int n = 0; n < s->nnets; n++) {
    const struct tt_node *net = tt_search_net_node(s, n);
    s->net_left[n] = TT_THOUSANDTHS(net->net.bandwidth);
    while (tt_search_net_node(s, s->port[n])->net.asic != net->net.asic ||
           tt_search_net_node(s, s->port[n])->net.port != net->net.port)
      s->port[n]++;
  }
  for (int g = 0; g < s->ngpus; g++) {
    const struct tt_node *device = &t->nodes[t->first[TT_NODE_DEV] + t->nodes[tt_search_gpu(s, g)].gpu.device];
    s->slot[g] = -1;
    for (int l = device->first_link + device->nlinks - 1; l >= device->first_link; l--)
      if (t->links[l].type == TT_LINK_PCI) s->slot[g] = l;
  }
  return ncclSuccess;
}

void tt_search_paths_end(struct tt_search *s)
{
  free(s->left);
  free(s->net_left);
  free(s->port);
  free(s->port_taken);
  free(s->slot);
  free(s->routes);
  free(s->tolls);
}

static bool is_x86_of(const struct tt_node *node, enum tt_cpu_vendor vendor)
{
  return node->type == TT_NODE_CPU && node->cpu.arch == TT_ARCH_X86 && node->cpu.vendor == vendor;
}

static uint8_t costs(const struct tt_topology *t, const struct tt_link *link, bool from_gpu, bool overhead)
{
  const struct tt_node *to = &t->nodes[link->to];
  uint8_t bits = overhead && link->type == TT_LINK_PCI ? OVERHEAD : 0;
  if (to->type == TT_NODE_DEV && to->gpu.sm < 80 && !from_gpu) bits |= EIGHTH_BACK;
  if (to->type == TT_NODE_CPU && to->cpu.arch == TT_ARCH_POWER && link->type == TT_LINK_NVL) bits |= ALL_BACK;
  return bits;
}

static int node_of(const struct tt_search *s, int end)
{
  if (end < s->ngpus) return tt_search_gpu(s, end);
  if (end < s->ngpus + s->nnets) return tt_search_net(s, end - s->ngpus);
  return tt_topology_node(s->topology, TT_NODE_NVS, end - s->ngpus - s->nnets);
}

static bool has_toll_room(struct tt_search *s, int more)
{
  if (s->ntolls + more <= s->toll_room) return true;
  const int room = 2 * s->toll_room + more + 256;
  struct tt_toll *grown = realloc(s->tolls, (size_t)room * sizeof(*grown));
  if (!grown) {
    s->result = TT_FAIL(ncclSystemError, "out of memory (%d tolls) for a search of channels", room);
    s->visits = 0;
    return false;
  }
  s->tolls = grown;
  s->toll_room = room;
  return true;
}

/* The links of a path whose bandwidth can run out, with what they cost. Made when it is first used, since few are. */
static bool make_route(struct tt_search *s, struct tt_route *route, int from_end, int to_end)
{
  const struct tt_topology *t = s->topology;
  const int from = node_of(s, from_end), to = node_of(s, to_end);
  const struct tt_path *path = tt_topology_path(t, from, to);
  const bool from_gpu = from_end < s->ngpus;
  bool overhead = false;
  if (!has_toll_room(s, path->hops)) return false;
  for (int step = path->first; step >= 0 && from_gpu && path->type == TT_PATH_PHB; step = t->steps[step].next)
    overhead = overhead || is_x86_of(&t->nodes[t->links[t->steps[step].link].to], TT_VENDOR_INTEL);
  route->first = s->ntolls;
  for (int step = path->first; step >= 0; step = t->steps[step].next) {
    const struct tt_link *link = &t->links[t->steps[step].link];
    if (link->type == TT_LINK_LOC) continue;
    s->tolls[s->ntolls++] = (struct tt_toll){
        .link = t->steps[step].link, .reverse = link->reverse, .costs = costs(t, link, from_gpu, overhead)};
  }
  route->count = s->ntolls - route->first;
  route->hops = path->hops;
  route->type = path->type;
  route->back_type = tt_topology_path(t, to, from)->type;
  route->inside = t->nodes[from].type != TT_NODE_NET && t->nodes[to].type != TT_NODE_NET;
  route->made = true;
  return true;
}

static inline int carries(const struct tt_toll *toll, int amount)
{
  return toll->costs & OVERHEAD ? (amount * 6 + 2) / 5 : amount;
}

static inline int carries_back(const struct tt_toll *toll, int there)
{
  return (toll->costs & ALL_BACK ? there : 0) + (toll->costs & EIGHTH_BACK ? there / 8 : 0);
}

/* Gives back what the first `count` links of a route carry. */
static void give(struct tt_search *s, const struct tt_toll *tolls, int count, int amount)
{
  for (int i = 0; i < count; i++) {
    const int there = carries(&tolls[i], amount);
    s->left[tolls[i].link] += there;
    if (tolls[i].costs & ~OVERHEAD) s->left[tolls[i].reverse] += carries_back(&tolls[i], there);
  }
}

void tt_search_paths_attempt(struct tt_search *s)
{
  s->needs_intra = TT_THOUSANDTHS(s->now.attempt.intra);
  s->needs_inter = TT_THOUSANDTHS(s->now.attempt.inter);
}

bool tt_search_take(struct tt_search *s, int from, int to, int numerator, int denominator, int *taken_of, int *taken)
{
  const struct tt_attempt *a = &s->now.attempt;
  struct tt_route *route = &s->routes[from * s->nends + to];
  if (!route->made && !make_route(s, route, from, to)) return false;
  const int type = route->inside ? a->type_intra : a->type_inter;
  if (route->type > type || route->type >= TT_PATH_DIS) return false;
  if (a->pattern <= TT_PATTERN_TREE && route->back_type > type) return false; /* trees carry data both ways */
  int amount = route->inside ? s->needs_intra : s->needs_inter;
  if (numerator != denominator) amount = (2 * amount * numerator + denominator) / (2 * denominator);
  const struct tt_toll *tolls = s->tolls + route->first;
  for (int i = 0; i < route->count; i++) {
    const int there = carries(&tolls[i], amount), back = carries_back(&tolls[i], there);
    if (s->left[tolls[i].link] < there || (back > 0 && s->left[tolls[i].reverse] < back)) {
      give(s, tolls, i, amount);
      return false;
    }
    s->left[tolls[i].link] -= there;
    if (back > 0) s->left[tolls[i].reverse] -= back;
  }
  s->now.hops += route->hops;
  *taken_of = (int)(route - s->routes);
  *taken = amount;
  return true;
}

void tt_search_give(struct tt_search *s, int taken_of, int taken)
{
  const struct tt_route *route = &s->routes[taken_of];
  give(s, s->tolls + route->first, route->count, taken);
  s->now.hops -= route->hops;
}

/* All NETs on a port share it. Whole GB/s are counted, so that slow NICs carry a channel more than they have room for
 * by the numbers; their link limits them, too. */
bool tt_search_take_net(struct tt_search *s, int net)
{
  const int amount = s->needs_inter / 1000 * 1000, port = s->port[net];
  if (s->net_left[net] - s->port_taken[port] < amount) return false;
  s->port_taken[port] += amount;
  return true;
}

void tt_search_give_net(struct tt_search *s, int net)
{
  s->port_taken[s->port[net]] -= s->needs_inter / 1000 * 1000;
}
