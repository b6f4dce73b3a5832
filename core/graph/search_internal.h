/* What the parts of a search share; for core/graph/search*.c only. */
#ifndef TT_GRAPH_SEARCH_INTERNAL_H
#define TT_GRAPH_SEARCH_INTERNAL_H

#include <stdint.h>
#include "graph/search.h"

/* The limits under which channels are looked for. */
struct tt_attempt {
  enum tt_graph_pattern pattern;
  int cross_nic;
  bool same_channels;
  int type_intra, type_inter; /* the farthest path types in use */
  float intra, inter;         /* GB/s a channel */
  int min_channels, max_channels;
};

/* Channels and the limits under which they were found. GPUs and NETs are indices. */
struct tt_channels {
  struct tt_attempt attempt;
  int count;
  int hops;      /* of all paths in use */
  int16_t *gpus; /* [channel * ngpus + position] */
  int16_t *nets; /* [channel * 2] */
};

/* A place in a channel where there is a choice, and the option in use. */
enum tt_choice_kind {
  TT_CHOOSE_START,
  TT_CHOOSE_ENTRY,
  TT_CHOOSE_EXIT,
  TT_CHOOSE_NEXT,
  TT_CHOOSE_CLOSE,
  TT_CHOOSE_HEAD
};
enum tt_choice_order { TT_ORDER_FREE, TT_ORDER_BUS, TT_ORDER_REPLAY }; /* who says which GPU is next */

struct tt_choice {
  uint8_t kind, order;
  bool opens;                     /* the channel before is complete */
  bool in_use;                    /* the option before `next` */
  bool own_visits;                /* it has its own; before, there were as many left as `visits` */
  int16_t gpu, position, exit_at; /* here; and the position where the NET is due */
  int16_t net;                    /* START: what was taken; ENTRY: whence; else -1 */
  int16_t to_gpu;                 /* marked as visited; -1: none */
  int first, count, next;         /* options */
  int route, taken;               /* what was taken of which route; -1: none */
  int visits;
};

/* A path between two ends, which are GPUs, NETs and switches, numbered in this order. */
struct tt_route {
  int first, count; /* tolls */
  int16_t hops;
  int8_t type, back_type; /* of the path, and of that back */
  bool made, inside;      /* inside: no end is a NET */
};
/* What it costs on a link. */
struct tt_toll {
  int link, reverse;
  uint8_t costs;
};

struct tt_search {
  const struct tt_topology *topology;
  const struct tt_graph_request *request;
  int ngpus, nnets;
  int sm;                            /* the lowest */
  uint32_t types_intra, types_inter; /* that there are, as bits */
  int min_intra, max_intra, min_inter, max_inter;
  bool amd;

  struct tt_channels now, best;
  uint64_t *visited; /* of each GPU: bit c is set while channel c goes over it */
  int visits;        /* left to this attempt; TT_PERFECT: nothing better can come */
  int made;          /* visits of all attempts */
  ncclResult_t result;

  int *left;               /* of each link: thousandths of GB/s that are not taken */
  int *net_left;           /* the same of each NET, less what is taken of its port */
  int *port, *port_taken;  /* of each NET: the first one on the same port; of that, what is taken */
  int *slot;               /* of each GPU: its PCI link; -1: none */
  struct tt_route *routes; /* between GPUs, NETs and switches */
  struct tt_toll *tolls;   /* of the routes */
  int nends, ntolls, toll_room;
  int *head_taken;              /* of each channel with a head: route and amount of each of its paths */
  int needs_intra, needs_inter; /* of a channel, thousandths */

  struct tt_choice *choices; /* a stack */
  int depth;
  int *options; /* another, of the choices' options */
  int noptions, option_room;

  int16_t *near_gpus; /* [net * ngpus]: the GPUs nearest to each NET */
  int *near_count;
  int16_t *preferred; /* [gpu * nnets]: the NETs that each GPU takes in turn */
  int *npreferred;
  struct tt_net_lists *lists[TT_PATH_TYPES]; /* by type_inter */
  int16_t **orders;                          /* [(net + 1) * ngpus + gpu], net -1 first: see search_next.c */
  int *net_bandwidth;                        /* [net * ngpus + gpu], whole GB/s */
  int8_t *types_forth, *types_both; /* [gpu * ngpus + other]: of the path there; the farther of there and back */
  int16_t *alike;                   /* [gpu * ngpus + gpu]: equal for GPUs to which the paths are alike */
  int *keys;                        /* scratch */
};

#define TT_PERFECT (-1)
#define TT_THOUSANDTHS(bandwidth) ((int)((bandwidth)*1000.0f + 0.5f))

static inline bool tt_search_has_heads(const struct tt_search *s)
{
  return s->now.attempt.pattern == TT_PATTERN_NVLS || s->now.attempt.pattern == TT_PATTERN_COLLNET_DIRECT;
}
static inline int tt_search_gpu(const struct tt_search *s, int gpu)
{
  return s->topology->first[TT_NODE_GPU] + gpu;
}
static inline int tt_search_net(const struct tt_search *s, int net)
{
  return s->topology->first[TT_NODE_NET] + net;
}
static inline const struct tt_node *tt_search_net_node(const struct tt_search *s, int net)
{
  return &s->topology->nodes[tt_search_net(s, net)];
}
/* The GPUs of the channel that is being made, and its NETs. */
static inline int16_t *tt_search_channel(const struct tt_search *s)
{
  return s->now.gpus + (ptrdiff_t)s->now.count * s->ngpus;
}
static inline int16_t *tt_search_channel_nets(const struct tt_search *s)
{
  return s->now.nets + (ptrdiff_t)s->now.count * 2;
}

/* ---- search_paths.c: bandwidth ---- */
ncclResult_t tt_search_paths_begin(struct tt_search *s);
void tt_search_paths_end(struct tt_search *s);
/* Before an attempt: what its channels need. */
void tt_search_paths_attempt(struct tt_search *s);
/* Takes what a channel needs of all links of a path between two ends, times numerator/denominator; or nothing and
 * false, if one has too little or the path is of too far a type. *route and *taken are for the way back. */
bool tt_search_take(struct tt_search *s, int from, int to, int numerator, int denominator, int *route, int *taken);
void tt_search_give(struct tt_search *s, int route, int taken);
static inline int tt_search_end_of_net(const struct tt_search *s, int net)
{
  return s->ngpus + net;
}
static inline int tt_search_end_of_switch(const struct tt_search *s)
{
  return s->ngpus + s->nnets;
}
/* The same for a NET by its number, which is that of its port. */
bool tt_search_take_net(struct tt_search *s, int net);
void tt_search_give_net(struct tt_search *s, int net);
/* What the PCI link of a GPU has left, in whole GB/s. */
static inline int tt_search_left_of_slot(const struct tt_search *s, int gpu)
{
  if (s->slot[gpu] < 0) return -1;
  const int there = s->left[s->slot[gpu]], back = s->left[s->topology->links[s->slot[gpu]].reverse];
  return (there < back ? there : back) / 1000;
}

/* ---- search_heads.c ---- */
/* All paths between the head and the others; all or nothing. */
bool tt_search_take_head(struct tt_search *s, int head);
void tt_search_give_head(struct tt_search *s);

/* ---- search_nets.c ---- */
/* NETs in the order in which they are tried. */
struct tt_net_lists {
  int nall;
  int16_t *all; /* to begin with */
  int *count;   /* of each GPU: to return to the network */
  int16_t *of;  /* [gpu * nnets] */
};
ncclResult_t tt_search_nets_begin(struct tt_search *s);
void tt_search_nets_end(struct tt_search *s);
/* Those within a path type; the search's to keep. */
ncclResult_t tt_search_list_nets(struct tt_search *s, int type, const struct tt_net_lists **lists);
/* Whether the channel that is being made may begin with, or return to, a NET. */
bool tt_search_may_start(const struct tt_search *s, int net);
bool tt_search_may_return(const struct tt_search *s, int net, int position);

/* ---- search_next.c ---- */
/* Writes the GPUs to which a channel may go next, in the order in which they are tried; returns how many. */
ncclResult_t tt_search_next(struct tt_search *s, int gpu, int position, int exit_at, int *next, int *count);
ncclResult_t tt_search_next_begin(struct tt_search *s);
void tt_search_next_end(struct tt_search *s);

/* ---- search_channels.c ---- */
/* Looks for channels within the limits of now.attempt; what is better than `best` replaces it. */
ncclResult_t tt_search_channels(struct tt_search *s, int visits);

/* ---- search_bound.c ---- */
/* Channels that now.attempt can find at most. */
ncclResult_t tt_search_bound(const struct tt_search *s, int *most);
/* Hops that a channel has at least. */
int tt_search_fewest_hops(const struct tt_search *s);

/* ---- search_speeds.c ---- */
/* The bandwidths that are tried, GB/s, from high to low. */
const float *tt_search_speeds(int sm, bool inter, int *count);

#endif
