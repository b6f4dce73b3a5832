/* Monotonic time and deadlines. */
#ifndef TT_BASE_TIMER_H
#define TT_BASE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

uint64_t tt_timer_ns(void); /* CLOCK_MONOTONIC in nanoseconds */

/* A point in time; TT_DEADLINE_NEVER never comes. */
typedef uint64_t tt_deadline;
#define TT_DEADLINE_NEVER UINT64_MAX
tt_deadline tt_deadline_in_ms(int64_t ms);
bool tt_deadline_passed(tt_deadline deadline);
/* Milliseconds left, for poll(): 0 when passed, at most `limit_ms`. */
int tt_deadline_poll_ms(tt_deadline deadline, int limit_ms);

#endif
