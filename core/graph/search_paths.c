/* Bandwidth that channels take of links, and give back. It is counted in thousandths of a GB/s, so that what is given
 * back is exactly what was taken. */
#include "base/check.h"
#include "graph/search_internal.h"

/* What a link is like, as bits. */
enum {
  PCI = 1,
  INTO_OLD_DEVICE = 2, /* writes into such memory cost reads back */
  INTO_POWER = 4,      /* NVLink to a CPU: one direction at a time */
  INTO_INTEL = 8       /* root ports that pass packets on from GPU to GPU or NIC with more overhead */
};

static uint8_t traits_of(const struct tt_topology *t, const struct tt_link *link)
{
  const struct tt_node *to = &t->nodes[link->to];
  uint8_t traits = link->type == TT_LINK_PCI ? PCI : 0;
  if (to->type == TT_NODE_DEV && to->gpu.sm < 80) traits |= INTO_OLD_DEVICE;
  if (to->type == TT_NODE_CPU && to->cpu.arch == TT_ARCH_POWER && link->type == TT_LINK_NVL) traits |= INTO_POWER;
  if (to->type == TT_NODE_CPU && to->cpu.arch == TT_ARCH_X86 && to->cpu.vendor == TT_VENDOR_INTEL) traits |= INTO_INTEL;
  return traits;
}

ncclResult_t tt_search_paths_begin(struct tt_search *s)
{
  const struct tt_topology *t = s->topology;
  TT_TRY(TT_CALLOC(&s->left, (size_t)t->nlinks + 1));
  TT_TRY(TT_CALLOC(&s->traits, (size_t)t->nlinks + 1));
  TT_TRY(TT_CALLOC(&s->net_left, (size_t)s->nnets + 1));
  for (int l = 0; l < t->nlinks; l++) {
    s->left[l] = TT_THOUSANDTHS(t->links[l].bandwidth);
    s->traits[l] = traits_of(t, &t->links[l]);
  }
  for (int n = 0; n < s->nnets; n++) s->net_left[n] = TT_THOUSANDTHS(tt_search_net_node(s, n)->net.bandwidth);
  return ncclSuccess;
}

static bool is_inside(const struct tt_node *node)
{
  return node->type == TT_NODE_GPU || node->type == TT_NODE_NVS;
}

/* What the PCI links of a path carry for `amount`. */
static int on_pci(const struct tt_search *s, const struct tt_path *path, int from, int amount)
{
  const struct tt_topology *t = s->topology;
  if (path->type != TT_PATH_PHB || t->nodes[from].type != TT_NODE_GPU) return amount;
  for (int step = path->first; step >= 0; step = t->steps[step].next)
    if (s->traits[t->steps[step].link] & INTO_INTEL) return (amount * 6 + 2) / 5;
  return amount;
}

/* Adds `sign` times what a path carries to its links, up to the step `end`. With checks, it stops before the first link
 * that has too little, and returns that step; else -1. */
static int walk(struct tt_search *s, int from, int to, int amount, int sign, bool checks, int end)
{
  const struct tt_topology *t = s->topology;
  const struct tt_path *path = tt_topology_path(t, from, to);
  const int pci = on_pci(s, path, from, amount);
  const bool from_gpu = t->nodes[from].type == TT_NODE_GPU;
  for (int step = path->first; step != end; step = t->steps[step].next) {
    const int link = t->steps[step].link, reverse = t->links[link].reverse, traits = s->traits[link];
    const int there = traits & PCI ? pci : amount;
    int back = traits & INTO_POWER ? there : 0;
    if (traits & INTO_OLD_DEVICE && !from_gpu) back += there / 8;
    if (checks && (s->left[link] < there || (back && s->left[reverse] < back))) return step;
    s->left[link] += sign * there;
    s->left[reverse] += sign * back;
  }
  return -1;
}

bool tt_search_take(struct tt_search *s, int from, int to, int numerator, int denominator, int *taken)
{
  const struct tt_topology *t = s->topology;
  const struct tt_attempt *a = &s->now.attempt;
  const bool intra = is_inside(&t->nodes[from]) && is_inside(&t->nodes[to]);
  const int type = intra ? a->type_intra : a->type_inter;
  const bool both_ways = a->pattern <= TT_PATTERN_TREE;
  const struct tt_path *path = tt_topology_path(t, from, to);
  if (path->type > type || path->type >= TT_PATH_DIS) return false;
  if (both_ways && tt_topology_path(t, to, from)->type > type) return false;
  const int amount = (int)((float)numerator * (intra ? a->intra : a->inter) * 1000.0f / (float)denominator + 0.5f);
  int stopped = walk(s, from, to, amount, -1, true, -1);
  if (stopped >= 0) {
    walk(s, from, to, amount, 1, false, stopped);
    return false;
  }
  s->now.hops += path->hops;
  *taken = amount;
  return true;
}

void tt_search_give(struct tt_search *s, int from, int to, int taken)
{
  walk(s, from, to, taken, 1, false, -1);
  s->now.hops -= tt_topology_path(s->topology, from, to)->hops;
}

/* All NETs on a port share it. Whole GB/s are counted, so that slow NICs carry a channel more than they have room for
 * by the numbers; their link limits them, too. */
static void charge_port(struct tt_search *s, int net, int sign)
{
  const struct tt_node *node = tt_search_net_node(s, net);
  const int amount = sign * (int)s->now.attempt.inter * 1000;
  for (int n = 0; n < s->nnets; n++) {
    const struct tt_node *other = tt_search_net_node(s, n);
    if (other->net.asic == node->net.asic && other->net.port == node->net.port) s->net_left[n] += amount;
  }
}

bool tt_search_take_net(struct tt_search *s, int net)
{
  if (s->net_left[net] < (int)s->now.attempt.inter * 1000) return false;
  charge_port(s, net, -1);
  return true;
}

void tt_search_give_net(struct tt_search *s, int net)
{
  charge_port(s, net, 1);
}

int tt_search_left_of_slot(const struct tt_search *s, int gpu)
{
  const struct tt_topology *t = s->topology;
  const struct tt_node *device = &t->nodes[t->first[TT_NODE_DEV] + t->nodes[tt_search_gpu(s, gpu)].gpu.device];
  for (int l = device->first_link; l < device->first_link + device->nlinks; l++)
    if (t->links[l].type == TT_LINK_PCI) return TT_MIN(s->left[l], s->left[t->links[l].reverse]) / 1000;
  return -1;
}
