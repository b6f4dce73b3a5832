/* Several roots: shares, and rings of ranks that checked in with different ones. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "bootstrap/internal.h"
#include "bootstrap/root.h"

enum { MOST_ROOTS = 5, MOST_RANKS = 32 };

/* The first n mod roots have one rank more, and shares follow each other. */
START_TEST(shares)
{
  for (int roots = 1; roots <= 7; roots++)
    for (int n = roots; n <= 40; n++) {
      int counts[8] = {0};
      for (int r = 0; r < n; r++) {
        struct tt_share share = tt_share_of(r, n, roots);
        ck_assert_int_eq(share.count, n / roots + (share.root < n % roots));
        ck_assert(share.first <= r && r < share.first + share.count);
        if (r > 0) ck_assert_int_ge(share.root, tt_share_of(r - 1, n, roots).root);
        counts[share.root]++;
      }
      for (int k = 0; k < roots; k++) ck_assert_int_eq(counts[k], n / roots + (k < n % roots));
    }
}
END_TEST

struct member {
  pthread_t thread;
  const ncclUniqueId *ids;
  int nids, rank, nranks;
  ncclResult_t result;
  char error[1024];
};

static void *join_and_gather(void *arg)
{
  struct member *me = arg;
  struct tt_bootstrap *b;
  _Atomic uint32_t abort = 0;
  int data[MOST_RANKS];
  me->result = tt_bootstrap_create_scalable(me->ids, me->nids, me->rank, me->nranks, &abort, NULL, &b);
  if (me->result == ncclSuccess) {
    data[me->rank] = 100 + me->rank;
    me->result = tt_bootstrap_all_gather(b, data, sizeof data[0]);
    for (int r = 0; r < me->nranks && me->result == ncclSuccess; r++)
      if (data[r] != 100 + r) me->result = ncclInternalError;
    tt_bootstrap_destroy(b);
  }
  strncpy(me->error, tt_log_thread_error(), sizeof me->error - 1);
  return NULL;
}

static void start(struct member *member, const ncclUniqueId *ids, int nids, int rank, int nranks)
{
  *member = (struct member){.ids = ids, .nids = nids, .rank = rank, .nranks = nranks};
  ck_assert_int_eq(pthread_create(&member->thread, NULL, join_and_gather, member), 0);
}

static void run(struct member *members, const ncclUniqueId *ids, int nids, int nranks)
{
  for (int r = 0; r < nranks; r++) start(&members[r], ids, nids, r, nranks);
  for (int r = 0; r < nranks; r++) pthread_join(members[r].thread, NULL);
}

static void make_ids(ncclUniqueId *ids, int nids)
{
  for (int k = 0; k < nids; k++) ck_assert_int_eq(tt_bootstrap_unique_id(&ids[k]), ncclSuccess);
}

/* How many warnings said each of two things. */
static const char *listened_for[2];
static _Atomic int heard[2];

static void count_warning(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                          const char *func, const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (level != TT_LOG_WARN) return;
  tt_log_remember(text);
  for (int i = 0; i < 2; i++)
    if (strstr(text, listened_for[i]) != NULL) atomic_fetch_add(&heard[i], 1);
}

static void listen_for(const char *first, const char *second)
{
  listened_for[0] = first;
  listened_for[1] = second;
  for (int i = 0; i < 2; i++) atomic_store(&heard[i], 0);
  tt_log_redirect(count_warning);
}

START_TEST(roots)
{
  static const int sizes[] = {1, 2, 5, 6, 9, MOST_RANKS};
  static struct member members[MOST_RANKS];
  ncclUniqueId ids[MOST_ROOTS];
  environment(NULL);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int n = sizes[s];
    if (n < _i) continue;
    make_ids(ids, _i);
    run(members, ids, _i, n);
    for (int r = 0; r < n; r++)
      ck_assert_msg(members[r].result == ncclSuccess, "%d roots, rank %d of %d: %s", _i, r, n, members[r].error);
    run(members, ids, _i, n); /* a second time */
    for (int r = 0; r < n; r++) ck_assert_int_eq(members[r].result, ncclInvalidUsage);
  }
}
END_TEST

START_TEST(wrong_lists)
{
  struct tt_bootstrap *b;
  _Atomic uint32_t abort = 0;
  ncclUniqueId ids[2];
  environment(NULL);
  ck_assert_int_eq(tt_bootstrap_unique_id(&ids[0]), ncclSuccess);
  ids[1] = ids[0];
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 2, 0, 4, &abort, NULL, &b), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "are the same"));
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 0, 0, 4, &abort, NULL, &b), ncclInvalidArgument);
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 2, 0, 1, &abort, NULL, &b), ncclInvalidArgument);
}
END_TEST

/* Roots count ranks as the communicator does, not as their shares do. Who waits for the missing one hears of it; so do
 * those whose own root is content: of a message that does not come. */
START_TEST(missing_rank)
{
  enum { N = 6, MISSING = 4 };
  struct member members[N];
  ncclUniqueId ids[2];
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=2", "TUTTI_INIT_WARN=1", NULL});
  listen_for("3 of 4 ranks that share one of several unique ids have come so far; missing rank 4.",
             "s for a message of rank 3, which is late");
  make_ids(ids, 2);
  for (int r = 0; r < N; r++)
    if (r != MISSING) start(&members[r], ids, 2, r, N);
  for (int r = 0; r < N; r++)
    if (r != MISSING) pthread_join(members[r].thread, NULL);
  tt_log_redirect(NULL);
  for (int r = 0; r < N; r++) {
    if (r == MISSING) continue;
    ck_assert_int_eq(members[r].result, ncclRemoteError);
    if (r == 0 || r > 2)
      ck_assert_msg(strstr(members[r].error, "missing rank 4") != NULL, "rank %d: %s", r, members[r].error);
  }
  ck_assert_int_eq(heard[0], 3); /* ranks 0, 3 and 5 */
  ck_assert_int_eq(heard[1], 1); /* rank 2, the neighbour of one that does not get on */
}
END_TEST

START_TEST(doubled_rank)
{
  struct member members[3];
  ncclUniqueId ids[2];
  environment(NULL);
  make_ids(ids, 2);
  for (int i = 0; i < 2; i++) start(&members[i], ids, 2, 4, 6);
  for (int i = 0; i < 2; i++) pthread_join(members[i].thread, NULL);
  for (int i = 0; i < 2; i++) ck_assert_ptr_nonnull(strstr(members[i].error, "rank 4 came twice"));
}
END_TEST

/* All in another order, one fewer, or one more. While a root that the deviating rank comes to waits for others, whoever
 * waits is told, and nobody until the deadline; ranks 1 and 2 are late so that it does. */
START_TEST(different_lists)
{
  enum { N = 6, OTHER = 4 };
  static const struct {
    int ids[3], count;
  } lists[] = {{{1, 0}, 2}, {{0}, 1}, {{0, 1, 2}, 3}};
  struct member members[N];
  ncclUniqueId ids[3], other[3];
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=60", NULL});
  make_ids(ids, 3);
  for (int k = 0; k < lists[_i].count; k++) other[k] = ids[lists[_i].ids[k]];
  listen_for("passed other unique ids than a rank that came before it", "NCCL_BOOTSTRAP_TIMEOUT");
  start(&members[OTHER], other, lists[_i].count, OTHER, N);
  for (int r = 0; r < N; r++)
    if (r != 1 && r != 2 && r != OTHER) start(&members[r], ids, 2, r, N);
  for (int r = 0; r < N; r++)
    if (r != 1 && r != 2) pthread_join(members[r].thread, NULL);
  for (int r = 1; r <= 2; r++) start(&members[r], ids, 2, r, N);
  for (int r = 1; r <= 2; r++) pthread_join(members[r].thread, NULL);
  tt_log_redirect(NULL);
  for (int r = 0; r < N; r++) ck_assert_int_ne(members[r].result, ncclSuccess);
  ck_assert_int_ge(heard[0], 2); /* the deviating rank, and one that it met */
  ck_assert_int_eq(heard[1], 0);
}
END_TEST

/* A root that has answered its share knows what was wrong with who comes later; the others miss that rank. */
START_TEST(different_list_too_late)
{
  enum { N = 6, OTHER = 4 };
  struct member members[N];
  ncclUniqueId ids[2], other[2];
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=2", NULL});
  make_ids(ids, 2);
  other[0] = ids[1];
  other[1] = ids[0];
  for (int r = 0; r < N; r++)
    if (r != OTHER) start(&members[r], ids, 2, r, N);
  usleep(200000);
  start(&members[OTHER], other, 2, OTHER, N);
  for (int r = 0; r < N; r++) pthread_join(members[r].thread, NULL);
  ck_assert_int_eq(members[OTHER].result, ncclInvalidUsage);
  ck_assert_msg(strstr(members[OTHER].error, "rank 4 passed other unique ids") != NULL, "%s", members[OTHER].error);
  for (int r = 0; r < N; r++) ck_assert_int_ne(members[r].result, ncclSuccess);
}
END_TEST

/* An id that served before is no use in a list either, on whatever rank. */
START_TEST(partly_used)
{
  enum { N = 4 };
  struct member members[N];
  ncclUniqueId ids[2];
  environment(NULL);
  make_ids(ids, 2);
  run(members, &ids[1], 1, 2);
  ck_assert_int_eq(members[0].result, ncclSuccess);
  run(members, ids, 2, N);
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(members[r].result, ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(members[r].error, "used before"));
  }
}
END_TEST

Suite *suite_scalable(void)
{
  Suite *suite = suite_create("scalable");
  TCase *tests = tcase_create("scalable");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, shares);
  tcase_add_loop_test(tests, roots, 1, MOST_ROOTS + 1);
  tcase_add_test(tests, wrong_lists);
  tcase_add_test(tests, missing_rank);
  tcase_add_test(tests, doubled_rank);
  tcase_add_loop_test(tests, different_lists, 0, 3);
  tcase_add_test(tests, different_list_too_late);
  tcase_add_test(tests, partly_used);
  suite_add_tcase(suite, tests);
  return suite;
}
