/* The connecting side: first the meeting, then the greeting. */
#include "net_ofi.h"

#include <stdlib.h>
#include <string.h>
#include "plugins/common/attempts.h"

struct attempt {
  struct tt_attempt base;
  struct tt_ofi_greet greet;
};

static struct tt_attempts pending = TT_ATTEMPTS_NONE;

static void end_attempt(void *storage)
{
  struct attempt *attempt = storage;
  tt_ofi_close_send(attempt->greet.link);
  free(attempt);
}

void tt_ofi_connect_forget(uint64_t user)
{
  tt_meeting_forget(user);
  tt_attempts_end(&pending, user, end_attempt);
}

/* The socket is there. */
static ncclResult_t begin_attempt(int dev, uint64_t user, int fd, struct attempt **out)
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
  tt_attempts_add(&pending, &attempt->base, user);
  *out = attempt;
  return ncclSuccess;
}

static ncclResult_t meet(int dev, uint64_t user, struct tt_ofi_handle *handle, struct attempt **out)
{
  int fds[TT_MEETING_SOCKETS], count;
  TT_TRY(tt_meeting_connect(&tt_ofi_meeting, user, &handle->meeting, 1, fds, &count));
  if (count) TT_TRY(begin_attempt(dev, user, fds[0], out));
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
  tt_attempts_remove(&pending, &attempt->base);
  free(attempt);
  return result;
}

ncclResult_t tt_ofi_connect(int dev, uint64_t user, void *storage, void **send_comm)
{
  struct tt_ofi_device *device;
  struct tt_ofi_handle handle;
  *send_comm = NULL;
  TT_TRY(tt_ofi_device(dev, &device));
  memcpy(&handle, storage, sizeof handle);
  struct attempt *attempt = handle.pending ? tt_attempts_find(&pending, handle.pending) : NULL;
  ncclResult_t result = attempt ? ncclSuccess : meet(dev, user, &handle, &attempt);
  if (result == ncclSuccess && attempt) {
    bool over;
    uint64_t number = attempt->base.number;
    result = greet(attempt, send_comm, &over);
    handle.pending = over ? 0 : number;
  }
  memcpy(storage, &handle, sizeof handle);
  return result;
}
