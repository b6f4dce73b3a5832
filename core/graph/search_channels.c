/* One attempt: channels within given limits, by trying. Where there is a choice, it is put on a stack with all its
 * options; the option in use has taken bandwidth, which it gives back when the next one is tried. So the way back is
 * always exact, and a channel of many GPUs needs no deep recursion. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/search_internal.h"

/* The GPUs in the order of the bus are tried for each NET, as a reference, with visits of their own: a quarter of NCCL's,
 * see VISITS_IN_ALL. */
#define VISITS_OF_BUS_ORDER (1 << 8)

/* A choice on the stack, with room for so many options; NULL: no memory. */
static struct tt_choice *push(struct tt_search *s, enum tt_choice_kind kind, int room)
{
  if (s->noptions + room > s->option_room) {
    const int more = 2 * s->option_room + room + 256;
    int *grown = realloc(s->options, (size_t)more * sizeof(*grown));
    if (!grown) {
      s->result = TT_FAIL(ncclSystemError, "out of memory (%d options) for a search of channels", more);
      s->visits = 0;
      return NULL;
    }
    s->options = grown;
    s->option_room = more;
  }
  struct tt_choice *choice = &s->choices[s->depth++];
  choice->kind = (uint8_t)kind;
  choice->opens = choice->in_use = choice->own_visits = false;
  choice->net = choice->to_gpu = -1;
  choice->route = -1;
  choice->first = s->noptions;
  choice->count = choice->next = 0;
  return choice;
}

/* The same for a channel that has come to a place. */
static struct tt_choice *push_at(struct tt_search *s, enum tt_choice_kind kind, const struct tt_choice *here, int room)
{
  struct tt_choice *choice = push(s, kind, room);
  if (!choice) return NULL;
  choice->gpu = here->gpu;
  choice->position = here->position;
  choice->exit_at = here->exit_at;
  choice->order = here->order;
  return choice;
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
  struct tt_choice *choice = push(s, TT_CHOOSE_ENTRY, s->ngpus + 1);
  if (!choice) return;
  choice->opens = opens;
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
  struct tt_choice *choice = push(s, TT_CHOOSE_START, lists->nall);
  if (!choice) return;
  choice->opens = opens;
  for (int i = 0; i < lists->nall; i++) add(s, choice, lists->all[(s->now.count + i) % lists->nall]);
}

/* The GPUs at which a channel enters from a NET. */
static void enter(struct tt_search *s, int net)
{
  const int local = tt_search_net_node(s, net)->net.local_gpu;
  struct tt_choice *choice = push(s, TT_CHOOSE_ENTRY, s->ngpus + 2);
  if (!choice) return;
  choice->net = (int16_t)net;
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
  s->made++;
  return true;
}

/* The options of a channel that is to go on to another GPU. */
static void choose_next(struct tt_search *s, const struct tt_choice *here)
{
  struct tt_choice *choice = push_at(s, TT_CHOOSE_NEXT, here, s->ngpus);
  if (!choice) return;
  if (here->order == TT_ORDER_BUS) {
    add(s, choice, here->position + 1);
  } else if (here->order == TT_ORDER_REPLAY) {
    add(s, choice, tt_search_channel(s)[-s->ngpus + here->position + 1]);
  } else {
    s->result = tt_search_next(s, here->gpu, here->position, here->exit_at, s->options + choice->first, &choice->count);
    s->noptions = choice->first + choice->count;
  }
}

static void choose_exit(struct tt_search *s, const struct tt_choice *here)
{
  const struct tt_net_lists *lists = NULL;
  s->result = tt_search_list_nets(s, s->now.attempt.type_inter, &lists);
  if (!lists) return;
  const int16_t *nets = lists->of + (ptrdiff_t)here->gpu * s->nnets;
  const int count = lists->count[here->gpu];
  struct tt_choice *choice = push_at(s, TT_CHOOSE_EXIT, here, count);
  for (int i = 0; choice && i < count; i++)
    if (tt_search_may_return(s, nets[i], here->position)) add(s, choice, nets[i]);
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
  const struct tt_choice here = {
      .gpu = (int16_t)gpu, .position = (int16_t)position, .exit_at = (int16_t)exit_at, .order = (uint8_t)order};
  const bool last = position == s->ngpus - 1, heads = tt_search_has_heads(s);
  if (position == exit_at) {
    choose_exit(s, &here);
  } else if (heads || (last && !s->topology->inter && s->now.attempt.pattern == TT_PATTERN_RING)) {
    struct tt_choice *choice = push_at(s, heads ? TT_CHOOSE_HEAD : TT_CHOOSE_CLOSE, &here, 1);
    if (choice) add(s, choice, heads ? gpu : tt_search_channel(s)[0]);
  } else if (!last) {
    choose_next(s, &here);
  } else if (visit(s)) {
    complete(s);
  }
}

/* Takes a path of which a channel needs the whole, or half. */
static bool take(struct tt_search *s, struct tt_choice *choice, int from, int to, int parts)
{
  return tt_search_take(s, from, to, 1, parts, &choice->route, &choice->taken);
}

static bool take_gpu(struct tt_search *s, struct tt_choice *choice, int gpu)
{
  if (choice->kind == TT_CHOOSE_NEXT) {
    if (!take(s, choice, choice->gpu, gpu, 1)) return false;
  } else if (choice->net >= 0) {
    if (!take(s, choice, tt_search_end_of_net(s, choice->net), gpu, 1)) return false;
  }
  s->visited[gpu] |= UINT64_C(1) << s->now.count;
  choice->to_gpu = (int16_t)gpu;
  return true;
}

/* Uses an option, if there is bandwidth for it. */
static bool use(struct tt_search *s, struct tt_choice *choice, int option)
{
  switch ((enum tt_choice_kind)choice->kind) {
  case TT_CHOOSE_START:
    if (!tt_search_may_start(s, option) || !tt_search_take_net(s, option)) return false;
    choice->net = (int16_t)option;
    tt_search_channel_nets(s)[0] = (int16_t)option;
    return true;
  case TT_CHOOSE_ENTRY:
    if (!take_gpu(s, choice, option >> 2)) return false;
    choice->order = (uint8_t)(option & 3);
    if (choice->order != TT_ORDER_BUS || choice->net < 0) return true;
    choice->own_visits = true;
    choice->visits = s->visits;
    s->visits = VISITS_OF_BUS_ORDER;
    return true;
  case TT_CHOOSE_NEXT:
    return take_gpu(s, choice, option);
  case TT_CHOOSE_EXIT: /* with two GPUs at the network, each carries half */
    if (!take(s, choice, choice->gpu, tt_search_end_of_net(s, option),
              s->now.attempt.pattern == TT_PATTERN_BALANCED_TREE ? 2 : 1))
      return false;
    tt_search_channel_nets(s)[1] = (int16_t)option;
    return true;
  case TT_CHOOSE_CLOSE:
    return take(s, choice, choice->gpu, option, 1);
  case TT_CHOOSE_HEAD:
    return tt_search_take_head(s, option);
  }
  return false;
}

/* Gives back what the option in use took. */
static void give_back(struct tt_search *s, struct tt_choice *choice)
{
  if (choice->kind == TT_CHOOSE_HEAD) tt_search_give_head(s);
  if (choice->route >= 0) tt_search_give(s, choice->route, choice->taken);
  if (choice->to_gpu >= 0) s->visited[choice->to_gpu] &= ~(UINT64_C(1) << s->now.count);
  choice->route = -1;
  choice->to_gpu = -1;
  if (choice->kind == TT_CHOOSE_START) tt_search_give_net(s, choice->net);
  if (choice->own_visits && s->visits != TT_PERFECT) s->visits = choice->visits;
  choice->own_visits = false;
  choice->in_use = false;
}

/* Goes on from an option that is in use. */
static void follow(struct tt_search *s, const struct tt_choice *choice)
{
  const int last = s->ngpus - 1;
  switch ((enum tt_choice_kind)choice->kind) {
  case TT_CHOOSE_START:
    enter(s, choice->net);
    break;
  case TT_CHOOSE_ENTRY: {
    const int pattern = s->now.attempt.pattern;
    int exit_at = !s->topology->inter ? -1 : pattern == TT_PATTERN_RING ? last : pattern == TT_PATTERN_SPLIT_TREE;
    arrive(s, choice->to_gpu, 0, exit_at, choice->order);
    break;
  }
  case TT_CHOOSE_NEXT:
    arrive(s, choice->to_gpu, choice->position + 1, choice->exit_at, choice->order);
    break;
  case TT_CHOOSE_EXIT: {
    bool once_more = s->now.attempt.pattern == TT_PATTERN_BALANCED_TREE && choice->position == 0;
    arrive(s, choice->gpu, choice->position, once_more ? 1 : -1, choice->order);
    break;
  }
  case TT_CHOOSE_CLOSE:
  case TT_CHOOSE_HEAD:
    arrive(s, choice->gpu, s->ngpus, -1, choice->order);
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
  tt_search_paths_attempt(s);
  start_channel(s, false);
  while (s->depth > 0) {
    struct tt_choice *choice = &s->choices[s->depth - 1];
    if (choice->in_use) give_back(s, choice);
    s->noptions = choice->first + choice->count;
    while (choice->next < choice->count && !choice->in_use && has_visits(s, choice))
      choice->in_use = use(s, choice, s->options[choice->first + choice->next++]);
    if (choice->in_use) {
      follow(s, choice);
    } else {
      if (choice->opens) s->now.count--;
      s->noptions = choice->first;
      s->depth--;
    }
  }
  return s->result;
}
