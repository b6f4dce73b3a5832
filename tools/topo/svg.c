/* The picture of a machine as SVG. See picture.h. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "names.h"
#include "picture.h"

enum { SIDE = 16, HEAD = 56, LEGEND = 22, FOOT = 12 };

/* Colours are those of light paper; a page changes them where it is dark. */
const char topo_style[] =
    "text{font-family:'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;font-size:11px;"
    "fill:#1f2937}\n"
    ".frame rect{fill:none;stroke:#94a3b8;stroke-dasharray:5 4}.frame text{font-weight:600;fill:#475569}\n"
    ".cpu rect{fill:#e7ecf5;stroke:#5b6f94}.cpu .title{font-size:13px;font-weight:600}\n"
    ".pci rect{fill:#f3f4f6;stroke:#94a3b8}.nvs rect{fill:#d5efdd;stroke:#2f8f4e}.nvs .title{font-weight:600}\n"
    ".dev rect{fill:#ecf8ef;stroke:#2f8f4e}.nic rect{fill:#fdf3e4;stroke:#c27a1c}\n"
    ".dev text,.nic text{font-size:10px}.detail{fill:#4b5563}\n"
    ".gpu rect{fill:#26753f;stroke:#26753f}.gpu .title{font-size:13px;font-weight:600;fill:#fff}\n"
    ".net rect{fill:#9a5b0c;stroke:#9a5b0c}.net .title{font-weight:600;fill:#fff}.net .detail{fill:#fff}\n"
    ".faint rect{fill:none;stroke-dasharray:3 3}.net.faint .title,.net.faint .detail{fill:#7c4a0a}\n"
    ".line path{fill:none;stroke:#64748b;stroke-width:1.5}.line.nvl path{stroke:#2f8f4e;stroke-width:2}\n"
    ".line.c2c path{stroke:#0e7c86;stroke-width:2}.line.sys path{stroke:#7c3aed;stroke-width:2}\n"
    ".line.behind path{stroke-dasharray:4 4}\n"
    ".line path.hit{stroke:transparent;stroke-width:9}\n"
    ".label rect{fill:#fff;stroke:none;opacity:.88}.label text{fill:#475569}.label.nvl text{fill:#1f6e3a}\n"
    ".label.c2c text{fill:#0b626a}.label.sys text{fill:#6427c7}\n"
    ".way path{fill:none;stroke:#d6246e;stroke-width:2.5;stroke-linejoin:round}\n"
    ".arrow{fill:#d6246e}\n"
    ".on>rect{stroke:#d6246e;stroke-width:2.5}\n";

/* The length of the UTF-8 character at `text`; 0: there is none that XML allows. */
static int sequence(const char *text)
{
  const unsigned char *s = (const unsigned char *)text;
  static const uint32_t least[] = {0, 0x20, 0x80, 0x800, 0x10000};
  const int length = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
  if (length == 0) return 0;
  uint32_t code = length == 1 ? s[0] : s[0] & (0x7fu >> length);
  for (int i = 1; i < length; i++) {
    if (s[i] >> 6 != 2) return 0; /* also the end of the text */
    code = code << 6 | (s[i] & 0x3f);
  }
  const bool allowed = code >= least[length] && code != 127 && (code < 0xd800 || code > 0xdfff) &&
                       (code & 0xfffe) != 0xfffe && code <= 0x10ffff;
  return allowed ? length : 0;
}

void topo_put_text(FILE *out, const char *text)
{
  for (; *text; text++) {
    if (*text == '&')
      fputs("&amp;", out);
    else if (*text == '<')
      fputs("&lt;", out);
    else if (*text == '>')
      fputs("&gt;", out);
    else if (*text == '"')
      fputs("&quot;", out);
    else if (*text == '\'')
      fputs("&#39;", out);
    else if (sequence(text) == 0)
      fputc('?', out);
    else if (sequence(text) > 1)
      text += fwrite(text, 1, (size_t)sequence(text), out) - 1;
    else
      fputc(*text, out);
  }
}

static const char *class_of(const struct tt_topology *t, const struct topo_box *box)
{
  static const char *const names[TT_NODE_TYPES] = {"gpu", "pci", "nvs", "cpu", "nic", "net", "dev"};
  if (box->shape == TOPO_FRAME) return "frame";
  return box->node < 0 ? "nvs" : names[t->nodes[box->node].type];
}

static const char *class_of_line(const struct tt_topology *t, int link)
{
  const enum tt_link_type type = t->links[link].type;
  return type == TT_LINK_NVL ? "nvl" : type == TT_LINK_C2C ? "c2c" : type == TT_LINK_SYS ? "sys" : "pci";
}

/* What a node is, in words. */
static void put_tip(FILE *out, const struct topo_picture *picture, int node)
{
  const struct tt_topology *t = picture->t;
  static const char *const models[] = {
      "", ", Broadwell or older", ", Skylake", ", Sapphire Rapids", ", Emerald Rapids or newer", ", Yongfeng"};
  const struct tt_node *n = &t->nodes[node];
  char text[64];
  const char *name = n->type == TT_NODE_NET && picture->what->xml ? topo_net_name(t, picture->what->xml, n) : NULL;
  topo_put_text(out, tt_topology_label(t, node, text, sizeof(text)));
  switch (n->type) {
  case TT_NODE_CPU:
    fputs(models[n->cpu.model], out);
    break;
  case TT_NODE_GPU:
    fprintf(out, ", device %d", n->gpu.dev);
    break;
  case TT_NODE_DEV:
    fprintf(out, ", sm %d%s", n->gpu.sm, n->gpu.gdr ? ", GPUDirect" : "");
    break;
  case TT_NODE_NET:
    if (name) fputs(", ", out);
    if (name) topo_put_text(out, name);
    fprintf(out, ", %.4g GB/s, port %d%s%s", (double)n->net.bandwidth, n->net.port, n->net.gdr ? ", GPUDirect" : "",
            n->net.same_as != n->index ? ", the same device once more" : "");
    break;
  default:
    break;
  }
}

static void put_title(FILE *out, bool tips, const struct topo_picture *picture, int node, int link)
{
  const struct tt_topology *t = picture->t;
  char from[64], to[64];
  fputs(tips ? "><title>" : " data-tip=\"", out);
  if (link >= 0)
    fprintf(out, "%s - %s: %s, %.6g GB/s", tt_topology_label(t, t->links[link].from, from, sizeof(from)),
            tt_topology_label(t, t->links[link].to, to, sizeof(to)), tt_topology_name_link(t->links[link].type),
            (double)t->links[link].bandwidth);
  else
    put_tip(out, picture, node);
  fputs(tips ? "</title>" : "\">", out);
}

static void put_string(FILE *out, const char *class, int x, int y, const char *anchor, const char *text)
{
  if (!text[0]) return;
  fprintf(out, "<text class=\"%s\" x=\"%d\" y=\"%d\"%s%s%s>", class, x, y, anchor[0] ? " text-anchor=\"" : "", anchor,
          anchor[0] ? "\"" : "");
  topo_put_text(out, text);
  fputs("</text>", out);
}

static void put_box(FILE *out, const struct topo_picture *picture, const struct topo_box *box, bool tips)
{
  const int middle = box->x + box->w / 2;
  fprintf(out, "<g class=\"%s%s\"", class_of(picture->t, box), box->faint ? " faint" : "");
  if (box->node >= 0) {
    fprintf(out, " data-node=\"%d\"", box->node);
    put_title(out, tips, picture, box->node, -1);
  } else {
    fputc('>', out);
  }
  fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>", box->x, box->y, box->w, box->h,
          box->shape == TOPO_FRAME ? 8 : 4);
  switch (box->shape) {
  case TOPO_FRAME:
    put_string(out, "title", box->x + 10, box->y + 17, "", box->title);
    break;
  case TOPO_BAR:
    put_string(out, "title", middle, box->detail[0] ? box->y + 18 : box->y + box->h / 2 + 4, "middle", box->title);
    put_string(out, "detail", middle, box->y + 34, "middle", box->detail);
    break;
  case TOPO_HOLDER:
    put_string(out, "title", middle, box->y + 16, "middle", box->title);
    put_string(out, "detail", middle, box->y + 30, "middle", box->detail);
    break;
  case TOPO_CHIP:
    put_string(out, "title", box->detail[0] ? box->x + 6 : middle, box->y + 16, box->detail[0] ? "" : "middle",
               box->title);
    put_string(out, "detail", box->x + box->w - 6, box->y + 16, "end", box->detail);
    break;
  }
  fputs("</g>\n", out);
}

/* Both directions of a link are one line, which goes by the lower number. */
static int lower(const struct tt_topology *t, int link)
{
  return TT_MIN(link, t->links[link].reverse);
}

static void put_line(FILE *out, const struct topo_picture *picture, const struct topo_line *line, bool tips)
{
  static const char *const classes[] = {"", "hit"};
  const struct tt_topology *t = picture->t;
  fprintf(out, "<g class=\"line %s%s\" data-link=\"%d\"", class_of_line(t, line->link), line->behind ? " behind" : "",
          lower(t, line->link));
  put_title(out, tips, picture, -1, line->link);
  for (int pass = 0; pass < 2; pass++) { /* what is seen, and something wider to point at */
    fprintf(out, "<path class=\"%s\" d=\"", classes[pass]);
    for (int i = 0; i < line->npoints; i++)
      fprintf(out, "%c%d %d", i == 0 ? 'M' : 'L', line->points[i].x, line->points[i].y);
    fputs("\"/>", out);
  }
  fputs("</g>\n", out);
}

static void put_label(FILE *out, const struct topo_picture *picture, const struct topo_label *label)
{
  const int link = picture->layout->lines[label->line].link;
  fprintf(out, "<g class=\"label %s\" data-link=\"%d\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"2\"/>",
          class_of_line(picture->t, link), lower(picture->t, link), label->x - 2, label->y, label->w + 4, label->h);
  put_string(out, "text", label->centred ? label->x + label->w / 2 : label->x, label->y + 11,
             label->centred ? "middle" : "", label->text);
  fputs("</g>\n", out);
}

/* An entry of the legend, if the machine has such a thing. */
struct entry {
  bool box;
  const char *class, *text;
};
static const struct entry entries[] = {{true, "cpu", "CPU (NUMA node)"},
                                       {true, "pci", "PCI bridge or switch"},
                                       {true, "gpu", "GPU of a rank"},
                                       {true, "dev faint", "GPU reached by network only"},
                                       {true, "net", "NET"},
                                       {true, "net faint", "NET listed once more"},
                                       {true, "nvs", "NVSwitches"},
                                       {false, "pci", "PCI"},
                                       {false, "nvl", "NVLink"},
                                       {false, "c2c", "C2C"},
                                       {false, "sys", "between CPUs"}};

static bool is_there(const struct topo_picture *picture, const struct entry *e)
{
  const struct topo_layout *layout = picture->layout;
  char class[32];
  for (int i = 0; i < (e->box ? layout->nboxes : layout->nlines); i++) {
    if (e->box)
      snprintf(class, sizeof(class), "%s%s", class_of(picture->t, &layout->boxes[i]),
               layout->boxes[i].faint ? " faint" : "");
    else
      snprintf(class, sizeof(class), "%s", class_of_line(picture->t, layout->lines[i].link));
    if (strcmp(class, e->class) == 0) return true;
  }
  return false;
}

/* The legend below the machine, in rows of the picture's width. Returns how many; without `out` it only counts. */
static int put_legend(FILE *out, const struct topo_picture *picture, int width, int y)
{
  const char *unit = "bandwidths in GB/s, one direction";
  int x = SIDE, rows = 1;
  for (size_t i = 0; i < TT_COUNT(entries) + 1; i++) {
    const struct entry *e = i < TT_COUNT(entries) ? &entries[i] : NULL;
    const char *text = e ? e->text : unit;
    const int w = topo_text_width(text, TOPO_TEXT) + (e ? 44 : 0);
    if (e && !is_there(picture, e)) continue;
    if (x > SIDE && x + w > width - SIDE) {
      x = SIDE;
      rows++;
    }
    const int top = y + (rows - 1) * LEGEND;
    if (out && e && e->box)
      fprintf(out, "<g class=\"%s\"><rect x=\"%d\" y=\"%d\" width=\"22\" height=\"13\" rx=\"3\"/></g>", e->class, x,
              top + 2);
    if (out && e && !e->box) fprintf(out, "<g class=\"line %s\"><path d=\"M%d %dh22\"/></g>", e->class, x, top + 8);
    if (out) put_string(out, "key", e ? x + 28 : x, top + 12, "", text);
    x += w;
  }
  if (out) fputc('\n', out);
  return rows;
}

void topo_svg_size(const struct topo_picture *picture, int *width, int *height)
{
  *width = TT_MAX(picture->layout->width, 420);
  *height = picture->layout->height + put_legend(NULL, picture, *width, 0) * LEGEND + FOOT;
}

void topo_put_machine(FILE *out, const struct topo_picture *picture, bool tips)
{
  const struct topo_layout *layout = picture->layout;
  int width, height;
  topo_svg_size(picture, &width, &height);
  fputs("<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"11\" markerHeight=\"11\" "
        "markerUnits=\"userSpaceOnUse\" orient=\"auto-start-reverse\"><path class=\"arrow\" d=\"M0 0L8 4L0 8z\"/>"
        "</marker></defs>\n",
        out);
  for (int i = 0; i < layout->nlines; i++)
    if (layout->lines[i].behind) put_line(out, picture, &layout->lines[i], tips);
  for (int i = 0; i < layout->nlines; i++)
    if (!layout->lines[i].behind) put_line(out, picture, &layout->lines[i], tips);
  for (int i = 0; i < layout->nboxes; i++) put_box(out, picture, &layout->boxes[i], tips);
  put_legend(out, picture, width, layout->height);
}

void topo_put_labels(FILE *out, const struct topo_picture *picture)
{
  for (int i = 0; i < picture->layout->nlabels; i++) put_label(out, picture, &picture->layout->labels[i]);
}

/* A channel on the machine: the lines of its hops. */
static ncclResult_t put_channel(FILE *out, const struct topo_picture *picture)
{
  const struct tt_graph *g = picture->what->graphs[picture->what->graph];
  struct topo_hop *hops;
  ncclResult_t result = TT_CALLOC(&hops, (size_t)topo_most_hops(picture->t, g));
  if (result != ncclSuccess) return result;
  const int count = topo_hops(picture->t, g, picture->what->channel, hops);
  fputs("<g class=\"way\">\n", out);
  for (int i = 0; i < count && result == ncclSuccess; i++) {
    fprintf(out, "<path marker-end=\"url(#arrow)\"%s d=\"", hops[i].both ? " marker-start=\"url(#arrow)\"" : "");
    result = topo_put_route(out, picture, hops[i].from, hops[i].to);
    fputs("\"/>\n", out);
  }
  fputs("</g>\n", out);
  free(hops);
  return result;
}

ncclResult_t topo_write_svg(FILE *out, const struct topo_picture *picture)
{
  const struct tt_topology *t = picture->t;
  const struct topo_draw *what = picture->what;
  ncclResult_t result = ncclSuccess;
  int width, height;
  topo_svg_size(picture, &width, &height);
  fprintf(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 -%d %d %d\" role=\"img\">\n",
      width, height + HEAD, HEAD, width, height + HEAD);
  fputs("<!-- The machine of a topology file, drawn by tutti-topo. -->\n<title>", out);
  topo_put_text(out, what->name);
  fprintf(out, "</title>\n<style>%s</style>\n<rect y=\"-%d\" width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", topo_style,
          HEAD, width, height + HEAD);
  char name[48]; /* the whole of it is the picture's title */
  snprintf(name, sizeof(name), "%s", what->name);
  fprintf(out, "<text x=\"16\" y=\"-30\" style=\"font-size:16px;font-weight:600\">");
  topo_put_text(out, name);
  fprintf(out, "</text>\n<text x=\"16\" y=\"-12\">%d GPUs, %d NETs, %d CPUs", t->count[TT_NODE_GPU],
          t->count[TT_NODE_NET], t->count[TT_NODE_CPU]);
  if (t->nhosts > 1) fprintf(out, ", %d hosts", t->nhosts);
  if (what->graph >= 0) fprintf(out, "; %s, channel %d", tt_graph_name((enum tt_graph_kind)what->graph), what->channel);
  fputs("</text>\n", out);
  topo_put_machine(out, picture, true);
  if (what->graph >= 0) result = put_channel(out, picture);
  topo_put_labels(out, picture);
  fputs("</svg>\n", out);
  return result;
}
