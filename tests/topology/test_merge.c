/* Network devices that are fused: which, and where they are then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "machine.h"
#include "suites.h"
#include "tests/common/comma.h"
#include "topology/fuse.h"
#include "topology/merge.h"

#define NET(dev) "<net name='m" #dev "' dev='" #dev "' speed='200000' guid='" #dev "' gdr='1'/>"

/* A GPU and three cards below a switch, the first of two ports as two functions, the second of two ports as one
 * function; a fourth card below a bridge of its own on that switch; a fifth at the other CPU; two on no bus. */
static struct tt_xml *make(struct tt_detect_net *nets)
{
  static const char format[] =
      "<system version='1'><cpu host_hash='0x1' numaid='0' arch='arm64'>"
      "<pci busid='0000:10:00.0' class='0x060400' link_speed='32.0 GT/s PCIe' link_width='16'>"
      "<pci busid='0000:11:00.0' class='0x030200' link_speed='32.0 GT/s PCIe' link_width='16'>"
      "<gpu dev='0' sm='90' rank='0' gdr='1'/></pci>"
      "<pci busid='0000:12:00.0' class='0x020000' link_speed='32.0 GT/s PCIe' link_width='8'><nic>" NET(
          0) "</nic></pci>"
             "<pci busid='0000:12:00.1' class='0x020000' link_speed='32.0 GT/s PCIe' link_width='8'><nic>" NET(
                 1) "</nic></pci>"
                    "<pci busid='0000:13:00.0' class='0x020000' link_speed='32.0 GT/s PCIe' link_width='8'><nic>" NET(2)
                        NET(3) "</nic></pci><pci busid='0000:14:00.0' class='0x060400' link_speed='32.0 GT/s PCIe' "
                               "link_width='4'>"
                               "<pci busid='0000:15:00.0' class='0x020000' link_speed='32.0 GT/s PCIe' "
                               "link_width='16'><nic>" NET(
                                   4) "</nic></pci></pci></pci></cpu><cpu host_hash='0x1' numaid='1' arch='arm64'>"
                                      "<pci busid='0000:21:00.0' class='0x020000' link_speed='32.0 GT/s PCIe' "
                                      "link_width='16'><nic>" NET(5) "</nic></pci>"
                                                                     "<nic>" NET(6) NET(7) "</nic></cpu></system>";
  static const char *const names[] = {"m0", "m1", "m2", "m2", "m4", "m5", "v6", "v7"};
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_parse(format, strlen(format), "test", "system", &xml), ncclSuccess);
  for (int n = 0; n < 8; n++)
    nets[n] = (struct tt_detect_net){.name = names[n], .dev = n, .port = n == 3 ? 2 : 1, .rail = n % 2, .plane = -1};
  return xml;
}

/* The plan as "0,1 2,3"; or the error's sentence. */
static const char *plan(struct tt_merge_rules rules)
{
  static char text[256];
  struct tt_detect_net nets[8];
  struct tt_xml *xml = make(nets);
  struct tt_merge_group *groups;
  int ngroups;
  if (rules.most == 0) rules.most = 4;
  text[0] = 0;
  ncclResult_t result = tt_merge_plan(xml, &rules, nets, 8, &groups, &ngroups);
  for (int g = 0; g < ngroups; g++)
    for (int i = 0; i < groups[g].count; i++)
      sprintf(text + strlen(text), "%s%d", i > 0 ? "," : g > 0 ? " " : "", groups[g].devs[i]);
  if (result != ncclSuccess) {
    ck_assert_int_eq(result, ncclInvalidUsage);
    snprintf(text, sizeof(text), "%s", tt_log_thread_error());
  }
  free(groups);
  tt_xml_free(xml);
  return text;
}

static void refused(const char *said, const char *words)
{
  ck_assert_msg(strstr(said, words) != NULL, "%s", said);
}

START_TEST(levels)
{
  ck_assert_str_eq(plan((struct tt_merge_rules){0}), "0,1 2,3"); /* by default the ports of a card */
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "LOC"}), "");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "port"}), "0,1 2,3");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PIX"}), "0,1,2,3");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PXB", .most = 8}), "0,1,2,3,4");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PXB", .most = 3}), "0,1,2 3,4");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PHB", .most = 8}), "0,1,2,3,4 5,6,7");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "SYS", .most = 100}), "0,1,2,3,4,5,6,7");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "SYS", .most = 1}), "");
  ck_assert_int_eq(tt_merge_check(&(struct tt_merge_rules){.level = "near"}), ncclInvalidUsage);
  ck_assert_int_eq(tt_merge_check(&(struct tt_merge_rules){.policy = "SOME"}), ncclInvalidUsage);
  ck_assert_int_eq(tt_merge_check(&(struct tt_merge_rules){.level = "pix", .policy = "rail"}), ncclSuccess);
  refused(plan((struct tt_merge_rules){.level = "NEAR"}), "NCCL_NET_MERGE_LEVEL is \"NEAR\"; it must be LOC, PORT");
}
END_TEST

START_TEST(policies)
{
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PIX", .policy = "RAIL"}), "0,2 1,3");
  ck_assert_str_eq(plan((struct tt_merge_rules){.level = "PIX", .policy = "all"}), "0,1,2,3");
  refused(plan((struct tt_merge_rules){.policy = "SOME"}), "NCCL_NET_MERGE_POLICY is \"SOME\"");
}
END_TEST

START_TEST(forced)
{
  ck_assert_str_eq(plan((struct tt_merge_rules){.force = "m4,m0;m1,m2:2", .level = "LOC"}), "4,0 1,3");
  ck_assert_str_eq(plan((struct tt_merge_rules){.force = " m1 , m5 "}), "1,5 2,3");
  refused(plan((struct tt_merge_rules){.force = "m0,m9"}), "\"m9\" in \"m0,m9\" is no network device");
  refused(plan((struct tt_merge_rules){.force = "m0,m1;m1,m4"}), "is in a group already");
  refused(plan((struct tt_merge_rules){.force = "m0,m1,m2,m2,m4"}), "more than the 4 devices");
}
END_TEST

/* A NET that stands in no <nic> is on no card. */
START_TEST(without_a_card)
{
  static const char text[] = "<system version='1'><cpu host_hash='0x1' numaid='0' arch='arm64'><nic>" NET(1)
      NET(2) "</nic></cpu>" NET(0) "</system>";
  const struct tt_merge_rules rules = {.level = "SYS", .most = 4};
  struct tt_detect_net nets[3];
  struct tt_xml *xml;
  struct tt_merge_group *groups;
  int ngroups;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "test", "system", &xml), ncclSuccess);
  for (int n = 0; n < 3; n++) nets[n] = (struct tt_detect_net){.name = "m", .dev = n, .rail = -1, .plane = -1};
  ck_assert_int_eq(tt_merge_plan(xml, &rules, nets, 3, &groups, &ngroups), ncclSuccess);
  ck_assert_int_eq(ngroups, 1);
  ck_assert(groups[0].count == 2 && groups[0].devs[0] == 1 && groups[0].devs[1] == 2);
  free(groups);
  tt_xml_free(xml);
}
END_TEST

/* The text of the machine with a group fused. */
static char *apply(struct tt_merge_group group, struct tt_topology **t)
{
  struct tt_detect_net nets[8];
  const struct tt_detect_net merged = {.name = "both",
                                       .dev = 8,
                                       .speed = 400000,
                                       .port = 1,
                                       .rail = -1,
                                       .plane = -1,
                                       .guid = 7,
                                       .latency = 1.5f,
                                       .gdr = true};
  struct tt_xml *xml = make(nets), *out;
  char *text;
  size_t bytes;
  ck_assert_int_eq(tt_merge_apply(xml, &group, &merged, &out), ncclSuccess);
  ck_assert_int_eq(tt_topology_pack(out, &text, &bytes), ncclSuccess);
  *t = machine_topology(strdup(text), NULL);
  ck_assert_int_eq((*t)->count[TT_NODE_NET], 8 - group.count + 1);
  tt_xml_free(xml);
  tt_xml_free(out);
  return text;
}

static void at(char *text, struct tt_topology *t, const char *part, const char *path)
{
  ck_assert_msg(strstr(text, part) != NULL, "%s lacks %s", text, part);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_NET, tt_topology_find(t, TT_NODE_NET, 0, 8)), path);
  tt_topology_free(t);
  free(text);
}

/* The second time in a program whose locale has a comma. */
START_TEST(places)
{
  struct tt_topology *t;
  if (_i == 1 && !comma_locale()) return;
  char *text = apply((struct tt_merge_group){2, {2, 3}}, &t); /* one function: it stays there */
  ck_assert_ptr_null(strstr(text, "dev='2'"));
  at(text, t,
     "<pci busid=\"0000:13:00.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"8\">\n"
     "        <nic>\n"
     "          <net name=\"both\" dev=\"8\" latency=\"1.5\"",
     "PIX 24");
  text = apply((struct tt_merge_group){2, {0, 1}}, &t); /* two functions share the card's lanes */
  ck_assert_ptr_null(strstr(text, "0000:12:00"));
  at(text, t, "<pci busid=\"0000:12:01.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"8\">",
     "PIX 24");
  text = apply((struct tt_merge_group){2, {0, 2}}, &t); /* two cards have both theirs; their other ports stay */
  ck_assert_ptr_nonnull(strstr(text, "0000:12:00.1"));
  at(text, t, "busid=\"0000:12:01.0\" class=\"0x020000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"", "PIX 48");
  text = apply((struct tt_merge_group){2, {2, 4}}, &t); /* no more than the bridge lets through */
  at(text, t, "link_width=\"12\"", "PIX 36");
  text = apply((struct tt_merge_group){2, {5, 6}}, &t); /* below the CPU */
  at(text, t, "<pci busid=\"0000:21:01.0\"", "SYS 6");
}
END_TEST

START_TEST(too_far)
{
  struct tt_detect_net nets[8];
  struct tt_xml *xml = make(nets), *out;
  struct tt_merge_group group = {2, {0, 5}};
  ck_assert_int_eq(tt_merge_apply(xml, &group, &nets[0], &out), ncclInvalidUsage);
  ck_assert_ptr_null(out);
  refused(tt_log_thread_error(), "different NUMA nodes");
  group.devs[1] = 99;
  ck_assert_int_eq(tt_merge_apply(xml, &group, &nets[0], &out), ncclInternalError);
  tt_xml_free(xml);
}
END_TEST

Suite *suite_merge(void)
{
  Suite *suite = suite_create("merge");
  TCase *tests = tcase_create("merge");
  tcase_add_test(tests, levels);
  tcase_add_test(tests, policies);
  tcase_add_test(tests, forced);
  tcase_add_test(tests, without_a_card);
  tcase_add_loop_test(tests, places, 0, 2);
  tcase_add_test(tests, too_far);
  suite_add_tcase(suite, tests);
  return suite;
}
