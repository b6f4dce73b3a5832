/* Damaged topology and graph files: graph_fuzz [ROUNDS [SEED]].
 *
 * Each round makes a machine and graphs for it at random, damages their files and reads them. What is refused must be
 * refused with a sentence that names the file; what is read must be sound, and equal to itself once written and read
 * again. Sanitizers see what is out of bounds, leaked or undefined. A round depends on its number and SEED only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/text.h"
#include "damage.h"
#include "graph/file.h"
#include "graph/find.h"
#include "machine.h"

struct counts {
  int read, refused;
};

static int round_number;
static const char *last_file; /* for messages */
static size_t last_bytes;

#define MUST(what)                                                                                                     \
  do {                                                                                                                 \
    if (!(what)) fail(#what);                                                                                          \
  } while (0)

static void fail(const char *what)
{
  fprintf(stderr, "round %d: not true: %s; the last error: %s\n%.*s\n", round_number, what, tt_log_thread_error(),
          (int)last_bytes, last_file ? last_file : "");
  exit(1);
}

static void must_be_refused(ncclResult_t result)
{
  MUST(result == ncclInvalidUsage || result == ncclInvalidArgument);
  MUST(strstr(tt_log_thread_error(), "damaged"));
}

/* Asks for all that a communicator would ask for. */
static void use(const struct tt_topology *t)
{
  char text[64];
  cpu_set_t cpus;
  const int ngpus = t->count[TT_NODE_GPU], nnets = t->count[TT_NODE_NET];
  for (int n = 0; n < t->nnodes; n++) MUST(*tt_topology_label(t, n, text, sizeof(text)));
  for (int g = 0; g < ngpus; g++) {
    tt_topology_affinity(t, g, &cpus);
    for (int c = 0; c < 3; c++) MUST(tt_topology_net_of_gpu(t, g, c) < nnets);
    for (int p = 0; p < ngpus; p++)
      MUST(p == g || tt_topology_peer_access(t, g, p) || tt_topology_path_between(t, TT_NODE_GPU, g, TT_NODE_GPU, p));
    for (int n = 0; n < nnets; n++) {
      int owner = tt_topology_owner_of_buffer(t, g, n);
      MUST(owner >= 0 && owner < ngpus);
      tt_topology_gpu_direct(t, g, n, true);
    }
  }
}

/* A tree that was read is equal once written and read again. */
static void copy(const struct tt_xml *xml)
{
  char *text, *again;
  size_t bytes, more;
  struct tt_xml *second;
  FILE *out = open_memstream(&text, &bytes);
  MUST(out && tt_xml_write(xml, out) == ncclSuccess);
  fclose(out);
  MUST(tt_xml_parse(text, bytes, "copy", "system", &second) == ncclSuccess);
  out = open_memstream(&again, &more);
  MUST(out && tt_xml_write(second, out) == ncclSuccess);
  fclose(out);
  MUST(bytes == more && memcmp(text, again, bytes) == 0);
  tt_xml_free(second);
  free(text);
  free(again);
}

static char *any_machine(uint64_t *state)
{
  switch (damage_pick(state, 8)) {
  case 0:
    return machine_hybrid_cube();
  case 1:
    return machine_trays(1 + (int)damage_pick(state, 3));
  case 2:
    return machine_hgx(90, 18);
  case 3:
    return damage_pick(state, 2) ? machine_virtual() : machine_arm_board();
  default:
    return machine_random(damage_pick(state, 100000));
  }
}

static int64_t any_net(const struct tt_topology *t, uint64_t *state)
{
  int n = t->count[TT_NODE_NET];
  if (!t->inter || n == 0) return TT_GRAPH_NO_NET;
  const struct tt_node *net = &t->nodes[tt_topology_node(t, TT_NODE_NET, (int)damage_pick(state, (uint32_t)n))];
  return (int64_t)net->host << 56 | net->net.dev;
}

static const struct {
  int least, most;
  bool head;
} shapes[TT_GRAPH_KINDS] = {{4, 4, false}, {1, 3, false}, {1, 3, false}, {5, 5, true}, {6, 6, true}};

/* Channels in any order: a file need not be good, only possible. */
static struct tt_graph *any_graph(const struct tt_topology *t, int kind, uint64_t *state)
{
  struct tt_graph *g;
  const int n = t->count[TT_NODE_GPU], channels = 1 + (int)damage_pick(state, 4);
  MUST(tt_graph_new((enum tt_graph_kind)kind, channels, n, &g) == ncclSuccess);
  g->nchannels = channels;
  g->pattern = (enum tt_graph_pattern)(shapes[kind].least +
                                       (int)damage_pick(state, (uint32_t)(1 + shapes[kind].most - shapes[kind].least)));
  g->bandwidth_intra = (float)damage_pick(state, 1000) / 7;
  g->bandwidth_inter = (float)damage_pick(state, 1000) / 7;
  g->type_intra = TT_PATH_NVL;
  g->type_inter = TT_PATH_PXB;
  for (int c = 0; c < channels; c++) {
    int32_t *ranks = &g->ranks[c * n];
    for (int i = 0; i < n; i++) {
      int j = (int)damage_pick(state, (uint32_t)i + 1);
      ranks[i] = ranks[j];
      ranks[j] = t->nodes[tt_topology_node(t, TT_NODE_GPU, i)].gpu.rank;
    }
    for (int i = 1; i < n && shapes[kind].head; i++) ranks[i] = -1;
    for (int i = 0; i < 2; i++) g->nets[c * 2 + i] = any_net(t, state);
  }
  return g;
}

static void must_be_net(const struct tt_topology *t, int64_t net)
{
  MUST(net == TT_GRAPH_NO_NET ||
       tt_topology_find(t, TT_NODE_NET, (int)(net >> 56), (uint64_t)net & 0xffffffffffffff) >= 0);
}

/* What a join may rely on. */
static void must_be_sound(const struct tt_topology *t, const struct tt_graph *g, int kind)
{
  const int n = t->count[TT_NODE_GPU];
  MUST((int)g->kind == kind && g->nranks == n && g->nchannels >= 1 && g->nchannels <= TT_GRAPH_MOST_CHANNELS);
  const bool one = n == 1 && kind != TT_GRAPH_RING && g->pattern == TT_PATTERN_TREE;
  MUST(one || ((int)g->pattern >= shapes[kind].least && (int)g->pattern <= shapes[kind].most));
  MUST(g->bandwidth_intra >= 0 && g->bandwidth_inter >= 0 && g->latency_inter >= 0);
  MUST(g->type_intra < TT_PATH_TYPES && g->type_inter < TT_PATH_TYPES && g->cross_nic >= 0 && g->cross_nic <= 2);
  for (int c = 0; c < g->nchannels; c++) {
    const int32_t *ranks = &g->ranks[c * n];
    for (int i = 0; i < n; i++) {
      if (shapes[kind].head && i > 0) {
        MUST(ranks[i] == -1);
        continue;
      }
      MUST(tt_topology_gpu_of_rank(t, ranks[i]) >= 0);
      for (int j = 0; j < i; j++) MUST(ranks[i] != ranks[j]);
    }
    must_be_net(t, g->nets[c * 2]);
    must_be_net(t, g->nets[c * 2 + 1]);
  }
}

static char *write_graphs(const struct tt_topology *t, struct tt_graph *const graphs[TT_GRAPH_KINDS], size_t *bytes)
{
  char *text;
  FILE *out = open_memstream(&text, bytes);
  MUST(out && tt_graph_write(out, t, graphs) == ncclSuccess);
  fclose(out);
  return text;
}

static void check_graphs(const struct tt_topology *t, struct tt_graph *const graphs[TT_GRAPH_KINDS])
{
  struct tt_graph *again[TT_GRAPH_KINDS];
  size_t bytes, more;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++)
    if (graphs[kind]) must_be_sound(t, graphs[kind], kind);
  char *text = write_graphs(t, graphs, &bytes);
  MUST(tt_graph_parse(text, bytes, "again", t, 2, again) == ncclSuccess);
  char *second = write_graphs(t, again, &more);
  MUST(bytes == more && memcmp(text, second, bytes) == 0);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(again[kind]);
  free(text);
  free(second);
}

/* What a search finds is as sound as what is read. */
static void search(const struct tt_topology *t)
{
  struct tt_graph_rules rules = tt_graph_rules_default();
  struct tt_graph *graphs[TT_GRAPH_KINDS], *some[TT_GRAPH_KINDS];
  rules.collnet = true;
  MUST(tt_graph_find(NULL, t, &rules, graphs, NULL, NULL) == ncclSuccess);
  MUST(graphs[TT_GRAPH_RING]->nchannels > 0 && graphs[TT_GRAPH_TREE]->nchannels > 0);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) some[kind] = graphs[kind]->nchannels > 0 ? graphs[kind] : NULL;
  check_graphs(t, some);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) tt_graph_free(graphs[kind]);
}

static void fuzz_topology(uint64_t *state, struct counts *counts)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_xml *xml = NULL;
  char *machine = any_machine(state);
  char *text = damage(machine, strlen(machine), state, &last_bytes);
  last_file = text;
  ncclResult_t result = tt_xml_parse(text, last_bytes, "damaged", "system", &xml);
  if (result == ncclSuccess) {
    copy(xml);
    result = tt_topology_create(xml, &rules, 0, damage_pick(state, 2) ? 0 : 100, &t);
  }
  MUST((result == ncclSuccess) == (t != NULL));
  if (t)
    use(t);
  else
    must_be_refused(result);
  if (t && round_number % 20 == 0) search(t);
  counts->read += t != NULL;
  counts->refused += t == NULL;
  tt_topology_free(t);
  tt_xml_free(xml);
  free(text);
  free(machine);
}

static void fuzz_graph(uint64_t *state, struct counts *counts)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t;
  struct tt_xml *xml;
  struct tt_graph *graphs[TT_GRAPH_KINDS], *read[TT_GRAPH_KINDS];
  char *machine = any_machine(state);
  MUST(tt_xml_parse(machine, strlen(machine), "machine", "system", &xml) == ncclSuccess);
  MUST(tt_topology_create(xml, &rules, 0, damage_pick(state, 2) ? 0 : 100, &t) == ncclSuccess);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) graphs[kind] = any_graph(t, kind, state);
  size_t bytes;
  char *file = write_graphs(t, graphs, &bytes), *text = damage(file, bytes, state, &last_bytes);
  last_file = text;
  ncclResult_t result = tt_graph_parse(text, last_bytes, "damaged", t, (int)damage_pick(state, 3), read);
  for (int kind = 0; kind < TT_GRAPH_KINDS && !t->inter; kind++)
    for (int i = 0; read[kind] && i < 2 * read[kind]->nchannels; i++) MUST(read[kind]->nets[i] == TT_GRAPH_NO_NET);
  if (result == ncclSuccess)
    check_graphs(t, read);
  else
    must_be_refused(result);
  counts->read += result == ncclSuccess;
  counts->refused += result != ncclSuccess;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) {
    MUST(result == ncclSuccess || !read[kind]);
    tt_graph_free(graphs[kind]);
    tt_graph_free(read[kind]);
  }
  free(text);
  free(file);
  free(machine);
  tt_topology_free(t);
  tt_xml_free(xml);
}

int main(int argc, char **argv)
{
  int64_t rounds = 1500, seed = 1;
  struct counts topologies = {0}, graphs = {0};
  if (argc > 3 || (argc > 1 && (!tt_text_int(argv[1], &rounds) || rounds < 1 || rounds > 1 << 30)) ||
      (argc > 2 && !tt_text_int(argv[2], &seed))) {
    fputs("usage: graph_fuzz [ROUNDS [SEED]]\n", stderr);
    return 2;
  }
  for (round_number = 0; round_number < rounds; round_number++) {
    uint64_t state = (uint64_t)seed * 0x9e3779b97f4a7c15u + (uint64_t)round_number;
    fuzz_topology(&state, &topologies);
    fuzz_graph(&state, &graphs);
  }
  printf("topologies: %d read, %d refused; graphs: %d read, %d refused\n", topologies.read, topologies.refused,
         graphs.read, graphs.refused);
  last_file = NULL;
  /* Damage that is never noticed, or always fatal, would test little. */
  if (rounds < 100) return 0;
  MUST(topologies.read > rounds / 20 && topologies.refused > rounds / 20);
  MUST(graphs.read > rounds / 20 && graphs.refused > rounds / 20);
  return 0;
}
