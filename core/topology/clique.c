/* See clique.h. */
#include "topology/clique.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"

struct tt_clique_rules tt_clique_rules_default(void)
{
  return (struct tt_clique_rules){.enable = 2, .cluster = -1, .clique = -1, .peers = true};
}

void tt_clique_override(struct tt_fabric *fabric, const struct tt_clique_rules *rules)
{
  if (!fabric->joined) return;
  for (size_t half = 0; rules->cluster != -1 && half < 2; half++)
    memcpy(fabric->cluster + half * sizeof(rules->cluster), &rules->cluster, sizeof(rules->cluster));
  if (rules->clique != -1) fabric->clique = (uint32_t)rules->clique;
}

static bool same_cluster(const struct tt_fabric *a, const struct tt_fabric *b)
{
  return memcmp(a->cluster, b->cluster, sizeof(a->cluster)) == 0;
}

static bool several_hosts(const struct tt_fabric *fabrics, int nranks)
{
  for (int r = 1; r < nranks; r++)
    if (fabrics[r].host != fabrics[0].host) return true;
  return false;
}

/* The first rank whose device is in no fabric; -1: all are. */
static int first_outside(const struct tt_fabric *fabrics, int nranks)
{
  static const unsigned char none[TT_CLIQUE_CLUSTER];
  for (int r = 0; r < nranks; r++)
    if (!fabrics[r].joined || memcmp(fabrics[r].cluster, none, sizeof(none)) == 0) return r;
  return -1;
}

static int compare_clusters(const void *a, const void *b)
{
  return memcmp(a, b, TT_CLIQUE_CLUSTER);
}

/* Whether any two ranks are of one cluster: the same answer on all ranks, whatever their own clique. */
static ncclResult_t any_pair(const struct tt_fabric *fabrics, int nranks, bool *any)
{
  unsigned char(*clusters)[TT_CLIQUE_CLUSTER];
  *any = false;
  TT_TRY(TT_CALLOC(&clusters, (size_t)nranks));
  for (int r = 0; r < nranks; r++) memcpy(clusters[r], fabrics[r].cluster, TT_CLIQUE_CLUSTER);
  qsort(clusters, (size_t)nranks, sizeof(*clusters), compare_clusters);
  for (int r = 1; r < nranks; r++) *any |= compare_clusters(clusters[r - 1], clusters[r]) == 0;
  free(clusters);
  return ncclSuccess;
}

/* All or none: who shares memory must be able to. */
static ncclResult_t check_exports(const struct tt_fabric *fabrics, int nranks, int enable, bool *good)
{
  int failing = 0;
  while (failing < nranks && fabrics[failing].exported) failing++;
  *good = failing == nranks;
  if (*good) return ncclSuccess;
  if (enable == 1)
    return TT_FAIL(ncclSystemError,
                   "rank %d cannot share device memory with other hosts, though its device is in a fabric: look at the "
                   "IMEX daemon and its channels (nvidia-imex-ctl -N), or set NCCL_MNNVL_ENABLE=0",
                   failing);
  TT_WARN(
      "rank %d cannot share device memory with other hosts, though its device is in a fabric, so all use the network "
      "between hosts: look at the IMEX daemon and its channels (nvidia-imex-ctl -N); NCCL_MNNVL_ENABLE=0 says that "
      "this is wanted",
      failing);
  return ncclSuccess;
}

static ncclResult_t fill(const struct tt_fabric *fabrics, int nranks, int rank, struct tt_clique *clique)
{
  TT_TRY(TT_CALLOC(&clique->ranks, (size_t)nranks));
  for (int r = 0; r < nranks; r++) {
    if (!same_cluster(&fabrics[r], &fabrics[rank])) continue;
    clique->domain++;
    if (fabrics[r].clique != fabrics[rank].clique) continue;
    if (r == rank) clique->index = clique->size;
    clique->ranks[clique->size++] = r;
  }
  TT_INFO(TT_INIT | TT_GRAPH, "multi-node NVLink: clique 0x%x has %d ranks, rank %d is number %d; its cluster has %d",
          fabrics[rank].clique, clique->size, rank, clique->index, clique->domain);
  return ncclSuccess;
}

ncclResult_t tt_clique_find(const struct tt_fabric *fabrics, int nranks, int rank, const struct tt_clique_rules *rules,
                            struct tt_clique *clique)
{
  *clique = (struct tt_clique){0};
  bool wanted = rules->enable == 1 || (rules->enable == 2 && several_hosts(fabrics, nranks));
  if (!wanted || !rules->peers) return ncclSuccess;
  int outside = first_outside(fabrics, nranks);
  if (outside >= 0) {
    TT_INFO(TT_INIT | TT_GRAPH, "no multi-node NVLink: the device of rank %d is in no fabric", outside);
    return ncclSuccess;
  }
  bool any, good;
  TT_TRY(any_pair(fabrics, nranks, &any));
  if (!any) return ncclSuccess;
  TT_TRY(check_exports(fabrics, nranks, rules->enable, &good));
  return good ? fill(fabrics, nranks, rank, clique) : ncclSuccess;
}

void tt_clique_free(struct tt_clique *clique)
{
  free(clique->ranks);
  *clique = (struct tt_clique){0};
}
