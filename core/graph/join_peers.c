/* Point-to-point: in which order a rank sends to all ranks and receives from them, and on which channels.
 *
 * Ranks form groups of equal size, each on one machine. A round takes each group to another one at a distance, and each
 * of its ranks to another one there; all ranks of a group pass through a distance before the next, so that the traffic
 * of a machine's ranks to another machine comes together. The distances are the triangular numbers modulo a power of
 * two: near and far ones alternate, and each comes once. */
#include <stdlib.h>
#include "base/check.h"
#include "graph/join_internal.h"

enum { BATCH = 8 }; /* messages that a kernel takes at a time */

static int gcd(int a, int b)
{
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The largest size that divides all machines' numbers of ranks. */
static int group_size(const struct tt_joined *joined, int wanted)
{
  int size = joined->nnodes > 1 ? TT_MAX(wanted, 1) : joined->max_local;
  for (int n = 0; n < joined->nnodes; n++) size = gcd(size, joined->first[n + 1] - joined->first[n]);
  return size;
}

static void count_channels(struct tt_joined *joined, const struct tt_join_rules *rules, int wanted)
{
  int count = TT_MAX(TT_MIN(joined->nchannels, rules->max_peer_channels), rules->min_peer_channels);
  if (rules->parent_peer_channels > 0) count = TT_MIN(count, rules->parent_peer_channels);
  joined->peer_channels = TT_MIN(tt_join_power_of_two(count), TT_GRAPH_MOST_CHANNELS);
  joined->channels_per_peer = TT_MIN(tt_join_power_of_two(wanted), TT_GRAPH_MOST_CHANNELS);
  if (joined->nnodes == 1 || rules->channels_per_net_peer > 0) {
    joined->channels_per_peer = TT_MIN(joined->channels_per_peer, joined->peer_channels);
    return;
  }
  /* The network is the bottleneck: as few a peer as let all peers have their turn in one pass over the channels. */
  const int peers = rules->most_peers > 0 ? rules->most_peers : joined->nranks;
  const int64_t batches = ((int64_t)peers + BATCH - 1) / BATCH;
  while (joined->channels_per_peer > 1 && joined->channels_per_peer * batches > joined->peer_channels)
    joined->channels_per_peer /= 2;
}

ncclResult_t tt_join_make_peers(struct tt_joined *joined, const struct tt_join_rules *rules, int channels)
{
  count_channels(joined, rules, channels);
  joined->group = group_size(joined, rules->group);
  joined->ngroups = joined->nranks / joined->group;
  TT_TRY(TT_CALLOC(&joined->delta, (size_t)joined->ngroups));
  TT_TRY(TT_CALLOC(&joined->turn, (size_t)joined->ngroups));
  const int64_t modulo = tt_join_power_of_two(joined->ngroups);
  int32_t turns = 0;
  for (int64_t i = 0; i < modulo; i++) {
    const int64_t delta = i * (i + 1) / 2 % modulo;
    if (delta >= joined->ngroups) continue;
    joined->turn[delta] = turns;
    joined->delta[turns++] = (int32_t)delta;
  }
  return ncclSuccess;
}

static int32_t index_of(const struct tt_joined *joined, int rank)
{
  return joined->first[joined->node[rank]] + joined->local[rank];
}

void tt_join_peers(const struct tt_joined *joined, int rank, int round, int32_t *to, int32_t *from)
{
  const int32_t size = joined->group, n = joined->ngroups, at = index_of(joined, rank);
  const int32_t group = at / size, member = at % size;
  const int32_t far = joined->delta[round / size], near = round % size;
  *to = joined->members[(group + far) % n * size + (member + near) % size];
  *from = joined->members[(group - far + n) % n * size + (member - near + size) % size];
}

int tt_join_round(const struct tt_joined *joined, int from, int to)
{
  const int32_t size = joined->group, n = joined->ngroups;
  const int32_t a = index_of(joined, from), b = index_of(joined, to);
  const int32_t far = (b / size - a / size + n) % n, near = (b % size - a % size + size) % size;
  return joined->turn[far] * size + near;
}

/* Rounds that run at the same time lie far from each other: their numbers' bits are reversed. */
int tt_join_peer_channel(const struct tt_joined *joined, int round, int part)
{
  const int bits = tt_join_log2((unsigned)joined->peer_channels);
  unsigned number = (unsigned)round, base = 0;
  if (joined->nnodes > 1) {
    const int size = joined->group;
    number = (unsigned)(round / size * ((size + BATCH - 1) / BATCH) + round % size / BATCH);
  }
  for (int i = 0; i < bits; i++) base |= (number >> i & 1) << (bits - 1 - i);
  return (int)((base + (unsigned)part) % (unsigned)joined->peer_channels);
}
