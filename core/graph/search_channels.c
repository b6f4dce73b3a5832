/* One attempt: channels within given limits, by trying. Where there is a choice, it is put on a stack with all its
 * options; the option in use has taken bandwidth, which it gives back when the next one is tried. So the way back is
 * always exact, and a channel of many GPUs needs no deep recursion. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/search_internal.h"

/* The GPUs in the order of the bus are tried for each NET, as a reference, with visits of their own. */
#define VISITS_OF_BUS_ORDER (1 << 10)

static ncclResult_t grow(void **array, int *room, int needed, size_t size)
{
  if (needed <= *room) return ncclSuccess;
  int more = TT_MAX(2 * *room, TT_MAX(needed, 64));
  void *grown = realloc(*array, (size_t)more * size);
  if (!grown) return TT_FAIL(ncclSystemError, "out of memory (%zu bytes) for the search of channels", more * size);
  *array = grown;
  *room = more;
  return ncclSuccess;
}

/* A choice on the stack with room for so many options; NULL: no memory. */
static struct tt_choice *push(struct tt_search *s, struct tt_choice choice, int room)
{
  if (s->result == ncclSuccess)
    s->result = grow((void **)&s->choices, &s->choice_room, s->depth + 1, sizeof(*s->choices));
  if (s->result == ncclSuccess)
    s->result = grow((void **)&s->options, &s->option_room, s->noptions + room, sizeof(*s->options));
  if (s->result != ncclSuccess) {
    s->visits = 0;
    return NULL;
  }
  choice.first = s->noptions;
  choice.count = choice.next = 0;
  choice.in_use = false;
  choice.from = choice.to_gpu = -1;
  choice.own_visits = false;
  s->choices[s->depth] = choice;
  return &s->choices[s->depth++];
}

static void add(struct tt_search *s, struct tt_choice *choice, int option)
{
  s->options[choice->first + choice->count++] = option;
  s->noptions = choice->first + choice->count;
}

/* An entry names a GPU and who says which one is next. */
static int entry(int gpu, int order)
{
  return gpu << 2 | order;
}

/* Without a network a channel begins at any GPU. */
static void start_inside(struct tt_search *s, bool opens)
{
  struct tt_choice *choice =
      push(s, (struct tt_choice){.kind = TT_CHOOSE_ENTRY, .opens = opens, .net = -1}, s->ngpus + 1);
  if (!choice) return;
  if (s->now.attempt.pattern == TT_PATTERN_NVLS) {
    add(s, choice, entry(s->now.count, TT_ORDER_FREE));
    return;
  }
  if (s->now.count == 0)
    add(s, choice, entry(0, TT_ORDER_BUS));
  else
    add(s, choice, entry(tt_search_channel(s)[-s->ngpus], TT_ORDER_REPLAY));
  if (s->now.count > 0 && s->now.attempt.same_channels) return;
  for (int g = 0; g < s->ngpus; g++) add(s, choice, entry(g, TT_ORDER_FREE));
}

/* With one it begins at a NET: channels take turns. */
static void start_channel(struct tt_search *s, bool opens)
{
  const struct tt_net_lists *lists = NULL;
  if (!s->topology->inter) {
    start_inside(s, opens);
    return;
  }
  if (s->result == ncclSuccess) s->result = tt_search_list_nets(s, s->now.attempt.type_inter, &lists);
  if (!lists) return;
  struct tt_choice *choice =
      push(s, (struct tt_choice){.kind = TT_CHOOSE_START, .opens = opens, .net = -1}, lists->nall);
  for (int i = 0; choice && i < lists->nall; i++) add(s, choice, lists->all[(s->now.count + i) % lists->nall]);
}

/* The GPUs at which a channel enters from a NET. */
static void enter(struct tt_search *s, int net)
{
  const int local = tt_search_net_node(s, net)->net.local_gpu;
  struct tt_choice *choice = push(s, (struct tt_choice){.kind = TT_CHOOSE_ENTRY, .net = (int16_t)net}, s->ngpus + 2);
  if (!choice) return;
  if (tt_search_has_heads(s)) {
    struct tt_choice *start = choice - 1;
    bool is_head = local < 0 || s->now.count >= start->count;
    for (int c = 0; c < s->now.count && !is_head; c++) is_head = s->now.gpus[c * s->ngpus] == local;
    if (is_head) return;
    add(s, choice, entry(local, TT_ORDER_FREE));
    start->next = start->count; /* if this head fails, so do all */
    return;
  }
  if (s->now.count > 0 && s->now.attempt.same_channels) {
    add(s, choice, entry(tt_search_channel(s)[-s->ngpus], TT_ORDER_REPLAY));
    return;
  }
  if (s->now.count == 0 && s->topology->count[TT_NODE_NVS] == 0) add(s, choice, entry(0, TT_ORDER_BUS));
  if (local >= 0) add(s, choice, entry(local, TT_ORDER_FREE));
  for (int i = 0; i < s->near_count[net]; i++) {
    int gpu = s->near_gpus[net * s->ngpus + i];
    if (gpu != local) add(s, choice, entry(gpu, TT_ORDER_FREE));
  }
}

/* NVLS is better with more heads, all others with more bandwidth between GPUs; then with shorter paths. */
static bool is_better(const struct tt_channels *now, const struct tt_channels *best, int ngpus)
{
  const struct tt_attempt *a = &now->attempt, *b = &best->attempt;
  if (now->count < a->min_channels) return false;
  if (a->pattern == TT_PATTERN_NVLS)
    return (now->count > best->count && now->count <= ngpus) ||
           (float)now->count * a->inter > (float)best->count * b->inter;
  const float ours = (float)now->count * a->intra, theirs = (float)best->count * b->intra;
  if (ours != theirs) return ours > theirs;
  return a->pattern == b->pattern && a->cross_nic == b->cross_nic && now->hops < best->hops;
}

static void complete(struct tt_search *s)
{
  s->now.count++;
  if (is_better(&s->now, &s->best, s->ngpus)) {
    const size_t ngpus = (size_t)s->now.count * (size_t)s->ngpus;
    memcpy(s->best.gpus, s->now.gpus, ngpus * sizeof(*s->best.gpus));
    memcpy(s->best.nets, s->now.nets, (size_t)s->now.count * 2 * sizeof(*s->best.nets));
    s->best.attempt = s->now.attempt;
    s->best.count = s->now.count;
    s->best.hops = s->now.hops;
    if (s->now.count == s->now.attempt.max_channels) s->visits = TT_PERFECT;
  }
  const int depth = s->depth;
  if (s->now.count < s->now.attempt.max_channels) start_channel(s, true);
  if (s->depth == depth) s->now.count--;
}

static bool visit(struct tt_search *s)
{
  if (s->visits <= 0) return false;
  s->visits--;
  return true;
}

/* The options of a channel that is to go on to another GPU. */
static void choose_next(struct tt_search *s, struct tt_choice here)
{
  here.kind = TT_CHOOSE_NEXT;
  struct tt_choice *choice = push(s, here, s->ngpus);
  if (!choice) return;
  if (here.order == TT_ORDER_BUS) {
    add(s, choice, here.position + 1);
  } else if (here.order == TT_ORDER_REPLAY) {
    add(s, choice, tt_search_channel(s)[-s->ngpus + here.position + 1]);
  } else {
    s->result = tt_search_next(s, here.gpu, here.position, here.exit_at, s->options + choice->first, &choice->count);
    s->noptions = choice->first + choice->count;
  }
}

static void choose_exit(struct tt_search *s, struct tt_choice here)
{
  const struct tt_net_lists *lists = NULL;
  if (s->result == ncclSuccess) s->result = tt_search_list_nets(s, s->now.attempt.type_inter, &lists);
  if (!lists) return;
  here.kind = TT_CHOOSE_EXIT;
  const int16_t *nets = lists->of + (ptrdiff_t)here.gpu * s->nnets;
  struct tt_choice *choice = push(s, here, lists->count[here.gpu]);
  for (int i = 0; choice && i < lists->count[here.gpu]; i++)
    if (tt_search_may_return(s, nets[i], here.position)) add(s, choice, nets[i]);
}

/* A channel has come to a GPU, or has been to its NET from there. */
static void arrive(struct tt_search *s, int gpu, int position, int exit_at, int order)
{
  if (!visit(s)) return;
  if (position == s->ngpus) {
    complete(s);
    return;
  }
  tt_search_channel(s)[position] = (int16_t)gpu;
  struct tt_choice here = {
      .gpu = (int16_t)gpu, .position = (int16_t)position, .exit_at = (int16_t)exit_at, .order = order, .net = -1};
  const bool last = position == s->ngpus - 1;
  if (position == exit_at) {
    choose_exit(s, here);
  } else if (tt_search_has_heads(s) || (last && !s->topology->inter && s->now.attempt.pattern == TT_PATTERN_RING)) {
    here.kind = tt_search_has_heads(s) ? TT_CHOOSE_HEAD : TT_CHOOSE_CLOSE;
    struct tt_choice *choice = push(s, here, 1);
    if (choice) add(s, choice, here.kind == TT_CHOOSE_HEAD ? gpu : tt_search_channel(s)[0]);
  } else if (!last) {
    choose_next(s, here);
  } else if (visit(s)) {
    complete(s);
  }
}

/* Takes a path of which a channel needs numerator/denominator. */
static bool take(struct tt_search *s, struct tt_choice *choice, int from, int to, int denominator)
{
  if (!tt_search_take(s, from, to, 1, denominator, &choice->taken)) return false;
  choice->from = from;
  choice->to = to;
  return true;
}

static bool take_gpu(struct tt_search *s, struct tt_choice *choice, int gpu)
{
  if (choice->kind == TT_CHOOSE_NEXT) {
    if (!take(s, choice, tt_search_gpu(s, choice->gpu), tt_search_gpu(s, gpu), 1)) return false;
  } else if (choice->net >= 0) {
    if (!take(s, choice, tt_search_net(s, choice->net), tt_search_gpu(s, gpu), 1)) return false;
  }
  s->visited[gpu] |= UINT64_C(1) << s->now.count;
  choice->to_gpu = (int16_t)gpu;
  return true;
}

/* Uses an option, if there is bandwidth for it. */
static bool use(struct tt_search *s, struct tt_choice *choice, int option)
{
  switch (choice->kind) {
  case TT_CHOOSE_START:
    if (!tt_search_may_start(s, option) || !tt_search_take_net(s, option)) return false;
    choice->net = (int16_t)option;
    tt_search_channel_nets(s)[0] = (int16_t)option;
    return true;
  case TT_CHOOSE_ENTRY:
    if (!take_gpu(s, choice, option >> 2)) return false;
    choice->order = option & 3;
    if (choice->order != TT_ORDER_BUS || choice->net < 0) return true;
    choice->own_visits = true;
    choice->visits = s->visits;
    s->visits = VISITS_OF_BUS_ORDER;
    return true;
  case TT_CHOOSE_NEXT:
    return take_gpu(s, choice, option);
  case TT_CHOOSE_EXIT: /* with two GPUs at the network, each carries half */
    if (!take(s, choice, tt_search_gpu(s, choice->gpu), tt_search_net(s, option),
              s->now.attempt.pattern == TT_PATTERN_BALANCED_TREE ? 2 : 1))
      return false;
    tt_search_channel_nets(s)[1] = (int16_t)option;
    return true;
  case TT_CHOOSE_CLOSE:
    return take(s, choice, tt_search_gpu(s, choice->gpu), tt_search_gpu(s, option), 1);
  case TT_CHOOSE_HEAD:
    return tt_search_take_head(s, option);
  }
  return false;
}

/* Gives back what the option in use took. */
static void give_back(struct tt_search *s, struct tt_choice *choice)
{
  if (choice->kind == TT_CHOOSE_HEAD) tt_search_give_head(s, choice->gpu);
  if (choice->from >= 0) tt_search_give(s, choice->from, choice->to, choice->taken);
  if (choice->to_gpu >= 0) s->visited[choice->to_gpu] &= ~(UINT64_C(1) << s->now.count);
  choice->from = choice->to_gpu = -1;
  if (choice->kind == TT_CHOOSE_START) tt_search_give_net(s, choice->net);
  if (choice->own_visits && s->visits != TT_PERFECT) s->visits = choice->visits;
  choice->own_visits = false;
  choice->in_use = false;
}

/* Goes on from an option that is in use. The choice may move in memory meanwhile. */
static void follow(struct tt_search *s, struct tt_choice choice)
{
  const int last = s->ngpus - 1;
  switch (choice.kind) {
  case TT_CHOOSE_START:
    enter(s, choice.net);
    break;
  case TT_CHOOSE_ENTRY: {
    const int pattern = s->now.attempt.pattern;
    int exit_at = !s->topology->inter ? -1 : pattern == TT_PATTERN_RING ? last : pattern == TT_PATTERN_SPLIT_TREE;
    arrive(s, choice.to_gpu, 0, exit_at, choice.order);
    break;
  }
  case TT_CHOOSE_NEXT:
    arrive(s, choice.to_gpu, choice.position + 1, choice.exit_at, choice.order);
    break;
  case TT_CHOOSE_EXIT: {
    bool once_more = s->now.attempt.pattern == TT_PATTERN_BALANCED_TREE && choice.position == 0;
    arrive(s, choice.gpu, choice.position, once_more ? 1 : -1, choice.order);
    break;
  }
  case TT_CHOOSE_CLOSE:
  case TT_CHOOSE_HEAD:
    arrive(s, choice.gpu, s->ngpus, -1, choice.order);
    break;
  }
}

/* Options with visits of their own do not depend on those that are left. */
static bool has_visits(const struct tt_search *s, const struct tt_choice *choice)
{
  if (s->result != ncclSuccess) return false;
  if (s->visits > 0) return true;
  if (s->now.count > 0 || s->topology->count[TT_NODE_NVS] > 0) return false;
  if (choice->kind == TT_CHOOSE_START) return !tt_search_has_heads(s);
  return choice->kind == TT_CHOOSE_ENTRY && choice->net >= 0 && choice->next == 0 &&
         (s->options[choice->first] & 3) == TT_ORDER_BUS;
}

ncclResult_t tt_search_channels(struct tt_search *s, int visits)
{
  s->visits = visits;
  s->now.count = 0;
  s->depth = s->noptions = 0;
  start_channel(s, false);
  while (s->depth > 0) {
    struct tt_choice *choice = &s->choices[s->depth - 1];
    if (choice->in_use) give_back(s, choice);
    s->noptions = choice->first + choice->count;
    while (choice->next < choice->count && !choice->in_use && has_visits(s, choice))
      choice->in_use = use(s, choice, s->options[choice->first + choice->next++]);
    if (choice->in_use) {
      follow(s, *choice);
    } else {
      if (choice->opens) s->now.count--;
      s->noptions = choice->first;
      s->depth--;
    }
  }
  return s->result;
}
