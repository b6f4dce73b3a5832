/* How many channels there are. What searches found is doubled, since each channel of a tree needs a twin with the
 * second tree; then come reasons for more; then limits. Channels beyond what was searched repeat it in turn. */
#include "base/check.h"
#include "graph/join_internal.h"

/* Up to `to` channels; those from nchannels on repeat the ones from 0 on. */
static void grow(struct tt_joined *joined, int to)
{
  const int from = joined->nchannels;
  for (int c = from; c < TT_MIN(to, TT_GRAPH_MOST_CHANNELS); c++)
    joined->base[joined->nchannels++] = joined->base[c - from];
}

static int most_ctas(const struct tt_join_rules *rules)
{
  return rules->max_ctas > 0 ? rules->max_ctas : TT_GRAPH_MOST_CHANNELS;
}

static void limit(struct tt_joined *joined, const struct tt_join_rules *rules)
{
  int most = TT_MIN(rules->max_channels, most_ctas(rules));
  int least = TT_MAX(rules->min_channels, rules->min_ctas);
  if (rules->parent_channels > 0) {
    most = TT_MIN(most, rules->parent_channels);
    least = TT_MIN(least, rules->parent_channels);
  }
  joined->nchannels = TT_MIN(joined->nchannels, TT_MAX(most, 1));
  grow(joined, least);
}

/* sm 100: by what NICs carry, as measured. */
static int nvls_channels(const struct tt_joined *joined)
{
  if (joined->min_sm < 100) return 16;
  if (joined->nnodes == 1) return 24;
  const bool fast = joined->net_bandwidth >= 48, faster = joined->net_bandwidth >= 96;
  if (joined->nnodes == 2 && fast) return 32;
  if (faster) return joined->min_local <= 8 ? 24 : 32;
  return fast ? 24 : 32;
}

static void count_nvls(struct tt_joined *joined, const struct tt_join_rules *rules)
{
  if (!rules->nvls || joined->weakest[TT_GRAPH_NVLS].nchannels == 0) return;
  int count = rules->nvls_channels > 0 ? rules->nvls_channels : nvls_channels(joined);
  count = TT_MAX(rules->min_ctas, TT_MIN(most_ctas(rules), count));
  if (rules->parent_nvls_channels > 0) count = TT_MIN(count, rules->parent_nvls_channels);
  joined->nvls_channels = TT_MAX(1, TT_MIN(count, TT_GRAPH_MOST_CHANNELS));
}

void tt_join_count_channels(struct tt_joined *joined, const struct tt_join_rules *rules)
{
  const struct tt_join_graph *chain = &joined->weakest[TT_GRAPH_COLLNET_CHAIN];
  joined->nsearched = TT_MIN(joined->weakest[TT_GRAPH_RING].nchannels, joined->weakest[TT_GRAPH_TREE].nchannels);
  joined->nchannels = TT_MIN(2 * joined->nsearched, TT_GRAPH_MOST_CHANNELS);
  for (int c = 0; c < joined->nchannels; c++) joined->base[c] = (uint8_t)c;
  joined->tree_depth = joined->nranks / joined->nnodes - 1 + tt_join_log2((unsigned)joined->nnodes);
  joined->collnet = rules->collnet && chain->nchannels > 0 && joined->nnodes >= rules->collnet_nodes;
  if (joined->collnet) {
    joined->chain_depth = joined->nranks / joined->nnodes;
    /* Inside machines there is more bandwidth than one channel of the network brings. */
    if (chain->bandwidth_intra > chain->bandwidth_inter && joined->nranks > joined->nnodes)
      grow(joined, joined->nchannels + joined->nchannels / 2);
  }
  const bool wide = joined->min_sm >= 90 && joined->weakest[TT_GRAPH_RING].bandwidth_intra > 45;
  if (joined->nnodes > 1 && wide && joined->nchannels < 16) grow(joined, 2 * joined->nchannels);
  limit(joined, rules);
  count_nvls(joined, rules);
}
