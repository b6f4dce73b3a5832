/* The streams themselves: their handles, and what their owners ask. The queues are in host_queue.c. */
#include "plan/host_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "plan/host_internal.h"

/* "tu" where no address has bits: a device that takes a handle for its own faults instead of following it. */
#define MARK (UINT64_C(0x7475) << 48)

pthread_mutex_t tt_host_lock = PTHREAD_MUTEX_INITIALIZER;
struct tt_host_stream *tt_host_streams;
static uint64_t created;

bool tt_host_stream_like(const void *handle)
{
  return (uint64_t)(uintptr_t)handle >> 48 == MARK >> 48;
}

struct tt_host_stream *tt_host_find(const void *handle)
{
  struct tt_host_stream *stream = tt_host_streams;
  while (stream != NULL && (stream->handle != handle || stream->dying)) stream = stream->next;
  return stream;
}

ncclResult_t tt_host_unknown(const char *function, const void *handle)
{
  return TT_FAIL(ncclInvalidArgument,
                 "%s: stream is %p, which is no stream of the host device: use NULL, or one of tuttiStreamCreate that "
                 "was not destroyed",
                 function, handle);
}

ncclResult_t tt_host_stream_check(const char *function, void *handle)
{
  pthread_mutex_lock(&tt_host_lock);
  bool known = tt_host_find(handle) != NULL;
  pthread_mutex_unlock(&tt_host_lock);
  return known ? ncclSuccess : tt_host_unknown(function, handle);
}

void tt_host_stream_note(struct tt_host_stream *stream, ncclResult_t result)
{
  if (result == ncclSuccess || stream->failed != ncclSuccess) return;
  stream->failed = result;
  snprintf(stream->text, sizeof stream->text, "%s", tt_log_thread_error());
}

/* The failure that is kept, as the calling thread's. It was logged where it happened. */
static ncclResult_t tell(const struct tt_host_stream *stream)
{
  if (stream->failed != ncclSuccess) tt_log_remember(stream->text);
  return stream->failed;
}

ncclResult_t tt_host_stream_create(void **handle)
{
  struct tt_host_stream *stream;
  *handle = NULL;
  TT_TRY(TT_CALLOC(&stream, 1));
  pthread_cond_init(&stream->work, NULL);
  stream->last = &stream->first;
  pthread_mutex_lock(&tt_host_lock);
  stream->handle = (void *)(uintptr_t)(MARK | ++created);
  stream->next = tt_host_streams;
  tt_host_streams = stream;
  *handle = stream->handle;
  pthread_mutex_unlock(&tt_host_lock);
  return ncclSuccess;
}

/* Finds the stream, so that nobody else does, waits until nothing is left on it, and takes it off the list. */
static struct tt_host_stream *take(const void *handle)
{
  struct tt_host_stream *stream = tt_host_find(handle), **place = &tt_host_streams;
  if (stream == NULL) return NULL;
  stream->dying = true; /* still on the list: an abort looks through what is on it */
  while (stream->first != NULL || stream->waiters > 0) tt_host_wait_done(0);
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  stream->ending = true;
  pthread_cond_signal(&stream->work);
  return stream;
}

ncclResult_t tt_host_stream_destroy(const char *function, void *handle)
{
  pthread_mutex_lock(&tt_host_lock);
  struct tt_host_stream *stream = take(handle);
  pthread_mutex_unlock(&tt_host_lock);
  if (stream == NULL) return tt_host_unknown(function, handle);
  if (stream->started) pthread_join(stream->thread, NULL);
  ncclResult_t failed = tell(stream);
  pthread_cond_destroy(&stream->work);
  free(stream);
  return failed;
}

ncclResult_t tt_host_stream_synchronize(const char *function, void *handle)
{
  pthread_mutex_lock(&tt_host_lock);
  struct tt_host_stream *stream = tt_host_find(handle);
  ncclResult_t failed = ncclSuccess;
  if (stream != NULL) {
    uint64_t until = stream->entered;
    stream->waiters++;
    while (stream->done < until) tt_host_wait_done(0);
    stream->waiters--;
    failed = tell(stream);
    stream->failed = ncclSuccess;
    if (stream->waiters == 0) tt_host_wake_waiters(); /* one may be about to destroy it */
  }
  pthread_mutex_unlock(&tt_host_lock);
  return stream != NULL ? failed : tt_host_unknown(function, handle);
}

ncclResult_t tt_host_stream_query(const char *function, void *handle)
{
  pthread_mutex_lock(&tt_host_lock);
  struct tt_host_stream *stream = tt_host_find(handle);
  ncclResult_t result = ncclSuccess;
  if (stream != NULL) result = stream->first != NULL ? ncclInProgress : tell(stream);
  pthread_mutex_unlock(&tt_host_lock);
  return stream != NULL ? result : tt_host_unknown(function, handle);
}
