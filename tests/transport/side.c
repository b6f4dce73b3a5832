/* Two ranks for tests. Its checks work in both processes: a child has no test runner. */
#include "side.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static bool in_child;

static void expect(bool condition, const char *what)
{
  if (condition) return;
  if (in_child) {
    fprintf(stderr, "child: %s\n", what);
    _exit(1);
  }
  ck_abort_msg("%s", what);
}

void side_put(int wire, const void *data, size_t bytes)
{
  expect(send(wire, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "the other side is gone");
}

void side_get(int wire, void *data, size_t bytes)
{
  for (size_t got = 0; got < bytes;) {
    struct pollfd ready = {.fd = wire, .events = POLLIN};
    expect(poll(&ready, 1, 60000) == 1, "the other side is silent");
    ssize_t n = recv(wire, (char *)data + got, bytes - got, 0);
    expect(n > 0, "the other side is gone");
    got += (size_t)n;
  }
}

void side_open(struct side *side, int rank, int wire, void (*change)(struct tt_peer_info *info))
{
  memset(side, 0, sizeof(*side));
  side->rank = rank;
  side->wire = wire;
  expect(tt_peer_memory_create(rank, 2, 1 << 28, &side->memory) == ncclSuccess, "tt_peer_memory_create");
  struct tt_peer_info mine = {.rank = rank,
                              .pid = (int32_t)getpid(),
                              .host_hash = tt_host_hash(),
                              .process = tt_host_process(),
                              .host = "here"};
  tt_peer_memory_describe(side->memory, &mine);
  side->peers[rank] = mine;
  if (change) change(&mine);
  unsigned char packed[TT_PEER_INFO_BYTES];
  tt_peer_info_pack(&mine, packed);
  side_put(wire, packed, sizeof(packed));
  side_get(wire, packed, sizeof(packed));
  expect(tt_peer_info_unpack(packed, &side->peers[1 - rank]) == ncclSuccess, "tt_peer_info_unpack");
  expect(tt_peer_memory_start(side->memory, side->peers) == ncclSuccess, "tt_peer_memory_start");
  side->env = (struct tt_transport_env){.rank = rank, .nranks = 2, .peers = side->peers, .memory = side->memory};
  side->env.shm = tt_peer_memory_shm(side->memory);
  side->env.bell = tt_peer_memory_bell(side->memory, &side->env.bell_offset);
  side->env.buffer_bytes[TT_PROTO_LL] = 16384;
  side->env.buffer_bytes[TT_PROTO_SIMPLE] = 65536;
}

void side_close(struct side *side)
{
  tt_peer_memory_destroy(side->memory);
  side->memory = NULL;
}

pid_t side_fork(int *wire, void (*child)(int wire))
{
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    in_child = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    child(pair[1]);
    exit(0); /* not _exit: a leak checker has its say */
  }
  close(pair[1]);
  *wire = pair[0];
  return pid;
}

int side_wait(pid_t pid)
{
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
