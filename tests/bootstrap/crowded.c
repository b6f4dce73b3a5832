/* More connections than a process may have: those that are not needed right now make room, and nothing is lost, doubled
 * or out of order when both ends close one at the same time. And none is read in vain. */
#include "ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include "base/check.h"

enum { MANY = 32, ROUNDS = 6, BURST = 3 };

/* Partners, listeners and services take 400; one connection for each two ranks would take 600 more. */
#define DESCRIPTORS 800
#define TAG TT_TAG_USER

/* Everybody has something for everybody, in another order each. */
static ncclResult_t body_everybody(struct rank *me)
{
  uint64_t state = 88172645463325252u + (uint64_t)me->rank;
  for (int round = 0; round < ROUNDS; round++) {
    int start = (int)(random_next(&state) % (uint64_t)me->nranks);
    for (int i = 0; i < me->nranks; i++) {
      int peer = (start + i) % me->nranks;
      for (int k = 0; peer != me->rank && k < BURST; k++) {
        int number = round * BURST + k;
        TT_TRY(tt_bootstrap_send(me->b, peer, TAG, &number, sizeof(number)));
      }
    }
    for (int i = 0; i < me->nranks; i++) {
      int peer = (start + me->nranks - i) % me->nranks;
      for (int k = 0; peer != me->rank && k < BURST; k++) {
        void *data;
        size_t bytes;
        TT_TRY(tt_bootstrap_recv(me->b, peer, TAG, &data, &bytes, tt_deadline_in_ms(120000)));
        int number = *(int *)data;
        free(data);
        if (number != round * BURST + k)
          return TT_FAIL(ncclInternalError, "message %d of rank %d comes as number %d", number, peer,
                         round * BURST + k);
      }
    }
  }
  return ncclSuccess;
}

START_TEST(more_than_descriptors)
{
  struct rlimit limit, less;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  less = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &less), 0);
  ranks_succeed(MANY, body_everybody, NULL);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}
END_TEST

ssize_t __real_recv(int fd, void *data, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags);
static _Atomic int in_vain;

ssize_t __wrap_recv(int fd, void *data, size_t bytes, int flags)
{
  ssize_t got = __real_recv(fd, data, bytes, flags);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) atomic_fetch_add(&in_vain, 1);
  return got;
}

enum { MESSAGES = 2000 };

/* Rank 1 answers each message of rank 0, so that its service wakes up for each. */
static ncclResult_t body_ping(struct rank *me)
{
  TT_TRY(tt_bootstrap_barrier(me->b));
  if (me->rank == 0) atomic_store(&in_vain, 0);
  for (int i = 0; me->rank < 2 && i < MESSAGES; i++) {
    void *data;
    size_t bytes;
    if (me->rank == 0) TT_TRY(tt_bootstrap_send(me->b, 1, TAG, NULL, 0));
    TT_TRY(tt_bootstrap_recv(me->b, 1 - me->rank, TAG, &data, &bytes, tt_deadline_in_ms(120000)));
    free(data);
    if (me->rank == 1) TT_TRY(tt_bootstrap_send(me->b, 0, TAG, NULL, 0));
  }
  if (me->rank == 0) *(int *)me->arg = atomic_load(&in_vain);
  return tt_bootstrap_barrier(me->b);
}

/* A message is read at least once, and once more to see that nothing else came. */
START_TEST(reads_in_vain)
{
  int reads = 0;
  ranks_succeed(MANY, body_ping, &reads);
  ck_assert_int_ge(reads, MESSAGES);
  ck_assert_int_le(reads, 4 * MESSAGES);
}
END_TEST

Suite *suite_crowded(void)
{
  Suite *suite = suite_create("crowded");
  TCase *tests = tcase_create("crowded");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, more_than_descriptors);
  tcase_add_test(tests, reads_in_vain);
  suite_add_tcase(suite, tests);
  return suite;
}
