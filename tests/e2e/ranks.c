/* One rank of a communicator that does what its arguments say, knowing of the other ranks only what the library tells
 * it: e2e_ranks RANK NRANKS ID_FILE STEP... Rank 0 writes the unique id to ID_FILE, the others wait for it there (with
 * NCCL_COMM_ID set too: the file then says that rank 0 is up). A step is one of
 *
 *     id                      fetch the unique id (init does so too)
 *     init                    create the communicator
 *     destroy                 destroy it
 *     leave                   exit at once with status 0
 *     COLLECTIVE:COUNT[:OP[:TYPE[:ROOT]]]
 *                             all_reduce, all_gather, reduce_scatter, broadcast, reduce
 *     send:COUNT:PEER         floats; so is recv:COUNT:PEER
 *     shift:COUNT             sends to the next rank and receives from the one before
 *     twice:COUNT             two all-reduces in one group
 *     again                   destroys the communicator and makes another, whose id rank 0 sends over the old
 *     beside                  makes another of the same ranks, which what follows uses, while the first is there
 *     ready                   says "running"
 *     report                  prints the communicator's report, on one line
 *     sleep:MILLISECONDS
 *     ignore:USR1             ignore that signal
 *     device:N                the next communicator is on device N of the fake device, which TUTTI_DEVICE names
 *     nonblocking             the next communicator is; calls are polled for
 *     abort:MILLISECONDS      another thread aborts the communicator after that time
 *     peer_channels:N         the next communicator's configuration has that nChannelsPerNetPeer
 *     stream                  what follows is put on a host stream, and waited for there
 *     loop:...                the same again and again, until it fails; says "running" after the first
 *
 * An error is printed as `rank R: STEP: TEXT` and ends the program with status 3. Wrong data ends it with status 1. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "nccl.h"
#include "tests/common/held.h"
#include "tutti.h"

enum { WRONG_DATA = 1, USAGE = 2, FAILED = 3, ID_SECONDS = 60 };

static int rank, nranks;
static const char *id_file;
static ncclUniqueId id;
static bool have_id;
static ncclComm_t comm, first;
static ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static bool configured;
static cudaStream_t stream; /* of all operations: NULL, or a host stream */
static struct {
  pthread_t thread;
  int after_ms;
  bool started;
} aborter;
/* NULL: a call's end is the operation's end. */
static bool (*wait_for_device)(void *on, int timeout_ms);

static struct held before;

/* The root of an id whose ranks did not all come stays on purpose: it tells those that are late. */
static void look_behind(const char *step)
{
  struct held now;
#ifdef __SANITIZE_THREAD__
  before.threads++; /* the sanitizer's own, which starts with the first of ours */
#endif
  if (getenv("E2E_LOOK_BEHIND") == NULL || strcmp(step, "init") == 0 || strcmp(step, "again") == 0) return;
  if (held_settles(before, 2000, &now)) return;
  printf("LEFT threads %d -> %d, descriptors %d -> %d, shared mappings %d -> %d\n", before.threads, now.threads,
         before.descriptors, now.descriptors, before.mappings, now.mappings);
}

_Noreturn static void fail(const char *step, const char *text)
{
  fprintf(stderr, "rank %d: %s: %s\n", rank, step, text);
  fflush(stderr);
  if (aborter.started)
    pthread_join(aborter.thread, NULL);
  else if (comm != NULL)
    ncclCommAbort(comm);
  look_behind(step);
  exit(FAILED);
}

static void check(const char *step, ncclResult_t result)
{
  for (ncclResult_t asked; result == ncclInProgress; usleep(1000)) {
    asked = ncclCommGetAsyncError(comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess) fail(step, ncclGetLastError(comm));
}

static void *abort_later(void *unused)
{
  (void)unused;
  usleep((useconds_t)aborter.after_ms * 1000);
  ncclResult_t result = ncclCommAbort(comm);
  if (result != ncclSuccess) fprintf(stderr, "rank %d: the abort failed: %s\n", rank, ncclGetLastError(NULL));
  return NULL;
}

static void start_aborter(const char *step)
{
  aborter.after_ms = atoi(step + strlen("abort:"));
  if (pthread_create(&aborter.thread, NULL, abort_later, NULL) != 0) fail(step, "no thread");
  aborter.started = true;
}

/* What a program does with a GPU's runtime it does here with the fake device's library. */
static void choose_device(const char *step)
{
  void *library = dlopen(getenv("TUTTI_DEVICE"), RTLD_NOW);
  void (*choose)(int device) = library != NULL ? (void (*)(int))dlsym(library, "fake_set_device") : NULL;
  if (choose == NULL) fail(step, "TUTTI_DEVICE is not the fake device's library");
  choose(atoi(step + strlen("device:")));
  wait_for_device = (bool (*)(void *, int))dlsym(library, "fake_stream_wait");
}

static void wait_for_operation(const char *step)
{
  ncclResult_t result = ncclSuccess;
  check(step, tuttiStreamSynchronize(stream));
  if (wait_for_device == NULL) return;
  bool ended = wait_for_device(NULL, 60000);
  check(step, ncclCommGetAsyncError(comm, &result));
  check(step, result);
  if (!ended) fail(step, "the device did not end it");
}

static void write_id(void)
{
  char part[512];
  snprintf(part, sizeof part, "%s.part", id_file);
  FILE *file = fopen(part, "w");
  if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 || rename(part, id_file) != 0)
    fail("id", "cannot write the file");
}

static void get_id(void)
{
  if (have_id) return;
  have_id = true;
  if (rank == 0) {
    check("id", ncclGetUniqueId(&id));
    write_id();
    return;
  }
  const struct timespec pause = {0, 10000000};
  for (int waited = 0; waited < ID_SECONDS * 100; waited++) {
    FILE *file = fopen(id_file, "r");
    size_t got = file != NULL ? fread(&id, sizeof id, 1, file) : 0;
    if (file != NULL) fclose(file);
    if (got == 1) return;
    nanosleep(&pause, NULL);
  }
  fail("id", "rank 0 did not write the file");
}

static int index_of(const char *name, const char *const *names)
{
  for (int i = 0; names[i] != NULL; i++)
    if (strcmp(name, names[i]) == 0) return i;
  fprintf(stderr, "%s: unknown\n", name);
  exit(USAGE);
}

/* All ranks give 1, so that a sum is the number of ranks. Only sums of floats are compared. */
static void compare(const float *out, size_t count, float expected)
{
  for (size_t i = 0; i < count; i++)
    if (out[i] != expected) {
      fprintf(stderr, "rank %d: element %zu is %g, not %g\n", rank, i, (double)out[i], (double)expected);
      exit(WRONG_DATA);
    }
}

static void shift(const char *step, size_t count)
{
  float *in = calloc(count + 1, sizeof *in), *out = calloc(count + 1, sizeof *out);
  for (size_t i = 0; i < count; i++) in[i] = (float)rank;
  check(step, ncclGroupStart());
  check(step, ncclSend(in, count, ncclFloat, (rank + 1) % nranks, comm, stream));
  check(step, ncclRecv(out, count, ncclFloat, (rank + nranks - 1) % nranks, comm, stream));
  check(step, ncclGroupEnd());
  wait_for_operation(step);
  compare(out, count, (float)((rank + nranks - 1) % nranks));
  free(in);
  free(out);
}

static void twice(const char *step)
{
  size_t count = strtoull(step + strlen("twice:"), NULL, 10);
  float *in = calloc(count, sizeof *in), *out = calloc(count, sizeof *out);
  check(step, ncclGroupStart());
  for (int i = 0; i < 2; i++) check(step, ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream));
  check(step, ncclGroupEnd());
  wait_for_operation(step);
  free(in);
  free(out);
}

/* The new id goes over the old communicator. */
static void again(const char *step)
{
  if (rank == 0) check(step, ncclGetUniqueId(&id));
  check(step, ncclBroadcast(&id, &id, sizeof id, ncclUint8, 0, comm, stream));
  wait_for_operation(step);
  check(step, ncclCommDestroy(comm));
  comm = NULL;
  check(step, ncclCommInitRank(&comm, nranks, id, rank));
}

static void collective(const char *step)
{
  static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                                      "send",       "recv",       "shift",          NULL};
  static const char *const ops[] = {"sum", "prod", "max", "min", "avg", NULL};
  static const char *const types[] = {"int8",   "uint8", "int32", "uint32", "int64",
                                      "uint64", "half",  "float", "double", NULL};
  static float *in, *out;
  static size_t room;
  char text[200], *words[5] = {NULL, "1", "sum", "float", "0"}, *save = NULL;
  snprintf(text, sizeof text, "%s", step);
  char *word = strtok_r(text, ":", &save);
  for (int i = 0; i < 5 && word != NULL; i++, word = strtok_r(NULL, ":", &save)) words[i] = word;
  int kind = index_of(words[0], kinds);
  size_t count = strtoull(words[1], NULL, 10), needed = count * (size_t)nranks * sizeof(double);
  if (kind == 7) {
    shift(step, count);
    return;
  }
  if (kind >= 5) {
    int peer = atoi(words[2]);
    float *buffer = calloc(count + 1, sizeof *buffer);
    check(step, kind == 5 ? ncclSend(buffer, count, ncclFloat, peer, comm, stream)
                          : ncclRecv(buffer, count, ncclFloat, peer, comm, stream));
    wait_for_operation(step);
    free(buffer);
    return;
  }
  int op = index_of(words[2], ops), type = index_of(words[3], types), root = atoi(words[4]);
  if (needed > room) {
    free(in);
    free(out);
    in = calloc(1, needed);
    out = calloc(1, needed);
    room = needed;
    if (in == NULL || out == NULL) fail(step, "out of memory");
    for (size_t i = 0; i < room / sizeof *in; i++) in[i] = 1;
  }
  ncclResult_t result = kind == 0   ? ncclAllReduce(in, out, count, type, op, comm, stream)
                        : kind == 1 ? ncclAllGather(in, out, count, type, comm, stream)
                        : kind == 2 ? ncclReduceScatter(in, out, count, type, op, comm, stream)
                        : kind == 3 ? ncclBroadcast(in, out, count, type, root, comm, stream)
                                    : ncclReduce(in, out, count, type, op, root, comm, stream);
  check(step, result);
  wait_for_operation(step);
  if (op != ncclSum || type != ncclFloat) return;
  bool summed = kind == 0 || kind == 2 || kind == 4;
  if (kind != 4 || rank == root) compare(out, kind == 1 ? count * (size_t)nranks : count, summed ? (float)nranks : 1);
}

static void report(const char *step)
{
  static char text[1 << 18];
  size_t bytes = sizeof text;
  check(step, tuttiCommReport(comm, tuttiReportJson, text, &bytes));
  for (char *at = text; (at = strchr(at, '\n')) != NULL;) *at = ' ';
  printf("report: %s\n", text);
}

static void run(const char *step)
{
  if (strcmp(step, "id") == 0) {
    get_id();
  } else if (strcmp(step, "init") == 0) {
    get_id();
    check(step, configured ? ncclCommInitRankConfig(&comm, nranks, id, rank, &config)
                           : ncclCommInitRank(&comm, nranks, id, rank));
  } else if (strcmp(step, "nonblocking") == 0) {
    config.blocking = 0;
    configured = true;
  } else if (strncmp(step, "abort:", 6) == 0) {
    start_aborter(step);
  } else if (strncmp(step, "peer_channels:", 14) == 0) {
    config.nChannelsPerNetPeer = atoi(step + 14);
    configured = true;
  } else if (strcmp(step, "destroy") == 0) {
    check(step, ncclCommDestroy(comm));
    if (first != NULL) check(step, ncclCommDestroy(first));
    comm = first = NULL;
  } else if (strcmp(step, "beside") == 0) {
    first = comm;
    comm = NULL;
    check(step, ncclCommSplit(first, 0, rank, &comm, NULL));
  } else if (strncmp(step, "twice:", 6) == 0) {
    twice(step);
  } else if (strcmp(step, "again") == 0) {
    again(step);
  } else if (strcmp(step, "ready") == 0) {
    printf("running\n");
    fflush(stdout);
  } else if (strcmp(step, "report") == 0) {
    report(step);
  } else if (strcmp(step, "leave") == 0) {
    _exit(0);
  } else if (strncmp(step, "sleep:", 6) == 0) {
    usleep((useconds_t)atoi(step + 6) * 1000);
  } else if (strcmp(step, "ignore:USR1") == 0) {
    signal(SIGUSR1, SIG_IGN);
  } else if (strncmp(step, "device:", 7) == 0) {
    choose_device(step);
  } else if (strcmp(step, "stream") == 0) {
    check(step, tuttiStreamCreate(&stream));
  } else if (strncmp(step, "loop:", 5) == 0) {
    for (bool first = true;; first = false) {
      collective(step + 5);
      if (first) printf("running\n");
      fflush(stdout);
    }
  } else {
    collective(step);
  }
}

int main(int argc, char **argv)
{
  if (argc < 4) {
    fprintf(stderr, "usage: %s RANK NRANKS ID_FILE STEP...\n", argv[0]);
    return USAGE;
  }
  rank = atoi(argv[1]);
  nranks = atoi(argv[2]);
  id_file = argv[3];
  before = held_now();
  for (int i = 4; i < argc; i++) run(argv[i]);
  printf("done\n");
  return 0;
}
