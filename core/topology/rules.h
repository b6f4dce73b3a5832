/* What users say of paths: which GPUs may reach each other how. A table names the variables; see rules.c. */
#ifndef TT_TOPOLOGY_RULES_H
#define TT_TOPOLOGY_RULES_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"

struct tt_topology_rules {
  int peer_level;       /* the farthest path type on which GPUs use each other's memory; -1: by the machine */
  int gpu_direct_level; /* the same for NETs and GPUs; -1: by the machine */
  int gpu_direct_read;  /* whether NETs read GPUs' memory directly: 0, 1, -2: by the machine */
  bool gpu_direct_c2c;  /* also across a C2C link */
  bool peers;           /* false: GPUs never use each other's memory */
  bool shared_memory;   /* false: ranks never share host memory */
  bool relays;          /* false: no NVLink path leads through another GPU */
  bool net_intra;       /* false: the network is never preferred between GPUs of a host */
  bool pxn;             /* false: no GPU uses the NIC of another */
  bool pxn_c2c;         /* also where that GPU reaches it by a C2C link */
  int nets_per_gpu;     /* 0: shared out evenly; -1: all; else at most so many */
  int peer_reads;       /* whether GPUs read each other's memory, rather than write: 0, 1, -2: by the machine */
  bool force_flush;     /* what NETs put into GPUs' memory is always flushed */

  /* What the driver says of GPUs' use of each other's memory, as the ranks found out: [from * peer_ranks + to],
   * TT_PEER_NO_* or 0. NULL: nothing. tt_topology_create copies it. */
  const uint8_t *peer_status;
  int peer_ranks;
  const int *peers_of;       /* ranks that its rows and columns are of, ascending; NULL: 0, 1, ... Copied, too. */
  int ignore_disabled_peers; /* 0: a driver that refuses peers with NVLink is an error; 1: it is obeyed; 2: it is not
                                looked at */
};

enum { TT_PEER_NO_READ = 1, TT_PEER_NO_WRITE = 2 };

struct tt_topology_rules tt_topology_rules_default(void);
/* Sets what the variable `name` says: ncclInvalidUsage naming it, its value and the values allowed. *known tells
 * whether the table has it. */
ncclResult_t tt_topology_rules_set(struct tt_topology_rules *rules, const char *name, const char *value, bool *known);
/* Sets all that the environment and the configuration files say; the same error, which also tells where it was set. */
ncclResult_t tt_topology_rules_from_parameters(struct tt_topology_rules *rules);
/* What the driver says of the use that rank `from` makes of the memory of `to`: TT_PEER_NO_*, 0. */
uint8_t tt_topology_rules_peer(const struct tt_topology_rules *rules, int from, int to);
/* Name and meaning of variable number i; false past the end. */
bool tt_topology_rules_describe(int i, const char **name, const char **meaning);

#endif
