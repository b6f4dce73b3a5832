/* See device_conn.h. */
#include "transport/device_conn.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "transport/near.h"

#define VERSION 3

ncclResult_t tt_device_conn_begin(const struct tt_transport_env *env, struct tt_connector *connector, const char *what,
                                  struct tt_device_conn *common)
{
  connector->conn.peer = connector->peer;
  connector->conn.step = env->first_step;
  common->what = what;
  common->protocol = tt_connect_index_protocol(connector->index);
  TT_TRY(tt_buffers_layout(env, 1u << common->protocol, &common->buffers));
  if (common->buffers.slot_bytes[common->protocol] > 0) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "device %s has no buffers for protocol %d", env->device->name, common->protocol);
}

struct tt_wire_writer tt_device_conn_write(const struct tt_connector *connector, const struct tt_device_conn *common,
                                           struct tt_handshake *mine)
{
  struct tt_wire_writer w = {.data = mine->data, .size = sizeof(mine->data)};
  tt_wire_put_int(&w, VERSION, 2);
  tt_wire_put_int(&w, connector->send, 1);
  tt_wire_put_int(&w, (unsigned)common->protocol, 1);
  tt_wire_put_int(&w, common->buffers.slot_bytes[common->protocol], 8);
  return w;
}

void tt_device_conn_written(const struct tt_wire_writer *w, struct tt_handshake *mine)
{
  mine->bytes = (uint16_t)w->at;
}

static ncclResult_t malformed(const struct tt_connector *connector, const struct tt_device_conn *common)
{
  return TT_FAIL(ncclRemoteError, "rank %d sent a malformed handshake for %s", connector->peer, common->what);
}

ncclResult_t tt_device_conn_read(const struct tt_connector *connector, const struct tt_device_conn *common,
                                 const struct tt_handshake *theirs, struct tt_wire_reader *r)
{
  *r = (struct tt_wire_reader){.data = theirs->data, .size = TT_MIN(theirs->bytes, sizeof(theirs->data))};
  unsigned version = (unsigned)tt_wire_get_int(r, 2);
  if (r->bad || version != VERSION)
    return TT_FAIL(ncclRemoteError,
                   "rank %d connects %s in version %u, this rank in %d: use one version of the library",
                   connector->peer, common->what, version, VERSION);
  bool sends = tt_wire_get_int(r, 1) != 0;
  int protocol = (int)tt_wire_get_int(r, 1);
  uint64_t slot_bytes = tt_wire_get_int(r, 8);
  size_t mine = common->buffers.slot_bytes[common->protocol];
  if (r->bad || sends == connector->send) return malformed(connector, common);
  if (protocol == common->protocol && slot_bytes == mine) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "rank %d has slots of %llu bytes for protocol %d, this rank %zu for protocol %d: buffer sizes must be "
                 "equal on all ranks",
                 connector->peer, (unsigned long long)slot_bytes, protocol, mine, common->protocol);
}

ncclResult_t tt_device_conn_read_all(const struct tt_connector *connector, const struct tt_device_conn *common,
                                     const struct tt_wire_reader *r)
{
  return r->bad || r->at != r->size ? malformed(connector, common) : ncclSuccess;
}

/* ---- Places in slabs ---- */

static int export_for(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  if (tt_near_same_process(env, connector)) return TT_EXPORT_HERE;
  return env->peers[connector->peer].node == env->peers[env->rank].node ? TT_EXPORT_NEAR : TT_EXPORT_FAR;
}

static bool has_handle(uint32_t kind)
{
  return kind == TT_EXPORT_HANDLE || kind == TT_EXPORT_FABRIC;
}

ncclResult_t tt_device_conn_write_place(const struct tt_transport_env *env, const struct tt_connector *connector,
                                        const struct tt_slab_piece *piece, struct tt_wire_writer *w)
{
  struct tt_device_export shown;
  TT_TRY(tt_slab_export(piece->slab, export_for(env, connector), &shown));
  tt_wire_put_int(w, shown.kind, 1);
  tt_wire_put_int(w, tt_slab_number(piece->slab), 4);
  tt_wire_put_int(w, shown.bytes, 8);
  tt_wire_put_int(w, piece->offset, 8);
  if (has_handle(shown.kind)) tt_wire_put(w, shown.handle, sizeof(shown.handle));
  return ncclSuccess;
}

void tt_device_conn_read_place(const struct tt_transport_env *env, const struct tt_connector *connector,
                               struct tt_wire_reader *r, struct tt_device_place *place)
{
  struct tt_device_export *shown = &place->source.shown;
  *place = (struct tt_device_place){.source.rank = connector->peer, .source.shown.fd = -1};
  shown->kind = (uint32_t)tt_wire_get_int(r, 1);
  place->source.number = (uint32_t)tt_wire_get_int(r, 4);
  shown->bytes = tt_wire_get_int(r, 8);
  place->offset = tt_wire_get_int(r, 8);
  const unsigned char *handle = has_handle(shown->kind) ? tt_wire_get(r, sizeof(shown->handle)) : NULL;
  if (handle) memcpy(shown->handle, handle, sizeof(shown->handle));
  /* A rank of this process must not be asked by a socket that nobody serves, nor another one by its pointers. */
  int whom = export_for(env, connector);
  if ((shown->kind == TT_EXPORT_LOCAL) != (whom == TT_EXPORT_HERE)) r->bad = true;
  if ((shown->kind == TT_EXPORT_FABRIC) != (whom == TT_EXPORT_FAR)) r->bad = true;
  if (place->source.number & TT_SLAB_LENT) r->bad = true; /* indirect.c's */
}

ncclResult_t tt_device_conn_import(const struct tt_transport_env *env, const struct tt_connector *connector,
                                   const struct tt_device_place *place, size_t bytes, struct tt_import **import,
                                   unsigned char **at)
{
  TT_TRY(tt_imports_get(env->imports, &place->source, import));
  *at = tt_import_at(*import, place->offset, bytes);
  if (*at) return ncclSuccess;
  tt_imports_put(env->imports, *import);
  *import = NULL;
  return TT_FAIL(ncclRemoteError, "rank %d named %zu bytes at %llu, which are not in the device memory of rank %d",
                 connector->peer, bytes, (unsigned long long)place->offset, place->source.rank);
}

const char *tt_device_conn_kind(uint32_t kind)
{
  switch (kind) {
  case TT_EXPORT_LOCAL:
    return "direct pointer";
  case TT_EXPORT_HANDLE:
    return "IPC";
  case TT_EXPORT_FABRIC:
    return "MNNVL";
  default:
    return "CUMEM";
  }
}

void tt_device_conn_end(struct tt_connector *connector)
{
  free(connector->resources);
  connector->resources = NULL;
  connector->bytes = 0;
}
