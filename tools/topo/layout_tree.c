/* The tree of a machine and the size of everything in it. See layout_plan.h. */
#include "layout_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "topology/draft.h"
#include "topology/walk.h"

int topo_text_width(const char *text, int size)
{
  return ((int)strlen(text) * size * (size >= TOPO_LARGE ? 70 : 63) + 99) / 100;
}

const char *topo_link_text(const struct tt_topology *t, int link, char *text, size_t size)
{
  const struct tt_link *l = &t->links[link];
  text[0] = 0;
  if (l->bandwidth >= TT_LOCAL_BANDWIDTH) return text;
  int dev = t->nodes[l->from].type == TT_NODE_DEV ? l->from : l->to;
  const float one = tt_speed_nvlink(t->nodes[dev].gpu.sm), count = roundf(l->bandwidth / one);
  /* Sums of parts may be a little off. */
  if (l->type == TT_LINK_NVL && count >= 2 && count < 1000 && fabsf(count * one - l->bandwidth) < one / 1000)
    snprintf(text, size, "%.0f x %.4g", (double)count, (double)one);
  else
    snprintf(text, size, "%.4g", (double)l->bandwidth);
  return text;
}

static void add_child(struct topo_plan *plan, int up, int node, int via)
{
  struct topo_place *parent = &plan->places[up], *place = &plan->places[node];
  place->up = up;
  place->via = via;
  place->depth = parent->depth + 1;
  if (parent->first < 0)
    parent->first = node;
  else
    plan->places[parent->last].next = node;
  parent->last = node;
  parent->nics += plan->t->nodes[node].type == TT_NODE_NIC;
}

static void grow_tree(struct topo_plan *plan)
{
  const struct tt_topology *t = plan->t;
  for (int c = 0; c < t->count[TT_NODE_CPU]; c++) {
    struct tt_topology_walk walk;
    const int cpu = tt_topology_node(t, TT_NODE_CPU, c);
    plan->order[plan->norder++] = cpu;
    tt_topology_walk_begin(&walk, t, cpu);
    for (int down; (down = tt_topology_walk_next(&walk)) >= 0;) {
      add_child(plan, t->links[down].from, walk.node, down);
      plan->order[plan->norder++] = walk.node;
    }
  }
}

/* Links of a device that do not follow the tree: one to its CPU, and those that leave at its bottom. */
static void count_links(struct topo_plan *plan, int node)
{
  const struct tt_topology *t = plan->t;
  struct topo_place *place = &plan->places[node];
  for (int l = t->nodes[node].first_link; l < t->nodes[node].first_link + t->nodes[node].nlinks; l++) {
    const enum tt_node_type to = t->nodes[t->links[l].to].type;
    if (tt_topology_walks_along(t, &t->links[l])) continue;
    if (to == TT_NODE_CPU && t->nodes[node].type == TT_NODE_DEV && place->direct < 0)
      place->direct = l;
    else if (to == TT_NODE_DEV || to == TT_NODE_NVS || to == TT_NODE_CPU)
      place->ports++;
  }
}

static int link_width(const struct tt_topology *t, int link)
{
  char text[48];
  return topo_text_width(topo_link_text(t, link, text, sizeof(text)), TOPO_TEXT);
}

/* The bus id as people write it: without the domain where that is 0. */
static const char *bus_of(const struct tt_topology *t, int node, char *text, size_t size)
{
  const uint64_t id = t->nodes[node].id & (((uint64_t)1 << 40) - 1);
  const int unit = (int)(id & 0xf), slot = (int)(id >> 4 & 0xff), bus = (int)(id >> 12 & 0xff),
            domain = (int)(id >> 20);
  if (domain == 0)
    snprintf(text, size, "%02x:%02x.%x", (unsigned)bus, (unsigned)slot, (unsigned)unit);
  else
    snprintf(text, size, "%04x:%02x:%02x.%x", (unsigned)domain, (unsigned)bus, (unsigned)slot, (unsigned)unit);
  return text;
}

static void describe_cpu(const struct tt_node *node, char *text, size_t size)
{
  static const char *const archs[] = {"", "x86_64", "ppc64", "arm64"}, *const vendors[] = {"", " Intel", " AMD",
                                                                                           " Zhaoxin"};
  int used = snprintf(text, size, "%s%s", archs[node->cpu.arch], vendors[node->cpu.vendor]);
  if (CPU_COUNT(&node->cpu.cpus) > 0)
    snprintf(text + used, size - (size_t)used, "%s%d processors", used > 0 ? ", " : "", CPU_COUNT(&node->cpu.cpus));
}

/* What a node's box says; hosts are told by their frames. */
static void describe(const struct tt_topology *t, int node, char title[48], char detail[80])
{
  char bus[24];
  const struct tt_node *n = &t->nodes[node];
  title[0] = detail[0] = 0;
  switch (n->type) {
  case TT_NODE_CPU:
    if (n->id == ~(uint64_t)0)
      snprintf(title, 48, "CPU");
    else
      snprintf(title, 48, "CPU %llu", (unsigned long long)n->id);
    describe_cpu(n, detail, 80);
    break;
  case TT_NODE_PCI:
    snprintf(title, 48, "PCI %s", bus_of(t, node, bus, sizeof(bus)));
    break;
  case TT_NODE_DEV:
    snprintf(title, 48, "%s", bus_of(t, node, bus, sizeof(bus)));
    snprintf(detail, 80, "sm %d", n->gpu.sm);
    break;
  case TT_NODE_NIC:
    if (n->id >> 56 || n->id == 0) /* on no bus */
      snprintf(title, 48, "NIC");
    else
      snprintf(title, 48, "NIC %s", bus_of(t, node, bus, sizeof(bus)));
    break;
  case TT_NODE_GPU:
    snprintf(title, 48, "GPU %d", n->gpu.rank);
    break;
  case TT_NODE_NET:
    snprintf(title, 48, "NET %d", n->net.dev);
    snprintf(detail, 80, "%.4g", (double)n->net.bandwidth);
    break;
  default:
    snprintf(title, 48, "%s", tt_topology_name_node(n->type));
  }
}

static void measure_holder(struct topo_plan *plan, int node)
{
  char title[48], detail[80];
  struct topo_place *place = &plan->places[node];
  const bool dev = plan->t->nodes[node].type == TT_NODE_DEV;
  int nchips = 0;
  place->chip_w = 0;
  for (int c = place->first; c >= 0; c = plan->places[c].next, nchips++) {
    describe(plan->t, c, title, detail);
    int w = 2 * PAD + topo_text_width(title, dev ? TOPO_LARGE : TOPO_TEXT);
    if (detail[0]) w += 2 * PAD + topo_text_width(detail, TOPO_TEXT);
    place->chip_w = TT_MAX(place->chip_w, w);
  }
  place->columns = TT_MAX(1, (nchips + 4) / 5);
  const int rows = dev && nchips == 0 ? 1 : (nchips + place->columns - 1) / place->columns;
  describe(plan->t, node, title, detail);
  int w = TT_MAX(topo_text_width(title, TOPO_SMALL), place->columns * (place->chip_w + PAD) - PAD);
  if (dev) w = TT_MAX(w, topo_text_width("0000:00", TOPO_LARGE));
  w = TT_MAX(w + 2 * PAD, (place->ports + 1) * PORT);
  /* Labels stand right of the lines that come in from above. */
  int above = place->via >= 0 ? link_width(plan->t, place->via) : 0;
  if (place->direct >= 0) above += 16 + link_width(plan->t, place->direct);
  w = TT_MAX(w, place->direct >= 0 ? above + 24 : 2 * above + 12);
  place->w = (w + 1) / 2 * 2;
  place->h = 2 * PAD + ROW * (dev ? 2 : 1) + rows * (CHIP + 4);
  place->chip_w = (place->w - 2 * PAD - (place->columns - 1) * PAD) / place->columns;
}

/* NICs below one bar stand in columns beside rails. */
static void measure_stack(struct topo_plan *plan, int node)
{
  struct topo_place *place = &plan->places[node];
  int row = 0, column_h = 0;
  if (place->nics < 2) return;
  place->stack_rows = place->nics <= 16 ? TT_MIN(place->nics, 4) : 6;
  place->stack_columns = (place->nics + place->stack_rows - 1) / place->stack_rows;
  place->nic_w = place->stack_h = 0;
  for (int c = place->first; c >= 0; c = plan->places[c].next) {
    if (plan->t->nodes[c].type != TT_NODE_NIC) continue;
    if (row++ % place->stack_rows == 0) column_h = -GAP_X;
    place->nic_w = TT_MAX(place->nic_w, plan->places[c].w);
    column_h += plan->places[c].h + GAP_X;
    place->stack_h = TT_MAX(place->stack_h, column_h);
  }
  place->stack_w = place->stack_columns * (RAIL + STUB + place->nic_w + GAP_X) - GAP_X;
  plan->leaf_h = TT_MAX(plan->leaf_h, place->stack_h);
}

/* Lanes for links beside the tree of the devices below a child of a CPU; a device that is such a child needs none. */
static void measure_lanes(struct topo_plan *plan, int top, int node)
{
  struct topo_place *place = &plan->places[node];
  if (place->direct < 0 || top == node) return;
  plan->places[top].lanes += 16 + link_width(plan->t, place->direct);
}

static void measure_bar(struct topo_plan *plan, int node)
{
  char title[48], detail[80];
  struct topo_place *place = &plan->places[node];
  measure_stack(plan, node);
  int w = place->nics >= 2 ? place->stack_w + GAP_X : 0;
  for (int c = place->first; c >= 0; c = plan->places[c].next) {
    const bool nic = plan->t->nodes[c].type == TT_NODE_NIC;
    if (nic && place->nics >= 2) continue;
    w += plan->places[c].w + plan->places[c].lanes + GAP_X;
    if (plan->t->nodes[c].type != TT_NODE_PCI) plan->leaf_h = TT_MAX(plan->leaf_h, plan->places[c].h);
  }
  describe(plan->t, node, title, detail);
  const bool cpu = place->up < 0;
  int own = TT_MAX(topo_text_width(title, cpu ? TOPO_LARGE : TOPO_TEXT), topo_text_width(detail, TOPO_TEXT)) + 4 * PAD;
  if (!cpu) own = TT_MAX(own, 2 * link_width(plan->t, place->via) + 24);
  own = TT_MAX(own, (place->ports + 1) * PORT);
  place->w = (TT_MAX(own, w - GAP_X) + 1) / 2 * 2;
  place->h = cpu ? CPU_BAR : BAR;
  if (!cpu) plan->levels = TT_MAX(plan->levels, place->depth);
}

/* The child of a CPU above a node, or itself; -1: the CPU. */
static int top_of(const struct topo_plan *plan, int node)
{
  if (plan->places[node].up < 0) return -1;
  while (plan->places[plan->places[node].up].up >= 0) node = plan->places[node].up;
  return node;
}

ncclResult_t topo_plan_tree(struct topo_plan *plan)
{
  const struct tt_topology *t = plan->t;
  for (int n = 0; n < t->nnodes; n++)
    plan->places[n] = (struct topo_place){.up = -1, .via = -1, .first = -1, .last = -1, .next = -1, .direct = -1};
  grow_tree(plan);
  if (plan->norder + t->count[TT_NODE_NVS] != t->nnodes)
    return TT_FAIL(ncclInternalError, "%d nodes of the topology hang off no CPU",
                   t->nnodes - plan->norder - t->count[TT_NODE_NVS]);
  for (int i = plan->norder - 1; i >= 0; i--) {
    const int node = plan->order[i];
    const enum tt_node_type type = t->nodes[node].type;
    count_links(plan, node);
    if (type == TT_NODE_DEV || type == TT_NODE_NIC) measure_holder(plan, node);
    if (type == TT_NODE_DEV) measure_lanes(plan, top_of(plan, node), node);
    if (type == TT_NODE_PCI || type == TT_NODE_CPU) measure_bar(plan, node);
  }
  int jogs = 0; /* below the present child of a CPU */
  for (int i = 0; i < plan->norder; i++) {
    const struct topo_place *place = &plan->places[plan->order[i]];
    if (place->depth <= 1) jogs = 0;
    jogs += place->direct >= 0 && place->depth > 1;
    plan->jogs = TT_MAX(plan->jogs, jogs);
  }
  return ncclSuccess;
}

struct topo_box *topo_add_box(struct topo_plan *plan, enum topo_shape shape, int node, int x, int y, int w, int h)
{
  struct topo_layout *out = plan->out;
  struct topo_box *box = &out->boxes[out->nboxes];
  *box = (struct topo_box){.shape = shape, .node = node, .inside = -1, .x = x, .y = y, .w = w, .h = h};
  if (node >= 0) {
    const struct tt_node *n = &plan->t->nodes[node];
    describe(plan->t, node, box->title, box->detail);
    if (n->type == TT_NODE_DEV) box->faint = plan->places[node].first < 0;
    if (n->type == TT_NODE_NET) box->faint = n->net.same_as != n->index;
    if (out->box_of[node] < 0) out->box_of[node] = out->nboxes;
  }
  out->nboxes++;
  return box;
}
