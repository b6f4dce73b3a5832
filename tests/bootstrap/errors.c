/* What goes wrong is an error on every rank, in bounded time, and says why. */
#include "ranks.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "bootstrap/listen.h"
#include "bootstrap/root.h"
#include "bootstrap/wire.h"
#include "tests/common/free_port.h"

#define TAG(n) (TT_TAG_USER + (n))

static void expect_error(const struct rank *rank, ncclResult_t result, const char *text)
{
  ck_assert_msg(rank->result == result, "rank %d: result %d instead of %d: %s", rank->rank, rank->result, result,
                rank->error);
  ck_assert_msg(strstr(rank->error, text) != NULL, "rank %d: \"%s\" does not say \"%s\"", rank->rank, rank->error,
                text);
}

static ncclUniqueId new_id(void)
{
  ncclUniqueId id;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  return id;
}

START_TEST(missing_ranks_are_listed)
{
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  ncclUniqueId id = new_id();
  struct rank ranks[3] = {{.nranks = 9}, {.rank = 4, .nranks = 9}, {.rank = 6, .nranks = 9}};
  ranks_run(&id, 3, NULL, NULL, ranks);
  for (int r = 0; r < 3; r++) {
    expect_error(&ranks[r], ncclRemoteError, "1-3, 5, 7-8");
    expect_error(&ranks[r], ncclRemoteError, "6 of 9");
  }
  /* Who comes late learns the same reason, in a process that has not used the id; here it is known as used. */
  struct rank late[1] = {{.rank = 2, .nranks = 9}};
  ranks_run(&id, 1, NULL, NULL, late);
  expect_error(&late[0], ncclInvalidUsage, "used before");
}
END_TEST

static ncclResult_t body_again(struct rank *me)
{
  struct tt_bootstrap *again;
  /* While the first communicator lives. */
  ncclResult_t result = tt_bootstrap_create(me->id, me->rank, me->nranks, NULL, &again);
  ncclResult_t barrier = tt_bootstrap_barrier(me->b);
  return barrier == ncclSuccess ? result : barrier;
}

START_TEST(id_used_twice)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[3] = {0};
  ranks_run(&id, 3, body_again, NULL, ranks);
  for (int r = 0; r < 3; r++) expect_error(&ranks[r], ncclInvalidUsage, "used before");
  memset(ranks, 0, sizeof(ranks)); /* and after its end */
  ranks_run(&id, 3, NULL, NULL, ranks);
  for (int r = 0; r < 3; r++) expect_error(&ranks[r], ncclInvalidUsage, "used before");
  id = new_id(); /* one rank */
  memset(ranks, 0, sizeof(ranks));
  ranks_run(&id, 1, NULL, NULL, ranks);
  ck_assert_int_eq(ranks[0].result, ncclSuccess);
  ranks_run(&id, 1, NULL, NULL, ranks);
  expect_error(&ranks[0], ncclInvalidUsage, "used before");
}
END_TEST

START_TEST(duplicate_rank)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[3] = {{.rank = -1, .nranks = 4}, {.rank = 1, .nranks = 4}, {.rank = 1, .nranks = 4}};
  ranks_run(&id, 3, NULL, NULL, ranks);
  for (int r = 0; r < 3; r++) {
    /* Rank 0 may come after the others have failed: then the id is used up. */
    if (ranks[r].rank == 0 && strstr(ranks[r].error, "used before")) continue;
    expect_error(&ranks[r], ncclInvalidUsage, "rank 1 came twice");
  }
}
END_TEST

START_TEST(different_nranks)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[2] = {{.rank = -1, .nranks = 4}, {.rank = 1, .nranks = 3}};
  ranks_run(&id, 2, NULL, NULL, ranks);
  for (int r = 0; r < 2; r++) expect_error(&ranks[r], ncclInvalidUsage, "all ranks must pass the same number");
}
END_TEST

START_TEST(arguments)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct tt_bootstrap *b;
  ck_assert_int_eq(tt_bootstrap_create(&id, 2, 2, NULL, &b), ncclInvalidArgument);
  ck_assert_int_eq(tt_bootstrap_create(&id, -1, 2, NULL, &b), ncclInvalidArgument);
  ck_assert_int_eq(tt_bootstrap_create(&id, 0, 0, NULL, &b), ncclInvalidArgument);
  struct rank ranks[2] = {0}; /* the id is as good as before */
  ranks_run(&id, 2, NULL, NULL, ranks);
  ck_assert_int_eq(ranks[0].result, ncclSuccess);
}
END_TEST

START_TEST(interface_that_is_not_there)
{
  environment((const char *[]){"NCCL_SOCKET_IFNAME=nope0", NULL});
  ncclUniqueId id;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_SOCKET_IFNAME"));
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "nope0"));
}
END_TEST

START_TEST(fixed_root_errors)
{
  environment((const char *[]){"NCCL_COMM_ID=nonsense", NULL});
  ncclUniqueId id;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclInvalidUsage);
  environment((const char *[]){"NCCL_COMM_ID=127.0.0.1:0", NULL}); /* no port that other ranks could know */
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_COMM_ID"));
  union tt_address address;
  char value[96], text[TT_ADDRESS_TEXT];
  int fd;
  snprintf(value, sizeof(value), "NCCL_COMM_ID=127.0.0.1:%d", free_port());
  ck_assert_int_eq(tt_address_parse(strchr(value, '=') + 1, &address), ncclSuccess);
  ck_assert_int_eq(tt_socket_listen(&address, &fd), ncclSuccess);
  environment((const char *[]){value, "NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  id = new_id();
  struct rank ranks[1] = {{.rank = -1, .nranks = 2}};
  ranks_run(&id, 1, NULL, NULL, ranks);
  expect_error(&ranks[0], ncclInvalidUsage, "another program");
  expect_error(&ranks[0], ncclInvalidUsage, tt_address_print(&address, text));
  close(fd);
  ranks[0] = (struct rank){.rank = 1, .nranks = 2}; /* nobody listens at all */
  ranks_run(&id, 1, NULL, NULL, ranks);
  expect_error(&ranks[0], ncclRemoteError, "NCCL_COMM_ID");
}
END_TEST

ncclResult_t __real_tt_root_add_fixed(const struct tt_id *id, int nranks);
ncclResult_t __wrap_tt_root_add_fixed(const struct tt_id *id, int nranks);
static _Atomic int fixed_roots;
static _Atomic bool forgets_fixed; /* before any rank comes to it */

ncclResult_t __wrap_tt_root_add_fixed(const struct tt_id *id, int nranks)
{
  ncclResult_t result = __real_tt_root_add_fixed(id, nranks);
  if (atomic_load(&forgets_fixed)) tt_root_drop(id->nonce);
  atomic_fetch_add(&fixed_roots, 1);
  return result;
}

static void *begin(void *arg)
{
  struct rank *me = arg;
  ranks_run(me->id, 1, NULL, NULL, me);
  return NULL;
}

/* Rank 0 first: who comes before it, at an address where a meeting has just failed, is told how that one ended. */
static void meet_again(const ncclUniqueId *id)
{
  struct rank first = {.rank = -1, .nranks = 3, .id = id},
              others[2] = {{.rank = 1, .nranks = 3}, {.rank = 2, .nranks = 3}};
  pthread_t thread;
  int before = atomic_load(&fixed_roots);
  ck_assert_int_eq(pthread_create(&thread, NULL, begin, &first), 0);
  while (atomic_load(&fixed_roots) == before) usleep(1000);
  ranks_run(id, 2, NULL, NULL, others);
  pthread_join(thread, NULL);
  ck_assert_msg(first.result == ncclSuccess, "rank 0: result %d, %s", first.result, first.error);
  for (int r = 0; r < 2; r++)
    ck_assert_msg(others[r].result == ncclSuccess, "rank %d: result %d, %s", r + 1, others[r].result, others[r].error);
}

/* A meeting that failed does not keep rank 0 from the next one at the same address. */
START_TEST(fixed_root_again_after_a_failure)
{
  char value[64];
  snprintf(value, sizeof(value), "NCCL_COMM_ID=127.0.0.1:%d", free_port());
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", "NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  ncclUniqueId id = new_id();
  struct rank alone[1] = {{.nranks = 3}};
  ranks_run(&id, 1, NULL, NULL, alone);
  expect_error(&alone[0], ncclRemoteError, "missing ranks 1-2");
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", NULL});
  meet_again(&id);
  /* Nor does one of which rank 0 itself could not begin: the others would wait for it there. */
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME=nope0", NULL});
  alone[0] = (struct rank){.nranks = 3};
  ranks_run(&id, 1, NULL, NULL, alone);
  expect_error(&alone[0], ncclInvalidUsage, "nope0");
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", NULL});
  alone[0] = (struct rank){.rank = 2, .nranks = 3};
  ranks_run(&id, 1, NULL, NULL, alone);
  expect_error(&alone[0], ncclRemoteError, "rank 0 cannot come: ");
  expect_error(&alone[0], ncclRemoteError, "nope0");
  meet_again(&id);
}
END_TEST

/* A communicator of one rank needs no root, but that of NCCL_COMM_ID may be another one's, which has just begun. */
START_TEST(fixed_root_is_not_forgotten)
{
  char value[64];
  snprintf(value, sizeof(value), "NCCL_COMM_ID=127.0.0.1:%d", free_port());
  environment((const char *[]){value, "NCCL_SOCKET_IFNAME==lo", "NCCL_BOOTSTRAP_TIMEOUT=60", NULL});
  atomic_store(&forgets_fixed, true);
  ranks_succeed(2, NULL, NULL);
  atomic_store(&forgets_fixed, false);
}
END_TEST

ncclResult_t __real_tt_listener_open(const union tt_address *preferred, int max, int nranks,
                                     struct tt_listener *listener);
ncclResult_t __wrap_tt_listener_open(const union tt_address *preferred, int max, int nranks,
                                     struct tt_listener *listener);
static _Atomic int listeners_that_fail;

ncclResult_t __wrap_tt_listener_open(const union tt_address *preferred, int max, int nranks,
                                     struct tt_listener *listener)
{
  int left = atomic_load(&listeners_that_fail);
  if (left == 0 || !atomic_compare_exchange_strong(&listeners_that_fail, &left, left - 1))
    return __real_tt_listener_open(preferred, max, nranks, listener);
  return TT_FAIL(ncclSystemError, "no port is left");
}

/* A rank that has reached the root and then cannot listen says so, since the others would wait for it to the end. */
START_TEST(rank_that_cannot_listen)
{
  enum { N = 3 };
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[N];
  pthread_t threads[N];
  for (int r = 0; r < N; r++) ranks[r] = (struct rank){.rank = r ? r : -1, .nranks = N, .id = &id};
  for (int r = 0; r < N - 1; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, begin, &ranks[r]), 0);
  usleep(200000); /* they wait; one that has not begun yet finds its id used */
  atomic_store(&listeners_that_fail, 1);
  begin(&ranks[N - 1]);
  for (int r = 0; r < N - 1; r++) pthread_join(threads[r], NULL);
  expect_error(&ranks[N - 1], ncclSystemError, "no port is left");
  for (int r = 0; r < N - 1; r++)
    if (!strstr(ranks[r].error, "used before")) expect_error(&ranks[r], ncclRemoteError, "rank 2 cannot come: ");
}
END_TEST

/* The root's process is gone: refused connections are not waited for until the deadline. */
START_TEST(root_is_gone)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  union tt_address address;
  ck_assert_int_eq(tt_address_parse("127.0.0.1:1", &address), ncclSuccess);
  address.v4.sin_port = htons((uint16_t)free_port());
  struct tt_id forged;
  ck_assert_int_eq(tt_wire_get_id(&id, &forged), ncclSuccess);
  forged.nonce++;
  forged.root.count = 1;
  forged.root.addresses[0] = address;
  tt_wire_put_id(&id, &forged);
  struct rank ranks[1] = {{.rank = 1, .nranks = 2}};
  ranks_run(&id, 1, NULL, NULL, ranks);
  expect_error(&ranks[0], ncclRemoteError, "has ended");
  /* Nothing but loopback addresses, from another host. */
  forged.nonce++;
  forged.host++;
  tt_wire_put_id(&id, &forged);
  ranks[0] = (struct rank){.rank = 1, .nranks = 2};
  ranks_run(&id, 1, NULL, NULL, ranks);
  expect_error(&ranks[0], ncclRemoteError, "only loopback addresses");
}
END_TEST

/* A link-local address from another host has that host's scope. Here it is the one of the interface that is used. */
START_TEST(link_local_root)
{
  environment((const char *[]){"NCCL_SOCKET_IFNAME==lo", "NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  struct tt_interface *list;
  int count, v6 = 0;
  ck_assert_int_eq(tt_socket_interfaces(&list, &count), ncclSuccess);
  for (int i = 0; i < count; i++) v6 += list[i].address.sa.sa_family == AF_INET6;
  free(list);
  if (v6 == 0) return; /* the machine has no IPv6 */
  ncclUniqueId id = new_id();
  struct tt_id forged;
  ck_assert_int_eq(tt_wire_get_id(&id, &forged), ncclSuccess);
  ck_assert_int_eq(tt_address_parse("[fe80::77]:9", &forged.root.addresses[0]), ncclSuccess);
  forged.root.addresses[0].v6.sin6_scope_id = 4242;
  forged.root.count = 1;
  for (int here = 0; here < 2; here++) {
    forged.nonce++;
    forged.host = tt_host_hash() + !here;
    tt_wire_put_id(&id, &forged);
    struct rank ranks[1] = {{.rank = 1, .nranks = 2}};
    ranks_run(&id, 1, NULL, NULL, ranks);
    expect_error(&ranks[0], ncclRemoteError, here ? "[fe80::77%4242]<9>" : "[fe80::77%lo]<9>");
  }
}
END_TEST

/* The first address goes nowhere (a documentation prefix, or a port that refuses); the second one works. */
START_TEST(first_address_goes_nowhere)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct tt_id changed;
  ck_assert_int_eq(tt_wire_get_id(&id, &changed), ncclSuccess);
  changed.root.addresses[1] = changed.root.addresses[0];
  ck_assert_int_eq(tt_address_parse(_i ? "127.0.0.1:1" : "203.0.113.1:9", &changed.root.addresses[0]), ncclSuccess);
  changed.root.count = 2;
  tt_wire_put_id(&id, &changed);
  struct rank ranks[3] = {0};
  ranks_run(&id, 3, NULL, NULL, ranks);
  for (int r = 0; r < 3; r++) ck_assert_msg(ranks[r].result == ncclSuccess, "%s", ranks[r].error);
}
END_TEST

static ncclResult_t body_one_leaves(struct rank *me)
{
  void *data;
  size_t bytes;
  if (me->rank == 1) return ncclSuccess; /* destroys at once */
  if (me->rank == 0) return tt_bootstrap_recv(me->b, 1, TAG(1), &data, &bytes, tt_deadline_in_ms(60000));
  ncclResult_t result; /* all is well until it has left */
  while ((result = tt_bootstrap_send(me->b, 1, TAG(1), "x", 1)) == ncclSuccess) usleep(1000);
  return result;
}

START_TEST(peer_that_left_is_named)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[3] = {0};
  ranks_run(&id, 3, body_one_leaves, NULL, ranks);
  expect_error(&ranks[0], ncclRemoteError, "rank 1 has left");
  expect_error(&ranks[2], ncclRemoteError, "rank 1 has left");
}
END_TEST

static _Atomic int told_of_left;

static void count_left(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                       const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (level == TT_LOG_WARN && strstr(text, "has left the communicator")) atomic_fetch_add(&told_of_left, 1);
}

/* The others tell rank 0, which leaves, this and that. */
static ncclResult_t body_notices(struct rank *me)
{
  for (int i = 0; me->rank != 0 && i < 20000; i++) {
    tt_bootstrap_notify(me->b, 0, TT_TAG_USER, &i, sizeof(i));
    if (i % 64 == 0 && tt_bootstrap_left(me->b, 0)) i += 4000;
  }
  return ncclSuccess;
}

START_TEST(notice_for_one_that_leaves)
{
  tt_log_redirect(count_left);
  for (int i = 0; i < 20; i++) ranks_succeed(3, body_notices, NULL);
  tt_log_redirect(NULL);
  ck_assert_int_eq(told_of_left, 0);
}
END_TEST

/* Rank 3 leaves, of which rank 0, in a communicator of eight, is told by nobody. */
static ncclResult_t body_unheard_of(struct rank *me)
{
  int dead;
  char why[256] = "";
  const uint32_t tag = TT_TAG_USER + 1;
  if (me->rank == 3) return ncclSuccess;
  if (me->rank != 0) {
    void *data;
    size_t bytes;
    TT_TRY(tt_bootstrap_recv(me->b, 0, tag, &data, &bytes, tt_deadline_in_ms(60000)));
    free(data);
    return ncclSuccess;
  }
  /* Whether that fails depends on whether rank 3 is still there. */
  tt_log_hush(true);
  ncclResult_t result = ncclSuccess;
  for (tt_deadline end = tt_deadline_in_ms(60000); result == ncclSuccess && !tt_deadline_passed(end); usleep(1000))
    result = tt_bootstrap_send_unless_left(me->b, 3, tag, NULL, 0);
  tt_log_hush(false);
  if (result != ncclRemoteError || !tt_bootstrap_left(me->b, 3)) return TT_FAIL(ncclInternalError, "rank 3 has left");
  tt_bootstrap_notify(me->b, 3, tag, NULL, 0);
  if (tt_bootstrap_dead(me->b, &dead, why, sizeof(why))) return TT_FAIL(ncclInternalError, "rank %d %s", dead, why);
  for (int r = 1; r < me->nranks; r++)
    if (r != 3) TT_TRY(tt_bootstrap_send(me->b, r, tag, NULL, 0));
  /* Who needs it must be told. */
  for (tt_deadline end = tt_deadline_in_ms(60000); !tt_deadline_passed(end); usleep(1000)) {
    tt_log_hush(true);
    result = tt_bootstrap_send(me->b, 3, tag, NULL, 0);
    tt_log_hush(false);
    if (result != ncclSuccess) return strstr(tt_log_thread_error(), "rank 3") ? ncclSuccess : ncclInternalError;
  }
  return TT_FAIL(ncclInternalError, "rank 3 seems to take messages");
}

START_TEST(one_that_left_unheard_of)
{
  ranks_succeed(8, body_unheard_of, NULL);
}
END_TEST

static ncclResult_t body_deadline(struct rank *me)
{
  void *data;
  size_t bytes;
  ncclResult_t result = ncclSuccess;
  if (me->rank == 0) result = tt_bootstrap_recv(me->b, 1, TAG(1), &data, &bytes, tt_deadline_in_ms(100));
  ncclResult_t barrier = tt_bootstrap_barrier(me->b);
  return result ? result : barrier;
}

START_TEST(deadline_names_the_peer)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[2] = {0};
  ranks_run(&id, 2, body_deadline, NULL, ranks);
  expect_error(&ranks[0], ncclRemoteError, "in vain for a message of rank 1");
  ck_assert_int_eq(ranks[1].result, ncclSuccess);
}
END_TEST

static void *set_later(void *arg)
{
  usleep(200000);
  atomic_store((_Atomic uint32_t *)arg, 1);
  return NULL;
}

static ncclResult_t body_wait_for_ever(struct rank *me)
{
  void *data;
  size_t bytes;
  return tt_bootstrap_recv(me->b, (me->rank + 1) % me->nranks, TAG(1), &data, &bytes, TT_DEADLINE_NEVER);
}

/* The flag ends a wait for messages, and a wait for ranks that never come. */
START_TEST(abort_flag)
{
  environment(NULL);
  _Atomic uint32_t flag = 0;
  ncclUniqueId id = new_id();
  pthread_t thread;
  struct rank ranks[3] = {{.abort = &flag}, {.abort = &flag}, {.abort = &flag}};
  if (_i) ranks[0].nranks = ranks[1].nranks = ranks[2].nranks = 4;
  ck_assert_int_eq(pthread_create(&thread, NULL, set_later, &flag), 0);
  ranks_run(&id, 3, body_wait_for_ever, NULL, ranks);
  pthread_join(thread, NULL);
  for (int r = 0; r < 3; r++) {
    /* Whose neighbour was faster hears of its end instead. */
    ck_assert_int_ne(ranks[r].result, ncclSuccess);
    ck_assert(strstr(ranks[r].error, "aborted") || strstr(ranks[r].error, "gone") || strstr(ranks[r].error, "left"));
  }
}
END_TEST

static ncclResult_t body_unequal(struct rank *me)
{
  char data[64] = {0};
  return tt_bootstrap_all_gather(me->b, data, me->rank == 0 ? 8 : 16);
}

START_TEST(unequal_sizes_are_noticed)
{
  environment(NULL);
  ncclUniqueId id = new_id();
  struct rank ranks[2] = {0};
  ranks_run(&id, 2, body_unequal, NULL, ranks);
  for (int r = 0; r < 2; r++) expect_error(&ranks[r], ncclInternalError, "not in the same exchange");
}
END_TEST

static pthread_barrier_t both_here;
static _Atomic int given_up;

/* More than may be queued, so that the send has to wait. */
static ncclResult_t body_send_to_stopped(struct rank *me)
{
  static char data[1 << 20];
  ncclResult_t result = ncclSuccess;
  pthread_barrier_wait(&both_here);
  forget_waits(me);
  pthread_barrier_wait(&both_here);
  if (me->rank == 1) stand_still(me, &given_up, 1);
  while (me->rank == 0 && atomic_load(&standing_still) == 0) usleep(1000);
  if (me->rank == 0)
    for (int i = 0; i < 100 && result == ncclSuccess; i++)
      result = tt_bootstrap_send(me->b, 1, TAG(1), data, sizeof(data));
  atomic_store(&given_up, 1);
  return result;
}

START_TEST(stopped_rank_is_found_by_who_sends)
{
  environment((const char *[]){"TUTTI_PEER_TIMEOUT=5", "NCCL_BOOTSTRAP_TIMEOUT=60", NULL});
  ncclUniqueId id = new_id();
  struct rank ranks[2] = {0};
  atomic_store(&given_up, 0);
  atomic_store(&standing_still, 0);
  pthread_barrier_init(&both_here, NULL, 2);
  ranks_run(&id, 2, body_send_to_stopped, NULL, ranks);
  pthread_barrier_destroy(&both_here);
  expect_error(&ranks[0], ncclRemoteError, "rank 1 has not answered for 5 s");
}
END_TEST

Suite *suite_errors(void)
{
  Suite *suite = suite_create("errors");
  TCase *tests = tcase_create("errors");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, interface_that_is_not_there); /* first: no root may have listeners yet */
  tcase_add_test(tests, missing_ranks_are_listed);
  tcase_add_test(tests, id_used_twice);
  tcase_add_test(tests, duplicate_rank);
  tcase_add_test(tests, different_nranks);
  tcase_add_test(tests, arguments);
  tcase_add_test(tests, fixed_root_errors);
  tcase_add_test(tests, fixed_root_again_after_a_failure);
  tcase_add_test(tests, fixed_root_is_not_forgotten);
  tcase_add_test(tests, rank_that_cannot_listen);
  tcase_add_test(tests, root_is_gone);
  tcase_add_test(tests, link_local_root);
  tcase_add_loop_test(tests, first_address_goes_nowhere, 0, 2);
  tcase_add_test(tests, peer_that_left_is_named);
  tcase_add_test(tests, notice_for_one_that_leaves);
  tcase_add_test(tests, one_that_left_unheard_of);
  tcase_add_test(tests, deadline_names_the_peer);
  tcase_add_loop_test(tests, abort_flag, 0, 2);
  tcase_add_test(tests, unequal_sizes_are_noticed);
  tcase_add_test(tests, stopped_rank_is_found_by_who_sends);
  suite_add_tcase(suite, tests);
  return suite;
}
