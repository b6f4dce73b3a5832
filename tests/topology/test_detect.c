/* Detection on machines whose sysfs the tests make: what is found, and what is made of what is hidden, odd or hostile.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "detecting.h"
#include "machine.h"
#include "suites.h"
#include "tests/common/comma.h"
#include "topology/detect.h"
#include "topology/detect_internal.h"
#include "topology/fuse.h"

/* Two sockets with two switches each, two GPUs and a NIC below a switch. */
static void make_server(struct sysfs *s)
{
  char path[256];
  sysfs_begin(s);
  for (int node = 0; node < 2; node++) {
    sysfs_node(s, node, node ? "ffff0000\n" : "0000ffff\n");
    for (int bridge = 0; bridge < 2; bridge++) {
      int bus = 0x10 * (2 * node + bridge + 1);
      const char *numa = node ? "1" : "0";
      snprintf(path, sizeof(path), "pci0000:%02x/0000:%02x:00.0", bus, bus);
      sysfs_device(s, path, "0x060400", "16.0 GT/s PCIe", "16", numa);
      for (int d = 0; d < 3; d++) {
        snprintf(path, sizeof(path), "pci0000:%02x/0000:%02x:00.0/0000:%02x:00.0", bus, bus, bus + 3 - d);
        sysfs_device(s, path, d < 2 ? "0x030200" : "0x020000", d < 2 ? "32.0 GT/s PCIe" : "8.0 GT/s PCIe",
                     d < 2 ? "16" : "8", numa);
      }
    }
  }
}

/* Its ranks and NICs. */
struct server {
  struct tt_detect_gpu gpus[8];
  struct tt_detect_net nets[4];
  char buses[8][24], paths[4][256], names[4][16];
  struct tt_detect_nvlink link;
};

static void describe_server(struct server *v, const struct sysfs *s)
{
  memset(v, 0, sizeof(*v));
  v->link = (struct tt_detect_nvlink){.target = NULL, .count = 12};
  for (int g = 0; g < 8; g++) {
    snprintf(v->buses[g], sizeof(v->buses[g]), "0000:%02X:00.0", 0x10 * (g / 2 + 1) + 2 + g % 2);
    v->gpus[g] = (struct tt_detect_gpu){
        .rank = g, .dev = g, .sm = 80, .gdr = true, .pci = v->buses[g], .numa = -1, .nvlinks = &v->link, .nnvlinks = 1};
  }
  for (int n = 0; n < 4; n++) {
    int bus = 0x10 * (n + 1);
    snprintf(v->paths[n], sizeof(v->paths[n]), "%s/devices/pci0000:%02x/0000:%02x:00.0/0000:%02x:00.0", s->root, bus,
             bus, bus + 1);
    snprintf(v->names[n], sizeof(v->names[n]), "mlx5_%d", n);
    v->nets[n] = (struct tt_detect_net){.name = v->names[n],
                                        .pci_path = v->paths[n],
                                        .dev = n,
                                        .port = 1,
                                        .speed = 200000,
                                        .maxconn = 131072,
                                        .rail = -1,
                                        .plane = -1,
                                        .guid = (uint64_t)n + 0xa0,
                                        .latency = 1.5f,
                                        .gdr = true};
  }
}

/* The second time in a program whose locale has a comma. */
START_TEST(server)
{
  struct sysfs s;
  struct server v;
  if (_i == 1 && !comma_locale()) return;
  make_server(&s);
  describe_server(&v, &s);
  struct tt_detect_request all = {.sysfs = s.root,
                                  .default_file = "",
                                  .cpu = &detecting_skylake,
                                  .host_hash = 0xabc,
                                  .gpus = v.gpus,
                                  .ngpus = 8,
                                  .nets = v.nets,
                                  .nnets = 4};
  struct tt_xml *fused, *xml;
  char *whole = detected(&all);
  has(whole, "<cpu host_hash=\"0xabc\" numaid=\"1\" affinity=\"ffff0000\" arch=\"x86_64\" vendor=\"GenuineIntel\" "
             "familyid=\"6\" modelid=\"85\">\n"
             "    <pci busid=\"0000:30:00.0\" class=\"0x060400\" vendor=\"0x10de\" link_speed=\"16.0 GT/s PCIe\" "
             "link_width=\"16\">\n"
             "      <pci busid=\"0000:31:00.0\" class=\"0x020000\" vendor=\"0x10de\" link_speed=\"8.0 GT/s PCIe\" "
             "link_width=\"8\">\n"
             "        <nic>\n"
             "          <net name=\"mlx5_2\" dev=\"2\" latency=\"1.5\" speed=\"200000\" port=\"1\" guid=\"0xa2\" "
             "maxconn=\"131072\" gdr=\"1\" net=\"1\"/>\n"
             "        </nic>\n"
             "      </pci>\n"
             "      <pci busid=\"0000:32:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"16.0 GT/s PCIe\" "
             "link_width=\"16\">\n"
             "        <gpu dev=\"4\" sm=\"80\" rank=\"4\" gdr=\"1\">\n"
             "          <nvlink target=\"fffffff:ffff:ff\" count=\"12\" tclass=\"0x068000\"/>\n");
  lacks(whole, "keep");
  ck_assert_int_eq(tt_xml_create("fused", &fused), ncclSuccess);
  for (int i = 0; i < 8; i++) { /* each rank sees its own GPU only; in an odd order */
    all.gpus = &v.gpus[i * 3 % 8];
    all.ngpus = 1;
    xml = detect(&all, NULL);
    ck_assert_int_eq(tt_topology_fuse(fused, xml), ncclSuccess);
    tt_xml_free(xml);
  }
  char *text = text_of(fused);
  ck_assert_str_eq(text, whole);
  struct tt_topology *t = machine_topology(text, NULL);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 8);
  ck_assert_int_eq(t->count[TT_NODE_NET], 4);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 7), "NVL 240");
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 2, TT_NODE_NET, 1), "PIX 6");
  tt_topology_free(t);
  free(whole);
  sysfs_end(&s);
}
END_TEST

START_TEST(flat_bus)
{
  struct sysfs s;
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  sysfs_device(&s, "pci0000:00/0000:00:05.0", "0x030200", "Unknown", "0", "-1");
  char *text = one_gpu(&s, "0000:00:05.0", -1);
  has(text, "numaid=\"0\" affinity=\"f\""); /* the only node */
  has(text, "<pci busid=\"0000:00:05.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"\" link_width=\"0\">");
  builds(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(no_numa_node)
{
  struct sysfs s;
  sysfs_begin(&s);
  sysfs_device(&s, "pci0000:00/0000:00:05.0", "0x030200", "5.0 GT/s PCIe", "255", NULL);
  char *text = one_gpu(&s, "0000:00:05.0", -1);
  has(text, "numaid=\"-1\" arch="); /* nothing is known of its processors */
  has(text, "link_speed=\"5.0 GT/s PCIe\" link_width=\"0\"");
  builds(text);
  sysfs_node(&s, 0, "f\n");
  sysfs_node(&s, 1, "f0\n");
  text = one_gpu(&s, "0000:00:05.0", -1);
  has(text, "numaid=\"-1\" arch="); /* of two, which? */
  builds(text);
  text = one_gpu(&s, "0000:00:05.0", 1);
  has(text, "numaid=\"1\" affinity=\"f0\"");
  builds(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(wide_domain)
{
  struct sysfs s;
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  /* Behind a VMD, whose own place is no bridge of the GPU. */
  sysfs_device(&s, "pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "0x030200", "16.0 GT/s PCIe",
               "16", "0");
  sysfs_device(&s, "pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0", "0x060400", "8.0 GT/s PCIe", "8", "0");
  char *text = one_gpu(&s, "00010000:01:00.0", -1);
  has(text, "<pci busid=\"10000:00:02.0\" class=\"0x060400\"");
  has(text, "<pci busid=\"10000:01:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"8.0 GT/s PCIe\" "
            "link_width=\"8\">");
  lacks(text, "0000:5d:05.5");
  builds(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(driver_knows_better)
{
  struct sysfs s;
  struct tt_detect_nvlink links[] = {
      {"00000000:06:00.0", NULL, 2}, {"0000:07:00.0", "0x030200", 1}, {"0000:08:00.0", NULL, 4}};
  struct tt_detect_gpu gpu = {.sm = 90,
                              .pci = "0000:05:00.0",
                              .numa = -1,
                              .generation = 4,
                              .width = 8,
                              .subsystem_device = 0x16c1,
                              .nvlinks = links,
                              .nnvlinks = 3,
                              .c2c_links = 10,
                              .c2c_megabytes = 44712};
  const struct tt_detect_cpu arm = {.arch = "arm64"};
  struct tt_detect_request request = {.default_file = "", .cpu = &arm, .gpus = &gpu, .ngpus = 1};
  sysfs_begin(&s);
  request.sysfs = s.root;
  sysfs_node(&s, 0, "f\n");
  sysfs_device(&s, "pci0000:05/0000:05:00.0", "0x030200", "32.0 GT/s PCIe", "16", "0");
  sysfs_device(&s, "pci0000:06/0000:06:00.0", "0x030000", NULL, NULL, "0");
  char *text = detected(&request);
  has(text, "arch=\"arm64\">");
  has(text, "subsystem_device=\"0x16c1\" link_speed=\"16.0 GT/s PCIe\" link_width=\"8\"");
  has(text, "<nvlink target=\"0000:06:00.0\" count=\"2\" tclass=\"0x030000\"/>");
  has(text, "<nvlink target=\"0000:07:00.0\" count=\"1\" tclass=\"0x030200\"/>");
  has(text, "<nvlink target=\"0000:08:00.0\" count=\"4\" tclass=\"0x068000\"/>"); /* hidden: a switch */
  has(text, "<c2c bw=\"44712\" count=\"10\"/>");
  builds(text);
  sysfs_end(&s);
}
END_TEST

/* No sysfs at all, links that go in circles, folders where files should be: a machine is found nonetheless. */
START_TEST(hostile)
{
  struct sysfs s;
  sysfs_begin(&s);
  char *text = one_gpu(&s, "0000:05:00.0", -1);
  has(text, "<pci busid=\"0000:05:00.0\" class=\"0x030000\" link_speed=\"\" link_width=\"0\">");
  builds(text);
  sysfs_link(&s, "bus/pci/devices/0000:05:00.0", "0000:06:00.0");
  sysfs_link(&s, "bus/pci/devices/0000:06:00.0", "0000:05:00.0");
  sysfs_link(&s, "class/pci_bus/0000:05", "0000:05");
  builds(one_gpu(&s, "0000:05:00.0", -1));
  sysfs_write(&s, "devices/other", "");
  sysfs_link(&s, "bus/pci/devices/0000:07:00.0", "../../../devices/other"); /* leads to something else */
  builds(one_gpu(&s, "0000:07:00.0", -1));
  sysfs_write(&s, "devices/pci0000:08/0000:08:00.0/class/not-a-file", "");
  sysfs_write(&s, "devices/pci0000:08/0000:08:00.0/max_link_speed", "\x01\xff<&\"'GT/s\n");
  sysfs_write(&s, "devices/pci0000:08/0000:08:00.0/max_link_width", "99999999999999999999\n");
  sysfs_write(&s, "devices/pci0000:08/0000:08:00.0/numa_node", "none\n");
  sysfs_write(&s, "devices/pci0000:08/0000:08:00.0/vendor", "<vendor>&\x02\n");
  sysfs_write(&s, "devices/system/node/node0/cpumap/not-a-file", "");
  sysfs_write(&s, "devices/system/node/nodes", "0\n");
  sysfs_link(&s, "bus/pci/devices/0000:08:00.0", "../../../devices/pci0000:08/0000:08:00.0");
  text = one_gpu(&s, "0000:08:00.0", -1);
  has(text, "class=\"0x030000\" vendor=\"&lt;vendor>&amp;?\" link_speed=\"\" link_width=\"0\"");
  builds(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(networks)
{
  struct sysfs s;
  struct tt_detect_gpu gpu = {.numa = 0};
  char name[256], odd[4096], hidden[4096], virtio[4096];
  memset(name, 'n', 255);
  name[255] = 0;
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  sysfs_node(&s, 1, "f0\n");
  sysfs_device(&s, "pci0000:10/0000:10:00.0", "0x020000", "8.0 GT/s PCIe", "8", "1");
  sysfs_write(&s, "devices/pci0000:10/0000:10:00.0/virtio2/device", "0x0001\n");
  sysfs_write(&s, "devices/vmbus/1234-5678/class", "0x1\n");
  snprintf(virtio, sizeof(virtio), "%s", sysfs_path(&s, "devices/pci0000:10/0000:10:00.0/virtio2"));
  snprintf(odd, sizeof(odd), "%s", sysfs_path(&s, "devices/vmbus/1234-5678"));
  snprintf(hidden, sizeof(hidden), "%s", sysfs_path(&s, "devices/pci0000:20/0000:20:00.0"));
  struct tt_detect_net nets[] = {{.name = name, .pci_path = virtio, .dev = 0, .rail = 2, .plane = 0, .collnet = true},
                                 {.name = "\x01\xff<&\"", .pci_path = odd, .dev = 1, .rail = -1, .plane = -1},
                                 {.name = "none", .dev = 2, .rail = -1, .plane = -1},
                                 {.name = "hidden", .pci_path = hidden, .dev = 3, .rail = -1, .plane = -1}};
  struct tt_detect_request request = {.sysfs = s.root,
                                      .default_file = "",
                                      .cpu = &detecting_skylake,
                                      .gpus = &gpu,
                                      .ngpus = 1,
                                      .nets = nets,
                                      .nnets = 4};
  char *text = detected(&request);
  has(text, name);
  has(text, "rail=\"2\" plane=\"0\"");
  has(text, "coll=\"1\"");
  has(text, "<pci busid=\"0000:10:00.0\" class=\"0x020000\"");
  has(text, "<net name=\"??&lt;&amp;&quot;\" dev=\"1\"");
  has(text, "<pci busid=\"0000:20:00.0\" class=\"0x02\"");
  struct tt_topology *t = machine_topology(text, NULL);
  ck_assert_int_eq(t->count[TT_NODE_NET], 4);
  int net = tt_topology_find(t, TT_NODE_NET, 0, 0), first = tt_topology_find(t, TT_NODE_NET, 0, 1);
  ck_assert_int_eq(tt_topology_path_between(t, TT_NODE_GPU, 0, TT_NODE_NET, net)->type, TT_PATH_SYS);
  ck_assert_int_eq(tt_topology_path_between(t, TT_NODE_GPU, 0, TT_NODE_NET, first)->type, TT_PATH_PHB);
  tt_topology_free(t);
  sysfs_end(&s);
}
END_TEST

/* A plugin that says what is no time says nothing: the reader would refuse it. */
START_TEST(odd_latencies)
{
  static const float odd[] = {-1, NAN, INFINITY};
  struct sysfs s;
  struct tt_detect_gpu gpu = {.numa = 0};
  struct tt_detect_net net = {.name = "n", .latency = odd[_i], .rail = -1, .plane = -1};
  struct tt_detect_request request = {
      .default_file = "", .cpu = &detecting_skylake, .gpus = &gpu, .ngpus = 1, .nets = &net, .nnets = 1};
  sysfs_begin(&s);
  request.sysfs = s.root;
  sysfs_node(&s, 0, "f\n");
  char *text = detected(&request);
  has(text, "latency=\"0\"");
  builds(text);
  sysfs_end(&s);
}
END_TEST

/* The ports of a card may have one name. */
START_TEST(nets_of_one_name)
{
  struct sysfs s;
  struct tt_detect_gpu gpu = {.numa = 0};
  struct tt_detect_net nets[] = {{.name = "card", .dev = 0, .port = 1, .rail = -1, .plane = -1},
                                 {.name = "card", .dev = 1, .port = 2, .rail = -1, .plane = -1}};
  struct tt_detect_request request = {
      .default_file = "", .cpu = &detecting_skylake, .gpus = &gpu, .ngpus = 1, .nets = nets, .nnets = 2};
  sysfs_begin(&s);
  request.sysfs = s.root;
  sysfs_node(&s, 0, "f\n");
  char *text = detected(&request);
  has(text, "<net name=\"card\" dev=\"0\"");
  has(text, "<net name=\"card\" dev=\"1\"");
  builds(text);
  sysfs_end(&s);
}
END_TEST

/* The line of the log is full: what comes then is not told, and it ends where it must. */
START_TEST(much_is_missing)
{
  struct tt_detection d = {.nnodes = 0};
  tt_detect_miss(&d, "%0255d", 1);
  tt_detect_miss(&d, "%0245d", 2);
  tt_detect_miss(&d, "more");
  tt_detect_miss(&d, "and more");
  ck_assert_uint_lt(strnlen(d.missing, sizeof(d.missing)), sizeof(d.missing));
  ck_assert_ptr_nonnull(strstr(d.missing, "; and more"));
}
END_TEST

START_TEST(host_devices)
{
  struct sysfs s;
  struct tt_detect_gpu gpus[] = {{.rank = 0, .dev = 0, .numa = 0},
                                 {.rank = 1, .dev = 1, .numa = 0, .pci = ""},
                                 {.rank = 2, .dev = 2, .numa = 1},
                                 {.rank = 3, .dev = 3, .numa = -1}};
  struct tt_detect_request request = {.default_file = "", .cpu = &detecting_skylake, .gpus = gpus, .ngpus = 4};
  sysfs_begin(&s);
  request.sysfs = s.root;
  sysfs_node(&s, 0, "f\n");
  sysfs_node(&s, 1, "f0\n");
  char *text = detected(&request), label[64];
  has(text, "<gpu dev=\"2\" sm=\"0\" rank=\"2\" gdr=\"0\" host=\"1\"/>");
  struct tt_topology *t = machine_topology(text, NULL);
  ck_assert_int_eq(t->count[TT_NODE_CPU], 2);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), "PHB 12");
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, tt_topology_gpu_of_rank(t, 2)), "SYS 10");
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, tt_topology_gpu_of_rank(t, 3)), "PHB 12");
  ck_assert_str_eq(tt_topology_label(t, tt_topology_node(t, TT_NODE_DEV, 1), label, sizeof(label)),
                   "DEV host of rank 1");
  tt_topology_free(t);
  sysfs_end(&s);
}
END_TEST

START_TEST(switch_links)
{
  struct sysfs s;
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  sysfs_device(&s, "pci0000:10/0000:10:00.0", "0x060400", "16.0 GT/s PCIe", "16", "0");
  sysfs_write(&s, "devices/pci0000:10/0000:10:00.0/vendor", "0x1000\n");
  sysfs_device(&s, "pci0000:10/0000:10:00.0/0000:11:00.0", "0x030200", "16.0 GT/s PCIe", "16", "0");
  sysfs_write(&s, "kernel/pci_switch_link/virtual_switch_links/0000:10:00.0/0000:30:00.0", "");
  sysfs_write(&s, "kernel/pci_switch_link/virtual_switch_links/0000:10:00.0/0000:20:00.0", "");
  sysfs_write(&s, "kernel/pci_switch_link/virtual_switch_links/0000:10:00.0/other", "");
  char *text = one_gpu(&s, "0000:11:00.0", -1);
  has(text, "<pcilink target=\"0000:20:00.0\"/>\n      <pcilink target=\"0000:30:00.0\"/>");
  lacks(text, "other");
  builds(text);
  sysfs_end(&s);
}
END_TEST

/* Whatever the files hold, there is a machine. */
START_TEST(garbage)
{
  static const char *const files[] = {"class",     "vendor",         "device",         "subsystem_vendor",
                                      "numa_node", "max_link_speed", "max_link_width", "../max_link_speed"};
  struct sysfs s;
  char path[128], bytes[64];
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  sysfs_device(&s, "pci0000:05/0000:05:00.0/0000:06:00.0", NULL, NULL, NULL, NULL);
  srand((unsigned)_i + 1);
  for (int round = 0; round < 20; round++) {
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
      size_t length = (size_t)rand() % sizeof(bytes);
      for (size_t b = 0; b < length; b++) bytes[b] = (char)(rand() % 2 ? "0123456789x-. GT/s\n"[rand() % 19] : rand());
      bytes[length ? length - 1 : 0] = 0;
      snprintf(path, sizeof(path), "devices/pci0000:05/0000:05:00.0/0000:06:00.0/%s", files[f]);
      sysfs_write(&s, path, bytes);
    }
    snprintf(path, sizeof(path), "%x\n", (unsigned)rand());
    sysfs_write(&s, "devices/system/node/node0/cpumap", rand() % 2 ? path : bytes);
    struct tt_detect_gpu gpu = {.sm = 90, .pci = "0000:06:00.0", .numa = -1};
    struct tt_detect_request request = {
        .sysfs = s.root, .default_file = "", .cpu = &detecting_skylake, .gpus = &gpu, .ngpus = 1};
    struct tt_xml *xml = detect(&request, NULL), *again;
    char *text = text_of(xml);
    ck_assert_int_eq(tt_topology_unpack(text, strlen(text), "garbage", &again), ncclSuccess);
    tt_xml_free(again);
    builds(text);
  }
  sysfs_end(&s);
}
END_TEST

/* This machine, whatever it is. */
START_TEST(here)
{
  struct tt_detect_gpu gpu = {.numa = tt_detect_numa_here(NULL)};
  struct tt_detect_request request = {.gpus = &gpu, .ngpus = 1};
  builds(detected(&request));
  ck_assert_int_eq(tt_detect_numa_here("/nowhere"), -1);
}
END_TEST

Suite *suite_detect(void)
{
  Suite *suite = suite_create("detect");
  TCase *tests = tcase_create("detect");
  tcase_add_loop_test(tests, server, 0, 2);
  tcase_add_test(tests, flat_bus);
  tcase_add_test(tests, no_numa_node);
  tcase_add_test(tests, wide_domain);
  tcase_add_test(tests, driver_knows_better);
  tcase_add_test(tests, hostile);
  tcase_add_test(tests, networks);
  tcase_add_loop_test(tests, odd_latencies, 0, 3);
  tcase_add_test(tests, nets_of_one_name);
  tcase_add_test(tests, much_is_missing);
  tcase_add_test(tests, host_devices);
  tcase_add_test(tests, switch_links);
  tcase_add_loop_test(tests, garbage, 0, 4);
  tcase_add_test(tests, here);
  suite_add_tcase(suite, tests);
  return suite;
}
