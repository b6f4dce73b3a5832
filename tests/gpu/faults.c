/* What happens when a rank never comes, is killed, or calls something else. Prints "PASS case: ..." or "FAIL case:
 * why"; ends with 0 or 1. A case runs in child processes, so that one that hangs is ended and the rest can go on.
 *   gpu_faults CASE [-n RANKS] [--device auto|host|cuda]
 *     abort        rank 0 runs an all-reduce that the others never join: aborting returns soon and frees its stream.
 *                  All ranks are threads of one process.
 *     abort-graph  the same, the operation being launched by a graph
 *     kill         rank 1 is killed in the midst of all-reduces: the others get an error that names it, and their
 * streams become free mismatch     rank 1 gives another count: all ranks get an error, and it names the count */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "backend.h"

enum { MOST_RANKS = 16, COUNT = 1 << 18, CASE_SECONDS = 30 };
/* Seconds: an abort is to return at once; a dead peer is noticed by its connection's end, or, at worst, by silence. */
static const double abort_limit = 1.0, free_limit = 2.0, hear_limit = 8.0;

/* Shared by all processes of a case. */
struct scene {
  ncclUniqueId id;
  _Atomic int id_ready, arrived[4];
  _Atomic double killed; /* when rank 1 was */
  struct {
    _Atomic int done; /* 1: as it should be; -1: not */
    char text[600];
  } ranks[MOST_RANKS];
};

struct rank {
  struct scene *scene;
  const struct perf_backend *backend;
  int number, ranks;
  ncclComm_t comm;
  cudaStream_t stream;
  char *data;
};

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void nap(int ms)
{
  struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
  nanosleep(&time, NULL);
}

static bool verdict(struct rank *rank, bool good, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool verdict(struct rank *rank, bool good, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(rank->scene->ranks[rank->number].text, sizeof(rank->scene->ranks[0].text), format, args);
  va_end(args);
  atomic_store(&rank->scene->ranks[rank->number].done, good ? 1 : -1);
  return good;
}

/* Waits until all ranks have come to point `point`, but not for one that failed. The parent bounds this. */
static void meet(struct rank *rank, int point)
{
  double end = now() + hear_limit;
  atomic_fetch_add(&rank->scene->arrived[point], 1);
  while (atomic_load(&rank->scene->arrived[point]) < rank->ranks && now() < end) nap(1);
}

static ncclResult_t all_reduce(struct rank *rank, size_t count)
{
  return ncclAllReduce(rank->data, rank->data, count, ncclFloat32, ncclSum, rank->comm, rank->stream);
}

/* The communicator's failure, or success. */
static ncclResult_t trouble(struct rank *rank)
{
  ncclResult_t error = ncclSuccess, result = ncclCommGetAsyncError(rank->comm, &error);
  return result != ncclSuccess ? result : error == ncclInProgress ? ncclSuccess : error;
}

static enum perf_stream_state wait_stream(struct rank *rank, double seconds)
{
  double end = now() + seconds;
  enum perf_stream_state state;
  while ((state = rank->backend->stream_state(rank->stream)) == PERF_STREAM_BUSY && now() < end) nap(1);
  return state;
}

/* A communicator that has done one operation. */
static bool set_up(struct rank *rank)
{
  const struct perf_backend *backend = rank->backend;
  if (!backend->choose(rank->number % backend->count())) return verdict(rank, false, "%s", backend->error());
  if (rank->number == 0) {
    if (ncclGetUniqueId(&rank->scene->id) != ncclSuccess) return verdict(rank, false, "%s", ncclGetLastError(NULL));
    atomic_store(&rank->scene->id_ready, 1);
  }
  while (!atomic_load(&rank->scene->id_ready)) nap(1);
  rank->data = backend->allocate(COUNT * 4);
  if (!rank->data || (backend->streams && !backend->stream_make(&rank->stream)))
    return verdict(rank, false, "%s", backend->error());
  if (ncclCommInitRank(&rank->comm, rank->ranks, rank->scene->id, rank->number) != ncclSuccess ||
      all_reduce(rank, COUNT) != ncclSuccess)
    return verdict(rank, false, "the first operation: %s", ncclGetLastError(NULL));
  if (wait_stream(rank, hear_limit) != PERF_STREAM_DONE)
    return verdict(rank, false, "the first operation does not end");
  meet(rank, 0);
  return true;
}

/* An abort is timed; then the stream must be free, and the device fit for use. */
static bool abort_in_time(struct rank *rank, const char *what)
{
  double start = now();
  ncclResult_t result = ncclCommAbort(rank->comm);
  double took = now() - start;
  if (result != ncclSuccess) return verdict(rank, false, "%s: ncclCommAbort: %s", what, ncclGetErrorString(result));
  if (took > abort_limit) return verdict(rank, false, "%s: ncclCommAbort took %.2f s", what, took);
  enum perf_stream_state state = wait_stream(rank, free_limit);
  double freed = now() - start;
  if (state != PERF_STREAM_DONE)
    return verdict(rank, false, "%s: %.2f s after ncclCommAbort its stream %s", what, freed,
                   state == PERF_STREAM_BUSY ? "is still busy" : rank->backend->error());
  if (!rank->backend->zero(rank->data, COUNT * 4))
    return verdict(rank, false, "%s: after ncclCommAbort: %s", what, rank->backend->error());
  return verdict(rank, true, "%s: aborted in %.3f s, stream free after %.3f s", what, took, freed);
}

static bool run_abort(struct rank *rank, bool graph)
{
  const struct perf_backend *backend = rank->backend;
  if (!backend->streams) return verdict(rank, false, "this case needs a device with streams");
  if (!set_up(rank)) return false;
  /* All capture, since ranks may ask each other then where their buffers are; only rank 0 launches. */
  void *captured = NULL;
  bool first = rank->number == 0, started = !graph || backend->capture_begin(rank->stream);
  if (first || graph) started = started && all_reduce(rank, COUNT) == ncclSuccess;
  if (graph && started) captured = backend->capture_end(rank->stream);
  if (first && graph) started = started && captured && backend->graph_launch(captured, rank->stream);
  if (!started || (graph && !captured))
    return verdict(rank, false, "starting: %s; %s", ncclGetLastError(NULL), backend->error());
  if (first) {
    if (wait_stream(rank, 0.3) != PERF_STREAM_BUSY)
      return verdict(rank, false, "an operation that its peers never joined has ended");
    return abort_in_time(rank, "waiting for its peers");
  }
  while (!atomic_load(&rank->scene->ranks[0].done)) nap(1);
  return abort_in_time(rank, "idle");
}

/* Waits for the failure, that began at `since`; what it says must hold `word`. */
static bool hears(struct rank *rank, const char *word, double since, double *heard)
{
  ncclResult_t result = ncclSuccess;
  while ((result = trouble(rank)) == ncclSuccess && now() < since + hear_limit) nap(1);
  *heard = now() - since;
  const char *text = ncclGetLastError(rank->comm);
  if (result == ncclSuccess) return verdict(rank, false, "there is no error after %.1f s", *heard);
  if (!text || !strstr(text, word))
    return verdict(rank, false, "the error does not say \"%s\": %s: %.300s", word, ncclGetErrorString(result), text);
  return true;
}

/* All-reduces without a pause until one fails or is stuck. */
static void operate_until_trouble(struct rank *rank)
{
  struct scene *scene = rank->scene;
  for (int i = 0; all_reduce(rank, COUNT) == ncclSuccess; i++) {
    if (rank->number == 1 && i == 20) {
      atomic_store(&scene->killed, now());
      kill(getpid(), SIGKILL);
    }
    enum perf_stream_state state = PERF_STREAM_BUSY;
    while (state == PERF_STREAM_BUSY && trouble(rank) == ncclSuccess) {
      double killed = atomic_load(&scene->killed);
      if (killed > 0 && now() > killed + hear_limit) return;
      state = rank->backend->stream_state(rank->stream);
    }
    if (state != PERF_STREAM_DONE) return;
  }
}

static bool run_kill(struct rank *rank)
{
  double heard;
  if (!set_up(rank)) return false;
  operate_until_trouble(rank);
  if (!hears(rank, "rank 1", atomic_load(&rank->scene->killed), &heard)) return false;
  char said[300];
  snprintf(said, sizeof(said), "%s", ncclGetLastError(rank->comm));
  double since = now();
  enum perf_stream_state state = wait_stream(rank, free_limit);
  if (state != PERF_STREAM_DONE)
    return verdict(rank, false, "%.2f s after the error its stream %s", now() - since,
                   state == PERF_STREAM_BUSY ? "is still busy" : rank->backend->error());
  double freed = now() - since;
  if (!abort_in_time(rank, "with a dead peer")) return false;
  return verdict(rank, true, "heard after %.3f s, stream free %.3f s later: %s", heard, freed, said);
}

/* Rank 1 and a neighbour see the difference; the others are told, or see that one of them failed. */
static bool run_mismatch(struct rank *rank)
{
  double started, heard;
  if (!set_up(rank)) return false;
  started = now();
  (void)all_reduce(rank, rank->number == 1 ? COUNT / 2 : COUNT);
  if (!hears(rank, "count", started, &heard)) return false;
  if (wait_stream(rank, free_limit) != PERF_STREAM_DONE)
    return verdict(rank, false, "%.2f s after the error its stream is not free", free_limit);
  char said[300];
  snprintf(said, sizeof(said), "%s", ncclGetLastError(rank->comm));
  meet(rank, 1); /* who leaves early would be one more failure for the others */
  if (!abort_in_time(rank, "after the error")) return false;
  return verdict(rank, true, "after %.3f s: %s", heard, said);
}

static bool run_case(const char *name, struct rank *rank)
{
  if (!strcmp(name, "kill")) return run_kill(rank);
  if (!strcmp(name, "mismatch")) return run_mismatch(rank);
  return run_abort(rank, !strcmp(name, "abort-graph"));
}

/* The threads of the abort cases. */
struct seat {
  struct rank rank;
  const char *name;
  pthread_t thread;
};

static void *run_seat(void *arg)
{
  struct seat *seat = arg;
  (void)run_case(seat->name, &seat->rank);
  return NULL;
}

_Noreturn static void child(struct scene *scene, const char *name, int first, int count, int ranks,
                            enum perf_device_choice device)
{
  struct seat seats[MOST_RANKS];
  char why[400];
  const struct perf_backend *backend = perf_backend_select(device, why, sizeof(why));
  for (int i = 0; i < count; i++) {
    seats[i] = (struct seat){{.scene = scene, .backend = backend, .number = first + i, .ranks = ranks}, name, 0};
    if (!backend) verdict(&seats[i].rank, false, "%s", why);
  }
  if (!backend) _exit(1);
  for (int i = 1; i < count; i++)
    if (pthread_create(&seats[i].thread, NULL, run_seat, &seats[i])) _exit(1);
  run_seat(&seats[0]);
  for (int i = 1; i < count; i++) pthread_join(seats[i].thread, NULL);
  _exit(0); /* what a failed case leaves behind must not end in exit handlers */
}

/* Waits for all children, and ends those that do not end. */
static void await(const pid_t *pids, int processes)
{
  double end = now() + CASE_SECONDS;
  int left = processes;
  bool gone[MOST_RANKS] = {false};
  while (left > 0) {
    for (int p = 0; p < processes; p++) {
      if (gone[p] || waitpid(pids[p], NULL, WNOHANG) == 0) continue;
      gone[p] = true;
      left--;
    }
    if (left && now() > end)
      for (int p = 0; p < processes; p++)
        if (!gone[p]) kill(pids[p], SIGKILL);
    if (left) nap(10);
  }
}

static int conclude(const struct scene *scene, const char *name, int ranks)
{
  int failed = -1, shown = 0;
  for (int r = 0; r < ranks; r++)
    if (scene->ranks[r].done != 1 && !(r == 1 && !strcmp(name, "kill")) && failed < 0) failed = r;
  if (failed >= 0) shown = failed;
  const char *text = scene->ranks[shown].done ? scene->ranks[shown].text : "it ended, or was ended, without a word";
  printf("%s %s, %d ranks: rank %d: %s\n", failed >= 0 ? "FAIL" : "PASS", name, ranks, shown, text);
  return failed >= 0;
}

static int run(const char *name, int ranks, enum perf_device_choice device)
{
  bool threads = !strncmp(name, "abort", 5);
  pid_t pids[MOST_RANKS];
  int processes = threads ? 1 : ranks;
  struct scene *scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (scene == MAP_FAILED) return 1;
  for (int p = 0; p < processes; p++) {
    pids[p] = fork();
    if (pids[p] == 0) child(scene, name, p, threads ? ranks : 1, ranks, device);
    if (pids[p] < 0) {
      perror("fork");
      processes = p;
    }
  }
  await(pids, processes);
  return conclude(scene, name, ranks);
}

int main(int argc, char **argv)
{
  static const struct option options[] = {{"device", 1, NULL, 'D'}, {NULL, 0, NULL, 0}};
  static const char *const cases[] = {"abort", "abort-graph", "kill", "mismatch"};
  enum perf_device_choice device = PERF_DEVICE_AUTO;
  int ranks = 2, c;
  bool known = false, good = true;
  while ((c = getopt_long(argc, argv, "n:", options, NULL)) != -1) {
    if (c == 'n') ranks = atoi(optarg);
    if (c == 'D') good = perf_device_parse(optarg, &device);
    good = good && c != '?';
  }
  for (int i = 0; optind + 1 == argc && i < 4; i++) known |= !strcmp(cases[i], argv[optind]);
  if (!good || !known || ranks < 2 || ranks > MOST_RANKS) {
    fprintf(stderr, "usage: gpu_faults abort|abort-graph|kill|mismatch [-n RANKS] [--device auto|host|cuda]\n");
    return 2;
  }
  return run(argv[optind], ranks, device);
}
