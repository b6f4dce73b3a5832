/* Why two ends are connected as they are: their path, what each rule says of it, and what follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/check.h"
#include "topo.h"
#include "topology/checks.h"

/* The machine as both ends see it, and as it would be without rules. */
struct views {
  struct tt_topology *first, *second; /* second: NULL if that end is a NET */
  struct tt_topology *together;       /* as if the network were no choice */
  struct tt_topology *machine;
};

static const char *type_of(const struct tt_path *path)
{
  return tt_topology_name_path((enum tt_path_type)path->type);
}

static const struct tt_node *gpu_at(const struct tt_topology *t, int gpu)
{
  return &t->nodes[tt_topology_node(t, TT_NODE_GPU, gpu)];
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

/* Who set a level. */
static void print_level(int rule, enum tt_path_type level, const char *variable)
{
  if (rule >= 0)
    printf("%s, which %s allows\n", tt_topology_name_path(level), variable);
  else
    printf("%s, which is allowed by default (%s)\n", tt_topology_name_path(level), variable);
}

/* A level or a nearer path; or why not. */
static void print_reach(enum tt_path_type type, enum tt_path_type level, int rule, const char *variable)
{
  if (type == TT_PATH_DIS) {
    puts("no: there is no path");
    return;
  }
  printf(type <= level ? "yes: %s is no farther than " : "no: %s is farther than ", tt_topology_name_path(type));
  print_level(rule, level, variable);
}

/* What the driver said when it was asked, whatever came of it. */
static bool is_refused(const struct tt_topology *t, int a, int b)
{
  if (a < 0 || b < 0) return false;
  return tt_topology_rules_peer(&t->rules, gpu_at(t, a)->gpu.rank, gpu_at(t, b)->gpu.rank) != 0;
}

/* `own`: the best path of the machine; `a` and `b`: the GPUs in the first's view, -1 if it has not both. */
static void explain_peer_memory(const struct tt_topology *t, enum tt_path_type own, int a, int b)
{
  const bool refused = is_refused(t, a, b), ignored = t->rules.ignore_disabled_peers == 2;
  struct tt_peer_check check;
  fputs("peer memory: ", stdout);
  if (!t->rules.peers)
    puts("no: NCCL_P2P_DISABLE is 1");
  else if (refused && !ignored)
    puts("no: the driver does not allow it (NCCL_IGNORE_DISABLED_P2P)");
  else
    print_reach(own, tt_topology_peer_level(t), t->rules.peer_level, "NCCL_P2P_LEVEL");
  if (a < 0 || b < 0 || !tt_topology_peer_access(t, a, b)) return;
  if (refused) puts("  though the driver does not allow it: NCCL_IGNORE_DISABLED_P2P is 2");
  tt_topology_check_peers(t, a, b, &check);
  if (check.relay >= 0) printf("  through GPU %d, which has NVLinks to both\n", gpu_at(t, check.relay)->gpu.rank);
  printf("  data is %s (NCCL_P2P_READ_ENABLE)\n",
         check.reads ? "read by the GPU that gets it" : "written by the GPU that has it");
}

/* `to_net`: the bandwidths at which both reach NETs; `direct`: at which they reach each other otherwise. */
static void explain_network(const struct tt_topology *t, const float to_net[2], float direct, bool together)
{
  fputs("network instead: ", stdout);
  if (!t->rules.net_intra)
    puts("no: NCCL_NET_DISABLE_INTRA is 1");
  else if (!together)
    puts("yes: they share nothing else");
  else
    printf("%s: they reach NETs without a CPU at %.4g and %.4g GB/s, each other at %.4g (NCCL_NET_DISABLE_INTRA)\n",
           to_net[0] > direct && to_net[1] > direct ? "yes" : "no", (double)to_net[0], (double)to_net[1],
           (double)direct);
}

/* What one GPU has to do with the network. */
static void print_use(const struct tt_topology *t, int gpu, bool sends)
{
  char text[64];
  const int net = tt_topology_net_of_gpu(t, gpu, 0);
  printf("GPU %d %s", gpu_at(t, gpu)->gpu.rank, sends ? "sends" : "receives");
  if (net < 0) {
    fputs(" by no NET, since it reaches none", stdout);
    return;
  }
  const int relay = sends ? tt_topology_owner_of_buffer(t, gpu, net) : gpu;
  printf(" by %s", tt_topology_label(t, tt_topology_node(t, TT_NODE_NET, net), text, sizeof(text)));
  if (relay != gpu) printf(" through GPU %d", gpu_at(t, relay)->gpu.rank);
  fputs(tt_topology_gpu_direct(t, gpu, net, sends) ? " (GPUDirect)" : " (memory of the host)", stdout);
}

static void print_uses(const struct views *v, int a, int b)
{
  puts("=> network");
  for (int turn = 0; turn < 2; turn++) {
    fputs("   ", stdout);
    print_use(turn ? v->second : v->first, turn ? b : a, true);
    fputs(", ", stdout);
    print_use(turn ? v->first : v->second, turn ? a : b, false);
    putchar('\n');
  }
}

static void explain_gpus(const struct views *v, int rank, int other)
{
  const struct tt_topology *t = v->first, *machine = v->machine;
  const int a = tt_topology_gpu_of_rank(t, rank), b = tt_topology_gpu_of_rank(t, other);
  const int own_a = tt_topology_gpu_of_rank(machine, rank), own_b = tt_topology_gpu_of_rank(machine, other);
  const bool one_host = gpu_at(machine, own_a)->host == gpu_at(machine, own_b)->host;
  const struct tt_path *own = tt_topology_path_between(machine, TT_NODE_GPU, own_a, TT_NODE_GPU, own_b);
  print_steps(machine, "best path", tt_topology_node(machine, TT_NODE_GPU, own_a),
              tt_topology_node(machine, TT_NODE_GPU, own_b));
  explain_peer_memory(t, (enum tt_path_type)own->type, a, b);
  const int near = tt_topology_gpu_of_rank(v->together, rank), far = tt_topology_gpu_of_rank(v->together, other);
  const struct tt_path *used =
      far < 0 ? NULL : tt_topology_path_between(v->together, TT_NODE_GPU, near, TT_NODE_GPU, far);
  const float to_net[2] = {tt_topology_best_to_net(machine, own_a), tt_topology_best_to_net(machine, own_b)};
  const bool together = used && used->type < TT_PATH_NET;
  explain_network(t, to_net, used ? used->bandwidth : 0, together);
  printf("memory of the host: %s\n", !one_host                 ? "no: they are on different hosts"
                                     : !t->rules.shared_memory ? "no: NCCL_SHM_DISABLE is 1"
                                                               : "yes: they are on one host (NCCL_SHM_DISABLE)");
  /* Who is left out of a rank's machine is reached by network, and so may others be. */
  if (b < 0 || tt_topology_path_between(t, TT_NODE_GPU, a, TT_NODE_GPU, b)->type >= TT_PATH_NET) {
    print_uses(v, a, tt_topology_gpu_of_rank(v->second, other));
  } else if (tt_topology_peer_access(t, a, b)) {
    puts("=> peer memory");
  } else {
    puts("=> memory of the host");
    print_steps(t, "   by this path", tt_topology_node(t, TT_NODE_GPU, a), tt_topology_node(t, TT_NODE_GPU, b));
  }
}

/* With PXN both directions go by the distance of the GPU that sends for this one, as in NCCL. */
static void explain_direction(const struct tt_topology *t, int gpu, int net, bool read)
{
  struct tt_gpu_direct_check check;
  tt_topology_check_gpu_direct(t, gpu, net, read, &check);
  printf("GPUDirect, %s: ", read ? "sending" : "receiving");
  switch (check.reason) {
  case TT_GPU_DIRECT_NET:
    puts("no: the NET cannot");
    return;
  case TT_GPU_DIRECT_GPU:
    puts("no: the GPU cannot");
    return;
  case TT_GPU_DIRECT_READS:
    puts(t->rules.gpu_direct_read == 0
             ? "no: NCCL_NET_GDR_READ is 0"
             : "no: GPUs before sm 80 are read slowly while other traffic uses PCI (NCCL_NET_GDR_READ)");
    return;
  case TT_GPU_DIRECT_YES:
  case TT_GPU_DIRECT_FAR:
    print_reach(check.distance, check.level, t->rules.gpu_direct_level, "NCCL_NET_GDR_LEVEL");
  }
  if (check.owner != gpu)
    printf("  %s GPU %d, which sends for this one\n", read ? "of" : "by the distance of",
           gpu_at(t, check.owner)->gpu.rank);
  if (check.mode == TT_GPU_DIRECT_PCI) puts("  by addresses on the PCI bus, though the GPU has a C2C link");
  if (!read && check.mode != TT_GPU_DIRECT_OFF)
    printf("  flushed after receiving: %s (NCCL_NET_FORCE_FLUSH, or the net plugin)\n",
           tt_topology_flush(t, gpu, net, false) == TT_FLUSH_NONE ? "no, unless asked for" : "yes");
}

/* Why no other GPU sends for this one: the first rule that says so. */
static void explain_no_relay(const struct tt_topology *t, const struct tt_path *direct, int gpu, int net)
{
  const int relay = t->nodes[tt_topology_node(t, TT_NODE_NET, net)].net.local_gpu;
  fputs("through another GPU: no: ", stdout);
  if (!t->rules.pxn) {
    puts("NCCL_PXN_DISABLE is 1");
  } else if (relay < 0) {
    puts("no GPU is near that NET");
  } else if (relay == gpu) {
    puts("it is the nearest to that NET itself");
  } else {
    const struct tt_path *its = tt_topology_path_between(t, TT_NODE_GPU, relay, TT_NODE_NET, net);
    const struct tt_path *between = tt_topology_path_between(t, TT_NODE_GPU, relay, TT_NODE_GPU, gpu);
    printf("GPU %d, the nearest to that NET, ", gpu_at(t, relay)->gpu.rank);
    if (its->type > (t->rules.pxn_c2c ? TT_PATH_P2C : TT_PATH_PXB))
      printf("is %s from it%s\n", type_of(its), its->type == TT_PATH_P2C ? " (NCCL_PXN_C2C)" : "");
    else if (between->type > TT_PATH_NVL)
      printf("is reached by %s, not NVL\n", type_of(between));
    else if (gpu_at(t, gpu)->host != gpu_at(t, relay)->host)
      puts("is on another host");
    else if (!tt_topology_gpu_direct(t, relay, net, true))
      puts("does not send by GPUDirect");
    else
      printf("is at %.4g GB/s, this one at %.4g\n", (double)its->bandwidth, (double)direct->bandwidth);
  }
}

static void explain_net(const struct views *v, int rank, int net)
{
  const struct tt_topology *t = v->first;
  const int gpu = tt_topology_gpu_of_rank(t, rank);
  const int from = tt_topology_node(t, TT_NODE_GPU, gpu), to = tt_topology_node(t, TT_NODE_NET, net);
  print_steps(t, "sending", from, to);
  print_steps(t, "receiving", to, from);
  const struct tt_path *direct =
      tt_topology_path_between(v->machine, TT_NODE_GPU, tt_topology_gpu_of_rank(v->machine, rank), TT_NODE_NET, net);
  const int relay = tt_topology_owner_of_buffer(t, gpu, net);
  if (relay != gpu)
    printf("through another GPU: yes: GPU %d, the nearest to that NET; alone: %s, %.4g GB/s (NCCL_PXN_DISABLE)\n",
           gpu_at(t, relay)->gpu.rank, type_of(direct), (double)direct->bandwidth);
  else
    explain_no_relay(t, direct, gpu, net);
  explain_direction(t, gpu, net, true);
  explain_direction(t, gpu, net, false);
  printf("=> sends from the memory of %s", tt_topology_gpu_direct(t, gpu, net, true) ? "" : "the host");
  if (tt_topology_gpu_direct(t, gpu, net, true)) printf("GPU %d", gpu_at(t, relay)->gpu.rank);
  printf(", receives into that of %s", tt_topology_gpu_direct(t, gpu, net, false) ? "" : "the host");
  if (tt_topology_gpu_direct(t, gpu, net, false)) printf("GPU %d", rank);
  putchar('\n');
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

/* Without rules, and with GPUDirect everywhere, so that nothing leads through a CPU that need not. */
static ncclResult_t create_machine(const struct tt_xml *xml, const struct tt_topology_rules *rules, int rank,
                                   struct tt_topology **machine)
{
  struct tt_topology_rules none = tt_topology_rules_default();
  struct tt_xml *copy;
  none.peer_level = none.gpu_direct_level = TT_PATH_SYS;
  none.net_intra = none.pxn = false;
  none.relays = rules->relays;
  TT_TRY(topo_select(xml, NULL, &copy));
  ncclResult_t result = ncclSuccess;
  for (int e = 0; e < copy->count && result == ncclSuccess; e++)
    if (tt_xml_is(copy, e, "gpu") || tt_xml_is(copy, e, "net")) result = tt_xml_set(copy, e, "gdr", "1");
  if (result == ncclSuccess) result = tt_topology_create(copy, &none, rank, 0, machine);
  tt_xml_free(copy);
  return result;
}

static ncclResult_t explain(const struct tt_xml *xml, const struct tt_topology_rules *rules, int nranks,
                            struct views *v, const char *a, const char *b)
{
  enum tt_node_type type_a, type_b;
  TT_TRY(create_machine(xml, rules, topo_lowest_rank(xml), &v->machine));
  const int from = parse_end(v->machine, a, &type_a), to = parse_end(v->machine, b, &type_b);
  if (from < 0 || to < 0 || type_a != TT_NODE_GPU)
    return TT_FAIL(ncclInvalidArgument,
                   "\"%s\" is no %s of the file; name a rank and a rank or NET, as in: explain FILE 0 net1",
                   from < 0 || type_a != TT_NODE_GPU ? a : b, type_a != TT_NODE_GPU ? "rank" : "rank or NET");
  const int rank = gpu_at(v->machine, from)->gpu.rank;
  struct tt_topology_rules together = *rules;
  together.net_intra = false;
  together.shared_memory = true;
  TT_TRY(tt_topology_create(xml, rules, rank, nranks, &v->first));
  TT_TRY(tt_topology_create(xml, &together, rank, nranks, &v->together));
  if (type_b == TT_NODE_NET) {
    explain_net(v, rank, to);
    return ncclSuccess;
  }
  const int other = gpu_at(v->machine, to)->gpu.rank;
  TT_TRY(tt_topology_create(xml, rules, other, nranks, &v->second));
  if (rank == other)
    puts("a rank reaches itself by its own memory");
  else
    explain_gpus(v, rank, other);
  return ncclSuccess;
}

ncclResult_t topo_explain(const struct tt_xml *xml, const struct tt_topology_rules *rules, int nranks, const char *a,
                          const char *b)
{
  struct views v = {0};
  ncclResult_t result = explain(xml, rules, nranks, &v, a, b);
  tt_topology_free(v.first);
  tt_topology_free(v.second);
  tt_topology_free(v.together);
  tt_topology_free(v.machine);
  return result;
}
