/* tutti-perf: measures collectives and checks their results. Here: which processes take part, and their threads. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "join.h"
#include "launch.h"
#include "launcher.h"
#include "options.h"
#include "pairs.h"
#include "report_json.h"
#include "worker.h"

static const char *environment(const char *name)
{
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static int refuse(const struct perf_options *o, int status, const char *sentence, bool first)
{
  if (first) fprintf(stderr, "%s: %s\n", o->program, sentence);
  return status;
}

/* Where this process stands among those of its host. */
struct place {
  bool child;    /* started by perf_launch */
  int process;   /* of this host's */
  int processes; /* of this host; before the processes have met, perhaps a guess */
  bool same;     /* all see the same devices, since no launcher can have given each its own */
};

/* Memory that the processes of this host will use against what is free; running into the kernel's killer would be a
 * poor answer to a large -e. */
static bool enough_memory(const struct perf_options *o, int local_processes, char *error, size_t size)
{
  char line[128];
  unsigned long long kilobytes = 0;
  FILE *file = fopen("/proc/meminfo", "re");
  while (file && fgets(line, sizeof(line), file) && sscanf(line, "MemAvailable: %llu kB", &kilobytes) != 1) {
  }
  if (file) fclose(file);
  double need = 2.0 * (double)perf_options_room(o) * o->threads * o->comms * local_processes,
         free_bytes = kilobytes * 1024.0;
  if (!kilobytes || need < 0.9 * free_bytes) return true;
  snprintf(error, size, "%d ranks of this host need %.1f GiB for their buffers, and %.1f GiB are free; lower -e",
           o->threads * o->comms * local_processes, need / 0x1p30, free_bytes / 0x1p30);
  return false;
}

static bool root_exists(const struct perf_options *o, int ranks, char *error, size_t size)
{
  if (!o->collective->rooted || o->all_roots || o->root < ranks) return true;
  snprintf(error, size, "-r %d: there are %d ranks", o->root, ranks);
  return false;
}

/* Finds the other processes. PERF_EXIT_OK, or the status to exit with and the sentence (none if it was printed). */
static int find_processes(const struct perf_options *o, struct perf_control *control, struct place *place, char *error,
                          size_t size)
{
  struct perf_launcher launcher;
  char address[160];
  if (!perf_launcher_detect(&launcher, environment, error, size) && o->rank < 0) return PERF_EXIT_USAGE;
  error[0] = 0;
  if (o->rank >= 0)
    launcher = (struct perf_launcher){.name = "--rank", .rank = o->rank, .size = o->ranks_started, .local_size = -1};
  if (o->processes && launcher.size > 1) {
    snprintf(error, size, "%s started this process as one of %d: leave out %s", launcher.name, launcher.size,
             o->nccl_tests_name ? "--np" : "-n");
    return PERF_EXIT_USAGE;
  }
  int processes = o->processes ? o->processes : launcher.size;
  *place = (struct place){.processes = o->processes              ? o->processes
                                       : launcher.local_size > 0 ? launcher.local_size
                                                                 : 1,
                          .same = processes == 1 || o->processes};
  if (!root_exists(o, processes * o->threads * o->comms, error, size)) return PERF_EXIT_USAGE;
  if (perf_backend_host_only(o->device) && !enough_memory(o, place->processes, error, size)) return PERF_EXIT_ERROR;
  if (processes == 1) {
    perf_control_open(control, 0, 1, NULL);
    return PERF_EXIT_OK;
  }
  if (o->processes) {
    int status = perf_launch(control, processes, o->threads * o->comms, o->program, error, size);
    place->child = status < 0;
    return place->child ? PERF_EXIT_OK : status;
  }
  const char *meeting = o->root_address ? o->root_address : environment("TUTTI_PERF_ROOT");
  snprintf(address, sizeof(address), "%s", meeting ? meeting : launcher.address);
  if (!address[0] && o->rank >= 0) {
    snprintf(error, size, "--rank: needs --root-addr HOST:PORT, where process 0 listens");
    return PERF_EXIT_USAGE;
  }
  if (!address[0] && !launcher.job[0]) perf_join_ancestor(launcher.job, sizeof(launcher.job));
  struct perf_join join = {launcher.rank, processes, address, launcher.job, o->join_timeout};
  return perf_join(&join, control, error, size) ? PERF_EXIT_OK : PERF_EXIT_ERROR;
}

/* Everybody gets process 0's unique id. */
static void share_id(struct perf_worker *worker)
{
  struct perf_team *team = worker->team;
  ncclUniqueId *all = calloc((size_t)team->control->processes, sizeof(*all));
  char sentence[1024];
  if (!all) perf_watch_fail(team->watch, "out of memory");
  memset(&worker->id, 0, sizeof(worker->id));
  if (team->control->process == 0) perf_worker_try(worker, 0, "ncclGetUniqueId", ncclGetUniqueId(&worker->id));
  enum perf_control_state state =
      perf_control_gather(team->control, &worker->id, all, sizeof(*all), sentence, sizeof(sentence));
  if (state != PERF_CONTROL_OK) perf_watch_lost(team->watch, state, sentence);
  worker->id = all[0];
  free(all);
}

static void run_threads(struct perf_team *team, struct perf_worker *workers, pthread_t *threads, ncclComm_t *comms)
{
  const struct perf_options *o = team->options;
  for (int t = 0; t < o->threads; t++)
    workers[t] = (struct perf_worker){.team = team, .thread = t, .comms = comms + t * o->comms};
  share_id(&workers[0]);
  for (int t = 1; t < o->threads; t++) workers[t].id = workers[0].id;
  if (!o->parallel_init)
    perf_worker_init_comms(&workers[0], comms, perf_worker_rank(&workers[0], 0), o->threads * o->comms);
  for (int t = 1; t < o->threads; t++)
    if (pthread_create(&threads[t], NULL, perf_worker_run, &workers[t]))
      perf_watch_fail(team->watch, "cannot start %d threads", o->threads);
  perf_worker_run(&workers[0]);
  for (int t = 1; t < o->threads; t++) pthread_join(threads[t], NULL);
}

/* Without this, a process started with standard output closed would get a socket under its number, and print the table
 * into the midst of its messages. */
static void fill_standard_descriptors(void)
{
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

/* A table that was cut short, by a full disk say, is no success. */
static bool table_written(char *error, size_t size)
{
  errno = 0;
  bool written = fflush(stdout) == 0 && !ferror(stdout);
  if (!written) snprintf(error, size, "standard output: %s", errno ? strerror(errno) : "the table was cut short");
  return written;
}

/* The verdict, known to process 0, becomes everybody's exit status; then the run is over. */
static int agree(struct perf_team *team, int status)
{
  char sentence[1024], error[512];
  perf_watch_stop(team->watch);
  perf_control_gather(team->control, &status, team->all, sizeof(status), sentence, sizeof(sentence));
  memcpy(&status, team->all, sizeof(status));
  if (team->control->process != 0) return status;
  bool saved =
      team->options->pairs || perf_report_end(team->report, status ? "failed" : "ok", NULL, error, sizeof(error));
  if (!saved || !table_written(error, sizeof(error))) {
    fprintf(stderr, "%s: %s\n", team->options->program, error);
    return PERF_EXIT_ERROR;
  }
  return status;
}

/* Every rank needs a device. Ranks that share one are the library's affair where a launcher may show each process other
 * devices; here the same are shown to all. */
static bool choose_devices(const struct perf_options *o, const struct place *place, struct perf_team *team, char *error,
                           size_t size)
{
  const char *shared = environment("TUTTI_ALLOW_DUPLICATE_DEVICE");
  int ranks_each = o->threads * o->comms, ranks = place->processes * ranks_each;
  team->backend = perf_backend_select(o->device, error, size);
  if (!team->backend || !perf_options_fit(o, team->backend->streams, error, size)) return false;
  team->devices = team->backend->count();
  team->host_first = place->process * ranks_each;
  if (!team->backend->streams)
    return perf_backend_host_only(o->device) || enough_memory(o, place->processes, error, size);
  if (team->devices < 1) {
    snprintf(error, size, "%s", team->backend->error());
    return false;
  }
  if (!place->same || ranks <= team->devices || (shared && !strcmp(shared, "1"))) return true;
  snprintf(
      error, size,
      "there are %d ranks and %d GPUs: start fewer, or set TUTTI_ALLOW_DUPLICATE_DEVICE=1 to let ranks share a GPU, "
      "or use --device host",
      ranks, team->devices);
  return false;
}

/* Not every launcher tells a process its place among those of its host, so hosts' names do. */
static void find_neighbours(struct perf_team *team, struct place *place)
{
  enum { NAME = 64 };
  char mine[NAME] = "", sentence[1024], *all = team->all;
  gethostname(mine, sizeof(mine) - 1);
  enum perf_control_state state =
      perf_control_gather(team->control, mine, all, sizeof(mine), sentence, sizeof(sentence));
  if (state != PERF_CONTROL_OK) perf_watch_lost(team->watch, state, sentence);
  place->process = place->processes = 0;
  for (int p = 0; p < team->control->processes; p++) {
    if (strncmp(all + p * NAME, mine, NAME)) continue;
    place->process += p < team->control->process;
    place->processes++;
  }
}

/* One process says what is wrong with the devices, though it may be wrong for all. */
static void agree_on_devices(const struct perf_options *o, const struct place *place, struct perf_team *team)
{
  char error[1024] = "", sentence[1024], *all = team->all;
  char good = choose_devices(o, place, team, error, sizeof(error));
  enum perf_control_state state;
  for (;;) { /* the second time only to be told */
    state = perf_control_gather(team->control, &good, all, 1, sentence, sizeof(sentence));
    if (state != PERF_CONTROL_OK) perf_watch_lost(team->watch, state, sentence);
    int bad = 0;
    while (bad < team->control->processes && all[bad]) bad++;
    if (bad == team->control->processes) return;
    if (bad == team->control->process) perf_watch_fail(team->watch, "%s", error);
  }
}

static int run(const struct perf_options *o, struct perf_control *control, struct place *place, int argc, char **argv)
{
  struct perf_watch watch = {.program = o->program,
                             .control = control,
                             .json = control->process == 0 ? o->json : NULL,
                             .launched = place->child};
  struct perf_report report = {0};
  struct perf_team team = {.options = o,
                           .control = control,
                           .watch = &watch,
                           .report = &report,
                           .argc = argc,
                           .argv = argv,
                           .ranks = control->processes * o->threads * o->comms};
  struct perf_worker *workers = calloc((size_t)o->threads, sizeof(*workers));
  pthread_t *threads = calloc((size_t)o->threads, sizeof(*threads));
  ncclComm_t *comms = calloc((size_t)(o->threads * o->comms), sizeof(ncclComm_t));
  perf_watch_start(&watch);
  if (!workers || !threads || !comms || !perf_team_make(&team)) perf_watch_fail(&watch, "out of memory");
  find_neighbours(&team, place);
  agree_on_devices(o, place, &team);
  run_threads(&team, workers, threads, comms);
  int status = agree(&team, workers[0].status);
  perf_team_drop(&team);
  perf_control_close(control);
  free(workers);
  free(threads);
  free(comms);
  return status;
}

/* Finds the other processes and measures with them. */
static int go_on(struct perf_options *options, int argc, char **argv)
{
  struct perf_control control = {0};
  char error[1024] = "", saving[512];
  struct place place = {0};
  int status = find_processes(options, &control, &place, error, sizeof(error));
  if (status == PERF_EXIT_OK && (place.child || !options->processes || options->processes == 1))
    return run(options, &control, &place, argc, argv);
  if (error[0]) {
    refuse(options, status, error, true);
    if (options->json && options->rank <= 0 &&
        !perf_report_save_failure(options->json, options->program, error, saving, sizeof(saving)))
      fprintf(stderr, "%s: %s\n", options->program, saving);
  }
  return status;
}

int main(int argc, char **argv)
{
  struct perf_options options;
  char error[1024] = "";
  fill_standard_descriptors();
  signal(SIGCHLD, SIG_DFL); /* ignored, as some leave it that start programs, no child could be waited for */
  switch (perf_options_parse(&options, argc, argv, error, sizeof(error))) {
  case PERF_PARSE_HELP:
    perf_options_help(&options, stdout);
    return PERF_EXIT_OK;
  case PERF_PARSE_WRONG:
    return refuse(&options, PERF_EXIT_USAGE, error, true);
  case PERF_PARSE_RUN:
    break;
  }
  if (environment("NCCL_TESTS_SPLIT") || environment("NCCL_TESTS_SPLIT_MASK"))
    return refuse(&options, PERF_EXIT_USAGE,
                  "NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK are not supported: one group "
                  "of all ranks is measured; unset them",
                  true);
  return options.of_pairs ? perf_pairs_run(&options, argc, argv, go_on) : go_on(&options, argc, argv);
}
