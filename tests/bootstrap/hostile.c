/* Clients that have no business here: they are dropped, counted, and disturb nobody. */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/link.h"
#include "bootstrap/wire.h"

enum attack { CLOSE, RESET, SILENT, ONE_BYTE, GARBAGE, WRONG_PROOF, WRONG_KEY, SLOW, ATTACKS };

static int connect_to(const union tt_address *address)
{
  int fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, &address->sa, tt_address_bytes(address)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/* A client that knows the id's nonce, as one on the same network might, but not its key. */
static void pretend(int fd, uint64_t nonce, enum tt_purpose purpose, enum attack attack)
{
  unsigned char bytes[TT_HELLO_BYTES], challenge[TT_CHALLENGE_BYTES], proof[TT_PROOF_BYTES];
  struct tt_hello hello = {.version = TT_WIRE_VERSION, .purpose = (uint8_t)purpose, .nonce = nonce, .rank = 1};
  tt_wire_put_hello(bytes, &hello);
  for (size_t i = 0; i < sizeof(bytes); i++) {
    if (send(fd, bytes + i, 1, MSG_NOSIGNAL) != 1) return;
    if (attack == SLOW) {
      if (i == 30) return; /* and then nothing more */
      usleep(1000);
    }
  }
  if (recv(fd, challenge, sizeof(challenge), MSG_WAITALL) != (ssize_t)sizeof(challenge)) return;
  tt_wire_put_proof(proof, attack == WRONG_KEY ? 0 : 0x1234567890abcdefull);
  if (send(fd, proof, sizeof(proof), MSG_NOSIGNAL) < 0) return;
  /* Whoever accepts this proof would go on; the connection must end instead. */
  ck_assert_int_le(recv(fd, proof, sizeof(proof), MSG_WAITALL), 0);
}

/* Returns a descriptor that stays open for the kinds that wait, else -1. */
static int attack_once(const union tt_address *address, uint64_t nonce, enum tt_purpose purpose, enum attack attack)
{
  struct linger linger = {1, 0};
  char junk[300];
  int fd = connect_to(address);
  if (fd < 0) return -1;
  switch (attack) {
  case SILENT:
    return fd;
  case ONE_BYTE:
    if (send(fd, "T", 1, MSG_NOSIGNAL) < 0) break;
    return fd;
  case RESET:
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    break;
  case GARBAGE:
    memset(junk, 0xee, sizeof(junk));
    if (send(fd, junk, sizeof(junk), MSG_NOSIGNAL) < 0) break;
    break;
  case SLOW:
    pretend(fd, nonce, purpose, attack);
    return fd;
  case WRONG_PROOF:
  case WRONG_KEY:
    pretend(fd, nonce, purpose, attack);
    break;
  default:
    break;
  }
  close(fd);
  return -1;
}

struct storm {
  struct tt_id id;
  _Atomic int stop;
  int held[300], nheld;
  _Atomic int done;
};

static void *storm(void *arg)
{
  struct storm *s = arg;
  for (int i = 0; !atomic_load(&s->stop); i++) {
    if (s->nheld == 100) close(s->held[--s->nheld]);
    int fd = attack_once(&s->id.root.addresses[0], s->id.nonce, TT_PURPOSE_CHECKIN, (enum attack)(i % ATTACKS));
    if (fd >= 0) s->held[s->nheld++] = fd;
    atomic_fetch_add(&s->done, 1);
  }
  while (s->nheld) close(s->held[--s->nheld]);
  return NULL;
}

static ncclResult_t body_gather(struct rank *me)
{
  int data[64];
  for (int g = 0; g < 5; g++) {
    data[me->rank] = g * 1000 + me->rank;
    ncclResult_t result = tt_bootstrap_all_gather(me->b, data, sizeof(int));
    if (result != ncclSuccess) return result;
    for (int r = 0; r < me->nranks; r++)
      if (data[r] != g * 1000 + r) return ncclInternalError;
  }
  return tt_bootstrap_barrier(me->b);
}

/* All kinds of attack on the root, all the time, while 20 communicators are made. */
START_TEST(storm_on_the_root)
{
  environment(NULL);
  int threads = held_threads(), descriptors = held_descriptors();
  for (int i = 0; i < 20; i++) {
    ncclUniqueId id;
    struct storm s = {0};
    pthread_t thread;
    struct rank ranks[6] = {0};
    ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
    ck_assert_int_eq(tt_wire_get_id(&id, &s.id), ncclSuccess);
    ck_assert_int_eq(tt_thread_start(&thread, "storm", storm, &s), ncclSuccess);
    while (atomic_load(&s.done) < ATTACKS) usleep(1000);
    ranks_run(&id, 6, body_gather, NULL, ranks);
    atomic_store(&s.stop, 1);
    pthread_join(thread, NULL);
    for (int r = 0; r < 6; r++) ck_assert_msg(ranks[r].result == ncclSuccess, "%s", ranks[r].error);
  }
  expect_quiet(threads, descriptors);
}
END_TEST

/* 200 silent connections first, held all the while. */
START_TEST(many_silent_connections)
{
  environment(NULL);
  ncclUniqueId id;
  struct tt_id parsed;
  int held[200];
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ck_assert_int_eq(tt_wire_get_id(&id, &parsed), ncclSuccess);
  for (int i = 0; i < 200; i++) held[i] = connect_to(&parsed.root.addresses[0]);
  struct rank ranks[8] = {0};
  ranks_run(&id, 8, body_gather, NULL, ranks);
  for (int r = 0; r < 8; r++) ck_assert_msg(ranks[r].result == ncclSuccess, "%s", ranks[r].error);
  for (int i = 0; i < 200; i++)
    if (held[i] >= 0) close(held[i]);
}
END_TEST

/* Attacks on the listeners of ranks; what is known of them does not include the communicator's nonce. */
static ncclResult_t body_attacked(struct rank *me)
{
  int held[ATTACKS * 20], nheld = 0;
  struct tt_bootstrap_stats stats;
  ncclResult_t result = tt_bootstrap_barrier(me->b);
  if (me->rank == 0)
    for (int i = 0; i < ATTACKS * 20; i++) {
      int fd = attack_once(tt_bootstrap_address(me->b), 1, TT_PURPOSE_PEER, (enum attack)(i % ATTACKS));
      if (fd >= 0) held[nheld++] = fd;
    }
  if (result == ncclSuccess) result = body_gather(me);
  while (nheld) close(held[--nheld]);
  if (me->rank == 0) {
    for (int i = 0; i < 1000; i++) {
      tt_bootstrap_stats(me->b, &stats);
      if (stats.dropped == ATTACKS * 20) break;
      usleep(10000);
    }
    if (stats.dropped != ATTACKS * 20) return ncclInternalError;
  }
  return result == ncclSuccess ? tt_bootstrap_barrier(me->b) : result;
}

START_TEST(attacks_on_a_rank)
{
  environment(NULL);
  ranks_succeed(4, body_attacked, NULL);
}
END_TEST

/* The error about missing ranks says that something else came. */
START_TEST(dropped_clients_are_counted)
{
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=1", NULL});
  ncclUniqueId id;
  struct tt_id parsed;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ck_assert_int_eq(tt_wire_get_id(&id, &parsed), ncclSuccess);
  for (int i = 0; i < 7; i++) attack_once(&parsed.root.addresses[0], parsed.nonce, TT_PURPOSE_CHECKIN, GARBAGE);
  struct rank ranks[1] = {{.rank = -1, .nranks = 2}};
  ranks_run(&id, 1, NULL, NULL, ranks);
  ck_assert_int_eq(ranks[0].result, ncclRemoteError);
  ck_assert_msg(strstr(ranks[0].error, "7 connections were dropped"), "%s", ranks[0].error);
  ck_assert_msg(strstr(ranks[0].error, "missing rank 1"), "%s", ranks[0].error);
}
END_TEST

/* A client with the key and another version of the protocol is told so. */
START_TEST(other_version)
{
  environment(NULL);
  ncclUniqueId id;
  struct tt_id parsed;
  unsigned char bytes[TT_HELLO_BYTES], reply[TT_CHALLENGE_BYTES];
  struct tt_challenge challenge;
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ck_assert_int_eq(tt_wire_get_id(&id, &parsed), ncclSuccess);
  struct tt_hello hello = {.version = TT_WIRE_VERSION + 1, .purpose = TT_PURPOSE_CHECKIN, .nonce = parsed.nonce};
  int fd = connect_to(&parsed.root.addresses[0]);
  tt_wire_put_hello(bytes, &hello);
  ck_assert_int_eq(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
  ck_assert_int_eq(recv(fd, reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
  ck_assert(tt_wire_get_challenge(reply, &challenge));
  ck_assert_int_eq(challenge.status, TT_CHALLENGE_VERSION);
  ck_assert_int_eq(challenge.version, TT_WIRE_VERSION);
  close(fd);
}
END_TEST

Suite *suite_hostile(void)
{
  Suite *suite = suite_create("hostile");
  TCase *tests = tcase_create("hostile");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, storm_on_the_root);
  tcase_add_test(tests, many_silent_connections);
  tcase_add_test(tests, attacks_on_a_rank);
  tcase_add_test(tests, dropped_clients_are_counted);
  tcase_add_test(tests, other_version);
  suite_add_tcase(suite, tests);
  return suite;
}
