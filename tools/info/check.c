/* Settings whose words the layers know that use them. They are read here by the same functions, so that tutti-info
 * refuses what a communicator would, with the same sentence. See info.h. */
#include "api/buffers.h"
#include "base/check.h"
#include "base/param.h"
#include "bootstrap/bootstrap.h"
#include "device/choose.h"
#include "graph/join_rules.h"
#include "graph/search.h"
#include "info.h"
#include "kernels/host/host.h"
#include "topology/merge.h"
#include "topology/rules.h"
#include "tuning/env.h"

static bool is_set(enum tt_param_id id)
{
  return tt_param_origin(id, NULL) != TT_PARAM_FROM_DEFAULT;
}

static ncclResult_t check_lists(void)
{
  struct tt_env_list list;
  TT_TRY(tt_env_parse("NCCL_ALGO", tt_param_string(TT_PARAM_NCCL_ALGO), &tt_env_algorithms, &list));
  return tt_env_parse("NCCL_PROTO", tt_param_string(TT_PARAM_NCCL_PROTO), &tt_env_protocols, &list);
}

static ncclResult_t check_machine(void)
{
  struct tt_topology_rules topology = tt_topology_rules_default();
  struct tt_graph_rules graph = tt_graph_rules_default();
  struct tt_join_rules join = tt_join_rules_default();
  const struct tt_merge_rules merge = {.level = tt_param_string(TT_PARAM_NCCL_NET_MERGE_LEVEL),
                                       .policy = tt_param_string(TT_PARAM_NCCL_NET_MERGE_POLICY)};
  TT_TRY(tt_topology_rules_from_parameters(&topology));
  TT_TRY(tt_graph_rules_from_parameters(&graph));
  TT_TRY(tt_join_rules_from_parameters(&join));
  return tt_merge_check(&merge);
}

/* Only reads the address: nothing listens there for that. */
static ncclResult_t check_root(void)
{
  ncclUniqueId id;
  return is_set(TT_PARAM_NCCL_COMM_ID) ? tt_bootstrap_unique_id(&id) : ncclSuccess;
}

/* Devices are looked for only where something is said of them. */
static ncclResult_t check_device(void)
{
  const struct tt_device *device;
  size_t bytes;
  if (!is_set(TT_PARAM_TUTTI_DEVICE) && !is_set(TT_PARAM_NCCL_BUFFSIZE) && !is_set(TT_PARAM_NCCL_LL_BUFFSIZE) &&
      !is_set(TT_PARAM_NCCL_LL128_BUFFSIZE))
    return ncclSuccess;
  TT_TRY(tt_device_find(tt_host_device(), &device));
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) TT_TRY(tt_comm_buffer_bytes(device, p, &bytes));
  return ncclSuccess;
}

ncclResult_t info_check(void)
{
  TT_TRY(tt_param_check());
  TT_TRY(check_lists());
  TT_TRY(check_machine());
  TT_TRY(check_root());
  return check_device();
}
