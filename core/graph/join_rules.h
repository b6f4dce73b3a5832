/* What users say of channels, and what a communicator is: the input of a join beside the graphs. */
#ifndef TT_GRAPH_JOIN_RULES_H
#define TT_GRAPH_JOIN_RULES_H

#include <stdbool.h>
#include "nccl.h"

/* Equal on all ranks. 0 means no limit, or that the machines decide, where that makes sense. */
struct tt_join_rules {
  int min_channels, max_channels;
  int min_ctas, max_ctas; /* of the communicator's config, or the variables of that name; they bound NVLS too */
  int parent_channels, parent_peer_channels, parent_nvls_channels; /* a child has no more */
  int min_peer_channels, max_peer_channels;                        /* of point-to-point */
  int channels_per_net_peer;
  int most_peers;        /* with which a rank has point-to-point operations at a time */
  int channel_bandwidth; /* GB/s that a channel of point-to-point is expected to carry to a NIC */
  int group;             /* ranks that a round of point-to-point goes over together */
  bool collnet;          /* a plugin reduces in the network */
  int collnet_nodes;     /* machines from which on it is used */
  bool nvls;             /* multicast works on all machines */
  int nvls_channels;
};

struct tt_join_rules tt_join_rules_default(void);
/* Sets what parameters say: ncclInvalidUsage naming the variable, its value and the values allowed. What it says of
 * collnet and nvls only takes away, or gives, what the caller found. */
ncclResult_t tt_join_rules_from_parameters(struct tt_join_rules *rules);
/* Name and meaning of variable number i; false past the end. */
bool tt_join_rules_describe(int i, const char **name, const char **meaning);

#endif
