/* Ranks that exchange messages over the network: e2e_exchange PROCESSES THREADS SCENARIO... Starts the processes, which
 * are hosts of their own (NCCL_HOSTID), with THREADS ranks in each, and runs the scenarios one after another:
 *     alltoall      all-to-all, gather and scatter of several sizes, out of place and in place
 *     order         messages that users order between groups otherwise than the group that they meet does
 *     random:SEED   groups of messages of random sizes, zero and odd ones and large ones, called in random order
 *     many:COUNT    so many messages between each two neighbours in one group
 * Results are checked byte by byte. Status 0: all is right. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include "nccl.h"

static struct {
  _Atomic int ready;
  ncclUniqueId id;
} * shared;
static int nranks, scenarios;
static char **scenario;

struct rank {
  int rank;
  ncclComm_t comm;
};

static void check(const struct rank *rank, const char *what, ncclResult_t result)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank->rank, what, ncclGetLastError(rank->comm));
  _exit(3);
}

#define CHECK(rank, call) check((rank), #call, (call))

/* Random bytes; a message is a piece of them, which begins where its key says. */
#define LARGE (((size_t)3 << 20) + 1)
#define KEYS ((size_t)1 << 16)
static unsigned char pattern[LARGE + KEYS];

static void make_pattern(void)
{
  uint64_t state = 1;
  for (size_t i = 0; i < sizeof pattern; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    pattern[i] = (unsigned char)(state >> 56);
  }
}

static const unsigned char *piece(uint64_t key)
{
  return pattern + key * 40503 % KEYS;
}

static unsigned char *filled(uint64_t key, size_t bytes)
{
  unsigned char *data = malloc(bytes + 1);
  memcpy(data, piece(key), bytes);
  return data;
}

static void compare(const struct rank *rank, const char *what, uint64_t key, const unsigned char *data, size_t bytes)
{
  if (memcmp(data, piece(key), bytes) == 0) return;
  size_t i = 0;
  while (data[i] == piece(key)[i]) i++;
  fprintf(stderr, "rank %d: %s: byte %zu of %zu is wrong\n", rank->rank, what, i, bytes);
  _exit(1);
}

/* ---- alltoall ---- */

static void all_to_all(struct rank *rank, size_t bytes)
{
  size_t n = (size_t)nranks, me = (size_t)rank->rank;
  unsigned char *in = malloc(n * bytes + 1), *out = malloc(n * bytes + 1);
  for (int in_place = 0; in_place < 2; in_place++) {
    for (size_t p = 0; p < n; p++) memcpy(in + p * bytes, piece(me * n + p), bytes);
    CHECK(rank, ncclAlltoAll(in, in_place ? in : out, bytes, ncclUint8, rank->comm, NULL));
    for (size_t p = 0; p < n; p++) compare(rank, "alltoall", p * n + me, (in_place ? in : out) + p * bytes, bytes);
  }
  for (int root = 0; root < nranks; root += nranks - 1) {
    memset(out, 0, n * bytes);
    memcpy(in, piece(me), bytes);
    CHECK(rank, ncclGather(in, out, bytes, ncclUint8, root, rank->comm, NULL));
    for (size_t p = 0; p < n && rank->rank == root; p++) compare(rank, "gather", p, out + p * bytes, bytes);
    for (size_t p = 0; p < n; p++) memcpy(in + p * bytes, piece(p + 77), bytes);
    CHECK(rank, ncclScatter(in, out, bytes, ncclUint8, root, rank->comm, NULL));
    compare(rank, "scatter", me + 77, out, bytes);
  }
  free(in);
  free(out);
}

/* ---- order ---- */

static void send_to(struct rank *rank, int peer, uint64_t key, size_t bytes)
{
  unsigned char *data = filled(key, bytes);
  CHECK(rank, ncclSend(data, bytes, ncclUint8, peer, rank->comm, NULL));
  free(data);
}

static void receive_from(struct rank *rank, int peer, uint64_t key, size_t bytes)
{
  unsigned char *data = calloc(bytes, 1);
  CHECK(rank, ncclRecv(data, bytes, ncclUint8, peer, rank->comm, NULL));
  compare(rank, "a message in turn", key, data, bytes);
  free(data);
}

/* Rank 0 receives from two ranks at once, and sends to them at once; the second one waits for the first one. */
static void order(struct rank *rank, int first, int second, size_t bytes)
{
  if (rank->rank == 0) {
    unsigned char *in[2] = {calloc(bytes, 1), calloc(bytes, 1)}, *out[2] = {filled(3, bytes), filled(4, bytes)};
    CHECK(rank, ncclGroupStart());
    CHECK(rank, ncclRecv(in[0], bytes, ncclUint8, first, rank->comm, NULL));
    CHECK(rank, ncclRecv(in[1], bytes, ncclUint8, second, rank->comm, NULL));
    CHECK(rank, ncclGroupEnd());
    for (int i = 0; i < 2; i++) compare(rank, "received at once", 1 + (uint64_t)i, in[i], bytes);
    CHECK(rank, ncclGroupStart());
    CHECK(rank, ncclSend(out[0], bytes, ncclUint8, first, rank->comm, NULL));
    CHECK(rank, ncclSend(out[1], bytes, ncclUint8, second, rank->comm, NULL));
    CHECK(rank, ncclGroupEnd());
    for (int i = 0; i < 2; i++) free(in[i]), free(out[i]);
  } else if (rank->rank == first) {
    send_to(rank, 0, 1, bytes);
    send_to(rank, second, 5, 4);
    receive_from(rank, 0, 3, bytes);
    send_to(rank, second, 6, 4);
  } else if (rank->rank == second) {
    receive_from(rank, first, 5, 4);
    send_to(rank, 0, 2, bytes);
    receive_from(rank, first, 6, 4);
    receive_from(rank, 0, 4, bytes);
  }
}

/* ---- random ---- */

struct message {
  int from, to;
  size_t bytes;
  unsigned char *data;
};

static size_t random_size(unsigned *seed)
{
  switch (rand_r(seed) % 8) {
  case 0:
    return 0;
  case 1:
    return 1;
  case 2:
    return LARGE - (size_t)(rand_r(seed) % 1000);
  case 3:
    return ((size_t)1 << 17) + (size_t)(rand_r(seed) % 3); /* about a slot */
  default:
    return (size_t)(rand_r(seed) % 5000);
  }
}

static bool is_mine(const struct rank *rank, const struct message *message)
{
  return message->from == rank->rank || message->to == rank->rank;
}

/* Calls for message m after all earlier ones of its pair and direction, which is all that order means. */
static void call_for(struct rank *rank, struct message *messages, bool *called, int m)
{
  for (int e = 0; e < m; e++)
    if (!called[e] && messages[e].from == messages[m].from && messages[e].to == messages[m].to)
      call_for(rank, messages, called, e);
  struct message *message = &messages[m];
  called[m] = true;
  if (message->from == rank->rank)
    CHECK(rank, ncclSend(message->data, message->bytes, ncclUint8, message->to, rank->comm, NULL));
  else
    CHECK(rank, ncclRecv(message->data, message->bytes, ncclUint8, message->from, rank->comm, NULL));
}

static void random_group(struct rank *rank, unsigned seed)
{
  enum { MESSAGES = 60 };
  struct message messages[MESSAGES];
  bool called[MESSAGES] = {false};
  unsigned own = seed * 31 + (unsigned)rank->rank;
  for (int m = 0; m < MESSAGES; m++) {
    struct message *message = &messages[m];
    message->from = rand_r(&seed) % nranks;
    message->to = (message->from + 1 + rand_r(&seed) % (nranks - 1)) % nranks;
    message->bytes = random_size(&seed);
    if (!is_mine(rank, message)) continue;
    message->data = message->from == rank->rank ? filled((uint64_t)m, message->bytes) : calloc(message->bytes + 1, 1);
  }
  CHECK(rank, ncclGroupStart());
  for (int left = 4 * MESSAGES; left > 0; left--) {
    int m = left > MESSAGES ? rand_r(&own) % MESSAGES : MESSAGES - left;
    if (is_mine(rank, &messages[m]) && !called[m]) call_for(rank, messages, called, m);
  }
  CHECK(rank, ncclGroupEnd());
  for (int m = 0; m < MESSAGES; m++) {
    if (!is_mine(rank, &messages[m])) continue;
    compare(rank, "a random message", (uint64_t)m, messages[m].data, messages[m].bytes);
    free(messages[m].data);
  }
}

/* ---- many ---- */

/* Message m has m mod 17 bytes. */
static void many(struct rank *rank, int count)
{
  int to = rank->rank + 1 < nranks ? rank->rank + 1 : -1, from = rank->rank - 1;
  unsigned char *in = calloc((size_t)count, 16);
  CHECK(rank, ncclGroupStart());
  for (int m = 0; m < count; m++) {
    size_t bytes = (size_t)(m % 17);
    uint64_t out = (uint64_t)(rank->rank + m);
    if (to >= 0) CHECK(rank, ncclSend(piece(out), bytes, ncclUint8, to, rank->comm, NULL));
    if (from >= 0) CHECK(rank, ncclRecv(in + (size_t)m * 16, bytes, ncclUint8, from, rank->comm, NULL));
  }
  CHECK(rank, ncclGroupEnd());
  for (int m = 0; m < count && from >= 0; m++)
    compare(rank, "one of many messages", (uint64_t)(from + m), in + (size_t)m * 16, (size_t)(m % 17));
  free(in);
}

/* ---- Running ---- */

static void run(struct rank *rank, const char *name)
{
  if (strcmp(name, "alltoall") == 0) {
    static const size_t sizes[] = {0, 1, 1001, 300001, LARGE / 2};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) all_to_all(rank, sizes[s]);
  } else if (strcmp(name, "order") == 0) {
    static const size_t sizes[] = {5, 1 << 18, LARGE};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      order(rank, 1, 2, sizes[s]);
      order(rank, 2, 1, sizes[s]);
      order(rank, 1, nranks - 1, sizes[s]);
      order(rank, nranks - 1, 1, sizes[s]);
    }
  } else if (strncmp(name, "random:", 7) == 0) {
    for (unsigned g = 0; g < 3; g++) random_group(rank, (unsigned)atoi(name + 7) * 100 + g);
  } else if (strncmp(name, "many:", 5) == 0) {
    many(rank, atoi(name + 5));
  } else {
    fprintf(stderr, "e2e_exchange: no scenario %s\n", name);
    _exit(2);
  }
}

static void *run_rank(void *arg)
{
  struct rank *rank = arg;
  CHECK(rank, ncclCommInitRank(&rank->comm, nranks, shared->id, rank->rank));
  for (int s = 0; s < scenarios; s++) run(rank, scenario[s]);
  CHECK(rank, ncclCommDestroy(rank->comm));
  return NULL;
}

static int run_process(int process, int threads)
{
  char host[32];
  pthread_t *ids = calloc((size_t)threads, sizeof *ids);
  struct rank *ranks = calloc((size_t)threads, sizeof *ranks);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  snprintf(host, sizeof host, "host%d", process);
  setenv("NCCL_HOSTID", host, 1);
  if (process == 0) {
    if (ncclGetUniqueId(&shared->id) != ncclSuccess) return 3;
    shared->ready = 1;
  }
  while (!shared->ready) usleep(1000);
  for (int t = 0; t < threads; t++) {
    ranks[t].rank = process * threads + t;
    if (pthread_create(&ids[t], NULL, run_rank, &ranks[t]) != 0) return 3;
  }
  for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
  free(ids);
  free(ranks);
  return 0;
}

int main(int argc, char **argv)
{
  int processes = argc > 3 ? atoi(argv[1]) : 0, threads = argc > 3 ? atoi(argv[2]) : 0, status = 0;
  if (processes < 1 || threads < 1 || processes * threads < 3) {
    fprintf(stderr, "usage: e2e_exchange PROCESSES THREADS SCENARIO..., of at least 3 ranks\n");
    return 2;
  }
  make_pattern();
  nranks = processes * threads;
  scenarios = argc - 3;
  scenario = argv + 3;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 3;
  for (int p = 0; p < processes; p++) {
    pid_t pid = fork();
    if (pid == 0) {
      int result = run_process(p, threads);
      fflush(NULL);
      exit(result);
    }
    if (pid < 0) return 3;
  }
  for (int p = 0; p < processes; p++) {
    int one = 0;
    if (wait(&one) < 0 || !WIFEXITED(one) || WEXITSTATUS(one) != 0) status = WIFEXITED(one) ? WEXITSTATUS(one) : 4;
  }
  return status;
}
