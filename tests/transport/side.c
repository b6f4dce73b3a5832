/* See side.h. Its checks work in both processes: a child has no test runner. */
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
#include "transport/imports.h"
#include "transport/pinned.h"

static bool in_child;
static const struct tt_device *with_device;

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

void side_use_device(const struct tt_device *device)
{
  with_device = device;
}

static int hand_out_slab(void *slabs, uint64_t object, uint64_t *bytes)
{
  return tt_slabs_descriptor(slabs, object, bytes);
}

static void open_device(struct side *side)
{
  struct tt_transport_env *env = &side->env;
  const struct tt_device_config config = {
      .size = sizeof(config), .index = side->rank, .rank = side->rank, .nranks = env->nranks};
  env->device = with_device;
  expect(tt_context_open(with_device, &config, &env->context) == ncclSuccess, "tt_context_open");
  expect(tt_slabs_create(env->context, side->peers[side->rank].uds, &env->slabs) == ncclSuccess, "tt_slabs_create");
  expect(tt_imports_create(env->context, side->memory, side->peers, &env->imports) == ncclSuccess, "tt_imports_create");
  expect(tt_pinned_create(env->context, side->memory, &env->pinned) == ncclSuccess, "tt_pinned_create");
  tt_peer_memory_set_source(side->memory, hand_out_slab, env->slabs);
}

/* The rank's memory and what it says of itself. */
static void begin(struct side *side, int rank, int nranks)
{
  memset(side, 0, sizeof(*side));
  side->rank = rank;
  expect(tt_peer_memory_create(rank, nranks, 1 << 28, &side->memory) == ncclSuccess, "tt_peer_memory_create");
  side->peers[rank] = (struct tt_peer_info){.rank = rank,
                                            .pid = (int32_t)getpid(),
                                            .host_hash = tt_host_hash(),
                                            .process = tt_host_process(),
                                            .host = "here"};
  tt_peer_memory_describe(side->memory, &side->peers[rank]);
  side->env = (struct tt_transport_env){.rank = rank, .nranks = nranks, .peers = side->peers, .memory = side->memory};
  side->env.shm = tt_peer_memory_shm(side->memory);
  side->env.bell = tt_peer_memory_bell(side->memory, &side->env.bell_offset);
  side->env.buffer_bytes[TT_PROTO_LL] = 16384;
  side->env.buffer_bytes[TT_PROTO_SIMPLE] = 65536;
  if (with_device) open_device(side);
}

void side_open(struct side *side, int rank, int wire, void (*change)(struct tt_peer_info *info))
{
  begin(side, rank, 2);
  side->wire = wire;
  struct tt_peer_info mine = side->peers[rank];
  if (change) change(&mine);
  unsigned char packed[TT_PEER_INFO_BYTES];
  tt_peer_info_pack(&mine, packed);
  side_put(wire, packed, sizeof(packed));
  side_get(wire, packed, sizeof(packed));
  expect(tt_peer_info_unpack(packed, &side->peers[1 - rank]) == ncclSuccess, "tt_peer_info_unpack");
  expect(tt_peer_memory_start(side->memory, side->peers) == ncclSuccess, "tt_peer_memory_start");
}

void side_open_group(struct side *sides, uint32_t here, int nranks, int wire)
{
  unsigned char packed[TT_PEER_INFO_BYTES];
  struct tt_peer_info all[SIDE_RANKS];
  for (int r = 0; r < nranks; r++) {
    if (!(here >> r & 1)) continue;
    begin(&sides[r], r, nranks);
    all[r] = sides[r].peers[r];
    tt_peer_info_pack(&all[r], packed);
    if (wire >= 0) side_put(wire, packed, sizeof(packed));
  }
  for (int r = 0; r < nranks; r++) {
    if (here >> r & 1) continue;
    side_get(wire, packed, sizeof(packed));
    expect(tt_peer_info_unpack(packed, &all[r]) == ncclSuccess, "tt_peer_info_unpack");
  }
  for (int r = 0; r < nranks; r++) {
    if (!(here >> r & 1)) continue;
    memcpy(sides[r].peers, all, sizeof(all[0]) * (size_t)nranks);
    expect(tt_peer_memory_start(sides[r].memory, sides[r].peers) == ncclSuccess, "tt_peer_memory_start");
  }
}

void side_open_both(struct side sides[2])
{
  side_open_group(sides, 3, 2, -1);
}

void side_close(struct side *side)
{
  tt_imports_destroy(side->env.imports);
  tt_pinned_destroy(side->env.pinned);
  tt_peer_memory_destroy(side->memory);
  tt_slabs_destroy(side->env.slabs);
  tt_context_release(side->env.context);
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
