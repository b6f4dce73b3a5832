/* A topology from beginning to end. See topology.h. */
#include "topology/topology.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/draft.h"
#include "topology/internal.h"

static ncclResult_t build(const struct tt_xml *xml, struct tt_topology *t)
{
  ncclResult_t result;
  struct tt_draft draft = {.xml = xml};
  TT_TRY_GOTO(TT_CALLOC(&draft.node_of, (size_t)xml->count), result, out);
  for (int e = 0; e < xml->count; e++) draft.node_of[e] = -1;
  TT_TRY_GOTO(tt_draft_add_cpus(&draft), result, out);
  TT_TRY_GOTO(tt_draft_add_links(&draft), result, out);
  TT_TRY_GOTO(tt_draft_join_switches(&draft), result, out);
  TT_TRY_GOTO(tt_draft_mesh_cpus(&draft), result, out);
  tt_draft_sort(&draft);
  TT_TRY_GOTO(tt_draft_finish(&draft, t), result, out);
  if (t->count[TT_NODE_GPU] == 0)
    result =
        TT_FAIL(ncclInvalidUsage, "%s:%d: <system> has no <gpu> with a rank; add the GPUs of the job to their <pci>",
                xml->source, xml->elements[0].line);
out:
  tt_draft_free(&draft);
  return result;
}

static ncclResult_t find_paths(struct tt_topology *t)
{
  TT_TRY(tt_topology_find_paths(t));
  return tt_topology_adjust_paths(t);
}

static ncclResult_t copy_status(const struct tt_topology_rules *from, struct tt_topology_rules *to)
{
  uint8_t *copy;
  int *ranks;
  to->peer_status = NULL;
  to->peers_of = NULL;
  if (!from->peer_status || from->peer_ranks <= 0) return ncclSuccess;
  const size_t bytes = (size_t)from->peer_ranks * (size_t)from->peer_ranks;
  TT_TRY(TT_CALLOC(&copy, bytes));
  memcpy(copy, from->peer_status, bytes);
  to->peer_status = copy;
  if (!from->peers_of) return ncclSuccess;
  TT_TRY(TT_CALLOC(&ranks, (size_t)from->peer_ranks));
  memcpy(ranks, from->peers_of, (size_t)from->peer_ranks * sizeof(*ranks));
  to->peers_of = ranks;
  return ncclSuccess;
}

ncclResult_t tt_topology_create(const struct tt_xml *xml, const struct tt_topology_rules *rules, int rank, int nranks,
                                struct tt_topology **topology)
{
  ncclResult_t result;
  struct tt_topology *t;
  bool trimmed;
  *topology = NULL;
  TT_TRY(TT_CALLOC(&t, 1));
  t->rules = *rules;
  TT_TRY_GOTO(copy_status(rules, &t->rules), result, out);
  TT_TRY_GOTO(build(xml, t), result, out);
  if (tt_topology_gpu_of_rank(t, rank) < 0) {
    result = TT_FAIL(ncclInvalidArgument, "%s has no <gpu> of rank %d; ask for a rank that it has", xml->source, rank);
    goto out;
  }
  TT_TRY_GOTO(find_paths(t), result, out);
  TT_TRY_GOTO(tt_topology_trim(t, rank, &trimmed), result, out);
  if (trimmed) {
    TT_TRY_GOTO(tt_topology_pair_links(t, xml->source), result, out);
    TT_TRY_GOTO(find_paths(t), result, out);
  }
  t->inter = t->count[TT_NODE_GPU] != (nranks > 0 ? nranks : t->nranks);
  tt_topology_find_limits(t);
out:
  if (result == ncclSuccess)
    *topology = t;
  else
    tt_topology_free(t);
  return result;
}

void tt_topology_free(struct tt_topology *t)
{
  if (!t) return;
  free(t->nodes);
  free(t->links);
  free(t->paths);
  free(t->steps);
  free((void *)t->rules.peer_status);
  free((void *)t->rules.peers_of);
  free(t);
}
