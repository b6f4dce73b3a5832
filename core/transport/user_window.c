/* Opening a window: what ranks tell each other of their memory, and the agreement that it counts on all or on none.
 *
 * Two exchanges. First each rank says where its buffer lies in which allocation, and how that can be had; then whether
 * it has mapped those of its host. A rank that cannot says why, so that all of them log the same reason, and none waits
 * for another. */
#include "transport/user_buffers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "transport/user_internal.h"
#include "transport/wire.h"

#define WHY_BYTES TT_USER_WHY
#define OFFER_BYTES (4 + TT_USER_RANGE_BYTES)

/* What a rank says of its memory. */
struct offer {
  struct tt_user_range range;
  uint32_t same; /* the window of the same range and allocations that it has open; 0: none */
};

struct opening {
  struct tt_transport_env *env;
  struct tt_user_buffers *buffers;
  void *ptr;
  struct offer *offers; /* by rank */
  struct offer *mine;
};

/* ---- This rank's offer ---- */

static ncclResult_t describe(const struct opening *o)
{
  struct tt_user_range *range = &o->mine->range;
  size_t bytes = range->bytes;
  TT_TRY(tt_user_range_describe(o->buffers, o->ptr, bytes, range));
  if (range->why[0] != '\0') return ncclSuccess;
  const struct tt_user_window *same = tt_user_same(o->buffers, o->ptr, bytes);
  const struct tt_user_window *other = tt_user_overlapping(o->buffers, o->ptr, bytes);
  bool alive = other && tt_user_is_alive(o->buffers, other, other->base, other->bytes);
  if (same && alive)
    o->mine->same = same->number;
  else if (other)
    snprintf(range->why, sizeof(range->why), "it overlaps window %u%s", other->number,
             alive ? "" : ", whose memory was freed while it was registered");
  else
    tt_user_range_export(o->buffers, o->ptr, range);
  return ncclSuccess;
}

/* ---- The first exchange ---- */

static ncclResult_t gather(const struct opening *o, struct tt_bootstrap *bootstrap, void *data, size_t bytes)
{
  return o->env->nranks > 1 ? tt_bootstrap_all_gather(bootstrap, data, bytes) : ncclSuccess;
}

static ncclResult_t unpack(const unsigned char *bytes, size_t size, int rank, struct offer *offer)
{
  struct tt_wire_reader r = {.data = bytes, .size = size};
  offer->same = (uint32_t)tt_wire_get_int(&r, 4);
  tt_user_range_get(&r, &offer->range);
  if (!r.bad && r.at == size) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "rank %d sent a malformed description of its window", rank);
}

static ncclResult_t exchange_offers(const struct opening *o, struct tt_bootstrap *bootstrap)
{
  int nranks = o->env->nranks, me = o->env->rank;
  unsigned char *mine = NULL, *all = NULL;
  size_t *offsets = NULL;
  ncclResult_t result;
  if (nranks == 1) return ncclSuccess;
  TT_TRY_GOTO(TT_CALLOC(&mine, OFFER_BYTES), result, out);
  TT_TRY_GOTO(TT_CALLOC(&offsets, (size_t)nranks + 1), result, out);
  struct tt_wire_writer w = {.data = mine, .size = OFFER_BYTES};
  tt_wire_put_int(&w, o->mine->same, 4);
  tt_user_range_put(&w, &o->mine->range);
  TT_TRY_GOTO(tt_bootstrap_gather_sized(bootstrap, NULL, me, nranks, mine, w.at, OFFER_BYTES, &all, offsets), result,
              out);
  for (int r = 0; r < nranks; r++)
    if (r != me) TT_TRY_GOTO(unpack(all + offsets[r], offsets[r + 1] - offsets[r], r, &o->offers[r]), result, out);
out:
  free(all);
  free(offsets);
  free(mine);
  return result;
}

/* ---- What all ranks conclude alike from the offers ---- */

static ncclResult_t compare_sizes(const struct opening *o)
{
  for (int r = 1; r < o->env->nranks; r++)
    if (o->offers[r].range.bytes != o->offers[0].range.bytes)
      return TT_FAIL(ncclInvalidArgument,
                     "ncclCommWindowRegister: size is %" PRIu64 " on rank 0 and %" PRIu64
                     " on rank %d; it must be equal on all ranks",
                     o->offers[0].range.bytes, o->offers[r].range.bytes, r);
  return ncclSuccess;
}

static bool all_the_same(const struct opening *o)
{
  for (int r = 0; r < o->env->nranks; r++)
    if (o->offers[r].same == 0 || o->offers[r].same != o->offers[0].same) return false;
  return true;
}

/* The first rank that stands against it, or -1; and why. That it is a window already elsewhere is a reason only where
 * there is no better one. */
static int first_refusal(const struct opening *o, char why[WHY_BYTES])
{
  int same = -1;
  for (int r = 0; r < o->env->nranks; r++) {
    const struct offer *offer = &o->offers[r];
    if (offer->range.why[0] != '\0') {
      memcpy(why, offer->range.why, WHY_BYTES);
      return r;
    }
    if (offer->same != 0 && same < 0) same = r;
  }
  if (same >= 0) snprintf(why, WHY_BYTES, "it is window %u already, as it is not on all ranks", o->offers[same].same);
  return same;
}

static void say_refused(const struct opening *o, int rank, const char *why)
{
  TT_INFO(TT_REG,
          "rank %d: the window of %" PRIu64
          " bytes at %p is not mapped, but copied through buffers, since on rank %d (%s): %s",
          o->env->rank, o->mine->range.bytes, o->ptr, rank, o->env->peers[rank].host, why);
}

/* ---- Mapping, and the second exchange ---- */

static ncclResult_t map_peer(const struct opening *o, struct tt_user_window *window, int rank)
{
  void *at;
  TT_TRY(tt_user_range_map(o->buffers, rank, &o->offers[rank].range, &window->imports[rank], &at));
  window->at[rank] = at;
  return ncclSuccess;
}

static ncclResult_t note_extents(const struct opening *o, struct tt_user_window *window)
{
  const struct tt_user_range *range = &o->mine->range;
  const unsigned char *end = window->base - range->offset;
  TT_TRY(TT_CALLOC(&window->extents, range->nparts));
  window->nextents = range->nparts;
  for (uint32_t p = 0; p < range->nparts; p++)
    window->extents[p] = (struct tt_user_extent){.id = range->parts[p].id, .end = end += range->parts[p].bytes};
  return ncclSuccess;
}

static ncclResult_t make_window(const struct opening *o, struct tt_user_window **out)
{
  struct tt_user_window *window;
  int nranks = o->env->nranks;
  ncclResult_t result;
  TT_TRY(TT_CALLOC(&window, 1));
  *window = (struct tt_user_window){.opened = 1,
                                    .number = o->buffers->last_number,
                                    .everywhere = true,
                                    .base = o->ptr,
                                    .bytes = o->mine->range.bytes};
  TT_TRY_GOTO(note_extents(o, window), result, out);
  TT_TRY_GOTO(TT_CALLOC(&window->imports, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&window->at, (size_t)nranks), result, out);
  window->at[o->env->rank] = o->ptr;
  for (int r = 0; r < nranks; r++) {
    if (tt_user_neighbour(o->env, r)) TT_TRY_GOTO(map_peer(o, window, r), result, out);
    window->everywhere = window->everywhere && window->at[r] != NULL;
  }
  TT_TRY_GOTO(tt_user_insert(o->buffers, window), result, out);
  *out = window;
out:
  if (result != ncclSuccess) tt_user_window_free(o->buffers, window);
  return result;
}

/* Ranks tell each other how it went. *rank: the first that failed, or -1. */
static ncclResult_t exchange_verdicts(const struct opening *o, struct tt_bootstrap *bootstrap, ncclResult_t own,
                                      int *rank, char why[WHY_BYTES])
{
  char(*verdicts)[WHY_BYTES];
  *rank = -1;
  TT_TRY(TT_CALLOC(&verdicts, (size_t)o->env->nranks));
  if (own != ncclSuccess) snprintf(verdicts[o->env->rank], WHY_BYTES, "%s", tt_log_thread_error());
  if (own != ncclSuccess && verdicts[o->env->rank][0] == '\0')
    snprintf(verdicts[o->env->rank], WHY_BYTES, "error %d", (int)own);
  ncclResult_t result = gather(o, bootstrap, verdicts, WHY_BYTES);
  for (int r = 0; r < o->env->nranks && result == ncclSuccess && *rank < 0; r++) {
    if (verdicts[r][0] == '\0') continue;
    *rank = r;
    snprintf(why, WHY_BYTES, "%.*s", WHY_BYTES - 1, verdicts[r]);
  }
  free(verdicts);
  return result;
}

static ncclResult_t map_all(const struct opening *o, struct tt_bootstrap *bootstrap, struct tt_user_window **out)
{
  struct tt_user_window *window = NULL;
  char why[WHY_BYTES];
  int failed;
  ncclResult_t mapped = make_window(o, &window);
  ncclResult_t result = exchange_verdicts(o, bootstrap, mapped, &failed, why);
  if (result == ncclSuccess && failed < 0) {
    TT_INFO(TT_REG, "rank %d: window %u, %zu bytes at %p, is mapped on all ranks%s", o->env->rank, window->number,
            window->bytes, o->ptr, window->everywhere ? "" : " of each host");
    *out = window;
    return ncclSuccess;
  }
  if (window) tt_user_window_close(o->env, window);
  if (result == ncclSuccess) say_refused(o, failed, why);
  return result;
}

static ncclResult_t agree(const struct opening *o, struct tt_bootstrap *bootstrap, struct tt_user_window **out)
{
  TT_TRY(exchange_offers(o, bootstrap));
  TT_TRY(compare_sizes(o));
  if (all_the_same(o)) {
    *out = tt_user_same(o->buffers, o->ptr, o->mine->range.bytes);
    pthread_mutex_lock(&o->buffers->lock);
    (*out)->opened++;
    pthread_mutex_unlock(&o->buffers->lock);
    return ncclSuccess;
  }
  char why[WHY_BYTES];
  int refused = first_refusal(o, why);
  if (refused < 0) return map_all(o, bootstrap, out);
  say_refused(o, refused, why);
  return ncclSuccess;
}

ncclResult_t tt_user_window_open(struct tt_transport_env *env, struct tt_bootstrap *bootstrap, void *ptr, size_t bytes,
                                 struct tt_user_window **out)
{
  struct opening o = {.env = env, .buffers = env->users, .ptr = ptr};
  *out = NULL;
  tt_user_reap(o.buffers);
  TT_TRY(TT_CALLOC(&o.offers, (size_t)env->nranks));
  o.mine = &o.offers[env->rank];
  o.mine->range.bytes = bytes;
  o.buffers->last_number++;
  ncclResult_t result = describe(&o);
  if (result == ncclSuccess) result = agree(&o, bootstrap, out);
  tt_user_range_withdraw(o.buffers, &o.mine->range);
  for (int r = 0; r < env->nranks; r++) tt_user_range_free(&o.offers[r].range);
  free(o.offers);
  return result;
}
