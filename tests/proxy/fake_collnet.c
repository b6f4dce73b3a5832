/* See fake_collnet.h. Sums of int32: the k-th operation is done once both members have posted it. */
#include "fake_collnet.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 2, MOST = 4096 };

struct request {
  struct tt_collnet_all_reduce what;
  bool done;
};

struct member {
  struct request posted[MOST];
  size_t count, tested;
};

static struct fake_mood mood;
static struct fake_count count;
static struct member members[MEMBERS];
static int calls;
static char only;

struct tt_collnet *fake_collnet(void)
{
  return (struct tt_collnet *)&only; /* never looked into */
}

void fake_collnet_open(const struct fake_mood *wanted, void *comms[2])
{
  mood = *wanted;
  memset(&count, 0, sizeof(count));
  memset(members, 0, sizeof(members));
  calls = 0;
  for (int m = 0; m < MEMBERS; m++) comms[m] = &members[m];
}

struct fake_count fake_collnet_counts(void)
{
  return count;
}

static bool chance(int percent)
{
  return (int)(rand_r(&mood.seed) % 100) < percent;
}

static ncclResult_t outcome(enum fake_call call)
{
  return mood.failing == call && calls++ >= mood.fail_after ? ncclSystemError : ncclSuccess;
}

ncclResult_t tt_collnet_reg_mr(struct tt_collnet *collnet, void *comm, void *data, size_t bytes, int type,
                               void **mhandle)
{
  (void)collnet, (void)comm, (void)bytes;
  ck_assert_int_eq(type, NCCL_PTR_HOST);
  *mhandle = data;
  if (outcome(FAKE_REG) != ncclSuccess) return ncclSystemError;
  count.registered++;
  return ncclSuccess;
}

ncclResult_t tt_collnet_dereg_mr(struct tt_collnet *collnet, void *comm, void *mhandle)
{
  (void)collnet, (void)comm, (void)mhandle;
  count.registered--;
  return ncclSuccess;
}

ncclResult_t tt_collnet_close_coll(struct tt_collnet *collnet, void *comm)
{
  (void)collnet;
  const struct member *member = comm;
  count.closed++;
  count.closed_in_flight += (int)(member->count - member->tested);
  return ncclSuccess;
}

/* Sums what both have posted and not yet got. */
static void reduce(size_t k)
{
  struct request *a = &members[0].posted[k], *b = &members[1].posted[k];
  ck_assert_uint_eq(a->what.count, b->what.count);
  for (size_t i = 0; i < a->what.count; i++) {
    int32_t sum = ((int32_t *)a->what.send)[i] + ((int32_t *)b->what.send)[i];
    ((int32_t *)a->what.recv)[i] = ((int32_t *)b->what.recv)[i] = sum;
  }
}

ncclResult_t tt_collnet_iallreduce(struct tt_collnet *collnet, void *comm, const struct tt_collnet_all_reduce *what,
                                   void **request)
{
  (void)collnet;
  struct member *member = comm, *other = &members[member == &members[0]];
  *request = NULL;
  ck_assert(what->datatype == ncclInt32 && what->op == ncclSum && what->count > 0);
  ck_assert((char *)what->send > (char *)what->send_mhandle && (char *)what->recv > (char *)what->recv_mhandle);
  if (outcome(FAKE_ISEND) != ncclSuccess) return ncclSystemError;
  if (chance(mood.null_percent)) return ncclSuccess;
  ck_assert_uint_lt(member->count, MOST);
  ck_assert_uint_le(member->count - member->tested, TT_SLOTS);
  struct request *posted = &member->posted[member->count++];
  posted->what = *what;
  *request = posted;
  count.sends++;
  if (other->count >= member->count) reduce(member->count - 1);
  return ncclSuccess;
}

ncclResult_t tt_collnet_test(struct tt_collnet *collnet, void *request, int *done)
{
  (void)collnet;
  struct request *posted = request;
  struct member *member = posted >= members[1].posted ? &members[1] : &members[0];
  size_t k = (size_t)(posted - member->posted);
  *done = 0;
  ck_assert_msg(!posted->done, "a request that was done is tested again");
  if (outcome(FAKE_TEST) != ncclSuccess) return ncclSystemError;
  if (members[0].count <= k || members[1].count <= k || chance(mood.slow_percent)) return ncclSuccess;
  posted->done = true;
  member->tested++;
  *done = 1;
  return ncclSuccess;
}
