/* Graph files: what is written is read, what NCCL writes is read, and what is wrong is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "graph/file.h"
#include "graph_suites.h"
#include "machine.h"

/* The machine as one of those that hold `nranks` ranks together. Frees the text. */
static struct tt_topology *one_of(char *text, int nranks)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t;
  struct tt_xml *xml;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  ck_assert_msg(tt_topology_create(xml, &rules, 0, nranks, &t) == ncclSuccess, "%s", tt_log_thread_error());
  tt_xml_free(xml);
  free(text);
  return t;
}

static void free_all(struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(graphs[kind]);
}

static char *written(const struct tt_topology *t, struct tt_graph *const graphs[TT_GRAPH_KINDS])
{
  char *text;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  ck_assert_int_eq(tt_graph_write(out, t, graphs), ncclSuccess);
  fclose(out);
  return text;
}

static ncclResult_t parse(const char *text, const struct tt_topology *t, struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  return tt_graph_parse(text, strlen(text), "file", t, 2, graphs);
}

static void expect_parsed(const char *text, const struct tt_topology *t, struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  ck_assert_msg(parse(text, t, graphs) == ncclSuccess, "%s", tt_log_thread_error());
}

static void expect_equal(const struct tt_graph *a, const struct tt_graph *b)
{
  ck_assert_int_eq(a->kind, b->kind);
  ck_assert_int_eq(a->pattern, b->pattern);
  ck_assert_int_eq(a->cross_nic, b->cross_nic);
  ck_assert_int_eq(a->nchannels, b->nchannels);
  ck_assert_int_eq(a->same_channels, b->same_channels);
  ck_assert_float_eq(a->bandwidth_intra, b->bandwidth_intra);
  ck_assert_float_eq(a->bandwidth_inter, b->bandwidth_inter);
  ck_assert_float_eq(a->latency_inter, b->latency_inter);
  ck_assert_int_eq(a->type_intra, b->type_intra);
  ck_assert_int_eq(a->type_inter, b->type_inter);
  ck_assert_int_eq(a->nranks, b->nranks);
  ck_assert_mem_eq(a->ranks, b->ranks, (size_t)(a->nchannels * a->nranks) * sizeof(*a->ranks));
  ck_assert_mem_eq(a->nets, b->nets, (size_t)a->nchannels * 2 * sizeof(*a->nets));
}

/* A graph of each kind, with numbers that are hard to write, on any machine with NETs. */
static void fill(const struct tt_topology *t, struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  static const enum tt_graph_pattern patterns[] = {TT_PATTERN_RING, TT_PATTERN_SPLIT_TREE, TT_PATTERN_TREE,
                                                   TT_PATTERN_NVLS, TT_PATTERN_COLLNET_DIRECT};
  const int n = t->count[TT_NODE_GPU];
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) {
    struct tt_graph *g;
    const bool head = kind == TT_GRAPH_NVLS || kind == TT_GRAPH_COLLNET_DIRECT;
    ck_assert_int_eq(tt_graph_new((enum tt_graph_kind)kind, 3, n, &g), ncclSuccess);
    g->pattern = patterns[kind];
    g->cross_nic = kind % 3;
    g->nchannels = 3;
    g->same_channels = kind % 2;
    g->bandwidth_intra = 370.8f / (float)(kind + 3);
    g->bandwidth_inter = 0.1f;
    g->latency_inter = 1.7f;
    g->type_intra = kind == 0 ? TT_PATH_C2C : TT_PATH_NVL;
    g->type_inter = TT_PATH_PXN;
    for (int c = 0; c < 3; c++) {
      for (int i = 0; i < (head ? 1 : n); i++)
        g->ranks[c * n + i] = t->nodes[tt_topology_node(t, TT_NODE_GPU, (c + i) % n)].gpu.rank;
      for (int i = 0; i < 2 && t->inter; i++) {
        const struct tt_node *net = &t->nodes[tt_topology_node(t, TT_NODE_NET, (c + i) % t->count[TT_NODE_NET])];
        g->nets[c * 2 + i] = (int64_t)net->host << 56 | net->net.dev;
      }
    }
    graphs[kind] = g;
  }
}

START_TEST(written_and_read)
{
  char *const machines[] = {machine_hgx(90, 18), machine_hgx(90, 18),   machine_trays(3),
                            machine_trays(3),    machine_hybrid_cube(), machine_arm_board()};
  struct tt_topology *t = NULL;
  struct tt_graph *graphs[TT_GRAPH_KINDS], *again[TT_GRAPH_KINDS];
  for (int i = 0; i < 6; i++) {
    char *machine = machines[i];
    if (i == _i)
      t = one_of(machine, _i % 2 == 0 ? 64 : 0);
    else
      free(machine);
  }
  fill(t, graphs);
  char *text = written(t, graphs);
  expect_parsed(text, t, again);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) expect_equal(graphs[kind], again[kind]);
  free_all(again);
  /* By a file, too, and some kinds only. */
  char path[] = "/tmp/tutti-graph-XXXXXX";
  close(mkstemp(path));
  tt_graph_free(graphs[TT_GRAPH_TREE]);
  graphs[TT_GRAPH_TREE] = NULL;
  ck_assert_int_eq(tt_graph_write_file(path, t, graphs), ncclSuccess);
  ck_assert_int_eq(tt_graph_read(path, t, 2, again), ncclSuccess);
  ck_assert_ptr_null(again[TT_GRAPH_TREE]);
  expect_equal(graphs[TT_GRAPH_NVLS], again[TT_GRAPH_NVLS]);
  free_all(again);
  unlink(path);
  ck_assert_int_eq(tt_graph_read(path, t, 2, again), ncclInvalidUsage);
  ck_assert_int_eq(tt_graph_write_file("/no/such/folder", t, graphs), ncclInvalidUsage);
  free(text);
  free_all(graphs);
  tt_topology_free(t);
}
END_TEST

/* The words that NCCL's reader needs, in the order in which NCCL writes graphs. */
START_TEST(form)
{
  struct tt_topology *t = one_of(machine_trays(2), 64);
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  fill(t, graphs);
  char *text = written(t, graphs);
  static const char *const parts[] = {
      "<graphs version=\"1\">\n  <graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"3\" speedintra=\"123.6\" "
      "speedinter=\"0.1\" latencyinter=\"1.7\" typeintra=\"C2C\" typeinter=\"PXN\" samechannels=\"0\">\n"
      "    <channel>\n      <net dev=\"0\"/>\n      <gpu dev=\"0\"/>\n      <gpu dev=\"0x1\"/>\n"
      "      <gpu dev=\"0x100000000000002\"/>\n      <gpu dev=\"0x100000000000003\"/>\n"
      "      <net dev=\"0x100000000000001\"/>\n    </channel>\n",
      "<graph id=\"1\" ", "<graph id=\"4\" ", "<graph id=\"2\" ", "<graph id=\"3\" "};
  const char *at = text;
  for (int i = 0; i < 5; i++) {
    at = strstr(at, parts[i]);
    ck_assert_msg(at != NULL, "%s lacks %s", text, parts[i]);
  }
  /* Of those that reach all others at once only the head is written. */
  ck_assert_ptr_nonnull(strstr(at, "      <net dev=\"0\"/>\n      <gpu dev=\"0\"/>\n      <net "));
  free(text);
  free_all(graphs);
  tt_topology_free(t);
}
END_TEST

#define GRAPH(id, pattern, crossnic, nchannels)                                                                        \
  "<graph id=\"" id "\" pattern=\"" pattern "\" crossnic=\"" crossnic "\" nchannels=\"" nchannels                      \
  "\" speedintra=\"12\" speedinter=\"10\" typeintra=\"SYS\" typeinter=\"PIX\" samechannels=\"1\">\n"
#define FOUR "<gpu dev=\"0\"/><gpu dev=\"0x3\"/>\n<gpu dev=\"2\"/><gpu dev=\"1\"/>\n"
#define BEGIN "<graphs version=\"1\">\n"
#define END "</graph>\n</graphs>\n"

START_TEST(made_by_hand)
{
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  struct tt_topology *alone = machine_topology(machine_pcie("skylake", 4), NULL);
  /* No ranks, no NETs, no latency; an empty graph is searched; what nobody knows is passed over. */
  expect_parsed(BEGIN "<note/>" GRAPH("2", "3", "0", "0") "</graph>" GRAPH("0", "4", "0", "1") "<channel><what/>" FOUR
                                                                                               "</channel>" END,
                alone, graphs);
  ck_assert_ptr_null(graphs[TT_GRAPH_COLLNET_CHAIN]);
  ck_assert_ptr_null(graphs[TT_GRAPH_TREE]);
  const struct tt_graph *ring = graphs[TT_GRAPH_RING];
  static const int32_t order[] = {0, 3, 2, 1};
  ck_assert_mem_eq(ring->ranks, order, sizeof(order));
  ck_assert_int_eq(ring->nets[0], TT_GRAPH_NO_NET);
  ck_assert_float_eq(ring->latency_inter, 0);
  ck_assert(ring->same_channels);
  free_all(graphs);
  /* Alone, NETs are not used: those of another machine do no harm. */
  expect_parsed(BEGIN GRAPH("0", "4", "0", "1") "<channel><net dev=\"ff\"/>" FOUR "<net dev=\"7\"/></channel>" END,
                alone, graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_RING]->nets[1], TT_GRAPH_NO_NET);
  free_all(graphs);
  /* Written by another machine: its ranks are not here, but its devices are. */
  expect_parsed(BEGIN GRAPH("0", "4", "0", "1") "<channel><gpu dev=\"1\" rank=\"9\"/><gpu dev=\"0\" rank=\"8\"/>"
                                                "<gpu dev=\"2\" rank=\"10\"/><gpu dev=\"3\"/></channel>" END,
                alone, graphs);
  static const int32_t by_device[] = {1, 0, 2, 3};
  ck_assert_mem_eq(graphs[TT_GRAPH_RING]->ranks, by_device, sizeof(by_device));
  free_all(graphs);
  /* The head of NVLS may have others behind it. */
  expect_parsed(
      BEGIN GRAPH("3", "5", "0", "1") "<channel><gpu dev=\"2\"/><gpu dev=\"1\"/><gpu dev=\"1\"/></channel>" END, alone,
      graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_NVLS]->ranks[0], 2);
  ck_assert_int_eq(graphs[TT_GRAPH_NVLS]->ranks[1], -1);
  free_all(graphs);
  tt_topology_free(alone);
}
END_TEST

/* With other machines, a channel without NETs gets those of the GPUs where its pattern has its ends. */
START_TEST(nets_are_chosen)
{
  static const struct {
    const char *id, *pattern;
    int kind;
    int64_t in, out;
  } cases[] = {{"0", "4", TT_GRAPH_RING, 0, 7},          {"1", "1", TT_GRAPH_TREE, 0, 0},
               {"1", "2", TT_GRAPH_TREE, 0, 1},          {"1", "3", TT_GRAPH_TREE, 0, 0},
               {"2", "3", TT_GRAPH_COLLNET_CHAIN, 0, 0}, {"3", "5", TT_GRAPH_NVLS, 0, 0}};
  struct tt_topology *t = one_of(machine_hgx(90, 18), 16);
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct tt_graph *graphs[TT_GRAPH_KINDS];
    char text[1024];
    int at = snprintf(text, sizeof(text), BEGIN GRAPH("%s", "%s", "0", "1") "<channel>", cases[i].id, cases[i].pattern);
    for (int g = 0; g < 8; g++) at += snprintf(text + at, sizeof(text) - (size_t)at, "<gpu dev=\"%d\"/>", g);
    snprintf(text + at, sizeof(text) - (size_t)at, "</channel>" END);
    expect_parsed(text, t, graphs);
    ck_assert_int_eq(graphs[cases[i].kind]->nets[0], cases[i].in);
    ck_assert_int_eq(graphs[cases[i].kind]->nets[1], cases[i].out);
    free_all(graphs);
  }
  tt_topology_free(t);
  /* Where there is none, there is none. */
  struct machine m;
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "amd");
  machine_gpu(&m, 0, 80, "");
  t = one_of(machine_end(&m), 2);
  expect_parsed(BEGIN GRAPH("0", "4", "0", "1") "<channel><gpu dev=\"0\"/></channel>" END, t, graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_RING]->nets[0], TT_GRAPH_NO_NET);
  free_all(graphs);
  /* One GPU is a tree, whatever else. */
  expect_parsed(BEGIN GRAPH("3", "3", "0", "1") "<channel><gpu dev=\"0\"/></channel>" END, t, graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_NVLS]->pattern, TT_PATTERN_TREE);
  free_all(graphs);
  tt_topology_free(t);
}
END_TEST

START_TEST(crossing_nics)
{
  struct tt_topology *t = machine_topology(machine_pcie("skylake", 4), NULL);
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  static const struct {
    const char *in_file;
    int allowed;
    bool kept;
  } cases[] = {{"0", 0, true}, {"1", 0, false}, {"1", 1, true}, {"1", 2, true}, {"2", 0, true}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char text[1024];
    snprintf(text, sizeof(text), BEGIN GRAPH("0", "4", "%s", "1") "<channel>" FOUR "</channel>" END, cases[i].in_file);
    ck_assert_int_eq(tt_graph_parse(text, strlen(text), "file", t, cases[i].allowed, graphs), ncclSuccess);
    ck_assert_int_eq(graphs[TT_GRAPH_RING] != NULL, cases[i].kept);
    free_all(graphs);
  }
  tt_topology_free(t);
}
END_TEST

/* Two ranks on one device, which by its number alone would be either. */
START_TEST(ranks_that_share_a_device)
{
  struct machine m;
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "amd");
  fputs("<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"
        "<gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\"/><gpu dev=\"0\" sm=\"80\" rank=\"1\" gdr=\"1\"/></pci>",
        m.out);
  struct tt_topology *t = machine_topology(machine_end(&m), NULL);
  expect_parsed(
      BEGIN GRAPH("0", "4", "0", "1") "<channel><gpu dev=\"0\" rank=\"1\"/><gpu dev=\"0\" rank=\"0\"/></channel>" END,
      t, graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_RING]->ranks[0], 1);
  free_all(graphs);
  ck_assert_int_eq(
      parse(BEGIN GRAPH("0", "4", "0", "1") "<channel><gpu dev=\"0\" rank=\"1\"/><gpu dev=\"0\"/></channel>" END, t,
            graphs),
      ncclInvalidUsage);
  ck_assert_ptr_nonnull(
      strstr(tt_log_thread_error(), "ranks 0 and 1 are on this device; let the attribute rank name one"));
  tt_topology_free(t);
}
END_TEST

/* In a good file, one piece replaced. */
static const struct {
  const char *piece, *by, *words;
} wrong[] = {
    {"version=\"1\"", "version=\"2\"", "file:1: <graphs> is of version \"2\""},
    {"<graphs version=\"1\">", "<graph version=\"1\">",
     "file:1: the outermost element is <graph>; it must be <graphs "},
    {"id=\"1\"", "id=\"5\"", "file:8: <graph id=\"5\">: id is \"5\"; it must be a number from 0 to 4"},
    {"id=\"1\"", "id=\"tree\"", "file:8: <graph id=\"tree\">: id is \"tree\""},
    {"id=\"1\" pattern=\"1\"", "id=\"0\" pattern=\"4\"",
     "file:8: <graph id=\"0\">: line 2 has a graph with this id already"},
    {"pattern=\"4\"", "pattern=\"7\"", "file:2: <graph id=\"0\">: pattern is \"7\"; it must be a number from 1 to 6"},
    {"pattern=\"4\"", "pattern=\"1\"", "pattern is \"1\"; that of a ring is 4"},
    {"pattern=\"1\"", "pattern=\"4\"", "pattern is \"4\"; that of a tree is from 1 to 3"},
    {"id=\"1\" pattern=\"1\"", "id=\"3\" pattern=\"3\"", "pattern is \"3\"; that of a nvls is 5"},
    {"pattern=\"4\" ", "", "file:2: <graph id=\"0\"> has no attribute pattern; add it"},
    {"crossnic=\"2\"", "crossnic=\"3\"", "crossnic is \"3\"; it must be a number from 0 to 2"},
    {"nchannels=\"1\"", "nchannels=\"65\"", "nchannels is \"65\"; it must be a number from 0 to 64"},
    {"nchannels=\"1\"", "nchannels=\"2\"", "nchannels is \"2\", but there are 1 <channel>; make them equal"},
    {"nchannels=\"1\"", "nchannels=\"0\"", "nchannels is \"0\", but there are 1 <channel>"},
    {"speedintra=\"12\"", "speedintra=\"-12\"", "speedintra is \"-12\"; it must be a number from 0 to 1000000"},
    {"speedintra=\"12\"", "speedintra=\"nan\"", "speedintra is \"nan\""},
    {"speedinter=\"10\"", "speedinter=\"10 GB/s\"", "speedinter is \"10 GB/s\""},
    {"speedinter=\"10\" ", "", "<graph id=\"0\"> has no attribute speedinter"},
    {"speedinter=\"10\"", "speedinter=\"10\" latencyinter=\"-1\"", "latencyinter is \"-1\""},
    {"typeintra=\"SYS\"", "typeintra=\"NVLINK\"", "typeintra is \"NVLINK\"; it must be LOC, NVL, NVB, C2C, "},
    {"typeinter=\"PIX\"", "typeinter=\"pix\"", "typeinter is \"pix\""},
    {"samechannels=\"1\"", "samechannels=\"2\"", "samechannels is \"2\""},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"4\"/>", "file:3: <gpu dev=\"4\">: no rank is on device 0x4 of this machine"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"3x\"/>", "file:3: <gpu dev=\"3x\">: dev must be a hexadecimal number"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"-3\"/>", "dev must be a hexadecimal number"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"\"/>", "dev must be a hexadecimal number"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"33333333333333333\"/>", "dev must be a hexadecimal number"},
    {"<gpu dev=\"0x3\"/>", "<gpu rank=\"3\"/>", "file:3: <gpu> has no attribute dev; add it"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"4\" rank=\"9\"/>", "no rank is on device 0x4 of this machine"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"3\" rank=\"-1\"/>", "rank is \"-1\""},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"2\" rank=\"3\"/>", "rank 3 is on device 0x3 here; correct one of both"},
    {"<gpu dev=\"0x3\"/>", "<gpu dev=\"0\"/>", "file:3: <gpu dev=\"0\">: the channel visits rank 0 twice"},
    {"<gpu dev=\"0x3\"/>", "", "file:3: <channel>: it visits 3 GPUs; it must visit each of the 4 of this machine once"},
    {FOUR, "\n\n", "file:3: <channel>: it has no <gpu>"},
    {"<net dev=\"0\"/>", "<net dev=\"1\"/>", "file:3: <net dev=\"1\">: this machine has no NET 0x1; name one"},
    {"<net dev=\"0\"/>", "<net dev=\"100000000000000\"/>", "this machine has no NET 0x100000000000000"},
    {"<net dev=\"0\"/>", "<net/>", "file:3: <net> has no attribute dev"},
    {"<net dev=\"0\"/>", "", "file:3: <channel>: it has one <net>; it must have two"},
    {"<net dev=\"0\"/>", "<net dev=\"0\"/><net dev=\"0\"/>", "file:3: <channel>: it has more than two <net>"},
};

START_TEST(refused)
{
  static const char good[] =
      BEGIN GRAPH("0", "4", "2", "1") "<channel><net dev=\"0\"/>" FOUR "<net dev=\"0x0\"/></channel>\n"
                                      "</graph>\n\n" GRAPH("1", "1", "0", "1") "<channel>" FOUR "</channel>" END;
  struct tt_topology *t = one_of(machine_pcie("skylake", 4), 8);
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  char text[sizeof(good) + 128];
  expect_parsed(good, t, graphs);
  ck_assert(graphs[TT_GRAPH_RING] && graphs[TT_GRAPH_TREE]);
  free_all(graphs);
  const char *at = strstr(good, wrong[_i].piece);
  ck_assert_ptr_nonnull(at);
  snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, wrong[_i].by, at + strlen(wrong[_i].piece));
  ck_assert_int_eq(parse(text, t, graphs), ncclInvalidUsage);
  ck_assert_msg(strstr(tt_log_thread_error(), wrong[_i].words), "\"%s\" lacks \"%s\"", tt_log_thread_error(),
                wrong[_i].words);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) ck_assert_ptr_null(graphs[kind]);
  tt_topology_free(t);
}
END_TEST

/* What is inside cannot be written if it is not of this machine. */
START_TEST(of_another_machine)
{
  struct tt_topology *large = machine_topology(machine_hgx(90, 18), NULL);
  struct tt_topology *small = machine_topology(machine_pcie("amd", 4), NULL);
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  fill(large, graphs);
  ck_assert_int_eq(tt_graph_write(stderr, small, graphs), ncclInternalError);
  free_all(graphs);
  tt_topology_free(large);
  tt_topology_free(small);
}
END_TEST

/* Files that others published, for the machines beside them. */
START_TEST(published)
{
  static const struct {
    const char *machine, *graphs;
    int rings, trees, chains;
  } files[] = {{"azure-ncv4", "azure-ncv4-graph", 2, 4, 4}, {"yccl-topo", "yccl-graph", 1, 1, 0}};
  const char *directory = getenv("TUTTI_TOPOLOGIES");
  if (!directory) directory = TEST_TOPOLOGIES;
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  struct tt_topology *t;
  struct tt_xml *xml;
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s.xml", directory, files[_i].machine);
  if (access(path, R_OK) != 0) {
    if (_i == 0) printf("SKIP: no published graphs in %s\n", directory);
    return;
  }
  ck_assert_int_eq(tt_xml_read(path, "system", &xml), ncclSuccess);
  ck_assert_int_eq(tt_topology_create(xml, &rules, 0, 0, &t), ncclSuccess);
  tt_xml_free(xml);
  snprintf(path, sizeof(path), "%s/%s.graph.xml", directory, files[_i].graphs);
  ck_assert_msg(tt_graph_read(path, t, 2, graphs) == ncclSuccess, "%s", tt_log_thread_error());
  ck_assert_int_eq(graphs[TT_GRAPH_RING]->nchannels, files[_i].rings);
  ck_assert_int_eq(graphs[TT_GRAPH_TREE]->nchannels, files[_i].trees);
  ck_assert_int_eq(graphs[TT_GRAPH_COLLNET_CHAIN] ? graphs[TT_GRAPH_COLLNET_CHAIN]->nchannels : 0, files[_i].chains);
  ck_assert_ptr_null(graphs[TT_GRAPH_NVLS]);
  free_all(graphs);
  tt_topology_free(t);
}
END_TEST

Suite *suite_file(void)
{
  Suite *suite = suite_create("file");
  TCase *tests = tcase_create("file");
  tcase_add_loop_test(tests, written_and_read, 0, 6);
  tcase_add_test(tests, form);
  tcase_add_test(tests, made_by_hand);
  tcase_add_test(tests, nets_are_chosen);
  tcase_add_test(tests, crossing_nics);
  tcase_add_test(tests, ranks_that_share_a_device);
  tcase_add_loop_test(tests, refused, 0, sizeof(wrong) / sizeof(wrong[0]));
  tcase_add_test(tests, of_another_machine);
  tcase_add_loop_test(tests, published, 0, 2);
  suite_add_tcase(suite, tests);
  return suite;
}
