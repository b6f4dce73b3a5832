/* The relay's thread, and relays whose communicator is gone while they still have users. */
#include "transport/relay_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "base/check.h"
#include "base/thread.h"
#include "base/timer.h"
#include "base/uds.h"

/* The longest sleep in microseconds, while no network requests are open, for which plugins have no bell. */
#define SLEEP_USEC 100000
/* Communicators usually end on all ranks at the same time: so long a relay waits for its users to close before it lets
 * the thread go on by itself. */
#define SETTLE_MS 50
/* One that was aborted ends at once, unless it is in a call of the plugin, or waits for a stopped process. */
#define QUIT_MS 500
/* How often a relay without a communicator looks whether its users live. */
#define LOOK_NS 500000000u
/* So long a process that exits waits for its relays. */
#define EXIT_MS 5000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_relay *lingering; /* freed by their own threads, which end with their last users */

/* ---- The thread ---- */

/* Accepts a user unless the communicator is gone: who sees that before the word of acceptance helps itself. Called with
 * the lock held, which it gives up meanwhile. */
static void accept_user(struct tt_relay *relay, struct tt_relay_user *user)
{
  pthread_mutex_unlock(&relay->lock);
  bool mapped = tt_relay_user_map(user) == ncclSuccess;
  if (!mapped) tt_relay_refuse(relay, user, tt_log_thread_error());
  pthread_mutex_lock(&relay->lock);
  if (!mapped || relay->left) {
    tt_relay_user_drop(user);
    return;
  }
  atomic_fetch_or(&user->desk->state, TT_DESK_ACCEPTED);
  user->next = relay->users;
  relay->users = user;
}

/* Users that came, and whether to go on. */
static bool take_new(struct tt_relay *relay, bool *left, bool *quit)
{
  pthread_mutex_lock(&relay->lock);
  bool any = relay->fresh != NULL;
  while (relay->fresh) {
    struct tt_relay_user *user = relay->fresh;
    relay->fresh = user->next;
    accept_user(relay, user);
  }
  *left = relay->left;
  *quit = relay->quit;
  pthread_mutex_unlock(&relay->lock);
  return any;
}

/* Whether the user's process is there: the service that hands out its memory has a name as long as it lives. */
static bool is_there(const struct tt_relay *relay, const struct tt_relay_user *user)
{
  const struct tt_peer_info *info = tt_resources_info(relay->resources, user->number);
  if (info->process == tt_resources_info(relay->resources, tt_resources_rank(relay->resources))->process) return true;
  return tt_uds_is_there(info->uds);
}

static void advance_all(struct tt_relay *relay, bool look, bool *moved, bool *busy)
{
  for (struct tt_relay_user **link = &relay->users, *user; (user = *link) != NULL;) {
    if (tt_relay_user_advance(user, moved, busy) && (!look || is_there(relay, user))) {
      link = &user->next;
      continue;
    }
    *link = user->next;
    tt_relay_user_end(user);
    *moved = true;
  }
}

static void fail_all(struct tt_relay *relay)
{
  char why[128];
  snprintf(why, sizeof(why), "rank %d has aborted its communicator", relay->rank);
  while (relay->users) {
    struct tt_relay_user *next = relay->users->next;
    tt_relay_user_fail(relay->users, ncclRemoteError, why);
    tt_relay_user_end(relay->users);
    relay->users = next;
  }
}

static void serve(struct tt_relay *relay)
{
  struct tt_waiter waiter;
  struct tt_doorbell *bells[1] = {relay->bell};
  uint64_t looked = tt_timer_ns();
  tt_waiter_init(&waiter, bells, 1, relay->crowd);
  for (;;) {
    bool left, quit, busy = false, moved = take_new(relay, &left, &quit);
    if (quit) fail_all(relay);
    if (quit || (left && !relay->users)) break;
    uint64_t now = tt_timer_ns();
    bool look = left && now - looked >= LOOK_NS;
    if (look) looked = now;
    advance_all(relay, look, &moved, &busy);
    if (moved)
      tt_waiter_progress(&waiter);
    else if (busy)
      tt_waiter_idle_polled(&waiter);
    else
      tt_waiter_idle(&waiter, SLEEP_USEC);
  }
  tt_waiter_done(&waiter);
}

/* Frees the relay if it lingers. Else somebody waits for its thread, or is about to: it may be gone at any moment. A
 * process that exits meanwhile waits for the lock. */
static void free_lingering(struct tt_relay *relay)
{
  pthread_mutex_lock(&lock);
  struct tt_relay **link = &lingering;
  while (*link && *link != relay) link = &(*link)->next;
  if (*link) {
    *link = relay->next;
    pthread_detach(pthread_self());
    tt_relay_free(relay);
  }
  pthread_mutex_unlock(&lock);
}

static void *run(void *arg)
{
  struct tt_relay *relay = arg;
  tt_log_set_device(relay->device);
  serve(relay);
  pthread_mutex_lock(&relay->lock);
  relay->ended = true;
  pthread_cond_broadcast(&relay->ended_now);
  pthread_mutex_unlock(&relay->lock);
  free_lingering(relay);
  return NULL;
}

ncclResult_t tt_relay_start(struct tt_relay *relay)
{
  void *bell;
  if (relay->running) return ncclSuccess;
  if (!relay->bell) {
    TT_TRY(tt_shm_alloc(tt_resources_shm(relay->resources), sizeof(*relay->bell), &bell, &relay->bell_offset));
    relay->bell = bell;
  }
  if (!relay->net) relay->net = tt_net_retain(relay->env->net);
  TT_TRY(tt_thread_start(&relay->thread, "tutti-relay", run, relay));
  relay->running = true;
  return ncclSuccess;
}

/* ---- The end ---- */

void tt_relay_free(struct tt_relay *relay)
{
  if (relay->bell) tt_shm_free(tt_resources_shm(relay->resources), relay->bell, sizeof(*relay->bell));
  if (relay->lingers) tt_resources_release(relay->resources);
  tt_net_close(relay->net);
  pthread_cond_destroy(&relay->ended_now);
  pthread_mutex_destroy(&relay->lock);
  free(relay->silent);
  free(relay);
}

/* Waits for the thread's end. Called with the relay's lock held. */
static bool wait_ended(struct tt_relay *relay, tt_deadline deadline)
{
  while (!relay->ended && !tt_deadline_passed(deadline)) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 10000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&relay->ended_now, &relay->lock, &until);
  }
  return relay->ended;
}

static bool has_ended(struct tt_relay *relay, tt_deadline deadline)
{
  pthread_mutex_lock(&relay->lock);
  bool ended = wait_ended(relay, deadline);
  pthread_mutex_unlock(&relay->lock);
  return ended;
}

/* Takes relays of this process that have ended by `deadline` off the list, so that their threads leave them alone.
 * Called with the list's lock held. */
static struct tt_relay *take_ended(tt_deadline deadline)
{
  struct tt_relay *taken = NULL;
  for (struct tt_relay **link = &lingering, *relay; (relay = *link) != NULL;) {
    if (relay->process != getpid() || !has_ended(relay, deadline)) {
      link = &relay->next;
      continue;
    }
    *link = relay->next;
    relay->next = taken;
    taken = relay;
  }
  return taken;
}

/* Their users may still need them, so that exiting right away would look like a death. */
static void at_exit(void)
{
  pthread_mutex_lock(&lock);
  struct tt_relay *ended = take_ended(tt_deadline_in_ms(EXIT_MS));
  for (struct tt_relay *relay = lingering; relay; relay = relay->next)
    if (relay->process == getpid() && !relay->quit)
      TT_WARN(
          "rank %d ends although other ranks still send through it: destroy the communicator on all ranks before one "
          "of their processes exits",
          relay->rank);
  pthread_mutex_unlock(&lock);
  while (ended) {
    struct tt_relay *relay = ended;
    ended = relay->next;
    pthread_join(relay->thread, NULL);
    tt_relay_free(relay);
  }
}

/* False: the thread has ended meanwhile, and the relay is still the caller's. */
static bool linger(struct tt_relay *relay)
{
  static bool registered;
  pthread_mutex_lock(&lock);
  bool lingers = !has_ended(relay, 0);
  if (lingers) {
    tt_resources_share(relay->resources);
    relay->lingers = true;
    relay->process = getpid();
    if (!registered) atexit(at_exit);
    registered = true;
    relay->next = lingering;
    lingering = relay;
  }
  pthread_mutex_unlock(&lock);
  return lingers;
}

void tt_relay_end(struct tt_relay *relay, bool aborted)
{
  pthread_mutex_lock(&relay->lock);
  relay->left = true;
  relay->quit = aborted;
  bool running = relay->running;
  if (running) tt_doorbell_ring(relay->bell);
  bool ended = !running || wait_ended(relay, tt_deadline_in_ms(aborted ? QUIT_MS : SETTLE_MS));
  pthread_mutex_unlock(&relay->lock);
  if (!ended && linger(relay)) return;
  if (running) pthread_join(relay->thread, NULL);
  tt_relay_free(relay);
}
