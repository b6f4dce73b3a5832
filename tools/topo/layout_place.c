/* Places of what hangs off the CPUs of a host, from the sizes that layout_tree.c found. See layout_plan.h. */
#include "layout_plan.h"

#include "base/check.h"

int topo_link_between(const struct tt_topology *t, int from, int to, enum tt_link_type type)
{
  for (int l = t->nodes[from].first_link; l < t->nodes[from].first_link + t->nodes[from].nlinks; l++)
    if (t->links[l].to == to && t->links[l].type == type) return l;
  return -1;
}

int topo_cpu_gap(const struct tt_topology *t, int cpu, int next)
{
  char text[48];
  int link = topo_link_between(t, cpu, next, TT_LINK_SYS);
  return link < 0 ? 3 * GAP_X : 24 + topo_text_width(topo_link_text(t, link, text, sizeof(text)), TOPO_TEXT);
}

int topo_leaf_top(const struct topo_plan *plan, int y)
{
  return y + CPU_BAR + GAP_Y + plan->levels * (BAR + GAP_Y) + plan->jogs * LABEL;
}

static int parent_bottom(const struct topo_plan *plan, const struct topo_place *place)
{
  return plan->places[place->up].y + plan->places[place->up].h;
}

/* A line straight down from the parent, its label beside it above the child. */
static void drop(struct topo_plan *plan, int link, int x, int from_y, int to_y)
{
  char text[48];
  struct topo_line *line = topo_add_line(plan, link);
  topo_add_point(line, x, from_y);
  topo_add_point(line, x, to_y);
  topo_add_label(plan, x + 4, to_y - LABEL - 4, false, topo_link_text(plan->t, link, text, sizeof(text)));
}

static void place_chips(struct topo_plan *plan, int node, int holder)
{
  const struct topo_place *place = &plan->places[node];
  int i = 0, y = place->y + PAD + ROW * (plan->t->nodes[node].type == TT_NODE_DEV ? 2 : 1) + 4;
  for (int c = place->first; c >= 0; c = plan->places[c].next, i++) {
    int column = i % place->columns, row = i / place->columns;
    topo_add_box(plan, TOPO_CHIP, c, place->x + PAD + column * (place->chip_w + PAD), y + row * (CHIP + 4),
                 place->chip_w, CHIP)
        ->inside = holder;
  }
}

static void place_holder(struct topo_plan *plan, int node)
{
  struct topo_place *place = &plan->places[node];
  int holder = plan->out->nboxes;
  topo_add_box(plan, TOPO_HOLDER, node, place->x, place->y, place->w, place->h);
  place_chips(plan, node, holder);
}

/* The link of a device to its CPU beside the tree: beside the other one where that leads to the CPU too; else down a
 * lane that passes all bridges, and along a track above the devices. */
static void place_direct(struct topo_plan *plan, int node, int cpu_bottom, int *lane, int jog_y)
{
  char text[48];
  const struct topo_place *place = &plan->places[node];
  if (place->depth == 1) {
    int up = topo_text_width(topo_link_text(plan->t, place->via, text, sizeof(text)), TOPO_TEXT);
    drop(plan, plan->t->links[place->direct].reverse, place->x + 8 + up + 12, cpu_bottom, place->y);
    return;
  }
  topo_link_text(plan->t, place->direct, text, sizeof(text));
  struct topo_line *line = topo_add_line(plan, plan->t->links[place->direct].reverse);
  topo_add_point(line, *lane, cpu_bottom);
  topo_add_point(line, *lane, jog_y);
  topo_add_point(line, place->x + place->w - 8, jog_y);
  topo_add_point(line, place->x + place->w - 8, place->y);
  topo_add_label(plan, *lane + 4, cpu_bottom + 8, false, text);
  *lane += 16 + topo_text_width(text, TOPO_TEXT);
}

static void place_stack(struct topo_plan *plan, int node, int x, int leaf_top)
{
  const struct topo_place *bar = &plan->places[node];
  int row = 0, y = leaf_top;
  for (int c = bar->first; c >= 0; c = plan->places[c].next) {
    struct topo_place *place = &plan->places[c];
    char text[48];
    if (plan->t->nodes[c].type != TT_NODE_NIC) continue;
    if (row == bar->stack_rows) {
      row = 0;
      y = leaf_top;
      x += RAIL + STUB + bar->nic_w + GAP_X;
    }
    place->x = x + RAIL + STUB;
    place->y = y;
    place->chip_w += (bar->nic_w - place->w) / place->columns;
    place->w = bar->nic_w;
    place_holder(plan, c);
    struct topo_line *line = topo_add_line(plan, place->via);
    topo_add_point(line, x + RAIL, bar->y + bar->h);
    topo_add_point(line, x + RAIL, y + place->h / 2);
    topo_add_point(line, place->x, y + place->h / 2);
    topo_add_label(plan, x + RAIL + 4, y + place->h / 2 - LABEL - 2, false,
                   topo_link_text(plan->t, place->via, text, sizeof(text)));
    y += place->h + GAP_X;
    row++;
  }
}

/* Where the children of a bar go; the row of devices ends at the bottom of the highest. */
static void place_children(struct topo_plan *plan, int node, int leaf_top)
{
  const struct topo_place *bar = &plan->places[node];
  const bool stack = bar->nics >= 2;
  int content = stack ? bar->stack_w + GAP_X : 0;
  for (int c = bar->first; c >= 0; c = plan->places[c].next)
    if (!stack || plan->t->nodes[c].type != TT_NODE_NIC) content += plan->places[c].w + plan->places[c].lanes + GAP_X;
  int x = bar->x + (bar->w - (content - GAP_X)) / 2;
  for (int c = bar->first; c >= 0; c = plan->places[c].next) {
    struct topo_place *place = &plan->places[c];
    const enum tt_node_type type = plan->t->nodes[c].type;
    if (stack && type == TT_NODE_NIC) continue;
    place->x = x + place->lanes;
    place->y = type == TT_NODE_PCI   ? bar->y + bar->h + GAP_Y
               : type == TT_NODE_NIC ? leaf_top
                                     : leaf_top + plan->leaf_h - place->h;
    x = place->x + place->w + GAP_X;
  }
  if (stack) place_stack(plan, node, x, leaf_top);
}

static void place_node(struct topo_plan *plan, int node, int leaf_top)
{
  const enum tt_node_type type = plan->t->nodes[node].type;
  const struct topo_place *place = &plan->places[node];
  if (type == TT_NODE_GPU || type == TT_NODE_NET) return; /* chips */
  const bool stacked = type == TT_NODE_NIC && plan->places[place->up].nics >= 2;
  if (stacked) return;
  if (place->up >= 0) {
    int x = place->direct >= 0 && place->depth == 1 ? place->x + 8 : place->x + place->w / 2;
    drop(plan, place->via, x, parent_bottom(plan, place), place->y);
  }
  if (type == TT_NODE_DEV || type == TT_NODE_NIC) {
    place_holder(plan, node);
    return;
  }
  topo_add_box(plan, TOPO_BAR, node, place->x, place->y, place->w, place->h);
  place_children(plan, node, leaf_top);
}

void topo_place_host(struct topo_plan *plan, int host, int y)
{
  const int leaf_top = topo_leaf_top(plan, y);
  int lane = 0, jog = 0;
  for (int i = 0; i < plan->norder; i++) {
    const int node = plan->order[i];
    struct topo_place *place = &plan->places[node];
    if (plan->t->nodes[node].host != host) continue;
    if (place->up < 0) place->y = y;
    if (place->depth == 1) {
      lane = place->x - place->lanes + 4;
      jog = 0;
    }
    place_node(plan, node, leaf_top);
    if (place->direct >= 0)
      place_direct(plan, node, y + CPU_BAR, &lane, leaf_top - GAP_Y + 4 - (place->depth > 1 ? jog++ : 0) * LABEL);
  }
}
