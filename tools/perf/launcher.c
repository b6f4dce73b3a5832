/* See launcher.h. The order of the table matters: torchrun may run under srun, and Open MPI and MPICH inside a SLURM
 * allocation, whose variables then describe the job and not this process. */
#include "launcher.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* torchrun's own store listens on MASTER_PORT; the run meets this many ports above. */
enum { PORT_OFFSET = 17 };

struct row {
  enum perf_launcher_kind kind;
  const char *name;
  const char *proof; /* must be set too: tells a process of the launcher from one that merely inherited variables */
  const char *rank, *size, *local_rank, *local_size;
  const char *job[3]; /* what identifies the job on this host */
};

static const struct row rows[] = {
    {PERF_LAUNCHER_TORCHRUN,
     "torchrun",
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT", NULL}},
    {PERF_LAUNCHER_OPENMPI,
     "mpirun (Open MPI)",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", NULL}},
    {PERF_LAUNCHER_PMI,
     "mpirun (PMI)",
     "PMI_SIZE",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_KVSNAME", "PMI_JOBID", NULL}},
    {PERF_LAUNCHER_SLURM,
     "srun",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID", NULL}},
    {PERF_LAUNCHER_SLURM,
     "srun",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID", NULL}},
    {PERF_LAUNCHER_RANK_ENV,
     "RANK and WORLD_SIZE",
     "WORLD_SIZE",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_PORT", NULL, NULL}},
};

static bool number(const char *text, long most, int *out)
{
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < 0 || value > most) return false;
  *out = (int)value;
  return true;
}

static int number_or_unknown(const char *text)
{
  int value;
  return text && number(text, 1 << 24, &value) ? value : -1;
}

bool perf_launcher_first_host(const char *list, char *host, size_t size)
{
  size_t n = strcspn(list, ",[");
  if (n == 0 || n >= size) return false;
  memcpy(host, list, n);
  host[n] = 0;
  if (list[n] != '[') return true;
  const char *index = list + n + 1;
  size_t digits = strcspn(index, "-,]");
  if (digits == 0 || n + digits >= size) return false;
  memcpy(host + n, index, digits);
  host[n + digits] = 0;
  /* A suffix after the bracket belongs to the name. */
  const char *after = strchr(index, ']');
  size_t rest = after ? strcspn(after + 1, ",") : 0;
  if (n + digits + rest >= size) return false;
  if (rest) memcpy(host + n + digits, after + 1, rest);
  host[n + digits + rest] = 0;
  return true;
}

/* Ranks of a SLURM step on several nodes meet at the first node, on a port that follows from the job. */
static void slurm_address(struct perf_launcher *launcher, const char *(*get)(const char *))
{
  const char *list = get("SLURM_STEP_NODELIST"), *nodes = get("SLURM_STEP_NUM_NODES");
  char host[120];
  if (!list || !nodes || !strcmp(nodes, "1") || !perf_launcher_first_host(list, host, sizeof(host))) return;
  uint32_t hash = 2166136261u;
  for (const char *c = launcher->job; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
  snprintf(launcher->address, sizeof(launcher->address), "%s:%u", host, 20000 + hash % 12000);
}

static bool meeting_point(struct perf_launcher *launcher, const struct row *row, const char *(*get)(const char *),
                          char *error, size_t size)
{
  for (int i = 0; row->job[i]; i++) {
    const char *part = get(row->job[i]);
    size_t used = strlen(launcher->job);
    if (part) snprintf(launcher->job + used, sizeof(launcher->job) - used, "/%s", part);
  }
  const char *given = get("TUTTI_PERF_ROOT"), *host = get("MASTER_ADDR"), *port = get("MASTER_PORT");
  int master_port;
  if (given) {
    snprintf(launcher->address, sizeof(launcher->address), "%s", given);
  } else if (host && port) {
    if (!number(port, 65535 - PORT_OFFSET, &master_port)) {
      snprintf(error, size, "MASTER_PORT=%s: must be a port below %d", port, 65535 - PORT_OFFSET);
      return false;
    }
    snprintf(launcher->address, sizeof(launcher->address), strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
             master_port + PORT_OFFSET);
  } else if (row->kind == PERF_LAUNCHER_SLURM) {
    slurm_address(launcher, get);
  }
  if (launcher->address[0]) return true;
  if (row->kind == PERF_LAUNCHER_RANK_ENV || (launcher->local_size > 0 && launcher->local_size != launcher->size)) {
    snprintf(error, size,
             "%s started %d processes, and how they can meet is not known: set MASTER_ADDR and "
             "MASTER_PORT, or TUTTI_PERF_ROOT=host:port, for all of them",
             row->name, launcher->size);
    return false;
  }
  return true;
}

bool perf_launcher_detect(struct perf_launcher *launcher, const char *(*get)(const char *name), char *error,
                          size_t size)
{
  *launcher =
      (struct perf_launcher){.kind = PERF_LAUNCHER_NONE, .name = "none", .size = 1, .local_rank = -1, .local_size = -1};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const struct row *row = &rows[i];
    const char *rank = get(row->rank), *count = get(row->size);
    if (!get(row->proof) || !rank || !count) continue;
    /* The shell of a batch script is no step: SLURM numbers it so. */
    if (row->kind == PERF_LAUNCHER_SLURM && !strcmp(get(row->proof), "4294967291")) continue;
    launcher->kind = row->kind;
    launcher->name = row->name;
    if (!number(count, 1 << 24, &launcher->size) || launcher->size == 0 ||
        !number(rank, launcher->size - 1, &launcher->rank)) {
      snprintf(error, size, "%s=%s and %s=%s: must be a rank and a number of ranks above it", row->rank, rank,
               row->size, count);
      return false;
    }
    launcher->local_rank = row->local_rank ? number_or_unknown(get(row->local_rank)) : -1;
    launcher->local_size = row->local_size ? number_or_unknown(get(row->local_size)) : -1;
    return launcher->size == 1 || meeting_point(launcher, row, get, error, size);
  }
  return true;
}
