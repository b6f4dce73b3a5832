/* tutti-topo draw: the machine as a picture (SVG), or as a page on which one steps through its graphs (HTML). */
#ifndef TOPO_DRAW_H
#define TOPO_DRAW_H

#include "graph/graph.h"
#include "topology/topology.h"

struct topo_draw {
  const char *name;               /* what the picture is called */
  const struct tt_xml *xml;       /* what the machine was made of; NULL: it tells no names */
  const char *svg, *html;         /* files to write; NULL: not */
  struct tt_graph *const *graphs; /* of TT_GRAPH_KINDS; NULL: there is none */
  int graph, channel; /* what the picture shows on the machine, and where the page begins; -1: the machine */
};

/* Writes the files, each as a whole or not at all. ncclInvalidUsage: there is no such channel, or a file cannot be
 * written there; ncclSystemError: writing failed. */
ncclResult_t topo_draw(const struct tt_topology *topology, const struct topo_draw *what);

#endif
