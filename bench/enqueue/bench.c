/* How long a call takes that enqueues an operation, when CUDA takes no time: the library's own part. Ranks of one
 * process, a GPU each; what is timed is one rank's calls, which repeat one operation, or those of all ranks at once, a
 * thread each. Also which functions of CUDA an operation calls, and how often. `run` builds this, and the CUDA that
 * does nothing (null_cuda.c).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "bench/enqueue/null_cuda.h"
#include "nccl.h"

enum { MOST_RANKS = 4, BATCHES = 31, CALLS_OF_CUDA = 64 };

static int ranks = MOST_RANKS;
static int calls = 2000;
static int only = -1; /* a kind; -1: all */
static ncclComm_t comms[MOST_RANKS];
static char *buffers[MOST_RANKS][2];
static void *streams[MOST_RANKS];
static pthread_barrier_t batch; /* where threads begin one */
static tt_null_calls_fn *cuda_calls;
static int (*set_device)(int device);

static void must(ncclResult_t result)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}

static double now_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

/* ---- The operations ---- */

struct kind {
  const char *name;
  void (*call)(int rank, size_t bytes);
  size_t bytes;
  int calls; /* in a group; 0: no group, or one of its own */
};

static void all_reduce(int rank, size_t bytes)
{
  must(ncclAllReduce(buffers[rank][0], buffers[rank][1], bytes / 4, ncclFloat, ncclSum, comms[rank], streams[rank]));
}

static void all_gather(int rank, size_t bytes)
{
  size_t count = bytes / 4 / (size_t)ranks;
  must(ncclAllGather(buffers[rank][0], buffers[rank][1], count, ncclFloat, comms[rank], streams[rank]));
}

static void all_to_all(int rank, size_t bytes)
{
  size_t count = bytes / 4 / (size_t)ranks;
  must(ncclAlltoAll(buffers[rank][0], buffers[rank][1], count, ncclFloat, comms[rank], streams[rank]));
}

static void send_to_next(int rank, size_t bytes)
{
  must(ncclSend(buffers[rank][0], bytes, ncclInt8, (rank + 1) % ranks, comms[rank], streams[rank]));
}

/* As tools/perf's sendrecv. */
static void send_recv(int rank, size_t bytes)
{
  int previous = (rank + ranks - 1) % ranks;
  must(ncclGroupStart());
  send_to_next(rank, bytes);
  must(ncclRecv(buffers[rank][1], bytes, ncclInt8, previous, comms[rank], streams[rank]));
  must(ncclGroupEnd());
}

/* As tools/perf's alltoall, with the rank's message to itself. */
static void exchange(int rank, size_t bytes)
{
  size_t each = bytes / (size_t)ranks;
  must(ncclGroupStart());
  for (int peer = 0; peer < ranks; peer++) {
    size_t at = (size_t)peer * each;
    must(ncclSend(buffers[rank][0] + at, each, ncclInt8, peer, comms[rank], streams[rank]));
    must(ncclRecv(buffers[rank][1] + at, each, ncclInt8, peer, comms[rank], streams[rank]));
  }
  must(ncclGroupEnd());
}

static void enqueue(const struct kind *kind, int rank)
{
  if (kind->calls > 0) must(ncclGroupStart());
  for (int c = 0; c < (kind->calls > 0 ? kind->calls : 1); c++) kind->call(rank, kind->bytes);
  if (kind->calls > 0) must(ncclGroupEnd());
}

/* ---- Measuring ---- */

static void copy_counts(unsigned long *counts)
{
  const struct tt_null_call *call = cuda_calls();
  for (int f = 0; call[f].name != NULL && f < CALLS_OF_CUDA; f++) counts[f] = call[f].count;
}

/* What the calling thread has called of CUDA since the counts were copied. */
static void print_cuda(const unsigned long *before)
{
  const struct tt_null_call *call = cuda_calls();
  for (int f = 0; call[f].name != NULL && f < CALLS_OF_CUDA; f++)
    if (call[f].count > before[f]) printf(" %s %lu", call[f].name, call[f].count - before[f]);
  printf("\n");
}

/* A thread, which is a rank, or all of them if `every`. */
struct caller {
  int rank;
  bool every;
};

static void meet(const struct caller *caller)
{
  if (!caller->every) pthread_barrier_wait(&batch);
}

/* The first call of each rank makes connections, for which all ranks' libraries are needed but only one user. */
static void measure(const struct caller *caller, const struct kind *kind)
{
  double times[BATCHES];
  unsigned long before[CALLS_OF_CUDA];
  int rank = caller->rank;
  for (int other = rank; other < (caller->every ? ranks : rank + 1); other++) enqueue(kind, other);
  enqueue(kind, rank);
  for (int b = 0; b < BATCHES; b++) {
    meet(caller);
    double start = now_ns();
    for (int i = 0; i < calls; i++) enqueue(kind, rank);
    times[b] = (now_ns() - start) / calls;
  }
  copy_counts(before);
  enqueue(kind, rank);
  if (rank != 0) return;
  qsort(times, BATCHES, sizeof(*times), compare);
  char group[32] = "";
  if (kind->calls > 0) snprintf(group, sizeof(group), ", %d in a group", kind->calls);
  printf("%-10s %9zu bytes%-14s %6.0f ns (least %.0f) ", kind->name, kind->bytes, group, times[BATCHES / 2], times[0]);
  print_cuda(before);
}

static const struct kind kinds[] = {{"all_reduce", all_reduce, 8, 0},
                                    {"all_reduce", all_reduce, 8 << 10, 0},
                                    {"all_reduce", all_reduce, 512 << 10, 0},
                                    {"all_reduce", all_reduce, 32 << 20, 0},
                                    {"all_gather", all_gather, 64 << 10, 0},
                                    {"send", send_to_next, 8 << 10, 0},
                                    {"all_reduce", all_reduce, 8 << 10, 8},
                                    {"sendrecv", send_recv, 8, 0},
                                    {"sendrecv", send_recv, 32 << 10, 0},
                                    {"alltoall", all_to_all, 32, 0},
                                    {"exchange", exchange, 32, 0}};

static void *call_all(void *argument)
{
  const struct caller *caller = argument;
  set_device(caller->rank); /* as users do, so that the library need not */
  for (int k = 0; k < (int)(sizeof(kinds) / sizeof(*kinds)); k++)
    if (only < 0 || only == k) measure(caller, &kinds[k]);
  meet(caller);
  return NULL;
}

static void call_by_threads(void)
{
  pthread_t threads[MOST_RANKS];
  struct caller callers[MOST_RANKS];
  pthread_barrier_init(&batch, NULL, (unsigned)ranks);
  for (int rank = 0; rank < ranks; rank++) {
    callers[rank] = (struct caller){.rank = rank};
    pthread_create(&threads[rank], NULL, call_all, &callers[rank]);
  }
  for (int rank = 0; rank < ranks; rank++) pthread_join(threads[rank], NULL);
}

static void prepare(void)
{
  for (int rank = 0; rank < ranks; rank++) {
    for (int b = 0; b < 2; b++) buffers[rank][b] = aligned_alloc(4096, 64 << 20);
    int *device = malloc(sizeof(*device));
    *device = rank;
    streams[rank] = device; /* see null_cuda.c */
  }
  void *library = dlopen(getenv("TUTTI_DEVICE"), RTLD_NOW);
  if (library != NULL) {
    *(void **)&cuda_calls = dlsym(library, "tt_null_calls");
    *(void **)&set_device = dlsym(library, "cudaSetDevice");
  }
  if (cuda_calls != NULL && set_device != NULL) return;
  fprintf(stderr, "TUTTI_DEVICE has to be the library that `run` builds\n");
  exit(2);
}

int main(int argc, char **argv)
{
  bool threads = false, bad = false;
  for (int c; (c = getopt(argc, argv, "n:t")) != -1;) {
    if (c == 'n') ranks = atoi(optarg);
    if (c == 't') threads = true;
    bad |= c == '?';
  }
  if (optind < argc) calls = atoi(argv[optind++]);
  if (optind < argc) only = atoi(argv[optind++]);
  if (bad || calls < 1 || ranks < 2 || ranks > MOST_RANKS)
    return fprintf(stderr, "usage: bench [-n RANKS] [-t] [CALLS [KIND]]\n"), 2;
  prepare();
  must(ncclCommInitAll(comms, ranks, NULL));
  if (threads)
    call_by_threads();
  else
    call_all(&(struct caller){.every = true});
  for (int rank = 0; rank < ranks; rank++) must(ncclCommAbort(comms[rank]));
  return 0;
}
