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
  uint64_t user;   /* whose it is; 0: of one that never says that it is done */
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

#define TT_ATTEMPTS_OF_ALL UINT64_MAX /* users */

/* Gives it its number. It stays the caller's to free. */
void tt_attempts_add(struct tt_attempts *attempts, struct tt_attempt *attempt, uint64_t user);
/* NULL if there is none of that number. */
void *tt_attempts_find(struct tt_attempts *attempts, uint64_t number);
void tt_attempts_remove(struct tt_attempts *attempts, struct tt_attempt *attempt);
/* Removes those of the user, and gives each to `end`. */
void tt_attempts_end(struct tt_attempts *attempts, uint64_t user, void (*end)(void *attempt));

#endif
