/* Several roots: shares, and rings of ranks that checked in with different ones. */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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
  me->result = tt_bootstrap_create_scalable(me->ids, me->nids, me->rank, me->nranks, &abort, &b);
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

static void run(struct member *members, const ncclUniqueId *ids, int nids, int nranks)
{
  for (int r = 0; r < nranks; r++) {
    members[r] = (struct member){.ids = ids, .nids = nids, .rank = r, .nranks = nranks};
    ck_assert_int_eq(pthread_create(&members[r].thread, NULL, join_and_gather, &members[r]), 0);
  }
  for (int r = 0; r < nranks; r++) pthread_join(members[r].thread, NULL);
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
    for (int k = 0; k < _i; k++) ck_assert_int_eq(tt_bootstrap_unique_id(&ids[k]), ncclSuccess);
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
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 2, 0, 4, &abort, &b), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "are the same"));
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 0, 0, 4, &abort, &b), ncclInvalidArgument);
  ck_assert_int_eq(tt_bootstrap_create_scalable(ids, 2, 0, 1, &abort, &b), ncclInvalidArgument);
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
  suite_add_tcase(suite, tests);
  return suite;
}
