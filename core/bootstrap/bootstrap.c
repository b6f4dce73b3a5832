/* Life of a bootstrap object, and unique ids. See bootstrap.h. */
#include "bootstrap/bootstrap.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"
#include "bootstrap/internal.h"
#include "bootstrap/root.h"

/* An id that every rank derives from the same text. */
static ncclResult_t fixed_id(const char *text, struct tt_id *id)
{
  id->fixed = true;
  id->key.k0 = tt_hash(text, strlen(text));
  id->key.k1 = tt_hash_more(id->key.k0, "tutti", 5);
  id->nonce = tt_hash_more(id->key.k1, text, strlen(text));
  id->root.count = 1;
  ncclResult_t result = tt_address_parse(text, &id->root.addresses[0]);
  /* Every rank has to know the port, so the system cannot choose it: a port of 0 is none. */
  const union tt_address *root = &id->root.addresses[0];
  if (result != ncclSuccess || (root->sa.sa_family == AF_INET6 ? root->v6.sin6_port : root->v4.sin_port) == 0)
    return TT_FAIL(ncclInvalidUsage,
                   "NCCL_COMM_ID is \"%s\"; it must be host:port, [IPv6]:port or name:port of rank 0's "
                   "host, with a port from 1 to 65535",
                   text);
  return ncclSuccess;
}

ncclResult_t tt_bootstrap_own_id(ncclUniqueId *out)
{
  struct tt_id id = {0};
  TT_TRY(tt_random(&id.key, sizeof(id.key)));
  TT_TRY(tt_random(&id.nonce, sizeof(id.nonce)));
  id.host = tt_host_hash();
  TT_TRY(tt_root_add(&id));
  tt_wire_put_id(out, &id);
  return ncclSuccess;
}

ncclResult_t tt_bootstrap_unique_id(ncclUniqueId *out)
{
  struct tt_id id = {0};
  const char *text = tt_param_string(TT_PARAM_NCCL_COMM_ID);
  if (!text) return tt_bootstrap_own_id(out);
  TT_TRY(fixed_id(text, &id));
  tt_wire_put_id(out, &id);
  return ncclSuccess;
}

uint64_t tt_bootstrap_id_hash(const ncclUniqueId *id)
{
  return tt_hash(id->internal, sizeof(id->internal));
}

ncclResult_t tt_bootstrap_use_alone(const ncclUniqueId *id)
{
  uint64_t nonce;
  if (!tt_wire_nonce_of(id, &nonce)) return ncclSuccess;
  TT_TRY(tt_root_claim_alone(nonce));
  tt_root_drop(nonce);
  return ncclSuccess;
}

static ncclResult_t make_object(int rank, int nranks, const _Atomic uint32_t *abort, struct tt_bootstrap **out)
{
  struct tt_bootstrap *b;
  pthread_condattr_t attributes;
  TT_TRY(TT_CALLOC(&b, 1));
  ncclResult_t result = TT_CALLOC(&b->peers, (size_t)nranks);
  if (result != ncclSuccess) {
    free(b);
    return result;
  }
  b->rank = rank;
  b->nranks = nranks;
  b->abort = abort;
  b->wake = -1;
  b->first_dead = -1;
  b->accept_after = TT_DEADLINE_NEVER;
  pthread_mutex_init(&b->mutex, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&b->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  *out = b;
  return ncclSuccess;
}

static double milliseconds(uint64_t from, uint64_t to)
{
  return (double)(to - from) / 1e6;
}

/* Everything that needs the other ranks. `id` is the one whose root has this rank in its share. */
static ncclResult_t join(struct tt_bootstrap *b, const struct tt_id *ids, int nids, const struct tt_id *id)
{
  struct tt_checkin_times times;
  if (id->fixed && b->rank == 0) TT_TRY(tt_root_add_fixed(id, b->nranks));
  if (!id->fixed) {
    tt_root_hold(id->nonce);
    b->id_nonce = id->nonce;
    b->holds_root = true;
  }
  ncclResult_t met = tt_checkin_run(b, ids, nids, &times);
  if (met != ncclSuccess && id->fixed && b->rank == 0) tt_root_give_up(id->nonce, 0, tt_log_thread_error());
  TT_TRY(met);
  TT_TRY(tt_service_start(b));
  TT_TRY(tt_gather_endpoints(b));
  uint64_t spread = tt_timer_ns();
  TT_TRY(tt_bootstrap_barrier(b));
  uint64_t end = tt_timer_ns();
  TT_INFO(TT_INIT | TT_BOOTSTRAP,
          "Bootstrap timings: rank %d nranks %d total %.1f ms (root %.1f, listen %.1f, ranks %.1f, addresses %.1f, "
          "barrier %.1f)",
          b->rank, b->nranks, milliseconds(times.start, end), milliseconds(times.start, times.reached),
          milliseconds(times.reached, times.listening), milliseconds(times.listening, times.answered),
          milliseconds(times.answered, spread), milliseconds(spread, end));
  return ncclSuccess;
}

ncclResult_t tt_bootstrap_create(const ncclUniqueId *id, int rank, int nranks, const _Atomic uint32_t *abort,
                                 struct tt_bootstrap **out)
{
  return tt_bootstrap_create_scalable(id, 1, rank, nranks, abort, NULL, out);
}

/* A fixed root (NCCL_COMM_ID) is one for all. */
static ncclResult_t read_ids(const ncclUniqueId *bytes, int *nids, struct tt_id **out)
{
  struct tt_id *ids;
  TT_TRY(TT_CALLOC(&ids, (size_t)*nids));
  *out = ids;
  for (int i = 0; i < *nids; i++) TT_TRY(tt_wire_get_id(&bytes[i], &ids[i]));
  for (int i = 0; i < *nids; i++)
    for (int k = 0; k < i; k++)
      if (ids[i].nonce == ids[k].nonce && !ids[i].fixed)
        return TT_FAIL(ncclInvalidArgument, "unique ids %d and %d of %d are the same: call ncclGetUniqueId for each", k,
                       i, *nids);
  if (ids[0].fixed) *nids = 1;
  return ncclSuccess;
}

/* All that is seen here is that a rank does not come or leaves, or that the id was used meanwhile. The probe may know
 * what that follows from. */
static ncclResult_t find_cause(struct tt_bootstrap_probe *probe, ncclResult_t result)
{
  if (!probe || probe->failed) return result;
  ncclResult_t cause = tt_bootstrap_probe(probe);
  return cause != ncclSuccess ? cause : result;
}

static ncclResult_t create(const struct tt_id *ids, int nids, int rank, int nranks, const _Atomic uint32_t *abort,
                           struct tt_bootstrap_probe *probe, struct tt_bootstrap **out)
{
  struct tt_bootstrap *b = NULL;
  const struct tt_id *id = &ids[tt_share_of(rank, nranks, nids).root];
  for (int i = 0; !id->fixed && i < nids; i++) TT_TRY(tt_root_claim(ids[i].nonce));
  TT_TRY(make_object(rank, nranks, abort, &b));
  b->probe = probe;
  ncclResult_t result = ncclSuccess;
  if (nranks > 1)
    result = join(b, ids, nids, id);
  else if (!id->fixed)
    tt_root_drop(id->nonce);
  for (int i = 0; !id->fixed && i < nids; i++) tt_root_claim_done(ids[i].nonce);
  if (result == ncclSuccess)
    *out = b;
  else
    tt_bootstrap_destroy(b);
  return result;
}

ncclResult_t tt_bootstrap_create_scalable(const ncclUniqueId *bytes, int nids, int rank, int nranks,
                                          const _Atomic uint32_t *abort, struct tt_bootstrap_probe *probe,
                                          struct tt_bootstrap **out)
{
  struct tt_id *ids = NULL;
  *out = NULL;
  if (nranks < 1 || nranks > TT_RANKS_MAX)
    return TT_FAIL(ncclInvalidArgument, "nranks %d is outside 1..%d", nranks, TT_RANKS_MAX);
  if (rank < 0 || rank >= nranks) return TT_FAIL(ncclInvalidArgument, "rank %d is outside 0..%d", rank, nranks - 1);
  if (nids < 1 || nids > nranks)
    return TT_FAIL(ncclInvalidArgument, "%d unique ids for %d ranks; allowed are 1 to the number of ranks", nids,
                   nranks);
  ncclResult_t result = read_ids(bytes, &nids, &ids);
  if (result == ncclSuccess) result = create(ids, nids, rank, nranks, abort, probe, out);
  if (result != ncclSuccess) result = find_cause(probe, result);
  free(ids);
  return result;
}

void tt_bootstrap_destroy(struct tt_bootstrap *b)
{
  if (!b) return;
  tt_net_ring_destroy(b);
  tt_service_stop(b);
  tt_listener_close(&b->listener);
  if (b->holds_root) tt_root_release(b->id_nonce, b->abort);
  for (int r = 0; r < b->nranks; r++) {
    tt_mail_free(b->peers[r].waiting);
    tt_mail_free(b->peers[r].inbox);
  }
  tt_calls_free(b);
  pthread_mutex_destroy(&b->mutex);
  pthread_cond_destroy(&b->changed);
  free(b->links);
  free(b->peers);
  free(b);
}

uint64_t tt_bootstrap_number(const struct tt_bootstrap *b)
{
  return b->nonce;
}

const union tt_address *tt_bootstrap_address(const struct tt_bootstrap *b)
{
  return &b->listener.endpoint.addresses[0];
}

void tt_bootstrap_stats(const struct tt_bootstrap *bootstrap, struct tt_bootstrap_stats *stats)
{
  struct tt_bootstrap *b = (struct tt_bootstrap *)bootstrap; /* the mutex is no part of its value */
  pthread_mutex_lock(&b->mutex);
  *stats = b->stats;
  pthread_mutex_unlock(&b->mutex);
}
