/* Messages about captured collectives: they are kept until somebody asks for them, and answered where nobody will. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "plan/captured_internal.h"
#include "plan/watch.h"
#include "program/emit.h"

#define TAG (TT_TAG_USER + 0x3100u)
#define TAG_ALL_BITS 0xffffffffu
/* How often a wait looks for failures. */
#define LOOK_NS 20000000l

static const char declined[] = "it is not captured there, or has its buffers in windows";

static void put_head(unsigned char *message, enum tt_captured_kind kind, uint64_t number)
{
  struct tt_wire_writer w = {.data = message, .size = TT_CAPTURED_HEAD};
  tt_wire_put_int(&w, kind, 1);
  tt_wire_put_int(&w, number, 8);
}

static void decline(struct tt_captured *captured, int rank, uint64_t number)
{
  unsigned char message[TT_CAPTURED_HEAD + TT_USER_WHY] = {0};
  put_head(message, TT_CAPTURED_DECLINE, number);
  memcpy(message + TT_CAPTURED_HEAD, declined, sizeof declined);
  tt_bootstrap_notify(captured->comm->bootstrap, rank, TAG, message, sizeof message);
}

static void append(struct tt_captured *captured, struct tt_captured_note *note)
{
  struct tt_captured_note **place = &captured->notes;
  while (*place != NULL) place = &(*place)->next;
  *place = note;
  atomic_fetch_add(&captured->nnotes, 1);
  pthread_cond_broadcast(&captured->changed);
}

/* Takes the notes out that are about collectives which this rank has passed. */
static struct tt_captured_note *take_passed(struct tt_captured *captured)
{
  struct tt_captured_note *taken = NULL, **place = &captured->notes;
  uint64_t passed = atomic_load(&captured->passed);
  pthread_mutex_lock(&captured->lock);
  while (*place != NULL) {
    struct tt_captured_note *note = *place;
    if (note->number >= passed) {
      place = &note->next;
      continue;
    }
    *place = note->next;
    note->next = taken;
    taken = note;
    atomic_fetch_sub(&captured->nnotes, 1);
  }
  pthread_mutex_unlock(&captured->lock);
  return taken;
}

static void answer(struct tt_captured *captured)
{
  for (struct tt_captured_note *note = take_passed(captured), *next; note != NULL; note = next) {
    next = note->next;
    if (note->kind == TT_CAPTURED_OFFER) decline(captured, note->rank, note->number);
    free(note);
  }
}

/* On the bootstrap's service thread. Either this sees that the collective has passed, or who passes sees the note. */
static void on_message(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_captured *captured = context;
  struct tt_wire_reader r = {.data = data, .size = bytes};
  uint64_t kind = tt_wire_get_int(&r, 1), number = tt_wire_get_int(&r, 8);
  (void)tag;
  if (r.bad || kind > TT_CAPTURED_VERDICT || bytes > TT_CAPTURED_OFFER_BYTES) return;
  struct tt_captured_note *note = calloc(1, sizeof *note + bytes - r.at);
  if (note == NULL) return; /* the rank that waits for it says so */
  *note = (struct tt_captured_note){
      .rank = peer, .kind = (enum tt_captured_kind)kind, .number = number, .bytes = bytes - r.at};
  memcpy(note->data, r.data + r.at, note->bytes);
  pthread_mutex_lock(&captured->lock);
  append(captured, note);
  pthread_mutex_unlock(&captured->lock);
  if (number < atomic_load(&captured->passed)) answer(captured);
}

void tt_captured_pass(struct tt_captured *captured, uint64_t number)
{
  atomic_store(&captured->passed, number);
  if (atomic_load(&captured->nnotes) > 0) answer(captured);
}

ncclResult_t tt_captured_tell(struct tt_captured *captured, enum tt_captured_kind kind, uint64_t number,
                              const void *data, size_t bytes)
{
  const struct ncclComm *comm = captured->comm;
  unsigned char *message;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&message, TT_CAPTURED_HEAD + bytes));
  put_head(message, kind, number);
  memcpy(message + TT_CAPTURED_HEAD, data, bytes);
  for (int r = 0; r < comm->nranks && result == ncclSuccess; r++)
    if (r != comm->rank) result = tt_bootstrap_send(comm->bootstrap, r, TAG, message, TT_CAPTURED_HEAD + bytes);
  free(message);
  return result;
}

/* ---- Waiting ---- */

struct wait {
  struct tt_captured *captured;
  const struct tt_captured_step *step;
  uint32_t kinds;
  struct tt_captured_note **notes;
  uint64_t start;
  tt_deadline deadline;
  int warned;
};

/* Takes what has come. Whether something is missing. Locked. */
static bool collect(const struct wait *wait)
{
  const struct ncclComm *comm = wait->captured->comm;
  for (struct tt_captured_note **place = &wait->captured->notes; *place != NULL;) {
    struct tt_captured_note *note = *place;
    bool wanted =
        note->number == wait->step->number && (wait->kinds & 1u << note->kind) != 0 && wait->notes[note->rank] == NULL;
    if (!wanted) {
      place = &note->next;
      continue;
    }
    *place = note->next;
    note->next = NULL;
    wait->notes[note->rank] = note;
    atomic_fetch_sub(&wait->captured->nnotes, 1);
  }
  for (int r = 0; r < comm->nranks; r++)
    if (r != comm->rank && wait->notes[r] == NULL) return true;
  return false;
}

/* "1, 3" */
static void list_missing(const struct wait *wait, char *text, size_t size)
{
  const struct ncclComm *comm = wait->captured->comm;
  size_t at = 0;
  text[0] = '\0';
  for (int r = 0; r < comm->nranks; r++) {
    if (r == comm->rank || wait->notes[r] != NULL) continue;
    int wrote = snprintf(text + at, size - at, "%s%d", at > 0 ? ", " : "", r);
    at = TT_MIN(at + (size_t)wrote, size - 1);
  }
}

static void warn_if_due(struct wait *wait)
{
  const struct ncclComm *comm = wait->captured->comm;
  uint64_t seconds = (uint64_t)tt_param_int(TT_PARAM_TUTTI_INIT_WARN) << TT_MIN(wait->warned, 10);
  uint64_t waited = tt_timer_ns() - wait->start;
  char missing[160];
  if (seconds == 0 || waited < seconds * 1000000000u) return;
  wait->warned++;
  list_missing(wait, missing, sizeof missing);
  TT_WARN("rank %d captures %s (collective %llu) and has waited %llu s for rank %s to come to it, to use buffers in "
          "place: all ranks must call it, and one thread with several ranks must do so in one group; "
          "NCCL_GRAPH_REGISTER=0 does without",
          comm->rank, tt_collective_name(wait->step->task->collective), (unsigned long long)wait->step->number,
          (unsigned long long)(waited / 1000000000u), missing);
}

/* Whether it is in vain. Not locked. */
static ncclResult_t look(const struct wait *wait)
{
  struct ncclComm *comm = wait->captured->comm;
  const char *name = tt_collective_name(wait->step->task->collective);
  char missing[160];
  if (atomic_load(&comm->abort))
    return TT_FAIL(ncclInternalError, "rank %d: aborted while it captured %s", comm->rank, name);
  if (atomic_load(&comm->revoked))
    return TT_FAIL(ncclInvalidUsage, "rank %d: the communicator was revoked while it captured %s", comm->rank, name);
  TT_TRY(tt_health_check(comm->health, true));
  if (!tt_deadline_passed(wait->deadline)) return ncclSuccess;
  list_missing(wait, missing, sizeof missing);
  return TT_FAIL(ncclRemoteError,
                 "rank %d captures %s (collective %llu) and waited in vain for rank %s to come to it; "
                 "NCCL_BOOTSTRAP_TIMEOUT is %lld s, and NCCL_GRAPH_REGISTER=0 does without",
                 comm->rank, name, (unsigned long long)wait->step->number, missing,
                 (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
}

/* One that is missing and has left, or -1. Its message may still be found. */
static int find_left(const struct wait *wait)
{
  const struct ncclComm *comm = wait->captured->comm;
  for (int r = 0; r < comm->nranks; r++)
    if (r != comm->rank && wait->notes[r] == NULL && tt_bootstrap_left(comm->bootstrap, r)) return r;
  return -1;
}

static ncclResult_t say_left(const struct wait *wait, int rank)
{
  return TT_FAIL(ncclRemoteError, "rank %d captures %s and waits for rank %d, which has left the communicator",
                 wait->captured->comm->rank, tt_collective_name(wait->step->task->collective), rank);
}

/* Whether nothing came. */
static bool wait_a_little(struct tt_captured *captured)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  return pthread_cond_timedwait(&captured->changed, &captured->lock, &until) == ETIMEDOUT;
}

static ncclResult_t wait_for_all(struct wait *wait)
{
  struct tt_captured *captured = wait->captured;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&captured->lock);
  while (result == ncclSuccess && collect(wait)) {
    if (!wait_a_little(captured)) continue;
    pthread_mutex_unlock(&captured->lock);
    warn_if_due(wait);
    result = look(wait);
    int left = find_left(wait);
    pthread_mutex_lock(&captured->lock);
    if (result == ncclSuccess && collect(wait) && left >= 0 && wait->notes[left] == NULL) result = say_left(wait, left);
  }
  pthread_mutex_unlock(&captured->lock);
  return result;
}

ncclResult_t tt_captured_wait(struct tt_captured *captured, const struct tt_captured_step *step, uint32_t kinds,
                              struct tt_captured_note **notes)
{
  struct wait wait = {.captured = captured,
                      .step = step,
                      .kinds = kinds,
                      .notes = notes,
                      .start = tt_timer_ns(),
                      .deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000)};
  for (int r = 0; r < captured->comm->nranks; r++) notes[r] = NULL;
  ncclResult_t result = wait_for_all(&wait);
  for (int r = 0; r < captured->comm->nranks && result != ncclSuccess; r++) {
    free(notes[r]);
    notes[r] = NULL;
  }
  return result;
}

/* ---- Life ---- */

ncclResult_t tt_captured_mail_open(struct tt_captured *captured)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&captured->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&captured->lock, NULL);
  return tt_bootstrap_set_handler(captured->comm->bootstrap, TAG, TAG_ALL_BITS, on_message, captured);
}

void tt_captured_mail_close(struct tt_captured *captured)
{
  tt_bootstrap_set_handler(captured->comm->bootstrap, TAG, TAG_ALL_BITS, NULL, NULL);
  for (struct tt_captured_note *note = captured->notes, *next; note != NULL; note = next) {
    next = note->next;
    free(note);
  }
  pthread_cond_destroy(&captured->changed);
  pthread_mutex_destroy(&captured->lock);
}
