/* Tries the CUDA backend's memory on real GPUs.
 *
 *   test_gpu_memory [LIBRARY]      by default ../lib/tutti/libtutti-device-cuda.so from the program
 *
 * All of it once with cuMem and once with cudaMalloc. CUDA cannot be used in a child of a process that has used it, so
 * this process forks and uses none. Exit status: 0 all passed, 1 some failed, 77 there is no GPU. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "memory.h"

#define NO_GPU 77
#define MOST_SECONDS 240 /* of one process */
#define MOST_FAILURES 70

enum role { LOOK, ALONE, OWNER, IMPORTER };

static int play(enum role role, const char *library, bool vmm, int socket)
{
  static struct bench bench;
  alarm(MOST_SECONDS);
  if (!bench_load(&bench, library, vmm) || bench.ngpus == 0) return role == LOOK ? NO_GPU : 1;
  if (role == LOOK) return 0;
  if (!bench_open(&bench)) return report("cannot open all contexts", "%s", bench.kind);
  int failures = 0;
  if (role == ALONE)
    failures =
        test_one_process(&bench) + test_waits(&bench) + test_leaks(&bench) + test_users(&bench) + test_dmabuf(&bench);
  if (role == OWNER) failures = test_owner(&bench, socket);
  if (role == IMPORTER) failures = test_importer(&bench, socket);
  bench_close(&bench);
  fflush(stdout);
  return failures < MOST_FAILURES ? failures : MOST_FAILURES;
}

static pid_t start(enum role role, const char *library, bool vmm, const int sockets[2])
{
  fflush(stdout);
  pid_t pid = fork();
  if (pid != 0) return pid;
  if (role == OWNER) close(sockets[1]);
  if (role == IMPORTER) close(sockets[0]);
  _exit(play(role, library, vmm, sockets[role == IMPORTER]));
}

/* The number of failures. */
static int finish(pid_t pid, const char *who)
{
  int status;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return report("cannot be started", "%s", who);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return report(WTERMSIG(status) == SIGALRM ? "took too long" : "was ended by a signal", "%s", who);
}

static int run(const char *library, bool vmm)
{
  int sockets[2] = {-1, -1};
  int failures = finish(start(ALONE, library, vmm, sockets), "the one process");
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
    return failures + report("no socket", "two processes");
  pid_t owner = start(OWNER, library, vmm, sockets), importer = start(IMPORTER, library, vmm, sockets);
  close(sockets[0]);
  close(sockets[1]);
  failures += finish(owner, "the owner");
  return failures + finish(importer, "the importer");
}

int main(int argc, char **argv)
{
  char library[PATH_MAX + 64] = "";
  static const char beside[] = "/../lib/tutti/libtutti-device-cuda.so";
  ssize_t length = readlink("/proc/self/exe", library, PATH_MAX - 1);
  if (argc > 2 || length < 0) {
    fprintf(stderr, "usage: %s [libtutti-device-cuda.so]\n", argv[0]);
    return 1;
  }
  if (argc == 2)
    snprintf(library, sizeof(library), "%s", argv[1]);
  else
    memcpy(strrchr(library, '/'), beside, sizeof(beside));
  if (access(library, R_OK) != 0) {
    perror(library);
    return 1;
  }
  const int none[2] = {-1, -1};
  int seen = finish(start(LOOK, library, true, none), "looking for GPUs");
  if (seen == NO_GPU) {
    printf("SKIP the backend's memory: it can use no GPU here\n");
    return NO_GPU;
  }
  if (seen != 0) return 1;
  int failures = run(library, true) + run(library, false);
  printf("%d failures\n", failures);
  return failures > 0;
}
