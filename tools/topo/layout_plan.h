/* What the files of the layout share: the tree of the machine while places are found. See layout.h. */
#ifndef TOPO_LAYOUT_PLAN_H
#define TOPO_LAYOUT_PLAN_H

#include "layout.h"

enum {
  MARGIN = 16,
  GAP_X = 10,   /* between neighbours of a tree */
  GAP_Y = 32,   /* between levels: room for a label */
  PAD = 6,      /* inside holders */
  ROW = 14,     /* a row of small text */
  LABEL = 14,   /* the height of a label */
  TRACK = 18,   /* from track to track */
  PORT = 10,    /* from port to port of a device, at least */
  BAR = 26,     /* heights of bars */
  CPU_BAR = 44, /* with two lines of text */
  CHIP = 24,
  RAIL = 8,  /* from the edge of a stack of NICs to its rail */
  STUB = 44, /* from there to the NIC: room for a label */
  FRAME_TITLE = 24,
  SPINE = 16
};

/* A node of the tree. */
struct topo_place {
  int up, via;           /* parent and the link from it; -1: a CPU */
  int first, last, next; /* children and next sibling */
  int depth;             /* a CPU: 0 */
  int w, h;              /* a bar's is that of all below it */
  int x, y;
  int nics; /* children that are NICs; two or more are stacked */
  int stack_columns, stack_rows, stack_w, stack_h, nic_w;
  int columns, chip_w; /* of the chips of a holder */
  int ports;           /* links at the bottom of a holder, or at the top of a CPU */
  int direct;          /* link of a DEV to its CPU beside the tree; -1: none */
  int lanes;           /* width that such links of those below take, left of a child of a CPU */
};

struct topo_plan {
  const struct tt_topology *t;
  struct topo_layout *out;
  struct topo_place *places; /* of each node */
  int *order;                /* nodes from CPU to CPU, parents before children */
  int norder;
  int levels;  /* bridges on the longest way down */
  int leaf_h;  /* of the row of devices */
  int jogs;    /* tracks above that row, for links of devices to their CPU beside the tree */
  int *host_w; /* of each host, its frame included */
};

/* layout_tree.c: the tree and the size of everything in it. */
ncclResult_t topo_plan_tree(struct topo_plan *plan);
/* layout_place.c: places what a host's CPUs hold, and the lines of its tree. The CPUs' left edges are known, their top
 * is at y. */
void topo_place_host(struct topo_plan *plan, int host, int y);
/* Room between the bars of two CPUs that are neighbours: for the label of a link. */
int topo_cpu_gap(const struct tt_topology *t, int cpu, int next);
int topo_link_between(const struct tt_topology *t, int from, int to, enum tt_link_type type); /* -1: none */
/* The top of the row of devices, for CPUs whose top is at y. */
int topo_leaf_top(const struct topo_plan *plan, int y);

/* Spans of tracks: horizontal runs from port to port, of which none may touch another on the same track. */
struct topo_span {
  int link, a, b;       /* ports, a < b */
  int label_w, label_x; /* the label, which may stick out of a short run */
  bool beside;          /* the label would hide the whole run, and has the next track to itself */
  int track;
};
/* layout_tracks.c: gives each span the nearest free track, and its label a free place; returns the number of tracks.
 * `through` are ports that cross all tracks. */
int topo_tracks(struct topo_span *spans, int nspans, const int *through, int nthrough);

/* Appends; the layout has room for all that may come. */
struct topo_box *topo_add_box(struct topo_plan *plan, enum topo_shape shape, int node, int x, int y, int w, int h);
struct topo_line *topo_add_line(struct topo_plan *plan, int link);
void topo_add_point(struct topo_line *line, int x, int y);
void topo_add_label(struct topo_plan *plan, int x, int y, bool centred, const char *text); /* of the last line */
/* A link's bandwidth as text, "18 x 20.6" for several NVLinks; empty if it is no bottleneck. Returns `text`. */
const char *topo_link_text(const struct tt_topology *t, int link, char *text, size_t size);

#endif
