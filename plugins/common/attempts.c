/* See attempts.h. */
#include "plugins/common/attempts.h"

#include <stddef.h>

void tt_attempts_add(struct tt_attempts *attempts, struct tt_attempt *attempt)
{
  pthread_mutex_lock(&attempts->lock);
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

void tt_attempts_end_all(struct tt_attempts *attempts, void (*end)(void *attempt))
{
  pthread_mutex_lock(&attempts->lock);
  struct tt_attempt *list = attempts->list;
  attempts->list = NULL;
  pthread_mutex_unlock(&attempts->lock);
  while (list) {
    struct tt_attempt *attempt = list;
    list = attempt->next;
    end(attempt);
  }
}
