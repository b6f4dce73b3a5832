/* Latency of a net plugin alone, without library, executor and proxy: two processes, a thread each, move messages
 * through the members of tutti/net.h.
 *
 *     pingpong PLUGIN.so BYTES ROUNDS [--both] [--ahead N] [--env0 NAME=VALUE]... [--env1 NAME=VALUE]...
 *
 * A message goes there and back, or with --both one each way at once. The receive of a round is posted N rounds before
 * (1), just after that round's send, so that the sender need not wait for it; with 0 at the round's start, as by an
 * operation that all ranks start together. --env0 and --env1 are for one process.
 *
 * Prints the bytes, microseconds of one way (the mean of the best tenth of the rounds, and of all of them), and calls
 * of `test` a round. */
#include "tests/netabi/netabi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_S 300
#define WARM 50
#define AHEAD 8

const char *plugin_path;
bool fuse;
static size_t bytes;
static int rounds;
static int ahead = 1;
static bool both;
static uint64_t tests;

static uint64_t now_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Tests both in turn until both are complete, or one of one: what is not tested need not move. */
static void finish(void *going, void *coming)
{
  int sent = !going, came = !coming;
  while (!sent || !came) {
    if (!sent) {
      CALL(test, going, &sent, NULL);
      tests++;
    }
    if (!came) {
      CALL(test, coming, &came, NULL);
      tests++;
    }
  }
}

static int by_size(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void print(uint64_t *ns)
{
  int few = rounds / 10 > 0 ? rounds / 10 : 1;
  double best = 0, all = 0, ways = both ? 1000 : 2000;
  qsort(ns, (size_t)rounds, sizeof *ns, by_size);
  for (int i = 0; i < few; i++) best += (double)ns[i];
  for (int i = 0; i < rounds; i++) all += (double)ns[i];
  printf("%zu %.2f %.2f %.2f\n", bytes, best / few / ways, all / rounds / ways, (double)tests / (rounds + WARM));
}

static void play(void)
{
  struct connection c;
  uint64_t *ns = calloc((size_t)rounds, sizeof *ns);
  void *coming[AHEAD + 1] = {NULL}; /* by round */
  if (!ns) fail("no memory");
  connect_all(&c, 1);
  char *in = buffer_new(bytes * (AHEAD + 1)), *out = buffer_new(bytes);
  int all = WARM + rounds, posted = 0;
  meet();
  for (int i = 0; i < all; i++) {
    uint64_t begin = now_ns();
    void **mine = &coming[i % (AHEAD + 1)];
    /* Before the first round those that are ahead of it too. */
    for (; posted <= (i == 0 ? ahead : i) && posted < all; posted++)
      coming[posted % (AHEAD + 1)] = must_recv1(c.recv, in + (size_t)(posted % (AHEAD + 1)) * bytes, bytes, 0);
    if (side == 1 && !both) finish(NULL, *mine);
    void *going = must_send(c.send, out, bytes, 0);
    for (; posted <= i + ahead && posted < all; posted++)
      coming[posted % (AHEAD + 1)] = must_recv1(c.recv, in + (size_t)(posted % (AHEAD + 1)) * bytes, bytes, 0);
    finish(going, side == 0 || both ? *mine : NULL);
    if (i >= WARM) ns[i - WARM] = now_ns() - begin;
  }
  if (side == 0) print(ns);
  buffer_free(in);
  buffer_free(out);
  meet();
  close_all(&c, 1);
  free(ns);
}

static int usage(void)
{
  fprintf(
      stderr,
      "usage: pingpong PLUGIN.so BYTES ROUNDS [--both] [--ahead N] [--env0 NAME=VALUE]... [--env1 NAME=VALUE]...\n");
  return 2;
}

int main(int argc, char **argv)
{
  int ends[2], status, worst = 0;
  if (argc < 4) return usage();
  plugin_path = argv[1];
  bytes = strtoul(argv[2], NULL, 10);
  rounds = atoi(argv[3]);
  for (int i = 4; i < argc; i++) {
    if (!strcmp(argv[i], "--both"))
      both = true;
    else if (i + 1 == argc)
      return usage();
    else if (!strcmp(argv[i], "--ahead"))
      ahead = atoi(argv[++i]);
    else if (strncmp(argv[i++], "--env", 5) != 0)
      return usage();
  }
  if (bytes < 1 || rounds < 1 || ahead < 0 || ahead > AHEAD || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
    return usage();
  for (int s = 0; s < 2; s++) {
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid > 0) continue;
    close(ends[1 - s]);
    for (int i = 4; i + 1 < argc; i++)
      if (!strcmp(argv[i], s ? "--env1" : "--env0")) putenv(argv[i + 1]);
    side_begin(s, ends[s], STDERR_FILENO, DEADLINE_S);
    load_plugin(NEWEST_ABI);
    init_plugin();
    play();
    final_plugin();
    exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  while (wait(&status) > 0)
    if (status) worst = 1;
  return worst;
}
