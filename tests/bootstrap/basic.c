/* What works: gathers, barriers, messages, handlers, interfaces, resources given back. */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "bootstrap/root.h"
#include "tests/common/free_port.h"
#include "tests/common/to_itself.h"

#define TAG(n) (TT_TAG_USER + (n))

/* The byte that rank r contributes at position i of gather g. */
static unsigned char pattern(int g, int r, size_t i)
{
  return (unsigned char)(g * 31 + r * 7 + (int)(i % 251));
}

static void fill(unsigned char *data, int g, int r, size_t bytes)
{
  for (size_t i = 0; i < bytes && i < 251; i++) data[i] = pattern(g, r, i);
  for (size_t done = 251; done < bytes; done *= 2) memcpy(data + done, data, bytes - done < done ? bytes - done : done);
}

/* The pattern repeats itself: so the beginning is compared with what it should be, and the rest with the beginning. */
static bool is_filled(const unsigned char *data, int g, int r, size_t bytes)
{
  for (size_t i = 0; i < bytes && i < 251; i++)
    if (data[i] != pattern(g, r, i)) return false;
  return bytes <= 251 || memcmp(data, data + 251, bytes - 251) == 0;
}

static ncclResult_t body_gather(struct rank *me)
{
  uint64_t seed = *(uint64_t *)me->arg;
  for (int g = 0; g < 6; g++) {
    size_t bytes = random_next(&seed) % (g == 5 ? 20000 : 300);
    unsigned char *data = malloc((size_t)me->nranks * bytes + 1);
    fill(data + (size_t)me->rank * bytes, g, me->rank, bytes);
    ncclResult_t result = tt_bootstrap_all_gather(me->b, data, bytes);
    for (int r = 0; r < me->nranks && result == ncclSuccess; r++)
      if (!is_filled(data + (size_t)r * bytes, g, r, bytes)) result = ncclInternalError;
    free(data);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

START_TEST(gather_random_sizes)
{
  static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 64};
  uint64_t seed = 88172645463325252ull + (uint64_t)_i;
  environment(NULL);
  ranks_succeed(sizes[_i], body_gather, &seed);
}
END_TEST

static ncclResult_t body_barrier(struct rank *me)
{
  _Atomic int *arrived = me->arg;
  for (int round = 1; round <= 20; round++) {
    if ((me->rank + round) % 5 == 0) usleep(500);
    atomic_fetch_add(arrived, 1);
    ncclResult_t result = tt_bootstrap_barrier(me->b);
    if (result != ncclSuccess) return result;
    if (atomic_load(arrived) < round * me->nranks) return ncclInternalError; /* somebody passed too early */
  }
  return ncclSuccess;
}

START_TEST(barrier_separates)
{
  static const int sizes[] = {1, 2, 3, 5, 8, 13};
  _Atomic int arrived = 0;
  environment(NULL);
  ranks_succeed(sizes[_i], body_barrier, &arrived);
}
END_TEST

/* Groups of even and of odd ranks, and of all but the first. */
static ncclResult_t body_group(struct rank *me)
{
  int ranks[16];
  for (int turn = 0; turn < 6; turn++) {
    int n = 0, at = -1, data[16];
    for (int r = 0; r < me->nranks; r++) {
      if (turn % 2 ? r == 0 : r % 2 != me->rank % 2) continue;
      if (r == me->rank) at = n;
      ranks[n++] = r;
    }
    if (at < 0) continue;
    data[at] = turn * 100 + me->rank;
    ncclResult_t result = tt_bootstrap_group_all_gather(me->b, ranks, at, n, data, sizeof(int));
    if (result != ncclSuccess) return result;
    for (int i = 0; i < n; i++)
      if (data[i] != turn * 100 + ranks[i]) return ncclInternalError;
  }
  return ncclSuccess;
}

START_TEST(group_gather)
{
  environment(NULL);
  ranks_succeed(7, body_group, NULL);
}
END_TEST

/* Rank r has r * 37 bytes of r, and one of them once too many. */
static ncclResult_t body_sized(struct rank *me)
{
  int ranks[16], nodd = 0, at = me->rank / 2;
  for (int r = 1; r < me->nranks; r += 2) ranks[nodd++] = r;
  const int *const groups[] = {NULL, ranks};
  for (int turn = 0; turn < 2; turn++) {
    unsigned char mine[600], *blocks;
    size_t offsets[17];
    int n = turn ? nodd : me->nranks;
    if (turn && me->rank % 2 == 0) continue;
    memset(mine, me->rank, sizeof(mine));
    ncclResult_t result = tt_bootstrap_gather_sized(me->b, groups[turn], turn ? at : me->rank, n, mine,
                                                    (size_t)me->rank * 37, sizeof(mine), &blocks, offsets);
    if (result != ncclSuccess) return result;
    for (int i = 0; i < n; i++) {
      int r = turn ? ranks[i] : i;
      if (offsets[i + 1] - offsets[i] != (size_t)r * 37) result = ncclInternalError;
      for (size_t k = offsets[i]; k < offsets[i + 1]; k++)
        if (blocks[k] != r) result = ncclInternalError;
    }
    free(blocks);
    if (result != ncclSuccess) return result;
  }
  unsigned char *blocks, mine[64] = {0};
  size_t offsets[17], bytes = me->rank == 3 ? 64 : 63;
  ncclResult_t result = tt_bootstrap_gather_sized(me->b, NULL, me->rank, me->nranks, mine, bytes, 63, &blocks, offsets);
  if (blocks != NULL || result == ncclSuccess) return ncclInternalError;
  return strstr(tt_log_thread_error(), "rank 3 has 64 bytes") ? ncclSuccess : result;
}

START_TEST(sized_gather)
{
  environment(NULL);
  ranks_succeed(7, body_sized, NULL);
}
END_TEST

static ncclResult_t expect_text(struct tt_bootstrap *b, int peer, uint32_t tag, const char *text)
{
  void *data;
  size_t bytes;
  ncclResult_t result = tt_bootstrap_recv(b, peer, tag, &data, &bytes, tt_deadline_in_ms(20000));
  if (result != ncclSuccess) return result;
  if (bytes != strlen(text) || memcmp(data, text, bytes) != 0) result = ncclInternalError;
  free(data);
  return result;
}

/* All to all in an order that fits nobody: tags descending, peers ascending; also to oneself. */
static ncclResult_t body_messages(struct rank *me)
{
  char text[64];
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < me->nranks && result == ncclSuccess; p++)
    for (int t = 0; t < 3 && result == ncclSuccess; t++) {
      snprintf(text, sizeof(text), "%d to %d, tag %d", me->rank, p, t);
      result = tt_bootstrap_send(me->b, p, TAG((unsigned)t), text, strlen(text));
      snprintf(text, sizeof(text), "%d to %d, tag %d, second", me->rank, p, t);
      if (result == ncclSuccess) result = tt_bootstrap_send(me->b, p, TAG((unsigned)t), text, strlen(text));
    }
  struct tt_bootstrap_stats stats;
  tt_bootstrap_stats(me->b, &stats);
  for (int i = 0; me->nranks > 1 && me->rank == 0 && stats.early == 0 && i < 20000; i++) {
    usleep(1000); /* until a message has come early */
    tt_bootstrap_stats(me->b, &stats);
  }
  for (int p = 0; p < me->nranks && result == ncclSuccess; p++)
    for (int t = 2; t >= 0 && result == ncclSuccess; t--) {
      snprintf(text, sizeof(text), "%d to %d, tag %d", p, me->rank, t);
      result = expect_text(me->b, p, TAG((unsigned)t), text);
      snprintf(text, sizeof(text), "%d to %d, tag %d, second", p, me->rank, t);
      if (result == ncclSuccess) result = expect_text(me->b, p, TAG((unsigned)t), text);
    }
  void *data = me;
  size_t bytes = 1;
  if (result == ncclSuccess) result = tt_bootstrap_try_recv(me->b, 0, TAG(99), &data, &bytes);
  if (data || bytes) return ncclInternalError;
  if (me->nranks > 1 && me->rank == 0 && stats.early == 0) return ncclInternalError;
  return result == ncclSuccess ? tt_bootstrap_barrier(me->b) : result;
}

START_TEST(messages_any_order)
{
  static const int sizes[] = {1, 2, 5, 11};
  environment(NULL);
  ranks_succeed(sizes[_i], body_messages, NULL);
}
END_TEST

/* Both send 24 MB before they receive, more than sockets and the send queue hold: nobody may block for ever, and
 * contents must arrive whole. */
static ncclResult_t body_large(struct rank *me)
{
  size_t bytes = 4u << 20;
  unsigned char *data = malloc(bytes);
  ncclResult_t result = ncclSuccess;
  for (int m = 0; m < 6 && result == ncclSuccess; m++) {
    fill(data, m, me->rank, bytes);
    result = tt_bootstrap_send(me->b, 1 - me->rank, TAG(1), data, bytes);
  }
  free(data);
  for (int m = 0; m < 6 && result == ncclSuccess; m++) {
    void *got = NULL;
    size_t size = 0;
    result = tt_bootstrap_recv(me->b, 1 - me->rank, TAG(1), &got, &size, tt_deadline_in_ms(100000));
    if (result == ncclSuccess && size != bytes) result = ncclInternalError;
    if (result == ncclSuccess && !is_filled(got, m, 1 - me->rank, size)) result = ncclInternalError;
    free(got);
  }
  return result;
}

START_TEST(messages_large)
{
  environment(NULL);
  ranks_succeed(2, body_large, NULL);
}
END_TEST

/* The handler answers each number below 50 with the next one, to the sender: a game of ping-pong on service threads. */
struct game {
  struct tt_bootstrap *b;
  _Atomic int highest;
};

static void on_ball(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct game *game = context;
  int number;
  if (bytes != sizeof(number)) abort();
  memcpy(&number, data, sizeof(number));
  atomic_store(&game->highest, number);
  number++;
  if (number <= 50 && tt_bootstrap_send(game->b, peer, tag, &number, sizeof(number)) != ncclSuccess) abort();
}

static ncclResult_t body_handler(struct rank *me)
{
  struct game game = {me->b, -1};
  int number = 0;
  /* Rank 0's ball comes before rank 1 has its handler: it must be handed over all the same. */
  if (me->rank == 0) {
    ncclResult_t result = tt_bootstrap_set_handler(me->b, TAG(0x500), ~0xffu, on_ball, &game);
    if (result == ncclSuccess) result = tt_bootstrap_send(me->b, 1, TAG(0x507), &number, sizeof(number));
    if (result == ncclSuccess) result = tt_bootstrap_send(me->b, 1, TAG(0x600), "rest", 4);
    if (result != ncclSuccess) return result;
  } else {
    usleep(50000);
    ncclResult_t result = tt_bootstrap_set_handler(me->b, TAG(0x500), ~0xffu, on_ball, &game);
    if (result == ncclSuccess) result = expect_text(me->b, 0, TAG(0x600), "rest");
    if (result != ncclSuccess) return result;
  }
  for (int i = 0; i < 2000 && atomic_load(&game.highest) < 49; i++) usleep(5000);
  ncclResult_t result = tt_bootstrap_barrier(me->b);
  if (result == ncclSuccess) result = tt_bootstrap_set_handler(me->b, 0, 0, NULL, NULL);
  if (result == ncclSuccess) result = tt_bootstrap_barrier(me->b);
  if (atomic_load(&game.highest) < 49) return ncclInternalError;
  return result;
}

START_TEST(handler_on_service_thread)
{
  environment(NULL);
  ranks_succeed(2, body_handler, NULL);
}
END_TEST

static ncclResult_t body_address(struct rank *me)
{
  const char *wanted = me->arg;
  char text[TT_ADDRESS_TEXT];
  tt_address_print(tt_bootstrap_address(me->b), text);
  if (strncmp(text, wanted, strlen(wanted)) != 0) {
    fprintf(stderr, "address %s, wanted %s\n", text, wanted);
    return ncclInternalError;
  }
  return tt_bootstrap_barrier(me->b);
}

START_TEST(loopback_by_name)
{
  environment((const char *[]){"NCCL_SOCKET_IFNAME==lo", "NCCL_SOCKET_FAMILY=AF_INET", NULL});
  ranks_succeed(5, body_address, (void *)"127.");
}
END_TEST

START_TEST(loopback_ipv6)
{
  if (access("/proc/net/if_inet6", R_OK) != 0) return; /* a machine without IPv6 has nothing to test */
  environment((const char *[]){"NCCL_SOCKET_IFNAME==lo", "NCCL_SOCKET_FAMILY=AF_INET6", NULL});
  ranks_succeed(3, body_address, (void *)"[::1]");
}
END_TEST

START_TEST(fixed_root_serves_one_after_the_other)
{
  char value[64];
  snprintf(value, sizeof(value), "NCCL_COMM_ID=127.0.0.1:%d", free_port());
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", NULL});
  uint64_t seed = 4242;
  for (int i = 0; i < 5; i++) ranks_succeed(4, body_gather, &seed);
}
END_TEST

static void *begin(void *arg)
{
  struct rank *me = arg;
  ranks_run(me->id, 1, NULL, NULL, me);
  return NULL;
}

/* Rank 1 is the first to come, and the kernel picks the root's port for it. */
START_TEST(fixed_root_is_not_met_by_oneself)
{
  char value[64];
  pthread_t thread;
  ncclUniqueId id;
  snprintf(value, sizeof(value), "NCCL_COMM_ID=127.0.0.1:%d", free_port());
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", NULL});
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  struct rank ranks[2] = {{.rank = -1, .nranks = 2, .id = &id}, {.rank = 1, .nranks = 2, .id = &id}};
  atomic_store(&to_itself_wanted, true);
  ck_assert_int_eq(pthread_create(&thread, NULL, begin, &ranks[1]), 0);
  while (!atomic_load(&to_itself_over)) usleep(1000);
  begin(&ranks[0]);
  pthread_join(thread, NULL);
  for (int r = 0; r < 2; r++) ck_assert_msg(ranks[r].result == ncclSuccess, "%s", ranks[r].error);
}
END_TEST

START_TEST(many_unused_ids)
{
  environment(NULL);
  int threads = held_threads(), descriptors = held_descriptors();
  static ncclUniqueId ids[1000];
  for (int i = 0; i < 1000; i++) {
    ck_assert_int_eq(tt_bootstrap_unique_id(&ids[i]), ncclSuccess);
    if (i) ck_assert_int_ne(memcmp(&ids[i], &ids[i - 1], sizeof(ids[i])), 0);
  }
  ck_assert_int_le(held_threads(), threads + 1);
  ck_assert_int_le(held_descriptors(), descriptors + 4);
  /* One of them still works. */
  struct rank ranks[3] = {0};
  ranks_run(&ids[500], 3, NULL, NULL, ranks);
  for (int r = 0; r < 3; r++) ck_assert_int_eq(ranks[r].result, ncclSuccess);
  /* The others would keep the root for the rest of the run. */
  for (int i = 0; i < 1000; i++) {
    struct tt_id made;
    ck_assert_int_eq(tt_wire_get_id(&ids[i], &made), ncclSuccess);
    tt_root_drop(made.nonce);
  }
  expect_quiet(threads, descriptors);
}
END_TEST

START_TEST(unused_ids_expire)
{
  /* Runs before many_unused_ids: with a timeout of 1 s an unused id is forgotten after 4 s. */
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  int threads = held_threads(), descriptors = held_descriptors();
  ncclUniqueId id;
  for (int i = 0; i < 10; i++) ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  expect_quiet(threads, descriptors);
}
END_TEST

START_TEST(everything_is_given_back)
{
  environment(NULL);
  int threads = held_threads(), descriptors = held_descriptors();
  uint64_t seed = 99;
  for (int i = 0; i < 10; i++) ranks_succeed(5, body_gather, &seed);
  expect_quiet(threads, descriptors);
}
END_TEST

static ncclResult_t body_count(struct rank *me)
{
  (void)me;
  return held_threads() <= *(int *)me->arg ? ncclSuccess : ncclInternalError;
}

START_TEST(one_rank_needs_nothing)
{
  environment(NULL);
  int threads = held_threads() + 1, descriptors = held_descriptors(); /* the rank itself is a thread */
  ranks_succeed(1, body_count, &threads);
  expect_quiet(threads - 1, descriptors);
}
END_TEST

Suite *suite_basic(void)
{
  Suite *suite = suite_create("bootstrap");
  TCase *tests = tcase_create("basic");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, unused_ids_expire);
  tcase_add_test(tests, everything_is_given_back);
  tcase_add_test(tests, one_rank_needs_nothing);
  tcase_add_loop_test(tests, gather_random_sizes, 0, 14);
  tcase_add_loop_test(tests, barrier_separates, 0, 6);
  tcase_add_test(tests, group_gather);
  tcase_add_test(tests, sized_gather);
  tcase_add_loop_test(tests, messages_any_order, 0, 4);
  tcase_add_test(tests, messages_large);
  tcase_add_test(tests, handler_on_service_thread);
  tcase_add_test(tests, loopback_by_name);
  tcase_add_test(tests, loopback_ipv6);
  tcase_add_test(tests, fixed_root_is_not_met_by_oneself);
  tcase_add_test(tests, fixed_root_serves_one_after_the_other);
  tcase_add_test(tests, many_unused_ids);
  suite_add_tcase(suite, tests);
  return suite;
}
