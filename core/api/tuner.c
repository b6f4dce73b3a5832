/* See tuner.h. */
#include "api/tuner.h"

#include <stdlib.h>
#include "base/check.h"
#include "plan/agreed.h"
#include "plan/plan.h"
#include "plugin/net.h"
#include "report/report.h"

/* The agreement first: once it is gone no thread of the bootstrap is in the tuner. */
static void end_tuner(struct ncclComm *comm)
{
  bool fine = atomic_load(&comm->abort) == 0 && atomic_load(&comm->async_error) == ncclSuccess;
  tt_agreed_destroy(comm->agreed, fine);
  comm->agreed = NULL;
  tt_tuner_close(comm->tuner);
  comm->tuner = NULL;
}

/* A host's ranks map each other's memory, which is what a domain is. */
static void count_domains(const struct ncclComm *comm, ncclNvlDomainInfo_v6_t *domains)
{
  domains->nNvlDomains = comm->nnodes;
  domains->minRanksPerNvlDomain = comm->nranks;
  for (int node = 0; node < comm->nnodes; node++) {
    int ranks = 0;
    for (int r = 0; r < comm->nranks; r++) ranks += comm->node[r] == node;
    domains->minRanksPerNvlDomain = TT_MIN(domains->minRanksPerNvlDomain, ranks);
    domains->maxRanksPerNvlDomain = TT_MAX(domains->maxRanksPerNvlDomain, ranks);
  }
}

/* Every rank comes to the same end from the same offers. `*use`: there is one tuner, and all have it. */
static ncclResult_t judge(const struct ncclComm *comm, const struct tt_tuner_offer *offers, bool *use)
{
  char why[800];
  *use = false;
  for (int r = 0; r < comm->nranks; r++)
    if (offers[r].result != ncclSuccess)
      return TT_FAIL(r == comm->rank ? (ncclResult_t)offers[r].result : ncclRemoteError,
                     "rank %d's tuner %.*s (v%d) cannot be used: its init returned %d; its own lines say why, and "
                     "NCCL_TUNER_PLUGIN=none does without",
                     r, TT_TUNER_NAME_BYTES - 1, offers[r].name, (int)offers[r].version, (int)offers[r].result);
  if (!tt_tuner_agree(offers, comm->nranks, why, sizeof why)) {
    TT_WARN("no tuner is used, as ranks have different ones: %s; set the same NCCL_TUNER_PLUGIN on all ranks, and "
            "install the same file",
            why);
    return ncclSuccess;
  }
  *use = offers[0].name[0] != '\0';
  return ncclSuccess;
}

static ncclResult_t net_stats(void *core, tuttiNetStats_t *stats)
{
  return tt_report_net_stats(core, stats);
}

ncclResult_t tt_comm_open_tuner(struct ncclComm *comm, enum tt_tuning_kind kind)
{
  struct tt_tuner_offer *offers;
  struct tt_tuner_request request = {
      .comm_id = comm->id_hash,
      .nranks = (size_t)comm->nranks,
      .nnodes = (size_t)comm->nnodes,
      .net_path = comm->net != NULL ? tt_net_path(comm->net) : NULL,
      .net_stats = net_stats,
      .core = comm,
  };
  bool use;
  count_domains(comm, &request.domains);
  tt_tuner_fill_constants(kind, &request.constants);
  TT_TRY(TT_CALLOC(&offers, (size_t)comm->nranks));
  tt_tuner_open(&request, &comm->tuner, &offers[comm->rank]);
  ncclResult_t result = tt_comm_at_end(comm, end_tuner);
  TT_TRY_GOTO(result, result, out);
  TT_TRY_GOTO(tt_bootstrap_all_gather(comm->bootstrap, offers, sizeof *offers), result, out);
  TT_TRY_GOTO(judge(comm, offers, &use), result, out);
  if (!use) {
    tt_tuner_close(comm->tuner);
    comm->tuner = NULL;
    goto out;
  }
  const struct tt_agreed_config config = {.bootstrap = comm->bootstrap,
                                          .tuning = comm->tuning,
                                          .tuner = comm->tuner,
                                          .rank = comm->rank,
                                          .nranks = comm->nranks};
  result = tt_agreed_create(&config, &comm->agreed);
out:
  free(offers);
  return result;
}
