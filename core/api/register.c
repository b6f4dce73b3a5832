/* Registration of buffers and windows: ncclCommRegister, ncclCommWindowRegister, their ends, and ncclWinGetUserPtr.
 *
 * Registrations are checked, kept and counted; the transports of this version copy through their own buffers whether a
 * buffer is registered or not, so nothing becomes faster by it. A program written for NCCL runs unchanged, and its
 * mistakes (a handle that is not one, a buffer that was never deregistered) are found. */
#include "api/register.h"

#include <stdatomic.h>
#include <stdlib.h>
#include "api/check.h"
#include "api/export.h"
#include "api/handle.h"
#include "base/check.h"

enum kind { BUFFER, WINDOW };

/* A handle is its entry's number, which no other entry of the process has or had, so that neither an old handle nor one
 * of another communicator is taken for it. */
struct entry {
  struct entry *next;
  uintptr_t number;
  enum kind kind;
  void *buffer;
  size_t bytes;
  int uses; /* the same buffer may be registered several times */
};

struct tt_registrations {
  pthread_mutex_t lock;
  struct entry *first;
};

static _Atomic uintptr_t last_number;

static ncclResult_t get(struct ncclComm *comm, struct tt_registrations **out)
{
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&making);
  if (comm->registrations == NULL && (result = TT_CALLOC(&comm->registrations, 1)) == ncclSuccess)
    pthread_mutex_init(&comm->registrations->lock, NULL);
  *out = comm->registrations;
  pthread_mutex_unlock(&making);
  return result;
}

static ncclResult_t add(const char *function, struct ncclComm *comm, enum kind kind, void *buffer, size_t bytes,
                        void **handle)
{
  struct tt_registrations *all;
  ncclResult_t result = ncclSuccess;
  TT_TRY(tt_api_check_ready(function, comm));
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  struct entry *entry = all->first;
  while (entry != NULL && (entry->kind != kind || entry->buffer != buffer || entry->bytes != bytes))
    entry = entry->next;
  if (entry == NULL && (result = TT_CALLOC(&entry, 1)) == ncclSuccess) {
    *entry = (struct entry){.next = all->first,
                            .number = atomic_fetch_add(&last_number, 1) + 1,
                            .kind = kind,
                            .buffer = buffer,
                            .bytes = bytes};
    all->first = entry;
  }
  if (result == ncclSuccess) {
    entry->uses++;
    *handle = (void *)entry->number;
  }
  pthread_mutex_unlock(&all->lock);
  return result;
}

/* Where the list points to a handle's entry, or to its end. Locked. */
static struct entry **find(struct tt_registrations *all, enum kind kind, const void *handle)
{
  struct entry **place = &all->first;
  while (*place != NULL && ((*place)->kind != kind || (*place)->number != (uintptr_t)handle)) place = &(*place)->next;
  return place;
}

static ncclResult_t unknown(const char *function, enum kind kind, const void *handle)
{
  return TT_FAIL(ncclInvalidUsage, "%s: %s %p is not registered with this communicator, or not any more", function,
                 kind == WINDOW ? "window" : "handle", handle);
}

static ncclResult_t drop(const char *function, struct ncclComm *comm, enum kind kind, const void *handle)
{
  struct tt_registrations *all;
  TT_TRY(tt_api_check_ready(function, comm));
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  struct entry **place = find(all, kind, handle);
  struct entry *entry = *place;
  if (entry != NULL && --entry->uses == 0) {
    *place = entry->next;
    free(entry);
  }
  pthread_mutex_unlock(&all->lock);
  return entry != NULL ? ncclSuccess : unknown(function, kind, handle);
}

static ncclResult_t get_buffer(struct ncclComm *comm, const void *window, void **buffer)
{
  struct tt_registrations *all;
  TT_TRY(tt_api_check_ready("ncclWinGetUserPtr", comm));
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  const struct entry *entry = *find(all, WINDOW, window);
  if (entry != NULL) *buffer = entry->buffer;
  pthread_mutex_unlock(&all->lock);
  return entry != NULL ? ncclSuccess : unknown("ncclWinGetUserPtr", WINDOW, window);
}

void tt_register_free(struct ncclComm *comm)
{
  struct tt_registrations *all = comm->registrations;
  int count = 0;
  if (all == NULL) return;
  for (struct entry *entry = all->first, *next; entry != NULL; entry = next, count++) {
    next = entry->next;
    free(entry);
  }
  if (count > 0) TT_INFO(TT_REG | TT_INIT, "rank %d: %d buffers were never deregistered", comm->rank, count);
  pthread_mutex_destroy(&all->lock);
  free(all);
  comm->registrations = NULL;
}

static ncclResult_t check_buffer(const char *function, const void *buffer, size_t bytes)
{
  TT_TRY(tt_api_check_pointer(function, "buff", buffer));
  if (bytes == 0) return TT_FAIL(ncclInvalidArgument, "%s: size is 0", function);
  if (bytes > UINTPTR_MAX - (uintptr_t)buffer)
    return TT_FAIL(ncclInvalidArgument, "%s: size is %zu, which is more than memory has from %p on", function, bytes,
                   buffer);
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle))
{
  TT_TRY(tt_api_check_pointer("ncclCommRegister", "handle", handle));
  TT_TRY(check_buffer("ncclCommRegister", buff, size));
  TT_TRY(tt_handle_hold("ncclCommRegister", comm));
  ncclResult_t result = add("ncclCommRegister", comm, BUFFER, buff, size, handle);
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle))
{
  TT_TRY(tt_handle_hold("ncclCommDeregister", comm));
  ncclResult_t result = handle != NULL ? drop("ncclCommDeregister", comm, BUFFER, handle) : ncclSuccess;
  tt_handle_let_go(comm);
  return result;
}

static ncclResult_t add_window(struct ncclComm *comm, void *buffer, size_t bytes, ncclWindow_t *window)
{
  void *handle;
  TT_TRY(add("ncclCommWindowRegister", comm, WINDOW, buffer, bytes, &handle));
  *window = handle;
  return ncclSuccess;
}

/* Windows without symmetric memory are registrations, as in NCCL 2.28. */
TT_EXPORT(ncclResult_t, ncclCommWindowRegister,
          (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags))
{
  TT_TRY(tt_api_check_pointer("ncclCommWindowRegister", "win", win));
  *win = NULL;
  TT_TRY(check_buffer("ncclCommWindowRegister", buff, size));
  if (winFlags != NCCL_WIN_DEFAULT && winFlags != NCCL_WIN_COLL_SYMMETRIC)
    return TT_FAIL(ncclInvalidArgument,
                   "ncclCommWindowRegister: winFlags is %d; allowed are NCCL_WIN_DEFAULT (%d) and "
                   "NCCL_WIN_COLL_SYMMETRIC (%d)",
                   winFlags, NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC);
  TT_TRY(tt_handle_hold("ncclCommWindowRegister", comm));
  ncclResult_t result = add_window(comm, buff, size, win);
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win))
{
  TT_TRY(tt_handle_hold("ncclCommWindowDeregister", comm));
  ncclResult_t result = win != NULL ? drop("ncclCommWindowDeregister", comm, WINDOW, win) : ncclSuccess;
  tt_handle_let_go(comm);
  return result;
}

/* Of NCCL 2.29 and later, and in none of this version's headers. */
TT_EXPORT(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr))
{
  TT_TRY(tt_api_check_pointer("ncclWinGetUserPtr", "win", win));
  TT_TRY(tt_api_check_pointer("ncclWinGetUserPtr", "outUserPtr", outUserPtr));
  TT_TRY(tt_handle_hold("ncclWinGetUserPtr", comm));
  ncclResult_t result = get_buffer(comm, win, outUserPtr);
  tt_handle_let_go(comm);
  return result;
}
