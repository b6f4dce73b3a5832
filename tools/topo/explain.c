/* Why two ends are connected as they are: their path, what each rule says of it, and what follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "topo.h"
#include "topology/checks.h"

static const char *type_of(const struct tt_path *path)
{
  return tt_topology_name_path((enum tt_path_type)path->type);
}

static void print_steps(const struct tt_topology *t, const char *title, int from, int to)
{
  char text[64];
  const struct tt_path *path = tt_topology_path(t, from, to);
  printf("%s: %s", title, type_of(path));
  if (path->type != TT_PATH_DIS)
    printf(", %.4g GB/s: %s", (double)path->bandwidth, tt_topology_label(t, from, text, sizeof(text)));
  topo_walk(t, path);
  putchar('\n');
}

/* Two GPUs that stay in one system. */
static void explain_gpus(const struct tt_topology *t, const struct tt_topology *machine, int a, int b)
{
  const int from = tt_topology_node(t, TT_NODE_GPU, a), to = tt_topology_node(t, TT_NODE_GPU, b);
  const struct tt_path *path = tt_topology_path(t, from, to);
  const bool peers = tt_topology_peer_access(t, a, b), better = tt_topology_net_is_better(t, a, b);
  const bool together = t->nodes[from].host == t->nodes[to].host;
  print_steps(t, "path", from, to);
  /* The machine's own path tells why there is no peer access; what is used goes through the CPU because of that. */
  const struct tt_path *own =
      tt_topology_path_between(machine, TT_NODE_GPU, tt_topology_gpu_of_rank(machine, t->nodes[from].gpu.rank),
                               TT_NODE_GPU, tt_topology_gpu_of_rank(machine, t->nodes[to].gpu.rank));
  const char *level = tt_topology_name_path(tt_topology_peer_level(t));
  printf("peer memory: %s, their best path is %s, the farthest allowed %s (NCCL_P2P_LEVEL, NCCL_P2P_DISABLE)\n",
         peers ? "yes" : "no", type_of(own), level);
  struct tt_peer_check check;
  tt_topology_check_peers(t, a, b, &check);
  if (peers && check.relay >= 0)
    printf("  through GPU %d, which has NVLinks to both\n",
           t->nodes[tt_topology_node(t, TT_NODE_GPU, check.relay)].gpu.rank);
  if (peers)
    printf("  data is %s (NCCL_P2P_READ_ENABLE)\n",
           check.reads ? "read by the GPU that gets it" : "written by the GPU that has it");
  printf("network instead: %s, they reach NETs without a CPU at %.4g and %.4g GB/s, each other at %.4g%s\n",
         better ? "yes" : "no", (double)tt_topology_best_to_net(t, a), (double)tt_topology_best_to_net(t, b),
         (double)path->bandwidth, t->rules.net_intra ? "" : " (NCCL_NET_DISABLE_INTRA)");
  printf("memory of the host: %s\n", !together                 ? "no, they are on different hosts"
                                     : !t->rules.shared_memory ? "no (NCCL_SHM_DISABLE)"
                                                               : "yes, they are on one host");
  printf("=> %s\n", better                               ? "network"
                    : peers                              ? "peer memory"
                    : together && t->rules.shared_memory ? "memory of the host"
                                                         : "network");
}

/* With PXN both directions go by the distance of the GPU that sends for this one, as in NCCL. */
static void explain_direction(const struct tt_topology *t, int gpu, int net, bool read)
{
  static const char *const reasons[] = {[TT_GPU_DIRECT_YES] = "yes",
                                        [TT_GPU_DIRECT_NET] = "no, the NET cannot",
                                        [TT_GPU_DIRECT_GPU] = "no, the GPU cannot",
                                        [TT_GPU_DIRECT_READS] = "no, the GPU is not to be read",
                                        [TT_GPU_DIRECT_FAR] = "no"};
  struct tt_gpu_direct_check check;
  tt_topology_check_gpu_direct(t, gpu, net, read, &check);
  printf("GPUDirect, %s: %s", read ? "sending" : "receiving", reasons[check.reason]);
  if (check.mode == TT_GPU_DIRECT_PCI) fputs(" by its PCI address", stdout);
  printf(", distance %s", tt_topology_name_path(check.distance));
  if (check.owner != gpu) printf(" of GPU %d", t->nodes[tt_topology_node(t, TT_NODE_GPU, check.owner)].gpu.rank);
  printf(", the farthest allowed %s (NCCL_NET_GDR_LEVEL%s)\n", tt_topology_name_path(check.level),
         read ? ", NCCL_NET_GDR_READ" : "");
  if (!read && check.mode != TT_GPU_DIRECT_OFF)
    printf("  flushed after receiving: %s (NCCL_NET_FORCE_FLUSH, or the net plugin)\n",
           tt_topology_flush(t, gpu, net, false) == TT_FLUSH_NONE ? "no, unless asked for" : "yes");
}

static void explain_net(const struct tt_topology *t, const struct tt_topology *machine, int gpu, int net)
{
  const int from = tt_topology_node(t, TT_NODE_GPU, gpu), to = tt_topology_node(t, TT_NODE_NET, net);
  const struct tt_node *node = &t->nodes[to];
  print_steps(t, "sending", from, to);
  print_steps(t, "receiving", to, from);
  int own = tt_topology_gpu_of_rank(machine, t->nodes[from].gpu.rank);
  const struct tt_path *direct = tt_topology_path_between(machine, TT_NODE_GPU, own, TT_NODE_NET, net);
  int relay = tt_topology_owner_of_buffer(t, gpu, net);
  printf("through another GPU: ");
  if (relay != gpu)
    printf("GPU %d, the nearest to that NET; alone: %s, %.4g GB/s\n",
           t->nodes[tt_topology_node(t, TT_NODE_GPU, relay)].gpu.rank, type_of(direct), (double)direct->bandwidth);
  else
    printf("no%s%s\n", t->rules.pxn ? "" : " (NCCL_PXN_DISABLE)",
           node->net.local_gpu == gpu ? ", it is the nearest to that NET itself" : "");
  explain_direction(t, gpu, net, true);
  explain_direction(t, gpu, net, false);
}

/* "0" and "gpu0" are a rank, "net0" and, with several hosts, "net1/0" are a NET. -1: no such one. */
static int parse_end(const struct tt_topology *t, const char *text, enum tt_node_type *type)
{
  char *end;
  *type = strncasecmp(text, "net", 3) == 0 ? TT_NODE_NET : TT_NODE_GPU;
  const char *number = *type == TT_NODE_NET || strncasecmp(text, "gpu", 3) == 0 ? text + 3 : text;
  long value = strtol(number, &end, 10), host = 0;
  if (*type == TT_NODE_NET && *end == '/' && end != number) {
    host = value;
    value = strtol(number = end + 1, &end, 10);
  }
  if (end == number || *end || value < 0 || value > INT32_MAX || host < 0 || host > INT32_MAX) return -1;
  if (*type == TT_NODE_GPU) return tt_topology_gpu_of_rank(t, (int)value);
  return tt_topology_find(t, TT_NODE_NET, (int)host, (uint64_t)value);
}

bool topo_explain(const struct tt_topology *t, const struct tt_topology *machine, const char *a, const char *b,
                  char *error, size_t size)
{
  enum tt_node_type type_a, type_b;
  int from = parse_end(machine, a, &type_a), to = parse_end(machine, b, &type_b);
  if (from < 0 || to < 0 || type_a != TT_NODE_GPU) {
    snprintf(error, size, "\"%s\" is no %s of the file; name a rank and a rank or NET, as in: explain FILE 0 net1",
             from < 0 || type_a != TT_NODE_GPU ? a : b, type_a != TT_NODE_GPU ? "rank" : "rank or NET");
    return false;
  }
  int rank = machine->nodes[tt_topology_node(machine, TT_NODE_GPU, from)].gpu.rank, other = -1;
  if (type_b == TT_NODE_GPU) other = machine->nodes[tt_topology_node(machine, TT_NODE_GPU, to)].gpu.rank;
  from = tt_topology_gpu_of_rank(t, rank); /* some GPUs may have been left out */
  if (other >= 0) to = tt_topology_gpu_of_rank(t, other);
  if (from < 0 || to < 0)
    printf("=> network; GPU %d is reached over the network only from here (see --rank)\n", from < 0 ? rank : other);
  else if (type_b == TT_NODE_GPU)
    explain_gpus(t, machine, from, to);
  else
    explain_net(t, machine, from, to);
  return true;
}
