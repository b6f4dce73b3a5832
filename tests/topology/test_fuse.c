/* Fusing: what ranks see in part becomes the whole machine, in whichever order; and what ranks may be told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "machine.h"
#include "suites.h"
#include "tests/common/comma.h"
#include "topology/detect_internal.h"
#include "topology/fuse.h"
#include "topology/tree.h"

static struct tt_xml *parse(const char *text)
{
  struct tt_xml *xml;
  ck_assert_msg(tt_xml_parse(text, strlen(text), "test", "system", &xml) == ncclSuccess, "%s", tt_log_thread_error());
  return xml;
}

static char *pack(const struct tt_xml *xml)
{
  char *text;
  size_t bytes;
  ck_assert_int_eq(tt_topology_pack(xml, &text, &bytes), ncclSuccess);
  return text;
}

static struct tt_xml *empty(void)
{
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_create("fused", &xml), ncclSuccess);
  return xml;
}

static void fuse(struct tt_xml *into, const struct tt_xml *other)
{
  ck_assert_msg(tt_topology_fuse(into, other) == ncclSuccess, "%s", tt_log_thread_error());
}

/* What one rank of a machine sees: its GPU, and all NETs; rank -1: all GPUs. */
static struct tt_xml *view(const struct tt_xml *whole, int rank, int *nranks)
{
  struct tt_xml *copy, *trimmed;
  bool *all = malloc((size_t)whole->count * sizeof(*all));
  int value;
  *nranks = 0;
  memset(all, 1, (size_t)whole->count);
  ck_assert_int_eq(tt_tree_copy(whole, all, NULL, &copy), ncclSuccess);
  free(all);
  for (int e = 0; e < copy->count; e++) {
    if (tt_xml_is(copy, e, "gpu")) {
      ck_assert_int_eq(tt_xml_need_int(copy, e, "rank", 0, 1000, &value), ncclSuccess);
      *nranks += 1;
      if (rank >= 0 && value != rank) continue;
    } else if (!tt_xml_is(copy, e, "net")) {
      continue;
    }
    ck_assert_int_eq(tt_xml_set(copy, e, "keep", "1"), ncclSuccess);
  }
  ck_assert_int_eq(tt_detect_trim(copy, &trimmed), ncclSuccess);
  tt_xml_free(copy);
  return trimmed;
}

static char *build_machine(int which)
{
  switch (which) {
  case 0:
    return machine_hybrid_cube();
  case 1:
    return machine_hgx(90, 18);
  case 2:
    return machine_pcie("amd", 7);
  case 3:
    return machine_virtual();
  case 4:
    return machine_arm_board();
  case 5:
    return machine_trays(3);
  default:
    return machine_random((unsigned)which);
  }
}

/* All paths of two topologies are of one type and bandwidth; nodes are found by what they are. */
static void same_paths(char *a_text, char *b_text)
{
  struct tt_topology *a = machine_topology(a_text, NULL), *b = machine_topology(b_text, NULL);
  for (int type = 0; type < TT_NODE_TYPES; type++)
    if (type != TT_NODE_PCI && type != TT_NODE_CPU) ck_assert_int_eq(a->count[type], b->count[type]);
  for (int g = 0; g < a->count[TT_NODE_GPU]; g++) {
    int other = tt_topology_gpu_of_rank(b, a->nodes[tt_topology_node(a, TT_NODE_GPU, g)].gpu.rank);
    for (int p = 0; p < a->count[TT_NODE_GPU]; p++) {
      int peer = tt_topology_gpu_of_rank(b, a->nodes[tt_topology_node(a, TT_NODE_GPU, p)].gpu.rank);
      char path[64];
      snprintf(path, sizeof(path), "%s", machine_path(a, TT_NODE_GPU, g, TT_NODE_GPU, p));
      ck_assert_str_eq(path, machine_path(b, TT_NODE_GPU, other, TT_NODE_GPU, peer));
    }
  }
  tt_topology_free(a);
  tt_topology_free(b);
}

/* Shows the place, since whole machines are too long for a message. */
static void same_text(const char *got, const char *expected)
{
  size_t same = 0;
  while (got[same] && got[same] == expected[same]) same++;
  size_t from = same > 200 ? same - 200 : 0;
  ck_assert_msg(got[same] == expected[same], "got %.400s\nexpected %.400s", got + from, expected + from);
}

START_TEST(whole)
{
  char *text = build_machine(_i);
  int nranks;
  struct tt_xml *machine = parse(text), *normal = empty(), *used = view(machine, -1, &nranks);
  fuse(normal, used);
  char *expected = pack(normal);
  for (int order = 0; order < 4; order++) {
    struct tt_xml *fused = empty();
    for (int i = 0; i < nranks; i++) {
      int turn = (i + order) % nranks;
      struct tt_xml *seen = view(machine, order % 2 ? nranks - 1 - turn : turn, &nranks), *heard;
      char *packed = pack(seen);
      ck_assert_int_eq(tt_topology_unpack(packed, strlen(packed), "a rank", &heard), ncclSuccess);
      fuse(fused, heard);
      fuse(fused, heard); /* once more changes nothing */
      tt_xml_free(seen);
      tt_xml_free(heard);
      free(packed);
    }
    struct tt_xml *settled;
    ck_assert_int_eq(tt_topology_settle(fused, &settled), ncclSuccess);
    char *got = pack(settled);
    same_text(got, expected);
    same_paths(got, strdup(text));
    tt_xml_free(fused);
    tt_xml_free(settled);
  }
  free(expected);
  free(text);
  tt_xml_free(machine);
  tt_xml_free(normal);
  tt_xml_free(used);
}
END_TEST

static const char head[] = "<system version='1'><cpu host_hash='0x1' numaid='0' arch='arm64'>";
static const char tail[] = "</cpu></system>";

/* Two ranks' words, one after the other and the other way round; the result is the same. */
static char *fuse_two(const char *a, const char *b)
{
  char *texts[2];
  for (int order = 0; order < 2; order++) {
    struct tt_xml *fused = empty();
    for (int i = 0; i < 2; i++) {
      char *text;
      ck_assert_int_gt(asprintf(&text, "%s%s%s", head, i == order ? a : b, tail), 0);
      struct tt_xml *xml = parse(text);
      fuse(fused, xml);
      tt_xml_free(xml);
      free(text);
    }
    texts[order] = pack(fused);
    tt_xml_free(fused);
  }
  ck_assert_str_eq(texts[0], texts[1]);
  free(texts[1]);
  return texts[0];
}

static void has(char *text, const char *part)
{
  ck_assert_msg(strstr(text, part) != NULL, "%s lacks %s", text, part);
  free(text);
}

START_TEST(different_views)
{
  has(fuse_two("<pci busid='0000:01:00.0' class='0x060400' link_speed='' link_width='8'/>",
               "<pci busid='0000:01:00.0' class='0x060400' link_speed='16.0 GT/s PCIe' link_width='16'/>"),
      "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"");
  has(fuse_two("<pci busid='0000:01:00.0' class='0x02'><nic><net name='a' dev='0' gdr='1' speed='9000'/></nic></pci>",
               "<pci busid='0000:01:00.0' class='0x02'><nic><net name='a' dev='0' gdr='0' speed='10000'/></nic></pci>"),
      "<net name=\"a\" dev=\"0\" gdr=\"0\" speed=\"10000\"/>");
  /* The same in programs whose locale has a comma. */
  if (comma_locale())
    has(fuse_two("<nic><net name='a' dev='0' latency='2.5e3'/></nic>",
                 "<nic><net name='a' dev='0' latency='2.6'/></nic>"),
        "latency=\"2.5e3\"");
  /* Two ranks on one GPU share its <pci>. */
  has(fuse_two("<pci busid='0000:0A:00.0' class='0x03'><gpu rank='1' dev='0'/></pci>",
               "<pci busid='0000:0A:00.0' class='0x03'><gpu rank='0' dev='0'/></pci>"),
      "class=\"0x03\">\n      <gpu rank=\"0\" dev=\"0\"/>\n      <gpu rank=\"1\" dev=\"0\"/>");
}
END_TEST

/* One sees the bridge above a card, one does not; the card is there once. */
START_TEST(hidden_bridge)
{
  static const char flat[] = "<pci busid='0000:02:00.0' class='0x02'><nic><net name='a' dev='0'/></nic></pci>";
  static const char deep[] = "<pci busid='0000:01:00.0' class='0x060400'><pci busid='0000:02:00.0' class='0x02'><nic>"
                             "<net name='a' dev='0'/></nic></pci></pci>";
  char text[1024], *got;
  struct tt_xml *fused = empty(), *xml;
  snprintf(text, sizeof(text), "%s%s%s", head, deep, tail);
  fuse(fused, xml = parse(text));
  tt_xml_free(xml);
  snprintf(text, sizeof(text), "%s%s%s", head, flat, tail);
  fuse(fused, xml = parse(text));
  tt_xml_free(xml);
  got = pack(fused);
  int times = 0;
  for (const char *at = got; (at = strstr(at, "0000:02:00.0")) != NULL; at++) times++;
  ck_assert_int_eq(times, 1);
  free(got);
  tt_xml_free(fused);
}
END_TEST

/* Equal bus ids of two hosts are two devices. */
START_TEST(two_hosts)
{
  static const char format[] = "<system version='1'><cpu host_hash='%s' numaid='0' arch='arm64'>"
                               "<pci busid='0000:01:00.0' class='0x03' link_width='16' link_speed=''>"
                               "<gpu rank='%d' dev='0' sm='100' gdr='1'>"
                               "<nvlink target='x' count='18' tclass='0x068000'/></gpu></pci></cpu></system>";
  struct tt_xml *fused = empty(), *xml;
  char text[1024];
  for (int h = 1; h >= 0; h--) {
    snprintf(text, sizeof(text), format, h ? "0xffffffffffffffff" : "0x10", h);
    fuse(fused, xml = parse(text));
    tt_xml_free(xml);
  }
  struct tt_topology *t = machine_topology(pack(fused), NULL);
  ck_assert_int_eq(t->nhosts, 2);
  ck_assert_int_eq(t->count[TT_NODE_DEV], 2);
  ck_assert_int_eq(tt_topology_path_between(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1)->type, TT_PATH_NVL);
  tt_topology_free(t);
  tt_xml_free(fused);
}
END_TEST

START_TEST(one_way_links)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "amd");
  machine_gpu(&m, 0, 80, "1*4 2*4");
  machine_gpu(&m, 1, 80, "0*4");
  machine_gpu(&m, 2, 80, "");    /* lost its links */
  machine_gpu(&m, 3, 80, "9*2"); /* to a GPU that is not here */
  machine_switch(&m, "");
  fputs("<pcilink target=\"0000:00:00.0\"/>", m.out);
  char *text = machine_end(&m);
  struct tt_xml *xml = parse(text), *settled;
  ck_assert_int_eq(tt_topology_settle(xml, &settled), ncclSuccess);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "links to 0000:0"));
  struct tt_topology *t = machine_topology(pack(settled), NULL);
  ck_assert_str_eq(machine_path(t, TT_NODE_GPU, 0, TT_NODE_GPU, 1), "NVL 80");
  ck_assert_int_eq(tt_topology_path_between(t, TT_NODE_GPU, 0, TT_NODE_GPU, 2)->type, TT_PATH_PHB);
  tt_topology_free(t);
  tt_xml_free(xml);
  tt_xml_free(settled);
  free(text);
}
END_TEST

/* Texts from a rank that is not in its right mind: they are refused, or are some machine, and fusing them holds. */
START_TEST(damaged_texts)
{
  char *machine = build_machine(_i);
  size_t length = strlen(machine);
  struct tt_xml *sane = parse(machine);
  int read = 0;
  srand((unsigned)_i + 100);
  for (int round = 0; round < 100; round++) {
    char *text = strdup(machine);
    for (int n = 1 + rand() % 3; n > 0; n--) {
      size_t at = (size_t)rand() % length;
      if (rand() % 2)
        text[at] = (char)rand();
      else
        memmove(text + at, text + (size_t)rand() % length / 2, (length - at) % 30);
    }
    struct tt_xml *xml, *fused = empty(), *settled;
    if (tt_topology_unpack(text, round % 10 ? length : (size_t)rand() % length, "a rank", &xml) == ncclSuccess) {
      fuse(fused, sane);
      fuse(fused, xml);
      ck_assert_int_eq(tt_topology_settle(fused, &settled), ncclSuccess);
      tt_xml_free(settled);
      tt_xml_free(xml);
      read++;
    } else {
      ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "a rank"));
    }
    tt_xml_free(fused);
    free(text);
  }
  ck_assert_int_gt(read, 0);
  tt_xml_free(sane);
  free(machine);
}
END_TEST

START_TEST(too_much)
{
  struct tt_xml *xml, *heard;
  int element;
  char *text;
  size_t bytes;
  ck_assert_int_eq(tt_xml_create("much", &xml), ncclSuccess);
  ck_assert_int_eq(tt_xml_add(xml, -1, "system", &element), ncclSuccess);
  ck_assert_int_eq(tt_xml_set(xml, 0, "version", "1"), ncclSuccess);
  while (xml->count < 8192) ck_assert_int_eq(tt_xml_add(xml, 0, "cpu", &element), ncclSuccess);
  for (int more = 0; more < 2; more++) {
    ck_assert_int_eq(tt_topology_pack(xml, &text, &bytes), ncclSuccess);
    ck_assert_int_eq(tt_topology_unpack(text, bytes, "a rank", &heard), more ? ncclInvalidUsage : ncclSuccess);
    tt_xml_free(heard);
    free(text);
    ck_assert_int_eq(tt_xml_add(xml, 0, "cpu", &element), ncclSuccess);
  }
  tt_xml_free(xml);
}
END_TEST

START_TEST(dump)
{
  char path[] = "/tmp/topology.XXXXXX", *text = machine_arm_board();
  struct tt_xml *xml = parse(text), *again;
  int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
  tt_topology_dump(xml, path);
  ck_assert_int_eq(tt_xml_read(path, "system", &again), ncclSuccess);
  ck_assert_int_eq(again->count, xml->count);
  unlink(path);
  tt_topology_dump(xml, "/nowhere/topology.xml"); /* a warning */
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_TOPO_DUMP_FILE /nowhere/topology.xml is not written"));
  tt_xml_free(xml);
  tt_xml_free(again);
  free(text);
}
END_TEST

Suite *suite_fuse(void)
{
  Suite *suite = suite_create("fuse");
  TCase *tests = tcase_create("fuse");
  tcase_add_loop_test(tests, whole, 0, 16);
  tcase_add_test(tests, different_views);
  tcase_add_test(tests, hidden_bridge);
  tcase_add_test(tests, two_hosts);
  tcase_add_test(tests, one_way_links);
  tcase_add_loop_test(tests, damaged_texts, 0, 6);
  tcase_add_test(tests, too_much);
  tcase_add_test(tests, dump);
  suite_add_tcase(suite, tests);
  return suite;
}
