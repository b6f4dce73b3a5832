/* Times how long a machine takes to be detected, fused and modelled: the parts of a communicator's start that read it.
 * `run` builds this. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/log.h"
#include "topology/detect.h"
#include "topology/fuse.h"
#include "topology/topology.h"

enum { MOST_RANKS = 64, ROUNDS = 200 };

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

static void print(const char *what, double *times)
{
  qsort(times, ROUNDS, sizeof(*times), compare);
  printf("%-46s %8.3f ms  (least %.3f, most %.3f)\n", what, times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
}

static void check(ncclResult_t result)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s\n", tt_log_thread_error());
  exit(1);
}

int main(int argc, char **argv)
{
  static double detecting[ROUNDS], fusing[ROUNDS], building[ROUNDS];
  struct tt_topology_rules rules = tt_topology_rules_default();
  int nranks = argc > 1 ? atoi(argv[1]) : 8;
  if (nranks < 1 || nranks > MOST_RANKS) return 2;
  for (int round = 0; round < ROUNDS; round++) {
    struct tt_xml *seen[MOST_RANKS], *machine, *settled;
    struct tt_topology *t;
    for (int r = 0; r < nranks; r++) {
      struct tt_detect_gpu gpu = {.rank = r, .dev = r, .numa = tt_detect_numa_here(NULL)};
      struct tt_detect_net net = {.name = "net", .pci_path = argc > 2 ? argv[2] : NULL, .rail = -1, .plane = -1};
      struct tt_detect_request request = {.gpus = &gpu, .ngpus = 1, .nets = &net, .nnets = 1};
      double start = now();
      check(tt_topology_detect(&request, &seen[r], NULL));
      if (r == 0) detecting[round] = now() - start;
    }
    double start = now();
    check(tt_xml_create("bench", &machine));
    for (int r = 0; r < nranks; r++) {
      char *text;
      size_t bytes;
      struct tt_xml *heard;
      check(tt_topology_pack(seen[r], &text, &bytes));
      check(tt_topology_unpack(text, bytes, "bench", &heard));
      check(tt_topology_fuse(machine, heard));
      tt_xml_free(heard);
      free(text);
    }
    check(tt_topology_settle(machine, &settled));
    fusing[round] = now() - start;
    start = now();
    check(tt_topology_create(settled, &rules, 0, nranks, &t));
    building[round] = now() - start;
    tt_topology_free(t);
    for (int r = 0; r < nranks; r++) tt_xml_free(seen[r]);
    tt_xml_free(machine);
    tt_xml_free(settled);
  }
  print("detection by one rank", detecting);
  print("text of all ranks, read and fused", fusing);
  print("model and paths", building);
  return 0;
}
