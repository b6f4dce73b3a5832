/* Reports at any moment: threads that ask all the time, by call and by socket, while communicators are made, used,
 * aborted and destroyed. */
#include "suites.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/uds.h"
#include "report/listen.h"
#include "tests/common/held.h"
#include "tutti.h"

enum { RANKS = 2, ROUNDS = 10 };

static _Atomic bool over;
static _Atomic int asked, answered;

static void *call_report(void *arg)
{
  static _Thread_local char text[1 << 16];
  (void)arg;
  while (!atomic_load(&over)) {
    size_t bytes = sizeof text;
    ck_assert_int_eq(tuttiCommReport(NULL, atomic_load(&asked) % 2 ? tuttiReportText : tuttiReportJson, text, &bytes),
                     ncclSuccess);
    ck_assert_ptr_nonnull(strstr(text, "communicators"));
    atomic_fetch_add(&asked, 1);
    usleep(500);
  }
  return NULL;
}

/* This process's socket for reports, as others find it. */
static bool find_name(char name[TT_UDS_NAME_BYTES])
{
  char line[512], begin[64];
  bool found = false;
  snprintf(begin, sizeof begin, "@" TT_REPORT_NAME "%d-", (int)getpid());
  FILE *file = fopen("/proc/self/net/unix", "r");
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    char *at = strstr(line, begin);
    if (at == NULL) continue;
    at[strcspn(at, "\n")] = '\0';
    snprintf(name, TT_UDS_NAME_BYTES, "%.63s", at + 1);
    found = true;
  }
  if (file != NULL) fclose(file);
  return found;
}

/* Also says nonsense, or nothing, and hangs up. */
static void *ask_socket(void *arg)
{
  static const char *const words[] = {"JSON", "TEXT", "WHAT", "J"};
  (void)arg;
  for (int turn = 0; !atomic_load(&over); turn++) {
    char name[TT_UDS_NAME_BYTES], piece[4096];
    int fd = -1;
    usleep(500);
    if (!find_name(name) || tt_uds_connect(name, &fd) != ncclSuccess || fd < 0) continue;
    const char *word = words[turn % 4];
    size_t got = 0;
    if (send(fd, word, strlen(word), MSG_NOSIGNAL) > 0 && turn % 4 < 3)
      for (tt_deadline end = tt_deadline_in_ms(20000); !tt_deadline_passed(end);) {
        ssize_t n = recv(fd, piece, sizeof piece, 0); /* the socket does not wait */
        if (n == 0) break;
        if (n > 0) got += (size_t)n;
        if (n < 0) usleep(200);
      }
    if (turn % 4 < 2 && got > 0) atomic_fetch_add(&answered, 1);
    close(fd);
  }
  return NULL;
}

struct user {
  ncclComm_t comm;
  bool aborts;
  pthread_t thread;
};

static void *use(void *arg)
{
  struct user *user = arg;
  float in[1000] = {0}, out[1000];
  for (int i = 0; i < 3; i++)
    if (ncclAllReduce(in, out, 1000, ncclFloat, ncclSum, user->comm, NULL) != ncclSuccess) break;
  if (user->aborts)
    ncclCommAbort(user->comm);
  else
    ncclCommDestroy(user->comm);
  return NULL;
}

START_TEST(hammer)
{
  pthread_t askers[3];
  char name[TT_UDS_NAME_BYTES];
  ck_assert_int_eq(pthread_create(&askers[0], NULL, call_report, NULL), 0);
  ck_assert_int_eq(pthread_create(&askers[1], NULL, call_report, NULL), 0);
  ck_assert_int_eq(pthread_create(&askers[2], NULL, ask_socket, NULL), 0);
  int before = held_threads();
  for (int round = 0; round < ROUNDS || atomic_load(&answered) == 0; round++) {
    ncclComm_t comms[RANKS];
    struct user users[RANKS];
    ck_assert_int_lt(round, 50 * ROUNDS);
    ck_assert_int_eq(ncclCommInitAll(comms, RANKS, NULL), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
      users[r] = (struct user){.comm = comms[r], .aborts = round % 3 == 0 && r == 0};
      ck_assert_int_eq(pthread_create(&users[r].thread, NULL, use, &users[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(users[r].thread, NULL);
  }
  ck_assert(!find_name(name)); /* with the last communicator goes the socket */
  for (int i = 0; i < 500 && held_threads() > before; i++) usleep(10000);
  ck_assert_int_le(held_threads(), before + 1); /* but for the roots' thread, which ends by itself */
  atomic_store(&over, true);
  for (int i = 0; i < 3; i++) pthread_join(askers[i], NULL);
  ck_assert_int_gt(atomic_load(&asked), ROUNDS);
}
END_TEST

/* A communicator of one rank needs no thread, nor does anybody listen. */
START_TEST(one_rank)
{
  ncclComm_t comm;
  char name[TT_UDS_NAME_BYTES];
  int before = held_threads();
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert(!find_name(name));
  ck_assert_int_eq(held_threads(), before);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
}
END_TEST

Suite *moments_suite(void)
{
  Suite *suite = suite_create("moments");
  TCase *tcase = tcase_create("any");
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, one_rank);
  tcase_add_test(tcase, hammer);
  suite_add_tcase(suite, tcase);
  return suite;
}
