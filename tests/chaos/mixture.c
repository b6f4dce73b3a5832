/* Ranks on fake devices that do random operations on several communicators, streams and kinds of memory, and check
 * every element of the results: chaos_mixture SHAPE SEED BATCHES. SHAPE names processes, each by its host's letter and
 * its number of ranks, which are threads: a2,a1,b3. The processes of host x read the topology file MIXTURE_TOPO_x, if
 * that is set. What is done follows from SEED alone, the same on all ranks; where memory lies, of a rank's own choice,
 * follows from SEED and the rank. Status 0: all is right, and nothing is left behind; 1: wrong data; 3: an error; 4: an
 * operation did not end; 5: something was left.
 *
 * A batch is up to four operations, which are enqueued one by one, in a group, or in a graph that is then replayed.
 * Outputs lie between guards that must stay, and inputs out of place may not change. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mixture.h"
#include "tests/common/held.h"

static struct {
  _Atomic int ready;
  ncclUniqueId id;
} * shared;
static int nranks, batches;
static uint64_t seed;

_Noreturn void tt_mixture_end(const struct rank *rank, int status, const char *what)
{
  fprintf(stderr, "rank %d, batch %d: %s\n", rank->rank, rank->batch, what);
  fflush(NULL);
  _exit(status);
}

void tt_mixture_check(const struct rank *rank, const char *what, ncclResult_t result)
{
  char text[2048];
  if (result == ncclSuccess) return;
  snprintf(text, sizeof text, "%s: %s", what, ncclGetLastError(rank->comms[0].comm));
  tt_mixture_end(rank, ENDED_ERROR, text);
}

uint32_t tt_mixture_draw(uint64_t *state, uint32_t below)
{
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  uint64_t mixed = (*state ^ *state >> 29) * 0xbf58476d1ce4e5b9u;
  return (uint32_t)(mixed >> 33) % below;
}

/* ---- Communicators ---- */

static void open_window(struct rank *rank, struct comm *comm)
{
  int flags = tt_mixture_draw(&rank->common, 2) ? NCCL_WIN_COLL_SYMMETRIC : NCCL_WIN_DEFAULT;
  if (!tt_mixture_draw(&rank->common, 2) || comm->comm == NULL) return;
  CHECK(rank, ncclMemAlloc((void **)&comm->window, WINDOW_BYTES));
  CHECK(rank, ncclCommWindowRegister(comm->comm, comm->window, WINDOW_BYTES, &comm->handle, flags));
}

static void close_comm(struct rank *rank, struct comm *comm)
{
  bool finalize = tt_mixture_draw(&rank->common, 2);
  if (comm->comm == NULL) return;
  if (comm->window != NULL) {
    CHECK(rank, ncclCommWindowDeregister(comm->comm, comm->handle));
    CHECK(rank, ncclMemFree(comm->window));
  }
  if (finalize) CHECK(rank, ncclCommFinalize(comm->comm));
  CHECK(rank, ncclCommDestroy(comm->comm));
  *comm = (struct comm){0};
}

static void learn(struct rank *rank, struct comm *comm)
{
  CHECK(rank, ncclCommCount(comm->comm, &comm->count));
  CHECK(rank, ncclCommUserRank(comm->comm, &comm->rank));
}

/* Some ranks of all, in an order that may be another. */
static void split(struct rank *rank, struct comm *comm)
{
  int color = 0, key = 0, reversed = (int)tt_mixture_draw(&rank->common, 2);
  for (int r = 0; r < nranks; r++) {
    int drawn = (int)tt_mixture_draw(&rank->common, 5);
    if (r != rank->rank) continue;
    color = drawn == 4 ? NCCL_SPLIT_NOCOLOR : drawn / 2;
    key = reversed ? -r : r;
  }
  CHECK(rank, ncclCommSplit(rank->comms[0].comm, color, key, &comm->comm, NULL));
  if (comm->comm != NULL) learn(rank, comm);
  open_window(rank, comm);
}

/* ---- Ranks ---- */

static void *run_rank(void *argument)
{
  struct rank *rank = argument;
  fake_set_device(rank->device);
  rank->common = seed;
  rank->own = seed * 977 + (uint64_t)rank->rank + 1;
  for (int s = 0; s < STREAMS; s++) rank->streams[s] = fake_stream_create(rank->device);
  CHECK(rank, ncclCommInitRank(&rank->comms[0].comm, nranks, shared->id, rank->rank));
  learn(rank, &rank->comms[0]);
  open_window(rank, &rank->comms[0]);
  for (int c = 1; c < COMMS; c++) split(rank, &rank->comms[c]);
  for (rank->batch = 0; rank->batch < batches; rank->batch++) {
    tt_mixture_batch(rank);
    int c = (int)tt_mixture_draw(&rank->common, 4 * COMMS);
    if (c == 0 || c >= COMMS) continue;
    close_comm(rank, &rank->comms[c]);
    split(rank, &rank->comms[c]);
  }
  bool first = tt_mixture_draw(&rank->common, 2);
  for (int c = 0; c < COMMS; c++) close_comm(rank, &rank->comms[first ? c : COMMS - 1 - c]);
  for (int s = 0; s < STREAMS; s++) fake_stream_destroy(rank->streams[s]);
  return NULL;
}

/* What a process may not keep, and what the device gave. */
static int look_behind(struct held before)
{
  struct held now;
  struct fake_counts device;
  for (int i = 0; i < 1000; i++) {
    bool settled = held_settles(before, 10, &now);
    fake_count(&device);
    if (settled && device.contexts + device.memories + device.twins + device.users + device.hosts == 0) return 0;
    if (settled) usleep(10000);
  }
  fprintf(stderr,
          "LEFT threads %d -> %d, descriptors %d -> %d, shared mappings %d -> %d; of the device %d contexts, %d pieces "
          "of memory, %d twins, %d users' allocations, %d ranges of the host's memory\n",
          before.threads, now.threads, before.descriptors, now.descriptors, before.mappings, now.mappings,
          device.contexts, device.memories, device.twins, device.users, device.hosts);
  return ENDED_LEFT;
}

/* ---- Processes ---- */

struct process {
  char host;
  int ranks, first_rank, first_device;
};

static void *run_nothing(void *argument)
{
  return argument;
}

/* The sanitizer's thread stays: it is there before the first look. */
static struct held prepare(void)
{
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_nothing, NULL) == 0) pthread_join(thread, NULL);
  return held_now();
}

static int run_process(const struct process *process)
{
  struct rank ranks[MOST_RANKS] = {0};
  pthread_t threads[MOST_RANKS];
  char name[32] = "MIXTURE_TOPO_x", host[] = "host-x";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  name[strlen(name) - 1] = host[5] = process->host;
  setenv("NCCL_HOSTID", host, 1);
  if (getenv(name) != NULL) setenv("NCCL_TOPO_FILE", getenv(name), 1);
  struct held before = prepare();
  if (process->first_rank == 0) {
    if (ncclGetUniqueId(&shared->id) != ncclSuccess) return ENDED_ERROR;
    shared->ready = 1;
  }
  while (!shared->ready) usleep(1000);
  for (int r = 0; r < process->ranks; r++) {
    ranks[r].rank = process->first_rank + r;
    ranks[r].device = process->first_device + r;
    if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) return ENDED_ERROR;
  }
  for (int r = 0; r < process->ranks; r++) pthread_join(threads[r], NULL);
  return look_behind(before);
}

/* How many processes `shape` names; 0: it is none. */
static int read_shape(const char *shape, struct process *processes)
{
  int count = 0, devices[26] = {0};
  for (; count < MOST_RANKS && shape[0] >= 'a' && shape[0] <= 'z'; count++) {
    struct process *p = &processes[count];
    *p = (struct process){shape[0], atoi(shape + 1), nranks, devices[shape[0] - 'a']};
    nranks += p->ranks;
    devices[p->host - 'a'] += p->ranks;
    if (p->ranks < 1 || nranks > MOST_RANKS) return 0;
    shape += strcspn(shape, ",");
    if (*shape == ',') shape++;
  }
  return *shape == '\0' ? count : 0;
}

int main(int argc, char **argv)
{
  struct process processes[MOST_RANKS];
  int count = argc == 4 ? read_shape(argv[1], processes) : 0, status = 0;
  if (count == 0) {
    fprintf(stderr, "usage: chaos_mixture SHAPE SEED BATCHES, SHAPE like a2,a1,b3 with %d ranks at most\n", MOST_RANKS);
    return 2;
  }
  seed = strtoull(argv[2], NULL, 10);
  batches = atoi(argv[3]);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ENDED_ERROR;
  for (int p = 0; p < count; p++) {
    pid_t pid = fork();
    if (pid == 0) {
      int result = run_process(&processes[p]);
      fflush(NULL);
      exit(result);
    }
    if (pid < 0) return ENDED_ERROR;
  }
  for (int p = 0; p < count; p++) {
    int one = 0;
    if (wait(&one) < 0) return ENDED_ERROR;
    int ended = WIFEXITED(one) ? WEXITSTATUS(one) : 128 + WTERMSIG(one);
    if (status == 0) status = ended;
  }
  return status;
}
