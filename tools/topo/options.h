/* The command line of tutti-topo. */
#ifndef TOPO_OPTIONS_H
#define TOPO_OPTIONS_H

#include <stdbool.h>

struct topo_options {
  const char *command, *file, *ends[2];
  bool here;         /* this machine, in place of a file */
  const char *sysfs; /* of --here */
  const char *ranks; /* the GPUs that take part, as a list; NULL: all */
  int rank;          /* -1: the lowest that takes part */
  int nodes;
  bool steps, links;
  int channel; /* -1: all */
  int graph;   /* enum tt_graph_kind; -1: all */
  const char *load, *dump;
  const char *svg, *html;
};

/* -1: go on; else the exit status, and what was to be said has been said. */
int topo_options_parse(struct topo_options *options, int argc, char **argv);

#endif
