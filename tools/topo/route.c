/* Lines along the links of a path. See picture.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "picture.h"

struct route {
  const struct topo_layout *layout;
  struct topo_point *points;
  int count, lane;
};

static void add(struct route *r, int x, int y)
{
  if (r->count > 0 && r->points[r->count - 1].x == x && r->points[r->count - 1].y == y) return;
  if (r->count > 1) { /* straight on */
    struct topo_point *last = &r->points[r->count - 1], *before = last - 1;
    if ((before->x == x && last->x == x && (y > last->y) == (last->y > before->y)) ||
        (before->y == y && last->y == y && (x > last->x) == (last->x > before->x))) {
      *last = (struct topo_point){x, y};
      return;
    }
  }
  r->points[r->count++] = (struct topo_point){x, y};
}

/* The box of a node on whose edge a point lies: the NVSwitches have several. */
static const struct topo_box *box_at(const struct topo_layout *layout, int node, struct topo_point p)
{
  for (int i = layout->box_of[node]; i < layout->nboxes; i++) {
    const struct topo_box *box = &layout->boxes[i];
    if (box->node == node && p.x >= box->x && p.x <= box->x + box->w && p.y >= box->y && p.y <= box->y + box->h)
      return box;
  }
  return &layout->boxes[layout->box_of[node]];
}

/* The height at which a line crosses a box that it enters at p: above or below the text. */
static int crossing(const struct route *r, const struct topo_box *box, struct topo_point p)
{
  if (box->shape == TOPO_HOLDER) return p.y > box->y + box->h / 2 ? box->y + box->h - 3 : box->y + 3;
  const int lanes[] = {3, box->h - 4, 6, box->h - 7};
  return box->y + lanes[r->lane % (int)TT_COUNT(lanes)];
}

/* Through a box, from where the last line came in to where the next leaves. */
static void cross(struct route *r, int node, struct topo_point q)
{
  const struct topo_point p = r->points[r->count - 1];
  const struct topo_box *in = box_at(r->layout, node, p), *out = box_at(r->layout, node, q);
  if (p.x == q.x && in == out) return;
  const int in_y = crossing(r, in, p), out_y = crossing(r, out, q);
  const bool side_in = p.x == in->x || p.x == in->x + in->w, side_out = q.x == out->x || q.x == out->x + out->w;
  if (in != out) { /* by the spine */
    const int x = in->x - 4 - r->lane % 3 * 4;
    add(r, p.x, in_y);
    add(r, x, in_y);
    add(r, x, out_y);
    add(r, q.x, out_y);
  } else if (side_in) {
    add(r, q.x, p.y);
  } else if (side_out) {
    add(r, p.x, q.y);
  } else {
    add(r, p.x, in_y);
    add(r, q.x, in_y);
  }
}

static void follow(struct route *r, const struct tt_topology *t, int link)
{
  if (r->layout->line_of[link] < 0) return;
  const struct topo_line *line = &r->layout->lines[r->layout->line_of[link]];
  const bool forward = line->link == link;
  if (r->count > 0) cross(r, t->links[link].from, line->points[forward ? 0 : line->npoints - 1]);
  for (int i = 0; i < line->npoints; i++) {
    const struct topo_point p = line->points[forward ? i : line->npoints - 1 - i];
    add(r, p.x, p.y);
  }
}

static int sign(int value)
{
  return (value > 0) - (value < 0);
}

/* Each run moves to its right, so that both directions are seen. */
static void put(FILE *out, const struct route *r)
{
  for (int i = 0; i < r->count; i++) {
    const struct topo_point p = r->points[i];
    int dx = 0, dy = 0;
    if (i > 0) {
      dx -= sign(p.y - r->points[i - 1].y);
      dy += sign(p.x - r->points[i - 1].x);
    }
    if (i + 1 < r->count) {
      const int next_x = -sign(r->points[i + 1].y - p.y), next_y = sign(r->points[i + 1].x - p.x);
      if (next_x != dx) dx += next_x;
      if (next_y != dy) dy += next_y;
    }
    fprintf(out, "%c%d %d", i == 0 ? 'M' : 'L', p.x + 3 * dx, p.y + 3 * dy);
  }
}

ncclResult_t topo_put_route(FILE *out, const struct topo_picture *picture, int from, int to)
{
  const struct tt_topology *t = picture->t;
  const struct tt_path *path = tt_topology_path(t, from, to);
  struct route r = {.layout = picture->layout, .lane = t->nodes[from].index};
  TT_TRY(TT_CALLOC(&r.points, (size_t)path->hops * 8 + 1));
  for (int s = path->first; s >= 0; s = t->steps[s].next) follow(&r, t, t->steps[s].link);
  put(out, &r);
  free(r.points);
  return ncclSuccess;
}
