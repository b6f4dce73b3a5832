/* Compares what Tutti finds on published machines with what NCCL finds there.
 *
 *     topology_compare [-v] DIRECTORY       all NAME.xml that have a NAME.expected.txt; exit status 77: there is none
 *
 * Prints a line a machine: its sections (numbers of machines, variables), its paths, the limits of bandwidth, and the
 * time that reading the file, the model and all paths take. Types and bandwidths of all paths must be equal; the number
 * of hops is counted only. -v shows the lines that differ. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/log.h"
#include "expected.h"

struct tally {
  int sections, paths, wrong, hops, limits, refused;
  double milliseconds;
};

static bool verbose;

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* One topology, timed; NULL: refused. */
static struct tt_topology *make(const char *file, const struct expected *e, struct tally *tally)
{
  struct tt_topology_rules rules = tt_topology_rules_default();
  struct tt_topology *t = NULL;
  struct tt_xml *xml = NULL;
  bool known;
  if (*e->name && tt_topology_rules_set(&rules, e->name, e->value, &known) != ncclSuccess) exit(2);
  double begin = now();
  if (tt_xml_read(file, "system", &xml) == ncclSuccess) tt_topology_create(xml, &rules, 0, e->nranks, &t);
  double took = now() - begin;
  if (tally->sections == 0 || took < tally->milliseconds) tally->milliseconds = took;
  tt_xml_free(xml);
  return t;
}

static void compare_paths(const struct tt_topology *t, const struct expected *e, struct tally *tally)
{
  int nlines, paths = 0, wrong = 0;
  char **lines = expected_lines(t, &nlines);
  for (int i = 0, k = 0; i < e->npaths || k < nlines; i++, k++) {
    const char *theirs = i < e->npaths ? e->paths[i] : "", *ours = k < nlines ? lines[k] : "";
    for (const char *c = theirs; *c; c++) paths += *c == '/';
    if (expected_same(theirs, ours, &tally->hops)) continue;
    wrong++;
    if (verbose) printf("  %s=%s\n    theirs: %s\n    ours:   %s\n", e->name, e->value, theirs, ours);
  }
  tally->paths += paths / 2;
  tally->wrong += wrong;
  expected_free_lines(lines, nlines);
}

static void compare_section(const char *file, const struct expected *e, struct tally *tally)
{
  struct tt_topology *t = make(file, e, tally);
  tally->sections++;
  const bool refused = e->error && e->npaths == 0 && e->inter < 0; /* else only the search of rings failed */
  if (!t || refused) {
    bool agree = !t && refused;
    tally->refused += agree;
    tally->wrong += !agree;
    if (!agree && verbose) printf("  %s\n", t ? "NCCL refuses it" : tt_log_thread_error());
    tt_topology_free(t);
    return;
  }
  if (e->npaths > 0) compare_paths(t, e, tally);
  char ours[64], theirs[64];
  snprintf(ours, sizeof(ours), "%d %.1f %.1f", t->inter, (double)t->max_bandwidth, (double)t->total_bandwidth);
  snprintf(theirs, sizeof(theirs), "%d %.1f %.1f", e->inter, (double)e->max_bandwidth, (double)e->total_bandwidth);
  if (e->inter >= 0 && strcmp(ours, theirs) != 0) {
    tally->limits++;
    if (verbose) printf("  nodes=%d %s=%s limits ours %s theirs %s\n", e->nodes, e->name, e->value, ours, theirs);
  }
  tt_topology_free(t);
}

static bool compare_machine(const char *expected)
{
  struct tally tally = {0};
  char file[4096];
  int count, stem = (int)(strlen(expected) - strlen(".expected.txt"));
  const char *name = strrchr(expected, '/') + 1;
  struct expected *sections = expected_read(expected, &count);
  if (!sections) return false;
  snprintf(file, sizeof(file), "%.*s.xml", stem, expected);
  for (int i = 0; i < count; i++) compare_section(file, &sections[i], &tally);
  expected_free(sections, count);
  bool good = tally.wrong == 0 && tally.limits == 0;
  printf("%-42.*s %2d sections  %6d paths  %3d lines wrong  %3d limits wrong  %4d hops differ  %6.2f ms  %s\n",
         (int)(stem - (name - expected)), name, tally.sections, tally.paths, tally.wrong, tally.limits, tally.hops,
         tally.milliseconds,
         !good               ? "DIFFERENT"
         : tally.refused > 0 ? "refused by both"
                             : "equal");
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
