/* See attempts.h. */
#include "plugins/common/attempts.h"

#include <stddef.h>

void tt_attempts_add(struct tt_attempts *attempts, struct tt_attempt *attempt, uint64_t user)
{
  pthread_mutex_lock(&attempts->lock);
  attempt->user = user;
  attempt->number = ++attempts->last_number;
  attempt->next = attempts->list;
  attempts->list = attempt;
  pthread_mutex_unlock(&attempts->lock);
}

void *tt_attempts_find(struct tt_attempts *attempts, uint64_t number)
{
  pthread_mutex_lock(&attempts->lock);
  struct tt_attempt *attempt = attempts->list;
  while (attempt && attempt->number != number) attempt = attempt->next;
  pthread_mutex_unlock(&attempts->lock);
  return attempt;
}

void tt_attempts_remove(struct tt_attempts *attempts, struct tt_attempt *attempt)
{
  pthread_mutex_lock(&attempts->lock);
  struct tt_attempt **at = &attempts->list;
  while (*at != attempt) at = &(*at)->next;
  *at = attempt->next;
  pthread_mutex_unlock(&attempts->lock);
}

void tt_attempts_end(struct tt_attempts *attempts, uint64_t user, void (*end)(void *attempt))
{
  struct tt_attempt *ended = NULL;
  pthread_mutex_lock(&attempts->lock);
  for (struct tt_attempt **at = &attempts->list; *at;) {
    struct tt_attempt *attempt = *at;
    if (user != TT_ATTEMPTS_OF_ALL && attempt->user != user) {
      at = &attempt->next;
      continue;
    }
    *at = attempt->next;
    attempt->next = ended;
    ended = attempt;
  }
  pthread_mutex_unlock(&attempts->lock);
  while (ended) {
    struct tt_attempt *attempt = ended;
    ended = attempt->next;
    end(attempt);
  }
}
