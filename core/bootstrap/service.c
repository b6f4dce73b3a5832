/* The service thread of a bootstrap object: accepts, dials, reads and writes for all its links. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "base/thread.h"
#include "bootstrap/internal.h"

/* Clients that have not proved anything yet. */
#define UNPROVEN_MAX 128
/* A peer's listener is open before its address is known: refused for so long means that the peer is gone. */
#define REFUSED_MS 3000
/* Links made on demand are closed after so long without a message, or at once when there are more. */
#define IDLE_MS 30000
#define ON_DEMAND_MAX 64
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

ncclResult_t tt_service_dial(struct tt_bootstrap *b, int peer)
{
  struct tt_peer *p = &b->peers[peer];
  struct tt_link *link = NULL;
  if (p->out || p->dialling || p->closing || p->dead || p->left) return ncclSuccess;
  if (p->endpoint.count == 0)
    return TT_FAIL(ncclInternalError, "rank %d does not know yet where rank %d listens", b->rank, peer);
  struct tt_link_patience patience = {.deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000),
                                      .refused_ms = REFUSED_MS};
  TT_TRY(tt_link_dial(&p->endpoint, &b->listener.endpoint.addresses[0], &b->key, TT_PURPOSE_PEER, b->nonce, b->rank,
                      &patience, &link));
  ncclResult_t result = add_link(b, link, peer, NULL);
  if (result != ncclSuccess) {
    tt_link_free(link);
    return result;
  }
  p->dialling = true;
  tt_service_wake(b);
  return ncclSuccess;
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
  bool exhausted = false;
  int fd;
  while ((fd = tt_listener_accept(listen_fd, &exhausted)) >= 0) {
    struct tt_link *link = NULL;
    drop_oldest_unproven(b, UNPROVEN_MAX, "too many clients that prove nothing");
    if (tt_link_adopt(fd, lookup, b, &link) != ncclSuccess)
      close(fd);
    else if (add_link(b, link, -1, NULL) != ncclSuccess)
      tt_link_free(link);
  }
  if (!exhausted) return;
  if (!drop_oldest_unproven(b, 1, "out of file descriptors"))
    TT_INFO(TT_BOOTSTRAP, "Bootstrap: rank %d is out of file descriptors (ulimit -n); a peer has to wait", b->rank);
  b->accept_after = tt_deadline_in_ms(EXHAUSTED_MS);
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
  for (int i = 0; i < BURST && link->state == TT_LINK_READY && !l->gone; i++) {
    /* While an older link to the peer closes, what it carries comes first. */
    if (b->peers[l->peer].closing && !l->closing) break;
    struct tt_message *message = tt_link_receive(link);
    if (!message) break;
    link->used_ns = tt_timer_ns();
    tt_liveness_heard(l);
    tt_peer_message(b, l, message);
  }
  if (link->state == TT_LINK_CLOSED && !l->gone) {
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
    tt_link_free(l->link);
    free(l);
  }
  b->nlinks = kept;
}

/* Asks to close links that were made on demand and are not used. */
static void close_idle(struct tt_bootstrap *b)
{
  struct tt_service_link *idlest = NULL;
  int on_demand = 0;
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (!l->ready || l->closing || l->gone || !l->link->dialled || tt_service_log_step(b, l->peer)) continue;
    on_demand++;
    if (l->link->out || b->peers[l->peer].wanted || b->peers[l->peer].closing || b->peers[l->peer].out != l) continue;
    if (!idlest || l->link->used_ns < idlest->link->used_ns) idlest = l;
  }
  if (!idlest) return;
  if (on_demand <= ON_DEMAND_MAX && tt_timer_ns() - idlest->link->used_ns < (uint64_t)IDLE_MS * 1000000) return;
  if (tt_link_send(idlest->link, TT_TAG_CLOSE, NULL, 0) != ncclSuccess) return;
  idlest->closing = b->peers[idlest->peer].closing = true;
  b->peers[idlest->peer].out = NULL;
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
  bool done = true, sent = true, aborted = tt_bootstrap_aborted(b);
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
    short events = tt_link_events(l->link);
    if (l->ready && b->peers[l->peer].closing && !l->closing) events &= (short)~POLLIN;
    set[n++] = (struct pollfd){.fd = l->link->fd, .events = events};
  }
  *count = n;
  return set;
}

static void *run(void *arg)
{
  struct tt_bootstrap *b = arg;
  serving = b;
  pthread_mutex_lock(&b->mutex);
  while (!b->leaving || !leave(b)) {
    nfds_t count = 0;
    int nlisteners = 0;
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
    free(set);
    for (int i = 0; i < b->nlinks; i++) serve(b, b->links[i]);
    if (!b->leaving) tt_liveness_look(b);
    free_gone(b);
    if (!b->leaving) close_idle(b);
  }
  for (int i = 0; i < b->nlinks; i++) b->links[i]->gone = true;
  free_gone(b);
  pthread_mutex_unlock(&b->mutex);
  return NULL;
}

ncclResult_t tt_service_start(struct tt_bootstrap *b)
{
  char name[16];
  b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (b->wake < 0) return TT_FAIL(ncclSystemError, "eventfd() for the bootstrap failed: %s", strerror(errno));
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
