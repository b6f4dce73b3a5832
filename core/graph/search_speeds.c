/* The bandwidths that a search tries for a channel. They are numbers of NCCL 2.30, so that both find the same: what
 * NVLink, PCI and NICs carry on machines of a generation, and parts of it. */
#include "base/check.h"
#include "graph/search_internal.h"

static const float intra[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
static const float inter[] = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4f, 1.2f, 0.24f, 0.12f};
static const float intra_90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
static const float inter_90[] = {48, 45, 42, 40, 30, 24, 22, 20, 17.5f, 15, 12, 6, 3, 2.4f, 1.2f, 0.24f, 0.12f};
static const float intra_100[] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
static const float inter_100[] = {96, 86,    80, 48, 45.1f, 42, 40,   30,   24,    22,
                                  20, 17.5f, 15, 12, 6,     3,  2.4f, 1.2f, 0.24f, 0.12f};

const float *tt_search_speeds(int sm, bool is_inter, int *count)
{
  static const struct {
    int sm;
    const float *speeds[2];
    int count[2];
  } generations[] = {{100, {intra_100, inter_100}, {TT_COUNT(intra_100), TT_COUNT(inter_100)}},
                     {90, {intra_90, inter_90}, {TT_COUNT(intra_90), TT_COUNT(inter_90)}},
                     {0, {intra, inter}, {TT_COUNT(intra), TT_COUNT(inter)}}};
  size_t g = 0;
  while (g + 1 < TT_COUNT(generations) && sm < generations[g].sm) g++;
  *count = generations[g].count[is_inter];
  return generations[g].speeds[is_inter];
}
