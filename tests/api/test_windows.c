/* Windows on a device with memory of its own (the fake one): what ranks map of each other and at which addresses, in
 * one process and in two. */
#include "windows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

START_TEST(addresses)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  int before = memories();
  expect_unmapped(&world);
  ok(register_all(&world, 4096, 8192));
  ck_assert_int_eq(memories(), before + N * (N - 1));
  expect_mapped(&world, 4096, 8192, 1);
  expect_mapped(&world, 4096 + 100, 50, 1);
  for (int r = 0; r < N; r++) {
    struct tt_user_place place;
    void *at[N];
    ok(find(world.comms[r], world.buffers[r] + 4096 + 8000, 192, &place, at));
    ck_assert_uint_eq(place.offset, 8000);
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4096 + 8000, 193));
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4095, 1));
    ck_assert(!is_mapped(world.comms[r], world.buffers[r] + 4096 + 8192, 1));
  }
  deregister_all(&world);
  expect_unmapped(&world);
  ck_assert_int_eq(memories(), before);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Several windows of an allocation use one import of it. */
START_TEST(many_windows)
{
  enum { WINDOWS = 12 };
  struct world world;
  ncclWindow_t windows[WINDOWS][N];
  open_comms(&world);
  allocate(&world);
  int before = memories();
  for (int w = 0; w < WINDOWS; w++) {
    ok(register_all(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096));
    memcpy(windows[w], world.windows, sizeof world.windows);
  }
  ck_assert_int_eq(memories(), before + N * (N - 1));
  for (int w = 0; w < WINDOWS; w++) expect_mapped(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096, (uint32_t)w + 1);
  ck_assert(!is_mapped(world.comms[0], world.buffers[0], 4097));
  for (int w = 0; w < WINDOWS; w += 2) {
    memcpy(world.windows, windows[w], sizeof world.windows);
    deregister_all(&world);
  }
  for (int w = 0; w < WINDOWS; w++)
    if (w % 2 != 0)
      expect_mapped(&world, (size_t)(w * 5 % WINDOWS) * 4096, 4096, (uint32_t)w + 1);
    else
      ck_assert(!is_mapped(world.comms[1], world.buffers[1] + w * 5 % WINDOWS * 4096, 1));
  destroy_all(&world); /* with the others left */
  free_all(&world);
  expect_nothing_left();
}
END_TEST

/* Operations on windows, and memory that is freed before the communicators end. */
START_TEST(operations)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, BYTES));
  for (int r = 0; r < N; r++)
    for (int i = 0; i < BYTES / 4; i++) ((int32_t *)(void *)world.buffers[r])[i] = i * (r + 1);
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world.buffers[r], world.buffers[r], BYTES / 4, ncclInt32, ncclSum, world.comms[r], NULL));
  ok(ncclGroupEnd());
  ck_assert(fake_wait_idle(60000));
  for (int r = 0; r < N; r++)
    for (int i = 0; i < BYTES / 4; i++)
      if (((int32_t *)(void *)world.buffers[r])[i] != i * 6) ck_abort_msg("rank %d, element %d", r, i);
  deregister_all(&world);
  free_all(&world);
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.users, 0);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* As if the last rank were of another host: it is mapped by no other, and maps no other. */
START_TEST(several_hosts)
{
  struct world world;
  open_comms(&world);
  allocate(&world);
  for (int r = 0; r < N; r++) ((struct tt_peer_info *)world.comms[r]->env->peers)[N - 1].node = N - 1;
  int before = memories();
  ok(register_all(&world, 0, BYTES));
  ck_assert_int_eq(memories(), before + (N - 1) * (N - 2));
  for (int r = 0; r < N; r++) {
    struct tt_user_place place;
    void *at[N];
    ok(find(world.comms[r], world.buffers[r] + 8, 8, &place, at));
    ck_assert_ptr_nonnull(place.window);
    ck_assert(!place.everywhere);
    for (int p = 0; p < N; p++) ck_assert_int_eq(at[p] != NULL, p == r || (p < N - 1 && r < N - 1));
    ck_assert_ptr_eq(at[r], world.buffers[r] + 8);
  }
  for (int r = 0; r < N; r++) ((struct tt_peer_info *)world.comms[r]->env->peers)[N - 1].node = 0;
  deregister_all(&world);
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

/* Twice the same range is one window; a part of it is none. */
START_TEST(registered_twice)
{
  struct world world;
  ncclWindow_t first[N];
  open_comms(&world);
  allocate(&world);
  ok(register_all(&world, 0, 8192));
  memcpy(first, world.windows, sizeof first);
  ok(register_all(&world, 0, 8192));
  int with_two = memories();
  expect_mapped(&world, 0, 8192, 1);
  deregister_all(&world);
  ck_assert_int_eq(memories(), with_two);
  expect_mapped(&world, 0, 8192, 1);
  ok(register_all(&world, 4096, 8192)); /* noted, and no more */
  ck_assert(!is_mapped(world.comms[0], world.buffers[0] + 4096, 8192));
  expect_mapped(&world, 4096, 4096, 1);
  deregister_all(&world);
  memcpy(world.windows, first, sizeof first);
  deregister_all(&world);
  expect_unmapped(&world);
  for (int r = 0; r < N; r++)
    refused(ncclCommWindowDeregister(world.comms[r], first[r]), ncclInvalidUsage, "not any more");
  free_all(&world);
  destroy_all(&world);
  expect_nothing_left();
}
END_TEST

START_TEST(two_communicators)
{
  struct world one, other;
  open_comms(&one);
  open_comms(&other);
  allocate(&one);
  memcpy(other.buffers, one.buffers, sizeof one.buffers);
  ok(register_all(&one, 0, BYTES));
  ok(register_all(&other, 0, BYTES));
  deregister_all(&one);
  expect_unmapped(&one);
  expect_mapped(&other, 0, BYTES, 1);
  refused(ncclCommWindowDeregister(one.comms[0], other.windows[0]), ncclInvalidUsage, "not registered");
  destroy_all(&one);
  expect_mapped(&other, 0, BYTES, 1);
  deregister_all(&other);
  free_all(&one);
  destroy_all(&other);
  expect_nothing_left();
}
END_TEST

START_TEST(non_blocking)
{
  struct world world;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclResult_t state = ncclInProgress;
  config.blocking = 0;
  ok(ncclGetUniqueId(&id));
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    fake_set_device(r);
    ncclCommInitRankConfig(&world.comms[r], N, id, r, &config);
  }
  ncclGroupEnd();
  for (int r = 0; r < N; r++)
    for (state = ncclInProgress; state == ncclInProgress; usleep(500))
      ok(ncclCommGetAsyncError(world.comms[r], &state));
  allocate(&world);
  ck_assert_int_eq(register_all(&world, 0, BYTES), ncclInProgress);
  for (int r = 0; r < N; r++)
    for (state = ncclInProgress; state == ncclInProgress; usleep(500))
      ok(ncclCommGetAsyncError(world.comms[r], &state));
  ok(state);
  expect_mapped(&world, 0, BYTES, 1);
  deregister_all(&world);
  for (int r = 0; r < N; r++) ok(ncclCommAbort(world.comms[r]));
  free_all(&world);
  expect_nothing_left();
}
END_TEST

START_TEST(memory)
{
  void *a, *b;
  fake_set_device(5);
  ok(ncclMemAlloc(&a, 100000));
  ok(ncclMemAlloc(&b, 1));
  ck_assert(is_all(a, 100000, 0));
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.users, 2);
  struct tt_device_buffer buffer = {.size = sizeof buffer};
  char why[64];
  ok(tutti_device(NULL, why, sizeof why)->find_buffer(NULL, (char *)a + 99999, &buffer));
  ck_assert_int_eq(buffer.device, 5);
  ck_assert_ptr_eq(buffer.base, a);
  refused(ncclMemFree((char *)a + 8), ncclInvalidArgument, "did not come from");
  ok(ncclMemFree(a));
  refused(ncclMemFree(a), ncclInvalidArgument, "freed before");
  ok(ncclMemFree(b));
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 0);
}
END_TEST

/* ---- Two processes ---- */

static void whole(int wire, void *data, size_t bytes, bool put)
{
  ssize_t n = put ? send(wire, data, bytes, 0) : recv(wire, data, bytes, MSG_WAITALL);
  ck_assert_int_eq(n, (ssize_t)bytes);
}

static int descriptors(void)
{
  int count = 0;
  char path[64];
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    count += access(path, F_OK) == 0;
  }
  return count;
}

/* Each writes into the other's buffer; the owner frees its own while the other has it mapped. */
static void rank_of_two(int rank, int wire)
{
  ncclUniqueId id;
  ncclComm_t comm;
  ncclWindow_t window;
  void *buffer, *at[2];
  struct tt_user_place place;
  unsigned char mark = (unsigned char)(50 + rank), seen;
  if (rank == 0) ok(ncclGetUniqueId(&id));
  whole(wire, &id, sizeof id, rank == 0);
  fake_set_device(rank);
  ok(ncclCommInitRank(&comm, 2, id, rank));
  buffer = allocate_parts(rank, 3, BYTES / 3);
  int before = memories(), before_descriptors = descriptors();
  ok(ncclCommWindowRegister(comm, buffer, BYTES, &window, NCCL_WIN_COLL_SYMMETRIC));
  ck_assert_int_eq(memories(), before + 1);
  ok(find(comm, buffer, BYTES, &place, at));
  ck_assert_ptr_nonnull(place.window);
  memset(at[1 - rank], mark, BYTES);
  whole(wire, &mark, 1, true);
  whole(wire, &seen, 1, false);
  ck_assert_int_eq(seen, 101 - mark);
  ck_assert(is_all(buffer, BYTES, seen));
  ok(ncclCommWindowDeregister(comm, window));
  for (int i = 0; i < 5000 && descriptors() > before_descriptors; i++) usleep(1000); /* a thread still closes some */
  ck_assert_int_le(descriptors(), before_descriptors);
  free_parts(buffer, 3, BYTES / 3);
  whole(wire, &mark, 1, true);
  whole(wire, &seen, 1, false);
  ok(ncclCommDestroy(comm));
  expect_nothing_left();
}
START_TEST(two_processes)
{
  int pair[2], status;
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    rank_of_two(1, pair[1]);
    exit(0);
  }
  close(pair[1]);
  rank_of_two(0, pair[0]);
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
  close(pair[0]);
}
END_TEST

void add_windows(Suite *suite)
{
  TCase *tests = tcase_create("windows");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, addresses);
  tcase_add_test(tests, many_windows);
  tcase_add_test(tests, operations);
  tcase_add_test(tests, several_hosts);
  tcase_add_test(tests, registered_twice);
  tcase_add_test(tests, two_communicators);
  tcase_add_test(tests, non_blocking);
  tcase_add_test(tests, memory);
  tcase_add_test(tests, two_processes);
  suite_add_tcase(suite, tests);
}
