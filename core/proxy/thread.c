/* See thread.h. While slots move, or did a moment ago, the thread looks all the time. Then it sleeps, the longer the
 * longer nothing has moved: a work that runs for a second is not held up by a millisecond. What was launched rings the
 * bell, which makes it look all the time again; what graphs repeat does not. */
#include "proxy/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/thread.h"
#include "base/timer.h"

#define LOOK_NS 1000000 /* after something has moved, or was launched */
#define SLEEP_PART 16   /* of the time in which nothing has moved */
#define SLEEP_USEC 1000
/* Nothing was launched, and nothing has moved, for so long: no latency is worth a thousand looks a second. */
#define REST_NS 10000000000u
#define REST_USEC 20000

struct tt_proxy_thread {
  struct tt_proxy_thread_config config;
  pthread_t thread;
  _Atomic bool end;
  _Atomic uint32_t launches;
};

static int sleep_usec(uint64_t idle_ns)
{
  if (idle_ns >= REST_NS) return REST_USEC;
  return (int)TT_MIN(idle_ns / SLEEP_PART / 1000, (uint64_t)SLEEP_USEC);
}

static void serve(struct tt_proxy_thread *thread)
{
  const struct tt_proxy_thread_config *config = &thread->config;
  struct tt_waiter waiter;
  struct tt_doorbell *bells[1] = {config->bell};
  uint64_t moved_at = tt_timer_ns();
  uint32_t seen = 0;
  ncclResult_t result = ncclSuccess;
  tt_waiter_init(&waiter, bells, 1, config->crowd);
  while (!atomic_load(&thread->end) && !config->over(config->context)) {
    bool moved, idle;
    uint32_t launches = atomic_load(&thread->launches);
    result = tt_proxy_progress(config->proxy, &moved, &idle);
    if (result != ncclSuccess) break;
    uint64_t now = tt_timer_ns();
    if (moved || launches != seen) moved_at = now;
    seen = launches;
    if (moved)
      tt_waiter_progress(&waiter);
    else if (now - moved_at < LOOK_NS)
      sched_yield();
    else
      tt_waiter_idle(&waiter, sleep_usec(now - moved_at));
  }
  tt_waiter_done(&waiter);
  if (result != ncclSuccess) config->failed(config->context, result);
}

static void *run(void *arg)
{
  struct tt_proxy_thread *thread = arg;
  tt_log_set_device(thread->config.device);
  serve(thread);
  return NULL;
}

ncclResult_t tt_proxy_thread_start(const struct tt_proxy_thread_config *config, struct tt_proxy_thread **out)
{
  struct tt_proxy_thread *thread;
  *out = NULL;
  TT_TRY(TT_CALLOC(&thread, 1));
  thread->config = *config;
  ncclResult_t result = tt_thread_start(&thread->thread, "tutti-proxy", run, thread);
  if (result != ncclSuccess) {
    free(thread);
    return result;
  }
  *out = thread;
  return ncclSuccess;
}

void tt_proxy_thread_wake(struct tt_proxy_thread *thread)
{
  atomic_fetch_add(&thread->launches, 1);
  tt_doorbell_ring(thread->config.bell);
}

void tt_proxy_thread_end(struct tt_proxy_thread *thread)
{
  if (!thread) return;
  atomic_store(&thread->end, true);
  tt_doorbell_ring(thread->config.bell);
  pthread_join(thread->thread, NULL);
  free(thread);
}
