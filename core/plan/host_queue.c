/* Items on their way through the queues of host streams. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/thread.h"
#include "base/timer.h"
#include "plan/host_internal.h"
#include "plan/plan.h"

/* How often a wait that can be aborted looks whether it is. */
#define LOOK_MS 20

static _Atomic int running;

/* ---- Waiting for what is done ---- */

static pthread_cond_t done;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int done_waiters;

static void make_condition(void)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&done, &attributes);
  pthread_condattr_destroy(&attributes);
}

void tt_host_wait_done(int timeout_ms)
{
  struct timespec until;
  pthread_once(&once, make_condition);
  done_waiters++;
  if (timeout_ms == 0) {
    pthread_cond_wait(&done, &tt_host_lock);
  } else {
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ms * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&done, &tt_host_lock, &until);
  }
  done_waiters--;
}

void tt_host_wake_waiters(void)
{
  if (done_waiters > 0) pthread_cond_broadcast(&done);
}

int tt_host_running(void)
{
  return atomic_load_explicit(&running, memory_order_relaxed);
}

/* ---- Items ---- */

ncclResult_t tt_host_item_new(int streams, int parts, tt_host_run *run, tt_host_free *end, struct tt_host_item **out)
{
  size_t places = (size_t)streams * sizeof(struct tt_host_place);
  struct tt_host_item *item = calloc(1, sizeof *item + places + (size_t)parts * sizeof(struct tt_host_part));
  *out = item;
  if (item == NULL) return TT_FAIL(ncclSystemError, "no memory for an operation of %d communicators", parts);
  item->run = run;
  item->end = end;
  item->places = (struct tt_host_place *)(item + 1);
  item->parts = (struct tt_host_part *)((char *)item->places + places);
  return ncclSuccess;
}

void tt_host_item_add_stream(struct tt_host_item *item, void *handle)
{
  for (int s = 0; s < item->nstreams; s++)
    if (item->places[s].handle == handle) return;
  item->places[item->nstreams++] = (struct tt_host_place){.item = item, .handle = handle};
}

void tt_host_item_add_part(struct tt_host_item *item, struct ncclComm *comm)
{
  item->parts[item->nparts++] = (struct tt_host_part){.comm = comm, .tasks = comm->tasks, .ntasks = comm->ntasks};
  comm->tasks = NULL;
  tt_plan_drop_tasks(comm);
}

void tt_host_item_keep(struct tt_host_item *item)
{
  item->kept = true;
}

void tt_host_item_free(struct tt_host_item *item)
{
  if (item == NULL) return;
  for (int p = 0; p < item->nparts; p++) tt_plan_free_tasks(item->parts[p].tasks);
  free(item->error);
  free(item);
}

/* ---- The queues, with the lock held ---- */

/* The item that begins now, if one does: it is the first everywhere, and it is its communicators' turn. */
static struct tt_host_item *next_item(const struct tt_host_stream *stream)
{
  struct tt_host_item *item = stream->first != NULL ? stream->first->item : NULL;
  if (item == NULL || item->running || item->places[0].stream != stream) return NULL;
  for (int s = 0; s < item->nstreams; s++)
    if (item->places[s].stream->first != &item->places[s]) return NULL;
  for (int p = 0; p < item->nparts; p++)
    if (item->parts[p].comm->host_done != item->parts[p].turn) return NULL;
  return item;
}

static void wake_lead(const struct tt_host_stream *stream)
{
  struct tt_host_item *item = stream->first != NULL ? stream->first->item : NULL;
  if (item != NULL && next_item(item->places[0].stream) == item) pthread_cond_signal(&item->places[0].stream->work);
}

static void enter(struct tt_host_item *item)
{
  for (int p = 0; p < item->nparts; p++) {
    struct ncclComm *comm = item->parts[p].comm;
    item->parts[p].turn = comm->host_entered++;
    atomic_fetch_add(&comm->host_pending, 1);
  }
  for (int s = 0; s < item->nstreams; s++) {
    struct tt_host_place *place = &item->places[s];
    *place->stream->last = place;
    place->stream->last = &place->next;
    place->stream->entered++;
  }
  wake_lead(item->places[0].stream);
}

static void leave_streams(struct tt_host_item *item, ncclResult_t result)
{
  for (int s = 0; s < item->nstreams; s++) {
    struct tt_host_stream *stream = item->places[s].stream;
    tt_host_stream_note(stream, result);
    stream->first = item->places[s].next;
    if (stream->first == NULL) stream->last = &stream->first;
    stream->done++;
  }
}

/* The communicators are not touched after they were told that nothing is pending, but for those that were left here:
 * the first `abandoned` parts are theirs, to be freed without the lock. */
static int leave_communicators(struct tt_host_item *item)
{
  int abandoned = 0;
  for (int p = 0; p < item->nparts; p++) {
    struct ncclComm *comm = item->parts[p].comm;
    bool free_it = comm->host_abandoned && atomic_load(&comm->host_pending) == 1;
    comm->host_done++;
    atomic_fetch_sub(&comm->host_pending, 1);
    if (!free_it) continue;
    struct tt_host_part part = item->parts[p];
    item->parts[p] = item->parts[abandoned];
    item->parts[abandoned++] = part;
  }
  return abandoned;
}

/* The first one, with the calling thread's last error sentence. */
static void keep_failure(struct tt_host_item *item, ncclResult_t result)
{
  if (result == ncclSuccess || item->result != ncclSuccess) return;
  item->result = result;
  item->error = strdup(tt_log_thread_error());
}

static void complete(struct tt_host_item *item, ncclResult_t result)
{
  keep_failure(item, result);
  for (int p = 0; p < item->nparts; p++) tt_plan_free_tasks(item->parts[p].tasks);
  leave_streams(item, result);
  int abandoned = leave_communicators(item);
  item->nparts = 0; /* what follows is no communicator's any more */
  for (struct tt_host_stream *stream = tt_host_streams; stream != NULL; stream = stream->next) wake_lead(stream);
  tt_host_wake_waiters();
  pthread_mutex_unlock(&tt_host_lock);
  for (int p = 0; p < abandoned; p++) item->end(item->parts[p].comm);
  pthread_mutex_lock(&tt_host_lock);
  item->running = false;
  item->complete = true;
  if (!item->kept) tt_host_item_free(item); /* else who waits frees it */
  tt_host_wake_waiters();
}

/* ---- Threads ---- */

static void *serve(void *arg)
{
  struct tt_host_stream *stream = arg;
  pthread_mutex_lock(&tt_host_lock);
  while (stream->first != NULL || !stream->ending) {
    struct tt_host_item *item = next_item(stream);
    if (item == NULL) {
      pthread_cond_wait(&stream->work, &tt_host_lock);
      continue;
    }
    item->running = true;
    pthread_mutex_unlock(&tt_host_lock);
    atomic_fetch_add(&running, 1);
    ncclResult_t result = item->run(item->parts, item->nparts);
    atomic_fetch_sub(&running, 1);
    pthread_mutex_lock(&tt_host_lock);
    complete(item, result);
  }
  pthread_mutex_unlock(&tt_host_lock);
  return NULL;
}

ncclResult_t tt_host_start(struct tt_host_stream *stream)
{
  if (stream->started) return ncclSuccess;
  TT_TRY(tt_thread_start(&stream->thread, "tutti-stream", serve, stream));
  stream->started = true;
  return ncclSuccess;
}

/* Finds the streams of an item, and has their threads run. */
static ncclResult_t resolve(struct tt_host_item *item)
{
  for (int s = 0; s < item->nstreams; s++) {
    struct tt_host_place *place = &item->places[s];
    place->stream = tt_host_find(place->handle);
    if (place->stream == NULL) return tt_host_unknown("ncclGroupEnd", place->handle);
  }
  return tt_host_start(item->places[0].stream);
}

ncclResult_t tt_host_enqueue(struct tt_host_item **items, int nitems)
{
  ncclResult_t result = ncclSuccess;
  if (nitems == 0) return ncclSuccess; /* ranks of one process with GPUs do not meet at the lock */
  pthread_mutex_lock(&tt_host_lock);
  for (int i = 0; i < nitems && result == ncclSuccess; i++) result = resolve(items[i]);
  for (int i = 0; i < nitems && result == ncclSuccess; i++) enter(items[i]);
  pthread_mutex_unlock(&tt_host_lock);
  return result;
}

/* One whose communicators were all taken out is nothing any more but a place in its streams, which then own it. */
ncclResult_t tt_host_item_wait(struct tt_host_item *item)
{
  pthread_mutex_lock(&tt_host_lock);
  while (!item->complete && (item->running || item->nparts > 0)) tt_host_wait_done(0);
  ncclResult_t result = item->result;
  if (result != ncclSuccess && item->error != NULL) tt_log_remember(item->error);
  bool complete = item->complete;
  item->kept = false;
  pthread_mutex_unlock(&tt_host_lock);
  if (complete) tt_host_item_free(item);
  return result;
}

/* ---- Communicators ---- */

static ncclResult_t wait_for_items(struct ncclComm *comm)
{
  while (atomic_load(&comm->host_pending) > 0) {
    if (atomic_load(&comm->abort))
      return TT_FAIL(ncclInternalError, "rank %d: aborted, before what is on its streams was complete", comm->rank);
    tt_host_wait_done(LOOK_MS);
  }
  return ncclSuccess;
}

ncclResult_t tt_host_drain(struct ncclComm *comm)
{
  if (atomic_load(&comm->host_pending) == 0) return ncclSuccess;
  pthread_mutex_lock(&tt_host_lock);
  ncclResult_t result = wait_for_items(comm);
  pthread_mutex_unlock(&tt_host_lock);
  return result;
}

ncclResult_t tt_host_not_begun(const struct ncclComm *comm)
{
  int failed = atomic_load(&comm->async_error);
  if (failed != ncclSuccess)
    return TT_FAIL(failed, "rank %d: an operation on a host stream was not begun, since the communicator failed: %s",
                   comm->rank, comm->error_text);
  if (atomic_load(&comm->abort))
    return TT_FAIL(ncclInternalError, "rank %d: an operation on a host stream was not begun: aborted", comm->rank);
  return ncclSuccess;
}

/* Takes the communicator's part out of an item that has not begun, and notes that where it was to run. `failed`: said
 * at the first such item. */
static void drop_part(struct tt_host_item *item, struct ncclComm *comm, ncclResult_t *failed)
{
  int p = 0;
  if (item->running) return; /* its thread may change the parts */
  while (p < item->nparts && item->parts[p].comm != comm) p++;
  if (p == item->nparts) return;
  tt_plan_free_tasks(item->parts[p].tasks);
  item->parts[p] = item->parts[--item->nparts];
  comm->host_entered--; /* all that come after it go too */
  atomic_fetch_sub(&comm->host_pending, 1);
  if (*failed == ncclSuccess) *failed = tt_host_not_begun(comm);
  keep_failure(item, *failed);
  for (int s = 0; s < item->nstreams; s++) tt_host_stream_note(item->places[s].stream, *failed);
}

static void drop_parts(struct ncclComm *comm)
{
  ncclResult_t failed = ncclSuccess;
  for (struct tt_host_stream *stream = tt_host_streams; stream != NULL; stream = stream->next)
    for (struct tt_host_place *place = stream->first; place != NULL; place = place->next)
      drop_part(place->item, comm, &failed);
  for (struct tt_host_stream *stream = tt_host_streams; stream != NULL; stream = stream->next) wake_lead(stream);
}

bool tt_host_abort(struct ncclComm *comm, int timeout_ms)
{
  if (atomic_load(&comm->host_pending) == 0) return false;
  pthread_mutex_lock(&tt_host_lock);
  drop_parts(comm);
  tt_host_wake_waiters();
  tt_deadline end = tt_deadline_in_ms(timeout_ms);
  while (atomic_load(&comm->host_pending) > 0 && !tt_deadline_passed(end)) tt_host_wait_done(LOOK_MS);
  pthread_mutex_unlock(&tt_host_lock);
  return true;
}

bool tt_host_leave(struct ncclComm *comm)
{
  pthread_mutex_lock(&tt_host_lock);
  bool idle = atomic_load(&comm->host_pending) == 0;
  comm->host_abandoned = !idle;
  pthread_mutex_unlock(&tt_host_lock);
  return idle;
}
