/* What travels while two sides meet. */
#ifndef TT_PLUGINS_MEETING_WIRE_H
#define TT_PLUGINS_MEETING_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include "base/hash.h"

/* First bytes of the connecting side on each socket of a connection. Socket 0 is the main one. */
struct tt_meeting_hello {
  uint64_t magic;
  uint64_t connection; /* random: joins the sockets of one connection */
  uint32_t index;      /* of this socket */
  uint32_t count;      /* of sockets in the connection */
  uint64_t proof;      /* keyed hash of all before it */
};

/* The answer on the main socket once all sockets of the connection have arrived. */
struct tt_meeting_welcome {
  uint64_t magic;
  uint64_t connection;
  uint64_t proof;
};

static inline uint64_t tt_meeting_hello_proof(const struct tt_key *key, const struct tt_meeting_hello *hello)
{
  return tt_hash_keyed(key, hello, offsetof(struct tt_meeting_hello, proof));
}

static inline uint64_t tt_meeting_welcome_proof(const struct tt_key *key, const struct tt_meeting_welcome *welcome)
{
  return tt_hash_keyed(key, welcome, offsetof(struct tt_meeting_welcome, proof));
}

#endif
