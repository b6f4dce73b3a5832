/* Ranks of several hosts that share NVLink (multi-node NVLink): which of them are one machine to the search.
 *
 * Each rank tells the others its device's place in the fabric; from that alone, and from variables that are equal on
 * all ranks, each finds the same cliques. The ranks of one then fuse what they see (fuse.h) as if they were on one
 * host. */
#ifndef TT_TOPOLOGY_CLIQUE_H
#define TT_TOPOLOGY_CLIQUE_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"

enum { TT_CLIQUE_CLUSTER = 16 }; /* bytes of a UUID */

/* Of one rank: plain data that is sent as it is. */
struct tt_fabric {
  uint64_t host; /* equal for ranks of one host */
  uint32_t clique;
  uint8_t joined;   /* the device is in a fabric, wholly and without an error */
  uint8_t exported; /* this rank could export device memory to other hosts, and import it; tried where `joined` */
  uint8_t reserved[2];
  unsigned char cluster[TT_CLIQUE_CLUSTER]; /* all zero: in none */
};

/* What users say of it. */
struct tt_clique_rules {
  int enable;      /* NCCL_MNNVL_ENABLE. 0: never; 1: also on one host, and it must work; 2: where there are several */
  int64_t cluster; /* NCCL_MNNVL_UUID: in place of both halves of the device's UUID; -1: the device's */
  int64_t clique;  /* NCCL_MNNVL_CLIQUE_ID: in place of the device's; -1: the device's */
  bool peers;      /* false: GPUs never use each other's memory, so there is nothing to share */
};

struct tt_clique {
  int *ranks; /* of this rank's clique, ascending; NULL: there are none, and hosts are machines of their own */
  int size;
  int index;  /* of this rank among them */
  int domain; /* ranks of the whole cluster, whose other cliques only the fabric reaches */
};

struct tt_clique_rules tt_clique_rules_default(void);
/* Puts what users say into a rank's own word, before it is sent. */
void tt_clique_override(struct tt_fabric *fabric, const struct tt_clique_rules *rules);
/* The clique of `rank`. If memory cannot be shared though all devices are in a fabric, it is ncclSystemError with
 * enable 1, and a warning else, on all ranks alike. */
ncclResult_t tt_clique_find(const struct tt_fabric *fabrics, int nranks, int rank, const struct tt_clique_rules *rules,
                            struct tt_clique *clique);
void tt_clique_free(struct tt_clique *clique);

#endif
