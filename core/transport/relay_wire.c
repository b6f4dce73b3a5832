/* See relay_wire.h. */
#include "transport/relay_wire.h"

#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "transport/wire.h"

#define VERSION 1
enum { REQUEST = 1, REFUSAL = 2 };
#define REQUEST_BYTES (2 + 1 + 2 * 8 + 5 * 4 + 8 + 8 * TT_NUM_PROTOCOLS + NCCL_NET_HANDLE_MAXSIZE)
#define REFUSAL_BYTES (2 + 1 + 8 + TT_DESK_TEXT)
_Static_assert(REQUEST_BYTES <= TT_RELAY_MESSAGE_MAX && REFUSAL_BYTES <= TT_RELAY_MESSAGE_MAX, "both fit");

size_t tt_relay_pack_request(const struct tt_relay_request *request, unsigned char data[TT_RELAY_MESSAGE_MAX])
{
  struct tt_wire_writer w = {.data = data, .size = REQUEST_BYTES};
  tt_wire_put_int(&w, VERSION, 2);
  tt_wire_put_int(&w, REQUEST, 1);
  tt_wire_put_int(&w, request->block, 8);
  tt_wire_put_int(&w, request->bell, 8);
  tt_wire_put_int(&w, (uint32_t)request->device, 4);
  tt_wire_put_int(&w, (uint32_t)request->peer, 4);
  tt_wire_put_int(&w, (uint32_t)request->channel, 4);
  tt_wire_put_int(&w, (uint32_t)request->index, 4);
  tt_wire_put_int(&w, (uint32_t)request->pooled, 4);
  tt_wire_put_int(&w, request->first_step, 8);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) tt_wire_put_int(&w, request->slot_bytes[p], 8);
  tt_wire_put(&w, request->handle, sizeof(request->handle));
  return w.at;
}

size_t tt_relay_pack_refusal(uint64_t block, const char *why, unsigned char data[TT_RELAY_MESSAGE_MAX])
{
  char text[TT_DESK_TEXT] = {0};
  struct tt_wire_writer w = {.data = data, .size = REFUSAL_BYTES};
  snprintf(text, sizeof(text), "%s", why);
  tt_wire_put_int(&w, VERSION, 2);
  tt_wire_put_int(&w, REFUSAL, 1);
  tt_wire_put_int(&w, block, 8);
  tt_wire_put(&w, text, sizeof(text));
  return w.at;
}

ncclResult_t tt_relay_send_request(struct tt_bootstrap *bootstrap, int relay, const struct tt_relay_request *request)
{
  unsigned char data[TT_RELAY_MESSAGE_MAX];
  return tt_bootstrap_send_unless_left(bootstrap, relay, TT_TAG_RELAY, data, tt_relay_pack_request(request, data));
}

void tt_relay_send_refusal(struct tt_bootstrap *bootstrap, int user, uint64_t block, const char *why)
{
  unsigned char data[TT_RELAY_MESSAGE_MAX];
  tt_bootstrap_notify(bootstrap, user, TT_TAG_RELAY, data, tt_relay_pack_refusal(block, why, data));
}

static struct tt_wire_reader begin(const void *data, size_t bytes, unsigned kind)
{
  struct tt_wire_reader r = {.data = data, .size = bytes};
  bool known = tt_wire_get_int(&r, 2) == VERSION && tt_wire_get_int(&r, 1) == kind;
  r.bad = r.bad || !known;
  return r;
}

bool tt_relay_parse_request(const void *data, size_t bytes, struct tt_relay_request *request)
{
  struct tt_wire_reader r = begin(data, bytes, REQUEST);
  memset(request, 0, sizeof(*request));
  request->block = tt_wire_get_int(&r, 8);
  request->bell = tt_wire_get_int(&r, 8);
  request->device = (int32_t)tt_wire_get_int(&r, 4);
  request->peer = (int32_t)tt_wire_get_int(&r, 4);
  request->channel = (int32_t)tt_wire_get_int(&r, 4);
  request->index = (int32_t)tt_wire_get_int(&r, 4);
  request->pooled = (int32_t)tt_wire_get_int(&r, 4);
  request->first_step = tt_wire_get_int(&r, 8);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) request->slot_bytes[p] = tt_wire_get_int(&r, 8);
  const unsigned char *handle = tt_wire_get(&r, sizeof(request->handle));
  if (handle) memcpy(request->handle, handle, sizeof(request->handle));
  return !r.bad && r.at == r.size;
}

bool tt_relay_parse_refusal(const void *data, size_t bytes, uint64_t *block, char why[TT_DESK_TEXT])
{
  struct tt_wire_reader r = begin(data, bytes, REFUSAL);
  *block = tt_wire_get_int(&r, 8);
  tt_wire_get_text(&r, why, TT_DESK_TEXT);
  return !r.bad && r.at == r.size;
}
