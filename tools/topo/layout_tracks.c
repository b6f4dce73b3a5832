/* Tracks for links that run beside the tree. See layout_plan.h. */
#include "layout_plan.h"

#include <limits.h>
#include <stdlib.h>
#include "base/check.h"

/* What a span takes of its track: its run, and its label where that sticks out. */
static int left_of(const struct topo_span *s)
{
  return TT_MIN(s->a, (s->a + s->b - s->label_w) / 2) - 4;
}

static int right_of(const struct topo_span *s)
{
  return TT_MAX(s->b, (s->a + s->b + s->label_w) / 2) + 4;
}

/* Short runs first: they stay near, and long ones pass them by. */
static int by_length(const void *left, const void *right)
{
  const struct topo_span *a = left, *b = right;
  if (a->b - a->a != b->b - b->a) return a->b - a->a < b->b - b->a ? -1 : 1;
  if (a->a != b->a) return a->a < b->a ? -1 : 1;
  return a->link < b->link ? -1 : a->link > b->link;
}

static bool collide(const struct topo_span *a, const struct topo_span *b)
{
  const bool rows = a->track <= b->track + b->beside && b->track <= a->track + a->beside;
  return rows && left_of(a) < right_of(b) && left_of(b) < right_of(a);
}

static void find_track(struct topo_span *spans, int i)
{
  bool free = false;
  for (spans[i].track = 0; !free; spans[i].track += !free) {
    free = true;
    for (int k = 0; k < i && free; k++) free = !collide(&spans[k], &spans[i]);
  }
}

/* How many lines a label at x would lie on: those of runs farther out, which cross its track. */
static int crossings(const struct topo_span *spans, int nspans, int i, int x, const int *through, int nthrough)
{
  const int end = x + spans[i].label_w;
  int count = 0;
  for (int k = 0; k < nspans; k++) {
    if (spans[k].track < spans[i].track) continue;
    count += spans[k].a > x - 3 && spans[k].a < end + 3;
    count += spans[k].b > x - 3 && spans[k].b < end + 3;
  }
  for (int k = 0; k < nthrough; k++) count += through[k] > x - 3 && through[k] < end + 3;
  return count;
}

/* The place nearest to the middle that the fewest lines cross. */
static void place_label(struct topo_span *spans, int nspans, int i, const int *through, int nthrough)
{
  struct topo_span *s = &spans[i];
  const int middle = (s->a + s->b - s->label_w) / 2, room = (s->b - s->a - s->label_w) / 2;
  int best = INT_MAX;
  s->label_x = middle;
  for (int off = 0; off <= TT_MAX(room, 0) && best > 0; off += 3)
    for (int side = -1; side <= 1; side += 2) {
      const int found = crossings(spans, nspans, i, middle + side * off, through, nthrough);
      if (found >= best) continue;
      best = found;
      s->label_x = middle + side * off;
    }
}

int topo_tracks(struct topo_span *spans, int nspans, const int *through, int nthrough)
{
  int ntracks = 0;
  qsort(spans, (size_t)nspans, sizeof(*spans), by_length);
  for (int i = 0; i < nspans; i++) {
    spans[i].beside = spans[i].b - spans[i].a <= spans[i].label_w + 16;
    find_track(spans, i);
    ntracks = TT_MAX(ntracks, spans[i].track + 1 + spans[i].beside);
  }
  for (int i = 0; i < nspans; i++) place_label(spans, nspans, i, through, nthrough);
  return ntracks;
}
