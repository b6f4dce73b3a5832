/* Ids that are used up in this process, so that a second use is an error rather than a hang. */
#ifndef TT_BOOTSTRAP_USED_H
#define TT_BOOTSTRAP_USED_H

#include <stdbool.h>
#include "base/hash.h"

/* The root's side: ids it has finished with, and their keys. */
void tt_used_add(uint64_t nonce, const struct tt_key *key);
bool tt_used_find(uint64_t nonce, struct tt_key *key);
/* In a forked child, where another thread of the parent may have held the lock. */
void tt_used_after_fork(void);

#endif
