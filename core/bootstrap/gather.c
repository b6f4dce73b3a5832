/* Exchanges among many ranks in O(log n) rounds: all-gather (Bruck et al., 1997), barrier (dissemination: Hensgen,
 * Finkel and Manber, 1988), and the first spreading of addresses. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "bootstrap/internal.h"

tt_deadline tt_gather_deadline(void)
{
  return tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000);
}

static const struct tt_mail_scope everybody = {.count = -1};

static ncclResult_t receive_exactly(struct tt_bootstrap *b, int peer, uint32_t tag, struct tt_mail_scope scope,
                                    tt_deadline deadline, size_t bytes, struct tt_message **message)
{
  TT_TRY(tt_mail_receive(b, peer, tag, scope, deadline, message));
  if ((*message)->bytes == bytes) return ncclSuccess;
  ncclResult_t result =
      TT_FAIL(ncclInternalError,
              "rank %d got %zu bytes from rank %d in a bootstrap exchange and expected %zu: the ranks "
              "are not in the same exchange",
              b->rank, (*message)->bytes, peer, bytes);
  free(*message);
  *message = NULL;
  return result;
}

/* Every rank knows the endpoints of a window of `w` ranks to both sides, which doubles in each round: it swaps windows
 * with the ranks at its ends. The lower one dials; the higher one's message waits for that link. */
ncclResult_t tt_gather_endpoints(struct tt_bootstrap *b)
{
  int n = b->nranks;
  tt_deadline deadline = tt_gather_deadline();
  for (int w = 1, round = 0; 2 * w + 1 < n; w *= 2, round++) {
    int sides[2] = {(b->rank + w) % n, (b->rank - w + n) % n};
    size_t bytes = (size_t)(2 * w + 1) * TT_ENDPOINT_BYTES;
    unsigned char *window = malloc(bytes);
    if (!window) return TT_FAIL(ncclSystemError, "out of memory for the addresses of %d ranks", 2 * w + 1);
    for (int i = -w; i <= w; i++)
      tt_wire_put_endpoint(window + (size_t)(i + w) * TT_ENDPOINT_BYTES, &b->peers[(b->rank + i + n) % n].endpoint);
    ncclResult_t result = tt_mail_send(b, sides[0], TT_TAG_EXCHANGE + (uint32_t)round, window, bytes, TT_MAIL_NEEDED);
    if (result == ncclSuccess)
      result = tt_mail_send(b, sides[1], TT_TAG_EXCHANGE + (uint32_t)round, window, bytes, TT_MAIL_AWAITED);
    free(window);
    for (int side = 0; side < 2 && result == ncclSuccess; side++) {
      struct tt_message *message;
      TT_TRY(receive_exactly(b, sides[side], TT_TAG_EXCHANGE + (uint32_t)round, everybody, deadline, bytes, &message));
      pthread_mutex_lock(&b->mutex);
      for (int i = -w; i <= w && result == ncclSuccess; i++)
        if (!tt_wire_get_endpoint(message->data + (size_t)(i + w) * TT_ENDPOINT_BYTES,
                                  &b->peers[(sides[side] + i + n) % n].endpoint))
          result = TT_FAIL(ncclInternalError, "rank %d sent a malformed address", sides[side]);
      pthread_mutex_unlock(&b->mutex);
      free(message);
    }
    TT_TRY(result);
  }
  return ncclSuccess;
}

/* An all-gather of the listed ranks, or of all where `ranks` is NULL; `call` is NULL if it is of none. */
struct bruck {
  const int *ranks;
  int me, n; /* this rank's place among so many */
  const struct tt_bootstrap_call *call;
};

static int rank_at(const struct bruck *all, int place)
{
  return all->ranks ? all->ranks[place] : place;
}

/* Round k: sends the blocks known so far, mine and those before it, to the rank 2^k after me, and gets as many. */
static ncclResult_t bruck(struct tt_bootstrap *b, const struct bruck *all, unsigned char *data, size_t bytes)
{
  struct tt_mail_scope scope = {.ranks = all->ranks, .count = all->ranks ? all->n : -1, .call = all->call};
  size_t head = all->call ? TT_CALL_BYTES : 0;
  tt_deadline deadline = tt_gather_deadline();
  int me = all->me, n = all->n;
  for (int known = 1, round = 0; known < n; round++) {
    int count = TT_MIN(known, n - known), to = (me + known) % n, from = (me - known + n) % n;
    uint32_t tag = (all->call ? TT_TAG_CALL : TT_TAG_GATHER) + (uint32_t)round;
    size_t size = head + (size_t)count * bytes;
    unsigned char *packed = malloc(size + 1);
    if (!packed) return TT_FAIL(ncclSystemError, "out of memory for %zu bytes of an all-gather", size);
    if (all->call) tt_wire_put_u64(packed, all->call->number);
    for (int i = 0; i < count && bytes; i++)
      memcpy(packed + head + (size_t)i * bytes, data + (size_t)((me - i + n) % n) * bytes, bytes);
    ncclResult_t result = tt_mail_send(b, rank_at(all, to), tag, packed, size, TT_MAIL_NEEDED);
    free(packed);
    TT_TRY(result);
    struct tt_message *message;
    TT_TRY(receive_exactly(b, rank_at(all, from), tag, scope, deadline, size, &message));
    for (int i = 0; i < count && bytes; i++)
      memcpy(data + (size_t)((from - i + n) % n) * bytes, message->data + head + (size_t)i * bytes, bytes);
    free(message);
    known += count;
  }
  return ncclSuccess;
}

/* The largest message of an exchange must be one that can be sent. */
static ncclResult_t check_size(int nranks, size_t bytes)
{
  if (bytes <= TT_MESSAGE_MAX / (size_t)nranks) return ncclSuccess;
  return TT_FAIL(ncclInvalidArgument, "a bootstrap all-gather of %zu bytes from each of %d ranks exceeds 1 GiB", bytes,
                 nranks);
}

ncclResult_t tt_bootstrap_all_gather(struct tt_bootstrap *b, void *data, size_t bytes)
{
  TT_TRY(check_size(b->nranks, bytes));
  if (b->nranks == 1) return ncclSuccess;
  if (b->ring) return tt_net_ring_all_gather(b, data, bytes);
  return bruck(b, &(struct bruck){.me = b->rank, .n = b->nranks}, data, bytes);
}

ncclResult_t tt_bootstrap_group_all_gather(struct tt_bootstrap *b, const int *ranks, int me, int nranks, void *data,
                                           size_t bytes)
{
  if (nranks < 1 || me < 0 || me >= nranks || ranks[me] != b->rank)
    return TT_FAIL(ncclInternalError, "rank %d is not at place %d of its group of %d ranks", b->rank, me, nranks);
  for (int i = 0; i < nranks; i++)
    if (ranks[i] < 0 || ranks[i] >= b->nranks || (i && ranks[i] <= ranks[i - 1]))
      return TT_FAIL(ncclInternalError, "a group's ranks are not ascending within 0..%d", b->nranks - 1);
  TT_TRY(check_size(nranks, bytes));
  return bruck(b, &(struct bruck){.ranks = ranks, .me = me, .n = nranks}, data, bytes);
}

/* Of one that another rank has given up already nothing is sent. */
ncclResult_t tt_bootstrap_call_gather(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, void *data,
                                      size_t bytes)
{
  TT_TRY(check_size(b->nranks, bytes + TT_CALL_BYTES));
  pthread_mutex_lock(&b->mutex);
  tt_calls_begin(b, call->number);
  ncclResult_t result = tt_calls_check(b, call);
  pthread_mutex_unlock(&b->mutex);
  TT_TRY(result);
  return bruck(b, &(struct bruck){.me = b->rank, .n = b->nranks, .call = call}, data, bytes);
}

ncclResult_t tt_bootstrap_barrier(struct tt_bootstrap *b)
{
  tt_deadline deadline = tt_gather_deadline();
  for (int distance = 1, round = 0; distance < b->nranks; distance *= 2, round++) {
    struct tt_message *message;
    uint32_t tag = TT_TAG_BARRIER + (uint32_t)round;
    TT_TRY(tt_mail_send(b, (b->rank + distance) % b->nranks, tag, NULL, 0, TT_MAIL_NEEDED));
    TT_TRY(receive_exactly(b, (b->rank - distance + b->nranks) % b->nranks, tag, everybody, deadline, 0, &message));
    free(message);
  }
  return ncclSuccess;
}
