/* Brings together processes that somebody else started: process 0 listens, the others connect, all within a deadline.
 */
#ifndef PERF_JOIN_H
#define PERF_JOIN_H

#include <stdbool.h>
#include <stddef.h>
#include "control.h"

struct perf_join {
  int process, processes;
  const char *address; /* "host:port", "[v6]:port"; or "" */
  const char *job;     /* without an address: a name that only this job's processes on this host have */
  int timeout;         /* seconds */
};

#define PERF_JOIN_HOST 160
#define PERF_JOIN_NO_ADDRESS "is not HOST:PORT, with a port from 1 to 65535"
/* The parts of an address, that of a v6 host without its brackets. False if it is none. */
bool perf_join_split(const char *text, char *host, size_t size, const char **port);

/* False: `error` says who is missing and what to set. */
bool perf_join(const struct perf_join *join, struct perf_control *control, char *error, size_t size);

/* The name for PERF_LAUNCHER_PMI launchers that tell their processes none: the nearest ancestor outside of the job. */
void perf_join_ancestor(char *job, size_t size);

#endif
