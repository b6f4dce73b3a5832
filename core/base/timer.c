/* Monotonic time and deadlines. */
#include "base/timer.h"

#include <time.h>

uint64_t tt_timer_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

tt_deadline tt_deadline_in_ms(int64_t ms)
{
  uint64_t now = tt_timer_ns();
  if (ms <= 0) return now;
  if ((uint64_t)ms >= (TT_DEADLINE_NEVER - now) / 1000000u) return TT_DEADLINE_NEVER;
  return now + (uint64_t)ms * 1000000u;
}

bool tt_deadline_passed(tt_deadline deadline)
{
  return deadline != TT_DEADLINE_NEVER && tt_timer_ns() >= deadline;
}

int tt_deadline_poll_ms(tt_deadline deadline, int limit_ms)
{
  if (limit_ms < 0) limit_ms = 0;
  if (deadline == TT_DEADLINE_NEVER) return limit_ms;
  uint64_t now = tt_timer_ns();
  if (now >= deadline) return 0;
  /* Rounded up: rounding down would make the last millisecond a busy loop. */
  uint64_t left = (deadline - now + 999999u) / 1000000u;
  return left < (uint64_t)limit_ms ? (int)left : limit_ms;
}
