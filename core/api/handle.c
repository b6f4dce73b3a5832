/* See handle.h.
 *
 * The table's entries are never freed, only used again, so that looking at one is always safe; that is what makes it
 * possible to do without locks. Who looks first counts itself into the entry and then looks again whether the
 * communicator is still there; who takes it first takes it away and then looks whether anybody is counted. One of the
 * two sees the other. */
#include "api/handle.h"

#include <pthread.h>
#include <unistd.h>
#include "base/check.h"
#include "base/timer.h"

#define LOOK_USEC 100

struct tt_handle {
  struct tt_handle *next;              /* of its row, which only grows, at its beginning */
  const struct ncclComm *_Atomic comm; /* NULL: the entry is free. TAKEN: its communicator is being ended */
  _Atomic int holders;
};

enum { ROWS = 256 };
static struct tt_handle *_Atomic rows[ROWS];

/* How many forks lie between this process and the one that loaded the library. To look here costs less than getpid,
 * which every operation would have to call. Written only where there is one thread. */
static unsigned forks;

static const char taken;
#define TAKEN ((const struct ncclComm *)(const void *)&taken)

static struct tt_handle *_Atomic *row_of(const struct ncclComm *comm)
{
  return &rows[((uintptr_t)comm * 0x9e3779b97f4a7c15ull >> 32) % ROWS];
}

/* The communicator's entry, held; NULL if there is none. */
static struct tt_handle *hold(const struct ncclComm *comm)
{
  if (comm == NULL || comm == TAKEN) return NULL;
  for (struct tt_handle *handle = atomic_load(row_of(comm)); handle != NULL; handle = handle->next) {
    if (atomic_load(&handle->comm) != comm) continue;
    atomic_fetch_add(&handle->holders, 1);
    if (atomic_load(&handle->comm) == comm) return handle;
    atomic_fetch_sub(&handle->holders, 1);
  }
  return NULL;
}

static ncclResult_t unknown(const char *function, const struct ncclComm *comm)
{
  if (comm == NULL) return TT_FAIL(ncclInvalidArgument, "%s: argument comm is NULL", function);
  return TT_FAIL(ncclInvalidArgument,
                 "%s: argument comm (%p) is not a communicator of this process, or was destroyed or aborted before",
                 function, (const void *)comm);
}

static bool use_free_entry(struct ncclComm *comm)
{
  for (struct tt_handle *handle = atomic_load(row_of(comm)); handle != NULL; handle = handle->next) {
    const struct ncclComm *none = NULL;
    if (atomic_load(&handle->comm) != NULL) continue;
    /* The communicator must know its entry before others can find it; if another thread was faster, this is put right
     * before anybody does. */
    comm->handle = handle;
    if (atomic_compare_exchange_strong(&handle->comm, &none, comm)) return true;
  }
  return false;
}

static void after_fork(void)
{
  forks++;
}

static void watch_forks(void)
{
  pthread_atfork(NULL, NULL, after_fork);
}

ncclResult_t tt_handle_add(struct ncclComm *comm)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct tt_handle *_Atomic *row = row_of(comm);
  struct tt_handle *handle;
  pthread_once(&once, watch_forks);
  comm->process = getpid();
  comm->forks = forks;
  if (use_free_entry(comm)) return ncclSuccess;
  comm->handle = NULL;
  TT_TRY(TT_CALLOC(&handle, 1));
  comm->handle = handle;
  atomic_init(&handle->comm, comm);
  handle->next = atomic_load(row);
  while (!atomic_compare_exchange_weak(row, &handle->next, handle)) continue;
  return ncclSuccess;
}

void tt_handle_remove(struct ncclComm *comm)
{
  if (comm->handle != NULL) atomic_store(&comm->handle->comm, NULL);
  comm->handle = NULL;
}

bool tt_handle_try_hold(const struct ncclComm *comm)
{
  return hold(comm) != NULL;
}

ncclResult_t tt_handle_hold(const char *function, const struct ncclComm *comm)
{
  return hold(comm) != NULL ? ncclSuccess : unknown(function, comm);
}

static ncclResult_t check_process(const char *function, const struct ncclComm *comm)
{
  if (comm->forks == forks) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "%s: the communicator (%p) was made by process %d before a fork: only that process may use or end it; "
                 "in its child, process %d, leave it alone, and make another one",
                 function, (const void *)comm, comm->process, getpid());
}

ncclResult_t tt_handle_hold_own(const char *function, const struct ncclComm *comm)
{
  TT_TRY(tt_handle_hold(function, comm));
  ncclResult_t result = check_process(function, comm);
  if (result != ncclSuccess) tt_handle_let_go(comm);
  return result;
}

void tt_handle_let_go(const struct ncclComm *comm)
{
  atomic_fetch_sub(&comm->handle->holders, 1);
}

bool tt_handle_try_take(const struct ncclComm *comm)
{
  struct tt_handle *handle = hold(comm);
  const struct ncclComm *expected = comm;
  if (handle == NULL) return false;
  bool mine = atomic_compare_exchange_strong(&handle->comm, &expected, TAKEN);
  atomic_fetch_sub(&handle->holders, 1);
  return mine;
}

static ncclResult_t busy(const char *function, int state)
{
  if (state == TT_COMM_IN_BACKGROUND)
    return TT_FAIL(ncclInvalidArgument,
                   "%s: an earlier call on this communicator is in progress; ask ncclCommGetAsyncError until it is "
                   "not, or use ncclCommAbort",
                   function);
  return TT_FAIL(ncclInvalidUsage,
                 "%s: another thread is using the communicator; ncclCommAbort ends what that thread does", function);
}

ncclResult_t tt_handle_take(const char *function, const struct ncclComm *comm, bool idle)
{
  TT_TRY(tt_handle_hold_own(function, comm));
  int state = idle ? atomic_load(&comm->in_group) : TT_COMM_IDLE;
  bool mine = state == TT_COMM_IDLE && tt_handle_try_take(comm);
  tt_handle_let_go(comm);
  if (state != TT_COMM_IDLE) return busy(function, state);
  return mine ? ncclSuccess : unknown(function, comm);
}

void tt_handle_give_back(const struct ncclComm *comm)
{
  atomic_store(&comm->handle->comm, comm);
}

bool tt_handle_wait(const struct ncclComm *comm, int timeout_ms)
{
  tt_deadline deadline = tt_deadline_in_ms(timeout_ms);
  while (atomic_load(&comm->handle->holders) != 0) {
    if (tt_deadline_passed(deadline)) return false;
    usleep(LOOK_USEC);
  }
  return true;
}
