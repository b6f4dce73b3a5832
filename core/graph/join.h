/* What the machines' graphs become together: rings over all ranks, trees between machines with the chains of each
 * inside, the heads of CollNet and NVLS, how many channels there are, and in which order ranks talk to each other.
 *
 * A machine here is a set of ranks that reach each other without a network; it may be part of a host, or several hosts.
 * Its ranks found the same graphs (graph.h), for which its first rank, the leader, speaks. What the graphs say of a
 * machine is its shape, in which ranks are numbered by their order on the machine, so that equal machines have equal
 * shapes. Ranks meet with cards of a few bytes (join_exchange.h); all of them then compute the same from the same.
 *
 * Memory and time are O(ranks x different rings). What was joined is not changed any more, so any thread may read it.
 */
#ifndef TT_GRAPH_JOIN_H
#define TT_GRAPH_JOIN_H

#include "graph/graph.h"
#include "graph/join_rules.h"

enum {
  TT_JOIN_MOST_LOCAL = 1024, /* ranks of a machine */
  TT_JOIN_MOST_DIRECT = 8    /* ranks of a machine with CollNet direct */
};

/* What one kind of graph says, without names of ranks and NICs. */
struct tt_join_graph {
  enum tt_graph_pattern pattern;
  int cross_nic, nchannels;
  bool same_channels;
  float bandwidth_intra, bandwidth_inter, latency_inter;
  enum tt_path_type type_intra, type_inter;
  uint16_t *order; /* [channel * nranks + i]; NVLS and CollNet direct: [channel], the head */
  uint16_t *place; /* [channel * nranks + local rank]: its i in the order; NULL where there are heads */
};

struct tt_join_shape {
  uint64_t digest; /* of its packed form: equal for equal shapes */
  size_t bytes;    /* of its packed form */
  int nranks;
  struct tt_join_graph graphs[TT_GRAPH_KINDS];
};

/* A rank's card. */
struct tt_join_card {
  int32_t leader;  /* the lowest rank of its machine */
  uint64_t digest; /* of the shape that it found there */
  uint32_t shape_bytes;
  int peer_channels;   /* that it needs at most to any peer */
  int sm;              /* of its GPU, as in 90; 0: it has none */
  int arch, vendor;    /* enum tt_cpu_arch and tt_cpu_vendor */
  float net_bandwidth; /* GB/s to the slowest NET that it uses; 0: none */
};

/* The rank's card and its machine's shape, to be freed with tt_join_shape_free. Kinds that were not searched are NULL.
 * ncclInvalidUsage where a graph is none of this topology. */
ncclResult_t tt_join_describe(const struct tt_topology *topology, const struct tt_graph *const graphs[TT_GRAPH_KINDS],
                              int rank, const struct tt_join_rules *rules, struct tt_join_card *card,
                              struct tt_join_shape **shape);
/* The same of a shape alone; `ranks` are the machine's, ascending. */
ncclResult_t tt_join_shape_new(const struct tt_graph *const graphs[TT_GRAPH_KINDS], const int32_t *ranks, int nranks,
                               struct tt_join_shape **shape);
void tt_join_shape_free(struct tt_join_shape *shape); /* NULL is allowed */
/* Channels that a rank needs to any peer: as many as the slowest way has use for. */
int tt_join_peer_channels(const struct tt_topology *topology, int gpu, const struct tt_join_rules *rules);

struct tt_join_shapes {
  struct tt_join_shape **shapes;
  int count;
};
void tt_join_shapes_free(struct tt_join_shapes *shapes);

/* A rank's place in a tree: -1 where there is none. */
struct tt_join_tree {
  int32_t up;
  int32_t down[3]; /* those there are come first; the one on the same machine is the first */
};

struct tt_joined {
  int nranks, nnodes, min_local, max_local;
  int32_t *node;    /* of each rank, in the order of their leaders */
  int32_t *local;   /* of each rank: its number among the ranks of its machine */
  int32_t *first;   /* [nnodes + 1]: of each machine, its first index in `members` */
  int32_t *members; /* all ranks, machine by machine */
  int32_t *shape;   /* of each machine: its index in `shapes` */
  struct tt_join_shapes shapes;
  struct tt_join_graph weakest[TT_GRAPH_KINDS]; /* what all machines have; no orders */
  int odd_rank;                                 /* found another shape than its leader, whose holds; -1: none */
  int min_sm, max_sm;
  int arch, vendor;    /* -1: machines differ */
  float net_bandwidth; /* of the slowest NET in use; 0: some rank has none */

  int nchannels; /* of collectives */
  int nsearched; /* channels of the weakest ring and tree */
  uint8_t
      base[TT_GRAPH_MOST_CHANNELS]; /* of each channel: below nsearched with the first tree, from there on the second */
  const int32_t
      *ring[TT_GRAPH_MOST_CHANNELS]; /* of each channel: all ranks in order, beginning with rank 0; some are the same */
  int32_t *rings[TT_GRAPH_MOST_CHANNELS]; /* the different ones */
  int nrings;                             /* of them */
  int tree_depth;                         /* NCCL's estimate */
  bool collnet;                           /* CollNet chain; direct too, if direct_heads is not 0 */
  int direct_heads, chain_depth;
  int nvls_channels, nvls_heads; /* 0: no NVLS */
  uint16_t *heads;               /* of each shape, for NVLS and then for CollNet direct: see tt_join_head */

  int peer_channels;     /* of point-to-point operations: a power of two */
  int channels_per_peer; /* of them: a power of two */
  int group, ngroups;    /* rounds go over groups of so many ranks */
  int32_t *delta;        /* [ngroups]: which group is next */
  int32_t *turn;         /* [ngroups]: the inverse */
};

/* Joins what all ranks said. Takes `shapes` over, also when it fails: then ncclInvalidUsage, naming the rank, where
 * ranks do not agree which machine they are on, or a machine has no ring. */
ncclResult_t tt_graph_join(const struct tt_join_card *cards, int nranks, struct tt_join_shapes *shapes,
                           const struct tt_join_rules *rules, struct tt_joined **joined);
void tt_joined_free(struct tt_joined *joined); /* NULL is allowed */

/* Trees: a rank's place on a channel. CollNet chain: the same, and the network is rank number nranks. */
struct tt_join_tree tt_join_tree_place(const struct tt_joined *joined, int channel, int rank);
struct tt_join_tree tt_join_chain_place(const struct tt_joined *joined, int channel, int rank);

/* A rank's place in the first (0) or second (1) tree of a searched channel, for those who use both on one channel. */
struct tt_join_tree tt_join_twin_place(const struct tt_joined *joined, int searched, int tree, int rank);

/* NVLS and CollNet direct: the h-th head of a machine, as a rank, and a rank's number among the heads; -1: it is none.
 */
int32_t tt_join_head(const struct tt_joined *joined, enum tt_graph_kind kind, int node, int h);
int tt_join_head_number(const struct tt_joined *joined, enum tt_graph_kind kind, int rank);
/* NVLS: the tree of the heads with the same number. down[0] is the rank's machine, by NCCL's number for its switch:
 * nranks + 1 + number of the head. */
struct tt_join_tree tt_join_nvls_place(const struct tt_joined *joined, int channel, int rank);

/* The channel of a machine's graph that a channel uses there; for rings it differs by machine, see cross_nic. */
int tt_join_graph_channel(const struct tt_joined *joined, enum tt_graph_kind kind, int node, int channel);

/* Point-to-point: in round r of nranks, each rank sends to one and receives from one, itself in round 0. */
void tt_join_peers(const struct tt_joined *joined, int rank, int round, int32_t *to, int32_t *from);
/* The round in which `from` sends to `to`. */
int tt_join_round(const struct tt_joined *joined, int from, int to);
/* The channel that carries part `part` of channels_per_peer of a round's messages. */
int tt_join_peer_channel(const struct tt_joined *joined, int round, int part);

/* Bytes that it holds. */
size_t tt_joined_bytes(const struct tt_joined *joined);

#endif
