/* See fabric.h. */
#include "transport/fabric.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/describe.h"

static struct tt_clique_rules read_rules(void)
{
  struct tt_clique_rules rules = tt_clique_rules_default();
  rules.enable = (int)tt_param_int(TT_PARAM_NCCL_MNNVL_ENABLE);
  rules.cluster = tt_param_int(TT_PARAM_NCCL_MNNVL_UUID);
  rules.clique = tt_param_int(TT_PARAM_NCCL_MNNVL_CLIQUE_ID);
  rules.peers = !tt_param_int(TT_PARAM_NCCL_P2P_DISABLE);
  return rules;
}

/* Drivers may know the fabric and still not let this process use it: so one piece goes there and back. */
static bool can_export(const struct tt_context *context)
{
  const struct tt_device *device = context->device;
  struct tt_device_memory memory, import;
  struct tt_device_export shown = {.fd = -1};
  if (!(device->features & TT_DEVICE_FABRIC) || device->alloc(context->handle, 1, &memory) != ncclSuccess) return false;
  bool can = device->export_memory(context->handle, &memory, TT_EXPORT_FAR, &shown) == ncclSuccess &&
             shown.kind == TT_EXPORT_FABRIC && device->import_memory(context->handle, &shown, &import) == ncclSuccess;
  if (can) device->release(context->handle, &import);
  device->release(context->handle, &memory);
  return can;
}

/* A rank that cannot say where its device is, is in no fabric. */
static struct tt_fabric describe(const struct tt_context *context, int index, const struct tt_clique_rules *rules,
                                 uint64_t host)
{
  struct tt_device_description d;
  struct tt_fabric fabric = {.host = host};
  if (context == NULL || tt_device_describe(context->device, index, &d) != ncclSuccess) return fabric;
  fabric = tt_device_fabric(&d, host);
  tt_clique_override(&fabric, rules);
  if (fabric.joined) fabric.exported = can_export(context);
  return fabric;
}

/* The lowest rank of a rank's cluster, or of its clique there. */
static int first_of(const struct tt_fabric *fabrics, int rank, bool of_clique)
{
  const struct tt_fabric *own = &fabrics[rank];
  int first = 0;
  while (first < rank && (memcmp(fabrics[first].cluster, own->cluster, sizeof(own->cluster)) != 0 ||
                          (of_clique && fabrics[first].clique != own->clique)))
    first++;
  return first;
}

static void number_machines(const struct tt_fabric *fabrics, int nranks, struct tt_peer_info *peers)
{
  const bool cross = tt_param_int(TT_PARAM_NCCL_MNNVL_CROSS_CLIQUE) != 0;
  for (int r = 0; r < nranks; r++) {
    peers[r].machine = first_of(fabrics, r, true);
    if (cross) peers[r].fabric = 1 + first_of(fabrics, r, false);
  }
}

ncclResult_t tt_fabric_agree(const struct tt_context *context, int index, struct tt_bootstrap *bootstrap, int rank,
                             int nranks, struct tt_peer_info *peers)
{
  const struct tt_clique_rules rules = read_rules();
  struct tt_fabric *fabrics;
  struct tt_clique clique = {0};
  bool several = false;
  ncclResult_t result = ncclSuccess;
  for (int r = 0; r < nranks; r++) {
    peers[r].machine = peers[r].node;
    peers[r].fabric = 0;
    several |= peers[r].node != peers[0].node;
  }
  if (rules.enable == 0 || !rules.peers || nranks == 1 || (!several && rules.enable != 1)) return ncclSuccess;
  if (context != NULL && !(context->device->features & TT_DEVICE_MEMORY)) context = NULL;
  TT_TRY(TT_CALLOC(&fabrics, (size_t)nranks));
  fabrics[rank] = describe(context, index, &rules, (uint64_t)peers[rank].node);
  TT_TRY_GOTO(tt_bootstrap_all_gather(bootstrap, fabrics, sizeof(*fabrics)), result, out);
  TT_TRY_GOTO(tt_clique_find(fabrics, nranks, rank, &rules, &clique), result, out);
  if (clique.ranks != NULL) number_machines(fabrics, nranks, peers);
out:
  tt_clique_free(&clique);
  free(fabrics);
  return result;
}
