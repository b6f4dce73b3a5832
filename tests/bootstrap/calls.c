/* Calls that fail on some ranks: what they left is not taken for the next one, and all ranks know. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"

#define TAG (TT_TAG_USER + 1)

static const struct tt_bootstrap_call calls[] = {
    {"test", 1, TT_PART_ALL}, {"test", 2, TT_PART_ALL}, {"test", 3, TT_PART_ALL}, {"test", 4, TT_PART_ALL}};

static ncclResult_t refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  if (result == wanted && strstr(tt_log_thread_error(), words) != NULL) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "result %d, not %d, or it does not say \"%s\": %s", result, wanted, words,
                 tt_log_thread_error());
}

/* Each rank contributes its number and the call's. */
static ncclResult_t gather(struct rank *me, const struct tt_bootstrap_call *call)
{
  int data[16] = {0};
  data[me->rank] = 100 * (int)call->number + me->rank;
  TT_TRY(tt_bootstrap_call_gather(me->b, call, data, sizeof *data));
  for (int r = 0; r < me->nranks; r++)
    if (data[r] != 100 * (int)call->number + r)
      return TT_FAIL(ncclInternalError, "rank %d's block in call %d is %d", r, (int)call->number, data[r]);
  return ncclSuccess;
}

/* One that is behind is told so, and when it has caught up it has missed nothing. */
static ncclResult_t body_behind(struct rank *me)
{
  if (me->rank == 1) {
    ncclResult_t result = gather(me, &calls[0]);
    TT_TRY(refused(result, ncclInvalidUsage, "rank 1 is in call 1 of it"));
    TT_TRY(refused(result, ncclInvalidUsage, "rank 0, which is in call 2"));
  }
  return gather(me, &calls[1]);
}

START_TEST(behind)
{
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=3600", NULL});
  ranks_succeed(2, body_behind, NULL);
}
END_TEST

static ncclResult_t body_stale(struct rank *me)
{
  void *data;
  size_t bytes;
  for (int i = 0; me->rank == 1 && i < 2; i++)
    TT_TRY(tt_bootstrap_call_send(me->b, &calls[i], 0, TAG, "new", 2 * (size_t)i));
  if (me->rank == 0) {
    TT_TRY(tt_bootstrap_call_recv(me->b, &calls[1], 1, TAG, &data, &bytes, tt_deadline_in_ms(3600000)));
    bool right = bytes == 2 && memcmp(data, "new", 2) == 0;
    free(data);
    if (!right) return TT_FAIL(ncclInternalError, "got another message, of %zu bytes", bytes);
  }
  return tt_bootstrap_barrier(me->b);
}

START_TEST(stale)
{
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=3600", NULL});
  ranks_succeed(2, body_stale, NULL);
}
END_TEST

/* The last rank refuses every other call, which ends all others' waits, and what they sent for it. Who has heard of it
 * before does not begin. */
static ncclResult_t body_given_up(struct rank *me)
{
  for (int i = 0; i < 4; i++) {
    if (i % 2 == 1)
      TT_TRY(gather(me, &calls[i]));
    else if (me->rank == me->nranks - 1)
      tt_bootstrap_call_give_up(me->b, &calls[i], "for this test");
    else
      TT_TRY(refused(gather(me, &calls[i]), ncclRemoteError, "for this test"));
  }
  return ncclSuccess;
}

START_TEST(given_up)
{
  static const int sizes[] = {2, 3, 4, 7, 16};
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=3600", NULL});
  ranks_succeed(sizes[_i], body_given_up, NULL);
}
END_TEST

/* What a rank of one part gives up is no matter to the other part. */
static ncclResult_t body_parts(struct rank *me)
{
  struct tt_bootstrap_call call = calls[0];
  TT_TRY(gather(me, &call));
  call.part = me->rank % 2;
  if (me->rank == 0) tt_bootstrap_call_give_up(me->b, &call, "for this test");
  while (call.part == 0 && tt_bootstrap_call_check(me->b, &call) == ncclSuccess) usleep(1000);
  TT_TRY(gather(me, &calls[1])); /* all of part 0 know by then */
  return call.part == 1 ? tt_bootstrap_call_check(me->b, &call) : ncclSuccess;
}

START_TEST(parts)
{
  environment((const char *[]){"NCCL_BOOTSTRAP_TIMEOUT=3600", NULL});
  ranks_succeed(6, body_parts, NULL);
}
END_TEST

Suite *suite_calls(void)
{
  Suite *suite = suite_create("calls");
  TCase *tests = tcase_create("calls");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, behind);
  tcase_add_test(tests, stale);
  tcase_add_loop_test(tests, given_up, 0, 5);
  tcase_add_test(tests, parts);
  suite_add_tcase(suite, tests);
  return suite;
}
