/* Recognises from the environment who started this process, without linking any launcher's library. */
#ifndef PERF_LAUNCHER_H
#define PERF_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

enum perf_launcher_kind {
  PERF_LAUNCHER_NONE, /* started alone */
  PERF_LAUNCHER_TORCHRUN,
  PERF_LAUNCHER_OPENMPI,
  PERF_LAUNCHER_PMI, /* MPICH, Intel MPI and others with PMI_RANK */
  PERF_LAUNCHER_SLURM,
  PERF_LAUNCHER_RANK_ENV, /* RANK and WORLD_SIZE set by something else */
};

struct perf_launcher {
  enum perf_launcher_kind kind;
  const char *name; /* "mpirun (Open MPI)" */
  int rank, size;
  int local_rank, local_size; /* -1: not known */
  /* Where to meet: an address, or, if all processes share a host, a name that is theirs alone. "" if not known. */
  char address[160];
  char job[160];
};

/* Reads the environment through `get` (getenv, or a test's table). False: it contradicts itself or lacks something, and
 * `error` says what to set. `get` must return the same for the same name. */
bool perf_launcher_detect(struct perf_launcher *launcher, const char *(*get)(const char *name), char *error,
                          size_t size);

/* The first host of a SLURM node list such as "gpu[07-09,12],login1"; false if there is none. */
bool perf_launcher_first_host(const char *list, char *host, size_t size);

#endif
