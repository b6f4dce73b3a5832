/* Ids used up in this process; see used.h and the claims in root.h.
 *
 * Both lists are rings of fixed length: after tens of thousands of communicators the oldest ids are forgotten, which
 * bounds memory; using such an id again is then noticed by its root's being gone. */
#include "bootstrap/used.h"

#include <pthread.h>
#include <stdint.h>
#include "base/check.h"
#include "bootstrap/root.h"

#define REMEMBERED 16384

struct ring {
  uint64_t nonces[REMEMBERED];
  struct tt_key keys[REMEMBERED];
  size_t count; /* ever added */
};
static struct ring finished; /* at the root */
static struct ring claimed;  /* by ranks of this process; no keys */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The place of `nonce`, newest first, or -1. */
static long find(const struct ring *ring, uint64_t nonce)
{
  size_t kept = TT_MIN(ring->count, (size_t)REMEMBERED);
  for (size_t i = 1; i <= kept; i++) {
    size_t at = (ring->count - i) % REMEMBERED;
    if (ring->nonces[at] == nonce) return (long)at;
  }
  return -1;
}

static void add(struct ring *ring, uint64_t nonce, const struct tt_key *key)
{
  size_t at = ring->count++ % REMEMBERED;
  ring->nonces[at] = nonce;
  if (key) ring->keys[at] = *key;
}

void tt_used_add(uint64_t nonce, const struct tt_key *key)
{
  pthread_mutex_lock(&mutex);
  add(&finished, nonce, key);
  pthread_mutex_unlock(&mutex);
}

bool tt_used_find(uint64_t nonce, struct tt_key *key)
{
  pthread_mutex_lock(&mutex);
  long at = find(&finished, nonce);
  if (at >= 0) *key = finished.keys[at];
  pthread_mutex_unlock(&mutex);
  return at >= 0;
}

void tt_used_after_fork(void)
{
  pthread_mutex_init(&mutex, NULL);
}

static ncclResult_t claim(uint64_t nonce, bool at_once)
{
  pthread_mutex_lock(&mutex);
  bool used = find(&claimed, nonce) >= 0;
  if (at_once && !used) add(&claimed, nonce, NULL);
  pthread_mutex_unlock(&mutex);
  if (used)
    return TT_FAIL(ncclInvalidUsage,
                   "this unique id was used before in this process: every communicator needs an id of "
                   "its own from ncclGetUniqueId, even if creating the first one failed");
  return ncclSuccess;
}

ncclResult_t tt_root_claim(uint64_t nonce)
{
  return claim(nonce, false);
}

ncclResult_t tt_root_claim_alone(uint64_t nonce)
{
  return claim(nonce, true);
}

void tt_root_claim_done(uint64_t nonce)
{
  pthread_mutex_lock(&mutex);
  if (find(&claimed, nonce) < 0) add(&claimed, nonce, NULL);
  pthread_mutex_unlock(&mutex);
}
