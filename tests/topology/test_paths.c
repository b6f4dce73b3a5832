/* Paths on machines whose paths one can tell by hand: each type, each rule, each variable. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "machine.h"
#include "suites.h"

/* The topology with one variable set. */
static struct tt_topology *with(char *text, const char *name, const char *value)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  bool known = false;
  ck_assert_int_eq(tt_topology_rules_set(&rules, name, value, &known), ncclSuccess);
  ck_assert(known);
  return machine_topology(text, &rules);
}

static void gpus(struct tt_topology *t, int from, int to, const char *path)
{
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, from, TT_NODE_GPU, to), path);
}

static void net(struct tt_topology *t, int gpu, int to, const char *there, const char *back)
{
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, gpu, TT_NODE_NET, to), there);
  ck_assert_str_eq(machine_path(t, TT_NODE_NET, to, TT_NODE_GPU, gpu), back);
}

START_TEST(relays)
{
  struct tt_topology *t = machine_topology(machine_hybrid_cube(), NULL);
  gpus(t, 0, 0, "LOC 5000");
  gpus(t, 0, 3, "NVL 40");
  gpus(t, 0, 1, "NVL 20");
  gpus(t, 0, 5, "NVB 20"); /* by 1, or by 4 */
  gpus(t, 0, 7, "NVB 40"); /* by 4 */
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_CPU, 0), "PHB 24");
  tt_topology_free(t);
  t = with(machine_hybrid_cube(), "NCCL_NVB_DISABLE", "1");
  gpus(t, 0, 3, "NVL 40");
  gpus(t, 0, 7, "NET 10"); /* the NICs of both are faster than what is between the CPUs */
  tt_topology_free(t);
}
END_TEST

/* A line of four: two hops of NVLink are a relay's, three are none. */
START_TEST(one_relay_only)
{
  static const char *const links[] = {"1*1", "0*1 2*1", "1*1 3*1", "2*1"};
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "skylake");
  for (int g = 0; g < 4; g++) machine_gpu(&m, g, 80, links[g]);
  struct tt_topology *t = machine_topology(machine_end(&m), NULL);
  gpus(t, 0, 1, "NVL 20");
  gpus(t, 0, 2, "NVB 20");
  gpus(t, 0, 3, "PHB 24");
  ck_assert_str_eq(machine_path(t, TT_NODE_DEV, 0, TT_NODE_DEV, 2), "NVB 20");
  ck_assert_str_eq(machine_path(t, TT_NODE_DEV, 0, TT_NODE_DEV, 3), "PHB 24");
  tt_topology_free(t);
}
END_TEST

START_TEST(through_switches_and_beside_nics)
{
  struct tt_topology *t = machine_topology(machine_hgx(90, 18), NULL);
  gpus(t, 0, 7, "NVL 370.8");
  net(t, 3, 3, "PIX 24", "PIX 24");
  net(t, 3, 2, "PXN 24", "PHB 24");
  net(t, 3, 4, "PXN 24", "SYS 22");
  for (int g = 0; g < 8; g++) {
    ck_assert_int_eq(t->nodes[tt_topology_node(t, TT_NODE_NET, g)].net.local_gpu, g);
    ck_assert_int_eq(tt_topology_net_of_gpu(t, g, 5), g);
    ck_assert_int_eq(tt_topology_cpu_of_gpu(t, g), g / 4);
  }
  /* What a relay sends through a NIC, the NIC reads from the relay's memory. */
  ck_assert(tt_topology_gpu_direct(t, 3, 4, true));
  tt_topology_free(t);
  t = with(machine_hgx(90, 18), "NCCL_PXN_DISABLE", "1");
  net(t, 3, 2, "PHB 24", "PHB 24");
  net(t, 3, 4, "SYS 22", "SYS 22");
  ck_assert(!tt_topology_gpu_direct(t, 3, 4, true));
  tt_topology_free(t);
}
END_TEST

START_TEST(without_gpu_direct)
{
  struct tt_topology *t = with(machine_hgx(90, 18), "NCCL_NET_GDR_LEVEL", "LOC");
  net(t, 3, 3, "PHB 24", "PHB 24"); /* by the host's memory */
  net(t, 3, 2, "PHB 24", "PHB 24"); /* and so no relay */
  ck_assert(!tt_topology_gpu_direct(t, 3, 3, false));
  tt_topology_free(t);
  t = with(machine_hgx(90, 18), "NCCL_NET_GDR_READ", "0");
  net(t, 3, 3, "PIX 24", "PIX 24");
  net(t, 3, 2, "PHB 24", "PHB 24");
  ck_assert(tt_topology_gpu_direct(t, 3, 3, false));
  ck_assert(!tt_topology_gpu_direct(t, 3, 3, true));
  tt_topology_free(t);
}
END_TEST

/* Old GPUs are read directly if NVLink takes the rest of the traffic. */
START_TEST(reading_old_gpus)
{
  struct tt_topology *t = machine_topology(machine_hybrid_cube(), NULL);
  ck_assert(tt_topology_gpu_direct(t, 0, 0, true));
  tt_topology_free(t);
  for (int sm = 70; sm <= 80; sm += 10) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "skylake");
    machine_bridge(&m, 4, 16);
    machine_gpu(&m, 0, sm, "");
    machine_gpu(&m, 1, sm, "");
    machine_net(&m, 0, 100, true);
    t = machine_topology(machine_end(&m), NULL);
    ck_assert(tt_topology_gpu_direct(t, 0, 0, false));
    ck_assert(tt_topology_gpu_direct(t, 0, 0, true) == (sm == 80));
    tt_topology_free(t);
  }
}
END_TEST

START_TEST(levels)
{
  struct tt_topology *t = machine_topology(machine_pcie("amd", 2), NULL);
  ck_assert(tt_topology_peer_access(t, 0, 1)); /* two GPUs on AMD */
  gpus(t, 0, 1, "SYS 16");
  tt_topology_free(t);
  t = machine_topology(machine_pcie("amd", 4), NULL);
  ck_assert(!tt_topology_peer_access(t, 0, 1));
  gpus(t, 0, 1, "PHB 24"); /* same CPU: ranks of the file are in its order */
  gpus(t, 0, 2, "SYS 16");
  tt_topology_free(t);
  t = machine_topology(machine_pcie("sapphire", 2), NULL);
  ck_assert(!tt_topology_peer_access(t, 0, 1));
  tt_topology_free(t);
  t = with(machine_pcie("sapphire", 2), "NCCL_P2P_LEVEL", "path_sys");
  ck_assert(tt_topology_peer_access(t, 0, 1));
  tt_topology_free(t);
  t = with(machine_pcie("sapphire", 4), "NCCL_P2P_LEVEL", "3");
  ck_assert(tt_topology_peer_access(t, 0, 1) && !tt_topology_peer_access(t, 0, 2));
  tt_topology_free(t);
  t = with(machine_pcie("amd", 2), "NCCL_P2P_DISABLE", "1");
  ck_assert(!tt_topology_peer_access(t, 0, 1) && tt_topology_peer_access(t, 0, 0));
  tt_topology_free(t);
}
END_TEST

START_TEST(without_peers_through_the_cpu)
{
  struct tt_topology *t = with(machine_hgx(90, 18), "NCCL_P2P_DISABLE", "1");
  /* Across the CPUs both GPUs would do better by their NICs: each CPU's GPUs are on their own. */
  ck_assert_int_eq(t->count[TT_NODE_GPU], 4);
  ck_assert_int_eq(t->count[TT_NODE_DEV], 8);
  ck_assert(t->inter);
  gpus(t, 0, 3, "PHB 24");
  net(t, 3, 3, "PIX 24", "PIX 24");
  tt_topology_free(t);
  struct tt_topology_rules rules = tt_topology_rules_default();
  rules.peers = rules.net_intra = false;
  t = machine_topology(machine_hgx(90, 18), &rules);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 8);
  ck_assert(!t->inter);
  gpus(t, 0, 7, "SYS 22");
  tt_topology_free(t);
  rules.shared_memory = false;
  t = machine_topology(machine_hgx(90, 18), &rules);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 1);
  ck_assert_int_eq(t->nranks, 8);
  tt_topology_free(t);
}
END_TEST

/* NICs at the CPUs are faster than what is between these, and are not taken: they cost as much of the CPU. */
START_TEST(nets_at_the_cpu_are_not_better)
{
  for (int below = 0; below < 2; below++) {
    struct machine m;
    machine_begin(&m);
    for (int cpu = 0; cpu < 2; cpu++) {
      machine_cpu(&m, 0, cpu, "skylake");
      if (below) machine_bridge(&m, 4, 16);
      machine_gpu(&m, cpu, 80, "");
      machine_net(&m, cpu, 200, true);
    }
    struct tt_topology *t = machine_topology(machine_end(&m), NULL);
    ck_assert_int_eq(t->count[TT_NODE_GPU], below ? 1 : 2);
    if (!below) gpus(t, 0, 1, "SYS 10");
    if (!below) net(t, 0, 1, "SYS 10", "SYS 10"); /* no relay without NVLink */
    tt_topology_free(t);
  }
}
END_TEST

/* Two GPUs with NVLink; the second is behind a narrow bridge, or the NIC is at another CPU. */
START_TEST(relays_to_nets)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "skylake");
  machine_bridge(&m, 4, 16);
  machine_gpu(&m, 0, 80, "1*4");
  machine_net(&m, 0, 200, true);
  machine_bridge(&m, 4, 8);
  machine_gpu(&m, 1, 80, "0*4");
  struct tt_topology *t = machine_topology(machine_end(&m), NULL);
  net(t, 1, 0, "PXN 24", "PXB 12");
  tt_topology_free(t);
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "skylake");
  machine_bridge(&m, 4, 16);
  machine_gpu(&m, 0, 80, "");
  machine_net(&m, 0, 200, true);
  machine_bridge(&m, 4, 8);
  machine_gpu(&m, 1, 80, "");
  t = machine_topology(machine_end(&m), NULL);
  net(t, 1, 0, "PXB 12", "PXB 12");
  tt_topology_free(t);
  for (int c2c = 0; c2c < 2; c2c++) {
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "arm");
    machine_gpu(&m, 0, 100, "1*9 c*5");
    machine_cpu(&m, 0, 1, "arm");
    machine_gpu(&m, 1, 100, "0*9 c*5");
    machine_net(&m, 0, 100, true);
    t = with(machine_end(&m), "NCCL_PXN_C2C", c2c ? "1" : "0");
    net(t, 1, 0, "P2C 12.5", "P2C 12.5");
    net(t, 0, 0, c2c ? "PXN 12.5" : "SYS 6", "SYS 6");
    tt_topology_free(t);
  }
}
END_TEST

/* Neither the NET nor the GPU alone makes GPUDirect. */
START_TEST(who_cannot)
{
  for (int who = 0; who < 3; who++) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "skylake");
    machine_bridge(&m, 4, 16);
    machine_gpu(&m, 0, 80, "");
    machine_net(&m, 0, 100, who != 1);
    char *text = machine_end(&m);
    if (who == 2) strstr(text, "gdr=\"1\">")[5] = '0'; /* the GPU's */
    struct tt_topology *t = machine_topology(text, NULL);
    ck_assert(tt_topology_gpu_direct(t, 0, 0, false) == (who == 0));
    net(t, 0, 0, who == 0 ? "PIX 12.5" : "PHB 12.5", who == 0 ? "PIX 12.5" : "PHB 12.5");
    tt_topology_free(t);
  }
}
END_TEST

START_TEST(chip_to_chip)
{
  struct tt_topology *t = machine_topology(machine_arm_board(), NULL);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_CPU, 0), "C2C 320");
  net(t, 0, 0, "P2C 12.5", "P2C 12.5");
  ck_assert(tt_topology_gpu_direct(t, 0, 0, true));
  ck_assert_double_eq((double)t->max_bandwidth, 5000); /* one GPU has nobody to talk to */
  tt_topology_free(t);
  t = with(machine_arm_board(), "NCCL_NET_GDR_C2C", "0");
  ck_assert(!tt_topology_gpu_direct(t, 0, 0, true));
  tt_topology_free(t);
}
END_TEST

START_TEST(hosts_that_share_switches)
{
  struct tt_topology *t = machine_topology(machine_trays(3), NULL);
  char text[64];
  ck_assert_int_eq(t->nhosts, 3);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 6);
  gpus(t, 0, 5, "NVL 721.8");
  net(t, 0, 1, "DIS 0", "DIS 0"); /* no NIC of another host */
  net(t, 2, 1, "PIX 24", "PIX 24");
  ck_assert_str_eq(machine_path(t, TT_NODE_CPU, 0, TT_NODE_CPU, 1), "DIS 0");
  ck_assert_str_eq(tt_topology_label(t, tt_topology_node(t, TT_NODE_NET, 1), text, sizeof(text)), "NET 1/1");
  tt_topology_free(t);
  t = with(machine_trays(3), "NCCL_P2P_DISABLE", "1");
  ck_assert_int_eq(t->count[TT_NODE_GPU], 2); /* those of the other hosts share no memory */
  tt_topology_free(t);
}
END_TEST

START_TEST(nothing_known)
{
  struct tt_topology *t = machine_topology(machine_virtual(), NULL);
  gpus(t, 0, 3, "PHB 12");
  net(t, 0, 0, "PHB 12", "PHB 12");
  ck_assert_int_eq(tt_topology_net_of_gpu(t, 3, 7), 0);
  tt_topology_free(t);
}
END_TEST

/* Files of containers list a network interface below each CPU. */
START_TEST(listed_twice)
{
  struct machine m;
  machine_begin(&m);
  for (int cpu = 0; cpu < 2; cpu++) {
    machine_cpu(&m, 0, cpu, "amd");
    machine_gpu(&m, cpu, 80, "");
    machine_virtual_net(&m, 0, 10);
  }
  struct tt_topology *t = machine_topology(machine_end(&m), NULL);
  net(t, 1, 0, "SYS 1.25", "SYS 1.25");
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 1, TT_NODE_NET, 1), "DIS 0");
  ck_assert_str_eq(machine_path(t, TT_NODE_NET, 1, TT_NODE_GPU, 1), "SYS 1.25");
  ck_assert_int_eq(t->nodes[tt_topology_node(t, TT_NODE_NET, 1)].net.same_as, 0);
  tt_topology_free(t);
}
END_TEST

/* Four NICs at one switch with two GPUs. */
START_TEST(nets_are_shared_out)
{
  static const struct {
    const char *policy;
    int nets[2][4]; /* by GPU and channel */
  } cases[] = {{"AUTO", {{0, 1, 0, 1}, {2, 3, 2, 3}}},
               {"ALL", {{0, 1, 2, 3}, {2, 3, 0, 1}}},
               {"MAX:1", {{0, 0, 0, 0}, {2, 2, 2, 2}}},
               {"max:9", {{0, 1, 2, 3}, {2, 3, 0, 1}}}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "amd");
    machine_bridge(&m, 4, 16);
    for (int g = 0; g < 2; g++) machine_gpu(&m, g, 80, "s*12");
    for (int n = 0; n < 4; n++) machine_net(&m, n, 100, true);
    struct tt_topology *t = with(machine_end(&m), "NCCL_NETDEVS_POLICY", cases[i].policy);
    for (int g = 0; g < 2; g++)
      for (int c = 0; c < 4; c++) ck_assert_int_eq(tt_topology_net_of_gpu(t, g, c), cases[i].nets[g][c]);
    tt_topology_free(t);
  }
}
END_TEST

START_TEST(limits_of_bandwidth)
{
  struct tt_xml *xml;
  struct tt_topology *t;
  char *text = machine_hgx(90, 18);
  struct tt_topology_rules rules = tt_topology_rules_default();
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  ck_assert_int_eq(tt_topology_create(xml, &rules, 0, 16, &t), ncclSuccess); /* two of them */
  ck_assert(t->inter);
  ck_assert_double_eq((double)t->max_bandwidth, 24);
  ck_assert_double_eq_tol((double)t->total_bandwidth, 370.8, 1e-3);
  tt_topology_free(t);
  ck_assert_int_eq(tt_topology_create(xml, &rules, 9, 16, &t), ncclInvalidArgument);
  tt_xml_free(xml);
  free(text);
}
END_TEST

START_TEST(variables)
{
  static const char *const wrong[][2] = {{"NCCL_P2P_LEVEL", "NEAR"},       {"NCCL_P2P_LEVEL", "-1"},
                                         {"NCCL_P2P_LEVEL", "NET"},        {"NCCL_NET_GDR_LEVEL", ""},
                                         {"NCCL_P2P_DISABLE", "2"},        {"NCCL_NET_GDR_READ", "2"},
                                         {"NCCL_NETDEVS_POLICY", "MAX:0"}, {"NCCL_NETDEVS_POLICY", "SOME"}};
  struct tt_topology_rules rules = tt_topology_rules_default();
  bool known;
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    ck_assert_int_eq(tt_topology_rules_set(&rules, wrong[i][0], wrong[i][1], &known), ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), wrong[i][0]));
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "it must be"));
  }
  ck_assert_int_eq(tt_topology_rules_set(&rules, "NCCL_OTHER", "1", &known), ncclSuccess);
  ck_assert(!known);
  static const int old[] = {TT_PATH_LOC, TT_PATH_PIX, TT_PATH_PXB, TT_PATH_PHB, TT_PATH_SYS, TT_PATH_SYS, TT_PATH_SYS};
  for (int i = 0; i < 7; i++) {
    char number[8];
    snprintf(number, sizeof(number), "%d", i);
    ck_assert_int_eq(tt_topology_rules_set(&rules, "NCCL_NET_GDR_LEVEL", number, &known), ncclSuccess);
    ck_assert_int_eq(rules.gpu_direct_level, old[i]);
  }
  ck_assert_int_eq(tt_topology_rules_set(&rules, "NCCL_NET_GDR_READ", "-1", &known), ncclSuccess);
  ck_assert_int_eq(rules.gpu_direct_read, -2);
}
END_TEST

/* A file of settings, which is the caller's to unlink. */
static void write_settings(char *path, const char *text)
{
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
}

START_TEST(variables_of_the_environment_and_of_files)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  char path[] = "/tmp/tutti-rules-XXXXXX";
  write_settings(path, "NCCL_P2P_LEVEL=PHB\nNCCL_PXN_C2C=1\nNCCL_NVB_DISABLE=1\nNCCL_NETDEVS_POLICY=FEW\n");
  setenv("NCCL_CONF_FILE", path, 1);
  setenv("NCCL_PXN_C2C", "0", 1);
  setenv("NCCL_NETDEVS_POLICY", "MAX:2", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_topology_rules_from_parameters(&rules), ncclSuccess);
  ck_assert_int_eq(rules.peer_level, TT_PATH_PHB);
  ck_assert_int_eq(rules.nets_per_gpu, 2);
  ck_assert(!rules.pxn_c2c && rules.pxn && !rules.relays);
  unsetenv("NCCL_NETDEVS_POLICY");
  tt_param_reset();
  ck_assert_int_eq(tt_topology_rules_from_parameters(&rules), ncclInvalidUsage);
  const char *words[] = {"NCCL_NETDEVS_POLICY=FEW, set by", path, "AUTO, ALL or MAX:n"};
  for (int i = 0; i < 3; i++) ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), words[i]));
  setenv("NCCL_NET_GDR_C2C", "2", 1);
  tt_param_reset();
  ck_assert_int_eq(tt_topology_rules_from_parameters(&rules), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_NET_GDR_C2C=2, set by environment"));
  unlink(path);
}
END_TEST

Suite *suite_paths(void)
{
  Suite *suite = suite_create("paths");
  TCase *tests = tcase_create("paths");
  tcase_add_test(tests, relays);
  tcase_add_test(tests, one_relay_only);
  tcase_add_test(tests, through_switches_and_beside_nics);
  tcase_add_test(tests, without_gpu_direct);
  tcase_add_test(tests, reading_old_gpus);
  tcase_add_test(tests, levels);
  tcase_add_test(tests, without_peers_through_the_cpu);
  tcase_add_test(tests, nets_at_the_cpu_are_not_better);
  tcase_add_test(tests, relays_to_nets);
  tcase_add_test(tests, who_cannot);
  tcase_add_test(tests, chip_to_chip);
  tcase_add_test(tests, hosts_that_share_switches);
  tcase_add_test(tests, nothing_known);
  tcase_add_test(tests, listed_twice);
  tcase_add_test(tests, nets_are_shared_out);
  tcase_add_test(tests, limits_of_bandwidth);
  tcase_add_test(tests, variables);
  tcase_add_test(tests, variables_of_the_environment_and_of_files);
  suite_add_tcase(suite, tests);
  return suite;
}
