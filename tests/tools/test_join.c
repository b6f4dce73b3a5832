/* Processes that meet by address or by name, strangers at the door, those who never come, and the control channel. */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "join.h"
#include "suites.h"
#include "tests/common/free_port.h"
#include "tests/common/to_itself.h"

/* The addresses of any name on this thread's host; NULL: the system's. An address stands for itself. */
static _Thread_local const char *const *known_as;

/* The linker has shared libraries refer to what is wrapped too. */
#define SEEN __attribute__((visibility("default")))
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list);
SEEN int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **list)
{
  int code = 0;
  if (!known_as) return __real_getaddrinfo(host, port, hints, list);
  if (known_as[1] && hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
  for (const char *const *name = known_as; *name && !code; name++) {
    code = __real_getaddrinfo(*name, port, hints, list);
    if (!code) list = &(*list)->ai_next;
  }
  return code;
}

/* This thread comes late to its next message. */
static _Thread_local bool hesitates;

ssize_t __real_send(int fd, const void *data, size_t bytes, int flags);
SEEN ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t bytes, int flags)
{
  if (hesitates) usleep(800000);
  hesitates = false;
  return __real_send(fd, data, bytes, flags);
}

struct party {
  struct perf_join join;
  bool hesitates;
  const char *const *known_as;
  struct perf_control control;
  bool joined;
  char error[512];
  int all[8];
  enum perf_control_state state;
  pthread_t thread;
};

static void *attend(void *arg)
{
  struct party *p = arg;
  known_as = p->known_as;
  hesitates = p->hesitates;
  p->joined = perf_join(&p->join, &p->control, p->error, sizeof(p->error));
  if (!p->joined) return NULL;
  for (int round = 0; round < 50; round++) {
    int mine = p->join.process * 1000 + round;
    p->state = perf_control_gather(&p->control, &mine, p->all, sizeof(mine), p->error, sizeof(p->error));
    for (int i = 0; i < p->join.processes && p->state == PERF_CONTROL_OK; i++)
      if (p->all[i] != i * 1000 + round) p->state = PERF_CONTROL_GONE;
  }
  return NULL;
}

/* A TCP address of this host that nobody listens on. */
static void free_address(char *text, size_t size)
{
  snprintf(text, size, "127.0.0.1:%d", free_port());
}

static void meet(const char *address, const char *job)
{
  enum { N = 4 };
  struct party parties[N];
  memset(parties, 0, sizeof(parties));
  for (int i = N - 1; i >= 0; i--) { /* process 0 comes last: the others must wait for it */
    parties[i].join = (struct perf_join){i, N, address, job, 20};
    ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
    if (i == 1) usleep(120000);
  }
  for (int i = 0; i < N; i++) pthread_join(parties[i].thread, NULL);
  for (int i = 0; i < N; i++) {
    ck_assert_msg(parties[i].joined, "%s", parties[i].error);
    ck_assert_msg(parties[i].state == PERF_CONTROL_OK, "%s", parties[i].error);
    perf_control_close(&parties[i].control);
  }
}

START_TEST(meet_by_address)
{
  char address[64];
  free_address(address, sizeof(address));
  meet(address, "");
}
END_TEST

/* Process 1 comes first, and the kernel picks the port that it tries for itself. */
START_TEST(nobody_meets_himself)
{
  char address[64];
  struct party parties[2];
  memset(parties, 0, sizeof(parties));
  free_address(address, sizeof(address));
  atomic_store(&to_itself_wanted, true);
  for (int i = 1; i >= 0; i--) {
    parties[i].join = (struct perf_join){i, 2, address, "", 20};
    ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
    while (!atomic_load(&to_itself_over)) usleep(1000);
  }
  for (int i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
  for (int i = 0; i < 2; i++) {
    ck_assert_msg(parties[i].joined && parties[i].state == PERF_CONTROL_OK, "%s", parties[i].error);
    perf_control_close(&parties[i].control);
  }
}
END_TEST

START_TEST(meet_by_name)
{
  char job[64];
  snprintf(job, sizeof(job), "/test/%d", (int)getpid());
  meet("", job);
}
END_TEST

/* Process 0 knows its own name as an address that is none of those that the other knows; or listens on one only, and
 * the other finds out which. */
START_TEST(names_have_several_addresses)
{
  static const char *const far[][3] = {{"127.0.1.1", "127.0.1.1"}, {"127.0.0.1"}};
  static const char *const near[][3] = {{"127.0.0.1", "127.0.0.1"}, {"127.0.0.2", "127.0.0.1"}};
  char address[64], name[64];
  struct party parties[2];
  memset(parties, 0, sizeof(parties));
  free_address(address, sizeof(address));
  snprintf(name, sizeof(name), "root%s", strchr(address, ':'));
  for (int i = 0; i < 2; i++) {
    parties[i].join = (struct perf_join){i, 2, name, "", 20};
    parties[i].known_as = i ? near[_i] : far[_i];
    ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
  }
  for (int i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
  for (int i = 0; i < 2; i++) {
    ck_assert_msg(parties[i].joined && parties[i].state == PERF_CONTROL_OK, "%s", parties[i].error);
    perf_control_close(&parties[i].control);
  }
}
END_TEST

START_TEST(strangers_do_no_harm)
{
  char address[64];
  struct party parties[2];
  memset(parties, 0, sizeof(parties));
  free_address(address, sizeof(address));
  parties[0].join = (struct perf_join){0, 2, address, "", 20};
  parties[1].join = (struct perf_join){1, 2, address, "", 20};
  ck_assert(!pthread_create(&parties[0].thread, NULL, attend, &parties[0]));
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_addr = {htonl(INADDR_LOOPBACK)},
                           .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
  int silent = -1, noisy = -1;
  for (int tries = 0; tries < 100 && silent < 0; tries++) {
    silent = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(silent, (struct sockaddr *)&at, sizeof(at))) break;
    close(silent);
    silent = -1;
    usleep(20000);
  }
  noisy = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert(silent >= 0 && !connect(noisy, (struct sockaddr *)&at, sizeof(at)));
  ck_assert_int_eq(send(noisy, "GET / HTTP/1.0\r\nHost: nobody\r\n\r\n", 33, MSG_NOSIGNAL), 33);
  ck_assert(!pthread_create(&parties[1].thread, NULL, attend, &parties[1]));
  for (int i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
  for (int i = 0; i < 2; i++) {
    ck_assert_msg(parties[i].joined && parties[i].state == PERF_CONTROL_OK, "%s", parties[i].error);
    perf_control_close(&parties[i].control);
  }
  close(silent);
  close(noisy);
}
END_TEST

/* Process 1 is slow to say who it is. */
START_TEST(who_hesitates_is_no_stranger)
{
  char address[64];
  struct party parties[3];
  memset(parties, 0, sizeof(parties));
  free_address(address, sizeof(address));
  for (int i = 0; i < 3; i++) {
    parties[i].join = (struct perf_join){i, 3, address, "", 20};
    parties[i].hesitates = i == 1;
    ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
  }
  for (int i = 0; i < 3; i++) pthread_join(parties[i].thread, NULL);
  for (int i = 0; i < 3; i++) {
    ck_assert_msg(parties[i].joined && parties[i].state == PERF_CONTROL_OK, "%s", parties[i].error);
    perf_control_close(&parties[i].control);
  }
}
END_TEST

/* On a busy machine process 2 may be too late within a short time, and all try again. */
START_TEST(who_never_comes_is_named)
{
  char address[64];
  struct party parties[2];
  for (int seconds = 1; seconds == 1 || (strstr(parties[0].error, "1, 2, 3") && seconds < 30); seconds *= 4) {
    memset(parties, 0, sizeof(parties));
    free_address(address, sizeof(address));
    parties[0].join = (struct perf_join){0, 4, address, "", seconds};
    parties[1].join = (struct perf_join){2, 4, address, "", seconds};
    for (int i = 0; i < 2; i++) ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
    for (int i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
    ck_assert(!parties[0].joined);
    if (parties[1].joined) perf_control_close(&parties[1].control);
  }
  ck_assert_msg(strstr(parties[0].error, "1, 3") != NULL, "%s", parties[0].error);
  /* And without process 0: */
  parties[1].join = (struct perf_join){2, 4, "", "/nobody/here", 1};
  attend(&parties[1]);
  ck_assert(!parties[1].joined);
  ck_assert_msg(strstr(parties[1].error, "TUTTI_PERF_ROOT") != NULL, "%s", parties[1].error);
}
END_TEST

START_TEST(numbers_that_differ_are_named)
{
  char address[64];
  struct party parties[2];
  memset(parties, 0, sizeof(parties));
  free_address(address, sizeof(address));
  parties[0].join = (struct perf_join){0, 2, address, "", 20};
  parties[1].join = (struct perf_join){1, 3, address, "", 20};
  for (int i = 0; i < 2; i++) ck_assert(!pthread_create(&parties[i].thread, NULL, attend, &parties[i]));
  for (int i = 0; i < 2; i++) pthread_join(parties[i].thread, NULL);
  ck_assert(!parties[0].joined);
  ck_assert_msg(strstr(parties[0].error, "1 of 3") != NULL, "%s", parties[0].error);
  if (parties[1].joined) perf_control_close(&parties[1].control);
}
END_TEST

START_TEST(wrong_addresses_are_named)
{
  static const char *const wrong[] = {"host", "host:", ":5", "127.0.0.1:nothing"};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    struct perf_join join = {0, 2, wrong[i], "", 1};
    struct perf_control control;
    char error[512] = "";
    ck_assert(!perf_join(&join, &control, error, sizeof(error)));
    ck_assert_msg(strstr(error, wrong[i]) != NULL, "%s", error);
  }
}
END_TEST

static void pair(struct perf_control *zero, struct perf_control *one)
{
  int fds[2];
  ck_assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
  int *of_zero = malloc(2 * sizeof(int)), *of_one = malloc(sizeof(int));
  of_zero[0] = -1;
  of_zero[1] = fds[0];
  of_one[0] = fds[1];
  perf_control_open(zero, 0, 2, of_zero);
  perf_control_open(one, 1, 2, of_one);
}

START_TEST(a_failure_is_heard_even_behind_data)
{
  struct perf_control zero, one;
  char error[256];
  int mine = 1, all[2];
  pair(&zero, &one);
  ck_assert_int_eq(perf_control_lost(&zero, error, sizeof(error)), PERF_CONTROL_OK);
  /* A data frame of four bytes, in the way of the failure. */
  uint32_t frame[3] = {0x44415441, 4, 7};
  ck_assert_int_eq(send(one.fds[0], frame, sizeof(frame), 0), sizeof(frame));
  ck_assert_int_eq(perf_control_lost(&zero, error, sizeof(error)), PERF_CONTROL_OK);
  perf_control_fail(&one, "rank 1: the sky fell");
  ck_assert_int_eq(perf_control_lost(&zero, error, sizeof(error)), PERF_CONTROL_TOLD);
  ck_assert_str_eq(error, "rank 1: the sky fell");
  ck_assert_int_eq(perf_control_gather(&zero, &mine, all, sizeof(mine), error, sizeof(error)), PERF_CONTROL_OK);
  ck_assert_int_eq(all[1], 7);
  ck_assert_int_eq(perf_control_gather(&zero, &mine, all, sizeof(mine), error, sizeof(error)), PERF_CONTROL_TOLD);
  ck_assert_str_eq(error, "rank 1: the sky fell");
  /* It stays for the other thread of the process, also when the peer is gone. */
  perf_control_close(&one);
  ck_assert_int_eq(perf_control_lost(&zero, error, sizeof(error)), PERF_CONTROL_TOLD);
  ck_assert_int_eq(perf_control_gather(&zero, &mine, all, sizeof(mine), error, sizeof(error)), PERF_CONTROL_TOLD);
  ck_assert_str_eq(error, "rank 1: the sky fell");
  perf_control_close(&zero);
  pair(&zero, &one);
  perf_control_close(&one);
  ck_assert_int_eq(perf_control_gather(&zero, &mine, all, sizeof(mine), error, sizeof(error)), PERF_CONTROL_GONE);
  ck_assert_str_eq(error, "process 1 ended before the run was over");
  ck_assert_int_eq(perf_control_lost(&zero, error, sizeof(error)), PERF_CONTROL_GONE);
  perf_control_close(&zero);
}
END_TEST

/* A thread that has read the head of a frame, and reads the rest when the other one waits for it. */
static _Thread_local bool reads;
static _Atomic bool is_inside, may_go_on;

ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
SEEN ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
  if (reads && bytes == sizeof(int) && !(flags & MSG_PEEK)) {
    atomic_store(&is_inside, true);
    while (!atomic_load(&may_go_on)) usleep(500);
  }
  return __real_recv(fd, data, bytes, flags);
}

int __real_poll(struct pollfd *set, nfds_t count, int ms);
SEEN int __wrap_poll(struct pollfd *set, nfds_t count, int ms);
int __wrap_poll(struct pollfd *set, nfds_t count, int ms)
{
  if (!reads && count == 0 && atomic_load(&is_inside)) atomic_store(&may_go_on, true);
  return __real_poll(set, count, ms);
}

static void *read_frame(void *arg)
{
  int mine = 1, all[2];
  char error[256];
  reads = true;
  ck_assert_int_eq(perf_control_gather(arg, &mine, all, sizeof(mine), error, sizeof(error)), PERF_CONTROL_OK);
  ck_assert_int_eq(all[1], 7);
  return NULL;
}

START_TEST(a_failure_is_heard_behind_data_that_is_being_read)
{
  struct perf_control zero, one;
  char error[256];
  uint32_t frame[3] = {0x44415441, 4, 7};
  pthread_t thread;
  pair(&zero, &one);
  ck_assert_int_eq(send(one.fds[0], frame, sizeof(frame), 0), sizeof(frame));
  ck_assert_int_eq(pthread_create(&thread, NULL, read_frame, &zero), 0);
  while (!atomic_load(&is_inside)) usleep(500);
  perf_control_fail(&one, "rank 1: the sky fell");
  shutdown(one.fds[0], SHUT_WR);
  int state = perf_control_lost(&zero, error, sizeof(error));
  atomic_store(&may_go_on, true);
  pthread_join(thread, NULL);
  ck_assert_int_eq(state, PERF_CONTROL_TOLD);
  ck_assert_str_eq(error, "rank 1: the sky fell");
  perf_control_close(&one);
  perf_control_close(&zero);
}
END_TEST

Suite *suite_join(void)
{
  Suite *suite = suite_create("join");
  TCase *tests = tcase_create("join");
  tcase_add_test(tests, meet_by_address);
  tcase_add_test(tests, nobody_meets_himself);
  tcase_add_test(tests, meet_by_name);
  tcase_add_loop_test(tests, names_have_several_addresses, 0, 2);
  tcase_add_test(tests, strangers_do_no_harm);
  tcase_add_test(tests, who_hesitates_is_no_stranger);
  tcase_add_test(tests, who_never_comes_is_named);
  tcase_add_test(tests, numbers_that_differ_are_named);
  tcase_add_test(tests, wrong_addresses_are_named);
  tcase_add_test(tests, a_failure_is_heard_even_behind_data);
  tcase_add_test(tests, a_failure_is_heard_behind_data_that_is_being_read);
  suite_add_tcase(suite, tests);
  return suite;
}
