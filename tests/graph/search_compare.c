/* Compares the channels that Tutti finds on published machines with those that NCCL finds there.
 *
 *     graph_search_compare [-v] [-q] DIRECTORY   all NAME.expected.txt that have a NAME.xml; exit status 77: none
 *
 * Of each graph, the bandwidth of all channels must be as high, between GPUs and to NETs, and no path of a farther
 * type. Prints a line a machine: how many graphs are equal, better and worse, how many channels are the same in the
 * same order, and the time of a search of all kinds. -v shows the graphs that differ, -vv their channels.
 * -q: each machine only as one of two, with no variable set. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/log.h"
#include "graph/search.h"
#include "join_expected.h"

struct tally {
  int graphs, equal, better, worse, identical, channels, same;
  double milliseconds; /* of the slowest section */
};

static int verbose;
static bool every_section;
static char machine[128];
static bool quick;
static double times[4096];
static int ntimes;

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static struct tt_topology *make(const char *file, const struct join_section *s, struct tt_graph_rules *rules)
{
  struct tt_topology_rules topology = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_xml *xml = NULL;
  bool known;
  *rules = tt_graph_rules_default();
  rules->collnet = s->graphs[TT_GRAPH_COLLNET_CHAIN] != NULL;
  if (strcmp(s->name, "NCCL_CROSS_NIC") == 0)
    rules->cross_nic = atoi(s->value);
  else if (*s->name && tt_topology_rules_set(&topology, s->name, s->value, &known) != ncclSuccess)
    exit(2);
  if (tt_xml_read(file, "system", &xml) == ncclSuccess) tt_topology_create(xml, &topology, 0, s->nranks, &t);
  tt_xml_free(xml);
  return t;
}

/* The sums of bandwidths are compared with room for rounding. */
static int compare(float ours, float theirs)
{
  return ours > theirs * 1.0001f ? 1 : ours < theirs * 0.9999f ? -1 : 0;
}

/* Theirs has room for all GPUs of the file, also where some were trimmed, and does not name NETs without need. */
static int same_channels(const struct tt_graph *ours, const struct tt_graph *theirs)
{
  const bool heads = ours->pattern == TT_PATTERN_NVLS || ours->pattern == TT_PATTERN_COLLNET_DIRECT;
  const int ranks = heads ? 1 : ours->nranks;
  int same = 0;
  for (int c = 0; c < ours->nchannels && c < theirs->nchannels && ranks <= theirs->nranks; c++) {
    const int32_t *a = ours->ranks + c * ours->nranks, *b = theirs->ranks + c * theirs->nranks;
    const int64_t *to = ours->nets + c * 2, *its = theirs->nets + c * 2;
    const bool nets = its[0] == TT_GRAPH_NO_NET || (to[0] == its[0] && to[1] == its[1]);
    same += nets && memcmp(a, b, (size_t)ranks * sizeof(*a)) == 0;
  }
  return same;
}

static void show(const char *whose, const struct tt_graph *g, const struct tt_graph_record *record)
{
  printf("    %s %-13s pattern %d cross %d %2d x %g/%g %s/%s same %d", whose, tt_graph_name(g->kind), (int)g->pattern,
         g->cross_nic, g->nchannels, (double)g->bandwidth_intra, (double)g->bandwidth_inter,
         tt_topology_name_path(g->type_intra), tt_topology_name_path(g->type_inter), g->same_channels);
  if (record)
    printf("  attempts %d spared %d cut %d visits %d%s", record->attempts, record->spared, record->cut_short,
           record->visits, record->out_of_visits ? " out" : "");
  printf("\n");
  for (int c = 0; c < g->nchannels && verbose > 1; c++) {
    printf("      %2d: %llx |", c, (unsigned long long)g->nets[2 * c]);
    for (int i = 0; i < g->nranks; i++) printf(" %d", g->ranks[c * g->nranks + i]);
    printf(" | %llx\n", (unsigned long long)g->nets[2 * c + 1]);
  }
}

/* Above zero: ours is better in something; below: worse in something. */
static int compare_graph(const struct tt_graph *ours, const struct tt_graph *theirs)
{
  const float a = (float)ours->nchannels, b = (float)theirs->nchannels;
  int intra = compare(a * ours->bandwidth_intra, b * theirs->bandwidth_intra);
  int inter = compare(a * ours->bandwidth_inter, b * theirs->bandwidth_inter);
  int types = 0;
  if (theirs->nchannels > 0 && ours->nchannels > 0) {
    types = ours->type_intra > theirs->type_intra || ours->type_inter > theirs->type_inter   ? -1
            : ours->type_intra < theirs->type_intra || ours->type_inter < theirs->type_inter ? 1
                                                                                             : 0;
  }
  if (intra < 0 || inter < 0 || types < 0) return -1;
  return intra > 0 || inter > 0 || types > 0;
}

/* What was found of one kind, and what became of the comparison. */
static void show_result(const struct tt_graph *g, int result)
{
  if (!every_section || (g->nchannels == 0 && result == 0)) return;
  printf("  %s %dx %g/%g %s/%s %s", tt_graph_name(g->kind), g->nchannels, (double)g->bandwidth_intra,
         (double)g->bandwidth_inter, tt_topology_name_path(g->type_intra), tt_topology_name_path(g->type_inter),
         result == 0  ? "equal"
         : result > 0 ? "better"
                      : "WORSE");
}

static void compare_section(const char *file, const struct join_section *s, struct tally *tally)
{
  struct tt_graph *graphs[TT_GRAPH_KINDS] = {NULL};
  struct tt_graph_record records[TT_GRAPH_KINDS];
  struct tt_graph_rules rules;
  if (!s->graphs[TT_GRAPH_RING] || (quick && (s->nodes != 2 || *s->name))) return;
  struct tt_topology *t = make(file, s, &rules);
  if (!t) exit(2);
  double begin = now();
  if (tt_graph_search_all(t, &rules, graphs, records) != ncclSuccess) exit(2);
  double took = now() - begin;
  times[ntimes++ % 4096] = took;
  if (took > tally->milliseconds) tally->milliseconds = took;
  if (every_section) printf("%s nodes=%d %s%s%s:", machine, s->nodes, s->name, *s->name ? "=" : "", s->value);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) {
    const struct tt_graph *theirs = s->graphs[k];
    if (!theirs) continue;
    int result = compare_graph(graphs[k], theirs), same = same_channels(graphs[k], theirs);
    tally->graphs++;
    tally->equal += result == 0;
    tally->better += result > 0;
    tally->worse += result < 0;
    tally->channels += theirs->nchannels;
    tally->same += same;
    bool identical = same == theirs->nchannels && graphs[k]->nchannels == same && result == 0 &&
                     graphs[k]->pattern == theirs->pattern && graphs[k]->cross_nic == theirs->cross_nic &&
                     graphs[k]->same_channels == theirs->same_channels;
    tally->identical += identical;
    show_result(graphs[k], result);
    if (identical || !verbose) continue;
    printf("  nodes=%d %s=%s %s\n", s->nodes, s->name, s->value,
           result < 0   ? "WORSE"
           : result > 0 ? "better"
                        : "other channels");
    show("theirs", theirs, NULL);
    show("ours  ", graphs[k], &records[k]);
  }
  if (every_section) printf("  %.2f ms\n", took);
  for (int k = 0; k < TT_GRAPH_KINDS; k++) tt_graph_free(graphs[k]);
  tt_topology_free(t);
}

static bool compare_machine(const char *expected)
{
  struct tally tally = {0};
  char file[4096];
  int count, stem = (int)(strlen(expected) - strlen(".expected.txt"));
  const char *name = strrchr(expected, '/') + 1;
  struct join_section *sections = join_sections_read(expected, &count);
  if (!sections) return false;
  snprintf(file, sizeof(file), "%.*s.xml", stem, expected);
  snprintf(machine, sizeof(machine), "%.*s", (int)(stem - (name - expected)), name);
  for (int i = 0; i < count; i++) compare_section(file, &sections[i], &tally);
  join_sections_free(sections, count);
  printf("%-42.*s %2d graphs  %2d equal  %2d better  %2d worse  %4d of %4d channels the same  %6.2f ms  %s\n",
         (int)(stem - (name - expected)), name, tally.graphs, tally.equal, tally.better, tally.worse, tally.same,
         tally.channels, tally.milliseconds,
         tally.worse > 0                   ? "WORSE"
         : tally.graphs == 0               ? "refused by both"
         : tally.identical == tally.graphs ? "identical"
                                           : "as good");
  return tally.worse == 0;
}

static int by_time(const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
  int options = 1;
  for (; options < argc && argv[options][0] == '-'; options++) {
    if (argv[options][1] == 'q')
      quick = true;
    else if (argv[options][1] == 's')
      every_section = true;
    else
      verbose = (int)strlen(argv[options]) - 1;
  }
  const char *directory = getenv("TUTTI_TOPOLOGIES");
  if (!directory) directory = argv[argc - 1];
  char pattern[4096];
  glob_t found;
  snprintf(pattern, sizeof(pattern), "%s/*.expected.txt", directory);
  if (argc < options + 1 || glob(pattern, 0, NULL, &found) != 0) {
    printf("SKIP: no machines in %s\n", directory);
    return 77;
  }
  int worse = 0;
  for (size_t i = 0; i < found.gl_pathc; i++) worse += !compare_machine(found.gl_pathv[i]);
  if (ntimes == 0) times[ntimes++] = 0;
  qsort(times, (size_t)ntimes, sizeof(*times), by_time);
  printf("%zu machines, %d worse; a search of all kinds takes %.2f ms (median), %.2f ms (9 of 10), %.2f ms (most)\n",
         found.gl_pathc, worse, times[ntimes / 2], times[ntimes * 9 / 10], times[ntimes - 1]);
  globfree(&found);
  return worse > 0;
}
