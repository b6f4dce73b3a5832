/* See parked.h. */
#include "api/parked.h"

#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include "api/handle.h"
#include "base/check.h"
#include "base/thread.h"
#include "plan/graphs.h"

/* The end of a graph is told a little after the call that destroyed it. */
#define SETTLE_MS 200
/* So long a process that exits waits for a communicator that is being freed. */
#define EXIT_S 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ncclComm *parked; /* by group_next, which nothing else uses any more */
static void (*release_parked)(struct ncclComm *comm);
static pid_t process; /* whose thread there is; a forked child has none */
static bool freeing, exiting;

/* On a thread of the driver's. */
static void wake(void)
{
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* One whose graphs are gone, or NULL. Locked. */
static struct ncclComm *take(void)
{
  struct ncclComm **place = &parked;
  while (*place != NULL && tt_graphs_live(*place) > 0) place = &(*place)->group_next;
  struct ncclComm *comm = *place;
  if (comm != NULL) *place = comm->group_next;
  return comm;
}

static void *run(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&lock);
  while (parked != NULL && !exiting) {
    struct ncclComm *comm = take();
    if (comm == NULL) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    freeing = true;
    pthread_mutex_unlock(&lock);
    tt_log_set_device(comm->device_index);
    release_parked(comm);
    pthread_mutex_lock(&lock);
    freeing = false;
    pthread_cond_broadcast(&changed);
  }
  process = 0;
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* What it uses of drivers and plugins is about to go. */
static void at_exit(void)
{
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += EXIT_S;
  pthread_mutex_lock(&lock);
  exiting = true;
  while (freeing && process == getpid() && pthread_cond_timedwait(&changed, &lock, &until) == 0) continue;
  pthread_mutex_unlock(&lock);
}

/* Locked. */
static void start(void)
{
  static bool registered;
  pthread_t thread;
  if (process == getpid()) return;
  if (!registered) atexit(at_exit);
  registered = true;
  if (tt_thread_start(&thread, "tutti-parked", run, NULL) != ncclSuccess) return; /* the next one tries again */
  pthread_detach(thread);
  process = getpid();
}

static int count_settled(const struct ncclComm *comm)
{
  int graphs = tt_graphs_live(comm);
  for (int ms = 0; graphs > 0 && ms < SETTLE_MS; ms++) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    graphs = tt_graphs_live(comm);
  }
  return graphs;
}

bool tt_comm_park(struct ncclComm *comm, void (*release)(struct ncclComm *comm))
{
  int graphs = count_settled(comm);
  if (graphs == 0) return false;
  TT_WARN(
      "rank %d: the communicator ends while %d captured graph%s operations of it, which do nothing from now on; its "
      "memory stays until the graphs are gone. Destroy graphs before their communicator",
      comm->rank, graphs, graphs == 1 ? " holds" : "s hold");
  tt_handle_remove(comm);
  tt_graphs_tell(comm, wake);
  pthread_mutex_lock(&lock);
  release_parked = release;
  comm->group_next = parked;
  parked = comm;
  start();
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return true;
}
