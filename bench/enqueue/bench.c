/* How long a call takes that enqueues an operation, when CUDA takes no time: the library's own part. Four ranks, a GPU
 * each, in one process; what is timed is one rank's calls, which repeat one operation. Also how many functions of CUDA
 * such a call uses that a driver would spend time in. `run` builds this, and the CUDA that does nothing (null_cuda.c).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "nccl.h"

enum { RANKS = 4, BATCHES = 31, MOST = 8 };

static ncclComm_t comms[RANKS];
static char *buffers[RANKS][2];
static void *streams[RANKS];

static void must(ncclResult_t result)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}

static double now_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

struct kind {
  const char *name;
  size_t bytes;
  int calls; /* in a group; 0: no group */
};

static void enqueue(const struct kind *kind, int rank)
{
  const char *in = buffers[rank][0];
  char *out = buffers[rank][1];
  size_t count = kind->bytes / 4;
  if (kind->calls > 0) must(ncclGroupStart());
  for (int c = 0; c < (kind->calls > 0 ? kind->calls : 1); c++) {
    if (strcmp(kind->name, "all_gather") == 0)
      must(ncclAllGather(in, out, count / RANKS, ncclFloat, comms[rank], streams[rank]));
    else if (strcmp(kind->name, "send") == 0)
      must(ncclSend(in, count, ncclFloat, (rank + 1) % RANKS, comms[rank], streams[rank]));
    else
      must(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comms[rank], streams[rank]));
  }
  if (kind->calls > 0) must(ncclGroupEnd());
}

/* The first call of each rank makes connections, for which all ranks' libraries are needed but only one user. */
static void measure(const struct kind *kind, int calls, const unsigned long *cuda_calls)
{
  double times[BATCHES];
  for (int rank = 0; rank < RANKS; rank++) enqueue(kind, rank);
  unsigned long before = *cuda_calls;
  enqueue(kind, 0);
  unsigned long cuda = *cuda_calls - before;
  for (int b = 0; b < BATCHES; b++) {
    double start = now_ns();
    for (int i = 0; i < calls; i++) enqueue(kind, 0);
    times[b] = (now_ns() - start) / calls;
  }
  qsort(times, BATCHES, sizeof(*times), compare);
  char group[32] = "";
  if (kind->calls > 0) snprintf(group, sizeof(group), ", %d in a group", kind->calls);
  printf("%-12s %9zu bytes%-14s %8.0f ns (least %.0f)  %lu calls of CUDA\n", kind->name, kind->bytes, group,
         times[BATCHES / 2], times[0], cuda);
}

int main(int argc, char **argv)
{
  static const struct kind kinds[] = {{"all_reduce", 32, 0},        {"all_reduce", 8 << 10, 0},
                                      {"all_reduce", 512 << 10, 0}, {"all_reduce", 32 << 20, 0},
                                      {"all_gather", 64 << 10, 0},  {"send", 8 << 10, 0},
                                      {"all_reduce", 8 << 10, MOST}};
  int calls = argc > 1 ? atoi(argv[1]) : 2000, only = argc > 2 ? atoi(argv[2]) : -1;
  void *library = dlopen(getenv("TUTTI_DEVICE"), RTLD_NOW | RTLD_NOLOAD);
  if (calls < 1) return fprintf(stderr, "usage: bench [CALLS [KIND]]\n"), 2;
  must(ncclCommInitAll(comms, RANKS, NULL));
  if (!library) library = dlopen(getenv("TUTTI_DEVICE"), RTLD_NOW);
  const unsigned long *cuda_calls = library ? dlsym(library, "tt_null_calls") : NULL;
  if (!cuda_calls) return fprintf(stderr, "TUTTI_DEVICE has to be the library that `run` builds\n"), 2;
  for (int rank = 0; rank < RANKS; rank++) {
    for (int b = 0; b < 2; b++) buffers[rank][b] = aligned_alloc(4096, 64 << 20);
    int *device = malloc(sizeof(*device));
    *device = rank;
    streams[rank] = device; /* see null_cuda.c */
  }
  for (int k = 0; k < (int)(sizeof(kinds) / sizeof(*kinds)); k++)
    if (only < 0 || only == k) measure(&kinds[k], calls, cuda_calls);
  for (int rank = 0; rank < RANKS; rank++) must(ncclCommAbort(comms[rank]));
  return 0;
}
