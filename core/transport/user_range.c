/* See user_range.h. */
#include "transport/user_range.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/param.h"
#include "transport/user_internal.h"

#define HANDLE_BYTES sizeof(((struct tt_device_export *)0)->handle)

static void refuse(struct tt_user_range *range, const char *why)
{
  snprintf(range->why, sizeof(range->why), "%s", why);
}

/* ---- Finding the allocations ---- */

static ncclResult_t add_part(struct tt_user_range *range, const struct tt_device_buffer *buffer)
{
  if ((range->nparts & (range->nparts - 1)) == 0) { /* the room is a power of two */
    size_t room = TT_MAX(2 * (size_t)range->nparts, (size_t)1);
    struct tt_user_part *grown = realloc(range->parts, room * sizeof(*grown));
    if (!grown) return TT_FAIL(ncclSystemError, "no memory to describe %zu allocations", room);
    range->parts = grown;
  }
  range->parts[range->nparts++] =
      (struct tt_user_part){.id = buffer->id, .bytes = buffer->bytes, .exports = {{.fd = -1}, {.fd = -1}}};
  return ncclSuccess;
}

static bool may_have_parts(const struct tt_user_buffers *buffers)
{
  return (buffers->env->device->features & TT_DEVICE_PARTS) && tt_param_int(TT_PARAM_NCCL_MULTI_SEGMENT_REGISTER);
}

ncclResult_t tt_user_range_describe(struct tt_user_buffers *buffers, const void *ptr, size_t bytes,
                                    struct tt_user_range *range)
{
  const unsigned char *at = ptr, *end = at + bytes;
  *range = (struct tt_user_range){.bytes = bytes};
  if (!tt_user_memory_known(buffers->env)) {
    refuse(range, "this library of the device knows nothing of users' memory");
    return ncclSuccess;
  }
  while (at < end && range->why[0] == '\0') {
    struct tt_device_buffer buffer;
    if (tt_user_look(buffers, at, &buffer) != ncclSuccess || buffer.bytes == 0) {
      refuse(range, range->nparts == 0 ? tt_log_thread_error() : "it is not all in allocations");
    } else if (range->nparts == 1 && !may_have_parts(buffers)) {
      refuse(range, "it is not all in one allocation");
    } else if (range->nparts == TT_USER_PARTS) {
      snprintf(range->why, sizeof(range->why), "it is in more than %d allocations", TT_USER_PARTS);
    } else {
      if (range->nparts == 0) range->offset = (uint64_t)(at - (const unsigned char *)buffer.base);
      TT_TRY(add_part(range, &buffer));
      at = (const unsigned char *)buffer.base + buffer.bytes;
    }
  }
  return ncclSuccess;
}

/* ---- Exporting them ---- */

/* Which exports the ranks of this host need; says so if one cannot use any. */
static bool find_needs(const struct tt_user_buffers *buffers, struct tt_user_range *range, bool needed[2])
{
  const struct tt_transport_env *env = buffers->env;
  char reason[TT_USER_WHY];
  for (int r = 0; r < env->nranks; r++) {
    if (!tt_user_neighbour(env, r)) continue;
    if (!tt_transport_device.can(env, r, env->rank, reason, sizeof(reason))) {
      refuse(range, reason);
      return false;
    }
    needed[tt_user_way(env, r)] = true;
  }
  return true;
}

/* What goes by a descriptor becomes known to the service that hands it out; perhaps it is already. */
static ncclResult_t export_remote(struct tt_user_buffers *buffers, const void *ptr, struct tt_user_part *part)
{
  struct tt_device_export *out = &part->exports[TT_USER_REMOTE];
  const struct tt_device *device = buffers->env->device;
  if (tt_user_show_again(buffers, part->id, &part->object)) {
    *out = (struct tt_device_export){.kind = TT_EXPORT_FD, .fd = -1, .bytes = part->bytes};
    return ncclSuccess;
  }
  TT_TRY(device->export_buffer(buffers->context->handle, ptr, TT_EXPORT_NEAR, out));
  if (out->kind != TT_EXPORT_FD) return ncclSuccess;
  int fd = out->fd;
  out->fd = -1;
  return tt_user_show(buffers, fd, part->id, out->bytes, &part->object);
}

static ncclResult_t export_part(struct tt_user_buffers *buffers, const void *ptr, const bool needed[2],
                                struct tt_user_part *part)
{
  const struct tt_device *device = buffers->env->device;
  if (needed[TT_USER_LOCAL])
    TT_TRY(device->export_buffer(buffers->context->handle, ptr, TT_EXPORT_HERE, &part->exports[TT_USER_LOCAL]));
  return needed[TT_USER_REMOTE] ? export_remote(buffers, ptr, part) : ncclSuccess;
}

static bool can_export(const struct tt_user_buffers *buffers, const void *ptr, const bool needed[2])
{
  const uint32_t others = 1u << TT_EXPORT_FD | 1u << TT_EXPORT_HANDLE;
  struct tt_device_buffer buffer;
  if (tt_user_look(buffers, ptr, &buffer) != ncclSuccess) return false;
  return (!needed[TT_USER_LOCAL] || (buffer.exports & 1u << TT_EXPORT_LOCAL)) &&
         (!needed[TT_USER_REMOTE] || (buffer.exports & others));
}

void tt_user_range_export(struct tt_user_buffers *buffers, const void *ptr, struct tt_user_range *range)
{
  bool needed[2] = {false, false};
  const unsigned char *at = (const unsigned char *)ptr - range->offset;
  if (range->why[0] != '\0' || !find_needs(buffers, range, needed)) return;
  for (uint32_t p = 0; p < range->nparts && range->why[0] == '\0'; at += range->parts[p++].bytes) {
    if (!can_export(buffers, at, needed))
      refuse(range, "memory of this kind can be mapped by no other rank; allocate it with ncclMemAlloc");
    else if (export_part(buffers, at, needed, &range->parts[p]) != ncclSuccess)
      refuse(range, tt_log_thread_error()[0] ? tt_log_thread_error() : "the device cannot export it");
  }
}

void tt_user_range_withdraw(struct tt_user_buffers *buffers, const struct tt_user_range *range)
{
  for (uint32_t p = 0; p < range->nparts; p++)
    if (range->parts[p].object != 0) tt_user_withdraw(buffers, range->parts[p].object);
}

void tt_user_range_free(struct tt_user_range *range)
{
  free(range->parts);
  range->parts = NULL;
  range->nparts = 0;
}

/* ---- As bytes ---- */

static void put_export(struct tt_wire_writer *w, const struct tt_device_export *export)
{
  tt_wire_put_int(w, export->kind, 4);
  tt_wire_put_int(w, export->bytes, 8);
  tt_wire_put(w, export->handle, HANDLE_BYTES);
}

void tt_user_range_put(struct tt_wire_writer *w, const struct tt_user_range *range)
{
  tt_wire_put_int(w, range->bytes, 8);
  tt_wire_put_int(w, range->offset, 8);
  tt_wire_put_int(w, range->nparts, 4);
  tt_wire_put(w, range->why, sizeof(range->why));
  for (uint32_t p = 0; p < range->nparts; p++) {
    const struct tt_user_part *part = &range->parts[p];
    tt_wire_put_int(w, part->id, 8);
    tt_wire_put_int(w, part->bytes, 8);
    tt_wire_put_int(w, part->object, 8);
    for (int way = TT_USER_LOCAL; way <= TT_USER_REMOTE; way++) put_export(w, &part->exports[way]);
  }
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
  return way == TT_USER_LOCAL ? export->kind == TT_EXPORT_LOCAL
                              : export->kind == TT_EXPORT_FD || export->kind == TT_EXPORT_HANDLE;
}

static void get_part(struct tt_wire_reader *r, struct tt_user_part *part)
{
  *part = (struct tt_user_part){.id = tt_wire_get_int(r, 8)};
  part->bytes = tt_wire_get_int(r, 8);
  part->object = tt_wire_get_int(r, 8);
  for (int way = TT_USER_LOCAL; way <= TT_USER_REMOTE; way++) {
    get_export(r, &part->exports[way]);
    if (!right_kind(&part->exports[way], way)) r->bad = true;
  }
}

/* Whether the range is in its allocations, which are no longer than memory can be. */
static bool is_inside(const struct tt_user_range *range)
{
  uint64_t all = 0;
  for (uint32_t p = 0; p < range->nparts; p++) {
    if (range->parts[p].bytes > UINT64_MAX - all) return false;
    all += range->parts[p].bytes;
  }
  return range->nparts > 0 && range->offset < range->parts[0].bytes && range->bytes <= all - range->offset;
}

void tt_user_range_get(struct tt_wire_reader *r, struct tt_user_range *range)
{
  *range = (struct tt_user_range){.bytes = tt_wire_get_int(r, 8)};
  range->offset = tt_wire_get_int(r, 8);
  uint64_t nparts = tt_wire_get_int(r, 4);
  tt_wire_get_text(r, range->why, sizeof(range->why));
  if (nparts > TT_USER_PARTS) r->bad = true;
  if (r->bad || nparts == 0) {
    r->bad = r->bad || range->why[0] == '\0';
    return;
  }
  if (TT_CALLOC(&range->parts, nparts) != ncclSuccess) {
    r->bad = true;
    return;
  }
  range->nparts = (uint32_t)nparts;
  for (uint32_t p = 0; p < range->nparts; p++) get_part(r, &range->parts[p]);
  if (range->why[0] == '\0' && !is_inside(range)) r->bad = true;
}

/* ---- Mapping ---- */

ncclResult_t tt_user_range_map(struct tt_user_buffers *buffers, int rank, const struct tt_user_range *range,
                               struct tt_user_import **import, void **at)
{
  TT_TRY(tt_user_import(buffers, rank, range, import));
  *at = (unsigned char *)(*import)->memory.ptr + range->offset;
  return ncclSuccess;
}
