/* Reads the files that say what NCCL finds on a machine, and says the same of a topology in the same words. */
#ifndef TEST_EXPECTED_H
#define TEST_EXPECTED_H

#include <stdbool.h>
#include "topology/topology.h"

/* One section: what holds for so many copies of the machine, with one variable set or none. */
struct expected {
  int nodes;
  char name[64], value[64]; /* "": none */
  bool error;               /* NCCL refuses the file */
  int nranks, inter;        /* -1: the section does not say */
  float max_bandwidth, total_bandwidth;
  char **paths; /* its lines; without the word "path" */
  int npaths, room;
};

/* All sections of a file, or NULL with a message on stderr. */
struct expected *expected_read(const char *path, int *count);
void expected_free(struct expected *sections, int count);

/* The lines for a topology, in the same order. */
char **expected_lines(const struct tt_topology *t, int *count);
void expected_free_lines(char **lines, int count);
/* Whether two lines agree but for the number of hops; *hops counts those that differ. */
bool expected_same(const char *a, const char *b, int *hops);

#endif
