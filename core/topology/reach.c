/* Whether GPUs use each other's memory, or meet in that of the host, or by the network. See checks.h. */
#include "base/check.h"
#include "topology/checks.h"

static const struct tt_node *gpu_at(const struct tt_topology *t, int index)
{
  return &t->nodes[tt_topology_node(t, TT_NODE_GPU, index)];
}

static const struct tt_path *between(const struct tt_topology *t, int from, int to)
{
  return tt_topology_path_between(t, TT_NODE_GPU, from, TT_NODE_GPU, to);
}

enum tt_path_type tt_topology_peer_level(const struct tt_topology *t)
{
  if (!t->rules.peers) return TT_PATH_LOC;
  if (t->rules.peer_level >= 0) return (enum tt_path_type)t->rules.peer_level;
  const struct tt_node *cpu = &t->nodes[tt_topology_node(t, TT_NODE_CPU, 0)];
  bool amd = cpu->cpu.arch == TT_ARCH_X86 && cpu->cpu.vendor == TT_VENDOR_AMD;
  return amd && t->count[TT_NODE_DEV] <= 2 ? TT_PATH_SYS : TT_PATH_PXB;
}

/* A relay's path is GPU, DEV, DEV, DEV, GPU. */
int tt_topology_relay(const struct tt_topology *t, int from, int to)
{
  const struct tt_path *path = between(t, from, to);
  if (path->hops != 4) return -1;
  const struct tt_step *first = &t->steps[path->first];
  const struct tt_node *middle = &t->nodes[t->links[t->steps[first->next].link].to];
  for (int g = 0; middle->type == TT_NODE_DEV && g < t->count[TT_NODE_GPU]; g++)
    if (gpu_at(t, g)->gpu.device == middle->index) return g;
  return -1;
}

static uint8_t driver_status(const struct tt_topology *t, int from, int to)
{
  const struct tt_node *a = gpu_at(t, from), *b = gpu_at(t, to);
  if (t->rules.ignore_disabled_peers == 2) return 0;
  if (a->gpu.device == b->gpu.device || a->host != b->host) return 0;
  return tt_topology_rules_peer(&t->rules, a->gpu.rank, b->gpu.rank);
}

/* GPUs of sm 80 read across NVLink faster than they write. */
static bool reads(const struct tt_topology *t, int from, int to)
{
  if (t->rules.peer_reads != -2) return t->rules.peer_reads != 0;
  return between(t, from, to)->type == TT_PATH_NVL && gpu_at(t, from)->gpu.sm == 80 && gpu_at(t, to)->gpu.sm == 80;
}

void tt_topology_check_peers(const struct tt_topology *t, int from, int to, struct tt_peer_check *check)
{
  *check = (struct tt_peer_check){.relay = tt_topology_relay(t, from, to), .from = -1, .to = -1};
  check->reads = reads(t, from, to);
  if (between(t, from, to)->type > (int)tt_topology_peer_level(t)) {
    check->reason = TT_PEER_REASON_FAR;
    return;
  }
  const int way[] = {from, check->relay < 0 ? to : check->relay, to};
  for (int i = 0; i < 2; i++) {
    uint8_t status = driver_status(t, way[i], way[i + 1]);
    if (status == 0) continue;
    check->reason = TT_PEER_REASON_DRIVER;
    check->from = way[i];
    check->to = way[i + 1];
    check->status = status;
    return;
  }
}

bool tt_topology_peer_access(const struct tt_topology *t, int from, int to)
{
  struct tt_peer_check check;
  tt_topology_check_peers(t, from, to, &check);
  return check.reason == TT_PEER_REASON_YES;
}

float tt_topology_best_to_net(const struct tt_topology *t, int gpu)
{
  float best = 0;
  for (int n = 0; n < t->count[TT_NODE_NET]; n++) {
    const struct tt_path *path = tt_topology_path_between(t, TT_NODE_GPU, gpu, TT_NODE_NET, n);
    if (path->type <= TT_PATH_PXB) best = TT_MAX(best, path->bandwidth);
  }
  return best;
}

bool tt_topology_net_is_better(const struct tt_topology *t, int from, int to)
{
  if (!t->rules.net_intra) return false;
  float direct = between(t, from, to)->bandwidth;
  return tt_topology_best_to_net(t, from) > direct && tt_topology_best_to_net(t, to) > direct;
}

enum tt_shared_reason tt_topology_check_shared(const struct tt_topology *t, int from, int to)
{
  if (!t->rules.shared_memory) return TT_SHARED_OFF;
  if (gpu_at(t, from)->host != gpu_at(t, to)->host) return TT_SHARED_HOSTS;
  return from != to && tt_topology_net_is_better(t, from, to) ? TT_SHARED_NETWORK : TT_SHARED_YES;
}
