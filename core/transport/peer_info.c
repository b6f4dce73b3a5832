/* The serialised form of what ranks tell each other at init: little-endian, versioned, with bounded texts. */
#include "transport/peer_info.h"

#include <string.h>
#include "base/check.h"
#include "transport/wire.h"

#define INFO_MAGIC 0x49505454u /* "TTPI" */
#define INFO_VERSION 2

static void put_text(struct tt_wire_writer *w, const char *text, size_t field)
{
  char padded[128] = {0};
  size_t bytes = strnlen(text, field - 1);
  memcpy(padded, text, bytes);
  tt_wire_put(w, padded, field);
}

void tt_peer_info_pack(const struct tt_peer_info *info, unsigned char bytes[TT_PEER_INFO_BYTES])
{
  memset(bytes, 0, TT_PEER_INFO_BYTES);
  struct tt_wire_writer w = {.data = bytes, .size = TT_PEER_INFO_BYTES};
  tt_wire_put_int(&w, INFO_MAGIC, 4);
  tt_wire_put_int(&w, INFO_VERSION, 4);
  tt_wire_put_int(&w, (uint32_t)info->rank, 4);
  tt_wire_put_int(&w, (uint32_t)info->device, 4);
  tt_wire_put_int(&w, (uint32_t)info->pid, 4);
  tt_wire_put_int(&w, (uint32_t)info->node, 4);
  tt_wire_put_int(&w, info->host_hash, 8);
  tt_wire_put_int(&w, info->process, 8);
  tt_wire_put_int(&w, info->key.k0, 8);
  tt_wire_put_int(&w, info->key.k1, 8);
  put_text(&w, info->host, sizeof(info->host));
  put_text(&w, info->uds, sizeof(info->uds));
  tt_wire_put(&w, info->device_id, sizeof(info->device_id));
  put_text(&w, info->pci, sizeof(info->pci));
}

ncclResult_t tt_peer_info_unpack(const unsigned char bytes[TT_PEER_INFO_BYTES], struct tt_peer_info *info)
{
  memset(info, 0, sizeof(*info));
  struct tt_wire_reader r = {.data = bytes, .size = TT_PEER_INFO_BYTES};
  uint32_t magic = (uint32_t)tt_wire_get_int(&r, 4), version = (uint32_t)tt_wire_get_int(&r, 4);
  if (magic != INFO_MAGIC || version != INFO_VERSION)
    return TT_FAIL(
        ncclRemoteError,
        "a rank described itself in format %08x version %u, not %08x version %u: all ranks must use the same "
        "version of the library",
        magic, version, INFO_MAGIC, INFO_VERSION);
  info->rank = (int32_t)tt_wire_get_int(&r, 4);
  info->device = (int32_t)tt_wire_get_int(&r, 4);
  info->pid = (int32_t)tt_wire_get_int(&r, 4);
  info->node = (int32_t)tt_wire_get_int(&r, 4);
  info->host_hash = tt_wire_get_int(&r, 8);
  info->process = tt_wire_get_int(&r, 8);
  info->key.k0 = tt_wire_get_int(&r, 8);
  info->key.k1 = tt_wire_get_int(&r, 8);
  tt_wire_get_text(&r, info->host, sizeof(info->host));
  tt_wire_get_text(&r, info->uds, sizeof(info->uds));
  const unsigned char *id = tt_wire_get(&r, sizeof(info->device_id));
  if (id) memcpy(info->device_id, id, sizeof(info->device_id));
  tt_wire_get_text(&r, info->pci, sizeof(info->pci));
  if (r.bad) return TT_FAIL(ncclRemoteError, "rank %d described itself with a text that does not end", info->rank);
  return ncclSuccess;
}
