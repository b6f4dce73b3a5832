/* Compares how machines are joined with how NCCL joins them, from the graphs that NCCL finds there.
 *
 *     graph_join_compare [-v] DIRECTORY     all NAME.expected.txt that have a NAME.xml; exit status 77: there is none
 *
 * Rings, trees, trees of NVLS and all counts must be equal. Prints a line a machine; -v shows the lines that differ.
 * What was joined is also proved (tools/topo/join_check.h). */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "join_check.h"
#include "join_expected.h"
#include "join_machine.h"

struct tally {
  int sections, split, lines, wrong, invalid;
};

static bool verbose;

/* The card of a rank of one machine. */
static struct tt_join_card describe(const struct tt_xml *xml, const struct join_section *s, int rank,
                                    const struct tt_join_rules *rules)
{
  struct tt_topology_rules topology = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_join_card card;
  struct tt_join_shape *shape;
  bool known;
  if (*s->name && tt_topology_rules_set(&topology, s->name, s->value, &known) != ncclSuccess) exit(2);
  if (tt_topology_create(xml, &topology, rank, s->nodes * s->ngpus, &t) != ncclSuccess ||
      tt_join_describe(t, (const struct tt_graph *const *)s->graphs, rank, rules, &card, &shape) != ncclSuccess) {
    fprintf(stderr, "%s: %s\n", xml->source, tt_log_thread_error());
    exit(2);
  }
  tt_join_shape_free(shape);
  tt_topology_free(t);
  return card;
}

static struct tt_joined *join(const struct tt_xml *xml, const struct join_section *s)
{
  const struct tt_join_rules rules = tt_join_rules_default();
  struct fleet fleet = {0};
  const struct tt_join_card own = describe(xml, s, 0, &rules), last = describe(xml, s, s->ngpus - 1, &rules);
  if (own.digest != last.digest || own.leader != 0 || last.leader != 0) return NULL; /* who share a machine agree */
  for (int n = 0; n < s->nodes; n++) {
    const int first = fleet.nranks;
    fleet_add(&fleet, (const struct tt_graph *const *)s->graphs, NULL, s->ngpus);
    if (own.digest != fleet.cards[first].digest) abort();
    for (int i = 0; i < s->ngpus; i++) {
      fleet.cards[first + i] = own;
      fleet.cards[first + i].net_bandwidth = 0;
      fleet.cards[first + i].leader = first;
    }
  }
  return fleet_join(&fleet, &rules);
}

/* The same line of ours. */
static void print(const struct tt_joined *j, const char *line, char *text, size_t size)
{
  FILE *out = fmemopen(text, size, "w");
  int rank, channel;
  if (!out) abort();
  if (sscanf(line, "ringorder %d", &channel) == 1 && channel < j->nchannels) {
    fprintf(out, "ringorder %d:", channel);
    for (int i = 0; i < j->nranks; i++) fprintf(out, " %d", j->ring[channel][i]);
  } else if (sscanf(line, "tree rank %d", &rank) == 1 && rank < j->nranks) {
    fprintf(out, "tree rank %d (up;down..):", rank);
    for (int c = 0; c < j->nchannels; c++) {
      struct tt_join_tree tree = tt_join_tree_place(j, c, rank);
      fprintf(out, " %d:%d;%d,%d,%d", c, tree.up, tree.down[0], tree.down[1], tree.down[2]);
    }
  } else if (sscanf(line, "nvlstree rank %d ch %d", &rank, &channel) == 2) {
    struct tt_join_tree tree = tt_join_nvls_place(j, channel, rank);
    fprintf(out, "nvlstree rank %d ch %d up %d down %d %d %d", rank, channel, tree.up, tree.down[0], tree.down[1],
            tree.down[2]);
  }
  fclose(out);
}

static void compare_line(const struct join_section *s, const char *ours, const char *theirs, struct tally *tally)
{
  tally->lines++;
  if (strcmp(ours, theirs) == 0) return;
  tally->wrong++;
  if (verbose) printf("  nodes=%d %s=%s\n    theirs: %s\n    ours:   %s\n", s->nodes, s->name, s->value, theirs, ours);
}

static void compare_section(const struct tt_xml *xml, const struct join_section *s, struct tally *tally)
{
  static char text[1 << 16], theirs[256];
  tally->sections++;
  if (!s->joined) {
    tally->split++;
    return;
  }
  struct tt_joined *j = join(xml, s);
  if (!j) {
    printf("  nodes=%d %s=%s: %s\n", s->nodes, s->name, s->value, tt_log_thread_error());
    tally->wrong++;
    return;
  }
  int rings = 0;
  for (int i = 0; i < s->nlines; i++) {
    const char *line = s->lines[i];
    rings += strncmp(line, "ringorder", 9) == 0;
    if (s->nvls_channels == 0 && strncmp(line, "nvlstree", 8) == 0) continue;
    print(j, line, text, sizeof(text));
    compare_line(s, text, line, tally);
  }
  tally->wrong += rings != j->nchannels;
  const char *format = "coll %d nvls %d p2p %d per peer %d depth %d";
  snprintf(text, sizeof(text), format, j->nchannels, j->nvls_channels, j->peer_channels, j->channels_per_peer,
           j->tree_depth);
  snprintf(theirs, sizeof(theirs), format, s->coll_channels, s->nvls_channels, s->peer_channels, s->per_peer,
           s->tree_depth);
  compare_line(s, text, theirs, tally);
  struct join_check check = {.joined = j};
  if (!join_check_all(&check)) {
    printf("  nodes=%d %s=%s: %s\n", s->nodes, s->name, s->value, check.why);
    tally->invalid++;
  }
  tt_joined_free(j);
}

static bool compare_machine(const char *expected)
{
  struct tally tally = {0};
  struct tt_xml *xml = NULL;
  char file[4096];
  int count, stem = (int)(strlen(expected) - strlen(".expected.txt"));
  const char *name = strrchr(expected, '/') + 1;
  struct join_section *sections = join_sections_read(expected, &count);
  if (!sections) return false;
  snprintf(file, sizeof(file), "%.*s.xml", stem, expected);
  if (tt_xml_read(file, "system", &xml) != ncclSuccess) {
    fprintf(stderr, "%s\n", tt_log_thread_error());
    exit(2);
  }
  for (int i = 0; i < count; i++) compare_section(xml, &sections[i], &tally);
  tt_xml_free(xml);
  join_sections_free(sections, count);
  const bool good = tally.wrong == 0 && tally.invalid == 0;
  printf("%-42.*s %2d sections, %2d not joined  %5d lines  %3d differ  %3d invalid  %s\n",
         (int)(stem - (name - expected)), name, tally.sections, tally.split, tally.lines, tally.wrong, tally.invalid,
         good ? "equal" : "DIFFERENT");
  return good;
}

int main(int argc, char **argv)
{
  verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
  const char *directory = getenv("TUTTI_TOPOLOGIES");
  if (!directory) directory = argv[argc - 1];
  char pattern[4096];
  glob_t found;
  snprintf(pattern, sizeof(pattern), "%s/*.expected.txt", directory);
  if (argc < 2 + verbose || glob(pattern, 0, NULL, &found) != 0) {
    printf("SKIP: no machines in %s\n", directory);
    return 77;
  }
  int different = 0;
  for (size_t i = 0; i < found.gl_pathc; i++) different += !compare_machine(found.gl_pathv[i]);
  printf("%zu machines, %d different\n", found.gl_pathc, different);
  globfree(&found);
  return different > 0;
}
