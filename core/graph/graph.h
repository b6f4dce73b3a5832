/* What a search finds inside one machine: channels, each an order in which data visits the GPUs, and the NETs by which
 * it enters and leaves. One graph for each way of moving data; NCCL's names, numbers and meanings, so that graph files
 * of both are the same.
 *
 * Bandwidths are GB/s (10^9 bytes) a channel, one direction. A graph is not changed once it is made. */
#ifndef TT_GRAPH_GRAPH_H
#define TT_GRAPH_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"
#include "topology/topology.h"

#define TT_GRAPH_MOST_CHANNELS 64
#define TT_GRAPH_NO_NET (-1)

/* The numbers are the ids in graph files. */
enum tt_graph_kind {
  TT_GRAPH_RING = 0,
  TT_GRAPH_TREE = 1,
  TT_GRAPH_COLLNET_CHAIN = 2,
  TT_GRAPH_NVLS = 3,
  TT_GRAPH_COLLNET_DIRECT = 4,
  TT_GRAPH_KINDS
};

/* Where the way to and from the NET leaves the order of GPUs. */
enum tt_graph_pattern {
  TT_PATTERN_BALANCED_TREE = 1, /* parent and one child at the first GPU, the other child at the second */
  TT_PATTERN_SPLIT_TREE = 2,    /* parent at the first GPU, both children at the second */
  TT_PATTERN_TREE = 3,          /* all at the first GPU */
  TT_PATTERN_RING = 4,          /* in at the first GPU, out at the last */
  TT_PATTERN_NVLS = 5,          /* a head, which reaches all others through the switch */
  TT_PATTERN_COLLNET_DIRECT = 6 /* a head, which reaches all others by their paths */
};

struct tt_graph {
  enum tt_graph_kind kind;
  enum tt_graph_pattern pattern;
  int cross_nic; /* 0: a ring leaves by the NIC by which it came; 1: by any; 2: channels swap their NICs in pairs */
  int nchannels; /* 0: there is none */
  bool same_channels;                     /* all channels follow the same paths */
  float bandwidth_intra, bandwidth_inter; /* between GPUs; to and from NETs */
  float latency_inter;                    /* microseconds, of the slowest NET in use */
  enum tt_path_type type_intra, type_inter;
  int nranks;     /* of a channel: all GPUs of the topology */
  int32_t *ranks; /* [channel * nranks + i]; the patterns with a head have that at i = 0 and -1 from there on */
  int64_t *nets;  /* [channel * 2]: in, out: the NET's dev, with the host << 56; TT_GRAPH_NO_NET */
};

/* An empty graph with room for `nchannels` channels of `nranks` ranks. */
ncclResult_t tt_graph_new(enum tt_graph_kind kind, int nchannels, int nranks, struct tt_graph **graph);
void tt_graph_free(struct tt_graph *graph); /* NULL is allowed */

/* "ring", "tree", "collnetchain", "nvls", "collnetdirect" */
const char *tt_graph_name(enum tt_graph_kind kind);

#endif
