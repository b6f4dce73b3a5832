/* Names of collectives, algorithms and protocols, as logs and tools print them and as the tuning variables spell
 * them. */
#include "base/check.h"
#include "program/emit.h"

static const char *name(const char *const *names, int count, int index)
{
  return index >= 0 && index < count ? names[index] : "Unknown";
}

const char *tt_collective_name(int collective)
{
  static const char *const names[TT_NUM_FUNCS] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                                  "AllReduce", "SendRecv", "Send",      "Recv",
                                                  "AlltoAll",  "Scatter",  "Gather"};
  return name(names, TT_NUM_FUNCS, collective);
}

const char *tt_algorithm_name(int algorithm)
{
  static const char *const names[TT_NUM_ALGORITHMS] = {"TREE",      "RING",  "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                                       "NVLS_TREE", "PAT",   "ONE_SHOT",       "TWO_SHOT",      "P2P",
                                                       "DIRECT",    "MAPPED"};
  return name(names, TT_NUM_ALGORITHMS, algorithm);
}

const char *tt_protocol_name(int protocol)
{
  static const char *const names[TT_NUM_PROTOCOLS] = {"LL", "LL128", "SIMPLE"};
  return name(names, TT_NUM_PROTOCOLS, protocol);
}
