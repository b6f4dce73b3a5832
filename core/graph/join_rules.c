/* The rules of a join from variables. Their names, ranges and meanings are in base/param_table.h. */
#include "graph/join_rules.h"

#include <stddef.h>
#include <stdint.h>
#include "base/check.h"
#include "base/param.h"
#include "base/text.h"
#include "graph/graph.h"

struct variable {
  enum tt_param_id id;
  size_t offset;
};

#define AT(member) offsetof(struct tt_join_rules, member)
static const struct variable variables[] = {
    {TT_PARAM_NCCL_MIN_NCHANNELS, AT(min_channels)},
    {TT_PARAM_NCCL_MAX_NCHANNELS, AT(max_channels)},
    {TT_PARAM_NCCL_MIN_CTAS, AT(min_ctas)},
    {TT_PARAM_NCCL_MAX_CTAS, AT(max_ctas)},
    {TT_PARAM_NCCL_MIN_P2P_NCHANNELS, AT(min_peer_channels)},
    {TT_PARAM_NCCL_MAX_P2P_NCHANNELS, AT(max_peer_channels)},
    {TT_PARAM_NCCL_NCHANNELS_PER_NET_PEER, AT(channels_per_net_peer)},
    {TT_PARAM_NCCL_P2P_MAX_PEERS, AT(most_peers)},
    {TT_PARAM_NCCL_P2P_PER_CHANNEL_NET_BW, AT(channel_bandwidth)},
    {TT_PARAM_NCCL_P2P_SCHEDULE_GROUP_SIZE, AT(group)},
    {TT_PARAM_NCCL_COLLNET_NODE_THRESHOLD, AT(collnet_nodes)},
    {TT_PARAM_NCCL_NVLS_NCHANNELS, AT(nvls_channels)},
};

struct tt_join_rules tt_join_rules_default(void)
{
  return (struct tt_join_rules){.max_channels = TT_GRAPH_MOST_CHANNELS,
                                .max_ctas = TT_GRAPH_MOST_CHANNELS,
                                .min_peer_channels = 1,
                                .max_peer_channels = TT_GRAPH_MOST_CHANNELS,
                                .channel_bandwidth = 14,
                                .group = 8,
                                .collnet_nodes = 2,
                                .nvls = true};
}

static ncclResult_t read_number(enum tt_param_id id, int64_t *number, bool *is_set)
{
  const struct tt_param *param = tt_param_describe(id);
  const char *text = tt_param_text(id);
  *is_set = text && *text;
  if (*is_set && (!tt_text_int(text, number) || *number < param->min || *number > param->max))
    return tt_param_refuse(id, NULL);
  return ncclSuccess;
}

/* Negative numbers leave it to the machine. */
ncclResult_t tt_join_rules_from_parameters(struct tt_join_rules *rules)
{
  int64_t number = 0;
  bool is_set;
  for (size_t i = 0; i < TT_COUNT(variables); i++) {
    TT_TRY(read_number(variables[i].id, &number, &is_set));
    if (is_set && number >= 0) *(int *)((char *)rules + variables[i].offset) = (int)number;
  }
  TT_TRY(read_number(TT_PARAM_NCCL_COLLNET_ENABLE, &number, &is_set));
  if (is_set) rules->collnet = number != 0;
  TT_TRY(read_number(TT_PARAM_NCCL_NVLS_ENABLE, &number, &is_set));
  if (is_set && number == 0) rules->nvls = false;
  return ncclSuccess;
}

bool tt_join_rules_describe(int i, const char **name, const char **meaning)
{
  static const enum tt_param_id others[] = {TT_PARAM_NCCL_COLLNET_ENABLE, TT_PARAM_NCCL_NVLS_ENABLE};
  if (i < 0 || i >= (int)(TT_COUNT(variables) + TT_COUNT(others))) return false;
  const size_t at = (size_t)i;
  const struct tt_param *param =
      tt_param_describe(at < TT_COUNT(variables) ? variables[at].id : others[at - TT_COUNT(variables)]);
  *name = param->name;
  *meaning = param->help;
  return true;
}
