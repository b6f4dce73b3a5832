/* Where things go in pictures of machines: no box lies on another, labels are free, lines end where they should and
 * pass by what is not theirs. For all machines of tests/topology/machine.h, and for published ones where they are. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "machine.h"
#include "picture.h"

struct area {
  int x, y, w, h;
};

static struct area area_of(const struct topo_box *box)
{
  return (struct area){box->x, box->y, box->w, box->h};
}

static bool meet(struct area a, struct area b)
{
  return a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
}

static bool within(struct area a, struct area b)
{
  return a.x >= b.x && a.y >= b.y && a.x + a.w <= b.x + b.w && a.y + a.h <= b.y + b.h;
}

static const char *name_of(const struct tt_topology *t, const struct topo_box *box, char text[64])
{
  return box->node < 0 ? box->title : tt_topology_label(t, box->node, text, 64);
}

static void check_box(const struct tt_topology *t, const struct topo_layout *l, int i, const char *what)
{
  char a[64], b[64];
  const struct topo_box *box = &l->boxes[i];
  const bool chip = box->shape == TOPO_CHIP;
  const int size = box->shape == TOPO_HOLDER ? TOPO_SMALL : TOPO_TEXT;
  int title = topo_text_width(box->title, size), detail = topo_text_width(box->detail, size);
  ck_assert_msg(within(area_of(box), (struct area){0, 0, l->width, l->height}), "%s: %s is outside", what,
                name_of(t, box, a));
  ck_assert_msg((chip && detail > 0 ? title + detail + 12 : TT_MAX(title, detail)) + 4 <= box->w,
                "%s: the text of %s is wider than its box", what, name_of(t, box, a));
  ck_assert_int_eq(chip, box->inside >= 0);
  if (chip) ck_assert(within(area_of(box), area_of(&l->boxes[box->inside])));
  for (int k = 0; k < i; k++) {
    const struct topo_box *other = &l->boxes[k];
    if (box->inside == k || other->inside == i || !meet(area_of(box), area_of(other))) continue;
    const bool framed = other->shape == TOPO_FRAME && within(area_of(box), area_of(other));
    const bool frames = box->shape == TOPO_FRAME && within(area_of(other), area_of(box));
    ck_assert_msg((framed || frames) && box->shape != other->shape, "%s: %s lies on %s", what, name_of(t, box, a),
                  name_of(t, other, b));
  }
}

static void check_label(const struct tt_topology *t, const struct topo_layout *l, int i, const char *what)
{
  char text[64];
  const struct topo_label *label = &l->labels[i];
  const struct area area = {label->x, label->y, label->w, label->h};
  ck_assert_msg(label->w >= topo_text_width(label->text, TOPO_TEXT), "%s: \"%s\" is wider than its place", what,
                label->text);
  ck_assert_msg(within(area, (struct area){0, 0, l->width, l->height}), "%s: label \"%s\" is outside", what,
                label->text);
  for (int k = 0; k < l->nboxes; k++)
    if (l->boxes[k].shape != TOPO_FRAME)
      ck_assert_msg(!meet(area, area_of(&l->boxes[k])), "%s: label \"%s\" lies on %s", what, label->text,
                    name_of(t, &l->boxes[k], text));
  for (int k = 0; k < i; k++) {
    const struct topo_label *o = &l->labels[k];
    ck_assert_msg(!meet(area, (struct area){o->x, o->y, o->w, o->h}), "%s: labels \"%s\" and \"%s\" meet", what,
                  label->text, o->text);
  }
}

/* Whether a point is on the edge of one of a node's boxes. */
static bool touches(const struct topo_layout *l, int node, struct topo_point p)
{
  for (int i = 0; i < l->nboxes; i++) {
    const struct topo_box *b = &l->boxes[i];
    if (b->node != node || p.x < b->x || p.x > b->x + b->w || p.y < b->y || p.y > b->y + b->h) continue;
    if (p.x == b->x || p.x == b->x + b->w || p.y == b->y || p.y == b->y + b->h) return true;
  }
  return false;
}

static void check_line(const struct tt_topology *t, const struct topo_layout *l, const struct topo_line *line,
                       const char *what)
{
  char a[64], b[64], c[64];
  const struct tt_link *link = &t->links[line->link];
  tt_topology_label(t, link->from, a, sizeof(a));
  tt_topology_label(t, link->to, b, sizeof(b));
  if (line->behind) return;
  ck_assert_msg(touches(l, link->from, line->points[0]) && touches(l, link->to, line->points[line->npoints - 1]),
                "%s: the line from %s to %s does not reach both", what, a, b);
  for (int i = 1; i < line->npoints; i++) {
    const struct topo_point p = line->points[i - 1], q = line->points[i];
    const struct area run = {TT_MIN(p.x, q.x), TT_MIN(p.y, q.y), abs(p.x - q.x), abs(p.y - q.y)};
    ck_assert_msg(run.w == 0 || run.h == 0, "%s: the line from %s to %s is askew", what, a, b);
    for (int k = 0; k < l->nboxes; k++) {
      const struct area box = area_of(&l->boxes[k]);
      if (l->boxes[k].shape == TOPO_FRAME || run.x >= box.x + box.w || run.x + run.w <= box.x ||
          run.y >= box.y + box.h || run.y + run.h <= box.y)
        continue;
      ck_abort_msg("%s: the line from %s to %s crosses %s", what, a, b, name_of(t, &l->boxes[k], c));
    }
  }
}

static bool cross(const struct topo_line *a, const struct topo_line *b)
{
  for (int i = 1; i < a->npoints; i++)
    for (int k = 1; k < b->npoints; k++) {
      const struct topo_point p = a->points[i - 1], q = a->points[i], r = b->points[k - 1], s = b->points[k];
      if ((p.x == q.x) == (r.x == s.x)) continue;
      const struct topo_point v1 = p.x == q.x ? p : r, v2 = p.x == q.x ? q : s; /* the one up and down */
      const struct topo_point h1 = p.x == q.x ? r : p, h2 = p.x == q.x ? s : q;
      if (v1.x > TT_MIN(h1.x, h2.x) && v1.x < TT_MAX(h1.x, h2.x) && h1.y > TT_MIN(v1.y, v2.y) &&
          h1.y < TT_MAX(v1.y, v2.y))
        return true;
    }
  return false;
}

/* NVLinks of one device do not cross each other. */
static void check_crossings(const struct tt_topology *t, const struct topo_layout *l, const char *what)
{
  for (int i = 0; i < l->nlines; i++)
    for (int k = 0; k < i; k++) {
      const struct tt_link *a = &t->links[l->lines[i].link], *b = &t->links[l->lines[k].link];
      if (a->type != TT_LINK_NVL || b->type != TT_LINK_NVL || l->lines[i].behind || l->lines[k].behind) continue;
      if (a->from != b->from && a->from != b->to && a->to != b->from && a->to != b->to) continue;
      ck_assert_msg(!cross(&l->lines[i], &l->lines[k]), "%s: two lines of a device cross at track %d", what,
                    l->lines[i].points[1].y);
    }
}

/* Each way between GPUs and NETs along its links stays inside the picture. */
static void check_routes(const struct tt_topology *t, const struct topo_layout *l, const char *what)
{
  const struct topo_picture picture = {.t = t, .layout = l};
  for (int from = 0; from < t->nnodes; from++)
    for (int to = 0; to < t->nnodes; to++) {
      char *text = NULL;
      size_t size = 0;
      const enum tt_node_type a = t->nodes[from].type, b = t->nodes[to].type;
      if ((a != TT_NODE_GPU && a != TT_NODE_NET) || (b != TT_NODE_GPU && b != TT_NODE_NVS)) continue;
      FILE *out = open_memstream(&text, &size);
      ck_assert_int_eq(topo_put_route(out, &picture, from, to), ncclSuccess);
      fclose(out);
      for (char *at = text; *at;) {
        ck_assert_msg(*at == (at == text ? 'M' : 'L'), "%s: %s", what, text);
        long x = strtol(at + 1, &at, 10), y = strtol(at, &at, 10);
        ck_assert_msg(x >= 0 && x <= l->width && y >= 0 && y <= l->height, "%s: %s leaves the picture", what, text);
      }
      free(text);
    }
}

static void check_layout(const struct tt_topology *t, const char *what)
{
  char text[64];
  struct topo_layout *l, *again;
  ck_assert_msg(topo_layout_create(t, &l) == ncclSuccess, "%s: %s", what, tt_log_thread_error());
  for (int n = 0; n < t->nnodes; n++)
    ck_assert_msg(l->box_of[n] >= 0 && l->boxes[l->box_of[n]].node == n, "%s: %s has no box", what,
                  tt_topology_label(t, n, text, sizeof(text)));
  for (int i = 0; i < t->nlinks; i++) {
    const int from = l->box_of[t->links[i].from], to = l->box_of[t->links[i].to];
    const bool inside = l->boxes[from].inside == to || l->boxes[to].inside == from;
    ck_assert_int_eq(inside, l->line_of[i] < 0);
    if (!inside) ck_assert_int_eq(l->line_of[i], l->line_of[t->links[i].reverse]);
  }
  for (int i = 0; i < l->nboxes; i++) check_box(t, l, i, what);
  for (int i = 0; i < l->nlabels; i++) check_label(t, l, i, what);
  for (int i = 0; i < l->nlines; i++) check_line(t, l, &l->lines[i], what);
  check_crossings(t, l, what);
  check_routes(t, l, what);
  ck_assert_int_eq(topo_layout_create(t, &again), ncclSuccess);
  ck_assert_int_eq(l->nboxes, again->nboxes);
  ck_assert(memcmp(l->boxes, again->boxes, (size_t)l->nboxes * sizeof(*l->boxes)) == 0);
  topo_layout_free(l);
  topo_layout_free(again);
}

static void check_machine(char *text, const char *what)
{
  struct tt_topology *t = machine_topology(text, NULL);
  check_layout(t, what);
  tt_topology_free(t);
}

START_TEST(known_machines)
{
  static const char *const kinds[] = {"amd", "skylake", "sapphire", "arm", "power", "nobody"};
  char what[64];
  check_machine(machine_hybrid_cube(), "hybrid cube");
  check_machine(machine_hgx(90, 18), "8 GPUs and switches");
  check_machine(machine_hgx(100, 18), "8 GPUs and switches");
  check_machine(machine_virtual(), "flat bus");
  check_machine(machine_arm_board(), "board");
  for (int n = 2; n <= 10; n++) {
    snprintf(what, sizeof(what), "%d GPUs on two CPUs", n);
    check_machine(machine_pcie(kinds[n % 6], n), what);
  }
  for (int n = 2; n <= 18; n += 8) {
    snprintf(what, sizeof(what), "%d trays", n);
    check_machine(machine_trays(n), what);
  }
}
END_TEST

START_TEST(random_machines)
{
  char what[64];
  for (int seed = _i * 20; seed < (_i + 1) * 20; seed++) {
    snprintf(what, sizeof(what), "random machine %d", seed);
    check_machine(machine_random((unsigned)seed), what);
  }
}
END_TEST

/* 16 GPUs, each linked to each and to the switch; below 20 bridges; with 40 NICs, on two CPUs. */
START_TEST(dense_machine)
{
  struct machine m;
  machine_begin(&m);
  for (int g = 0; g < 16; g++) {
    char links[256] = "s*6";
    size_t used = strlen(links);
    for (int k = 0; k < 16; k++)
      if (k != g) used += (size_t)snprintf(links + used, sizeof(links) - used, " %d*2", k);
    if (g % 8 == 0) machine_cpu(&m, 0, g / 8, "amd");
    if (g == 0)
      for (int i = 0; i < 20; i++) machine_bridge(&m, 4, 16);
    machine_gpu(&m, g, 80, links);
  }
  for (int n = 0; n < 40; n++) machine_net(&m, n, 100, true);
  check_machine(machine_end(&m), "dense machine");
}
END_TEST

/* Devices with a second link to their CPU, directly below it and below bridges, one of which has two. */
START_TEST(links_beside_the_tree)
{
  struct machine m;
  machine_begin(&m);
  machine_cpu(&m, 0, 0, "arm");
  machine_gpu(&m, 0, 100, "c*4 s*18");
  machine_bridge(&m, 4, 16);
  machine_bridge(&m, 5, 8);
  machine_gpu(&m, 1, 100, "c*5 s*18");
  machine_gpu(&m, 2, 100, "c*6 s*18");
  machine_up(&m);
  machine_gpu(&m, 3, 100, "c*7 s*18");
  machine_cpu(&m, 0, 1, "arm");
  machine_net(&m, 0, 400, true);
  char *text = machine_end(&m);
  struct tt_topology *t = machine_topology(text, NULL);
  struct topo_layout *l;
  int found = 0;
  check_layout(t, "links beside the tree");
  ck_assert_int_eq(topo_layout_create(t, &l), ncclSuccess);
  for (int i = 0; i < l->nlines; i++)
    if (t->links[l->lines[i].link].type == TT_LINK_C2C) {
      found++;
      ck_assert(!l->lines[i].behind);
    }
  ck_assert_int_eq(found, 4);
  topo_layout_free(l);
  tt_topology_free(t);
}
END_TEST

/* Two ranks on a GPU, and switches that are linked to each other: behind the boxes, as no place is kept for that. */
START_TEST(shared_gpu_and_linked_switches)
{
  static const char bridge[] = "<pci busid=\"0000:%d0:00.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\" "
                               "link_width=\"16\"><pcilink target=\"0000:%d0:00.0\"/><pci busid=\"0000:%d1:00.0\" "
                               "class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"
                               "<gpu dev=\"%d\" sm=\"80\" rank=\"%d\" gdr=\"1\"/><gpu dev=\"%d\" sm=\"80\" rank=\"%d\" "
                               "gdr=\"1\"/></pci></pci>";
  char *text = NULL;
  size_t size = 0;
  int behind = 0, chips = 0;
  FILE *out = open_memstream(&text, &size);
  fputs("<system version=\"1\"><cpu numaid=\"0\" affinity=\"ff\" arch=\"arm64\">", out);
  for (int i = 0; i < 2; i++) fprintf(out, bridge, i + 1, 2 - i, i + 1, i, 2 * i, i, 2 * i + 1);
  fputs("</cpu></system>", out);
  fclose(out);
  struct tt_topology *t = machine_topology(text, NULL);
  struct topo_layout *l;
  check_layout(t, "shared GPUs, linked switches");
  ck_assert_int_eq(topo_layout_create(t, &l), ncclSuccess);
  for (int i = 0; i < l->nlines; i++) behind += l->lines[i].behind;
  for (int i = 0; i < l->nboxes; i++) chips += l->boxes[i].shape == TOPO_CHIP && l->boxes[i].inside >= 0;
  ck_assert_int_eq(behind, 1);
  ck_assert_int_eq(chips, 4);
  topo_layout_free(l);
  tt_topology_free(t);
}
END_TEST

START_TEST(published_machines)
{
  const char *directory = getenv("TUTTI_TOPOLOGIES");
  if (!directory) directory = TEST_TOPOLOGIES;
  DIR *dir = opendir(directory);
  if (!dir) {
    printf("SKIP published machines: there is no %s\n", directory);
    return;
  }
  const struct tt_topology_rules rules = tt_topology_rules_default();
  for (struct dirent *entry; (entry = readdir(dir));) {
    char path[1024];
    struct tt_xml *xml = NULL;
    struct tt_topology *t = NULL;
    const size_t length = strlen(entry->d_name);
    if (length < 4 || strcmp(entry->d_name + length - 4, ".xml") != 0) continue;
    snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
    if (tt_xml_read(path, "system", &xml) == ncclSuccess && tt_topology_create(xml, &rules, 0, 0, &t) == ncclSuccess)
      check_layout(t, entry->d_name);
    tt_topology_free(t);
    tt_xml_free(xml);
  }
  closedir(dir);
}
END_TEST

static void check_text(const char *text, const char *expected)
{
  char *written = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&written, &size);
  topo_put_text(out, text);
  fclose(out);
  ck_assert_str_eq(written, expected);
  free(written);
}

START_TEST(names_are_escaped)
{
  check_text("a<b>&\"c'", "a&lt;b&gt;&amp;&quot;c&#39;");
  check_text("tab\tend\x7f", "tab?end?");
  check_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  check_text("\xc3", "?");                /* cut off */
  check_text("\xc0\xaf\x80", "???");      /* too long a form, a lone rest */
  check_text("\xed\xa0\x80", "???");      /* half of a pair */
  check_text("\xef\xbf\xbf", "???");      /* no character */
  check_text("\xf5\x80\x80\x80", "????"); /* beyond the last */
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("layout");
  TCase *tcase = tcase_create("layout");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, known_machines);
  tcase_add_loop_test(tcase, random_machines, 0, 4);
  tcase_add_test(tcase, dense_machine);
  tcase_add_test(tcase, links_beside_the_tree);
  tcase_add_test(tcase, shared_gpu_and_linked_switches);
  tcase_add_test(tcase, published_machines);
  tcase_add_test(tcase, names_are_escaped);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
