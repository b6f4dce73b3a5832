/* Detection that begins with a file: what the file says, what ranks add, who stands in for whom, and what the log says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "detecting.h"
#include "machine.h"
#include "suites.h"
#include "topology/detect.h"
#include "topology/fuse.h"

/* A file of four GPUs and two NETs, in an order of its own, one GPU without an element. */
static const char file_text[] =
    "<system version='1'>\n"
    "<cpu host_hash='0x77' numaid='0' affinity='f' arch='x86_64' vendor='AuthenticAMD'>\n"
    "<pci busid='0000:03:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'>\n"
    "<gpu dev='2' sm='80' rank='7' gdr='1'><nvlink target='0000:01:00.0' count='4' tclass='0x030200'/></gpu></pci>\n"
    "<pci busid='0000:01:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'>\n"
    "<gpu dev='0' sm='80' rank='9' gdr='1'><nvlink target='0000:03:00.0' count='4' tclass='0x030200'/></gpu></pci>\n"
    "<pci busid='0000:09:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16' colour='green'/>\n"
    "</cpu><cpu host_hash='0x77' numaid='1' affinity='f0' arch='x86_64' vendor='AuthenticAMD'>\n"
    "<pci busid='0000:02:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'>\n"
    "<gpu dev='1' sm='80' rank='8' gdr='1'/></pci>\n"
    "<pci busid='0000:0a:00.0' class='0x020000' link_speed='16.0 GT/s PCIe' link_width='16'>\n"
    "<nic><net name='mlx5_0' dev='0' speed='200000'/><net name='mlx5_1' dev='1' speed='200000'/>\n"
    "<net name='none' speed='1'/></nic></pci>\n"
    "</cpu></system>\n";

START_TEST(stand_ins)
{
  struct sysfs s;
  struct tt_detect_gpu gpus[6];
  struct tt_detect_net nets[] = {{.name = "lo", .dev = 0, .speed = 1, .rail = -1, .plane = -1}};
  struct tt_detect_outcome outcome;
  char file[128], *text;
  sysfs_begin(&s);
  sysfs_write(&s, "topo.xml", file_text);
  snprintf(file, sizeof(file), "%s", sysfs_path(&s, "topo.xml"));
  for (int g = 0; g < 6; g++) gpus[g] = (struct tt_detect_gpu){.rank = 5 - g, .dev = g, .numa = -1};
  struct tt_detect_request request = {.sysfs = s.root,
                                      .file = file,
                                      .cpu = &detecting_skylake,
                                      .host_hash = 5,
                                      .gpus = gpus,
                                      .ngpus = 2,
                                      .nets = nets,
                                      .nnets = 1};
  /* Fewer ranks than GPUs: the first ones by dev, the others go. */
  text = text_of(detect(&request, &outcome));
  ck_assert_int_eq(outcome.gpus_stand_in, 2);
  ck_assert(outcome.from_file && outcome.nets_stand_in);
  ck_assert_int_eq(tt_detect_net_device(&outcome, 0), 0);
  ck_assert_int_eq(tt_detect_net_device(&outcome, 1), 0);
  has(text, "<cpu host_hash=\"0x5\" numaid=\"0\"");
  has(text, "<gpu dev=\"0\" sm=\"80\" rank=\"5\" gdr=\"1\">");
  has(text, "<gpu dev=\"1\" sm=\"80\" rank=\"4\" gdr=\"1\"/>");
  has(text, "<net name=\"mlx5_1\" dev=\"1\" speed=\"200000\"/>");
  lacks(text, "0000:03:00.0\" class");
  lacks(text, "0000:09:00.0");
  lacks(text, "\"lo\"");
  lacks(text, "\"none\"");
  free(text);
  /* More: the place without an element is taken too, and the last two are host devices. */
  request.ngpus = 6;
  text = text_of(detect(&request, &outcome));
  ck_assert_int_eq(outcome.gpus_stand_in, 4);
  has(text, "link_width=\"16\" colour=\"green\">\n      <gpu dev=\"3\" sm=\"0\" rank=\"2\" gdr=\"0\"/>");
  has(text, "<gpu dev=\"5\" sm=\"0\" rank=\"0\" gdr=\"0\" host=\"1\"/>");
  struct tt_topology *t = machine_topology(text, NULL);
  ck_assert_str_eq(
      machine_path(t, TT_NODE_GPU, tt_topology_gpu_of_rank(t, 5), TT_NODE_GPU, tt_topology_gpu_of_rank(t, 3)),
      "NVL 80");
  tt_topology_free(t);
  /* A rank for which there is no place decides the same of the network. */
  request.gpus = &gpus[5];
  request.ngpus = 1;
  text = text_of(detect(&request, &outcome));
  ck_assert(outcome.nets_stand_in && outcome.gpus_stand_in == 0);
  free(text);
  /* All that the file has are here too, and nothing stands in. */
  struct tt_detect_net both[] = {{.name = "mlx5_1", .dev = 4, .rail = -1, .plane = -1},
                                 {.name = "lo", .dev = 5, .rail = -1, .plane = -1},
                                 {.name = "mlx5_0", .dev = 6, .rail = -1, .plane = -1}};
  request.nets = both;
  request.nnets = 2;
  text = text_of(detect(&request, &outcome));
  ck_assert(outcome.nets_stand_in);
  ck_assert_int_eq(tt_detect_net_device(&outcome, 5), 1);
  free(text);
  request.nnets = 3;
  text = text_of(detect(&request, &outcome));
  ck_assert(!outcome.nets_stand_in);
  ck_assert_int_eq(tt_detect_net_device(&outcome, 7), 7);
  has(text, "<net name=\"mlx5_1\" dev=\"4\" speed=\"200000\" latency=\"0\"");
  has(text, "<net name=\"mlx5_0\" dev=\"6\"");
  has(text, "<net name=\"lo\" dev=\"5\"");
  free(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(file_and_real_gpus)
{
  struct sysfs s;
  struct tt_detect_gpu gpu = {.rank = 0, .dev = 5, .sm = 90, .pci = "00000000:01:00.0", .numa = -1};
  struct tt_detect_net net = {.name = "eth0", .speed = 10000, .rail = -1, .plane = -1};
  struct tt_detect_outcome outcome;
  char file[128];
  sysfs_begin(&s);
  sysfs_write(&s, "topo.xml", file_text);
  snprintf(file, sizeof(file), "%s", sysfs_path(&s, "topo.xml"));
  struct tt_detect_request request = {.sysfs = s.root,
                                      .default_file = file,
                                      .cpu = &detecting_skylake,
                                      .gpus = &gpu,
                                      .ngpus = 1,
                                      .nets = &net,
                                      .nnets = 1};
  char *text = text_of(detect(&request, &outcome)); /* the system's own file */
  ck_assert(outcome.from_file && !outcome.nets_stand_in);
  ck_assert_int_eq(outcome.gpus_stand_in, 0);
  has(text, "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\">"); /* the file's word counts, but for the rank */
  has(text, "count=\"4\"");
  lacks(text, "familyid"); /* the file's processor is not this one */
  has(text, "\"eth0\"");
  lacks(text, "mlx5");
  lacks(text, "numaid=\"1\"");
  builds(text);
  gpu.pci = "";
  text = text_of(detect(&request, &outcome)); /* nobody asked for stand-ins */
  ck_assert_int_eq(outcome.gpus_stand_in, 0);
  has(text, "host=\"1\"");
  free(text);
  sysfs_end(&s);
}
END_TEST

START_TEST(files_that_are_wrong)
{
  struct sysfs s;
  struct tt_detect_gpu gpu = {.numa = 0};
  struct tt_detect_outcome outcome;
  struct tt_xml *xml;
  char file[128], missing[128];
  sysfs_begin(&s);
  sysfs_node(&s, 0, "f\n");
  sysfs_write(&s, "topo.xml", "<system version='1'>\n<cpu>\n</system>\n");
  snprintf(file, sizeof(file), "%s", sysfs_path(&s, "topo.xml"));
  snprintf(missing, sizeof(missing), "%s", sysfs_path(&s, "missing.xml"));
  struct tt_detect_request request = {.sysfs = s.root, .file = file, .gpus = &gpu, .ngpus = 1};
  ck_assert_int_eq(tt_topology_detect(&request, &xml, &outcome), ncclInvalidUsage);
  ck_assert_ptr_null(xml);
  has(tt_log_thread_error(), "topo.xml:3:");
  request.file = missing;
  tt_xml_free(detect(&request, &outcome));
  has(tt_log_thread_error(), "missing.xml is not there");
  ck_assert(!outcome.from_file);
  request.file = NULL;
  request.default_file = file;
  tt_xml_free(detect(&request, &outcome));
  has(tt_log_thread_error(), "topo.xml is left out");
  ck_assert(!outcome.from_file);
  sysfs_end(&s);
}
END_TEST

static char heard[4096];

static void hear(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                 const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  size_t used = strlen(heard);
  if (level == TT_LOG_INFO) snprintf(heard + used, sizeof(heard) - used, "%s\n", text);
}

/* What is hidden is said in one line, and nothing if all is there. */
START_TEST(log_lines)
{
  struct sysfs s;
  char line[256], file[128];
  sysfs_begin(&s);
  tt_log_redirect(hear);
  free(one_gpu(&s, "0000:05:00.0", -1));
  snprintf(line, sizeof(line),
           "topology: %s does not tell NUMA nodes; PCI device 0000:05:00.0; the NUMA node of some devices; what is not "
           "known is assumed\n",
           s.root);
  ck_assert_str_eq(heard, line);
  heard[0] = 0;
  sysfs_node(&s, 0, "f\n");
  sysfs_device(&s, "pci0000:05/0000:05:00.0", "0x030200", "5.0 GT/s PCIe", "16", "0");
  free(one_gpu(&s, "0000:05:00.0", -1));
  ck_assert_str_eq(heard, "");
  sysfs_write(&s, "topo.xml", file_text);
  snprintf(file, sizeof(file), "%s", sysfs_path(&s, "topo.xml"));
  struct tt_detect_gpu gpu = {.numa = -1};
  struct tt_detect_net nets[] = {{.name = "a", .rail = -1, .plane = -1},
                                 {.name = "b", .dev = 1, .rail = -1, .plane = -1}};
  struct tt_detect_request request = {
      .sysfs = s.root, .file = file, .gpus = &gpu, .ngpus = 1, .nets = nets, .nnets = 2};
  free(detected(&request));
  has(heard, "host devices stand in for the GPUs of ");
  has(heard, "stand in for the network's 2 devices: NET n is served by device n modulo 2\n");
  tt_log_redirect(NULL);
  sysfs_end(&s);
}
END_TEST

Suite *suite_detect_file(void)
{
  Suite *suite = suite_create("detect_file");
  TCase *tests = tcase_create("detect_file");
  tcase_add_test(tests, stand_ins);
  tcase_add_test(tests, file_and_real_gpus);
  tcase_add_test(tests, files_that_are_wrong);
  tcase_add_test(tests, log_lines);
  suite_add_tcase(suite, tests);
  return suite;
}
