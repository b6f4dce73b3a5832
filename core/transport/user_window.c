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

#define WHY_BYTES 200
#define OFFER_BYTES 512
#define HANDLE_BYTES sizeof(((struct tt_device_export *)0)->handle)

enum { LOCAL, REMOTE };

/* What a rank says of its memory. */
struct offer {
  uint64_t bytes;                     /* of the window */
  uint64_t id, allocation;            /* of the allocation: its number in the rank's process, and its bytes */
  uint64_t offset;                    /* of the window in it */
  uint64_t object;                    /* of export REMOTE, if that is of kind FD */
  uint32_t same;                      /* the window of the same range and allocation that it has open; 0: none */
  struct tt_device_export exports[2]; /* LOCAL, REMOTE; of kind NONE where nobody needs it */
  char why[WHY_BYTES];                /* it cannot offer anything; "": it does */
};

struct opening {
  struct tt_transport_env *env;
  struct tt_user_buffers *buffers;
  void *ptr;
  struct offer *offers; /* by rank */
  struct offer *mine;
};

static const struct tt_peer_info *peer(const struct opening *o, int rank)
{
  return &o->env->peers[rank];
}

/* Ranks of this host but this one: those that are to map each other's memory. */
static bool is_neighbour(const struct opening *o, int rank)
{
  return rank != o->env->rank && peer(o, rank)->node == peer(o, o->env->rank)->node;
}

static bool same_process(const struct opening *o, int rank)
{
  return peer(o, rank)->process == peer(o, o->env->rank)->process;
}

/* ---- This rank's offer ---- */

static void refuse(struct offer *offer, const char *why)
{
  snprintf(offer->why, sizeof(offer->why), "%s", why);
}

/* What was exported for other processes becomes known to the service that hands it out. */
static ncclResult_t show(const struct opening *o)
{
  struct tt_device_export *out = &o->mine->exports[REMOTE];
  if (out->kind != TT_EXPORT_FD) return ncclSuccess;
  int fd = out->fd;
  out->fd = -1;
  return tt_user_show(o->buffers, fd, out->bytes, &o->mine->object);
}

static ncclResult_t export(const struct opening *o, bool needed[2])
{
  const struct tt_device *device = o->env->device;
  for (int way = LOCAL; way <= REMOTE; way++)
    if (needed[way])
      TT_TRY(device->export_buffer(o->buffers->context->handle, o->ptr, way == LOCAL, &o->mine->exports[way]));
  return show(o);
}

/* Which exports the neighbours need; says so if one cannot use any. */
static bool find_needs(const struct opening *o, bool needed[2])
{
  char reason[WHY_BYTES];
  for (int r = 0; r < o->env->nranks; r++) {
    if (!is_neighbour(o, r)) continue;
    if (!tt_transport_device.can(o->env, r, o->env->rank, reason, sizeof(reason))) {
      refuse(o->mine, reason);
      return false;
    }
    needed[same_process(o, r) ? LOCAL : REMOTE] = true;
  }
  return true;
}

static void describe_exports(const struct opening *o, const struct tt_device_buffer *buffer)
{
  bool needed[2] = {false, false};
  if (!find_needs(o, needed)) return;
  uint32_t others = 1u << TT_EXPORT_FD | 1u << TT_EXPORT_HANDLE;
  if ((needed[LOCAL] && !(buffer->exports & 1u << TT_EXPORT_LOCAL)) || (needed[REMOTE] && !(buffer->exports & others)))
    refuse(o->mine, "memory of this kind can be mapped by no other rank; allocate it with ncclMemAlloc");
  else if (export(o, needed) != ncclSuccess)
    refuse(o->mine, tt_log_thread_error());
}

static void describe(const struct opening *o)
{
  struct tt_device_buffer buffer;
  struct offer *mine = o->mine;
  size_t bytes = mine->bytes;
  if (!tt_user_memory_known(o->env)) {
    refuse(mine, "this library of the device knows nothing of users' memory");
    return;
  }
  if (tt_user_look(o->buffers, o->ptr, &buffer) != ncclSuccess) {
    refuse(mine, tt_log_thread_error());
    return;
  }
  mine->id = buffer.id;
  mine->allocation = buffer.bytes;
  mine->offset = (uintptr_t)o->ptr - (uintptr_t)buffer.base;
  const struct tt_user_window *same = tt_user_same(o->buffers, o->ptr, bytes);
  const struct tt_user_window *other = tt_user_overlapping(o->buffers, o->ptr, bytes);
  if (same && same->id == buffer.id)
    mine->same = same->number;
  else if (mine->offset > buffer.bytes || bytes > buffer.bytes - mine->offset)
    refuse(mine, "it is not all in one allocation");
  else if (other)
    snprintf(mine->why, sizeof(mine->why), "it overlaps window %u%s", other->number,
             other->id == buffer.id ? "" : ", whose memory was freed while it was registered");
  else
    describe_exports(o, &buffer);
}

/* ---- The first exchange ---- */

static void put_export(struct tt_wire_writer *w, const struct tt_device_export *export)
{
  tt_wire_put_int(w, export->kind, 4);
  tt_wire_put_int(w, export->bytes, 8);
  tt_wire_put(w, export->handle, HANDLE_BYTES);
}

static void pack(const struct offer *offer, unsigned char bytes[OFFER_BYTES])
{
  struct tt_wire_writer w = {.data = bytes, .size = OFFER_BYTES};
  tt_wire_put_int(&w, offer->bytes, 8);
  tt_wire_put_int(&w, offer->id, 8);
  tt_wire_put_int(&w, offer->allocation, 8);
  tt_wire_put_int(&w, offer->offset, 8);
  tt_wire_put_int(&w, offer->object, 8);
  tt_wire_put_int(&w, offer->same, 4);
  for (int way = LOCAL; way <= REMOTE; way++) put_export(&w, &offer->exports[way]);
  tt_wire_put(&w, offer->why, sizeof(offer->why));
}

static void get_export(struct tt_wire_reader *r, struct tt_device_export *export)
{
  export->kind = (uint32_t)tt_wire_get_int(r, 4);
  export->fd = -1;
  export->bytes = tt_wire_get_int(r, 8);
  const unsigned char *handle = tt_wire_get(r, HANDLE_BYTES);
  if (handle) memcpy(export->handle, handle, HANDLE_BYTES);
}

/* A rank of this process must not be asked by a socket, nor another one by its pointers. */
static bool right_kind(const struct tt_device_export *export, int way)
{
  if (export->kind == TT_EXPORT_NONE) return true;
  return way == LOCAL ? export->kind == TT_EXPORT_LOCAL
                      : export->kind == TT_EXPORT_FD || export->kind == TT_EXPORT_HANDLE;
}

static ncclResult_t unpack(const unsigned char bytes[OFFER_BYTES], int rank, struct offer *offer)
{
  struct tt_wire_reader r = {.data = bytes, .size = OFFER_BYTES};
  offer->bytes = tt_wire_get_int(&r, 8);
  offer->id = tt_wire_get_int(&r, 8);
  offer->allocation = tt_wire_get_int(&r, 8);
  offer->offset = tt_wire_get_int(&r, 8);
  offer->object = tt_wire_get_int(&r, 8);
  offer->same = (uint32_t)tt_wire_get_int(&r, 4);
  for (int way = LOCAL; way <= REMOTE; way++) get_export(&r, &offer->exports[way]);
  tt_wire_get_text(&r, offer->why, sizeof(offer->why));
  bool inside = offer->why[0] != '\0' ||
                (offer->offset <= offer->allocation && offer->bytes <= offer->allocation - offer->offset);
  if (r.bad || !inside || !right_kind(&offer->exports[LOCAL], LOCAL) || !right_kind(&offer->exports[REMOTE], REMOTE))
    return TT_FAIL(ncclRemoteError, "rank %d sent a malformed description of its window", rank);
  return ncclSuccess;
}

static ncclResult_t gather(const struct opening *o, struct tt_bootstrap *bootstrap, void *data, size_t bytes)
{
  return o->env->nranks > 1 ? tt_bootstrap_all_gather(bootstrap, data, bytes) : ncclSuccess;
}

static ncclResult_t exchange_offers(const struct opening *o, struct tt_bootstrap *bootstrap)
{
  int nranks = o->env->nranks;
  unsigned char(*packed)[OFFER_BYTES];
  TT_TRY(TT_CALLOC(&packed, (size_t)nranks));
  pack(o->mine, packed[o->env->rank]);
  ncclResult_t result = gather(o, bootstrap, packed, OFFER_BYTES);
  for (int r = 0; r < nranks && result == ncclSuccess; r++)
    if (r != o->env->rank) result = unpack(packed[r], r, &o->offers[r]);
  free(packed);
  return result;
}

/* ---- What all ranks conclude alike from the offers ---- */

static ncclResult_t compare_sizes(const struct opening *o)
{
  for (int r = 1; r < o->env->nranks; r++)
    if (o->offers[r].bytes != o->offers[0].bytes)
      return TT_FAIL(ncclInvalidArgument,
                     "ncclCommWindowRegister: size is %" PRIu64 " on rank 0 and %" PRIu64
                     " on rank %d; it must be equal on all ranks",
                     o->offers[0].bytes, o->offers[r].bytes, r);
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
    if (offer->why[0] != '\0') {
      memcpy(why, offer->why, WHY_BYTES);
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
          o->env->rank, o->mine->bytes, o->ptr, rank, peer(o, rank)->host, why);
}

/* ---- Mapping, and the second exchange ---- */

static ncclResult_t map_peer(const struct opening *o, struct tt_user_window *window, int rank)
{
  const struct offer *offer = &o->offers[rank];
  struct tt_user_source source = {.rank = rank,
                                  .id = offer->id,
                                  .object = offer->object,
                                  .shown = offer->exports[same_process(o, rank) ? LOCAL : REMOTE]};
  TT_TRY(tt_user_import(o->buffers, &source, &window->imports[rank]));
  window->at[rank] = (unsigned char *)window->imports[rank]->memory.ptr + offer->offset;
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
                                    .bytes = o->mine->bytes,
                                    .id = o->mine->id};
  TT_TRY_GOTO(TT_CALLOC(&window->imports, (size_t)nranks), result, out);
  TT_TRY_GOTO(TT_CALLOC(&window->at, (size_t)nranks), result, out);
  window->at[o->env->rank] = o->ptr;
  for (int r = 0; r < nranks; r++) {
    if (is_neighbour(o, r)) TT_TRY_GOTO(map_peer(o, window, r), result, out);
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
    *out = tt_user_same(o->buffers, o->ptr, o->mine->bytes);
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
  o.mine->bytes = bytes;
  o.mine->exports[LOCAL].fd = o.mine->exports[REMOTE].fd = -1;
  o.buffers->last_number++;
  describe(&o);
  ncclResult_t result = agree(&o, bootstrap, out);
  if (o.mine->object != 0) tt_user_withdraw(o.buffers, o.mine->object);
  free(o.offers);
  return result;
}
