/* The service thread of a bootstrap object: accepts, dials, reads and writes for all its links. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "base/thread.h"
#include "bootstrap/internal.h"

/* Clients that have not proved anything yet. */
#define UNPROVEN_MAX 128
/* A peer's listener is open before its address is known: refused for so long means that the peer is gone. */
#define REFUSED_MS 3000
/* How long a goodbye may take. */
#define LEAVE_MS 2000
/* After an abort nobody is waited for, but what was said before, perhaps why, is still sent. */
#define ABORT_LEAVE_MS 300
/* Messages taken from one link before the others have their turn. */
#define BURST 64
#define EXHAUSTED_MS 100

static _Thread_local const struct tt_bootstrap *serving; /* the object whose service thread this is */

bool tt_service_is_me(const struct tt_bootstrap *b)
{
  return serving == b;
}

void tt_service_wake(struct tt_bootstrap *b)
{
  uint64_t one = 1;
  if (b->started && write(b->wake, &one, sizeof(one)) < 0) return; /* full: it will wake anyway */
}

/* Distances of powers of two: the partners of gathers and barriers, whose links stay. */
bool tt_service_log_step(const struct tt_bootstrap *b, int peer)
{
  unsigned up = (unsigned)(peer - b->rank + b->nranks) % (unsigned)b->nranks, down = (unsigned)b->nranks - up;
  return (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

/* On success the entry owns the link. */
static ncclResult_t add_link(struct tt_bootstrap *b, struct tt_link *link, int peer, struct tt_service_link **out)
{
  if (b->nlinks == b->links_room) {
    int room = b->links_room ? 2 * b->links_room : 16;
    struct tt_service_link **more = realloc(b->links, (size_t)room * sizeof(*more));
    if (!more) return TT_FAIL(ncclSystemError, "out of memory for %d bootstrap connections", room);
    b->links = more;
    b->links_room = room;
  }
  struct tt_service_link *l;
  TT_TRY(TT_CALLOC(&l, 1));
  l->link = link;
  l->peer = peer;
  l->made_ns = tt_timer_ns();
  b->links[b->nlinks++] = l;
  if (out) *out = l;
  return ncclSuccess;
}

ncclResult_t tt_service_dial_now(struct tt_bootstrap *b, int peer)
{
  struct tt_peer *p = &b->peers[peer];
  struct tt_link *link = NULL;
  struct tt_link_patience patience = {.deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000),
                                      .refused_ms = REFUSED_MS};
  TT_TRY(tt_link_dial(&p->endpoint, &b->listener.endpoint.addresses[0], &b->key, TT_PURPOSE_PEER, b->nonce, b->rank,
                      &patience, &link));
  ncclResult_t result = add_link(b, link, peer, NULL);
  if (result != ncclSuccess) {
    tt_link_free(link);
    return result;
  }
  if (link->fd >= 0) b->newest_fd = link->fd;
  p->dialling = true;
  tt_service_wake(b);
  return ncclSuccess;
}

ncclResult_t tt_service_dial(struct tt_bootstrap *b, int peer)
{
  struct tt_peer *p = &b->peers[peer];
  if (p->out || p->dialling || p->deferred || p->closing || p->dead || p->left) return ncclSuccess;
  if (p->endpoint.count == 0)
    return TT_FAIL(ncclInternalError, "rank %d does not know yet where rank %d listens", b->rank, peer);
  return tt_demand_defer(b, peer) ? ncclSuccess : tt_service_dial_now(b, peer);
}

static enum tt_challenge_status lookup(void *context, const struct tt_hello *hello, struct tt_key *key)
{
  struct tt_bootstrap *b = context;
  if (hello->purpose != TT_PURPOSE_PEER || hello->nonce != b->nonce || hello->rank >= (uint32_t)b->nranks ||
      hello->rank == (uint32_t)b->rank)
    return TT_CHALLENGE_UNKNOWN;
  *key = b->key;
  return TT_CHALLENGE_OK;
}

static void drop(struct tt_bootstrap *b, struct tt_service_link *l, const char *why)
{
  b->stats.dropped++;
  l->gone = true;
  TT_INFO(TT_BOOTSTRAP, "Bootstrap: rank %d dropped connection %llu: %s", b->rank, (unsigned long long)b->stats.dropped,
          why);
}

/* Makes room among the clients that have proved nothing: the oldest goes. */
static bool drop_oldest_unproven(struct tt_bootstrap *b, int max, const char *why)
{
  struct tt_service_link *oldest = NULL;
  int unproven = 0;
  for (int i = 0; i < b->nlinks; i++) {
    if (b->links[i]->peer >= 0 || b->links[i]->gone) continue;
    if (!oldest) oldest = b->links[i];
    unproven++;
  }
  if (!oldest || unproven < max) return false;
  drop(b, oldest, why);
  tt_socket_close(&oldest->link->fd);
  return true;
}

static void accept_all(struct tt_bootstrap *b, int listen_fd)
{
  bool exhausted = false, any = false;
  int fd;
  while ((fd = tt_listener_accept(listen_fd, &exhausted)) >= 0) {
    struct tt_link *link = NULL;
    any = true;
    drop_oldest_unproven(b, UNPROVEN_MAX, "too many clients that prove nothing");
    b->newest_fd = fd;
    if (tt_link_adopt(fd, lookup, b, &link) != ncclSuccess)
      close(fd);
    else if (add_link(b, link, -1, NULL) != ncclSuccess)
      tt_link_free(link);
  }
  if (!tt_shortage_note(&b->shortage, exhausted && !any)) return;
  if (!drop_oldest_unproven(b, 1, "out of file descriptors"))
    TT_INFO(TT_BOOTSTRAP, "Bootstrap: rank %d is out of file descriptors (ulimit -n); a peer has to wait", b->rank);
  b->accept_after = tt_deadline_in_ms(EXHAUSTED_MS);
}

/* Whether an older link to the peer closes, whose messages come first. */
static bool holds_back(const struct tt_bootstrap *b, const struct tt_service_link *l)
{
  return b->peers[l->peer].closing && !(l->closing && l->link->dialled);
}

static void receive(struct tt_bootstrap *b, struct tt_service_link *l)
{
  while (l->held && !l->gone && !holds_back(b, l)) {
    struct tt_message *message = l->held;
    l->held = message->next;
    tt_peer_message(b, l, message);
  }
  for (int i = 0; i < BURST && l->link->state == TT_LINK_READY && !l->gone; i++) {
    struct tt_message *message = tt_link_receive(l->link);
    if (!message) break;
    l->link->used_ns = tt_timer_ns();
    tt_liveness_heard(l);
    /* Both may close a link to the other, and each waits for the other's answer. */
    if (holds_back(b, l) && message->tag != TT_TAG_CLOSE)
      tt_mail_append(&l->held, &l->held_tail, message);
    else
      tt_peer_message(b, l, message);
  }
}

static void serve(struct tt_bootstrap *b, struct tt_service_link *l)
{
  struct tt_link *link = l->link;
  size_t queued = link->queued;
  if (l->gone) return;
  tt_link_progress(link);
  if (link->queued < queued) pthread_cond_broadcast(&b->changed);
  if (link->state == TT_LINK_READY && !l->ready) {
    l->ready = true;
    l->peer = (int)(link->dialled ? l->peer : (int)link->hello.rank);
    tt_peer_ready(b, l);
  }
  if (l->ready) receive(b, l);
  if (link->state == TT_LINK_CLOSED && !l->gone && !l->held) {
    if (l->peer < 0)
      drop(b, l, link->why);
    else
      tt_peer_ended(b, l);
    l->gone = true;
  }
}

static void free_gone(struct tt_bootstrap *b)
{
  int kept = 0;
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (!l->gone) {
      b->links[kept++] = l;
      continue;
    }
    if (l->peer >= 0 && b->peers[l->peer].out == l) b->peers[l->peer].out = NULL;
    tt_mail_free(l->held);
    tt_link_free(l->link);
    free(l);
  }
  b->nlinks = kept;
}

/* Whether a partner that will come, since it needs this rank, has not heard yet of the death because of which this rank
 * gave up. It would blame this one. */
static bool has_partner_to_tell(const struct tt_bootstrap *b)
{
  if (!b->gave_up || b->first_dead < 0) return false;
  for (int r = 0; r < b->nranks; r++) {
    const struct tt_peer *p = &b->peers[r];
    if (r != b->rank && !p->dead && !p->left && !p->told && tt_service_log_step(b, r)) return true;
  }
  return false;
}

/* Says goodbye where everything is sent; true when nothing is left to wait for. */
static bool leave(struct tt_bootstrap *b)
{
  bool done = b->ndeferred == 0, sent = done, aborted = tt_bootstrap_aborted(b);
  if (b->leave_by == 0) b->leave_by = tt_deadline_in_ms(aborted ? ABORT_LEAVE_MS : LEAVE_MS);
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (l->peer < 0) continue;
    if (l->ready && !l->said && b->gave_up) {
      tt_peer_tell_dead(b, l);
      b->peers[l->peer].told = true;
    }
    if (l->ready && !l->said && !b->peers[l->peer].waiting)
      l->said = tt_link_send(l->link, TT_TAG_LEAVE, NULL, 0) == ncclSuccess;
    if (l->ready || b->peers[l->peer].waiting) done = false;
    if (l->link->out || b->peers[l->peer].waiting) sent = false;
  }
  done = done && !has_partner_to_tell(b);
  return done || (aborted && sent) || tt_deadline_passed(b->leave_by);
}

static struct pollfd *poll_set(struct tt_bootstrap *b, nfds_t *count, int *nlisteners, tt_deadline *timer)
{
  struct pollfd *set = calloc(1 + (size_t)b->listener.count + (size_t)b->nlinks, sizeof(*set));
  nfds_t n = 0;
  *timer = b->accept_after;
  for (int i = 0; i < b->nlinks; i++) *timer = TT_MIN(*timer, b->links[i]->link->timer);
  if (!set) return NULL;
  set[n++] = (struct pollfd){.fd = b->wake, .events = POLLIN};
  if (tt_deadline_passed(b->accept_after)) b->accept_after = TT_DEADLINE_NEVER;
  bool accepting = b->accept_after == TT_DEADLINE_NEVER;
  for (int i = 0; accepting && i < b->listener.count; i++)
    set[n++] = (struct pollfd){.fd = b->listener.fds[i], .events = POLLIN};
  *nlisteners = (int)n - 1;
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    set[n++] = (struct pollfd){.fd = l->link->fd, .events = tt_link_events(l->link)};
  }
  *count = n;
  return set;
}

/* Whether there is something to do for a link whose descriptor nobody has looked at, or on which nothing came. With
 * hundreds of them, each read in vain costs as much as one that brings something. */
static bool is_due(const struct tt_service_link *l)
{
  return l->link->state == TT_LINK_CLOSED || l->held || tt_deadline_passed(l->link->timer);
}

/* Links are only added while others are looked at: the first ones are those of the set. */
static void serve_all(struct tt_bootstrap *b, const struct pollfd *polled, int npolled)
{
  for (int i = 0; i < b->nlinks; i++)
    if (i >= npolled || polled[i].revents || is_due(b->links[i])) serve(b, b->links[i]);
}

static void *run(void *arg)
{
  struct tt_bootstrap *b = arg;
  serving = b;
  pthread_mutex_lock(&b->mutex);
  while (!b->leaving || !leave(b)) {
    nfds_t count = 0;
    int nlisteners = 0, npolled = b->nlinks;
    tt_deadline timer;
    struct pollfd *set = poll_set(b, &count, &nlisteners, &timer);
    int ms = tt_deadline_poll_ms(timer, !set || b->leaving ? 20 : 1000);
    pthread_mutex_unlock(&b->mutex);
    poll(set, set ? count : 0, ms);
    uint64_t ignored;
    if (set && set[0].revents && read(b->wake, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN)
      TT_INFO(TT_BOOTSTRAP, "Bootstrap: reading an eventfd failed: %s", strerror(errno));
    pthread_mutex_lock(&b->mutex);
    if (b->handler_new) tt_peer_rehandle(b);
    for (int i = 0; set && i < nlisteners; i++)
      if (set[1 + i].revents) accept_all(b, set[1 + i].fd);
    serve_all(b, set ? set + 1 + nlisteners : NULL, set ? npolled : 0);
    free(set);
    if (!b->leaving) tt_liveness_look(b);
    free_gone(b);
    tt_demand_look(b);
  }
  for (int i = 0; i < b->nlinks; i++) b->links[i]->gone = true;
  free_gone(b);
  pthread_mutex_unlock(&b->mutex);
  return NULL;
}

ncclResult_t tt_service_start(struct tt_bootstrap *b)
{
  char name[16], hint[100];
  b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (b->wake < 0)
    return TT_FAIL(ncclSystemError, "eventfd() for the bootstrap failed: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  struct rlimit limit = {0};
  b->most_descriptors = INT_MAX;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < INT_MAX) b->most_descriptors = (int)limit.rlim_cur;
  snprintf(name, sizeof(name), "tutti-boot%d", b->rank % 10000);
  b->started = true;
  ncclResult_t result = tt_thread_start(&b->thread, name, run, b);
  if (result != ncclSuccess) b->started = false;
  return result;
}

void tt_service_stop(struct tt_bootstrap *b)
{
  if (b->started) {
    pthread_mutex_lock(&b->mutex);
    b->leaving = true;
    tt_service_wake(b);
    pthread_mutex_unlock(&b->mutex);
    pthread_join(b->thread, NULL);
    b->started = false;
  }
  tt_socket_close(&b->wake);
}
