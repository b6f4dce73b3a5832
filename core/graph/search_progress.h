/* Where a search is between its attempts; for core/graph/search*.c only. */
#ifndef TT_GRAPH_SEARCH_PROGRESS_H
#define TT_GRAPH_SEARCH_PROGRESS_H

#include "graph/search_internal.h"

/* Attempts of one speed, whose limits are kept in mind. */
#define TT_MOST_ATTEMPTS 1024

/* Attempts that were made at the present speed, in the terms of paths that there are. */
struct tt_made {
  int count;
  struct {
    int pattern, cross_nic, same_channels, intra, inter, visits;
  } attempts[TT_MOST_ATTEMPTS];
};

struct tt_progress {
  struct tt_search *s;
  struct tt_graph_record record;
  struct tt_made made;
  const float *speeds;
  int nspeeds, speed;
  int64_t visits;     /* left to all attempts */
  int left;           /* to the last one; TT_PERFECT */
  int cross_nic;      /* the rule, where there is anything to cross */
  bool same_channels; /* to begin with */
};

/* ---- search_limits.c ---- */
/* Which paths there are. */
void tt_search_find_types(struct tt_search *s);
/* Sets the limits of the first attempt. */
ncclResult_t tt_search_set_limits(struct tt_progress *p);
/* Loosens one limit by a step, in an order of their own; false: none can be any more. The first of them is for
 * itself. */
bool tt_search_loosen_same_channels(struct tt_progress *p);
bool tt_search_loosen(struct tt_progress *p);
/* The limits of the second pass: more bandwidth for as many channels. */
void tt_search_second_limits(struct tt_progress *p);
bool tt_search_raise_speed(struct tt_progress *p);

#endif
