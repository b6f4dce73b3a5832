/* The search of channels: what is known of whole machines, and on random ones that what is found is right by another
 * count, the same on all ranks, and within a small stack. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "graph/search.h"
#include "graph_load.h"
#include "graph_suites.h"
#include "machine.h"

/* Puts an attribute into each NET of a machine's text; %d in it is the number of the NET. Frees `text`. */
static char *with_attribute(char *text, const char *attribute)
{
  char *changed, *net;
  size_t size;
  int number = 0;
  FILE *out = open_memstream(&changed, &size);
  const char *at = text;
  while ((net = strstr(at, "<net "))) {
    const char *digit = strchr(attribute, '%');
    fprintf(out, "%.*s<net ", (int)(net - at), at);
    if (digit)
      fprintf(out, "%.*s%d%s ", (int)(digit - attribute), attribute, number++, digit + 2);
    else
      fprintf(out, "%s ", attribute);
    at = net + strlen("<net ");
  }
  fputs(at, out);
  fclose(out);
  free(text);
  return changed;
}

/* The machine as one of `nodes` equal ones, as a rank sees it. */
static struct tt_topology *seen_by(const char *text, int rank, int nodes)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t;
  struct tt_xml *xml;
  int nranks = 0;
  for (const char *at = text; (at = strstr(at, " rank=\"")); at++) nranks++;
  ck_assert_int_eq(tt_xml_parse(text, strlen(text), "machine", "system", &xml), ncclSuccess);
  ck_assert_msg(tt_topology_create(xml, &rules, rank, nranks * nodes, &t) == ncclSuccess, "%s", tt_log_thread_error());
  tt_xml_free(xml);
  return t;
}

static void search(const struct tt_topology *t, const struct tt_graph_rules *rules,
                   struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  struct tt_graph_record records[TT_GRAPH_KINDS];
  ck_assert_msg(tt_graph_search_all(t, rules, graphs, records) == ncclSuccess, "%s", tt_log_thread_error());
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    const char *wrong = graph_is_wrong(t, graphs[k], !records[k].fallback);
    ck_assert_msg(!wrong, "%s: %s", tt_graph_name(graphs[k]->kind), wrong);
  }
}

static void free_all(struct tt_graph *graphs[TT_GRAPH_KINDS])
{
  for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(graphs[k]);
}

/* A graph in words: "12 x 20/20 NVL/PIX: 0 3 2 1", with its first channel. */
static const char *words(const struct tt_graph *g)
{
  static char text[512];
  FILE *out = fmemopen(text, sizeof(text), "w");
  fprintf(out, "%d x %g/%g", g->nchannels, (double)g->bandwidth_intra, (double)g->bandwidth_inter);
  if (g->nchannels > 0) {
    fprintf(out, " %s/%s:", tt_topology_name_path(g->type_intra), tt_topology_name_path(g->type_inter));
    for (int i = 0; i < g->nranks && g->ranks[i] >= 0; i++) fprintf(out, " %d", g->ranks[i]);
  }
  fclose(out);
  return text;
}

/* The graphs of one machine and of one among two. NULL: any. Frees `text`. */
static void expect(char *text, const struct tt_graph_rules *rules, int nodes, const char *ring, const char *tree,
                   const char *nvls)
{
  const char *const wanted[TT_GRAPH_KINDS] = {ring, tree, NULL, nvls, NULL};
  struct tt_graph_rules standard = tt_graph_rules_default();
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  struct tt_topology *t = seen_by(text, 0, nodes);
  search(t, rules ? rules : &standard, graphs);
  for (int k = 0; k < TT_GRAPH_KINDS; k++)
    if (wanted[k]) ck_assert_str_eq(words(graphs[k]), wanted[k]);
  free_all(graphs);
  tt_topology_free(t);
  free(text);
}

/* NVLink in a cube carries three rings in each direction; the NICs a ring each. */
START_TEST(hybrid_cube)
{
  expect(machine_hybrid_cube(), NULL, 1, "6 x 20/20 NVL/PIX: 0 3 2 1 5 6 7 4", "6 x 20/20 NVL/PIX: 0 3 2 1 5 6 7 4",
         "0 x 0/0");
  expect(machine_hybrid_cube(), NULL, 2, "4 x 12/12 NVL/PIX: 0 3 2 6 7 4 5 1", "4 x 20/12 NVL/PIX: 0 1 2 3 7 4 5 6",
         "0 x 0/0");
}
END_TEST

/* Behind a switch channels are all the same; each GPU is a head. Among machines each NIC has a channel, which old GPUs
 * need two of for a tree. */
START_TEST(switches)
{
  expect(machine_hgx(80, 12), NULL, 1, "12 x 20/20 NVL/PIX: 0 1 2 3 4 5 6 7", "12 x 20/20 NVL/PIX: 0 1 2 3 4 5 6 7",
         "0 x 0/0");
  expect(machine_hgx(90, 18), NULL, 1, "12 x 30/30 NVL/PIX: 0 1 2 3 4 5 6 7", NULL, "8 x 40/60 NVL/PIX: 0");
  expect(machine_hgx(100, 18), NULL, 1, "16 x 45/45 NVL/PIX: 0 1 2 3 4 5 6 7", NULL, "8 x 80/90 NVL/PIX: 0");
  expect(machine_hgx(100, 11), NULL, 1, "11 x 40/40 NVL/PIX: 0 1 2 3 4 5 6 7", NULL, NULL); /* many: not doubled */
  expect(machine_hgx(80, 12), NULL, 2, "8 x 24/24 NVL/PXN: 0 7 6 5 4 3 2 1", "8 x 24/24 NVL/PHB: 0 1 2 3 4 5 6 7",
         "0 x 0/0");
  expect(machine_hgx(90, 18), NULL, 2, "8 x 24/24 NVL/PXN: 0 7 6 5 4 3 2 1", "8 x 48/24 NVL/PIX: 0 1 2 3 4 5 6 7",
         "8 x 24/24 NVL/PIX: 0");
}
END_TEST

/* Without NVLink the bus limits all: on Intel's root ports a fifth more is needed between GPUs, and GPUs of one CPU
 * follow each other. */
START_TEST(buses)
{
  expect(machine_pcie("skylake", 4), NULL, 1, "1 x 10/10 SYS/PIX: 0 2 1 3", "1 x 10/10 SYS/PIX: 0 2 1 3", "0 x 0/0");
  expect(machine_pcie("amd", 2), NULL, 1, "1 x 15/15 SYS/PIX: 0 1", "1 x 15/15 SYS/PIX: 0 1", NULL);
  expect(machine_pcie("amd", 2), NULL, 2, "1 x 12/12 SYS/SYS: 0 1", "1 x 15/12 SYS/SYS: 0 1", NULL);
  expect(machine_virtual(), NULL, 1, "1 x 12/12 PHB/PIX: 0 1 2 3", "1 x 12/12 PHB/PIX: 0 1 2 3", NULL);
}
END_TEST

START_TEST(one_gpu)
{
  expect(machine_arm_board(), NULL, 1, "32 x 90/90 LOC/PIX: 0", "32 x 90/90 LOC/PIX: 0", "0 x 0/0");
  expect(machine_arm_board(), NULL, 2, "1 x 12/12 LOC/P2C: 0", "1 x 24/12 LOC/P2C: 0", "0 x 0/0");
}
END_TEST

/* Ranks that share a device need no link between them. */
START_TEST(shared_device)
{
  struct machine m;
  char *changed, *end;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "amd");
  machine_gpu(&m, 0, 80, "");
  char *text = machine_end(&m);
  end = strstr(text, "</gpu>") + strlen("</gpu>");
  ck_assert_int_ge(
      asprintf(&changed, "%.*s<gpu dev=\"0\" sm=\"80\" rank=\"1\" gdr=\"1\"/>%s", (int)(end - text), text, end), 0);
  free(text);
  expect(changed, NULL, 1, "32 x 40/40 LOC/PIX: 0 1", NULL, "0 x 0/0");
}
END_TEST

/* Several hosts on one switch: channels take turns between the hosts' NICs. */
START_TEST(trays)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  expect(machine_trays(2), NULL, 1, "16 x 45/45 NVL/PIX: 0 1 2 3", "16 x 50/50 NVL/PIX: 0 1 2 3", NULL);
  expect(machine_trays(4), NULL, 1, "16 x 45/45 NVL/PIX: 0 1 2 3 4 5 6 7", NULL, "8 x 80/90 NVL/PIX: 0");
  char *text = machine_trays(4);
  struct tt_topology *t = seen_by(text, 0, 2);
  search(t, &rules, graphs);
  ck_assert_str_eq(words(graphs[TT_GRAPH_RING]), "4 x 24/24 NVL/PIX: 0 7 6 5 4 3 2 1");
  for (int c = 0; c < 4; c++) ck_assert_int_eq(graphs[TT_GRAPH_RING]->nets[2 * c], (int64_t)c << 56 | c);
  free_all(graphs);
  tt_topology_free(t);
  free(text);
}
END_TEST

/* Two NICs for the GPU of each host: channels use one of each before the second of any, if they are to. */
START_TEST(scattered_nets)
{
  static const int wanted[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  struct tt_graph_rules rules = tt_graph_rules_default();
  struct machine m;
  machine_begin(&m);
  for (int h = 0; h < 2; h++) {
    machine_cpu(&m, h, 0, "amd");
    machine_bridge(&m, 5, 16);
    machine_gpu(&m, h, 90, "s*18");
    machine_net(&m, 2 * h, 50, true);
    machine_net(&m, 2 * h + 1, 50, true);
  }
  char *text = machine_end(&m);
  struct tt_topology *t = seen_by(text, 0, 2);
  for (int scatter = 0; scatter < 2; scatter++) {
    rules.scatter_nets = scatter;
    rules.cross_nic = 1;
    search(t, &rules, graphs);
    ck_assert_int_eq(graphs[TT_GRAPH_RING]->nchannels, 4);
    for (int c = 0; c < 4; c++) ck_assert_int_eq(graphs[TT_GRAPH_RING]->nets[2 * c] & 0xff, wanted[scatter][c]);
    free_all(graphs);
  }
  tt_topology_free(t);
  free(text);
}
END_TEST

/* NVLink to a POWER CPU, which has 60 GB/s, carries both what comes and what goes. */
START_TEST(power)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "power");
  machine_gpu(&m, 0, 70, "s*3");
  machine_gpu(&m, 1, 70, "s*3");
  char *text = machine_end(&m);
  for (char *at = text; (at = strstr(at, "tclass=\"0x068000\"")); at++) at[strlen("tclass=\"0x06800")] = '1';
  expect(text, NULL, 1, "2 x 15/15 NVL/PIX: 0 1", NULL, "0 x 0/0");
}
END_TEST

/* NETs on one rail are as good as one; of different planes none goes with another. */
START_TEST(rails_and_planes)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  rules.cross_nic = 0;
  expect(with_attribute(machine_hgx(90, 18), "rail=\"3\""), &rules, 2, "8 x 24/24 NVL/PIX: 0 7 6 5 4 3 2 1", NULL,
         NULL);
  rules.cross_nic = 1;
  expect(machine_hgx(90, 18), &rules, 2, "8 x 24/24 NVL/PIX: 0 7 6 5 4 3 2 1", NULL, NULL);
  expect(with_attribute(machine_hgx(90, 18), "plane=\"%d\""), &rules, 2, "8 x 24/24 NVL/PXN: 0 7 6 5 4 3 2 1", NULL,
         NULL);
}
END_TEST

/* Two NETs on one port share it: there is room for a channel less. */
START_TEST(shared_port)
{
  char *text = machine_hgx(90, 18), *guid = strstr(text, "guid=\"0x65\"");
  ck_assert_ptr_nonnull(guid);
  memcpy(guid, "guid=\"0x64\"", strlen("guid=\"0x64\""));
  expect(text, NULL, 2, "7 x 24/24 NVL/PXN: 0 7 6 5 4 3 2 1", NULL, NULL);
}
END_TEST

/* NETs that reduce: a chain for each ring, and heads. */
START_TEST(collnet)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  char *text = with_attribute(machine_hgx(90, 18), "coll=\"1\"");
  struct tt_topology *t = seen_by(text, 0, 2);
  search(t, &rules, graphs); /* not asked for */
  ck_assert_int_eq(graphs[TT_GRAPH_COLLNET_CHAIN]->nchannels, 0);
  ck_assert_int_eq(graphs[TT_GRAPH_COLLNET_DIRECT]->nchannels, 0);
  free_all(graphs);
  rules.collnet = true;
  search(t, &rules, graphs);
  ck_assert_str_eq(words(graphs[TT_GRAPH_COLLNET_CHAIN]), "8 x 48/24 NVL/PIX: 0 1 2 3 4 5 6 7");
  ck_assert_str_eq(words(graphs[TT_GRAPH_COLLNET_DIRECT]), "8 x 48/24 NVL/PIX: 0");
  free_all(graphs);
  tt_topology_free(t);
  free(text);
  text = machine_hgx(90, 18); /* NETs that do not */
  t = seen_by(text, 0, 2);
  search(t, &rules, graphs);
  ck_assert_int_eq(graphs[TT_GRAPH_COLLNET_CHAIN]->nchannels, 0);
  ck_assert_int_eq(graphs[TT_GRAPH_COLLNET_DIRECT]->nchannels, 0);
  free_all(graphs);
  tt_topology_free(t);
  free(text);
  rules.nvls = false;
  expect(machine_hgx(90, 18), &rules, 1, NULL, NULL, "0 x 0/0");
}
END_TEST

static bool same(const struct tt_graph *a, const struct tt_graph *b)
{
  const size_t ranks = (size_t)a->nchannels * (size_t)a->nranks;
  return a->pattern == b->pattern && a->cross_nic == b->cross_nic && a->nchannels == b->nchannels &&
         a->same_channels == b->same_channels && a->bandwidth_intra == b->bandwidth_intra &&
         a->bandwidth_inter == b->bandwidth_inter && a->type_intra == b->type_intra && a->type_inter == b->type_inter &&
         a->nranks == b->nranks && memcmp(a->ranks, b->ranks, ranks * sizeof(*a->ranks)) == 0 &&
         memcmp(a->nets, b->nets, (size_t)a->nchannels * 2 * sizeof(*a->nets)) == 0;
}

/* What is found holds, and each rank on the machine finds the same. */
START_TEST(random_machines)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  char *text = machine_random((unsigned)_i);
  const int nodes = 1 + _i % 3;
  rules.cross_nic = _i / 3 % 3;
  rules.rail_per_host = _i % 4 == 0;
  rules.scatter_nets = _i % 4 < 2;
  rules.collnet = _i % 2;
  if (rules.collnet) text = with_attribute(text, "coll=\"1\"");
  if (_i % 5 == 0) text = with_attribute(text, "plane=\"%d\"");
  struct tt_graph *graphs[TT_GRAPH_KINDS], *others[TT_GRAPH_KINDS];
  struct tt_topology *t = seen_by(text, 0, nodes);
  search(t, &rules, graphs);
  const int last = t->nodes[tt_topology_node(t, TT_NODE_GPU, t->count[TT_NODE_GPU] - 1)].gpu.rank;
  struct tt_topology *its = seen_by(text, last, nodes);
  search(its, &rules, others);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) ck_assert(same(graphs[k], others[k]));
  ck_assert_int_ge(graphs[TT_GRAPH_RING]->nchannels, 1);
  ck_assert_int_ge(graphs[TT_GRAPH_TREE]->nchannels, 1);
  free_all(graphs);
  free_all(others);
  tt_topology_free(t);
  tt_topology_free(its);
  free(text);
}
END_TEST

static uint64_t mix(uint64_t digest, const void *data, size_t size)
{
  for (size_t i = 0; i < size; i++) digest = (digest ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
  return digest;
}

static uint64_t mix_graphs(uint64_t digest, const struct tt_topology *t, const struct tt_graph_rules *rules)
{
  struct tt_graph *graphs[TT_GRAPH_KINDS];
  search(t, rules, graphs);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    const struct tt_graph *g = graphs[k];
    const int32_t numbers[] = {g->pattern,
                               g->cross_nic,
                               g->nchannels,
                               g->same_channels,
                               (int32_t)(g->bandwidth_intra * 1000.0f + 0.5f),
                               (int32_t)(g->bandwidth_inter * 1000.0f + 0.5f),
                               (int32_t)g->type_intra,
                               (int32_t)g->type_inter};
    digest = mix(digest, numbers, sizeof(numbers));
    digest = mix(digest, g->ranks, (size_t)g->nchannels * (size_t)g->nranks * sizeof(*g->ranks));
    digest = mix(digest, g->nets, (size_t)g->nchannels * 2 * sizeof(*g->nets));
  }
  free_all(graphs);
  return digest;
}

/* Ranks need not be of one build: what is found is the same with every compiler and option. Who means to change what is
 * found looks at graph_search_compare first, and then puts the number right. */
START_TEST(same_everywhere)
{
  uint64_t digest = UINT64_C(14695981039346656037);
  for (int i = 0; i < 160; i++) {
    struct tt_graph_rules rules = tt_graph_rules_default();
    rules.cross_nic = 2 - i / 2 % 4 % 3;
    rules.collnet = i % 3 == 0;
    char *text = with_attribute(machine_random((unsigned)i + 100), i % 3 == 0 ? "coll=\"1\"" : "");
    struct tt_topology *t = seen_by(text, 0, 1 + i % 2);
    digest = mix_graphs(digest, t, &rules);
    tt_topology_free(t);
    free(text);
  }
  ck_assert_msg(digest == UINT64_C(0xe4cc8376576037), "digest 0x%llx", (unsigned long long)digest);
}
END_TEST

/* All kinds in a thread whose stack holds little beside what the C library needs. */
static void *search_in_thread(void *arg)
{
  static struct tt_graph *graphs[TT_GRAPH_KINDS];
  const struct tt_graph_rules rules = {.cross_nic = 2, .scatter_nets = true, .collnet = true, .nvls = true};
  return tt_graph_search_all(arg, &rules, graphs, NULL) == ncclSuccess ? graphs : NULL;
}

START_TEST(small_stack)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const size_t stack = 256 << 10; /* they take more */
#else
  const size_t stack = 64 << 10;
#endif
  pthread_attr_t attributes;
  pthread_t thread;
  void *found;
  char *text = with_attribute(machine_trays(16), "coll=\"1\"");
  struct tt_topology *t = seen_by(text, 0, 2);
  ck_assert_int_eq(t->count[TT_NODE_GPU], 32);
  pthread_attr_init(&attributes);
  ck_assert_int_eq(pthread_attr_setstacksize(&attributes, stack), 0);
  ck_assert_int_eq(pthread_create(&thread, &attributes, search_in_thread, t), 0);
  pthread_join(thread, &found);
  pthread_attr_destroy(&attributes);
  ck_assert_ptr_nonnull(found);
  free_all(found);
  tt_topology_free(t);
  free(text);
}
END_TEST

Suite *suite_search(void)
{
  Suite *suite = suite_create("search");
  TCase *known = tcase_create("known"), *random = tcase_create("random");
  tcase_add_test(known, hybrid_cube);
  tcase_add_test(known, switches);
  tcase_add_test(known, buses);
  tcase_add_test(known, one_gpu);
  tcase_add_test(known, shared_device);
  tcase_add_test(known, trays);
  tcase_add_test(known, rails_and_planes);
  tcase_add_test(known, scattered_nets);
  tcase_add_test(known, power);
  tcase_add_test(known, shared_port);
  tcase_add_test(known, collnet);
  tcase_add_test(known, same_everywhere);
  tcase_add_test(known, small_stack);
  tcase_set_timeout(known, 120);
  tcase_add_loop_test(random, random_machines, 0, 60);
  tcase_set_timeout(random, 120);
  suite_add_tcase(suite, known);
  suite_add_tcase(suite, random);
  return suite;
}
