/* Set-up that cannot work ends, in bounded time, with the names of who and why. */
#include "world.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "connect/message.h"
#include "tests/common/process_state.h"

static void cannot(struct rank *rank)
{
  int peer = 1 - rank->rank;
  RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 0, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSystemError);
  const char *text = tt_log_thread_error();
  RANK_CHECK(rank, strstr(text, "no transport") && strstr(text, "NCCL_SHM_DISABLE") && strstr(text, "NET: "));
  RANK_CHECK(rank, !tt_connect_get(rank->connect, peer, 0, 0, true));
  /* It stays so, at once. */
  RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 0, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSystemError);
}

START_TEST(no_transport)
{
  set_env("NCCL_SHM_DISABLE", "1");
  world_run(2, cannot);
}
END_TEST

/* A rank that fails to make its half says so, and the rank that asked need not wait for a deadline. */
static void peer_cannot(struct rank *rank)
{
  if (rank->rank == 1) rank->env->buffer_bytes[TT_PROTO_SIMPLE] = 100; /* too small */
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 1) return;
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 5, 0, true) == ncclSuccess);
  uint64_t start = tt_timer_ns();
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclRemoteError);
  RANK_CHECK(rank, tt_timer_ns() - start < 60ull * 1000000000);
  const char *text = tt_log_thread_error();
  RANK_CHECK(rank, strstr(text, "rank 1") && strstr(text, "channel 5") && strstr(text, "NCCL_BUFFSIZE"));
}

START_TEST(peer_says_why)
{
  world_run(2, peer_cannot);
}
END_TEST

/* What came first, as another rank tells a moment after the connection has failed. */
static ncclResult_t late_news(void *context)
{
  int *looks = context;
  return ++*looks < 10 ? ncclSuccess : TT_FAIL(ncclInvalidUsage, "the cause");
}

static void follows(struct rank *rank)
{
  int looks = 0;
  if (rank->rank == 1) rank->env->buffer_bytes[TT_PROTO_SIMPLE] = 100;
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 1) return;
  tt_connect_set_check(rank->connect, late_news, &looks);
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclInvalidUsage);
  RANK_CHECK(rank, strcmp(tt_log_thread_error(), "the cause") == 0);
}

START_TEST(cause_is_told_late)
{
  world_run(2, follows);
}
END_TEST

/* Different buffers at both ends are found before any data moves. */
static void unequal(struct rank *rank)
{
  if (rank->rank == 1) rank->env->buffer_bytes[TT_PROTO_SIMPLE] *= 2;
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 1) return;
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclInvalidUsage);
  RANK_CHECK(rank, strstr(tt_log_thread_error(), "equal on all ranks"));
}

START_TEST(unequal_buffers)
{
  world_run(2, unequal);
}
END_TEST

static _Atomic int warnings;

static void count_warnings(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                           const char *func, const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (level == TT_LOG_WARN) tt_log_remember(text);
  if (level == TT_LOG_WARN && strstr(text, "rank 0 has waited ")) atomic_fetch_add(&warnings, 1);
}

/* Rank 2 stops; rank 0 names it, first while it waits, and is connected with the others. */
static void stopped_peer(struct rank *rank)
{
  if (rank->rank == 2) kill(getpid(), SIGSTOP);
  if (rank->rank != 0) {
    /* Until rank 0 is done. */
    void *data = NULL;
    size_t bytes;
    tt_bootstrap_recv(rank->bootstrap, 0, TT_TAG_USER, &data, &bytes, tt_deadline_in_ms(60000));
    free(data);
    rank->abort = 1; /* leaves without a barrier */
    return;
  }
  await_stopped(rank->env->peers[2].pid);
  for (int peer = 1; peer < 4; peer++)
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 0, true) == ncclSuccess);
  tt_log_redirect(count_warnings);
  ncclResult_t result = tt_connect_run(rank->connect);
  tt_log_redirect(NULL);
  const char *text = tt_log_thread_error();
  bool named = strstr(text, "rank 2 on") && !strstr(text, "rank 1 on") && !strstr(text, "rank 3 on") &&
               strstr(text, "no answer") && strstr(text, "NCCL_BOOTSTRAP_TIMEOUT");
  bool others = tt_connect_get(rank->connect, 1, 0, 0, true) && tt_connect_get(rank->connect, 3, 0, 0, true);
  for (int peer = 1; peer < 4; peer += 2) tt_bootstrap_send(rank->bootstrap, peer, TT_TAG_USER, "x", 1);
  usleep(300000);
  /* The stopped process goes when its parent does; end it now. */
  if (rank->env->peers[2].pid > 0) kill(rank->env->peers[2].pid, SIGKILL);
  rank->abort = 1;
  RANK_CHECK(rank, result == ncclSystemError && named && others);
  RANK_CHECK(rank, warnings == 1 || warnings == 2); /* after one second and two, unless the machine is busy */
}

START_TEST(stopped)
{
  int statuses[4];
  set_env("NCCL_BOOTSTRAP_TIMEOUT", "3");
  set_env("TUTTI_INIT_WARN", "1");
  world_run_processes(4, stopped_peer, statuses);
  ck_assert_int_eq(statuses[0], 0);
  ck_assert_int_eq(statuses[2], -SIGKILL);
}
END_TEST

static void killed_peer(struct rank *rank)
{
  if (rank->rank == 1) raise(SIGKILL);
  await_dead(rank->env->peers[1].pid);
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, true) == ncclSuccess);
  ncclResult_t result = tt_connect_run(rank->connect);
  RANK_CHECK(rank, result != ncclSuccess);
  RANK_CHECK(rank, strstr(tt_log_thread_error(), "rank 1"));
  rank->abort = 1; /* leaves without a barrier */
}

START_TEST(killed)
{
  int statuses[2];
  world_run_processes(2, killed_peer, statuses);
  ck_assert_int_eq(statuses[0], 0);
  ck_assert_int_eq(statuses[1], -SIGKILL);
}
END_TEST

static struct tt_bootstrap *reader; /* of the rank whose connections are up late */

/* What is logged of a connection before it is up comes when the peer has been gone for a while. */
static void when_it_is_gone(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                            const char *func, const char *text)
{
  tt_deadline deadline = tt_deadline_in_ms(60000);
  int dead;
  char why[256];
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  if (!strstr(text, "Channel ")) return;
  while (!tt_bootstrap_dead(reader, &dead, why, sizeof(why)) && !tt_deadline_passed(deadline)) usleep(1000);
  usleep(250000);
}

/* As a communicator looks. */
static ncclResult_t look_for_dead(void *bootstrap)
{
  int dead;
  char why[256];
  if (!tt_bootstrap_dead(bootstrap, &dead, why, sizeof(why))) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "rank %d %s", dead, why);
}

/* Rank 1 connects, sends and exits, all before rank 0 knows that it is connected. */
static void sends_and_exits(struct rank *rank)
{
  reader = rank->bootstrap;
  tt_connect_set_check(rank->connect, look_for_dead, rank->bootstrap);
  if (rank->rank == 0) tt_log_redirect(when_it_is_gone);
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  for (int send = 0; send < 2; send++)
    RANK_CHECK(rank, tt_connect_need(rank->connect, 1 - rank->rank, 0, 0, send) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  _Atomic uint64_t *tail = tt_connect_get(rank->connect, 1 - rank->rank, 0, 0, rank->rank == 1)->conn.tail;
  if (rank->rank == 1) {
    atomic_store(tail, rank->env->first_step + 1);
    _exit(0);
  }
  tt_log_redirect(NULL);
  RANK_CHECK(rank, atomic_load(tail) == rank->env->first_step + 1);
  rank->abort = 1; /* leaves without a barrier */
}

START_TEST(sent_and_exited)
{
  set_env("NCCL_DEBUG", "INFO");
  tt_log_reset();
  world_run_processes(2, sends_and_exits, NULL);
}
END_TEST

static useconds_t usec; /* Connections are up so long after the news of them. */

/* Who has answered rank 0 has left when that is read. */
static void a_while(enum tt_log_level level, unsigned long subsystems, const char *file, int line, const char *func,
                    const char *text)
{
  int peer;
  (void)level, (void)subsystems, (void)file, (void)line, (void)func;
  if (!strstr(text, "Channel ") || sscanf(strstr(text, " : "), " : 0[0] -> %d", &peer) != 1) return;
  atomic_fetch_or(&ranks_left, 1u << peer);
  usleep(usec);
}

/* Each answer may take its time, in a round of its own or not. */
static void left_by_all(struct rank *rank)
{
  if (rank->rank != 0) return;
  tt_log_redirect(a_while);
  for (int peer = 1; peer < rank->nranks; peer++)
    RANK_CHECK(rank, tt_connect_need(rank->connect, peer, 0, 0, true) == ncclSuccess);
  ncclResult_t result = tt_connect_run(rank->connect);
  unsigned left = atomic_exchange(&ranks_left, 0);
  tt_log_redirect(NULL);
  RANK_CHECK(rank, result == ncclSuccess && left == (1u << rank->nranks) - 2);
}

START_TEST(all_left)
{
  static const struct {
    const char *peers; /* of a round */
    useconds_t usec;
  } cases[] = {{"1", 250000}, {"4", 250000}, {"1", 1500000}};
  set_env("NCCL_CONNECT_ROUND_MAX_PEERS", cases[_i].peers);
  usec = cases[_i].usec;
  set_env("NCCL_DEBUG", "INFO");
  tt_log_reset();
  world_run_processes(5, left_by_all, NULL);
}
END_TEST

/* Asked to stop while it waits. */
static void *abort_soon(void *arg)
{
  struct rank *rank = arg;
  usleep(200000);
  atomic_store(&rank->abort, 1);
  return NULL;
}

static void aborted(struct rank *rank)
{
  if (rank->rank == 1) {
    kill(getpid(), SIGSTOP);
    _exit(0);
  }
  await_stopped(rank->env->peers[1].pid);
  pthread_t thread;
  RANK_CHECK(rank, pthread_create(&thread, NULL, abort_soon, rank) == 0);
  RANK_CHECK(rank, tt_connect_need(rank->connect, 1, 0, 0, true) == ncclSuccess);
  ncclResult_t result = tt_connect_run(rank->connect);
  bool said = strstr(tt_log_thread_error(), "aborted") != NULL;
  pthread_join(thread, NULL);
  kill(rank->env->peers[1].pid, SIGKILL);
  RANK_CHECK(rank, result == ncclInternalError && said);
}

START_TEST(abort_ends_the_wait)
{
  int statuses[2];
  world_run_processes(2, aborted, statuses);
  ck_assert_int_eq(statuses[0], 0);
}
END_TEST

/* Messages that no rank of this version sends change nothing. */
static void heckled(struct rank *rank)
{
  int next = (rank->rank + 1) % rank->nranks;
  unsigned seed = (unsigned)rank->rank;
  for (int i = 0; i < 200; i++) {
    struct tt_connect_message message = {0};
    struct tt_connect_record record = {.channel = (int)(rand_r(&seed) % TT_MAX_CHANNELS), .send = i % 2};
    record.handshake.bytes = (uint16_t)(rand_r(&seed) % 64);
    RANK_CHECK(rank, tt_connect_message_begin(&message, 1 + i % 3, i % 2, "hello") == ncclSuccess);
    RANK_CHECK(rank, tt_connect_message_add(&message, &record) == ncclSuccess);
    uint32_t tag = 0x40000000u | 1u << 1 | (uint32_t)(i % 2);
    if (i % 3 == 0) message.data[(size_t)rand_r(&seed) % message.bytes] ^= 0x80;
    if (i % 3 == 1) tag ^= 4; /* another pair's */
    if (i % 3 == 2 && i % 6 != 2) message.bytes /= 2;
    RANK_CHECK(rank, tt_bootstrap_send(rank->bootstrap, next, tag, message.data, message.bytes) == ncclSuccess);
    free(message.data);
  }
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_need(rank->connect, (rank->rank + 2) % 4, 0, 0, true) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_need(rank->connect, (rank->rank + 2) % 4, 0, 0, false) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
}

START_TEST(malformed_messages)
{
  world_run(4, heckled);
}
END_TEST

/* Leaves while others still ask: they get an error, nobody hangs or crashes. */
static void leave_early(struct rank *rank)
{
  if (rank->rank == 0) {
    tt_connect_destroy(rank->connect);
    rank->connect = NULL;
    usleep(100000);
    return;
  }
  if (tt_connect_need(rank->connect, 0, 0, 0, true) == ncclSuccess) (void)tt_connect_run(rank->connect);
}

START_TEST(closed_peer)
{
  set_env("NCCL_BOOTSTRAP_TIMEOUT", "2");
  world_run(3, leave_early);
}
END_TEST

void add_failures(Suite *suite)
{
  TCase *tc = tcase_create("failures");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, no_transport);
  tcase_add_test(tc, peer_says_why);
  tcase_add_test(tc, cause_is_told_late);
  tcase_add_test(tc, unequal_buffers);
  tcase_add_test(tc, stopped);
  tcase_add_test(tc, killed);
  tcase_add_test(tc, sent_and_exited);
  tcase_add_loop_test(tc, all_left, 0, 3);
  tcase_add_test(tc, abort_ends_the_wait);
  tcase_add_test(tc, malformed_messages);
  tcase_add_test(tc, closed_peer);
  suite_add_tcase(suite, tc);
}
