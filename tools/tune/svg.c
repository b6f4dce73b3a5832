/* A simulation as SVG: a band for each strand, a box for each instruction, a line for each message. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "tune.h"

#define MOST_BOXES ((size_t)200000)

/* In pixels. */
enum { LEFT = 90, TOP = 68, ROW = 20, BOX = 14, RIGHT = 20, WIDTH = 1200, LEGEND_ROW = 20, TICK_ROOM = 60 };
/* Of one unit of time, at most. */
#define LARGEST_UNIT 28.

struct drawing {
  FILE *out;
  const struct tune_set *sets;
  int nsets;
  const struct tt_simulation *simulation;
  size_t *first; /* row of a rank's first strand, by channel and rank */
  size_t rows;   /* without those of networks */
  int networks;
  double unit; /* pixels */
};

static uint32_t strands_of(const struct tune_set *set, int rank)
{
  return set->programs[rank] ? set->programs[rank]->nstrands : 0;
}

static void lay_out(struct drawing *d)
{
  int nranks = d->sets[0].nranks;
  for (int rank = 0; rank < nranks; rank++) {
    for (int channel = 0; channel < d->nsets; channel++) {
      d->first[channel * nranks + rank] = d->rows;
      d->rows += strands_of(&d->sets[channel], rank);
    }
  }
  for (size_t i = 0; i < d->simulation->nflights; i++)
    d->networks = TT_MAX(d->networks, TT_PEER_NETWORK - d->simulation->flights[i].to + 1);
  double time = d->simulation->time;
  d->unit = time > 0 ? TT_MIN(LARGEST_UNIT, WIDTH / time) : LARGEST_UNIT;
}

static double x_of(const struct drawing *d, double time)
{
  return LEFT + time * d->unit;
}

static double y_of(const struct drawing *d, int32_t channel, int32_t rank, uint32_t strand)
{
  return TOP + ROW * (double)(d->first[channel * d->sets[0].nranks + rank] + strand) + ROW / 2.;
}

/* The strand of a rank that sends to a peer, or receives from it. */
static uint32_t strand_of(const struct tt_program *program, int32_t peer, int kind)
{
  for (uint32_t s = 0; s < program->nstrands; s++) {
    for (uint32_t i = 0; i < program->strands[s].ninstructions; i++) {
      const struct tt_instruction *instruction = &program->instructions[program->strands[s].first_instruction + i];
      for (uint32_t o = 0; o < instruction->noperands; o++) {
        const struct tt_operand *operand = &program->operands[instruction->first_operand + o];
        if (operand->kind == kind && program->peers[operand->peer] == peer) return s;
      }
    }
  }
  return 0;
}

static void draw_axis(const struct drawing *d, const char *unit, double height)
{
  double time = d->simulation->time, step = 1;
  for (int i = 0; step * d->unit < TICK_ROOM; i++) step *= i % 3 == 1 ? 2.5 : 2;
  for (double at = 0; at <= time; at += step) {
    fprintf(d->out,
            "<line x1='%.1f' y1='%d' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n"
            "<text x='%.1f' y='%d' text-anchor='middle'>%.10g</text>\n",
            x_of(d, at), TOP - 4, x_of(d, at), height, x_of(d, at), TOP - 8, at);
  }
  fprintf(d->out, "<text x='%d' y='%d'>time in %s</text>\n", LEFT, TOP - 24, unit);
}

static void draw_bands(const struct drawing *d)
{
  int nranks = d->sets[0].nranks;
  for (int rank = 0; rank < nranks; rank++) {
    for (int channel = 0; channel < d->nsets; channel++) {
      uint32_t strands = strands_of(&d->sets[channel], rank);
      for (uint32_t strand = 0; strand < strands; strand++) {
        double y = y_of(d, channel, rank, strand);
        char label[64] = "";
        int used = strand || channel ? 0 : snprintf(label, sizeof(label), "rank %d", rank);
        if (d->nsets > 1) used += snprintf(label + used, sizeof(label) - (size_t)used, " c%d", channel);
        if (strands > 1) snprintf(label + used, sizeof(label) - (size_t)used, " .%u", strand);
        fprintf(d->out, "<text x='%d' y='%.1f' text-anchor='end'>%s</text>\n", LEFT - 8, y + 4, label);
        fprintf(d->out, "<line x1='%d' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#eee'/>\n", LEFT, y,
                x_of(d, d->simulation->time), y);
      }
    }
  }
  for (int network = 0; network < d->networks; network++)
    fprintf(d->out, "<text x='%d' y='%.1f' text-anchor='end'>network %d</text>\n", LEFT - 8,
            TOP + ROW * (double)(d->rows + (size_t)network) + ROW / 2. + 4, network);
}

/* Where a box begins. Of semaphores the time is shown that a strand waits there. */
static double box_start(const struct drawing *d, const struct tt_simulate_span *span, enum tune_kind *kind)
{
  *kind = tune_kind_of(d->sets[span->channel].programs[span->rank], span->instruction);
  return *kind == TUNE_SEMAPHORE ? span->arrived : span->start;
}

static int used_kinds(const struct drawing *d, bool *used)
{
  enum tune_kind kind;
  int count = 0;
  for (size_t i = 0; i < d->simulation->nspans; i++) {
    const struct tt_simulate_span *span = &d->simulation->spans[i];
    if (span->end <= box_start(d, span, &kind) || used[kind]) continue;
    used[kind] = true;
    count++;
  }
  return count;
}

static void draw_boxes(const struct drawing *d)
{
  for (size_t i = 0; i < d->simulation->nspans; i++) {
    const struct tt_simulate_span *span = &d->simulation->spans[i];
    enum tune_kind kind;
    double from = box_start(d, span, &kind);
    if (span->end <= from) continue;
    fprintf(d->out,
            "<rect x='%.2f' y='%.1f' width='%.2f' height='%d' fill='%s'><title>instruction %u, repetition %u, loop "
            "%llu: %.10g to %.10g</title></rect>\n",
            x_of(d, from), y_of(d, span->channel, span->rank, span->strand) - BOX / 2.,
            TT_MAX((span->end - from) * d->unit - 0.5, 0.3), BOX, tune_looks[kind].colour, span->instruction,
            span->repetition, (unsigned long long)span->loop, from, span->end);
  }
}

static void draw_flights(const struct drawing *d)
{
  fputs("<g stroke='#333' stroke-width='0.7' stroke-opacity='0.5'>\n", d->out);
  for (size_t i = 0; i < d->simulation->nflights; i++) {
    const struct tt_simulate_flight *flight = &d->simulation->flights[i];
    struct tt_program *const *programs = d->sets[flight->channel].programs;
    uint32_t sender = strand_of(programs[flight->from], flight->to, TT_SEND);
    double to = TOP + ROW * ((double)d->rows + TT_PEER_NETWORK - flight->to) + ROW / 2.;
    if (flight->to >= 0)
      to = y_of(d, flight->channel, flight->to, strand_of(programs[flight->to], flight->from, TT_RECV));
    fprintf(d->out, "<line x1='%.2f' y1='%.1f' x2='%.2f' y2='%.1f'/>\n", x_of(d, flight->start),
            y_of(d, flight->channel, flight->from, sender), x_of(d, flight->end), to);
  }
  fputs("</g>\n", d->out);
}

static void draw_legend(const struct drawing *d, const bool *used, double y)
{
  for (int kind = 0; kind < TUNE_KINDS; kind++) {
    if (!used[kind]) continue;
    fprintf(d->out, "<rect x='%d' y='%.1f' width='%d' height='%d' fill='%s'/><text x='%d' y='%.1f'>%s</text>\n", LEFT,
            y - BOX + 3, BOX, BOX, tune_looks[kind].colour, LEFT + BOX + 8, y, tune_looks[kind].name);
    y += LEGEND_ROW;
  }
  fprintf(d->out,
          "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#333' stroke-opacity='0.5'/><text x='%d' y='%.1f'>a "
          "message, until it is there</text>\n",
          LEFT, y, LEFT + BOX, y - BOX + 4, LEFT + BOX + 8, y);
}

static void draw(struct drawing *d, const char *title, const char *unit)
{
  bool used[TUNE_KINDS] = {false};
  lay_out(d);
  double bottom = TOP + ROW * (double)(d->rows + (size_t)d->networks);
  double width = TT_MAX(x_of(d, d->simulation->time) + RIGHT, LEFT + 560);
  double height = bottom + LEGEND_ROW * (used_kinds(d, used) + 2.5);
  fprintf(d->out,
          "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' font-family='sans-serif' "
          "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n"
          "<text x='10' y='22' font-size='15'>%s: %.10g %s</text>\n",
          width, height, title, d->simulation->time, unit);
  draw_axis(d, unit, bottom);
  draw_bands(d);
  draw_boxes(d);
  draw_flights(d);
  draw_legend(d, used, bottom + 1.5 * LEGEND_ROW);
  fputs("</svg>\n", d->out);
}

bool tune_svg(const struct tune_set *sets, int nsets, const struct tt_simulation *simulation, const char *path,
              const char *title, const char *unit, char *error, size_t size)
{
  struct drawing d = {.sets = sets, .nsets = nsets, .simulation = simulation};
  bool standard = !strcmp(path, "-");
  if (simulation->nspans > MOST_BOXES) {
    snprintf(error, size, "--svg: %zu instructions are too many to draw; take fewer ranks or loops",
             simulation->nspans);
    return false;
  }
  d.first = calloc((size_t)nsets * (size_t)sets[0].nranks, sizeof(*d.first));
  d.out = !d.first ? NULL : standard ? stdout : fopen(path, "we");
  if (!d.out) {
    snprintf(error, size, "--svg %s: %s", path, strerror(d.first ? errno : ENOMEM));
    free(d.first);
    return false;
  }
  draw(&d, title, unit);
  bool written = !ferror(d.out);
  if (!standard) written = fclose(d.out) == 0 && written;
  if (!written) snprintf(error, size, "--svg %s: it could not be written", path);
  free(d.first);
  return written;
}
