/* What was joined, in words. */
#include <stdio.h>
#include <stdlib.h>
#include "join.h"

static void print_nets(const struct tt_joined *joined, const struct join_fleet *fleet)
{
  int on_rail = 0, crossed = 0;
  if (joined->nnodes < 2) return;
  for (int c = 0; c < joined->nchannels && c < joined->nsearched; c++)
    for (int n = 0; n < joined->nnodes; n++) {
      const int next = (n + 1) % joined->nnodes;
      const int a = fleet->part_of[joined->members[joined->first[n]] % fleet->nlocal];
      const int b = fleet->part_of[joined->members[joined->first[next]] % fleet->nlocal];
      const struct tt_graph *from = fleet->parts[a].graphs[TT_GRAPH_RING], *to = fleet->parts[b].graphs[TT_GRAPH_RING];
      const int64_t out = from->nets[2 * tt_join_graph_channel(joined, TT_GRAPH_RING, n, c) + 1];
      const int64_t in = to->nets[2 * tt_join_graph_channel(joined, TT_GRAPH_RING, next, c)];
      if (out == TT_GRAPH_NO_NET || in == TT_GRAPH_NO_NET) continue;
      on_rail += out == in;
      crossed += out != in;
    }
  printf("rings between machines: %d ways from a NET to the one with the same number, %d to another\n", on_rail,
         crossed);
}

void join_print_counts(const struct tt_joined *joined, const struct join_fleet *fleet)
{
  const struct tt_join_graph *ring = &joined->weakest[TT_GRAPH_RING], *tree = &joined->weakest[TT_GRAPH_TREE];
  printf("%d machines of %d", joined->nnodes, joined->min_local);
  if (joined->max_local > joined->min_local) printf(" to %d", joined->max_local);
  printf(" ranks, %d ranks\n", joined->nranks);
  printf("collectives: %d channels, of %d that were searched; %d different rings\n", joined->nchannels,
         joined->nsearched, joined->nrings);
  printf("rings: %.4g GB/s inside (%s), %.4g outside (%s)\n", (double)ring->bandwidth_intra,
         tt_topology_name_path(ring->type_intra), (double)ring->bandwidth_inter,
         tt_topology_name_path(ring->type_inter));
  printf("trees: %.4g GB/s inside (%s), %.4g outside (%s), depth %d\n", (double)tree->bandwidth_intra,
         tt_topology_name_path(tree->type_intra), (double)tree->bandwidth_inter,
         tt_topology_name_path(tree->type_inter), joined->tree_depth);
  if (joined->nvls_channels > 0)
    printf("NVLS: %d channels, %d heads a machine\n", joined->nvls_channels, joined->nvls_heads);
  if (joined->collnet) printf("CollNet: chains of %d, %d heads of direct\n", joined->chain_depth, joined->direct_heads);
  printf("sends and receives: %d channels, %d a peer; %d ranks go to a group together\n", joined->peer_channels,
         joined->channels_per_peer, joined->group);
  print_nets(joined, fleet);
}

/* "0 3 2 1 | 5 6 7 4": a bar between machines. */
static void print_ring(const struct tt_joined *joined, int channel)
{
  printf("ring %d:", channel);
  for (int i = 0; i < joined->nranks; i++) {
    const int32_t rank = joined->ring[channel][i];
    if (i > 0 && joined->node[rank] != joined->node[joined->ring[channel][i - 1]]) fputs(" |", stdout);
    printf(" %d", rank);
  }
  putchar('\n');
}

/* "0 (3 (2) 4 (7))": below a rank, in brackets, those that are below it. A list of ranks to print, not recursion, as
 * chains may be long; -1 closes a bracket. */
static void print_tree(const struct tt_joined *joined, int channel)
{
  int32_t *list = malloc(((size_t)joined->nranks * 2 + 4) * sizeof(*list));
  int count = 0, root = 0;
  bool first = true;
  if (!list) abort();
  while (tt_join_tree_place(joined, channel, root).up >= 0) root = tt_join_tree_place(joined, channel, root).up;
  printf("tree %d: ", channel);
  list[count++] = root;
  while (count > 0) {
    const int32_t rank = list[--count];
    if (rank < 0) {
      putchar(')');
      continue;
    }
    printf("%s%d", first ? "" : " ", rank);
    first = false;
    const struct tt_join_tree place = tt_join_tree_place(joined, channel, rank);
    if (place.down[0] < 0) continue;
    fputs(" (", stdout);
    first = true;
    list[count++] = -1;
    for (int i = 2; i >= 0; i--)
      if (place.down[i] >= 0) list[count++] = place.down[i];
  }
  putchar('\n');
  free(list);
}

void join_print_channels(const struct tt_joined *joined, int only)
{
  for (int c = 0; c < joined->nchannels; c++) {
    if (only >= 0 ? c != only : joined->base[c] != c) continue;
    if (only >= 0 || c < joined->nsearched) print_ring(joined, c);
  }
  for (int c = 0; c < joined->nchannels; c++)
    if (only >= 0 ? c == only : joined->base[c] == c) print_tree(joined, c);
}

static void print_place(const char *name, int channel, const struct tt_join_tree *place)
{
  printf("%s %d: ", name, channel);
  if (place->up < 0)
    fputs("root", stdout);
  else
    printf("below %d", place->up);
  for (int i = 0; i < 3 && place->down[i] >= 0; i++) printf("%s%d", i == 0 ? ", above " : " ", place->down[i]);
  putchar('\n');
}

static void print_ring_place(const struct tt_joined *joined, int rank, int channel)
{
  const int32_t *ring = joined->ring[channel];
  int at = 0;
  while (ring[at] != rank) at++;
  printf("ring %d: place %d, from %d, to %d\n", channel, at, ring[at == 0 ? joined->nranks - 1 : at - 1],
         ring[(at + 1) % joined->nranks]);
}

void join_print_rank(const struct tt_joined *joined, int rank, int only)
{
  printf("rank %d: machine %d, number %d of %d there\n", rank, joined->node[rank], joined->local[rank],
         joined->first[joined->node[rank] + 1] - joined->first[joined->node[rank]]);
  for (int c = 0; c < joined->nchannels; c++)
    if (only >= 0 ? c == only : joined->base[c] == c && c < joined->nsearched) print_ring_place(joined, rank, c);
  for (int c = 0; c < joined->nchannels; c++) {
    if (only >= 0 ? c != only : joined->base[c] != c) continue;
    const struct tt_join_tree place = tt_join_tree_place(joined, c, rank);
    print_place("tree", c, &place);
  }
  const int head = joined->nvls_channels > 0 ? tt_join_head_number(joined, TT_GRAPH_NVLS, rank) : -1;
  if (head >= 0) printf("NVLS: head %d of its machine\n", head);
  for (int c = 0; head >= 0 && joined->nnodes > 1 && c < 2 && c < joined->nvls_channels; c++) {
    struct tt_join_tree place = tt_join_nvls_place(joined, c, rank);
    for (int i = 0; i < 2; i++) place.down[i] = place.down[i + 1]; /* without the switch */
    place.down[2] = -1;
    print_place("NVLS tree", c, &place);
  }
  fputs("sends to", stdout);
  for (int round = 0; round < joined->nranks && round < 16; round++) {
    int32_t to, from;
    tt_join_peers(joined, rank, round, &to, &from);
    printf(" %d", to);
  }
  puts(joined->nranks > 16 ? " ..." : "");
}
