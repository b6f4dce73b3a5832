/* Other ranks' memory: who gets it, who does not, and what is left when a process is killed. */
#include "side.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/uds.h"
#include "transport/memory_wire.h"

static void child_reaches(int wire)
{
  struct side side;
  side_open(&side, 1, wire, NULL);
  bool reached = false;
  SIDE_CHECK(tt_peer_memory_reach(side.memory, 0, &reached) == ncclSuccess && reached);
  uint64_t offset;
  side_get(wire, &offset, sizeof(offset));
  void *ptr;
  SIDE_CHECK(tt_peer_memory_map(side.memory, 0, offset, 8192, &ptr) == ncclSuccess);
  SIDE_CHECK(strcmp(ptr, "from 0") == 0);
  strcpy((char *)ptr + 4096, "from 1");
  /* Ranges that are not all inside are refused: past the end, wrapping, not a page. */
  void *none;
  SIDE_CHECK(tt_peer_memory_map(side.memory, 0, (1 << 28) - 4096, 8192, &none) != ncclSuccess);
  SIDE_CHECK(tt_peer_memory_map(side.memory, 0, UINT64_MAX - 4095, 8192, &none) != ncclSuccess);
  SIDE_CHECK(tt_peer_memory_map(side.memory, 0, 1, 8192, &none) != ncclSuccess);
  SIDE_CHECK(tt_peer_memory_map(side.memory, 0, 0, SIZE_MAX, &none) != ncclSuccess);
  tt_peer_memory_unmap(side.memory, 0, ptr, 8192);
  side_put(wire, "x", 1);
  side_close(&side);
}

START_TEST(two_processes)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_reaches);
  side_open(&side, 0, wire, NULL);
  void *ptr;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(side.env.shm, 8192, &ptr, &offset), ncclSuccess);
  strcpy(ptr, "from 0");
  side_put(wire, &offset, sizeof(offset));
  char done;
  side_get(wire, &done, 1);
  ck_assert_str_eq((char *)ptr + 4096, "from 1");
  ck_assert_int_eq(side_wait(pid), 0);
  ck_assert_uint_eq(tt_peer_memory_dropped(side.memory), 0);
  side_close(&side);
}
END_TEST

static uint64_t wait_dropped(const struct side *side, uint64_t wanted)
{
  for (int i = 0; i < 20000 && tt_peer_memory_dropped(side->memory) < wanted; i++) usleep(1000);
  return tt_peer_memory_dropped(side->memory);
}

/* A stranger on the same host who knows the name, but not the key. */
static bool stranger_gets_in(const struct tt_peer_info *info, int rank, const struct tt_key *key)
{
  int socket, fd = -1;
  ck_assert_int_eq(tt_uds_connect(info->uds, &socket), ncclSuccess);
  ck_assert_int_ge(socket, 0);
  tt_deadline deadline = tt_deadline_in_ms(30000);
  struct tt_memory_hello hello = {TT_MEMORY_MAGIC, TT_MEMORY_VERSION, 1, rank, {1, 2}, TT_MEMORY_ARENA};
  struct tt_memory_challenge challenge;
  bool in = false;
  if (tt_uds_send(socket, &hello, sizeof(hello), -1, deadline) == ncclSuccess &&
      tt_uds_recv(socket, &challenge, sizeof(challenge), NULL, deadline) == ncclSuccess) {
    struct tt_memory_proof proof = {tt_memory_prove(key, 'C', &hello, challenge.nonce, 0)};
    struct tt_memory_grant last;
    in = tt_uds_send(socket, &proof, sizeof(proof), -1, deadline) == ncclSuccess &&
         tt_uds_recv(socket, &last, sizeof(last), &fd, deadline) == ncclSuccess && fd >= 0;
  }
  if (fd >= 0) close(fd);
  close(socket);
  return in;
}

static void child_waits(int wire)
{
  struct side side;
  side_open(&side, 1, wire, NULL);
  char go;
  side_get(wire, &go, 1);
  bool reached = false;
  SIDE_CHECK(tt_peer_memory_reach(side.memory, 0, &reached) == ncclSuccess);
  SIDE_CHECK(reached);
  side_close(&side);
}

START_TEST(strangers_are_dropped)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_waits);
  side_open(&side, 0, wire, NULL);
  struct tt_key right = side.peers[0].key, wrong = {right.k0, right.k1 + 1};
  ck_assert(!stranger_gets_in(&side.peers[0], 0, &wrong));
  ck_assert_uint_eq(wait_dropped(&side, 1), 1);
  ck_assert(!stranger_gets_in(&side.peers[0], 1, &right)); /* wants a rank that is not here */
  ck_assert_uint_eq(wait_dropped(&side, 2), 2);
  ck_assert(stranger_gets_in(&side.peers[0], 0, &right)); /* the test itself can tell */
  /* Garbage, and some who say nothing or half a sentence: the other rank is served all the same. */
  int silent[40];
  for (int i = 0; i < 40; i++) {
    ck_assert_int_eq(tt_uds_connect(side.peers[0].uds, &silent[i]), ncclSuccess);
    if (i % 2) ck_assert_int_eq(send(silent[i], "half", 4, 0), 4);
  }
  int garbage;
  char noise[200];
  memset(noise, 0x5a, sizeof(noise));
  ck_assert_int_eq(tt_uds_connect(side.peers[0].uds, &garbage), ncclSuccess);
  ck_assert_int_eq(send(garbage, noise, sizeof(noise), 0), sizeof(noise));
  ck_assert_uint_eq(wait_dropped(&side, 3), 3);
  close(garbage);
  side_put(wire, "g", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  for (int i = 0; i < 40; i++) close(silent[i]);
  ck_assert_uint_eq(wait_dropped(&side, 43), 43);
  side_close(&side);
}
END_TEST

static void child_is_lied_to(int wire)
{
  struct side side;
  side_open(&side, 1, wire, NULL);
  char go;
  side_get(wire, &go, 1);
  bool reached = true;
  SIDE_CHECK(tt_peer_memory_reach(side.memory, 0, &reached) == ncclSuccess);
  SIDE_CHECK(!reached);
  side_close(&side);
}

static void lie_about_key(struct tt_peer_info *info)
{
  info->key.k0++;
}

/* Who listens under a rank's name, but is not that rank, is not believed. */
START_TEST(impostor_is_not_believed)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_is_lied_to);
  side_open(&side, 0, wire, lie_about_key);
  side_put(wire, "g", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  side_close(&side);
}
END_TEST

static void child_elsewhere(int wire)
{
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) _exit(77);
  struct side side;
  side_open(&side, 1, wire, NULL);
  side.peers[0].host_hash = side.peers[1].host_hash; /* two containers that look alike */
  bool reached = true;
  SIDE_CHECK(tt_peer_memory_reach(side.memory, 0, &reached) == ncclSuccess);
  SIDE_CHECK(!reached);
  side_put(wire, "x", 1);
  side_close(&side);
}

START_TEST(another_network_namespace_is_another_host)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_elsewhere);
  char first;
  if (recv(wire, &first, 1, MSG_PEEK) <= 0) {
    ck_assert_int_eq(side_wait(pid), 77);
    fprintf(stderr, "skipped: this user may not make network namespaces\n");
    return;
  }
  side_open(&side, 0, wire, NULL);
  side.peers[1].host_hash = side.peers[0].host_hash;
  bool reached = true;
  ck_assert_int_eq(tt_peer_memory_reach(side.memory, 1, &reached), ncclSuccess);
  ck_assert(!reached);
  side_get(wire, &first, 1);
  ck_assert_int_eq(side_wait(pid), 0);
  side_close(&side);
}
END_TEST

static void child_is_killed(int wire)
{
  struct side side;
  side_open(&side, 1, wire, NULL);
  void *ptr;
  uint64_t offset;
  SIDE_CHECK(tt_shm_alloc(side.env.shm, 1 << 20, &ptr, &offset) == ncclSuccess);
  memset(ptr, 7, 1 << 20);
  side_put(wire, &offset, sizeof(offset));
  pause();
}

static int count_shm_files(void)
{
  FILE *list = popen("ls -A /dev/shm 2>/dev/null | grep -ci tutti", "r");
  int count = -1;
  ck_assert_int_eq(fscanf(list, "%d", &count), 1);
  pclose(list);
  return count;
}

START_TEST(killed_owner_leaves_nothing)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_is_killed);
  side_open(&side, 0, wire, NULL);
  uint64_t offset;
  side_get(wire, &offset, sizeof(offset));
  void *ptr;
  ck_assert_int_eq(tt_peer_memory_map(side.memory, 1, offset, 1 << 20, &ptr), ncclSuccess);
  ck_assert_int_eq(count_shm_files(), 0);
  kill(pid, SIGKILL);
  ck_assert_int_eq(side_wait(pid), -SIGKILL);
  /* What is mapped stays; what is not is an error, no crash. */
  ck_assert_int_eq(((unsigned char *)ptr)[(1 << 20) - 1], 7);
  ck_assert_int_eq(count_shm_files(), 0);
  tt_peer_memory_unmap(side.memory, 1, ptr, 1 << 20);
  int socket;
  ck_assert_int_eq(tt_uds_connect(side.peers[1].uds, &socket), ncclSuccess);
  ck_assert_int_eq(socket, -1);
  side_close(&side);
}
END_TEST

START_TEST(killed_before_it_was_asked)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_is_killed);
  side_open(&side, 0, wire, NULL);
  uint64_t offset;
  side_get(wire, &offset, sizeof(offset));
  kill(pid, SIGKILL);
  side_wait(pid);
  void *ptr;
  ck_assert_int_eq(tt_peer_memory_map(side.memory, 1, offset, 1 << 20, &ptr), ncclRemoteError);
  side_close(&side);
}
END_TEST

/* Two ranks of one process: plain pointers, which stay good when the owner leaves first. */
START_TEST(one_process)
{
  int pair[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  struct tt_peer_memory *memory[2];
  struct tt_peer_info peers[2] = {0};
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(tt_peer_memory_create(r, 2, 1 << 24, &memory[r]), ncclSuccess);
    peers[r] = (struct tt_peer_info){.rank = r, .host_hash = 1, .process = 1};
    tt_peer_memory_describe(memory[r], &peers[r]);
  }
  for (int r = 0; r < 2; r++) ck_assert_int_eq(tt_peer_memory_start(memory[r], peers), ncclSuccess);
  void *mine, *theirs, *outside;
  uint64_t offset;
  ck_assert_int_eq(tt_shm_alloc(tt_peer_memory_shm(memory[0]), 4096, &mine, &offset), ncclSuccess);
  ck_assert_int_eq(tt_peer_memory_map(memory[1], 0, offset, 4096, &theirs), ncclSuccess);
  ck_assert_ptr_eq(mine, theirs);
  ck_assert_int_eq(tt_peer_memory_map(memory[1], 0, (1 << 24) - 64, 4096, &outside), ncclRemoteError);
  ck_assert_int_eq(tt_peer_memory_map(memory[1], 0, UINT64_MAX, 4096, &outside), ncclRemoteError);
  uint64_t bell_offset;
  struct tt_doorbell *bell, *own = tt_peer_memory_bell(memory[0], &bell_offset);
  ck_assert_int_eq(tt_peer_memory_peer_bell(memory[1], 0, bell_offset, &bell), ncclSuccess);
  ck_assert_ptr_eq(bell, own);
  ck_assert_int_eq(tt_peer_memory_peer_bell(memory[1], 0, bell_offset + 8, &bell), ncclRemoteError);
  tt_peer_memory_destroy(memory[0]);
  memset(theirs, 1, 4096);
  tt_doorbell_ring(own);
  tt_peer_memory_unmap(memory[1], 0, theirs, 4096);
  tt_peer_memory_destroy(memory[1]);
}
END_TEST

void add_memory(Suite *suite)
{
  TCase *tc = tcase_create("memory");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, two_processes);
  tcase_add_test(tc, strangers_are_dropped);
  tcase_add_test(tc, impostor_is_not_believed);
  tcase_add_test(tc, another_network_namespace_is_another_host);
  tcase_add_test(tc, killed_owner_leaves_nothing);
  tcase_add_test(tc, killed_before_it_was_asked);
  tcase_add_test(tc, one_process);
  suite_add_tcase(suite, tc);
}
