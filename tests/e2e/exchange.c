/* Ranks that exchange messages over the network: e2e_exchange PROCESSES THREADS SCENARIO... Starts the processes, which
 * are hosts of their own (NCCL_HOSTID), with THREADS ranks in each, and runs the scenarios one after another:
 *     alltoall      all-to-all, gather and scatter of several sizes, out of place and in place
 *     order         messages that users order between groups otherwise than the group that they meet does
 *     random:SEED   groups of messages of random sizes, zero and odd ones and large ones, called in random order
 *     many:COUNT    so many messages between each two neighbours in one group
 *     pairs:BYTES   a message between any two ranks, both ways, in one group
 *     turns:BYTES   scatters from all roots and all-reduces in one group: roots wait for each other in earlier ones
 *     pool:BYTES    prints what a rank's connections hold; network pools hold something, so much at most, and a spare
 *                   slot for each that they ever had to give
 *
 * Results are checked byte by byte. Status 0: all is right. With E2E_FAKE, a library of tests/fakes/device, ranks are
 * on devices with streams. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
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
#include "tutti.h"

static struct {
  _Atomic int ready, looked;
  ncclUniqueId id;
} * shared;
static int nranks, scenarios;
static char **scenario;

struct rank {
  int rank;
  ncclComm_t comm;
  void *stream;
};

/* The fake device's; NULL: it is not in use. */
#define FAKE_DEVICES 8
static void (*choose_device)(int device);
static void *(*make_stream)(int device);
static void (*end_stream)(void *stream);
static bool (*wait_for_stream)(void *stream, int timeout_ms);

static void load_fake(void)
{
  const char *path = getenv("E2E_FAKE");
  if (path == NULL) return;
  void *library = dlopen(path, RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "e2e_exchange: %s\n", dlerror());
    _exit(3);
  }
  setenv("TUTTI_DEVICE", path, 1);
  setenv("TUTTI_ALLOW_DUPLICATE_DEVICE", "1", 1);
  choose_device = (void (*)(int))dlsym(library, "fake_set_device");
  make_stream = (void *(*)(int))dlsym(library, "fake_stream_create");
  end_stream = (void (*)(void *))dlsym(library, "fake_stream_destroy");
  wait_for_stream = (bool (*)(void *, int))dlsym(library, "fake_stream_wait");
}

static void check(const struct rank *rank, const char *what, ncclResult_t result)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank->rank, what, ncclGetLastError(rank->comm));
  _exit(3);
}

#define CHECK(rank, call) check((rank), #call, (call))

/* Waits until what was called is done. */
static void finish(const struct rank *rank)
{
  ncclResult_t result;
  if (rank->stream == NULL) return;
  if (!wait_for_stream(rank->stream, 200000)) {
    fprintf(stderr, "rank %d: the stream does not come to its end\n", rank->rank);
    _exit(4);
  }
  CHECK(rank, ncclCommGetAsyncError(rank->comm, &result));
  check(rank, "the works", result);
}

static void end_group(const struct rank *rank)
{
  CHECK(rank, ncclGroupEnd());
  finish(rank);
}

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
    CHECK(rank, ncclAlltoAll(in, in_place ? in : out, bytes, ncclUint8, rank->comm, rank->stream));
    finish(rank);
    for (size_t p = 0; p < n; p++) compare(rank, "alltoall", p * n + me, (in_place ? in : out) + p * bytes, bytes);
  }
  for (int root = 0; root < nranks; root += nranks - 1) {
    memset(out, 0, n * bytes);
    memcpy(in, piece(me), bytes);
    CHECK(rank, ncclGather(in, out, bytes, ncclUint8, root, rank->comm, rank->stream));
    finish(rank);
    for (size_t p = 0; p < n && rank->rank == root; p++) compare(rank, "gather", p, out + p * bytes, bytes);
    for (size_t p = 0; p < n; p++) memcpy(in + p * bytes, piece(p + 77), bytes);
    CHECK(rank, ncclScatter(in, out, bytes, ncclUint8, root, rank->comm, rank->stream));
    finish(rank);
    compare(rank, "scatter", me + 77, out, bytes);
  }
  free(in);
  free(out);
}

/* ---- order ---- */

static void send_to(struct rank *rank, int peer, uint64_t key, size_t bytes)
{
  unsigned char *data = filled(key, bytes);
  CHECK(rank, ncclSend(data, bytes, ncclUint8, peer, rank->comm, rank->stream));
  finish(rank);
  free(data);
}

static void receive_from(struct rank *rank, int peer, uint64_t key, size_t bytes)
{
  unsigned char *data = calloc(bytes, 1);
  CHECK(rank, ncclRecv(data, bytes, ncclUint8, peer, rank->comm, rank->stream));
  finish(rank);
  compare(rank, "a message in turn", key, data, bytes);
  free(data);
}

/* Rank 0 receives from two ranks at once, and sends to them at once; the second one waits for the first one. */
static void order(struct rank *rank, int first, int second, size_t bytes)
{
  if (rank->rank == 0) {
    unsigned char *in[2] = {calloc(bytes, 1), calloc(bytes, 1)}, *out[2] = {filled(3, bytes), filled(4, bytes)};
    CHECK(rank, ncclGroupStart());
    CHECK(rank, ncclRecv(in[0], bytes, ncclUint8, first, rank->comm, rank->stream));
    CHECK(rank, ncclRecv(in[1], bytes, ncclUint8, second, rank->comm, rank->stream));
    end_group(rank);
    for (int i = 0; i < 2; i++) compare(rank, "received at once", 1 + (uint64_t)i, in[i], bytes);
    CHECK(rank, ncclGroupStart());
    CHECK(rank, ncclSend(out[0], bytes, ncclUint8, first, rank->comm, rank->stream));
    CHECK(rank, ncclSend(out[1], bytes, ncclUint8, second, rank->comm, rank->stream));
    end_group(rank);
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
    CHECK(rank, ncclSend(message->data, message->bytes, ncclUint8, message->to, rank->comm, rank->stream));
  else
    CHECK(rank, ncclRecv(message->data, message->bytes, ncclUint8, message->from, rank->comm, rank->stream));
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
  end_group(rank);
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
    if (to >= 0) CHECK(rank, ncclSend(piece(out), bytes, ncclUint8, to, rank->comm, rank->stream));
    if (from >= 0) CHECK(rank, ncclRecv(in + (size_t)m * 16, bytes, ncclUint8, from, rank->comm, rank->stream));
  }
  end_group(rank);
  for (int m = 0; m < count && from >= 0; m++)
    compare(rank, "one of many messages", (uint64_t)(from + m), in + (size_t)m * 16, (size_t)(m % 17));
  free(in);
}

/* ---- pairs ---- */

static void pairs(struct rank *rank, size_t bytes)
{
  size_t n = (size_t)nranks, me = (size_t)rank->rank;
  unsigned char *in = calloc(n, bytes + 1);
  CHECK(rank, ncclGroupStart());
  for (size_t p = 0; p < n; p++) {
    if (p == me) continue;
    CHECK(rank, ncclSend(piece(me * n + p), bytes, ncclUint8, (int)p, rank->comm, rank->stream));
    CHECK(rank, ncclRecv(in + p * bytes, bytes, ncclUint8, (int)p, rank->comm, rank->stream));
  }
  end_group(rank);
  for (size_t p = 0; p < n; p++)
    if (p != me) compare(rank, "one of all pairs", p * n + me, in + p * bytes, bytes);
  free(in);
}

/* ---- turns ---- */

static void turns(struct rank *rank, size_t bytes)
{
  size_t n = (size_t)nranks, me = (size_t)rank->rank;
  unsigned char *in = malloc(n * bytes + 1), *out = calloc(n, bytes + 1);
  int *sums = calloc(n, sizeof *sums), one = 1;
  for (size_t p = 0; p < n; p++) memcpy(in + p * bytes, piece(me * n + p), bytes);
  for (int reduced = 0; reduced < 2; reduced++) {
    CHECK(rank, ncclGroupStart());
    for (size_t root = 0; root < n; root++) {
      CHECK(rank, ncclScatter(in, out + root * bytes, bytes, ncclUint8, (int)root, rank->comm, rank->stream));
      if (reduced) CHECK(rank, ncclAllReduce(&one, &sums[root], 1, ncclInt32, ncclSum, rank->comm, rank->stream));
    }
    end_group(rank);
    for (size_t root = 0; root < n; root++) compare(rank, "scatter in turn", root * n + me, out + root * bytes, bytes);
    for (size_t root = 0; root < n && reduced; root++) {
      if (sums[root] == nranks) continue;
      fprintf(stderr, "rank %d: all-reduce %zu in turn is %d, not %d\n", rank->rank, root, sums[root], nranks);
      _exit(1);
    }
    memset(out, 0, n * bytes);
  }
  free(in);
  free(out);
  free(sums);
}

/* ---- pool ---- */

/* No collective, which would make connections. */
static void wait_for_all(void)
{
  int last = (atomic_fetch_add(&shared->looked, 1) / nranks + 1) * nranks;
  while (atomic_load(&shared->looked) < last) usleep(1000);
}

static uint64_t number_of(const char *report, const char *name)
{
  const char *at = strstr(report, name);
  return at == NULL ? UINT64_MAX : strtoull(at + strlen(name) + strspn(at + strlen(name), "\": "), NULL, 10);
}

static void pool(struct rank *rank, uint64_t most)
{
  enum { SPARE = 36 << 10 }; /* of the fake device */
  static char reports[64][1 << 20];
  char *report = reports[rank->rank % 64];
  do { /* null: what serves the network was busy */
    size_t bytes = sizeof reports[0];
    CHECK(rank, tuttiCommReport(rank->comm, tuttiReportJson, report, &bytes));
  } while (strstr(report, "\"network_pool_bytes\": null") != NULL);
  uint64_t held = number_of(report, "network_pool_bytes"), spares = number_of(report, "network_pool_spares");
  printf("rank %d: %llu ends of connections, %llu bytes, network pools %llu bytes with %llu spares\n", rank->rank,
         (unsigned long long)number_of(strstr(report, "\"memory\""), "\"connections\""),
         (unsigned long long)number_of(report, "connection_bytes"), (unsigned long long)held,
         (unsigned long long)spares);
  if (held > 0 && held <= most + spares * SPARE) {
    wait_for_all(); /* ranks that go on may make connections with those that have not looked */
    return;
  }
  fprintf(stderr, "rank %d: network pools hold %llu bytes, %llu at most are allowed, and %llu spares\n", rank->rank,
          (unsigned long long)held, (unsigned long long)most, (unsigned long long)spares);
  fprintf(stderr, "%s\n", report);
  _exit(1);
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
  } else if (strncmp(name, "pairs:", 6) == 0) {
    pairs(rank, (size_t)atol(name + 6));
  } else if (strncmp(name, "turns:", 6) == 0) {
    turns(rank, (size_t)atol(name + 6));
  } else if (strncmp(name, "pool:", 5) == 0) {
    pool(rank, (uint64_t)atol(name + 5));
  } else {
    fprintf(stderr, "e2e_exchange: no scenario %s\n", name);
    _exit(2);
  }
}

static void *run_rank(void *arg)
{
  struct rank *rank = arg;
  if (choose_device != NULL) {
    choose_device(rank->rank % FAKE_DEVICES);
    rank->stream = make_stream(rank->rank % FAKE_DEVICES);
  }
  CHECK(rank, ncclCommInitRank(&rank->comm, nranks, shared->id, rank->rank));
  for (int s = 0; s < scenarios; s++) run(rank, scenario[s]);
  CHECK(rank, ncclCommDestroy(rank->comm));
  if (rank->stream != NULL) end_stream(rank->stream);
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
  load_fake();
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
