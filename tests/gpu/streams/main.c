/* Streams, graphs and groups on GPUs. Prints "PASS streams, CASE" or "FAIL streams, CASE: why" for each; ends with 0 or
 * 1. A case runs in a process of its own, so that one that hangs is ended and the others can go on.
 *   gpu_streams [-n RANKS] [CASE...] */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "world.h"

#define CASE_SECONDS 60

const char *case_name;
const char *noted_text(void); /* world.c */

static const struct {
  const char *name;
  void (*run)(struct world *world);
} cases[] = {
    {"a group of three streams", case_joined},
    {"a captured group of three streams", case_joined_graph},
    {"two streams of one communicator", case_two_streams},
    {"streams of two threads", case_threads_streams},
    {"captured streams of two threads", case_threads_streams_graph},
    {"captured scatters on a thread's streams", case_threads_scatter},
    {"two communicators on two streams", case_two_communicators},
    {"captured and other streams in a group", case_mixed_capture},
    {"a graph and eager calls", case_graph_and_eager},
    {"a graph of operations in a row", case_graph_row},
    {"a graph on two streams in a row", case_graph_on_two_streams},
    {"captures beside calls", case_captures_beside_calls},
    {"a captured all-to-all of sends", case_captured_exchange},
    {"a captured all-gather of sends in place", case_captured_in_place},
    {"what a rank keeps, on several streams", case_kept_in_order},
    {"nodes of a graph", case_graph_nodes},
    {"memory of graphs that are gone", case_graph_memory},
    {"a captured group of 1000 messages", case_captured_group},
    {"a group of 10000 messages", case_large_group},
    {"a group of two protocols", case_mixed_protocols},
    {"a group of several communicators", case_communicators},
    {"communicators called in different orders", case_communicators_crossed},
    {"non-blocking communicators", case_non_blocking},
    {"abort while a kernel runs", case_abort},
    {"a launch that fails midway", case_no_memory},
    {"a stream of another GPU", case_foreign_stream},
    {"a stream destroyed early", case_stream_destroyed_early},
    {"a communicator destroyed before its graph", case_communicator_first},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

_Noreturn static void run(int number, int n)
{
  case_name = cases[number].name;
  int gpus = 0;
  good(cudaGetDeviceCount(&gpus), "counting GPUs");
  if (n == 0) n = gpus < 2 ? 2 : gpus < MOST ? gpus : MOST;
  if (n > gpus) { /* kernels of ranks that share a GPU wait for each other: none may stand in another one's queue */
    setenv("TUTTI_ALLOW_DUPLICATE_DEVICE", "1", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  }
  cases[number].run(world_open(n));
  printf("PASS streams, %s%s%s\n", case_name, noted_text()[0] ? ": " : "", noted_text());
  fflush(stdout);
  _exit(0);
}

/* Whether it ended well. */
static bool await(pid_t pid, const char *name)
{
  int status;
  for (int waited = 0; waitpid(pid, &status, WNOHANG) == 0; waited++) {
    if (waited == CASE_SECONDS * 100) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      printf("FAIL streams, %s: it did not end within %d s\n", name, CASE_SECONDS);
      return false;
    }
    usleep(10000);
  }
  if (WIFSIGNALED(status)) printf("FAIL streams, %s: signal %d\n", name, WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
  int n = 0, c;
  bool good_so_far = true;
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  while ((c = getopt(argc, argv, "n:")) != -1) {
    if (c != 'n' || (n = atoi(optarg)) < 2 || n > MOST) {
      fprintf(stderr, "usage: gpu_streams [-n RANKS] [CASE...]; ranks are 2 to %d\n", MOST);
      return 2;
    }
  }
  for (int i = 0; i < CASES; i++) {
    bool wanted = optind == argc;
    for (int a = optind; a < argc; a++) wanted |= strcmp(argv[a], cases[i].name) == 0;
    if (!wanted) continue;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) run(i, n);
    good_so_far &= pid > 0 && await(pid, cases[i].name);
    fflush(stdout);
  }
  return good_so_far ? 0 : 1;
}
