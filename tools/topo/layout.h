/* Where everything of a machine's picture goes: boxes, lines and labels with coordinates, in pixels. Nothing here knows
 * in which form the picture is written, and the same machine always gets the same picture.
 *
 * Each CPU is a bar with its PCI tree below: bridges are bars that span what hangs off them, so that links are straight
 * lines down; devices stand in one row. A device holds its GPUs or NETs. Links between CPUs run above, links between
 * GPUs below, and below these is the bar of the NVSwitches. Hosts, where there are several, are frames in rows. */
#ifndef TOPO_LAYOUT_H
#define TOPO_LAYOUT_H

#include <stdbool.h>
#include "topology/topology.h"

enum topo_shape {
  TOPO_FRAME,  /* a host */
  TOPO_BAR,    /* a CPU, a bridge, the NVSwitches */
  TOPO_HOLDER, /* a GPU or NIC in its slot */
  TOPO_CHIP    /* a rank or NET, inside a holder */
};

struct topo_box {
  enum topo_shape shape;
  int node;   /* -1: a host's frame, or the spine between the bars of the NVSwitches */
  int inside; /* the box that holds this; -1: none. A frame holds nothing in this sense */
  int x, y, w, h;
  bool faint; /* known, but not used: a GPU of another domain, a NET that was listed before */
  char title[48], detail[80];
};

struct topo_point {
  int x, y;
};

struct topo_line {
  int link; /* one of its two directions; the points lead from its `from` to its `to` */
  int npoints;
  struct topo_point points[4];
  bool behind; /* it runs behind boxes, straight and without a label */
};

struct topo_label {
  int line;
  int x, y, w, h;
  bool centred; /* else the text begins at the left edge */
  char text[48];
};

struct topo_layout {
  int width, height;
  struct topo_box *boxes;
  struct topo_line *lines;
  struct topo_label *labels;
  int nboxes, nlines, nlabels;
  int *box_of;  /* of each node: its first box */
  int *line_of; /* of each link, in both directions; -1: none, as it is inside a device */
};

ncclResult_t topo_layout_create(const struct tt_topology *topology, struct topo_layout **layout);
void topo_layout_free(struct topo_layout *layout); /* NULL is allowed */

/* Sizes of text, in pixels, and how wide a text is at most in the fonts that pictures use. */
enum { TOPO_SMALL = 10, TOPO_TEXT = 11, TOPO_LARGE = 13 };
int topo_text_width(const char *text, int size);

#endif
