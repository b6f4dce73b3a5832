/* The JSON form of a report. */
#ifndef PERF_REPORT_JSON_H
#define PERF_REPORT_JSON_H

#include "report.h"

double perf_report_mean(const struct perf_report *report); /* mean bus bandwidth over all measurements */
bool perf_report_slow(const struct perf_report *report);   /* below 0.9 of NCCL_TESTS_MIN_BW */

/* Writes the file. With the lock held, or before there is another thread. */
bool perf_report_save(struct perf_report *report, const char *status, const char *sentence, char *error, size_t size);
/* A file for a run that ended before it began: no ranks, no results. */
bool perf_report_save_failure(const char *path, const char *program, const char *sentence, char *error, size_t size);

#endif
