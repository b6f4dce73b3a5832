/* The root service: one thread that accepts and polls the clients of all unique ids made in this process. See root.h.
 *
 * State is global since the service belongs to the process; it is touched only in this file, under one mutex. */
#include "bootstrap/root.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "base/thread.h"
#include "bootstrap/root_internal.h"
#include "bootstrap/used.h"

/* Clients that have not proved anything yet; the oldest goes when one more comes. */
#define UNPROVEN_MAX 256
/* Pause of accepting when descriptors ran out. */
#define EXHAUSTED_MS 100
/* How long ranks that are on their way are waited for after a failure, as long as a goodbye may take elsewhere. */
#define LATE_MS 2000
#define LATE_LOOK_USEC 5000

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t ended;
  pthread_t thread;
  bool running, ending, joined;
  int wake;  /* eventfd */
  int spare; /* an eventfd that is only held, to have a descriptor when there are no others; -1: it was needed */
  struct tt_listener listener;
  struct tt_root_id *ids;
  struct tt_root_client *clients; /* newest first */
  uint64_t dropped;
  tt_deadline accept_after;
  struct tt_shortage shortage;
  uint64_t warned_ns; /* of which shortage */
} root = {.mutex = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER, .wake = -1, .spare = -1};

static struct tt_root_id *find(uint64_t nonce)
{
  struct tt_root_id *id = root.ids;
  while (id && id->nonce != nonce) id = id->next;
  return id;
}

static enum tt_challenge_status lookup(void *context, const struct tt_hello *hello, struct tt_key *key)
{
  (void)context;
  if (hello->purpose != TT_PURPOSE_CHECKIN) return TT_CHALLENGE_UNKNOWN;
  struct tt_root_id *id = find(hello->nonce);
  if (id) *key = id->key;
  return id || tt_used_find(hello->nonce, key) ? TT_CHALLENGE_OK : TT_CHALLENGE_UNKNOWN;
}

static void drop(const struct tt_root_client *client, const char *why)
{
  root.dropped++;
  TT_INFO(TT_BOOTSTRAP, "Bootstrap root: dropped connection %llu: %s", (unsigned long long)root.dropped,
          client && client->link->why[0] ? client->link->why : why);
}

static void free_client(struct tt_root_client *client)
{
  if (client->id) tt_root_id_left(client->id, client);
  tt_link_free(client->link);
  free(client);
}

/* Makes room among the clients that have proved nothing; the oldest is the last in the list. */
static bool drop_oldest_unproven(const char *why)
{
  struct tt_root_client **oldest = NULL;
  for (struct tt_root_client **at = &root.clients; *at; at = &(*at)->next)
    if ((*at)->link->state < TT_LINK_READY) oldest = at;
  if (!oldest) return false;
  struct tt_root_client *client = *oldest;
  *oldest = client->next;
  drop(client, why);
  free_client(client);
  return true;
}

static void add_client(int fd)
{
  int unproven = 0;
  for (struct tt_root_client *c = root.clients; c; c = c->next) unproven += c->link->state < TT_LINK_READY;
  if (unproven >= UNPROVEN_MAX) drop_oldest_unproven("too many clients that prove nothing");
  struct tt_root_client *client = calloc(1, sizeof(*client));
  if (!client || tt_link_adopt(fd, lookup, NULL, &client->link) != ncclSuccess) {
    free(client);
    close(fd);
    return;
  }
  client->until = tt_deadline_in_ms(TT_LINK_HANDSHAKE_MS);
  client->next = root.clients;
  root.clients = client;
}

/* After clients have gone, and before other threads of the process take what they left. */
static void renew_spare(void)
{
  if (root.spare < 0) root.spare = eventfd(0, EFD_CLOEXEC);
}

/* Nobody may have come yet to whom the failure could be told: one of those that wait gets the spare, checks in, and
 * hears it. */
static void accept_with_spare(int listen_fd)
{
  char hint[100];
  bool exhausted;
  if (root.warned_ns != root.shortage.since_ns)
    TT_WARN("Bootstrap root: this process has no descriptors left for connections%s; ranks wait for one",
            tt_host_file_hint(EMFILE, hint, sizeof(hint)));
  root.warned_ns = root.shortage.since_ns;
  if (root.spare < 0) return;
  tt_socket_close(&root.spare);
  int fd = tt_listener_accept(listen_fd, &exhausted);
  if (fd >= 0) add_client(fd);
}

static void accept_all(int listen_fd)
{
  const bool known = root.shortage.since_ns != 0;
  bool exhausted = false, any = false;
  int fd;
  while ((fd = tt_listener_accept(listen_fd, &exhausted)) >= 0) {
    any = true;
    add_client(fd);
  }
  if (!tt_shortage_note(&root.shortage, exhausted && !any)) return;
  bool dropped = drop_oldest_unproven("out of file descriptors");
  if (!dropped && !known)
    TT_INFO(TT_BOOTSTRAP, "Bootstrap root: out of file descriptors (ulimit -n); a rank has to wait");
  if (!dropped && tt_shortage_lasts(&root.shortage)) accept_with_spare(listen_fd);
  root.accept_after = tt_deadline_in_ms(EXHAUSTED_MS);
}

/* Advances one client; false when it is to be freed. */
static bool serve(struct tt_root_client *client)
{
  struct tt_link *link = client->link;
  tt_link_progress(link);
  if (link->state == TT_LINK_READY) {
    struct tt_message *message = tt_link_receive(link);
    if (message && !client->id && !client->answered) tt_root_id_checkin(find(link->hello.nonce), client, message);
    free(message);
  }
  if (link->state == TT_LINK_CLOSED) {
    if (!client->id && !client->answered) drop(client, "closed");
    return false;
  }
  if (client->answered && link->queued == 0) return false;
  if (!tt_deadline_passed(client->until)) return true;
  drop(client, "it proved who it is and then said nothing");
  return false;
}

static void serve_all(void)
{
  for (struct tt_root_client **at = &root.clients; *at;) {
    struct tt_root_client *client = *at;
    if (serve(client)) {
      at = &client->next;
      continue;
    }
    *at = client->next;
    free_client(client);
    root.accept_after = TT_DEADLINE_NEVER; /* there is a descriptor for the next */
  }
  /* Answers that an id's failure queued above may be out already. */
  for (struct tt_root_id *id = root.ids; id; id = id->next) {
    if (tt_deadline_passed(id->deadline))
      tt_root_id_expire(id, root.dropped);
    else if (id->state == TT_ROOT_OPEN && id->places > 0 && tt_shortage_lasts(&root.shortage))
      tt_root_id_short(id);
    else if (id->state == TT_ROOT_OPEN && id->places > 0 && tt_deadline_passed(id->warn_at))
      tt_root_id_warn(id);
  }
}

/* Forgets ids that need no root any more. */
static void reap(void)
{
  for (struct tt_root_id **at = &root.ids; *at;) {
    struct tt_root_id *id = *at;
    if (!tt_root_id_finished(id)) {
      at = &id->next;
      continue;
    }
    if (!id->fixed) tt_used_add(id->nonce, &id->key);
    *at = id->next;
    tt_root_id_free(id);
  }
}

static tt_deadline next_timer(void)
{
  tt_deadline next = TT_DEADLINE_NEVER;
  for (struct tt_root_client *c = root.clients; c; c = c->next)
    next = TT_MIN(next, TT_MIN(c->link->timer, c->answered && c->link->queued == 0 ? 0 : c->until));
  for (struct tt_root_id *id = root.ids; id; id = id->next)
    if (id->state != TT_ROOT_ANSWERED)
      next =
          TT_MIN(next, id->state == TT_ROOT_OPEN && id->places > 0 ? TT_MIN(id->deadline, id->warn_at) : id->deadline);
  return TT_MIN(next, root.accept_after);
}

/* Fills the descriptors to wait for; NULL without memory. */
static struct pollfd *poll_set(nfds_t *count, int *nlisteners)
{
  nfds_t n = 1 + TT_ENDPOINT_ADDRESSES;
  for (struct tt_root_id *id = root.ids; id; id = id->next) n += (nfds_t)id->listener.count;
  for (struct tt_root_client *c = root.clients; c; c = c->next) n++;
  struct pollfd *set = calloc(n, sizeof(*set));
  if (!set) return NULL;
  nfds_t k = 0;
  set[k++] = (struct pollfd){.fd = root.wake, .events = POLLIN};
  bool accepting = tt_deadline_passed(root.accept_after) || root.accept_after == TT_DEADLINE_NEVER;
  if (accepting) root.accept_after = TT_DEADLINE_NEVER;
  for (int i = 0; accepting && i < root.listener.count; i++)
    set[k++] = (struct pollfd){.fd = root.listener.fds[i], .events = POLLIN};
  for (struct tt_root_id *id = root.ids; accepting && id; id = id->next)
    for (int i = 0; i < id->listener.count; i++)
      set[k++] = (struct pollfd){.fd = id->listener.fds[i], .events = POLLIN};
  *nlisteners = (int)k - 1;
  for (struct tt_root_client *c = root.clients; c; c = c->next)
    set[k++] = (struct pollfd){.fd = c->link->fd, .events = tt_link_events(c->link)};
  *count = k;
  return set;
}

static void end_service(void)
{
  while (root.clients) {
    struct tt_root_client *client = root.clients;
    root.clients = client->next;
    free_client(client);
  }
  tt_listener_close(&root.listener);
  tt_socket_close(&root.wake);
  tt_socket_close(&root.spare);
  root.running = root.ending = false;
  if (!root.joined) pthread_detach(root.thread);
  pthread_cond_broadcast(&root.ended);
}

static void *run(void *arg)
{
  (void)arg;
  pthread_mutex_lock(&root.mutex);
  for (;;) {
    reap();
    if (root.ending || !root.ids) break;
    nfds_t count = 0;
    int nlisteners = 0;
    struct pollfd *set = poll_set(&count, &nlisteners);
    /* At most 100 ms without memory for the set; a second otherwise, so that nothing hangs on a lost wake. */
    int ms = tt_deadline_poll_ms(next_timer(), set ? 1000 : 100);
    pthread_mutex_unlock(&root.mutex);
    poll(set, set ? count : 0, ms);
    pthread_mutex_lock(&root.mutex);
    uint64_t ignored;
    if (set && set[0].revents && read(root.wake, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN) root.ending = true;
    for (int i = 0; set && i < nlisteners; i++)
      if (set[1 + i].revents) accept_all(set[1 + i].fd);
    free(set);
    serve_all();
    renew_spare();
  }
  end_service();
  pthread_mutex_unlock(&root.mutex);
  return NULL;
}

static void wake(void)
{
  uint64_t one = 1;
  if (root.wake >= 0 && write(root.wake, &one, sizeof(one)) < 0) return; /* full: it will wake anyway */
}

/* A forked child has no service thread: it forgets the parent's ids and closes its copies of the sockets. */
static void after_fork(void)
{
  tt_used_after_fork();
  pthread_mutex_init(&root.mutex, NULL);
  pthread_cond_init(&root.ended, NULL);
  for (struct tt_root_client *c = root.clients; c; c = c->next) tt_socket_close(&c->link->fd);
  for (struct tt_root_id *id = root.ids; id; id = id->next) tt_listener_close(&id->listener);
  tt_listener_close(&root.listener);
  tt_socket_close(&root.wake);
  tt_socket_close(&root.spare);
  root.clients = NULL;
  root.ids = NULL;
  root.running = root.ending = root.joined = false;
}

static void watch_forks(void)
{
  pthread_atfork(NULL, NULL, after_fork);
}

/* Adds the id and makes sure that the thread runs. Called and left with the mutex held. */
static ncclResult_t serve_id(struct tt_root_id *id)
{
  char hint[100];
  id->next = root.ids;
  root.ids = id;
  if (root.running) {
    wake();
    return ncclSuccess;
  }
  root.accept_after = TT_DEADLINE_NEVER;
  root.joined = false;
  root.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  root.spare = eventfd(0, EFD_CLOEXEC);
  ncclResult_t result = ncclSuccess;
  if (root.wake < 0 || root.spare < 0)
    result = TT_FAIL(ncclSystemError, "eventfd() for the bootstrap root failed: %s%s", strerror(errno),
                     tt_host_file_hint(errno, hint, sizeof(hint)));
  else
    result = tt_thread_start(&root.thread, "tutti-root", run, NULL);
  if (result == ncclSuccess) {
    root.running = true;
    return ncclSuccess;
  }
  root.ids = id->next;
  tt_socket_close(&root.wake);
  tt_socket_close(&root.spare);
  return result;
}

static void lock_service(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&root.mutex);
  while (root.ending) pthread_cond_wait(&root.ended, &root.mutex);
}

ncclResult_t tt_root_add(struct tt_id *id)
{
  struct tt_root_id *entry = NULL;
  ncclResult_t result = ncclSuccess;
  lock_service();
  bool opened = root.listener.count == 0;
  /* How many ranks will come is not known yet: the system's limit. */
  if (opened) TT_TRY_GOTO(tt_listener_open(NULL, TT_ENDPOINT_ADDRESSES, TT_RANKS_MAX, &root.listener), result, out);
  id->root = root.listener.endpoint;
  TT_TRY_GOTO(tt_root_id_new(id, root.dropped, &entry), result, out);
  TT_TRY_GOTO(serve_id(entry), result, out);
out:
  if (result != ncclSuccess) {
    if (entry) tt_root_id_free(entry);
    if (!root.running) tt_listener_close(&root.listener);
  }
  pthread_mutex_unlock(&root.mutex);
  return result;
}

/* A meeting that failed keeps its address, so that whoever comes late learns why, until the next one begins there. */
static bool take_over(struct tt_root_id *entry)
{
  struct tt_root_id *failed = find(entry->nonce);
  if (!failed || failed->state != TT_ROOT_FAILED || failed->listener.count == 0) return false;
  entry->listener = failed->listener;
  failed->listener.count = 0;
  return true;
}

ncclResult_t tt_root_add_fixed(const struct tt_id *id, int nranks)
{
  struct tt_root_id *entry = NULL;
  ncclResult_t result = ncclSuccess;
  lock_service();
  TT_TRY_GOTO(tt_root_id_new(id, root.dropped, &entry), result, out);
  if (!take_over(entry))
    TT_TRY_GOTO(tt_listener_open_fixed(&id->root.addresses[0], nranks, &entry->listener), result, out);
  TT_TRY_GOTO(serve_id(entry), result, out);
out:
  if (result != ncclSuccess && entry) tt_root_id_free(entry);
  pthread_mutex_unlock(&root.mutex);
  return result;
}

void tt_root_hold(uint64_t nonce)
{
  lock_service();
  struct tt_root_id *id = find(nonce);
  if (id) id->holders++;
  pthread_mutex_unlock(&root.mutex);
}

/* If nothing is left to answer, the thread is gone when this returns. Called with the mutex held, which it releases. */
static void settle(void)
{
  reap();
  bool last = root.running && !root.ids && !root.joined;
  pthread_t thread = root.thread;
  if (last) root.joined = root.ending = true;
  wake();
  pthread_mutex_unlock(&root.mutex);
  if (last) pthread_join(thread, NULL);
}

/* The process may end as soon as its call has returned, and take with it the only place where a rank that comes a
 * moment later would learn whose death ended it all. With the mutex, which it releases in between. */
static void wait_for_late(uint64_t nonce, const _Atomic uint32_t *abort)
{
  tt_deadline until = tt_deadline_in_ms(LATE_MS);
  struct tt_root_id *id;
  while ((id = find(nonce)) && tt_root_id_expects(id) && !tt_deadline_passed(until)) {
    if (abort && atomic_load_explicit(abort, memory_order_relaxed) != 0) return;
    pthread_mutex_unlock(&root.mutex);
    usleep(LATE_LOOK_USEC);
    lock_service();
  }
}

void tt_root_release(uint64_t nonce, const _Atomic uint32_t *abort)
{
  lock_service();
  wait_for_late(nonce, abort);
  struct tt_root_id *id = find(nonce);
  if (id && id->holders > 0) id->holders--;
  settle();
}

void tt_root_give_up(uint64_t nonce, int rank, const char *why)
{
  lock_service();
  struct tt_root_id *id = find(nonce);
  if (id) tt_root_id_give_up(id, rank, why);
  wake();
  pthread_mutex_unlock(&root.mutex);
}

void tt_root_drop(uint64_t nonce)
{
  lock_service();
  struct tt_root_id *id = find(nonce);
  if (id && !id->fixed && id->state == TT_ROOT_OPEN && id->places == 0) id->deadline = 0;
  settle();
}
