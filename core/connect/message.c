/* Messages between connection services: writing and defensive reading. */
#include "connect/message.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "connect/connect.h"
#include "transport/wire.h"

#define MAGIC 0x43505454u /* "TTPC" */
#define VERSION 1
#define HEADER_BYTES 14 /* magic, version, kind, index, bytes of text, records */
#define COUNT_AT 10
#define RECORD_BYTES 6 /* channel, send, transport, bytes of handshake */
#define MAX_RECORDS (2 * TT_MAX_CHANNELS)

static ncclResult_t reserve(struct tt_connect_message *message, size_t more, struct tt_wire_writer *w)
{
  if (message->bytes + more > message->capacity) {
    size_t capacity = 2 * message->capacity + more;
    unsigned char *grown = realloc(message->data, capacity);
    if (!grown) return TT_FAIL(ncclSystemError, "no memory for a message of %zu bytes", capacity);
    message->data = grown;
    message->capacity = capacity;
  }
  *w = (struct tt_wire_writer){.data = message->data, .size = message->capacity, .at = message->bytes};
  message->bytes += more;
  return ncclSuccess;
}

ncclResult_t tt_connect_message_begin(struct tt_connect_message *message, enum tt_connect_kind kind, int index,
                                      const char *text)
{
  size_t length = text ? strnlen(text, TT_CONNECT_TEXT - 1) : 0;
  struct tt_wire_writer w;
  TT_TRY(reserve(message, HEADER_BYTES + length, &w));
  tt_wire_put_int(&w, MAGIC, 4);
  tt_wire_put_int(&w, VERSION, 2);
  tt_wire_put_int(&w, kind, 1);
  tt_wire_put_int(&w, (unsigned)index, 1);
  tt_wire_put_int(&w, length, 2);
  tt_wire_put_int(&w, 0, 4);
  if (length) tt_wire_put(&w, text, length);
  return ncclSuccess;
}

ncclResult_t tt_connect_message_add(struct tt_connect_message *message, const struct tt_connect_record *record)
{
  struct tt_wire_writer w;
  TT_TRY(reserve(message, RECORD_BYTES + record->handshake.bytes, &w));
  tt_wire_put_int(&w, (unsigned)record->channel, 2);
  tt_wire_put_int(&w, record->send, 1);
  tt_wire_put_int(&w, record->transport, 1);
  tt_wire_put_int(&w, record->handshake.bytes, 2);
  tt_wire_put(&w, record->handshake.data, record->handshake.bytes);
  struct tt_wire_reader count = {.data = message->data, .size = message->bytes, .at = COUNT_AT};
  struct tt_wire_writer update = {.data = message->data, .size = message->bytes, .at = COUNT_AT};
  tt_wire_put_int(&update, tt_wire_get_int(&count, 4) + 1, 4);
  return ncclSuccess;
}

static const char *parse_record(struct tt_wire_reader *r, struct tt_connect_record *record)
{
  record->channel = (int)tt_wire_get_int(r, 2);
  unsigned send = (unsigned)tt_wire_get_int(r, 1), transport = (unsigned)tt_wire_get_int(r, 1);
  record->handshake.bytes = (uint16_t)tt_wire_get_int(r, 2);
  if (record->handshake.bytes > sizeof(record->handshake.data)) return "a handshake is too long";
  const unsigned char *data = tt_wire_get(r, record->handshake.bytes);
  if (r->bad) return "it is cut short";
  memcpy(record->handshake.data, data, record->handshake.bytes);
  if (record->channel >= TT_MAX_CHANNELS) return "a channel does not exist";
  if (send > 1) return "a direction does not exist";
  if (transport >= TT_NUM_TRANSPORTS) return "a transport does not exist";
  record->send = send == 1;
  record->transport = (enum tt_transport_id)transport;
  return NULL;
}

static const char *parse_header(struct tt_wire_reader *r, struct tt_connect_parsed *parsed)
{
  if (tt_wire_get_int(r, 4) != MAGIC || tt_wire_get_int(r, 2) != VERSION)
    return "it comes from another version of the library";
  unsigned kind = (unsigned)tt_wire_get_int(r, 1), index = (unsigned)tt_wire_get_int(r, 1);
  size_t length = tt_wire_get_int(r, 2);
  uint32_t count = (uint32_t)tt_wire_get_int(r, 4);
  const unsigned char *text = length < TT_CONNECT_TEXT ? tt_wire_get(r, length) : NULL;
  if (r->bad || !text) return "it is cut short";
  if (kind < TT_CONNECT_HALVES || kind > TT_CONNECT_FAILED) return "its kind does not exist";
  if (index >= TT_CONN_INDICES) return "its index does not exist";
  if (count > MAX_RECORDS) return "it has too many records";
  memcpy(parsed->text, text, length);
  parsed->text[length] = '\0';
  parsed->kind = (enum tt_connect_kind)kind;
  parsed->index = (int)index;
  parsed->nrecords = (int)count;
  return NULL;
}

bool tt_connect_message_parse(const void *data, size_t bytes, struct tt_connect_parsed *parsed, const char **why)
{
  struct tt_wire_reader r = {.data = data, .size = bytes};
  parsed->records = NULL;
  *why = parse_header(&r, parsed);
  if (*why) return false;
  parsed->records = malloc(((size_t)parsed->nrecords + 1) * sizeof(*parsed->records));
  if (!parsed->records) *why = "there is no memory for it";
  for (int i = 0; i < parsed->nrecords && !*why; i++) *why = parse_record(&r, &parsed->records[i]);
  if (!*why && r.at != r.size) *why = "it is longer than its records";
  if (!*why) return true;
  free(parsed->records);
  parsed->records = NULL;
  return false;
}
