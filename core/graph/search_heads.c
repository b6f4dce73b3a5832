/* Channels with a head: it sends to, and receives from, all other GPUs of the machine. With NVLS that goes through the
 * switch, which every GPU feeds and reads for every head; without, each path carries its share. */
#include "base/check.h"
#include "graph/search_internal.h"

/* Number i of a head's paths: in the first half to the GPUs, in the second from them. */
static void path_of(const struct tt_search *s, int head, int i, int *from, int *to, int *numerator, int *denominator)
{
  const bool nvls = s->now.attempt.pattern == TT_PATTERN_NVLS;
  const int gpu = i % s->ngpus;
  const int center = nvls ? tt_topology_node(s->topology, TT_NODE_NVS, 0) : tt_search_gpu(s, head);
  *from = i < s->ngpus ? center : tt_search_gpu(s, gpu);
  *to = i < s->ngpus ? tt_search_gpu(s, gpu) : center;
  *numerator = nvls && gpu == head ? 2 : 1;
  *denominator = nvls ? 1 : TT_MAX(s->ngpus - 1, 1);
}

static void give(struct tt_search *s, int head, int npaths)
{
  const int whole = TT_THOUSANDTHS(s->now.attempt.intra);
  for (int i = 0; i < npaths; i++) {
    int from, to, numerator, denominator;
    path_of(s, head, i, &from, &to, &numerator, &denominator);
    tt_search_give(s, from, to, (2 * whole * numerator + denominator) / (2 * denominator));
  }
}

bool tt_search_take_head(struct tt_search *s, int head)
{
  for (int i = 0; i < 2 * s->ngpus; i++) {
    int from, to, numerator, denominator, taken;
    path_of(s, head, i, &from, &to, &numerator, &denominator);
    if (tt_search_take(s, from, to, numerator, denominator, &taken)) continue;
    give(s, head, i);
    return false;
  }
  return true;
}

void tt_search_give_head(struct tt_search *s, int head)
{
  give(s, head, 2 * s->ngpus);
}
