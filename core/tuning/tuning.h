/* Tuning: one function from (collective, bytes) to an algorithm, a protocol and a number of channels, with its reason.
 * Depends only on what all ranks agreed on, so that all choose alike. */
#ifndef TT_TUNING_TUNING_H
#define TT_TUNING_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "tutti/device.h"

/* What executes: host threads, or GPUs. */
enum tt_tuning_kind { TT_TUNING_HOST = 0, TT_TUNING_GPU = 1 };

/* Whether a GPU's copy engines do what Mapped only moves. Kernels then do no more than exchange the messages before and
 * after. Engines are a little faster than kernels for large data, and leave the device's processors to others. */
enum tt_tuning_engines { TT_ENGINES_NEVER = 0, TT_ENGINES_IF_FASTER, TT_ENGINES_ALWAYS };
/* What TUTTI_COPY_ENGINES says of them, or where it has no opinion, a communicator's policy (NCCL_CTA_POLICY_*). */
enum tt_tuning_engines tt_tuning_engines_asked(int cta_policy);

/* What the choice may depend on. Equal on all ranks. */
struct tt_tuning_input {
  enum tt_tuning_kind kind;
  int nranks, nnodes;
  int max_ranks_per_node;
  bool all_mapped;     /* every pair of ranks shares memory */
  bool members_mapped; /* every two ranks' devices use each other's memory, and connections lie there: Mapped */
  bool network;        /* GPUs: some ranks are connected over a network */
  enum tt_tuning_engines engines; /* NEVER where the device has none */
  bool one_process;               /* some of the ranks are of one process */
  bool nodes_mapped;              /* every pair of ranks of one node shares host memory */
  bool multicast;                 /* GPUs: the ranks of each node can have memory with a multicast address */
  bool multicast_wanted;          /* and it is used where it is the fastest, not only where NCCL_ALGO names it */
  int multicast_channels;         /* that NVLS is to have; 0: no opinion */
  bool through_host;              /* GPUs: some ranks of a node meet in the host's memory, not in that of a device */
  bool torn_lines;                /* between some ranks lines of 128 bytes may arrive in pieces, so that LL128 is out */
  uint32_t protocols;             /* the device's, as bits */
  int device_channels;            /* that the device likes to use at most; 0: no opinion */
  int most_peers;                 /* ranks that a program of the device can name; 0: any number */
  int network_paths; /* on the host device: ways between nodes, or NICs, that channels can spread over; 0: unknown */
  int min_channels, max_channels;
  size_t buffer_bytes[TT_NUM_PROTOCOLS];
  /* Networks that reduce (CollNet): how many there are, 0 if none is in use, and the channels that each has. */
  int collnet_networks, collnet_channels;
};

struct tt_tuning; /* immutable after creation: any thread */

/* Parses NCCL_ALGO and NCCL_PROTO (whole grammar). ncclInvalidUsage naming the variable, its value and what is
 * allowed. */
ncclResult_t tt_tuning_create(const struct tt_tuning_input *input, struct tt_tuning **out);
void tt_tuning_destroy(struct tt_tuning *tuning);

/* Channels for which ranks need memory that their node shares (NVLS, NVLSTree); 0: no choice will use any. */
int tt_tuning_shared_channels(const struct tt_tuning *tuning);

struct tt_choice {
  int algorithm, protocol, nchannels;
  float microseconds;    /* predicted */
  size_t smallest_chunk; /* bytes: cutting a chain's data further costs more than it overlaps */
  int chunks;            /* a channel's share of a chain's data is cut into so many, so that its hops overlap */
  size_t largest_chunk;  /* bytes that a channel sends at once, where a tuner wants less than fits; 0: what fits */
  bool engines;          /* copy engines copy */
  char reason[160];      /* why this one, and what overruled it */
};

/* `bytes`: element size times the larger of the send and receive counts. When NCCL_ALGO names nothing that the
 * collective has, the other constraints stay and the fallback says so; when nothing is left, ncclInvalidUsage naming
 * the variable, its value and what the collective has. */
ncclResult_t tt_tuning_choose(const struct tt_tuning *tuning, int collective, size_t bytes, struct tt_choice *choice);
/* What an operation cannot use, as bits: CollNet or NVLS, since the network, or multicast memory, does not reduce its
 * type by its operation; and what only some can use: Mapped, as all ranks have mapped its buffers. */
enum { TT_WITHOUT_COLLNET = 1, TT_WITHOUT_NVLS = 2, TT_WITH_MAPPED = 4 };
/* The same without some algorithms, or with Mapped, which is else no candidate. `choice->reason` says so if NCCL_ALGO
 * names what is out. */
ncclResult_t tt_tuning_choose_without(const struct tt_tuning *tuning, int collective, size_t bytes, uint32_t without,
                                      struct tt_choice *choice);

/* ---- For what a tuner has a say in: collectives that it is asked about, broadcast to all-reduce ---- */

/* Predicted microseconds of what NCCL_ALGO and NCCL_PROTO leave; -1 where a pair is no candidate. */
void tt_tuning_table(const struct tt_tuning *tuning, int collective, size_t bytes, uint32_t without,
                     float table[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS]);
/* Why a pair is no candidate; NULL if it is one. */
const char *tt_tuning_excludes(const struct tt_tuning *tuning, int collective, int algorithm, int protocol,
                               uint32_t without);
/* The choice of a pair that is a candidate, with the core's number of channels; its reason is left empty. */
void tt_tuning_pair(const struct tt_tuning *tuning, int collective, size_t bytes, int algorithm, int protocol,
                    struct tt_choice *choice);
/* Sets the channels of a choice: the nearest number to `wanted` that it can have; 0: the core's. */
void tt_tuning_set_channels(const struct tt_tuning *tuning, int collective, size_t bytes, int wanted,
                            struct tt_choice *choice);
/* Has copy engines do what was chosen, if they can and should: the last step of a choice. */
void tt_tuning_use_engines(const struct tt_tuning *tuning, int collective, size_t bytes, struct tt_choice *choice);
/* Whether the collective has to be done as the sends and receives that it is, since no program of the device can name
 * as many ranks; nothing is chosen for it then. The same on all ranks. */
bool tt_tuning_as_messages(const struct tt_tuning *tuning, int collective);
/* Bytes that fit a slot. */
size_t tt_tuning_chunk(const struct tt_tuning *tuning, int protocol);

#endif
