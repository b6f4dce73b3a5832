/* Attempts to connect that are not over. A caller's handle holds only an attempt's number, by which it is found again,
 * so that a stray handle can do no harm and attempts that the caller gave up can be ended.
 *
 * Threads: any. The lock guards the list and the numbers, not the attempts: each has one caller. */
#ifndef TT_PLUGINS_ATTEMPTS_H
#define TT_PLUGINS_ATTEMPTS_H

#include <pthread.h>
#include <stdint.h>

/* First member of what the attempt is; zero at start. */
struct tt_attempt {
  uint64_t number; /* never 0 once added */
  struct tt_attempt *next;
};

struct tt_attempts {
  pthread_mutex_t lock;
  struct tt_attempt *list;
  uint64_t last_number;
};
#define TT_ATTEMPTS_NONE                                                                                               \
  {                                                                                                                    \
    .lock = PTHREAD_MUTEX_INITIALIZER                                                                                  \
  }

/* Gives it its number. It stays the caller's to free. */
void tt_attempts_add(struct tt_attempts *attempts, struct tt_attempt *attempt);
/* NULL if there is none of that number. */
void *tt_attempts_find(struct tt_attempts *attempts, uint64_t number);
void tt_attempts_remove(struct tt_attempts *attempts, struct tt_attempt *attempt);
/* Removes all, and gives each to `end`. */
void tt_attempts_end_all(struct tt_attempts *attempts, void (*end)(void *attempt));

#endif
