/* What a rank and the service that hands out another rank's memory say to each other on a Unix socket:
 *
 *     client: magic, version, its rank, the rank it wants, a nonce
 *     server: its nonce, and proof that it knows the key
 *     client: proof that it knows the key
 *     server: a last proof, and the descriptor
 *
 * The key is the server's, random, and told to the ranks of the communicator only. Each proof covers both nonces, so
 * neither side can replay what it has heard. */
#ifndef TT_TRANSPORT_MEMORY_WIRE_H
#define TT_TRANSPORT_MEMORY_WIRE_H

#include <stdint.h>
#include <string.h>
#include "base/hash.h"

#define TT_MEMORY_MAGIC 0x4d505454u /* "TTPM" */
#define TT_MEMORY_VERSION 1u

/* Both ends run on one host, so the structs themselves are the messages. */
struct tt_memory_hello {
  uint32_t magic, version;
  int32_t client, server;
  uint64_t nonce[2];
};
struct tt_memory_challenge {
  uint64_t nonce[2];
  uint64_t proof;
};
struct tt_memory_proof {
  uint64_t proof;
};

static inline uint64_t tt_memory_prove(const struct tt_key *key, char step, const struct tt_memory_hello *hello,
                                       const uint64_t server_nonce[2])
{
  unsigned char text[8 + sizeof(*hello) + 16] = {0};
  text[0] = (unsigned char)step;
  memcpy(text + 8, hello, sizeof(*hello));
  memcpy(text + 8 + sizeof(*hello), server_nonce, 16);
  return tt_hash_keyed(key, text, sizeof(text));
}

#endif
