/* --stats: what the ranks' networks did. */
#ifndef PERF_STATS_H
#define PERF_STATS_H

#include <stdbool.h>
#include "json.h"
#include "tutti.h"

struct perf_worker;

/* Called by every thread when all is measured: process 0's report gets the figures of all ranks. A library without
 * tuttiCommNetStats ends the run. */
void perf_stats_gather(struct perf_worker *worker);

/* Two lines, one a direction, of all ranks together. */
void perf_stats_print(const tuttiNetStats_t *stats, int ranks);
/* A list with an entry a rank. */
void perf_stats_save(struct tool_json *json, const tuttiNetStats_t *stats, int ranks);

#endif
