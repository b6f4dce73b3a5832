/* From a file to nodes and links: bandwidths, what is dropped, what is one and what is several, what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "machine.h"
#include "suites.h"
#include "topology/draft.h"

static float link_between(const struct tt_topology *t, int from, int to)
{
  const struct tt_node *node = &t->nodes[from];
  for (int l = node->first_link; l < node->first_link + node->nlinks; l++)
    if (t->links[l].to == to) return t->links[l].bandwidth;
  return 0;
}

START_TEST(speeds)
{
  static const struct {
    const char *speed;
    int width;
    double bandwidth;
  } pci[] = {{"2.5 GT/s PCIe", 1, 0.1875},
             {"5 GT/s", 16, 6},
             {"8.0 GT/s PCIe", 16, 12},
             {"16 GT/s", 8, 12},
             {"32.0 GT/s PCIe", 16, 48},
             {"64.0 GT/s PCIe", 16, 96},
             {"", 16, 12},
             {"Unknown", 0, 12},
             {"16.0 GT/s PCIe", 0, 24},
             {"12 GT/s", 16, 12},
             {"16 MT/s", 16, 12}};
  static const struct {
    int sm;
    double bandwidth;
  } nvlink[] = {{60, 18}, {70, 20},   {75, 20},    {80, 20},    {86, 12},
                {89, 20}, {90, 20.6}, {100, 40.1}, {103, 40.1}, {50, 20}};
  for (size_t i = 0; i < sizeof(pci) / sizeof(pci[0]); i++)
    ck_assert_double_eq_tol((double)tt_speed_pci(pci[i].width, pci[i].speed), pci[i].bandwidth, 1e-6);
  for (size_t i = 0; i < sizeof(nvlink) / sizeof(nvlink[0]); i++)
    ck_assert_double_eq_tol((double)tt_speed_nvlink(nvlink[i].sm), nvlink[i].bandwidth, 1e-5);
}
END_TEST

START_TEST(between_cpus)
{
  static const struct {
    const char *attributes;
    double bandwidth;
  } cpus[] = {{"arch=\"x86_64\" vendor=\"AuthenticAMD\"", 16},
              {"arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"79\"", 6},
              {"arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"0x55\"", 10},
              {"arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\"", 22},
              {"arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"207\"", 40},
              {"arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"15\" modelid=\"207\"", 6},
              {"arch=\"x86_64\" vendor=\"CentaurHauls\" familyid=\"7\" modelid=\"91\"", 9},
              {"arch=\"x86_64\" vendor=\"  Shanghai  \" familyid=\"7\" modelid=\"90\"", 6},
              {"arch=\"x86_64\" vendor=\"Other\"", 5000},
              {"arch=\"arm64\"", 6},
              {"arch=\"ppc64\"", 32},
              {"arch=\"riscv64\"", 5000}};
  for (size_t i = 0; i < sizeof(cpus) / sizeof(cpus[0]); i++) {
    char *text;
    ck_assert_int_gt(
        asprintf(&text,
                 "<system version=\"1\"><cpu numaid=\"0\" %s><pci busid=\"1\" class=\"0x030000\" "
                 "link_speed=\"\" link_width=\"16\"><gpu rank=\"0\" dev=\"0\" sm=\"80\" gdr=\"0\"/></pci></cpu>"
                 "<cpu numaid=\"1\" arch=\"arm64\"/></system>",
                 cpus[i].attributes),
        0);
    struct tt_topology *t = machine_topology(text, NULL);
    int first = tt_topology_node(t, TT_NODE_CPU, 0);
    ck_assert_double_eq((double)link_between(t, first, first + 1), cpus[i].bandwidth);
    ck_assert_double_eq((double)link_between(t, first + 1, first), cpus[i].bandwidth);
    tt_topology_free(t);
  }
}
END_TEST

START_TEST(hybrid_cube)
{
  struct tt_topology *t = machine_topology(machine_hybrid_cube(), NULL);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 8);
  ck_assert_int_eq(t->count[TT_NODE_DEV], 8);
  ck_assert_int_eq(t->count[TT_NODE_CPU], 2);
  ck_assert_int_eq(t->count[TT_NODE_NET], 4);
  ck_assert_int_eq(t->count[TT_NODE_NIC], 4);
  ck_assert_int_eq(t->count[TT_NODE_PCI], 4);
  ck_assert_int_eq(t->count[TT_NODE_NVS], 0);
  int dev = tt_topology_node(t, TT_NODE_DEV, 0);
  ck_assert_double_eq((double)link_between(t, dev, dev + 1), 20);
  ck_assert_double_eq((double)link_between(t, dev, dev + 3), 40);
  ck_assert_double_eq((double)link_between(t, dev, dev + 5), 0);
  ck_assert_double_eq((double)t->total_bandwidth, 120);
  ck_assert_double_eq((double)t->max_bandwidth, 40);
  ck_assert_double_eq((double)t->nodes[tt_topology_node(t, TT_NODE_NET, 0)].net.bandwidth, 12.5);
  /* Down first, the uplink last; NVLinks before all, the fastest first. */
  const struct tt_node *bridge = &t->nodes[tt_topology_node(t, TT_NODE_PCI, 0)];
  ck_assert_int_eq((int)t->nodes[t->links[bridge->first_link + bridge->nlinks - 1].to].type, TT_NODE_CPU);
  const struct tt_node *node = &t->nodes[dev];
  ck_assert_int_eq((int)t->links[node->first_link + node->nlinks - 1].type, TT_LINK_PCI);
  ck_assert_int_eq(t->links[node->first_link + 1].to, dev + 3);
  for (int l = 0; l < t->nlinks; l++) {
    ck_assert_int_eq(t->links[t->links[l].reverse].to, t->links[l].from);
    ck_assert_int_eq(t->links[t->links[l].reverse].reverse, l);
  }
  tt_topology_free(t);
}
END_TEST

START_TEST(switches_are_one_node)
{
  struct tt_topology *t = machine_topology(machine_hgx(90, 18), NULL);
  ck_assert_int_eq(t->count[TT_NODE_NVS], 1);
  int dev = tt_topology_node(t, TT_NODE_DEV, 7), nvs = tt_topology_node(t, TT_NODE_NVS, 0);
  ck_assert_double_eq_tol((double)link_between(t, dev, nvs), 18 * 20.6, 1e-3);
  ck_assert_double_eq_tol((double)link_between(t, nvs, dev), 18 * 20.6, 1e-3);
  tt_topology_free(t);
}
END_TEST

/* Two levels of one switch are one, of two generations are two. */
START_TEST(split_switches)
{
  const char *fourth = "vendor=\"0x1000\" device=\"0xc010\" subsystem_vendor=\"0x1000\" subsystem_device=\"0xa023\"";
  const char *fifth = "vendor=\"0x1000\" device=\"0xc030\" subsystem_vendor=\"0x1000\" subsystem_device=\"0x0001\"";
  const char *fifth_sub = "vendor=\"0x1000\" device=\"0xc030\" subsystem_vendor=\"0x1000\" subsystem_device=\"0x1001\"";
  const struct {
    const char *top, *sub;
    int bridges;
    const char *path;
  } cases[] = {{fourth, fourth, 1, "PIX 24"},    {fifth, fifth_sub, 1, "PIX 24"},
               {fifth, fifth, 3, "PXB 24"},      {fifth_sub, fifth, 3, "PXB 24"},
               {fourth, fifth_sub, 3, "PXB 24"}, {"vendor=\"0x10b5\"", "vendor=\"0x10b5\"", 3, "PXB 24"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct machine m;
    machine_begin(&m);
    machine_cpu(&m, 0, 0, "sapphire");
    machine_switch(&m, cases[i].top);
    for (int sub = 0; sub < 2; sub++) {
      machine_switch(&m, cases[i].sub);
      machine_gpu(&m, sub, 80, "");
      machine_net(&m, sub, 400, true);
      machine_up(&m);
    }
    struct tt_topology *t = machine_topology(machine_end(&m), NULL);
    ck_assert_int_eq(t->count[TT_NODE_PCI], cases[i].bridges);
    ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), cases[i].path);
    ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_NET, 0), "PIX 24");
    tt_topology_free(t);
  }
}
END_TEST

/* Parts of one switch that also list links to each other, and one to a switch that is another. */
START_TEST(links_between_switches)
{
  const char *fourth = "vendor=\"0x1000\" device=\"0xc010\" subsystem_vendor=\"0x1000\" subsystem_device=\"0xa023\"";
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "sapphire");
  machine_switch(&m, fourth);
  fputs("<pcilink target=\"8001:00:00.0\"/><pcilink target=\"8002:00:00.0\"/>", m.out);
  for (int sub = 0; sub < 2; sub++) {
    machine_switch(&m, fourth);
    machine_gpu(&m, sub, 80, "");
    fputs("<pcilink target=\"8000:00:00.0\"/>", m.out);
    fprintf(m.out, "<pcilink target=\"%04x:00:00.0\"/><pcilink target=\"8003:00:00.0\"/>", 0x8002 - sub);
    machine_up(&m);
  }
  machine_up(&m);
  machine_switch(&m, "");
  machine_gpu(&m, 2, 80, "");
  fputs("<pcilink target=\"8001:00:00.0\"/>", m.out);
  fputs("<pcilink target=\"8002:00:00.0\"/>", m.out);
  struct tt_topology *t = machine_topology(machine_end(&m), NULL);
  int top = tt_topology_node(t, TT_NODE_PCI, 0);
  ck_assert_int_eq(t->count[TT_NODE_PCI], 2);
  ck_assert_double_gt((double)link_between(t, top, top + 1), 4999);
  ck_assert_double_eq((double)link_between(t, top, top), 0);
  ck_assert_int_eq(t->nodes[top].nlinks, 5); /* two GPUs, twice the other switch, the CPU */
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), "PIX 24");
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 2), "PXB 24");
  tt_topology_free(t);
}
END_TEST

static struct tt_topology *below_cpu(const char *inner)
{
  char *text;
  ck_assert_int_gt(asprintf(&text,
                            "<system version=\"1\"><cpu numaid=\"-1\" affinity=\"3,00000f00\" arch=\"arm64\">%s"
                            "</cpu></system>",
                            inner),
                   0);
  return machine_topology(text, NULL);
}

/* Ranks that share a device; a GPU that nobody has; a GPU and a card of which no driver or plugin says anything; the
 * two functions of a card; a net device that is none. */
static const char odd_devices[] =
    "<pci busid='0000:01:00.0' class='0x030200' link_speed='8 GT/s' link_width='16'>"
    "  <gpu dev='0' sm='80' gdr='1' rank='0'/><gpu dev='0' sm='80' gdr='1' rank='1'/></pci>"
    "<pci busid='0000:02:00.0' class='0x030200'><gpu dev='1' sm='80' gdr='1'/></pci>"
    "<pci busid='0000:03:00.0' class='0x030000'/>"
    "<pci busid='0000:04:00.0' class='0x020000'/>"
    "<pci busid='0000:05:00.0' class='0x020000' link_speed='8 GT/s' link_width='16'>"
    "  <nic><net name='a' dev='0'/><net name='b'/></nic></pci>"
    "<pci busid='0000:05:00.1' class='0x020000'><nic><net name='c' dev='1' speed='0'/></nic></pci>"
    "<pci busid='0000:06:00.0' class='0x060000' link_speed='8 GT/s' link_width='16'>"
    "  <nic><net name='d' dev='2' net='0'/></nic></pci>";

START_TEST(what_counts)
{
  struct tt_topology *t = below_cpu(odd_devices);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 2);
  ck_assert_int_eq(t->count[TT_NODE_DEV], 1);
  ck_assert_int_eq(t->count[TT_NODE_PCI], 0);
  ck_assert_int_eq(t->count[TT_NODE_NIC], 2); /* the functions of a card are one */
  ck_assert_int_eq(t->count[TT_NODE_NET], 2);
  ck_assert_double_eq((double)t->nodes[tt_topology_node(t, TT_NODE_NET, 1)].net.bandwidth, 1.25);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), "LOC 5000");
  cpu_set_t cpus;
  tt_topology_affinity(t, 0, &cpus);
  ck_assert_int_eq(CPU_COUNT(&cpus), 6);
  ck_assert(CPU_ISSET(8, &cpus) && CPU_ISSET(33, &cpus) && !CPU_ISSET(0, &cpus));
  char text[64];
  ck_assert_str_eq(tt_topology_label(t, tt_topology_node(t, TT_NODE_CPU, 0), text, sizeof(text)), "CPU -");
  ck_assert_str_eq(tt_topology_label(t, tt_topology_node(t, TT_NODE_DEV, 0), text, sizeof(text)), "DEV 0000:01:00.0");
  tt_topology_free(t);
}
END_TEST

#define PCI(bus, inner) "<pci busid='" bus "' class='0x060400' link_speed='8 GT/s' link_width='16'>" inner "</pci>"
#define GPU(bus, rank, links) PCI(bus, "<gpu dev='0' sm='80' gdr='1' rank='" rank "'>" links "</gpu>")

static const struct refusal {
  const char *inner, *words;
} refusals[] = {
    {PCI("", ""), "m:1: <pci busid=\"\">: busid is \"\"; it must be a PCI bus id"},
    {PCI("0000:0g:00.0", ""), "busid is \"0000:0g:00.0\""},
    {PCI("00001111222233334444", ""), "busid is \""},
    {GPU("1", "0", "") "\n" GPU("1", "1", ""), "m:2: <gpu dev=\"0\"> is on the same bus id as the GPU of line 1"},
    {GPU("1", "0", "") "\n" GPU("2", "0", ""), "m:2: rank 0 is that of another GPU too (line 1)"},
    {GPU("1", "x", ""), "rank is \"x\"; it must be a number from 0"},
    {GPU("1", "-1", ""), "rank is \"-1\""},
    {"", "m:1: <system> has no <gpu> with a rank"},
    {GPU("1", "1", ""), "m has no <gpu> of rank 0"},
    {GPU("1", "0", "<nvlink count='0' tclass='0x068000'/>"), "<nvlink>: count is \"0\""},
    {GPU("1", "0", "<nvlink count='1' tclass='0x0680'/>"), "<nvlink>: tclass is \"0x0680\"; it must be"},
    {GPU("1", "0", "<nvlink target='2' count='1' tclass='0x030200'/>") "\n" GPU("2", "1", ""),
     "m:1: DEV 0000:00:00.1 has a link of type NVL to DEV 0000:00:00.2 (line 2), which lists none back"},
    {PCI("1", "<pcilink target='2'/>") PCI("2", "") GPU("3", "0", ""),
     "PCI 0000:00:00.1 has a link of type LOC to PCI 0000:00:00.2"},
};

START_TEST(refused)
{
  const struct refusal *r = &refusals[_i];
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t;
  struct tt_xml *xml;
  char *text;
  ck_assert_int_gt(
      asprintf(&text, "<system version=\"1\"><cpu numaid=\"0\" arch=\"arm64\">%s</cpu></system>", r->inner), 0);
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "m", "system", &xml), ncclSuccess);
  ck_assert_int_ne(tt_topology_create(xml, &rules, 0, 0, &t), ncclSuccess);
  ck_assert_ptr_null(t);
  ck_assert_msg(strstr(tt_log_thread_error(), r->words), "\"%s\" lacks \"%s\"", tt_log_thread_error(), r->words);
  tt_xml_free(xml);
  free(text);
}
END_TEST

/* As many ranks on the host device as a machine may have, all on one NUMA node. */
START_TEST(many_ranks_of_one_cpu)
{
  enum { RANKS = 1024 };
  char *text;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  fputs("<system version=\"1\"><cpu host_hash=\"0x1\" numaid=\"0\" arch=\"arm64\">", out);
  for (int r = 0; r < RANKS; r++) fprintf(out, "<gpu dev=\"0\" sm=\"0\" rank=\"%d\" gdr=\"0\" host=\"1\"/>", r);
  fputs("</cpu></system>", out);
  fclose(out);
  struct tt_topology *t = machine_topology(text, NULL);
  ck_assert_int_eq(t->count[TT_NODE_GPU], RANKS);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, RANKS - 1), "PHB 12");
  tt_topology_free(t);
}
END_TEST

/* NETs are named by a byte for the host. */
START_TEST(too_many_hosts)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t;
  struct tt_xml *xml;
  for (int hosts = 127; hosts <= 128; hosts++) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fputs("<system version=\"1\">", out);
    for (int h = 0; h < hosts; h++)
      fprintf(out, "<cpu host_hash=\"%x\" numaid=\"0\" arch=\"arm64\">%s</cpu>", h + 1,
              h == 0 ? PCI("1", "<gpu dev='0' rank='0' sm='90' gdr='1'/>") : "");
    fputs("</system>", out);
    fclose(out);
    ck_assert_int_eq(tt_xml_parse(text, size, "m", "system", &xml), ncclSuccess);
    ck_assert_int_eq(tt_topology_create(xml, &rules, 0, 0, &t), hosts == 127 ? ncclSuccess : ncclInvalidUsage);
    tt_topology_free(t);
    tt_xml_free(xml);
    free(text);
  }
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "another host than 127 before it"));
}
END_TEST

/* NVLink to the CPU; and ranks that share a device, which list its links once each. */
START_TEST(links_of_devices)
{
#define LINKS "<nvlink count='2' tclass='0x068001'/><nvlink count='6' tclass='0x068000'/><c2c bw='10000' count='2'/>"
#define RANK(n) "<gpu dev='0' sm='70' gdr='1' rank='" n "'>" LINKS "</gpu>"
  struct tt_topology *t = below_cpu(PCI("1", RANK("0") RANK("1")));
  int dev = tt_topology_node(t, TT_NODE_DEV, 0);
  ck_assert_double_eq((double)link_between(t, dev, tt_topology_node(t, TT_NODE_NVS, 0)), 120);
  ck_assert_double_eq((double)link_between(t, dev, tt_topology_node(t, TT_NODE_CPU, 0)), 40);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 1, TT_NODE_CPU, 0), "NVL 40");
  ck_assert_double_eq((double)t->total_bandwidth, 160);
  tt_topology_free(t);
}
END_TEST

Suite *suite_model(void)
{
  Suite *suite = suite_create("model");
  TCase *tests = tcase_create("model");
  tcase_add_test(tests, speeds);
  tcase_add_test(tests, between_cpus);
  tcase_add_test(tests, hybrid_cube);
  tcase_add_test(tests, switches_are_one_node);
  tcase_add_test(tests, split_switches);
  tcase_add_test(tests, links_between_switches);
  tcase_add_test(tests, what_counts);
  tcase_add_test(tests, links_of_devices);
  tcase_add_test(tests, many_ranks_of_one_cpu);
  tcase_add_test(tests, too_many_hosts);
  tcase_add_loop_test(tests, refused, 0, sizeof(refusals) / sizeof(refusals[0]));
  suite_add_tcase(suite, tests);
  return suite;
}
