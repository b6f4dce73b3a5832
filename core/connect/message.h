/* What two ranks' connection services say to each other, as a versioned byte string.
 *
 * HALVES carries the sender's ends of connections with their handshakes; READY says that its ends of the listed
 * connections can carry data; FAILED says that they never will, and why. A message concerns one index of
 * tt_connect_index and any number of channels in both directions. */
#ifndef TT_CONNECT_MESSAGE_H
#define TT_CONNECT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "transport/transport.h"

enum tt_connect_kind { TT_CONNECT_HALVES = 1, TT_CONNECT_READY = 2, TT_CONNECT_FAILED = 3 };
#define TT_CONNECT_TEXT 512

struct tt_connect_record {
  int channel;
  bool send; /* the sender of the message sends data on it */
  enum tt_transport_id transport;
  struct tt_handshake handshake; /* empty but in HALVES */
};

/* Builds a message. Zero-initialise; `data` is malloc'ed and the caller's. */
struct tt_connect_message {
  unsigned char *data;
  size_t bytes, capacity;
};
ncclResult_t tt_connect_message_begin(struct tt_connect_message *message, enum tt_connect_kind kind, int index,
                                      const char *text);
ncclResult_t tt_connect_message_add(struct tt_connect_message *message, const struct tt_connect_record *record);

/* A message taken apart. */
struct tt_connect_parsed {
  enum tt_connect_kind kind;
  int index;
  char text[TT_CONNECT_TEXT];
  int nrecords;
  struct tt_connect_record *records; /* free() */
};
/* False for bytes that no rank of this version wrote; *why then says what is wrong, and nothing is allocated. On lack
 * of memory too. */
bool tt_connect_message_parse(const void *data, size_t bytes, struct tt_connect_parsed *parsed, const char **why);

#endif
