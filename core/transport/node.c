/* Proof and agreement of nodes. */
#include "transport/node.h"

#include <stdlib.h>
#include "base/check.h"

/* Sharing a host is transitive, so the first rank that can be reached, tried from below, heads this rank's node. */
static ncclResult_t claim(struct tt_peer_memory *memory, int rank, const struct tt_peer_info *peers, int *head)
{
  const struct tt_peer_info *me = &peers[rank];
  for (*head = 0; *head < rank; (*head)++) {
    const struct tt_peer_info *peer = &peers[*head];
    if (peer->host_hash != me->host_hash) continue;
    bool reached = peer->process == me->process;
    if (!reached) TT_TRY(tt_peer_memory_reach(memory, *head, &reached));
    if (reached) break;
  }
  return ncclSuccess;
}

void tt_node_agree(const int *claims, int nranks, struct tt_peer_info *peers)
{
  for (int r = 0; r < nranks; r++) {
    int head = claims[r];
    bool heads = head >= 0 && head < r && peers[head].node == head;
    peers[r].node = heads ? head : r;
  }
}

ncclResult_t tt_node_prove(struct tt_peer_memory *memory, struct tt_bootstrap *bootstrap, int rank, int nranks,
                           struct tt_peer_info *peers)
{
  int *claims;
  TT_TRY(TT_CALLOC(&claims, (size_t)nranks));
  ncclResult_t result;
  TT_TRY_GOTO(claim(memory, rank, peers, &claims[rank]), result, out);
  if (nranks > 1) TT_TRY_GOTO(tt_bootstrap_all_gather(bootstrap, claims, sizeof(*claims)), result, out);
  tt_node_agree(claims, nranks, peers);
  if (peers[rank].node != claims[rank])
    TT_WARN("rank %d shares a host with rank %d, which did not prove that it shares one with its own first rank: rank "
            "%d is treated as a host of its own",
            rank, claims[rank], rank);
out:
  free(claims);
  return result;
}
