/* A page on which one steps through the graphs of a machine: its picture, the JSON that page.js works with, and that.
 * The page needs nothing from elsewhere, and may load nothing. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "picture.h"

/* page.css and page.js; the build makes them part of the program. */
extern const char topo_page_css[], topo_page_js[];

/* Pairs of ends that hops connect. A page has each once, however many channels use it. */
struct hop_table {
  int *index; /* [from * nnodes + to]; -1: none yet */
  struct topo_hop *hops;
  int count, room;
};

void topo_put_json(FILE *out, const char *text)
{
  fputc('"', out);
  for (; *text; text++) {
    if ((unsigned char)*text < ' ' || strchr("\"\\<>&'", *text))
      fprintf(out, "\\u%04x", (unsigned char)*text);
    else
      fputc(*text, out);
  }
  fputc('"', out);
}

static void put_nodes(FILE *out, const struct tt_topology *t)
{
  char text[64];
  fputs("\"nodes\":[", out);
  for (int n = 0; n < t->nnodes; n++) {
    if (n > 0) fputc(',', out);
    topo_put_json(out, tt_topology_label(t, n, text, sizeof(text)));
  }
  fputs("],\n\"links\":[", out);
  for (int l = 0; l < t->nlinks; l++) {
    const struct tt_link *link = &t->links[l];
    fprintf(out, "%s{\"a\":%d,\"b\":%d,\"r\":%d,\"t\":\"%s\",\"w\":%.6g}", l > 0 ? ",\n" : "", link->from, link->to,
            link->reverse, tt_topology_name_link(link->type), (double)link->bandwidth);
  }
  fputs("],\n", out);
}

static int index_of(struct hop_table *table, const struct tt_topology *t, const struct topo_hop *hop)
{
  int *index = &table->index[(size_t)hop->from * (size_t)t->nnodes + (size_t)hop->to];
  if (*index < 0 && table->count < table->room) {
    table->hops[table->count] = *hop;
    *index = table->count++;
  }
  return *index;
}

/* A channel's order in words: "NET 0, 3, 2, 1, 0, NET 0". */
static void put_order(FILE *out, const struct tt_topology *t, const struct tt_graph *g, int c)
{
  const int32_t *ranks = &g->ranks[c * g->nranks];
  const int64_t in = g->nets[c * 2], to = g->nets[c * 2 + 1];
  fputc('"', out);
  for (int side = 0; side < 2; side++) {
    const int64_t net = side == 0 ? in : to;
    for (int i = 0; side == 1 && i < g->nranks && ranks[i] >= 0; i++) fprintf(out, "%s%d", i > 0 ? ", " : "", ranks[i]);
    if (net == TT_GRAPH_NO_NET) continue;
    if (side == 1) fputs(", ", out);
    fputs("NET ", out);
    if (t->nhosts > 1) fprintf(out, "%d/", (int)(net >> 56));
    fprintf(out, "%d%s", (int)(net & INT32_MAX), side == 0 ? ", " : "");
  }
  fputc('"', out);
}

static void put_graph(FILE *out, const struct tt_topology *t, const struct tt_graph *g, struct hop_table *table,
                      struct topo_hop *hops)
{
  fprintf(out, "{\"name\":\"%s\",\"said\":\"%s: %d channel%s, each %.4g GB/s between GPUs (%s)", tt_graph_name(g->kind),
          tt_graph_name(g->kind), g->nchannels, g->nchannels == 1 ? "" : "s", (double)g->bandwidth_intra,
          tt_topology_name_path(g->type_intra));
  if (t->inter) fprintf(out, ", %.4g to NETs (%s)", (double)g->bandwidth_inter, tt_topology_name_path(g->type_inter));
  if (g->kind == TT_GRAPH_TREE || g->kind == TT_GRAPH_COLLNET_CHAIN)
    fputs("; data goes both ways, of which one is counted", out);
  fputs("\",\"orders\":[", out);
  for (int c = 0; c < g->nchannels; c++) {
    if (c > 0) fputc(',', out);
    put_order(out, t, g, c);
  }
  fputs("],\n\"channels\":[", out);
  for (int c = 0; c < g->nchannels; c++) {
    const int count = topo_hops(t, g, c, hops);
    fputs(c > 0 ? ",\n[" : "[", out);
    for (int i = 0; i < count; i++)
      fprintf(out, "%s[%d,%.6g,%d]", i > 0 ? "," : "", index_of(table, t, &hops[i]), (double)hops[i].bandwidth,
              hops[i].both);
    fputc(']', out);
  }
  fputs("]}", out);
}

static ncclResult_t put_hops(FILE *out, const struct topo_picture *picture, const struct hop_table *table)
{
  const struct tt_topology *t = picture->t;
  fputs("\"hops\":[", out);
  for (int i = 0; i < table->count; i++) {
    const struct topo_hop *hop = &table->hops[i];
    const struct tt_path *path = tt_topology_path(t, hop->from, hop->to);
    fprintf(out, "%s{\"f\":%d,\"t\":%d,\"y\":\"%s\",\"w\":%.6g,\"l\":[", i > 0 ? ",\n" : "", hop->from, hop->to,
            tt_topology_name_path((enum tt_path_type)path->type), (double)path->bandwidth);
    for (int s = path->first; s >= 0; s = t->steps[s].next)
      fprintf(out, "%d%s", t->steps[s].link, t->steps[s].next >= 0 ? "," : "");
    fputs("],\"d\":\"", out);
    TT_TRY(topo_put_route(out, picture, hop->from, hop->to));
    fputs("\"}", out);
  }
  fputs("]", out);
  return ncclSuccess;
}

static ncclResult_t put_data(FILE *out, const struct topo_picture *picture, const char *said)
{
  const struct tt_topology *t = picture->t;
  struct tt_graph *const *graphs = picture->what->graphs;
  const size_t pairs = (size_t)t->nnodes * (size_t)t->nnodes;
  struct hop_table table = {0};
  struct topo_hop *hops = NULL;
  ncclResult_t result;
  int most = 1, first = 1;
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) {
    if (!graphs || !graphs[kind]) continue;
    most = TT_MAX(most, topo_most_hops(t, graphs[kind]));
    table.room += graphs[kind]->nchannels * topo_most_hops(t, graphs[kind]);
  }
  TT_TRY_GOTO(TT_CALLOC(&table.index, pairs), result, out);
  TT_TRY_GOTO(TT_CALLOC(&table.hops, (size_t)table.room + 1), result, out);
  TT_TRY_GOTO(TT_CALLOC(&hops, (size_t)most), result, out);
  memset(table.index, 0xff, pairs * sizeof(*table.index));
  fputs("{", out);
  put_nodes(out, t);
  fprintf(out, "\"said\":\"%s\",\n\"graphs\":[", said);
  for (int kind = 0; kind < TT_GRAPH_KINDS; kind++) {
    if (!graphs || !graphs[kind] || graphs[kind]->nchannels == 0) continue;
    fputs(first ? "" : ",\n", out);
    first = 0;
    put_graph(out, t, graphs[kind], &table, hops);
  }
  fputs("],\n", out);
  result = put_hops(out, picture, &table);
  fputs("}\n", out);
out:
  free(table.index);
  free(table.hops);
  free(hops);
  return result;
}

static const char before[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<!-- The machine of a topology file and its graphs, drawn by "
    "tutti-topo. -->\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'\">\n";
static const char tools[] =
    "<main>\n<div class=\"tools\">\n<div role=\"group\" aria-label=\"Graph\" id=\"graphs\"></div>\n"
    "<div role=\"group\" aria-label=\"Channel\" id=\"channels\" hidden>"
    "<button type=\"button\" id=\"previous\">Previous</button><output id=\"which\"></output>"
    "<button type=\"button\" id=\"next\">Next</button>"
    "<button type=\"button\" id=\"all\" aria-pressed=\"true\">All</button></div>\n"
    "<div><button type=\"button\" id=\"fit\" aria-pressed=\"true\">Fit</button></div>\n</div>\n"
    "<p id=\"said\" role=\"status\"></p>\n";
static const char after[] =
    "</figure>\n<p>Keys: <kbd>g</kbd> next graph, <kbd>m</kbd> machine alone, <kbd>&rarr;</kbd> <kbd>&larr;</kbd> or "
    "<kbd>n</kbd> <kbd>p</kbd> next and previous channel, <kbd>a</kbd> all channels.</p>\n"
    "<section id=\"hops-section\"><h2 id=\"hops-title\"></h2><div class=\"scroll\"><table id=\"hops\" "
    "aria-labelledby=\"hops-title\"></table></div></section>\n"
    "<section><h2 id=\"links-title\"></h2><div class=\"scroll\"><table id=\"links\" "
    "aria-labelledby=\"links-title\"></table></div></section>\n</main>\n<div id=\"tip\" role=\"tooltip\" "
    "hidden></div>\n";

ncclResult_t topo_write_html(FILE *out, const struct topo_picture *picture)
{
  const struct tt_topology *t = picture->t;
  char said[160];
  int width, height;
  snprintf(said, sizeof(said), "%d GPUs, %d NETs, %d CPUs, %d hosts; best path of a GPU %.4g GB/s%s",
           t->count[TT_NODE_GPU], t->count[TT_NODE_NET], t->count[TT_NODE_CPU], t->nhosts, (double)t->max_bandwidth,
           t->inter ? "; other ranks are reached by network" : "");
  topo_svg_size(picture, &width, &height);
  fputs(before, out);
  fputs("<title>", out);
  topo_put_text(out, picture->what->name);
  fprintf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body data-start=\"", topo_style, topo_page_css);
  if (picture->what->graph >= 0)
    fprintf(out, "%s/%d", tt_graph_name((enum tt_graph_kind)picture->what->graph), picture->what->channel);
  fputs("\">\n<header><h1>", out);
  topo_put_text(out, picture->what->name);
  fputs("</h1></header>\n", out);
  fputs(tools, out);
  fprintf(out,
          "<figure class=\"fit\" tabindex=\"0\" aria-label=\"The machine\">\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
          "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
          width, height, width, height, said);
  topo_put_machine(out, picture, false);
  fputs("<g class=\"way\"></g>\n", out);
  topo_put_labels(out, picture);
  fputs("</svg>\n", out);
  fputs(after, out);
  fputs("<script type=\"application/json\" id=\"data\">\n", out);
  TT_TRY(put_data(out, picture, said));
  fprintf(out, "</script>\n<script>\n%s</script>\n</body>\n</html>\n", topo_page_js);
  return ncclSuccess;
}
