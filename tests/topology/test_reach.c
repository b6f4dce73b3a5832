/* Who may use whose memory, and why not: what the driver refuses, relays, reading or writing, memory of the host,
 * GPUDirect, flushes, and the lines of the log about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "machine.h"
#include "suites.h"
#include "topology/checks.h"

static char told[4000];

static void keep(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  size_t length = strlen(told);
  snprintf(told + length, sizeof(told) - length, "%s\n", text);
}

static void listen_to(const char *subsystem)
{
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", subsystem, 1);
  tt_log_redirect(keep);
  told[0] = '\0';
}

/* ---- The driver's word ---- */

#define RANKS 8

static struct tt_topology_rules rules;
static uint8_t status[RANKS * RANKS];

static void begin(int ignore)
{
  rules = tt_topology_rules_default();
  rules.net_intra = false;
  rules.ignore_disabled_peers = ignore;
  memset(status, 0, sizeof(status));
  rules.peer_status = status;
  rules.peer_ranks = RANKS;
}

static ncclResult_t create(char *text, struct tt_topology **t)
{
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  free(text);
  ncclResult_t result = tt_topology_create(xml, &rules, 0, 0, t);
  tt_xml_free(xml);
  return result;
}

static void gpus(const struct tt_topology *t, int from, int to, const char *path)
{
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, from, TT_NODE_GPU, to), path);
}

static struct tt_peer_check check_peers(const struct tt_topology *t, int from, int to)
{
  struct tt_peer_check check;
  tt_topology_check_peers(t, from, to, &check);
  ck_assert(tt_topology_peer_access(t, from, to) == (check.reason == TT_PEER_REASON_YES));
  return check;
}

/* GPUs with NVLink that the driver keeps apart are a fault, unless the user says otherwise. _i: one of the bits. */
START_TEST(refused_with_nvlink)
{
  struct tt_topology *t;
  begin(0);
  status[0 * RANKS + 3] = (uint8_t)(1 << _i);
  ck_assert_int_eq(create(machine_hybrid_cube(), &t), ncclUnhandledCudaError);
  ck_assert_ptr_null(t);
  const char *error = tt_log_thread_error();
  ck_assert_msg(strstr(error, _i == 0 ? "GPU/0-0 (rank 0) read memory of GPU/0-3000 (rank 3)"
                                      : "GPU/0-0 (rank 0) write memory of GPU/0-3000 (rank 3)") != NULL,
                "%s", error);
  ck_assert_ptr_nonnull(strstr(error, "NCCL_IGNORE_DISABLED_P2P=1"));
  rules.ignore_disabled_peers = 1;
  ck_assert_int_eq(create(machine_hybrid_cube(), &t), ncclSuccess);
  gpus(t, 0, 3, "PHB 24");
  gpus(t, 3, 0, "NVL 40"); /* each direction is asked for */
  ck_assert(!tt_topology_peer_access(t, 0, 3) && tt_topology_peer_access(t, 3, 0));
  tt_topology_free(t);
  rules.ignore_disabled_peers = 2;
  ck_assert_int_eq(create(machine_hybrid_cube(), &t), ncclSuccess);
  gpus(t, 0, 3, "NVL 40");
  ck_assert(tt_topology_peer_access(t, 0, 3));
  tt_topology_free(t);
}
END_TEST

/* Through a relay both of its neighbours must be able to. */
START_TEST(refused_relays)
{
  struct tt_topology *t;
  for (int which = 0; which < 3; which++) {
    begin(1);
    if (which == 1) status[0 * RANKS + 4] = TT_PEER_NO_WRITE;
    if (which == 2) status[4 * RANKS + 7] = TT_PEER_NO_WRITE;
    ck_assert_int_eq(create(machine_hybrid_cube(), &t), ncclSuccess);
    gpus(t, 0, 7, which == 0 ? "NVB 40" : "SYS 10");
    ck_assert(tt_topology_peer_access(t, 0, 7) == (which == 0));
    gpus(t, 0, 3, "NVL 40");
    gpus(t, 0, 4, which == 1 ? "SYS 10" : "NVL 40");
    tt_topology_free(t);
  }
  begin(0);
  status[4 * RANKS + 7] = TT_PEER_NO_READ | TT_PEER_NO_WRITE;
  ck_assert_int_eq(create(machine_hybrid_cube(), &t), ncclUnhandledCudaError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "(rank 4) read and write memory of GPU/0-7000 (rank 7)"));
}
END_TEST

/* Where there is no NVLink the driver's word is only obeyed, and told. */
START_TEST(refused_without_nvlink)
{
  struct tt_topology *t;
  for (int ignore = 0; ignore < 3; ignore++) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "sapphire");
    machine_bridge(&m, 4, 16);
    machine_gpu(&m, 0, 86, "");
    machine_gpu(&m, 1, 86, "");
    begin(ignore);
    status[1] = status[RANKS] = TT_PEER_NO_READ | TT_PEER_NO_WRITE;
    listen_to("INIT");
    ck_assert_int_eq(create(machine_end(&m), &t), ncclSuccess);
    gpus(t, 0, 1, ignore == 2 ? "PIX 24" : "PHB 24");
    ck_assert(tt_topology_peer_access(t, 0, 1) == (ignore == 2));
    ck_assert((strstr(told, "does not let GPU/0-1000 (rank 1) read and write memory of GPU/0-0 (rank 0)") != NULL) ==
              (ignore == 0));
    tt_topology_free(t);
  }
  /* Between CPUs that is nothing to tell. */
  begin(0);
  status[1] = TT_PEER_NO_READ;
  listen_to("INIT");
  ck_assert_int_eq(create(machine_pcie("amd", 2), &t), ncclSuccess);
  struct tt_peer_check check = check_peers(t, 0, 1);
  ck_assert_int_eq(check.reason, TT_PEER_REASON_DRIVER);
  ck_assert_int_eq(check.from, 0);
  ck_assert_int_eq(check.to, 1);
  ck_assert_uint_eq(check.status, TT_PEER_NO_READ);
  ck_assert_str_eq(told, "");
  tt_topology_free(t);
}
END_TEST

/* What the driver says of ranks of one GPU or of other hosts has no meaning, and of ranks beyond the table nothing is
 * known. The table may go once there is a topology. */
START_TEST(not_refused)
{
  struct tt_topology *t;
  begin(0);
  memset(status, TT_PEER_NO_READ, sizeof(status));
  for (int r = 0; r < RANKS; r++)
    for (int p = 0; p < RANKS; p++)
      if (r / 2 == p / 2) status[r * RANKS + p] = 0; /* a host has two */
  ck_assert_int_eq(create(machine_trays(4), &t), ncclSuccess);
  ck_assert(tt_topology_peer_access(t, 0, 1) && tt_topology_peer_access(t, 0, 7));
  tt_topology_free(t);

  begin(0);
  rules.peer_ranks = 3;
  memset(status, TT_PEER_NO_READ, sizeof(status));
  status[1] = status[2] = status[3] = status[5] = status[6] = status[7] = 0;
  status[0] = status[4] = status[8] = TT_PEER_NO_READ; /* each with itself */
  ck_assert_int_eq(create(machine_hgx(90, 18), &t), ncclSuccess);
  ck_assert(tt_topology_peer_access(t, 2, 3) && tt_topology_peer_access(t, 0, 2) && tt_topology_peer_access(t, 1, 1));
  tt_topology_free(t);

  begin(1);
  status[2 * RANKS + 5] = TT_PEER_NO_WRITE;
  ck_assert_int_eq(create(machine_hgx(90, 18), &t), ncclSuccess);
  memset(status, 0, sizeof(status));
  rules.peer_ranks = 0;
  struct tt_peer_check check = check_peers(t, 2, 5);
  ck_assert_int_eq(check.reason, TT_PEER_REASON_FAR); /* by the CPUs now */
  gpus(t, 2, 5, "SYS 22");
  gpus(t, 5, 2, "NVL 370.8");
  tt_topology_free(t);
}
END_TEST

/* A table of some ranks only, which names them. */
START_TEST(table_of_some_ranks)
{
  static const int ranks[] = {2, 5, 6};
  struct tt_topology_rules r = {.peer_status = status, .peer_ranks = 3, .peers_of = ranks};
  for (int i = 0; i < 9; i++) status[i] = (uint8_t)i;
  ck_assert_int_eq(tt_topology_rules_peer(&r, 2, 5), 1);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 6, 2), 6);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 6, 6), 8);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 0, 2), 0);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 5, 7), 0);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 3, 4), 0);
  r.peers_of = NULL;
  ck_assert_int_eq(tt_topology_rules_peer(&r, 2, 1), 7);
  ck_assert_int_eq(tt_topology_rules_peer(&r, 3, 1), 0);
}
END_TEST

/* On any machine, whatever the driver says: who is refused has no access, and a path all the same; and what is not
 * looked at changes nothing. */
START_TEST(refused_at_random)
{
  struct tt_topology *t, *free_of_it;
  begin(2);
  uint32_t state = (uint32_t)_i * 2654435761u + 7;
  for (int i = 0; i < RANKS * RANKS; i++) {
    state = state * 1103515245u + 12345u;
    status[i] = (state >> 16) % 5 == 0 ? (uint8_t)(1 + (state >> 20) % 3) : 0;
  }
  ck_assert_int_eq(create(machine_random((unsigned)_i), &t), ncclSuccess);
  rules.peer_status = NULL;
  ck_assert_int_eq(create(machine_random((unsigned)_i), &free_of_it), ncclSuccess);
  ck_assert_int_eq(t->nnodes, free_of_it->nnodes);
  for (int i = 0; i < t->nnodes * t->nnodes; i++) ck_assert_int_eq(t->paths[i].type, free_of_it->paths[i].type);
  tt_topology_free(t);
  tt_topology_free(free_of_it);
  rules.peer_status = status;
  rules.ignore_disabled_peers = 1;
  ck_assert_int_eq(create(machine_random((unsigned)_i), &t), ncclSuccess);
  for (int a = 0; a < t->count[TT_NODE_GPU]; a++) {
    for (int b = 0; b < t->count[TT_NODE_GPU]; b++) {
      const struct tt_node *from = &t->nodes[tt_topology_node(t, TT_NODE_GPU, a)];
      const struct tt_node *to = &t->nodes[tt_topology_node(t, TT_NODE_GPU, b)];
      ck_assert_int_ne(tt_topology_path_between(t, TT_NODE_GPU, a, TT_NODE_GPU, b)->type, TT_PATH_DIS);
      if (a == b || from->host != to->host || from->gpu.rank >= RANKS || to->gpu.rank >= RANKS) continue;
      if (status[from->gpu.rank * RANKS + to->gpu.rank]) ck_assert(!tt_topology_peer_access(t, a, b));
    }
  }
  tt_topology_free(t);
}
END_TEST

/* ---- Relays; reading and writing ---- */

START_TEST(relay_between)
{
  struct tt_topology *t = machine_topology(machine_hybrid_cube(), NULL);
  ck_assert_int_eq(tt_topology_relay(t, 0, 7), 4);
  ck_assert_int_eq(check_peers(t, 0, 7).relay, 4);
  ck_assert_int_eq(tt_topology_relay(t, 0, 3), -1);
  ck_assert_int_eq(tt_topology_relay(t, 0, 0), -1);
  tt_topology_free(t);
  t = machine_topology(machine_hgx(90, 18), NULL); /* as many hops, but a switch */
  ck_assert_int_eq(tt_topology_relay(t, 0, 7), -1);
  tt_topology_free(t);
}
END_TEST

static bool reads(char *text, int from, int to, const char *value)
{
  bool known;
  struct tt_topology_rules set = tt_topology_rules_default();
  if (value) ck_assert_int_eq(tt_topology_rules_set(&set, "NCCL_P2P_READ_ENABLE", value, &known), ncclSuccess);
  struct tt_topology *t = machine_topology(text, &set);
  bool read = check_peers(t, from, to).reads;
  tt_topology_free(t);
  return read;
}

START_TEST(reading)
{
  ck_assert(reads(machine_hgx(80, 12), 0, 7, NULL));
  ck_assert(!reads(machine_hgx(80, 12), 0, 7, "0"));
  ck_assert(!reads(machine_hgx(90, 18), 0, 7, NULL));
  ck_assert(!reads(machine_hgx(90, 18), 0, 7, "-2"));
  ck_assert(reads(machine_hgx(90, 18), 0, 7, "1"));
  ck_assert(!reads(machine_virtual(), 0, 1, NULL)); /* sm 80, but PCI */
  for (int sm = 80; sm <= 90; sm += 10) {           /* both must be */
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "amd");
    machine_gpu(&m, 0, 80, "1*4");
    machine_gpu(&m, 1, sm, "0*4");
    ck_assert(reads(machine_end(&m), 0, 1, NULL) == (sm == 80));
  }
}
END_TEST

/* ---- Memory of the host ---- */

START_TEST(sharing)
{
  struct tt_topology_rules set = tt_topology_rules_default();
  struct tt_topology *t = machine_topology(machine_trays(2), NULL);
  ck_assert_int_eq(tt_topology_check_shared(t, 0, 1), TT_SHARED_YES);
  ck_assert_int_eq(tt_topology_check_shared(t, 0, 2), TT_SHARED_HOSTS);
  tt_topology_free(t);
  set.shared_memory = false;
  t = machine_topology(machine_hgx(90, 18), &set);
  ck_assert_int_eq(tt_topology_check_shared(t, 0, 1), TT_SHARED_OFF);
  tt_topology_free(t);
  /* Two GPUs at a CPU, each below a bridge with a NIC of 200 Gb/s, to which the CPU's bridges are too narrow. */
  for (int intra = 0; intra < 2; intra++) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "amd");
    for (int g = 0; g < 2; g++) {
      machine_bridge(&m, 3, 8);
      machine_gpu(&m, g, 86, "");
      machine_net(&m, g, 200, true);
      machine_up(&m);
    }
    set = tt_topology_rules_default();
    set.net_intra = intra == 1;
    set.peer_level = TT_PATH_SYS; /* or one of the two would be left out */
    t = machine_topology(machine_end(&m), &set);
    if (intra) {
      ck_assert_int_eq(t->count[TT_NODE_GPU], 1);
    } else {
      ck_assert_int_eq(tt_topology_check_shared(t, 0, 1), TT_SHARED_YES);
      t->rules.net_intra = true;
      ck_assert_int_eq(tt_topology_check_shared(t, 0, 1), TT_SHARED_NETWORK);
    }
    tt_topology_free(t);
  }
}
END_TEST

/* ---- GPUDirect ---- */

static struct tt_gpu_direct_check check_direct(const struct tt_topology *t, int gpu, int net, bool read)
{
  struct tt_gpu_direct_check check;
  tt_topology_check_gpu_direct(t, gpu, net, read, &check);
  ck_assert(tt_topology_gpu_direct(t, gpu, net, read) == (check.mode != TT_GPU_DIRECT_OFF));
  ck_assert((check.mode == TT_GPU_DIRECT_OFF) == (check.reason != TT_GPU_DIRECT_YES));
  return check;
}

/* One GPU and two NICs: one beside it, one at the CPU. */
static struct tt_topology *two_nics(int sm, const char *links, bool gdr, const struct tt_topology_rules *set)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "arm");
  machine_bridge(&m, 4, 16);
  machine_gpu(&m, 0, sm, links);
  machine_net(&m, 0, 100, gdr);
  machine_up(&m);
  machine_net(&m, 1, 100, gdr);
  return machine_topology(machine_end(&m), set);
}

START_TEST(direct)
{
  struct tt_topology *t = two_nics(90, "", true, NULL);
  struct tt_gpu_direct_check c = check_direct(t, 0, 0, true);
  ck_assert_int_eq(c.mode, TT_GPU_DIRECT_ON);
  ck_assert_int_eq(c.distance, TT_PATH_PIX);
  ck_assert_int_eq(c.level, TT_PATH_P2C);
  ck_assert_int_eq(c.owner, 0);
  c = check_direct(t, 0, 1, false);
  ck_assert_int_eq(c.reason, TT_GPU_DIRECT_FAR);
  ck_assert_int_eq(c.distance, TT_PATH_PHB);
  tt_topology_free(t);
  t = two_nics(90, "", false, NULL);
  ck_assert_int_eq(check_direct(t, 0, 0, true).reason, TT_GPU_DIRECT_NET);
  tt_topology_free(t);
  struct tt_topology_rules set = tt_topology_rules_default();
  set.gpu_direct_read = 0;
  t = two_nics(90, "", true, &set);
  ck_assert_int_eq(check_direct(t, 0, 0, true).reason, TT_GPU_DIRECT_READS);
  ck_assert_int_eq(check_direct(t, 0, 0, false).reason, TT_GPU_DIRECT_YES);
  t->nodes[tt_topology_node(t, TT_NODE_GPU, 0)].gpu.gdr = false;
  ck_assert_int_eq(check_direct(t, 0, 0, false).reason, TT_GPU_DIRECT_GPU);
  tt_topology_free(t);
  t = machine_topology(machine_hgx(90, 18), NULL);
  c = check_direct(t, 3, 5, true); /* GPU 5 sends for it */
  ck_assert_int_eq(c.owner, 5);
  ck_assert_int_eq(c.distance, TT_PATH_PIX);
  tt_topology_free(t);
}
END_TEST

/* Beside a C2C link the NIC that is near by PCI must be given the PCI address. */
START_TEST(direct_with_c2c)
{
  struct tt_topology *t = two_nics(100, "c*5", true, NULL);
  struct tt_gpu_direct_check c = check_direct(t, 0, 0, false);
  ck_assert_int_eq(c.distance, TT_PATH_PIX);
  ck_assert_int_eq(c.mode, TT_GPU_DIRECT_PCI);
  tt_topology_free(t);
  t = machine_topology(machine_arm_board(), NULL);
  c = check_direct(t, 0, 0, false);
  ck_assert_int_eq(c.distance, TT_PATH_P2C);
  ck_assert_int_eq(c.mode, TT_GPU_DIRECT_ON);
  tt_topology_free(t);
}
END_TEST

START_TEST(flushes)
{
  struct tt_topology *t = two_nics(80, "", true, NULL);
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, false), TT_FLUSH_ALWAYS);
  tt_topology_free(t);
  t = two_nics(90, "", true, NULL);
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, false), TT_FLUSH_NONE);
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, true), TT_FLUSH_ALWAYS);
  tt_topology_free(t);
  struct tt_topology_rules set = tt_topology_rules_default();
  bool known;
  ck_assert_int_eq(tt_topology_rules_set(&set, "NCCL_NET_FORCE_FLUSH", "1", &known), ncclSuccess);
  t = two_nics(90, "", true, &set);
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, false), TT_FLUSH_ALWAYS);
  tt_topology_free(t);
  t = two_nics(100, "c*5", true, NULL);
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, false), TT_FLUSH_C2C);
  tt_topology_free(t);
  t = machine_topology(machine_arm_board(), NULL); /* data comes by C2C, too */
  ck_assert_int_eq(tt_topology_flush(t, 0, 0, false), TT_FLUSH_NONE);
  tt_topology_free(t);
}
END_TEST

static void logs(const struct tt_topology *t, int gpu, int net, bool read, const char *line)
{
  told[0] = '\0';
  tt_topology_log_gpu_direct(t, gpu, net, read);
  ck_assert_str_eq(told, line);
}

START_TEST(lines)
{
  struct tt_topology *t = two_nics(100, "", true, NULL);
  listen_to("GRAPH");
  logs(t, 0, 0, true,
       "GPU Direct RDMA Enabled for GPU/0-0 (rank 0) - NET/0-0 (distance 4 <= 6, read 1, mode Default)\n");
  logs(t, 0, 1, false,
       "GPU Direct RDMA Disabled for GPU/0-0 (rank 0) - NET/0-1 (distance 8 > 6, read 0, mode Disabled)\n");
  tt_topology_free(t);
  t = two_nics(100, "c*5", true, NULL);
  logs(t, 0, 0, false, "GPU Direct RDMA Enabled for GPU/0-0 (rank 0) - NET/0-0 (distance 4 <= 6, read 0, mode PCI)\n");
  tt_topology_free(t);
  t = two_nics(90, "", false, NULL);
  logs(t, 0, 0, true,
       "GPU Direct RDMA Disabled for GPU/0-0 (rank 0) - NET/0-0 (distance 8 > 6, read 1, mode Disabled, the NET has no "
       "support)\n"); /* without it the path leads through the CPU */
  tt_topology_free(t);
  t = machine_topology(machine_hgx(90, 18), NULL);
  logs(t, 3, 5, true,
       "GPU Direct RDMA Enabled for GPU/0-3000 (rank 3) - NET/0-5 (using PXN via GPU/0-5000, distance 4 <= 6, read 1, "
       "mode Default)\n");
  tt_topology_free(t);
}
END_TEST

Suite *suite_reach(void)
{
  Suite *suite = suite_create("reach");
  TCase *tc = tcase_create("reach");
  tcase_add_loop_test(tc, refused_with_nvlink, 0, 2);
  tcase_add_test(tc, refused_relays);
  tcase_add_test(tc, refused_without_nvlink);
  tcase_add_test(tc, not_refused);
  tcase_add_test(tc, table_of_some_ranks);
  tcase_add_loop_test(tc, refused_at_random, 0, 20);
  tcase_add_test(tc, relay_between);
  tcase_add_test(tc, reading);
  tcase_add_test(tc, sharing);
  tcase_add_test(tc, direct);
  tcase_add_test(tc, direct_with_c2c);
  tcase_add_test(tc, flushes);
  tcase_add_test(tc, lines);
  suite_add_tcase(suite, tc);
  return suite;
}
