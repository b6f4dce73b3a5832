/* Channels with a head: it sends to, and receives from, all other GPUs of the machine. With NVLS that goes through the
 * switch, which every GPU feeds and reads for every head; without, each path carries its share. */
#include "base/check.h"
#include "graph/search_internal.h"

/* Number i of a head's paths: in the first half to the GPUs, in the second from them. */
static bool take(struct tt_search *s, int head, int i, int *route, int *taken)
{
  const bool nvls = s->now.attempt.pattern == TT_PATTERN_NVLS;
  const int gpu = i % s->ngpus, center = nvls ? tt_search_end_of_switch(s) : head;
  const int from = i < s->ngpus ? center : gpu, to = i < s->ngpus ? gpu : center;
  return tt_search_take(s, from, to, nvls && gpu == head ? 2 : 1, nvls ? 1 : TT_MAX(s->ngpus - 1, 1), route, taken);
}

bool tt_search_take_head(struct tt_search *s, int head)
{
  int *taken = s->head_taken + (ptrdiff_t)s->now.count * 4 * s->ngpus;
  for (int i = 0; i < 2 * s->ngpus; i++) {
    if (take(s, head, i, &taken[2 * i], &taken[2 * i + 1])) continue;
    for (; i > 0; i--) tt_search_give(s, taken[2 * i - 2], taken[2 * i - 1]);
    return false;
  }
  return true;
}

void tt_search_give_head(struct tt_search *s)
{
  const int *taken = s->head_taken + (ptrdiff_t)s->now.count * 4 * s->ngpus;
  for (int i = 0; i < 2 * s->ngpus; i++) tt_search_give(s, taken[2 * i], taken[2 * i + 1]);
}
