/* Hosts in rows, and all that links devices to each other and CPUs to each other. See layout.h. */
#include "layout_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

/* Hosts first .. last of a row, where its CPUs and devices are, and room for what is computed of its links. */
struct row {
  int first, last;
  int cpu_top, bottom;
  struct topo_span *spans;
  int nspans;
  int *through, nthrough;
};

struct topo_line *topo_add_line(struct topo_plan *plan, int link)
{
  struct topo_layout *out = plan->out;
  const int reverse = plan->t->links[link].reverse;
  struct topo_line *line = &out->lines[out->nlines];
  *line = (struct topo_line){.link = link};
  out->line_of[link] = out->line_of[reverse] = out->nlines++;
  return line;
}

void topo_add_point(struct topo_line *line, int x, int y)
{
  line->points[line->npoints++] = (struct topo_point){x, y};
}

void topo_add_label(struct topo_plan *plan, int x, int y, bool centred, const char *text)
{
  struct topo_layout *out = plan->out;
  if (!text[0]) return;
  struct topo_label *label = &out->labels[out->nlabels++];
  *label = (struct topo_label){
      .line = out->nlines - 1, .x = x, .y = y, .w = topo_text_width(text, TOPO_TEXT), .h = LABEL, .centred = centred};
  snprintf(label->text, sizeof(label->text), "%s", text);
}

/* Where a host's CPUs go from left to right; returns the width of all. */
static int place_cpus(struct topo_plan *plan, int host, int x)
{
  const struct tt_topology *t = plan->t;
  const int left = x;
  for (int c = 0, previous = -1; c < t->count[TT_NODE_CPU]; c++) {
    const int cpu = tt_topology_node(t, TT_NODE_CPU, c);
    if (t->nodes[cpu].host != host) continue;
    if (previous >= 0) x += topo_cpu_gap(t, previous, cpu);
    plan->places[cpu].x = x;
    x += plan->places[cpu].w;
    previous = cpu;
  }
  return x - left;
}

/* Links of CPUs beyond their neighbours, which run above the row. */
static bool runs_above(const struct tt_topology *t, int link)
{
  const struct tt_node *from = &t->nodes[t->links[link].from], *to = &t->nodes[t->links[link].to];
  if (from->type != TT_NODE_CPU || to->type != TT_NODE_CPU || from->host != to->host) return false;
  for (int c = TT_MIN(from->index, to->index) + 1; c < TT_MAX(from->index, to->index); c++)
    if (t->nodes[tt_topology_node(t, TT_NODE_CPU, c)].host == from->host) return true;
  return false;
}

static bool runs_below(const struct tt_topology *t, int link)
{
  const enum tt_node_type from = t->nodes[t->links[link].from].type, to = t->nodes[t->links[link].to].type;
  return from == TT_NODE_DEV && (to == TT_NODE_DEV || to == TT_NODE_NVS);
}

/* Ports go from left to right by this. Links to the left have the left ones, to the right the right ones, the nearest
 * outermost; then none crosses another of the same node. What leads straight on is in the middle. */
static int port_order(const struct topo_plan *plan, int link)
{
  const struct tt_link *l = &plan->t->links[link];
  const int distance = plan->places[l->to].x - plan->places[l->from].x, far = 1 << 24;
  if (plan->t->nodes[l->to].type == TT_NODE_NVS) return 0;
  return distance < 0 ? -far - distance : far - distance;
}

static int port_of(const struct topo_plan *plan, int link, bool (*runs)(const struct tt_topology *, int))
{
  const struct tt_topology *t = plan->t;
  const struct tt_node *node = &t->nodes[t->links[link].from];
  const struct topo_place *place = &plan->places[t->links[link].from];
  const int own = port_order(plan, link);
  int before = 0, count = 0;
  for (int l = node->first_link; l < node->first_link + node->nlinks; l++) {
    if (!runs(t, l)) continue;
    const int other = port_order(plan, l);
    before += other < own || (other == own && l < link);
    count++;
  }
  return place->x + place->w * (before + 1) / (count + 1);
}

static bool in_row(const struct topo_plan *plan, const struct row *row, int node)
{
  const struct tt_node *n = &plan->t->nodes[node];
  return n->type == TT_NODE_NVS || (n->host >= row->first && n->host <= row->last);
}

/* The spans of a row's links, from left to right, and the ports of those that lead straight on. */
static void collect(const struct topo_plan *plan, struct row *row, bool (*runs)(const struct tt_topology *, int))
{
  const struct tt_topology *t = plan->t;
  row->nspans = row->nthrough = 0;
  for (int i = 0; i < t->nlinks; i++) {
    const struct tt_link *l = &t->links[i];
    char text[48];
    if (!runs(t, i) || !in_row(plan, row, l->from) || !in_row(plan, row, l->to)) continue;
    const int a = port_of(plan, i, runs);
    if (t->nodes[l->to].type == TT_NODE_NVS) {
      row->through[row->nthrough++] = a;
      continue;
    }
    const int b = port_of(plan, l->reverse, runs);
    if (a > b || (a == b && i > l->reverse)) continue;
    row->spans[row->nspans++] = (struct topo_span){
        .link = i, .a = a, .b = b, .label_w = topo_text_width(topo_link_text(t, i, text, sizeof(text)), TOPO_TEXT)};
  }
}

/* Lines along their tracks, which are counted from `y`, down (`step` positive) or up. */
static void draw_spans(struct topo_plan *plan, const struct row *row, int from_y, int y, int step)
{
  const struct tt_topology *t = plan->t;
  for (int i = 0; i < row->nspans; i++) {
    const struct topo_span *s = &row->spans[i];
    const int track_y = y + s->track * step;
    char text[48];
    struct topo_line *line = topo_add_line(plan, s->link);
    topo_add_point(line, s->a, from_y);
    topo_add_point(line, s->a, track_y);
    topo_add_point(line, s->b, track_y);
    topo_add_point(line, s->b, from_y);
    const int label_y = track_y - LABEL / 2 + (s->beside ? step / 2 : 0);
    topo_add_label(plan, s->label_x, label_y, true, topo_link_text(t, s->link, text, sizeof(text)));
  }
}

/* Between CPUs that are neighbours. */
static void draw_straight(struct topo_plan *plan, const struct row *row)
{
  const struct tt_topology *t = plan->t;
  char text[48];
  for (int i = 0; i < t->nlinks; i++) {
    const struct tt_link *l = &t->links[i];
    const struct tt_node *from = &t->nodes[l->from], *to = &t->nodes[l->to];
    if (l->type != TT_LINK_SYS || from->host != to->host || from->index > to->index || runs_above(t, i)) continue;
    if (!in_row(plan, row, l->from) || to->type != TT_NODE_CPU || from->type != TT_NODE_CPU) continue;
    const struct topo_place *a = &plan->places[l->from], *b = &plan->places[l->to];
    struct topo_line *line = topo_add_line(plan, i);
    topo_add_point(line, a->x + a->w, a->y + CPU_BAR / 2);
    topo_add_point(line, b->x, a->y + CPU_BAR / 2);
    topo_link_text(t, i, text, sizeof(text));
    topo_add_label(plan, (a->x + a->w + b->x - topo_text_width(text, TOPO_TEXT)) / 2, a->y + CPU_BAR / 2 - LABEL - 2,
                   true, text);
  }
}

/* The bar of the NVSwitches below a row, and what leads to it. Returns its bottom. */
static int draw_switches(struct topo_plan *plan, const struct row *row, int y)
{
  const struct tt_topology *t = plan->t;
  int left = plan->out->width, right = 0;
  char text[48];
  if (t->count[TT_NODE_NVS] == 0 || row->nthrough == 0) return y;
  const int nvs = tt_topology_node(t, TT_NODE_NVS, 0), top = y + GAP_Y;
  for (int l = t->nodes[nvs].first_link; l < t->nodes[nvs].first_link + t->nodes[nvs].nlinks; l++) {
    const int dev = t->links[l].to, up = t->links[l].reverse;
    if (t->nodes[dev].type != TT_NODE_DEV || !in_row(plan, row, dev)) continue;
    const int x = port_of(plan, up, runs_below);
    struct topo_line *line = topo_add_line(plan, up);
    topo_add_point(line, x, row->bottom);
    topo_add_point(line, x, top);
    topo_link_text(t, up, text, sizeof(text));
    topo_add_label(plan, x + 4, top - LABEL - 4, false, text);
    left = TT_MIN(left, plan->places[dev].x);
    right = TT_MAX(right, TT_MAX(plan->places[dev].x + plan->places[dev].w, x + 12 + topo_text_width(text, TOPO_TEXT)));
  }
  if (row->first > 0 || row->last + 1 < t->nhosts) left = MARGIN + SPINE; /* a bar of several, at their spine */
  topo_add_box(plan, TOPO_BAR, nvs, left, top, right - left, BAR);
  return top + BAR;
}

/* A row of hosts; returns its bottom. */
static int draw_row(struct topo_plan *plan, struct row *row, int left, int y)
{
  const struct tt_topology *t = plan->t;
  const bool frames = t->nhosts > 1;
  const int title = frames ? FRAME_TITLE : 0, pad = frames ? MARGIN : 0;
  for (int host = row->first, x = left; host <= row->last; host++)
    x += place_cpus(plan, host, x + pad) + 2 * pad + MARGIN;
  collect(plan, row, runs_above);
  const int above = topo_tracks(row->spans, row->nspans, NULL, 0) * TRACK;
  row->cpu_top = y + title + (above > 0 ? above + 6 : 0);
  row->bottom = topo_leaf_top(plan, row->cpu_top) + plan->leaf_h;
  draw_spans(plan, row, row->cpu_top, row->cpu_top - TRACK + 4, -TRACK);
  for (int host = row->first, x = left; host <= row->last; host++) {
    const int w = plan->host_w[host];
    topo_place_host(plan, host, row->cpu_top);
    if (frames) {
      struct topo_box *box = topo_add_box(plan, TOPO_FRAME, -1, x, y, w, row->bottom + MARGIN - y);
      snprintf(box->title, sizeof(box->title), "Host %d", host);
    }
    x += w + MARGIN;
    plan->out->width = TT_MAX(plan->out->width, x);
  }
  draw_straight(plan, row);
  const int below = row->bottom + pad;
  collect(plan, row, runs_below);
  const int ntracks = topo_tracks(row->spans, row->nspans, row->through, row->nthrough);
  draw_spans(plan, row, row->bottom, below + TRACK, TRACK);
  return draw_switches(plan, row, below + ntracks * TRACK + (ntracks > 0 ? TRACK / 2 : 0));
}

/* How many hosts stand side by side: so that the picture is half as wide again as it is high, or nearly. */
static int choose_columns(const struct topo_plan *plan)
{
  const int nhosts = plan->t->nhosts;
  const int64_t row_h = topo_leaf_top(plan, 0) + plan->leaf_h + 2 * MARGIN + FRAME_TITLE + 2 * GAP_Y + BAR;
  int64_t best = 0;
  int chosen = 1;
  for (int columns = 1; columns <= nhosts; columns++) {
    int64_t w = 0, h = row_h * ((nhosts + columns - 1) / columns);
    for (int first = 0; first < nhosts; first += columns) {
      int64_t row_w = 0;
      for (int host = first; host < TT_MIN(first + columns, nhosts); host++) row_w += plan->host_w[host] + MARGIN;
      w = TT_MAX(w, row_w);
    }
    const int64_t ratio = 1000 * TT_MAX(2 * w, 3 * h) / TT_MIN(2 * w, 3 * h);
    if (columns > 1 && ratio >= best) continue;
    best = ratio;
    chosen = columns;
  }
  return chosen;
}

/* What no rule above has drawn: straight from middle to middle, behind the boxes. */
static void draw_rest(struct topo_plan *plan)
{
  const struct tt_topology *t = plan->t;
  struct topo_layout *out = plan->out;
  for (int i = 0; i < t->nlinks; i++) {
    const struct tt_link *l = &t->links[i];
    if (out->line_of[i] >= 0 || plan->places[l->from].up == l->to || plan->places[l->to].up == l->from) continue;
    const struct topo_box *a = &out->boxes[out->box_of[l->from]], *b = &out->boxes[out->box_of[l->to]];
    struct topo_line *line = topo_add_line(plan, i);
    topo_add_point(line, a->x + a->w / 2, a->y + a->h / 2);
    topo_add_point(line, b->x + b->w / 2, b->y + b->h / 2);
    line->behind = true;
  }
}

static void draw_all(struct topo_plan *plan, struct row *row)
{
  const struct tt_topology *t = plan->t;
  struct topo_layout *out = plan->out;
  const int columns = choose_columns(plan), nhosts = TT_MAX(1, t->nhosts);
  const bool spine = columns < nhosts && t->count[TT_NODE_NVS] > 0;
  int y = MARGIN, spine_top = -1, spine_bottom = 0;
  for (row->first = 0; row->first < nhosts; row->first = row->last + 1) {
    row->last = TT_MIN(row->first + columns, nhosts) - 1;
    const int nboxes = out->nboxes;
    const int bottom = draw_row(plan, row, MARGIN + (spine ? SPINE + MARGIN : 0), y);
    const struct topo_box *bar = &out->boxes[out->nboxes - 1];
    if (spine && out->nboxes > nboxes && bar->shape == TOPO_BAR && t->nodes[bar->node].type == TT_NODE_NVS) {
      if (spine_top < 0) spine_top = bar->y;
      spine_bottom = bar->y + bar->h;
    }
    y = TT_MAX(bottom, row->bottom + (t->nhosts > 1 ? MARGIN : 0)) + MARGIN + (spine ? MARGIN / 2 : 0);
  }
  if (spine_top >= 0) topo_add_box(plan, TOPO_BAR, -1, MARGIN, spine_top, SPINE, spine_bottom - spine_top);
  for (int i = 0; i < out->nboxes; i++) out->width = TT_MAX(out->width, out->boxes[i].x + out->boxes[i].w + MARGIN);
  out->height = y;
  draw_rest(plan);
}

ncclResult_t topo_layout_create(const struct tt_topology *t, struct topo_layout **layout)
{
  struct topo_plan plan = {.t = t};
  struct row row = {0};
  ncclResult_t result;
  const size_t nnodes = (size_t)t->nnodes, nlinks = (size_t)t->nlinks + 1, nhosts = (size_t)TT_MAX(1, t->nhosts);
  *layout = NULL;
  TT_TRY_GOTO(TT_CALLOC(&plan.out, 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.out->boxes, nnodes + 2 * nhosts + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.out->lines, nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.out->labels, nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.out->box_of, nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.out->line_of, nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.places, nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.order, nnodes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&plan.host_w, nhosts), result, out);
  TT_TRY_GOTO(TT_CALLOC(&row.spans, nlinks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&row.through, nlinks), result, out);
  memset(plan.out->box_of, 0xff, nnodes * sizeof(*plan.out->box_of));
  memset(plan.out->line_of, 0xff, nlinks * sizeof(*plan.out->line_of));
  TT_TRY_GOTO(topo_plan_tree(&plan), result, out);
  for (int host = 0; host < t->nhosts; host++)
    plan.host_w[host] = place_cpus(&plan, host, 0) + (t->nhosts > 1 ? 2 * MARGIN : 0);
  draw_all(&plan, &row);
  *layout = plan.out;
out:
  if (result != ncclSuccess) topo_layout_free(plan.out);
  free(plan.places);
  free(plan.order);
  free(plan.host_w);
  free(row.spans);
  free(row.through);
  return result;
}

void topo_layout_free(struct topo_layout *layout)
{
  if (!layout) return;
  free(layout->boxes);
  free(layout->lines);
  free(layout->labels);
  free(layout->box_of);
  free(layout->line_of);
  free(layout);
}
