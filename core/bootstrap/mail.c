/* Tagged messages as a user thread sees them: send queues, receive waits. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "bootstrap/internal.h"

/* A send waits while so much for the same peer has not left yet. */
#define QUEUED_MAX ((size_t)16 << 20)
/* The abort flag is looked at so often. */
#define TICK_MS 20
/* Who waits for a peer that never connected connects to it, so that its end is noticed. */
#define WATCH_MS 200

void tt_mail_append(struct tt_message **head, struct tt_message **tail, struct tt_message *message)
{
  message->next = NULL;
  if (*head)
    (*tail)->next = message;
  else
    *head = message;
  *tail = message;
}

void tt_mail_free(struct tt_message *head)
{
  while (head) {
    struct tt_message *next = head->next;
    free(head);
    head = next;
  }
}

static void tick(struct tt_bootstrap *b)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += TICK_MS * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  pthread_cond_timedwait(&b->changed, &b->mutex, &until);
}

static ncclResult_t check_peer(const struct tt_bootstrap *b, int peer)
{
  if (peer >= 0 && peer < b->nranks) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "bootstrap message for rank %d outside 0..%d", peer, b->nranks - 1);
}

static struct tt_message *copy_message(uint32_t tag, const void *data, size_t bytes)
{
  struct tt_message *message = malloc(sizeof(*message) + bytes);
  if (!message) return NULL;
  message->next = NULL;
  message->tag = tag;
  message->bytes = bytes;
  if (bytes) memcpy(message->data, data, bytes);
  return message;
}

static ncclResult_t gone(const struct tt_bootstrap *b, int peer, const char *doing)
{
  if (b->peers[peer].dead)
    return TT_FAIL(ncclRemoteError, "rank %d cannot %s rank %d: rank %d %s", b->rank, doing, peer, peer,
                   peer == b->first_dead ? b->dead_why : "is gone, as another rank says");
  /* It left because it knew of a death, most likely. */
  if (b->first_dead >= 0)
    return TT_FAIL(ncclRemoteError, "rank %d cannot %s rank %d, which has left the communicator: rank %d %s", b->rank,
                   doing, peer, b->first_dead, b->dead_why);
  return TT_FAIL(ncclRemoteError, "rank %d cannot %s rank %d: rank %d has left the communicator", b->rank, doing, peer,
                 peer);
}

/* Keeps a message for a link that is not there yet. */
static ncclResult_t keep(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                         enum tt_mail_kind kind)
{
  struct tt_peer *p = &b->peers[peer];
  struct tt_message *message = copy_message(tag, data, bytes);
  if (!message) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", bytes);
  if (peer == b->rank) {
    tt_mail_append(&p->inbox, &p->inbox_tail, message);
    pthread_cond_broadcast(&b->changed);
    return ncclSuccess;
  }
  if (kind != TT_MAIL_AWAITED) {
    ncclResult_t result = tt_service_dial(b, peer);
    if (result != ncclSuccess) {
      free(message);
      return result;
    }
  }
  tt_mail_append(&p->waiting, &p->waiting_tail, message);
  p->waiting_bytes += bytes;
  return ncclSuccess;
}

static size_t queued(const struct tt_peer *p)
{
  return p->waiting_bytes + (p->out ? p->out->link->queued : 0);
}

ncclResult_t tt_mail_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes,
                          enum tt_mail_kind kind)
{
  ncclResult_t result = ncclSuccess;
  TT_TRY(check_peer(b, peer));
  if (bytes > TT_MESSAGE_MAX)
    return TT_FAIL(ncclInvalidArgument, "a bootstrap message of %zu bytes is longer than the limit of 1 GiB", bytes);
  struct tt_peer *p = &b->peers[peer];
  tt_deadline deadline = tt_gather_deadline();
  pthread_mutex_lock(&b->mutex);
  while (!p->dead && !p->left && queued(p) > QUEUED_MAX && !tt_service_is_me(b)) {
    if (tt_bootstrap_aborted(b)) {
      result = TT_FAIL(ncclInternalError, "aborted while rank %d sent to rank %d", b->rank, peer);
      goto out;
    }
    if (tt_deadline_passed(deadline)) {
      result = TT_FAIL(ncclRemoteError,
                       "rank %d takes no messages: %zu bytes for it could not leave rank %d within "
                       "%lld s (NCCL_BOOTSTRAP_TIMEOUT)",
                       peer, queued(p), b->rank, (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
      goto out;
    }
    tt_liveness_wait(b);
    tick(b);
  }
  bool optional = kind == TT_MAIL_OPTIONAL || kind == TT_MAIL_NOTICE;
  if (!p->out && !p->dialling && !p->waiting) p->optional = optional;
  if (kind == TT_MAIL_NEEDED) p->optional = false;
  if (p->dead || p->left || (optional && p->absent))
    result = kind == TT_MAIL_NOTICE ? ncclSuccess : gone(b, peer, "send to");
  else if (!p->out || p->waiting)
    result = keep(b, peer, tag, data, bytes, kind);
  else {
    p->out->link->used_ns = tt_timer_ns();
    result = tt_link_send(p->out->link, tag, data, bytes);
    if (p->out->link->out) tt_service_wake(b);
  }
out:
  pthread_mutex_unlock(&b->mutex);
  return result;
}

static struct tt_message *take(struct tt_peer *p, uint32_t tag)
{
  struct tt_message *before = NULL;
  for (struct tt_message *m = p->inbox; m; before = m, m = m->next) {
    if (m->tag != tag) continue;
    if (before)
      before->next = m->next;
    else
      p->inbox = m->next;
    if (p->inbox_tail == m) p->inbox_tail = before;
    return m;
  }
  return NULL;
}

/* The same of a call's messages; what earlier calls left goes. `*later`: the call of one that came too early, or 0. */
static struct tt_message *take_of_call(struct tt_peer *p, uint32_t tag, const struct tt_bootstrap_call *call,
                                       uint64_t *later)
{
  *later = 0;
  for (;;) {
    const struct tt_message *next = p->inbox;
    while (next && next->tag != tag) next = next->next;
    uint64_t number = next && next->bytes >= TT_CALL_BYTES ? tt_wire_get_u64(next->data) : 0;
    if (number > call->number) *later = number;
    if (!next || *later) return NULL;
    struct tt_message *message = take(p, tag);
    if (number == call->number) return message;
    free(message);
  }
}

/* A rank's messages come in the order of its calls, so it was not in this one, or left it before this message: as it
 * may have said. */
static ncclResult_t too_early(const struct tt_bootstrap *b, int peer, const struct tt_bootstrap_call *call,
                              uint64_t later)
{
  TT_TRY(tt_calls_check(b, call));
  return TT_FAIL(ncclInvalidUsage,
                 "%s: rank %d is in call %llu of it on this communicator and waits for rank %d, which is in call %llu: "
                 "all ranks must make the same calls in the same order, and make one anew that failed on any of them",
                 call->function, b->rank, (unsigned long long)call->number, peer, (unsigned long long)later);
}

/* A dead rank of the scope, or -1. */
static int dead_in(const struct tt_bootstrap *b, struct tt_mail_scope scope)
{
  if (b->first_dead < 0 || scope.count == 0) return -1;
  if (scope.count < 0) return b->first_dead;
  for (int i = 0; i < scope.count; i++)
    if (b->peers[scope.ranks[i]].dead) return scope.ranks[i];
  return -1;
}

/* Why the wait must end without a message. */
static ncclResult_t hopeless(struct tt_bootstrap *b, int peer, struct tt_mail_scope scope, tt_deadline deadline)
{
  const struct tt_peer *p = &b->peers[peer];
  char hint[100];
  int dead = dead_in(b, scope);
  if (dead >= 0 || p->dead || (p->left && p->links == 0 && b->first_dead >= 0)) b->gave_up = true;
  if (dead >= 0)
    return TT_FAIL(ncclRemoteError, "rank %d gave up an exchange among all ranks: rank %d %s", b->rank, dead,
                   dead == b->first_dead ? b->dead_why : "is gone, as another rank says");
  if (scope.call) TT_TRY(tt_calls_check(b, scope.call));
  if (p->dead || (p->left && p->links == 0)) return gone(b, peer, "receive from");
  if (tt_bootstrap_aborted(b))
    return TT_FAIL(ncclInternalError, "aborted while rank %d waited for rank %d", b->rank, peer);
  if (tt_shortage_lasts(&b->shortage))
    return TT_FAIL(ncclSystemError,
                   "rank %d waits for a message of rank %d, and cannot accept a connection of another rank: no "
                   "descriptors are left%s",
                   b->rank, peer, tt_host_file_hint(EMFILE, hint, sizeof(hint)));
  if (tt_deadline_passed(deadline))
    return TT_FAIL(ncclRemoteError,
                   "rank %d waited in vain for a message of rank %d, which is alive but late or itself "
                   "waits for another rank; NCCL_BOOTSTRAP_TIMEOUT is %lld s",
                   b->rank, peer, (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT));
  return ncclSuccess;
}

/* One line for who wonders why nothing happens, after TUTTI_INIT_WARN and then after twice the time again. */
static void warn_late(const struct tt_bootstrap *b, int peer, uint64_t waited_ns, int *warned)
{
  uint64_t seconds = (uint64_t)tt_param_int(TT_PARAM_TUTTI_INIT_WARN) << TT_MIN(*warned, 10);
  if (seconds == 0 || waited_ns < seconds * 1000000000u) return;
  (*warned)++;
  TT_WARN("rank %d has waited %llu s for a message of rank %d, which is late or itself waits for another rank", b->rank,
          (unsigned long long)(waited_ns / 1000000000u), peer);
}

ncclResult_t tt_mail_receive(struct tt_bootstrap *b, int peer, uint32_t tag, struct tt_mail_scope scope,
                             tt_deadline deadline, struct tt_message **message)
{
  ncclResult_t result = ncclSuccess;
  *message = NULL;
  TT_TRY(check_peer(b, peer));
  struct tt_peer *p = &b->peers[peer];
  uint64_t start = tt_timer_ns();
  uint64_t later = 0;
  int warned = 0;
  pthread_mutex_lock(&b->mutex);
  p->wanted++;
  while (!(*message = scope.call ? take_of_call(p, tag, scope.call, &later) : take(p, tag))) {
    if (later) TT_TRY_GOTO(too_early(b, peer, scope.call, later), result, out);
    TT_TRY_GOTO(hopeless(b, peer, scope, deadline), result, out);
    tt_liveness_wait(b);
    warn_late(b, peer, tt_timer_ns() - start, &warned);
    if (p->links == 0 && peer != b->rank && p->endpoint.count && tt_timer_ns() - start > WATCH_MS * 1000000ull) {
      p->optional = false;
      TT_TRY_GOTO(tt_service_dial(b, peer), result, out);
    }
    tick(b);
  }
out:
  p->wanted--;
  pthread_mutex_unlock(&b->mutex);
  return result;
}

/* Hands the contents of a message over as memory of their own. */
static ncclResult_t unwrap(struct tt_message *message, void **data, size_t *bytes)
{
  *bytes = message->bytes;
  *data = malloc(message->bytes ? message->bytes : 1);
  if (*data && message->bytes) memcpy(*data, message->data, message->bytes);
  size_t lost = message->bytes;
  free(message);
  if (!*data) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", lost);
  return ncclSuccess;
}

ncclResult_t tt_bootstrap_send(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes)
{
  if (tag < TT_TAG_USER) return TT_FAIL(ncclInternalError, "message tag 0x%x belongs to the bootstrap", tag);
  return tt_mail_send(b, peer, tag, data, bytes, TT_MAIL_NEEDED);
}

ncclResult_t tt_bootstrap_send_unless_left(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data,
                                           size_t bytes)
{
  return tt_mail_send(b, peer, tag, data, bytes, TT_MAIL_OPTIONAL);
}

ncclResult_t tt_bootstrap_recv(struct tt_bootstrap *b, int peer, uint32_t tag, void **data, size_t *bytes,
                               tt_deadline deadline)
{
  struct tt_message *message;
  *data = NULL;
  *bytes = 0;
  TT_TRY(tt_mail_receive(b, peer, tag, (struct tt_mail_scope){.count = 0}, deadline, &message));
  return unwrap(message, data, bytes);
}

ncclResult_t tt_bootstrap_try_recv(struct tt_bootstrap *b, int peer, uint32_t tag, void **data, size_t *bytes)
{
  *data = NULL;
  *bytes = 0;
  TT_TRY(check_peer(b, peer));
  struct tt_peer *p = &b->peers[peer];
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&b->mutex);
  struct tt_message *message = take(p, tag);
  if (!message && (p->dead || (p->left && p->links == 0))) result = gone(b, peer, "receive from");
  pthread_mutex_unlock(&b->mutex);
  return message ? unwrap(message, data, bytes) : result;
}

ncclResult_t tt_bootstrap_set_handler(struct tt_bootstrap *b, uint32_t tag, uint32_t tag_mask,
                                      tt_bootstrap_handler *handler, void *context)
{
  struct tt_handler *place = NULL;
  pthread_mutex_lock(&b->mutex);
  for (int i = 0; i < TT_HANDLERS; i++) {
    struct tt_handler *known = &b->handlers[i];
    bool same = known->call && known->tag == (tag & tag_mask) && known->mask == tag_mask;
    if (same || (!place && !known->call)) place = known;
    if (same) break;
  }
  if (place) *place = (struct tt_handler){.call = handler, .context = context, .tag = tag & tag_mask, .mask = tag_mask};
  if (place && handler) b->handler_new = true;
  while (!handler && b->handling && !tt_service_is_me(b)) tick(b);
  tt_service_wake(b);
  pthread_mutex_unlock(&b->mutex);
  return place ? ncclSuccess : TT_FAIL(ncclInternalError, "more than %d handlers of bootstrap messages", TT_HANDLERS);
}

void tt_bootstrap_notify(struct tt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t bytes)
{
  if (peer >= 0 && peer < b->nranks) (void)tt_mail_send(b, peer, tag, data, bytes, TT_MAIL_NOTICE);
}

bool tt_bootstrap_dead(struct tt_bootstrap *b, int *rank, char *why, size_t why_size)
{
  pthread_mutex_lock(&b->mutex);
  tt_liveness_wait(b);
  bool dead = b->first_dead >= 0;
  if (dead) {
    *rank = b->first_dead;
    snprintf(why, why_size, "%s", b->dead_why);
  }
  pthread_mutex_unlock(&b->mutex);
  return dead;
}

bool tt_bootstrap_dead_among(struct tt_bootstrap *b, const int *ranks, int nranks, int *rank, char *why,
                             size_t why_size)
{
  struct tt_mail_scope scope = {.ranks = ranks, .count = nranks};
  pthread_mutex_lock(&b->mutex);
  tt_liveness_wait(b);
  int dead = dead_in(b, scope);
  if (dead >= 0) {
    *rank = dead;
    snprintf(why, why_size, "%s", dead == b->first_dead ? b->dead_why : "is gone, as another rank says");
  }
  pthread_mutex_unlock(&b->mutex);
  return dead >= 0;
}

bool tt_bootstrap_left(struct tt_bootstrap *b, int rank)
{
  pthread_mutex_lock(&b->mutex);
  bool left = rank >= 0 && rank < b->nranks && (b->peers[rank].left || b->peers[rank].absent);
  pthread_mutex_unlock(&b->mutex);
  return left;
}
