/*
 * tutti/tuner.h: the tuner plugin ABI, versions 2 to 6, compatible with NCCL's.
 *
 * A tuner is a shared library that exports one or more data objects `ncclTunerPlugin_vN` of type ncclTuner_vN_t. The
 * loader takes the newest version that it knows, copies the struct, and never writes to it. A tuner is asked which
 * algorithm, protocol and number of channels a collective should use; it sees what the core expects each choice to
 * take, and changes those figures. docs/tuner-plugins.md says what becomes of its answers.
 *
 * Rules that hold for every member
 *   - Return values as in tutti/net.h. An error of init makes the creation of the communicator fail. An error of any
 *     other member is reported, and the core chooses as if there were no tuner.
 *   - Answers should depend on the arguments alone, and be the same on all ranks: where they are not, rank 0's hold.
 *     What else may depend on time asks to be asked again (tuttiTunerExtension_v1).
 *   - Nothing waits for other ranks.
 *   - "May be NULL" says which members may be NULL. getCollInfo must be set.
 *
 * Threads: the members of one context are called one at a time, by threads that create, use and destroy the
 * communicator, and on rank 0 also by a service thread of the core. Contexts of several communicators are used at once.
 *
 * Everything is documented once, at ncclTuner_v6_t; older versions by their difference from the next newer one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TUTTI_TUNER_H_
#define TUTTI_TUNER_H_

#include "tutti.h"     /* tuttiNetStats_t */
#include "tutti/net.h" /* ncclDebugLogger_t, ncclFunc_t */

#ifdef __cplusplus
extern "C" {
#define TUTTI_TUNER_ASSERT(condition) static_assert(condition, #condition)
#else
#define TUTTI_TUNER_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* Collectives that tuners are asked about: ncclFuncBroadcast to ncclFuncAllReduce. */
#define NCCL_NUM_FUNCTIONS 5

/* Rows of the cost table. */
#define NCCL_ALGO_UNDEF -1
#define NCCL_ALGO_TREE 0
#define NCCL_ALGO_RING 1
#define NCCL_ALGO_COLLNET_DIRECT 2
#define NCCL_ALGO_COLLNET_CHAIN 3
#define NCCL_ALGO_NVLS 4
#define NCCL_ALGO_NVLS_TREE 5
#define NCCL_ALGO_PAT 6
#define NCCL_NUM_ALGORITHMS 7
/* Rows that follow for tuners that say so with tuttiTunerExtension_v1; numbered as in tutti/program.h, where 9 is
 * point to point, never for a tuner to choose. */
#define TUTTI_ALGO_ONE_SHOT 7
#define TUTTI_ALGO_TWO_SHOT 8
#define TUTTI_ALGO_DIRECT 10
#define TUTTI_ALGO_MAPPED 11 /* in buffers of windows only; elsewhere no candidate */
#define TUTTI_NUM_ALGORITHMS 12

/* Columns of the cost table. */
#define NCCL_PROTO_UNDEF -1
#define NCCL_PROTO_LL 0
#define NCCL_PROTO_LL128 1
#define NCCL_PROTO_SIMPLE 2
#define NCCL_NUM_PROTOCOLS 3

/* What the table holds where a choice is impossible or excluded. */
#define NCCL_ALGO_PROTO_IGNORE -1.0

/* ---- What init is told from version 5 on ---- */

/* Ranks between which NVLink, or here: memory that both map, makes one domain. */
typedef struct {
  int nNvlDomains;
  int minRanksPerNvlDomain;
  int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;
typedef ncclNvlDomainInfo_v5_t ncclNvlDomainInfo_v6_t;

#define NCCL_HW_NVLINK 0
#define NCCL_HW_PCI 1
#define NCCL_HW_NET 2
#define NCCL_NUM_HW_LINKS 3
#define NCCL_VOLTA_COMPCAP_IDX 0
#define NCCL_AMPERE_COMPCAP_IDX 1
#define NCCL_HOPPER_COMPCAP_IDX 2
#define NCCL_BLACKWELL_COMPCAP_IDX 3
#define NCCL_NUM_COMPCAPS 4
#define NCCL_TUNING_SCALE_1NODE 0
#define NCCL_TUNING_SCALE_2NODES 1
#define NCCL_TUNING_SCALE_4NODES 2
#define NCCL_NUM_TUNING_SCALES 3

/* Constants of NCCL's cost model: latencies in microseconds, bandwidths in GB/s. Tutti's model has other ones: it fills
 * in what it takes a step and a link for, the same for all algorithms and generations of GPUs, and reports that it does
 * not use what a tuner changes. */
typedef struct {
  double baseLatencies[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
  double hwLatencies[NCCL_NUM_HW_LINKS][NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
  double llMaxBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
  double perChMaxRingLL128Bws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
  double perChMaxTreeLL128Bws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
  double perChMaxTreeBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
  double perChMaxNVLSTreeBws[NCCL_NUM_COMPCAPS][NCCL_NUM_TUNING_SCALES];
} ncclTunerConstants_v5_t;
typedef ncclTunerConstants_v5_t ncclTunerConstants_v6_t;

/* ---- Version 6 ---- */

typedef struct {
  /* For messages, and to compare ranks. May be NULL. */
  const char *name;
  /* Once for each communicator; *ctx is the plugin's and comes back with all other members. commId is equal on all
   * ranks. The structs are the caller's, and gone when init returns. May be NULL: the context is then NULL. */
  ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                       ncclNvlDomainInfo_v6_t *nvlDomainInfo, ncclTunerConstants_v6_t *constants);
  /* What should a collective use? nBytes: the size of an element times the larger of the two counts of a rank, so for
   * all-gather and reduce-scatter the data of all ranks. numPipeOps: collectives planned as one. regBuff: 1 if the
   * core would work in registered user buffers.
   *
   * collCostTable is not an array of pointers: it is the address of a float[numAlgo][numProto], to be cast back to
   * float (*)[numProto]. It holds microseconds, or NCCL_ALGO_PROTO_IGNORE. The tuner lowers what it prefers (0.0 is
   * best) and writes NCCL_ALGO_PROTO_IGNORE where it forbids; it must not write where that stands already. The smallest
   * figure that is not negative wins, the first of equals. *nChannels is 0; any other number asks for that many
   * channels, whatever wins. A tuner without an opinion returns ncclSuccess and writes nothing. */
  ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps, float **collCostTable,
                              int numAlgo, int numProto, int regBuff, int *nChannels);
  /* Ends a context. Called once for each init that succeeded, after everything else. May be NULL. */
  ncclResult_t (*finalize)(void *ctx);
  /* *chunkSize: bytes that a channel sends at once by what getCollInfo's answer came to. The tuner may write a smaller
   * number; larger ones do not fit the buffers. May be NULL. */
  ncclResult_t (*getChunkSize)(void *ctx, ncclFunc_t collType, size_t nBytes, int algo, int proto, int nChannels,
                               size_t *chunkSize);
} ncclTuner_v6_t;

/* ---- Version 5: no getChunkSize ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                       ncclNvlDomainInfo_v5_t *nvlDomainInfo, ncclTunerConstants_v5_t *constants);
  ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps, float **collCostTable,
                              int numAlgo, int numProto, int regBuff, int *nChannels);
  ncclResult_t (*finalize)(void *ctx);
} ncclTuner_v5_t;

/* ---- Version 4: init is told less and returns the context last; finalize is called destroy ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **ctx);
  ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps, float **collCostTable,
                              int numAlgo, int numProto, int regBuff, int *nChannels);
  ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v4_t;

/* ---- Version 3: no regBuff ---- */

typedef struct {
  const char *name;
  ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **ctx);
  ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t collType, size_t nBytes, int numPipeOps, float **collCostTable,
                              int numAlgo, int numProto, int *nChannels);
  ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v3_t;

/* ---- Version 2: one answer instead of a table ----
 *
 * collNetSupport and nvlsSupport: whether the CollNet and NVLS algorithms are possible. *algorithm and *protocol are
 * NCCL_ALGO_UNDEF and NCCL_PROTO_UNDEF on entry; a tuner sets both or none. */

typedef struct {
  const char *name;
  ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **ctx);
  ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t collType, size_t nBytes, int collNetSupport, int nvlsSupport,
                              int numPipeOps, int *algorithm, int *protocol, int *nChannels);
  ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v2_t;

/* ---- Tutti's extension ----
 *
 * A tuner that also exports an object `tuttiTunerExtension_v1` tells Tutti what else it understands. NCCL does not look
 * for it. */

/* getCollInfo (v3 and newer) takes tables with TUTTI_NUM_ALGORITHMS rows: it goes by numAlgo, and leaves rows alone
 * that it does not know. Others get NCCL's seven rows, and Tutti's own algorithms win only where the tuner has changed
 * neither the figure that would win nor preferred another one. */
#define TUTTI_TUNER_ALL_ALGORITHMS 0x1

/* A question of a tuner that asks to be asked again. Calls are of one kind if the tuner could not tell them apart by
 * these members. A kind's calls are counted from the first on, in epochs, each of which begins with a question; since
 * all ranks make the same calls in the same order, they all come to the same question at the same call. */
typedef struct {
  size_t size; /* of this struct as the core knows it; first, always */
  ncclFunc_t collType;
  size_t nBytes; /* this and the next two as for getCollInfo */
  int numPipeOps, regBuff;
  uint32_t variant; /* not 0: not all is possible that is with 0, or more; equal bits mean equal tables */
  uint64_t epoch;   /* questions about this kind before this one */
  uint64_t calls;   /* of this kind since the question before; all ranks have made them or are at them. 0: the first */
  /* Fills *stats as tuttiCommNetStats does for this rank's communicator. Only during the call; costs those that move
   * data nothing. NULL where there is no communicator, as in tools; ncclInProgress: not now. */
  ncclResult_t (*netStats)(void *core, tuttiNetStats_t *stats);
  void *core; /* for netStats */
} tuttiTunerEpoch_v1_t;

typedef struct {
  size_t size;       /* sizeof(tuttiTunerExtension_v1_t) of who compiled it; later versions only append */
  uint64_t features; /* TUTTI_TUNER_*; unknown bits are ignored */
  /* ---- Both or none; of tuners with a table, v3 and newer ---- */
  /* Once a context, when its init has succeeded: whether it asks to be asked again. If it does, getEpochInfo is called
   * in place of getCollInfo, and on rank 0 only: answers may depend on what that rank has seen. */
  int (*asksAgain)(void *ctx);
  /* As getCollInfo. *askAgainAfter is 0: this answer is the last about the kind. Else it is asked again after so many
   * calls, or more where ranks are far apart. */
  ncclResult_t (*getEpochInfo)(void *ctx, const tuttiTunerEpoch_v1_t *epoch, float **collCostTable, int numAlgo,
                               int numProto, int *nChannels, uint64_t *askAgainAfter);
} tuttiTunerExtension_v1_t;

TUTTI_TUNER_ASSERT(sizeof(ncclTunerConstants_v5_t) == 1152);
TUTTI_TUNER_ASSERT(sizeof(ncclNvlDomainInfo_v5_t) == 12);
TUTTI_TUNER_ASSERT(sizeof(ncclTuner_v6_t) == 5 * sizeof(void *));
TUTTI_TUNER_ASSERT(sizeof(ncclTuner_v5_t) == 4 * sizeof(void *));
TUTTI_TUNER_ASSERT(sizeof(ncclTuner_v2_t) == 4 * sizeof(void *));

#ifdef __cplusplus
}
#endif

#endif
