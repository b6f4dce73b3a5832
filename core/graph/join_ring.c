/* Rings over all ranks: each machine's order, from its first rank to its last, and then the next machine's.
 *
 * A ring with cross_nic 2 leaves a machine by another NIC than it came by, and the channels of a pair use the two NICs
 * the other way round. So every second machine swaps the channels of each pair: what leaves by one NIC then arrives at
 * the next machine's NIC with the same number, and rails are not crossed. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "graph/join_internal.h"

int tt_join_graph_channel(const struct tt_joined *joined, enum tt_graph_kind kind, int node, int channel)
{
  const struct tt_join_graph *graph = &tt_join_shape_of(joined, node)->graphs[kind];
  const int base = joined->base[channel];
  if (kind == TT_GRAPH_RING) {
    const bool swap = graph->cross_nic == 2 && joined->nsearched % 2 == 0 && node % 2 == 1;
    return (base % joined->nsearched) ^ (int)swap;
  }
  if (kind == TT_GRAPH_TREE) return base % joined->nsearched;
  return graph->nchannels > 0 ? channel % graph->nchannels : 0;
}

/* Begins with rank 0, wherever that is, so that all ranks name a ring alike. */
static void make_ring(const struct tt_joined *joined, int channel, int32_t *ring)
{
  int at = 0;
  int start = -1; /* ranks before rank 0 go to the end */
  for (int pass = 0; pass < 2; pass++)
    for (int node = 0; node < (pass == 0 ? joined->nnodes : 1); node++) {
      const struct tt_join_shape *shape = tt_join_shape_of(joined, node);
      const int of_graph = tt_join_graph_channel(joined, TT_GRAPH_RING, node, channel);
      const uint16_t *order = &shape->graphs[TT_GRAPH_RING].order[of_graph * shape->nranks];
      for (int i = 0; i < shape->nranks; i++) {
        int32_t rank = tt_join_member(joined, node, order[i]);
        if (pass == 0 && rank == 0) start = i;
        if (pass == 0 && start < 0) continue;
        if (pass == 1 && i == start) return;
        ring[at++] = rank;
      }
    }
}

/* Rank 0 is on machine 0, so what comes before it in the ring is of that machine, too. */
ncclResult_t tt_join_make_rings(struct tt_joined *joined)
{
  int of_channel[2 * TT_GRAPH_MOST_CHANNELS];
  const size_t bytes = (size_t)joined->nranks * sizeof(int32_t);
  for (int c = 0; c < 2 * TT_GRAPH_MOST_CHANNELS; c++) of_channel[c] = -1;
  for (int c = 0; c < joined->nchannels; c++) {
    const int channel = joined->base[c] % joined->nsearched;
    if (of_channel[channel] < 0) {
      int32_t *ring;
      TT_TRY(TT_CALLOC(&ring, (size_t)joined->nranks));
      make_ring(joined, c, ring);
      int same = 0;
      while (same < joined->nrings && memcmp(joined->rings[same], ring, bytes) != 0) same++;
      of_channel[channel] = same;
      if (same < joined->nrings)
        free(ring);
      else
        joined->rings[joined->nrings++] = ring;
    }
    joined->ring[c] = joined->rings[of_channel[channel]];
  }
  return ncclSuccess;
}
