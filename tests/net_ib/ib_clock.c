/* The monotonic clock of the process, of the plugin and the fake library too, which a test can stop and have pass, so
 * that what depends on time does not depend on the machine. */
#include "ib_fixture.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t stands_ns; /* 0: it goes by itself */
static _Thread_local int64_t step_ns;

static int read_real(clockid_t clock, struct timespec *time)
{
  return (int)syscall(SYS_clock_gettime, clock, time);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *time)
{
  if (clock != CLOCK_MONOTONIC || !atomic_load(&stands_ns)) return read_real(clock, time);
  int64_t now = atomic_fetch_add(&stands_ns, step_ns) + step_ns;
  *time = (struct timespec){.tv_sec = now / 1000000000, .tv_nsec = now % 1000000000};
  return 0;
}

void clock_stop(void)
{
  struct timespec now;
  read_real(CLOCK_MONOTONIC, &now);
  atomic_store(&stands_ns, now.tv_sec * 1000000000 + now.tv_nsec);
}

void clock_pass(int ms)
{
  atomic_fetch_add(&stands_ns, (int64_t)ms * 1000000);
}

void clock_step(int ms)
{
  step_ns = (int64_t)ms * 1000000;
}
