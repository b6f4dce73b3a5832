/* The thread that looks after works on streams. */
#include "plan/monitor.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "base/check.h"
#include "base/thread.h"
#include "base/timer.h"
#include "device/context.h"
#include "plan/watch.h"
#include "transport/user_range.h"

/* How often it looks. With the 50 ms after which a device says that it waits, a death is found within a fifth of a
 * second (core/health), and a machine with 16 ranks still does nothing 99.9 % of the time. */
#define LOOK_MS 20
/* How long what was sent lies with the proxy, and nothing moves there, until ranks that are gone are looked for. */
#define UNSENT_NS 1000000000ull
/* How long a device's failure waits for what other ranks know of its cause, and how long a caller for the sentence. */
#define ACCOUNT_MS 300
#define SETTLE_MS 1000
#define PAUSE_USEC 1000

struct tt_monitor {
  struct ncclComm *comm;
  struct tt_watch_clock clock;
  uint64_t moves; /* of the proxy, when it was last looked at */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool end;
};

/* When the process exits, a device's library may unmap what `status` reads before this thread ends: nothing looks any
 * more from then on. The handler is registered after the device was opened, and so runs before the device's own. */
#define EXIT_MS 200
static pthread_rwlock_t looking = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool exiting;

static void at_exit(void)
{
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += EXIT_MS * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  atomic_store(&exiting, true);
  /* Who looks now has left then. A forked child may have the lock taken from its parent, where nobody gives it back. */
  if (pthread_rwlock_timedwrlock(&looking, &until) == 0) pthread_rwlock_unlock(&looking);
}

static void register_exit(void)
{
  atexit(at_exit);
}

bool tt_monitor_over(void)
{
  return atomic_load(&exiting);
}

/* Ranks disagree, and the device knows this one's side only. Who hears what this rank has begun compares, and answers
 * with both sides. */
static ncclResult_t ask_others(struct ncclComm *comm)
{
  tt_health_stalled(comm->health);
  for (tt_deadline end = tt_deadline_in_ms(ACCOUNT_MS); !tt_deadline_passed(end); usleep(PAUSE_USEC)) {
    if (tt_monitor_over() || atomic_load(&comm->abort)) break;
    TT_TRY(tt_health_check(comm->health, false));
  }
  return ncclSuccess;
}

/* A network fails when a rank ends, of which others say more. */
static ncclResult_t find_cause(struct ncclComm *comm, ncclResult_t result)
{
  for (tt_deadline end = tt_deadline_in_ms(ACCOUNT_MS); !tt_deadline_passed(end); usleep(PAUSE_USEC)) {
    if (tt_monitor_over() || atomic_load(&comm->abort) || comm->health == NULL) break;
    TT_TRY(tt_health_check(comm->health, true));
  }
  return result;
}

/* Works wait for messages that cannot come any more. Or for one that has come before the network failed, and that they
 * have not seen yet: these go on, and their ranks may have left. */
static ncclResult_t look_at_network(struct ncclComm *comm, int peer)
{
  struct tt_device_status status = {.size = sizeof status};
  if (comm->env == NULL || comm->env->proxy == NULL) return ncclSuccess;
  tt_log_hush(true);
  ncclResult_t lost = tt_proxy_lost(comm->env->proxy, peer);
  tt_log_hush(false);
  if (lost == ncclSuccess) return ncclSuccess;
  TT_TRY(find_cause(comm, ncclSuccess));
  TT_TRY(comm->device->status(comm->context->handle, &status));
  if (!status.stalled || status.sending || status.peer != peer) return ncclSuccess;
  return tt_proxy_lost(comm->env->proxy, peer);
}

/* The rank that what devices have sent is for, and does not go to; -1: all was sent, or something moves. */
static int find_unsent(struct tt_monitor *monitor)
{
  struct tt_proxy *proxy = monitor->comm->env != NULL ? monitor->comm->env->proxy : NULL;
  struct tt_proxy_unsent unsent;
  if (proxy == NULL || !tt_proxy_runs(proxy) || !tt_proxy_look_unsent(proxy, &unsent)) return -1;
  bool moved = unsent.moves != monitor->moves;
  monitor->moves = unsent.moves;
  return moved ? -1 : unsent.peer;
}

/* Devices wait for nothing, but what they have sent does not go on. A rank may have ended after its part, and the
 * proxy's thread may get no time: so nobody is missed before nothing has moved for long. */
static ncclResult_t look_at_unsent(struct tt_monitor *monitor)
{
  struct ncclComm *comm = monitor->comm;
  int peer = find_unsent(monitor);
  if (peer < 0) {
    tt_watch_moved(&monitor->clock);
    return ncclSuccess;
  }
  uint64_t now = tt_timer_ns();
  struct tt_watch_due due = tt_watch_idle(&monitor->clock, now);
  TT_TRY(tt_health_check(comm->health, now - atomic_load(&monitor->clock.idle_since) > UNSENT_NS));
  struct tt_watch_wait wait = {
      .comm = comm, .peer = peer, .sending = true, .unsent = true, .left = tt_bootstrap_left(comm->bootstrap, peer)};
  return due.stalled ? tt_watch_waits(&wait, &monitor->clock, &due) : ncclSuccess;
}

static ncclResult_t look(struct tt_monitor *monitor)
{
  struct ncclComm *comm = monitor->comm;
  struct tt_device_status status = {.size = sizeof status};
  if (comm->env != NULL && comm->env->users != NULL) tt_user_graphs_reap(comm->env->users);
  TT_TRY(comm->device->status(comm->context->handle, &status));
  if (status.result != ncclSuccess) {
    if (status.unexplained && comm->health != NULL) TT_TRY(ask_others(comm));
    return TT_FAIL(status.result, "%s", status.text);
  }
  if (comm->health == NULL) return ncclSuccess;
  TT_TRY(tt_health_check(comm->health, status.stalled != 0));
  if (!status.stalled) return look_at_unsent(monitor);
  struct tt_watch_due due = tt_watch_idle(&monitor->clock, tt_timer_ns());
  if (!status.sending) TT_TRY(look_at_network(comm, status.peer));
  struct tt_watch_wait wait = {.comm = comm,
                               .signature = status.signature,
                               .peer = status.peer,
                               .sending = status.sending != 0,
                               .left = tt_bootstrap_left(comm->bootstrap, status.peer)};
  return due.stalled ? tt_watch_waits(&wait, &monitor->clock, &due) : ncclSuccess;
}

bool tt_monitor_look(struct ncclComm *comm, struct tt_device_status *status)
{
  bool looked = false;
  *status = (struct tt_device_status){.size = sizeof *status};
  if (atomic_load(&comm->monitor) == NULL || pthread_rwlock_tryrdlock(&looking) != 0) return false;
  if (!tt_monitor_over()) looked = comm->device->status(comm->context->handle, status) == ncclSuccess;
  pthread_rwlock_unlock(&looking);
  return looked;
}

ncclResult_t tt_monitor_peek(struct ncclComm *comm)
{
  struct tt_device_status status = {.size = sizeof status};
  ncclResult_t failed = (ncclResult_t)atomic_load(&comm->async_error);
  if (failed != ncclSuccess || atomic_load(&comm->monitor) == NULL) return failed;
  if (pthread_rwlock_tryrdlock(&looking) != 0) return ncclSuccess; /* only while the process exits */
  if (!tt_monitor_over() && comm->device->status(comm->context->handle, &status) == ncclSuccess) failed = status.result;
  pthread_rwlock_unlock(&looking);
  return failed;
}

ncclResult_t tt_monitor_settle(struct ncclComm *comm)
{
  ncclResult_t result = tt_monitor_peek(comm), noted;
  if (result == ncclSuccess) return ncclSuccess;
  for (tt_deadline end = tt_deadline_in_ms(SETTLE_MS); !tt_deadline_passed(end); usleep(PAUSE_USEC)) {
    noted = (ncclResult_t)atomic_load(&comm->async_error);
    if (noted != ncclSuccess) return noted;
    if (tt_monitor_over()) break;
  }
  return result;
}

/* Waits until it is time to look again. False: it is over. */
static bool pause_look(struct tt_monitor *monitor)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_MS * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&monitor->lock);
  int waited = 0;
  while (!monitor->end && waited == 0) waited = pthread_cond_timedwait(&monitor->changed, &monitor->lock, &until);
  bool go_on = !monitor->end;
  pthread_mutex_unlock(&monitor->lock);
  return go_on;
}

/* Noted before the works end, since who then finds a stream done asks for errors. Returns whether it is the first. */
static bool end_works(struct ncclComm *comm, ncclResult_t result)
{
  bool first = tt_comm_note(comm, result);
  comm->device->stop(comm->context->handle);
  return first;
}

void tt_monitor_failed(struct ncclComm *comm, ncclResult_t result)
{
  result = find_cause(comm, result);
  pthread_rwlock_rdlock(&looking);
  bool first = !tt_monitor_over() && end_works(comm, result);
  pthread_rwlock_unlock(&looking);
  if (first) tt_comm_tell(comm);
}

/* The first failure ends the works, so nothing is left to look after. It is told to the others after, which may take a
 * while. */
static void *run(void *arg)
{
  struct tt_monitor *monitor = arg;
  struct ncclComm *comm = monitor->comm;
  tt_log_set_device(comm->device_index);
  while (pause_look(monitor)) {
    pthread_rwlock_rdlock(&looking);
    ncclResult_t result = tt_monitor_over() ? ncclSuccess : look(monitor);
    bool first = result != ncclSuccess && end_works(comm, result);
    pthread_rwlock_unlock(&looking);
    if (first) tt_comm_tell(comm);
    if (result != ncclSuccess) break;
  }
  return NULL;
}

ncclResult_t tt_monitor_start(struct ncclComm *comm)
{
  struct tt_monitor *monitor;
  pthread_condattr_t attributes;
  if (comm->monitor != NULL) return ncclSuccess;
  pthread_once(&once, register_exit);
  TT_TRY(TT_CALLOC(&monitor, 1));
  monitor->comm = comm;
  pthread_mutex_init(&monitor->lock, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&monitor->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  ncclResult_t result = tt_thread_start(&monitor->thread, "tutti-monitor", run, monitor);
  if (result == ncclSuccess) {
    comm->monitor = monitor;
    return ncclSuccess;
  }
  pthread_cond_destroy(&monitor->changed);
  pthread_mutex_destroy(&monitor->lock);
  free(monitor);
  return result;
}

void tt_monitor_end(struct ncclComm *comm)
{
  struct tt_monitor *monitor = comm->monitor;
  if (monitor == NULL) return;
  comm->monitor = NULL;
  pthread_mutex_lock(&monitor->lock);
  monitor->end = true;
  pthread_cond_signal(&monitor->changed);
  pthread_mutex_unlock(&monitor->lock);
  pthread_join(monitor->thread, NULL);
  pthread_cond_destroy(&monitor->changed);
  pthread_mutex_destroy(&monitor->lock);
  free(monitor);
}
