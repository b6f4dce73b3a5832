/* From the best path to the one that is used: what P2P, GPUDirect and PXN make of paths, in this order. See
 * internal.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/checks.h"
#include "topology/internal.h"
#include "topology/log.h"

static int gpu_node(const struct tt_topology *t, int gpu)
{
  return tt_topology_node(t, TT_NODE_GPU, gpu);
}

static ncclResult_t go_through_cpu(struct tt_topology *t, int gpu, int from, int to)
{
  int cpu = tt_topology_cpu_of_gpu(t, gpu);
  return cpu < 0 ? ncclSuccess : tt_topology_go_through(t, tt_topology_node(t, TT_NODE_CPU, cpu), from, to);
}

/* The driver's refusal where there are NVLinks is most likely a fault of the machine, which would be slow without a
 * word.
 */
static ncclResult_t judge_peers(const struct tt_topology *t, int from, int to, bool *access)
{
  struct tt_peer_check check;
  char a[64], b[64];
  tt_topology_check_peers(t, from, to, &check);
  *access = check.reason == TT_PEER_REASON_YES;
  if (check.reason != TT_PEER_REASON_DRIVER || t->rules.ignore_disabled_peers != 0) return ncclSuccess;
  const int one = gpu_node(t, check.from), other = gpu_node(t, check.to);
  const int type = tt_topology_path(t, gpu_node(t, from), gpu_node(t, to))->type;
  static const char *const what[] = {"", "read", "write", "read and write"};
  tt_topology_log_label(t, one, a, sizeof(a));
  tt_topology_log_label(t, other, b, sizeof(b));
  if (type <= TT_PATH_NVB)
    return TT_FAIL(ncclUnhandledCudaError,
                   "the driver does not let %s (rank %d) %s memory of %s (rank %d), though NVLinks join them: most "
                   "likely a fault of the hardware or the driver. NCCL_IGNORE_DISABLED_P2P=1 goes on without",
                   a, t->nodes[one].gpu.rank, what[check.status & 3], b, t->nodes[other].gpu.rank);
  if (type < TT_PATH_SYS)
    TT_INFO(TT_INIT,
            "The driver does not let %s (rank %d) %s memory of %s (rank %d), so they meet in that of the host. "
            "NCCL_IGNORE_DISABLED_P2P=1 silences this",
            a, t->nodes[one].gpu.rank, what[check.status & 3], b, t->nodes[other].gpu.rank);
  return ncclSuccess;
}

/* GPUs that may not use each other's memory meet in that of the host, if they share it and the network is not faster.
 */
static ncclResult_t adjust_peers(struct tt_topology *t)
{
  const int ngpus = t->count[TT_NODE_GPU];
  for (int g = 0; g < ngpus; g++) {
    for (int p = 0; p < ngpus; p++) {
      bool access;
      TT_TRY(judge_peers(t, p, g, &access));
      if (!access) TT_TRY(go_through_cpu(t, g, gpu_node(t, p), gpu_node(t, g)));
    }
    for (int p = 0; p < ngpus; p++) {
      if (p == g) continue;
      bool shares = t->rules.shared_memory && t->nodes[gpu_node(t, p)].host == t->nodes[gpu_node(t, g)].host;
      bool better = tt_topology_net_is_better(t, p, g);
      if (better || (!shares && !tt_topology_peer_access(t, p, g)))
        tt_topology_path_between(t, TT_NODE_GPU, p, TT_NODE_GPU, g)->type = TT_PATH_NET;
    }
  }
  return ncclSuccess;
}

/* A NIC at the CPU that a GPU reaches by a chip-to-chip link is nearer than the PCI path to it says. */
static ncclResult_t adjust_c2c(struct tt_topology *t)
{
  ncclResult_t result;
  int *nets = NULL;
  TT_TRY_GOTO(TT_CALLOC(&nets, (size_t)t->count[TT_NODE_NET] + 1), result, out);
  for (int g = 0; g < t->count[TT_NODE_GPU]; g++) {
    int cpu = tt_topology_cpu_of_gpu(t, g);
    int nnets = cpu < 0 ? 0 : tt_topology_nearest(t, TT_NODE_GPU, g, TT_NODE_NET, nets);
    for (int i = 0; i < nnets; i++) {
      const struct tt_path *own = tt_topology_path_between(t, TT_NODE_GPU, g, TT_NODE_CPU, cpu);
      const struct tt_path *its = tt_topology_path_between(t, TT_NODE_NET, nets[i], TT_NODE_CPU, cpu);
      if (tt_topology_join_types(own->type, its->type) != TT_PATH_P2C) continue;
      struct tt_path *there = tt_topology_path_between(t, TT_NODE_GPU, g, TT_NODE_NET, nets[i]);
      struct tt_path *back = tt_topology_path_between(t, TT_NODE_NET, nets[i], TT_NODE_GPU, g);
      there->type = TT_MIN(there->type, TT_PATH_P2C);
      back->type = TT_MIN(back->type, TT_PATH_P2C);
    }
  }
out:
  free(nets);
  return result;
}

/* Whether a GPU does better to hand what it sends to a NET to the GPU beside that. */
static bool prefers_pxn(const struct tt_topology *t, int gpu, int relay, int net)
{
  if (!t->rules.pxn || relay < 0 || relay == gpu) return false;
  const struct tt_path *own = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, net);
  const struct tt_path *its = tt_topology_path_between(t, TT_NODE_GPU, relay, TT_NODE_NET, net);
  const struct tt_path *between = tt_topology_path_between(t, TT_NODE_GPU, relay, TT_NODE_GPU, gpu);
  if (its->type > (t->rules.pxn_c2c ? TT_PATH_P2C : TT_PATH_PXB) || between->type > TT_PATH_NVL) return false;
  if (t->nodes[gpu_node(t, gpu)].host != t->nodes[gpu_node(t, relay)].host) return false;
  if (!tt_topology_gpu_direct(t, relay, net, true)) return false;
  return its->bandwidth > own->bandwidth || own->type > TT_PATH_PXN;
}

static ncclResult_t adjust_net(struct tt_topology *t, int net, int gpu)
{
  const int from = gpu_node(t, gpu), to = tt_topology_node(t, TT_NODE_NET, net);
  int relay = t->rules.pxn ? tt_topology_gpu_of_net(t, net) : -1;
  if (prefers_pxn(t, gpu, relay, net)) TT_TRY(tt_topology_go_through(t, gpu_node(t, relay), from, to));
  if (tt_topology_path(t, from, to)->type >= TT_PATH_PHB || tt_topology_gpu_direct(t, gpu, net, false))
    return ncclSuccess;
  TT_TRY(go_through_cpu(t, gpu, to, from));
  return go_through_cpu(t, gpu, from, to);
}

ncclResult_t tt_topology_adjust_paths(struct tt_topology *t)
{
  TT_TRY(adjust_peers(t));
  TT_TRY(adjust_c2c(t));
  for (int n = 0; n < t->count[TT_NODE_NET]; n++)
    for (int g = 0; g < t->count[TT_NODE_GPU]; g++) TT_TRY(adjust_net(t, n, g));
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) {
    struct tt_node *node = &t->nodes[tt_topology_node(t, TT_NODE_NET, n)];
    node->net.local_gpu = tt_topology_gpu_of_net(t, n);
    for (int g = 0; g < t->count[TT_NODE_GPU] && node->net.same_as != n; g++)
      *tt_topology_path_between(t, TT_NODE_NET, n, TT_NODE_GPU, g) =
          *tt_topology_path_between(t, TT_NODE_NET, node->net.same_as, TT_NODE_GPU, g);
  }
  return ncclSuccess;
}
