/* See handle.h. */
#include "api/handle.h"

#include <pthread.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"

#define LOOK_USEC 100

/* Lists of live communicators by address, each with a lock of its own, so that threads that drive different ranks do
 * not wait for each other. */
enum { STRIPES = 64 };
static struct stripe {
  pthread_mutex_t lock;
  struct ncclComm *first;
} stripes[STRIPES] = {[0 ... STRIPES - 1] = {PTHREAD_MUTEX_INITIALIZER, NULL}};

static struct stripe *stripe_of(const struct ncclComm *comm)
{
  return &stripes[((uintptr_t)comm * 0x9e3779b97f4a7c15ull >> 32) % STRIPES];
}

/* Where the list points to the communicator; NULL if it does not. Locked. */
static struct ncclComm **find(struct stripe *stripe, const struct ncclComm *comm)
{
  struct ncclComm **place = &stripe->first;
  while (*place != NULL && *place != comm) place = &(*place)->handle_next;
  return *place != NULL ? place : NULL;
}

static ncclResult_t unknown(const char *function, const struct ncclComm *comm)
{
  if (comm == NULL) return TT_FAIL(ncclInvalidArgument, "%s: argument comm is NULL", function);
  return TT_FAIL(ncclInvalidArgument,
                 "%s: argument comm (%p) is not a communicator of this process, or was destroyed or aborted before",
                 function, (const void *)comm);
}

void tt_handle_add(struct ncclComm *comm)
{
  struct stripe *stripe = stripe_of(comm);
  pthread_mutex_lock(&stripe->lock);
  comm->handle_next = stripe->first;
  stripe->first = comm;
  pthread_mutex_unlock(&stripe->lock);
}

bool tt_handle_try_hold(const struct ncclComm *comm)
{
  struct stripe *stripe = stripe_of(comm);
  pthread_mutex_lock(&stripe->lock);
  struct ncclComm **place = find(stripe, comm);
  if (place != NULL) atomic_fetch_add(&(*place)->holders, 1);
  pthread_mutex_unlock(&stripe->lock);
  return place != NULL;
}

ncclResult_t tt_handle_hold(const char *function, const struct ncclComm *comm)
{
  return tt_handle_try_hold(comm) ? ncclSuccess : unknown(function, comm);
}

void tt_handle_let_go(const struct ncclComm *comm)
{
  atomic_fetch_sub(&((struct ncclComm *)comm)->holders, 1);
}

ncclResult_t tt_handle_take(const char *function, const struct ncclComm *comm, bool idle)
{
  struct stripe *stripe = stripe_of(comm);
  pthread_mutex_lock(&stripe->lock);
  struct ncclComm **place = find(stripe, comm);
  bool busy = place != NULL && idle && atomic_load(&comm->in_group) != 0;
  if (place != NULL && !busy) *place = comm->handle_next;
  pthread_mutex_unlock(&stripe->lock);
  if (busy)
    return TT_FAIL(ncclInvalidUsage,
                   "%s: another thread is using the communicator; ncclCommAbort ends what that thread does", function);
  return place != NULL ? ncclSuccess : unknown(function, comm);
}

bool tt_handle_wait(const struct ncclComm *comm, int timeout_ms)
{
  tt_deadline deadline = tt_deadline_in_ms(timeout_ms);
  while (atomic_load(&comm->holders) != 0) {
    if (tt_deadline_passed(deadline)) return false;
    usleep(LOOK_USEC);
  }
  return true;
}
