/* The connecting side: first the meeting, then the greeting. The caller's handle holds only the number of the attempt,
 * which is looked up in a list, so that a stray handle can do no harm and attempts that the caller gave up can be
 * ended. */
#include "net_ofi.h"

#include <stdlib.h>
#include <string.h>

struct attempt {
  uint64_t number;
  struct tt_ofi_greet greet;
  struct attempt *next;
};

static struct {
  pthread_mutex_t lock; /* guards the list and the numbers, not the attempts: each has one caller */
  struct attempt *list;
  uint64_t last_number;
} pending = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct attempt *find_attempt(uint64_t number)
{
  pthread_mutex_lock(&pending.lock);
  struct attempt *attempt = pending.list;
  while (attempt && attempt->number != number) attempt = attempt->next;
  pthread_mutex_unlock(&pending.lock);
  return attempt;
}

static void remove_attempt(struct attempt *attempt)
{
  pthread_mutex_lock(&pending.lock);
  struct attempt **at = &pending.list;
  while (*at != attempt) at = &(*at)->next;
  *at = attempt->next;
  pthread_mutex_unlock(&pending.lock);
  free(attempt);
}

void tt_ofi_connect_forget(void)
{
  tt_meeting_forget();
  pthread_mutex_lock(&pending.lock);
  while (pending.list) {
    struct attempt *attempt = pending.list;
    pending.list = attempt->next;
    tt_ofi_close_send(attempt->greet.link);
    free(attempt);
  }
  pthread_mutex_unlock(&pending.lock);
}

/* The socket is there. */
static ncclResult_t begin_attempt(int dev, int fd, struct attempt **out)
{
  struct attempt *attempt;
  ncclResult_t result = TT_CALLOC(&attempt, 1);
  if (result != ncclSuccess) {
    tt_socket_close(&fd);
    return result;
  }
  struct tt_ofi_link *link;
  result = tt_ofi_send_make(dev, fd, &link);
  if (result != ncclSuccess) {
    free(attempt);
    return result;
  }
  tt_ofi_greet_begin(&attempt->greet, link);
  pthread_mutex_lock(&pending.lock);
  attempt->number = ++pending.last_number;
  attempt->next = pending.list;
  pending.list = attempt;
  pthread_mutex_unlock(&pending.lock);
  *out = attempt;
  return ncclSuccess;
}

static ncclResult_t meet(int dev, struct tt_ofi_handle *handle, struct attempt **out)
{
  int fds[TT_MEETING_SOCKETS], count;
  TT_TRY(tt_meeting_connect(&tt_ofi_meeting, &handle->meeting, 1, fds, &count));
  if (count) TT_TRY(begin_attempt(dev, fds[0], out));
  return ncclSuccess;
}

static ncclResult_t greet(struct attempt *attempt, void **send_comm, bool *over)
{
  bool ready;
  ncclResult_t result = tt_ofi_greet_move(&attempt->greet, &ready);
  *over = result != ncclSuccess || ready;
  if (!*over) return ncclSuccess;
  if (ready) {
    tt_ofi_link_count(attempt->greet.link);
    *send_comm = attempt->greet.link;
  } else {
    tt_ofi_close_send(attempt->greet.link);
  }
  remove_attempt(attempt);
  return result;
}

ncclResult_t tt_ofi_connect(int dev, void *storage, void **send_comm)
{
  struct tt_ofi_device *device;
  struct tt_ofi_handle handle;
  *send_comm = NULL;
  TT_TRY(tt_ofi_device(dev, &device));
  memcpy(&handle, storage, sizeof handle);
  struct attempt *attempt = handle.pending ? find_attempt(handle.pending) : NULL;
  ncclResult_t result = attempt ? ncclSuccess : meet(dev, &handle, &attempt);
  if (result == ncclSuccess && attempt) {
    bool over;
    uint64_t number = attempt->number;
    result = greet(attempt, send_comm, &over);
    handle.pending = over ? 0 : number;
  }
  memcpy(storage, &handle, sizeof handle);
  return result;
}
