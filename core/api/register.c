/* Registrations of a communicator, and ncclCommRegister.
 *
 * A buffer that one rank registers is noted and no more: whether it is used without copies must be the same on all
 * ranks, and only a window promises that they use it alike (window.c). A program written for NCCL runs unchanged, and
 * its mistakes (a handle that is not one, a buffer that was never deregistered) are found. */
#include "api/register.h"

#include <stdatomic.h>
#include <stdlib.h>
#include "api/check.h"
#include "api/export.h"
#include "api/handle.h"
#include "base/check.h"
#include "base/param.h"
#include "transport/user_buffers.h"

/* A handle is its entry's number, which no other entry of the process has or had, so that neither an old handle nor one
 * of another communicator is taken for it. */
struct entry {
  struct entry *next;
  uintptr_t number;
  enum tt_registered kind;
  void *buffer;
  size_t bytes;
  int uses; /* the same buffer may be registered several times */
  struct tt_user_window *mapped;
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

/* The entry of a buffer that is registered already; NULL: none. Each window is an entry of its own. Locked. */
static struct entry *find_buffer(const struct tt_registrations *all, const void *buffer, size_t bytes)
{
  struct entry *entry = all->first;
  while (entry != NULL && (entry->kind != TT_REGISTERED_BUFFER || entry->buffer != buffer || entry->bytes != bytes))
    entry = entry->next;
  return entry;
}

ncclResult_t tt_register_add(struct ncclComm *comm, enum tt_registered kind, void *buffer, size_t bytes,
                             struct tt_user_window *mapped, void **handle)
{
  struct tt_registrations *all;
  ncclResult_t result = ncclSuccess;
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  struct entry *entry = kind == TT_REGISTERED_BUFFER ? find_buffer(all, buffer, bytes) : NULL;
  if (entry == NULL && (result = TT_CALLOC(&entry, 1)) == ncclSuccess) {
    *entry = (struct entry){.next = all->first,
                            .number = atomic_fetch_add(&last_number, 1) + 1,
                            .kind = kind,
                            .buffer = buffer,
                            .bytes = bytes,
                            .mapped = mapped};
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
static struct entry **find(struct tt_registrations *all, enum tt_registered kind, const void *handle)
{
  struct entry **place = &all->first;
  while (*place != NULL && ((*place)->kind != kind || (*place)->number != (uintptr_t)handle)) place = &(*place)->next;
  return place;
}

static ncclResult_t unknown(const char *function, enum tt_registered kind, const void *handle)
{
  return TT_FAIL(ncclInvalidUsage, "%s: %s %p is not registered with this communicator, or not any more", function,
                 kind == TT_REGISTERED_WINDOW ? "window" : "handle", handle);
}

ncclResult_t tt_register_drop(const char *function, struct ncclComm *comm, enum tt_registered kind, const void *handle)
{
  struct tt_registrations *all;
  struct tt_user_window *mapped = NULL;
  TT_TRY(tt_api_check_ready(function, comm));
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  struct entry **place = find(all, kind, handle);
  struct entry *entry = *place;
  if (entry != NULL && --entry->uses == 0) {
    *place = entry->next;
    mapped = entry->mapped;
    free(entry);
  }
  pthread_mutex_unlock(&all->lock);
  if (mapped != NULL) tt_user_window_close(comm->env, mapped);
  return entry != NULL ? ncclSuccess : unknown(function, kind, handle);
}

ncclResult_t tt_register_find(const char *function, struct ncclComm *comm, enum tt_registered kind, const void *handle,
                              void **buffer)
{
  struct tt_registrations *all;
  TT_TRY(tt_api_check_ready(function, comm));
  TT_TRY(get(comm, &all));
  pthread_mutex_lock(&all->lock);
  const struct entry *entry = *find(all, kind, handle);
  if (entry != NULL) *buffer = entry->buffer;
  pthread_mutex_unlock(&all->lock);
  return entry != NULL ? ncclSuccess : unknown(function, kind, handle);
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

ncclResult_t tt_register_check(const char *function, const void *buffer, size_t bytes)
{
  TT_TRY(tt_api_check_pointer(function, "buff", buffer));
  if (bytes == 0) return TT_FAIL(ncclInvalidArgument, "%s: size is 0", function);
  if (bytes > UINTPTR_MAX - (uintptr_t)buffer)
    return TT_FAIL(ncclInvalidArgument, "%s: size is %zu, which is more than memory has from %p on", function, bytes,
                   buffer);
  return ncclSuccess;
}

static ncclResult_t add_buffer(struct ncclComm *comm, void *buffer, size_t bytes, void **handle)
{
  *handle = NULL;
  TT_TRY(tt_api_check_ready("ncclCommRegister", comm));
  if (!tt_param_int(TT_PARAM_NCCL_LOCAL_REGISTER)) return ncclSuccess;
  return tt_register_add(comm, TT_REGISTERED_BUFFER, buffer, bytes, NULL, handle);
}

TT_EXPORT(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle))
{
  TT_TRY(tt_api_check_pointer("ncclCommRegister", "handle", handle));
  TT_TRY(tt_register_check("ncclCommRegister", buff, size));
  TT_TRY(tt_handle_hold_own("ncclCommRegister", comm));
  ncclResult_t result = add_buffer(comm, buff, size, handle);
  tt_handle_let_go(comm);
  return result;
}

TT_EXPORT(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle))
{
  TT_TRY(tt_handle_hold_own("ncclCommDeregister", comm));
  ncclResult_t result =
      handle != NULL ? tt_register_drop("ncclCommDeregister", comm, TT_REGISTERED_BUFFER, handle) : ncclSuccess;
  tt_handle_let_go(comm);
  return result;
}
