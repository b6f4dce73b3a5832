/* Failure messages and the comparison of stalled operations. */
#include "health/health.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/timer.h"

#define TAG_FAILED (TT_TAG_USER + 0x1000u)
#define TAG_STALLED (TT_TAG_USER + 0x1001u)
#define TAG_LEFT (TT_TAG_USER + 0x1002u)
#define TAG_MASK 0xfffffff0u

/* Operations remembered, and told at once. A stalled rank of the host device is behind by at most what the FIFOs of its
 * neighbours hold; one that has enqueued more than these on a stream, and differs before them, is not found out. */
#define HISTORY 64
/* A rank that is gone may have sent all that is missing before. So who waits is told only when it has waited for so
 * long since the death was first seen. */
#define DEAD_NS 100000000u
/* Ranks named in a line; the rest are counted. */
#define NAMED 16
#define TEXT_BYTES 900

struct failed_message {
  int32_t result, rank; /* whose failure it is: others hand it on when they leave because of it */
  char text[TEXT_BYTES];
};

struct tt_health {
  struct tt_bootstrap *bootstrap;
  int rank, nranks;
  tt_health_describe *describe;
  tt_health_differ *differ;
  pthread_mutex_t lock; /* for what follows */
  struct tt_signature mine[HISTORY];
  uint64_t begun;              /* collectives begun: sequence numbers below it are in the history */
  uint64_t said;               /* `begun` when this rank last told what it is at */
  struct tt_signature *theirs; /* [nranks]: the latest said, ahead of this rank */
  bool *ahead;
  uint64_t *reached; /* [nranks]: collectives that the rank has said to have begun */
  int first_left;    /* of the ranks that left: the one that began the fewest collectives; -1: none left */
  uint64_t first_left_begun;
  uint64_t dead_since; /* when a rank was first seen to be gone; 0: none was */
  bool told, reported;
  bool alone;                  /* others may not know of the trouble */
  struct failed_message cause; /* what was told or heard; result is ncclSuccess while there is none */
  ncclResult_t result;
  char text[TEXT_BYTES + 300];
  _Atomic int trouble; /* `result` is set */
};

static void set_trouble(struct tt_health *health, ncclResult_t result, const char *text)
{
  if (health->result != ncclSuccess) return;
  health->result = result;
  snprintf(health->text, sizeof health->text, "%s", text);
  atomic_store(&health->trouble, 1);
}

/* Compares what `peer` says of an operation with what this rank did under the same number. Locked. */
static void compare(struct tt_health *health, int peer, const struct tt_signature *theirs)
{
  const struct tt_signature *mine = &health->mine[theirs->sequence % HISTORY];
  char a[300], b[300], fields[128], text[TEXT_BYTES];
  if (mine->sequence != theirs->sequence || memcmp(mine, theirs, sizeof *mine) == 0) return;
  health->describe(mine, a, sizeof a);
  health->describe(theirs, b, sizeof b);
  health->differ(mine, theirs, fields, sizeof fields);
  snprintf(text, sizeof text,
           "ranks disagree on collective %llu of the communicator, on its %s: rank %d called %s, rank %d called %s; "
           "all ranks must call the same collectives in the same order",
           (unsigned long long)theirs->sequence, fields, health->rank, a, peer, b);
  if (health->result == ncclSuccess) {
    /* This rank may fail and leave before it stalls long enough to tell what it is at, so it owes the others the news:
     * the peer that said what it is at has heard nothing back. */
    health->alone = true;
    if (health->cause.result == ncclSuccess) {
      health->cause.result = ncclInvalidUsage;
      health->cause.rank = health->rank;
      snprintf(health->cause.text, sizeof health->cause.text, "%s", text);
    }
  }
  set_trouble(health, ncclInvalidUsage, text);
}

static void on_signature(struct tt_health *health, int peer, const struct tt_signature *theirs)
{
  health->reached[peer] = TT_MAX(health->reached[peer], theirs->sequence + 1);
  if (theirs->sequence >= health->begun) {
    health->theirs[peer] = *theirs;
    health->ahead[peer] = true;
  } else if (health->begun - theirs->sequence <= HISTORY) {
    compare(health, peer, theirs);
  }
}

/* Any number of signatures, the oldest first. */
static void on_stalled(struct tt_health *health, int peer, const void *data, size_t bytes)
{
  struct tt_signature theirs;
  if (bytes % sizeof theirs != 0) return;
  for (size_t at = 0; at < bytes; at += sizeof theirs) {
    memcpy(&theirs, (const unsigned char *)data + at, sizeof theirs);
    on_signature(health, peer, &theirs);
  }
}

static void on_failed(struct tt_health *health, const void *data, size_t bytes)
{
  struct failed_message message;
  char text[TEXT_BYTES + 100];
  if (bytes != sizeof message) return;
  memcpy(&message, data, sizeof message);
  message.text[sizeof message.text - 1] = 0;
  if (message.rank == health->rank || message.result == ncclSuccess) return;
  snprintf(text, sizeof text, "rank %d failed: %s", message.rank, message.text);
  if (health->cause.result == ncclSuccess) health->cause = message;
  /* A mistake in usage is one on all ranks; everything else is the other rank's trouble. */
  set_trouble(health, message.result == ncclInvalidUsage ? ncclInvalidUsage : ncclRemoteError, text);
}

static void on_left(struct tt_health *health, int peer, const void *data, size_t bytes)
{
  uint64_t begun;
  if (bytes != sizeof begun) return;
  memcpy(&begun, data, sizeof begun);
  if (health->first_left >= 0 && health->first_left_begun <= begun) return;
  health->first_left = peer;
  health->first_left_begun = begun;
}

static void on_message(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_health *health = context;
  if (peer < 0 || peer >= health->nranks) return;
  pthread_mutex_lock(&health->lock);
  if (tag == TAG_FAILED) on_failed(health, data, bytes);
  if (tag == TAG_STALLED) on_stalled(health, peer, data, bytes);
  if (tag == TAG_LEFT) on_left(health, peer, data, bytes);
  pthread_mutex_unlock(&health->lock);
}

ncclResult_t tt_health_create(struct tt_bootstrap *bootstrap, int rank, int nranks, tt_health_describe *describe,
                              tt_health_differ *differ, struct tt_health **out)
{
  struct tt_health *health;
  ncclResult_t result;
  TT_TRY(TT_CALLOC(&health, 1));
  health->bootstrap = bootstrap;
  health->rank = rank;
  health->nranks = nranks;
  health->describe = describe;
  health->differ = differ;
  health->first_left = -1;
  pthread_mutex_init(&health->lock, NULL);
  TT_TRY_GOTO(TT_CALLOC(&health->theirs, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&health->ahead, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&health->reached, (size_t)nranks), result, out);
  for (int i = 0; i < HISTORY; i++) health->mine[i].sequence = UINT64_MAX;
  TT_TRY_GOTO(tt_bootstrap_set_handler(bootstrap, TAG_FAILED, TAG_MASK, on_message, health), result, out);
  *out = health;
  return ncclSuccess;
out:
  tt_health_destroy(health);
  return result;
}

void tt_health_destroy(struct tt_health *health)
{
  if (health == NULL) return;
  tt_bootstrap_set_handler(health->bootstrap, TAG_FAILED, TAG_MASK, NULL, NULL);
  pthread_mutex_destroy(&health->lock);
  free(health->theirs);
  free(health->ahead);
  free(health->reached);
  free(health);
}

void tt_health_begin(struct tt_health *health, const struct tt_signature *signature)
{
  pthread_mutex_lock(&health->lock);
  health->mine[signature->sequence % HISTORY] = *signature;
  health->begun = signature->sequence + 1;
  for (int peer = 0; peer < health->nranks; peer++) {
    if (!health->ahead[peer] || health->theirs[peer].sequence >= health->begun) continue;
    health->ahead[peer] = false;
    compare(health, peer, &health->theirs[peer]);
  }
  pthread_mutex_unlock(&health->lock);
}

/* Best effort: a rank that cannot be told finds out by itself. */
static void tell_all(struct tt_health *health, uint32_t tag, const void *data, size_t bytes)
{
  for (int i = 1; i < health->nranks; i++)
    tt_bootstrap_notify(health->bootstrap, (health->rank + i) % health->nranks, tag, data, bytes);
}

void tt_health_stalled(struct tt_health *health)
{
  struct tt_signature mine[HISTORY];
  int count = 0;
  pthread_mutex_lock(&health->lock);
  uint64_t oldest = health->begun > HISTORY ? health->begun - HISTORY : 0; /* that is remembered */
  for (uint64_t s = TT_MAX(health->said, oldest); s < health->begun; s++)
    if (health->mine[s % HISTORY].sequence == s) mine[count++] = health->mine[s % HISTORY];
  health->said = health->begun; /* once is enough for each operation */
  pthread_mutex_unlock(&health->lock);
  if (count > 0) tell_all(health, TAG_STALLED, mine, (size_t)count * sizeof *mine);
}

void tt_health_late(struct tt_health *health, uint64_t sequence, char *text, size_t size)
{
  size_t at = 0;
  int named = 0;
  text[0] = 0;
  pthread_mutex_lock(&health->lock);
  uint64_t begun = sequence == TT_HEALTH_LATEST ? health->begun : sequence + 1;
  for (int peer = 0; peer < health->nranks && at < size; peer++) {
    if (peer == health->rank || health->reached[peer] >= begun) continue;
    if (named++ < NAMED) at += (size_t)snprintf(text + at, size - at, "%s%d", at ? ", " : "", peer);
  }
  pthread_mutex_unlock(&health->lock);
  if (named > NAMED && at < size) snprintf(text + at, size - at, " and %d more", named - NAMED);
}

uint64_t tt_health_look(struct tt_health *health, uint64_t *reached)
{
  pthread_mutex_lock(&health->lock);
  uint64_t begun = health->begun;
  memcpy(reached, health->reached, (size_t)health->nranks * sizeof *reached);
  pthread_mutex_unlock(&health->lock);
  reached[health->rank] = begun;
  return begun;
}

void tt_health_leave(struct tt_health *health)
{
  pthread_mutex_lock(&health->lock);
  uint64_t begun = health->begun;
  bool fine = health->result == ncclSuccess && !health->told;
  struct failed_message cause = health->cause;
  pthread_mutex_unlock(&health->lock);
  if (!fine && cause.result == ncclSuccess) return; /* a death, which every rank finds for itself */
  uint32_t tag = fine ? TAG_LEFT : TAG_FAILED;
  const void *data = fine ? (const void *)&begun : &cause;
  size_t bytes = fine ? sizeof begun : sizeof cause;
  for (int step = 1; step < health->nranks; step *= 2) {
    int up = (health->rank + step) % health->nranks, down = (health->rank + health->nranks - step) % health->nranks;
    tt_bootstrap_notify(health->bootstrap, up, tag, data, bytes);
    if (down != up) tt_bootstrap_notify(health->bootstrap, down, tag, data, bytes);
  }
}

void tt_health_failed(struct tt_health *health, ncclResult_t result, const char *text)
{
  struct failed_message message = {.result = result, .rank = health->rank};
  snprintf(message.text, sizeof message.text, "%s", text);
  pthread_mutex_lock(&health->lock);
  /* Others know already what this rank heard from them. */
  bool told = health->told || (health->result != ncclSuccess && !health->alone);
  health->told = true;
  if (!told && health->cause.result == ncclSuccess) health->cause = message;
  pthread_mutex_unlock(&health->lock);
  if (!told) tell_all(health, TAG_FAILED, &message, sizeof message);
}

/* Also notices a rank that is gone without having said anything. */
static void look_for_dead(struct tt_health *health)
{
  int rank;
  char why[300], text[TEXT_BYTES];
  if (!tt_bootstrap_dead(health->bootstrap, &rank, why, sizeof why)) return;
  snprintf(text, sizeof text, "rank %d %s", rank, why);
  pthread_mutex_lock(&health->lock);
  uint64_t now = tt_timer_ns(); /* not before what another thread has noted */
  if (health->dead_since == 0) health->dead_since = now;
  if (now - health->dead_since >= DEAD_NS) set_trouble(health, ncclRemoteError, text);
  pthread_mutex_unlock(&health->lock);
}

/* A rank that left without the collective that this one is in. */
static void look_for_left(struct tt_health *health)
{
  char mine[300], text[TEXT_BYTES];
  pthread_mutex_lock(&health->lock);
  if (health->first_left >= 0 && health->begun > health->first_left_begun) {
    health->describe(&health->mine[(health->begun - 1) % HISTORY], mine, sizeof mine);
    snprintf(
        text, sizeof text,
        "rank %d destroyed or aborted the communicator after %llu collectives, and rank %d waits for it in %s; all "
        "ranks must call the same collectives in the same order",
        health->first_left, (unsigned long long)health->first_left_begun, health->rank, mine);
    if (health->result == ncclSuccess) health->alone = true; /* only the nearest ranks of the one that left know */
    set_trouble(health, ncclInvalidUsage, text);
  }
  pthread_mutex_unlock(&health->lock);
}

ncclResult_t tt_health_check(struct tt_health *health, bool idle)
{
  if (idle) look_for_dead(health);
  if (idle) look_for_left(health);
  if (!atomic_load_explicit(&health->trouble, memory_order_acquire)) return ncclSuccess;
  pthread_mutex_lock(&health->lock);
  bool first = !health->reported;
  health->reported = true;
  pthread_mutex_unlock(&health->lock);
  /* Written once before `trouble` was set, so it can be read now. */
  if (first) return TT_FAIL(health->result, "%s", health->text);
  tt_log_remember(health->text);
  return health->result;
}
