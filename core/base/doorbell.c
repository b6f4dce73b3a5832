/* Doorbells over futexes. The word that a sleeper sleeps on is `sleeping` itself: a ring clears it, so a ring between
 * arming and sleeping makes the sleep return at once. */
#include "base/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/param.h"
#include "base/timer.h"

/* Waking a sleeper costs about 50 us on a busy machine, so the waiter first gives the processor to others for that
 * long: on a machine with fewer processors than ranks, it is one of them that it waits for. */
#define YIELD_USEC 50
/* Where the kernel cannot wait for several futexes (before 5.16), the sleep on one of them is short. */
#define ONE_OF_MANY_USEC 200
/* Spin where every rank of the host has a processor; else whoever is waited for may need ours. */
#define SPIN_USEC_ROOM 20
#define SPIN_USEC_CROWD 1
/* What rings no bell is looked at for longer before the first sleep, if there is room: a sleep of 50 us ends up to 100
 * late, by the kernel's timer slack, and messages of networks take tens of microseconds. Beyond it sleeps are a part of
 * the wait so far, which is then late by no more than that part. */
#define LOOK_USEC_ROOM 1000
#define POLL_SLEEP_PART 16
#define POLL_SLEEP_LEAST_USEC 50
#define POLL_SLEEP_MOST_USEC 1000

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define WAITV_MOST 128 /* the kernel's limit */

/* As struct futex_waitv of newer kernel headers. */
struct wait_word {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
#define WAIT_WORD_32 2 /* FUTEX_32; without FUTEX_PRIVATE_FLAG, since other processes ring */

static inline void full_fence(void)
{
#ifdef __SANITIZE_THREAD__
  /* ThreadSanitizer does not know fences; a locked instruction orders the same. */
  static _Atomic int dummy;
  atomic_fetch_add(&dummy, 1);
#else
  atomic_thread_fence(memory_order_seq_cst);
#endif
}

static inline void pause_processor(void)
{
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

void tt_doorbell_ring(struct tt_doorbell *bell)
{
  if (!bell) return;
  /* Orders the caller's stores before the look at `sleeping`; the waiter orders the other way round. */
  full_fence();
  if (atomic_load_explicit(&bell->sleeping, memory_order_relaxed) == 0) return;
  if (atomic_exchange(&bell->sleeping, 0) == 0) return;
  atomic_fetch_add_explicit(&bell->word, 1, memory_order_relaxed);
  int saved = errno;
  syscall(SYS_futex, &bell->sleeping, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  errno = saved;
}

static int processors;

static void count_processors(void)
{
  cpu_set_t set;
  /* Fails where there are more processors than the set has room for. */
  processors = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : INT_MAX;
}

static bool has_room(int crowd)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, count_processors);
  return crowd <= processors;
}

void tt_waiter_init(struct tt_waiter *waiter, struct tt_doorbell **bells, int nbells, int crowd)
{
  int64_t spin = tt_param_int(TT_PARAM_TUTTI_SPIN_USEC);
  bool room = has_room(crowd);
  *waiter = (struct tt_waiter){.bells = bells, .nbells = nbells};
  waiter->spin_usec = spin >= 0 ? (int)spin : room ? SPIN_USEC_ROOM : SPIN_USEC_CROWD;
  waiter->look_usec = room ? LOOK_USEC_ROOM : YIELD_USEC;
}

static void set_sleeping(struct tt_waiter *waiter, uint32_t value)
{
  for (int i = 0; i < waiter->nbells; i++) atomic_store(&waiter->bells[i]->sleeping, value);
}

static bool was_rung(struct tt_waiter *waiter)
{
  for (int i = 0; i < waiter->nbells; i++)
    if (atomic_load(&waiter->bells[i]->sleeping) == 0) return true;
  return false;
}

static void sleep_on_one(struct tt_doorbell *bell, int usec)
{
  struct timespec limit = {.tv_sec = usec / 1000000, .tv_nsec = usec % 1000000 * 1000L};
  syscall(SYS_futex, &bell->sleeping, FUTEX_WAIT, 1, &limit, NULL, 0);
}

/* False if the kernel does not know how. */
static bool sleep_on_many(struct tt_waiter *waiter, int usec)
{
  if (waiter->nbells > WAITV_MOST) return false;
  struct wait_word words[WAITV_MOST];
  for (int i = 0; i < waiter->nbells; i++)
    words[i] = (struct wait_word){
        .value = 1, .address = (uint64_t)(uintptr_t)&waiter->bells[i]->sleeping, .flags = WAIT_WORD_32};
  uint64_t until = tt_timer_ns() + (uint64_t)usec * 1000u;
  struct timespec limit = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
  long result = syscall(SYS_futex_waitv, words, waiter->nbells, 0, &limit, CLOCK_MONOTONIC);
  /* EPERM: a sandbox's filter that is older than the call. */
  return result >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL);
}

static void sleep_until_ring(struct tt_waiter *waiter, int usec)
{
  static _Atomic bool no_waitv;
  int saved = errno;
  if (waiter->nbells == 0) {
    nanosleep(&(struct timespec){.tv_sec = usec / 1000000, .tv_nsec = usec % 1000000 * 1000L}, NULL);
  } else if (waiter->nbells == 1) {
    sleep_on_one(waiter->bells[0], usec);
  } else if (atomic_load_explicit(&no_waitv, memory_order_relaxed) || !sleep_on_many(waiter, usec)) {
    if (waiter->nbells <= WAITV_MOST) atomic_store_explicit(&no_waitv, true, memory_order_relaxed);
    sleep_on_one(waiter->bells[0], usec < ONE_OF_MANY_USEC ? usec : ONE_OF_MANY_USEC);
  }
  errno = saved;
}

void tt_waiter_progress(struct tt_waiter *waiter)
{
  waiter->idle_since = 0;
  if (waiter->armed) tt_waiter_done(waiter);
}

/* Nanoseconds since something was done. */
static uint64_t idle_ns(struct tt_waiter *waiter)
{
  uint64_t now = tt_timer_ns();
  if (waiter->idle_since == 0) waiter->idle_since = now;
  return now - waiter->idle_since;
}

static void wait_some(struct tt_waiter *waiter, uint64_t idle, int yield_usec, int max_usec)
{
  if (idle < (uint64_t)waiter->spin_usec * 1000u) {
    pause_processor();
    return;
  }
  if (max_usec <= 0 || idle < (uint64_t)(waiter->spin_usec + yield_usec) * 1000u) {
    sched_yield();
    return;
  }
  if (!waiter->armed || was_rung(waiter)) {
    set_sleeping(waiter, 1);
    full_fence();
    waiter->armed = true;
    if (waiter->nbells > 0) return;
  }
  sleep_until_ring(waiter, max_usec);
}

void tt_waiter_idle(struct tt_waiter *waiter, int max_usec)
{
  wait_some(waiter, idle_ns(waiter), YIELD_USEC, max_usec);
}

void tt_waiter_idle_polled(struct tt_waiter *waiter)
{
  uint64_t idle = idle_ns(waiter), part = idle / 1000 / POLL_SLEEP_PART;
  int sleep = part < POLL_SLEEP_LEAST_USEC  ? POLL_SLEEP_LEAST_USEC
              : part > POLL_SLEEP_MOST_USEC ? POLL_SLEEP_MOST_USEC
                                            : (int)part;
  wait_some(waiter, idle, waiter->look_usec, sleep);
}

void tt_waiter_done(struct tt_waiter *waiter)
{
  if (waiter->armed) set_sleeping(waiter, 0);
  waiter->armed = false;
  waiter->idle_since = 0;
}
