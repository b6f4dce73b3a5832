/* What the writers of pictures share. */
#ifndef TOPO_PICTURE_H
#define TOPO_PICTURE_H

#include <stdio.h>
#include "draw.h"
#include "hops.h"
#include "layout.h"

struct topo_picture {
  const struct tt_topology *t;
  const struct topo_layout *layout;
  const struct topo_draw *what;
};

/* A text within XML or HTML, or within a JSON string of a page. Names come from files, and may be anything. */
void topo_put_text(FILE *out, const char *text);
void topo_put_json(FILE *out, const char *text);

/* The line that a hop follows, from box to box along links, as the "d" of an SVG path: empty if both ends are in one
 * device. Those of different GPUs run side by side, and so do both directions. */
ncclResult_t topo_put_route(FILE *out, const struct topo_picture *picture, int from, int to);

/* The machine with its legend, and the labels of its lines, which go over all, as the content of an <svg> of this size.
 * `tips`: boxes and lines have titles, which viewers show as tooltips; else they have them as data. */
void topo_svg_size(const struct topo_picture *picture, int *width, int *height);
void topo_put_machine(FILE *out, const struct topo_picture *picture, bool tips);
void topo_put_labels(FILE *out, const struct topo_picture *picture);
/* How links and boxes look. */
extern const char topo_style[];

ncclResult_t topo_write_svg(FILE *out, const struct topo_picture *picture);
ncclResult_t topo_write_html(FILE *out, const struct topo_picture *picture);

#endif
