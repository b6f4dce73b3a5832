/* What a rank and the service that hands out another rank's memory say to each other on a Unix socket:
 *
 *     client: magic, version, its rank, the rank it wants, a nonce, the object it wants
 *     server: its nonce, and proof that it knows the key
 *     client: proof that it knows the key
 *     server: a last proof, the object's bytes, and its descriptor
 *
 * Object 0 is the rank's shared memory, object k below 2^32 its slab k of device memory, the others are memory of users
 * (user_import.c). The key is the server's, random, and told to the ranks of the communicator only. Each proof covers
 * the hello and both nonces, so neither side can replay what it has heard. */
#ifndef TT_TRANSPORT_MEMORY_WIRE_H
#define TT_TRANSPORT_MEMORY_WIRE_H

#include <stdint.h>
#include <string.h>
#include "base/hash.h"

#define TT_MEMORY_MAGIC 0x4d505454u /* "TTPM" */
#define TT_MEMORY_VERSION 2u
#define TT_MEMORY_ARENA 0u

/* Both ends run on one host, so the structs themselves are the messages. */
struct tt_memory_hello {
  uint32_t magic, version;
  int32_t client, server;
  uint64_t nonce[2];
  uint64_t object;
};
struct tt_memory_challenge {
  uint64_t nonce[2];
  uint64_t proof;
};
struct tt_memory_proof {
  uint64_t proof;
};
struct tt_memory_grant {
  uint64_t proof, bytes;
};

/* `bytes`: of the object, in the last step; else 0. */
static inline uint64_t tt_memory_prove(const struct tt_key *key, char step, const struct tt_memory_hello *hello,
                                       const uint64_t server_nonce[2], uint64_t bytes)
{
  unsigned char text[8 + sizeof(*hello) + 16 + 8] = {0};
  text[0] = (unsigned char)step;
  memcpy(text + 8, hello, sizeof(*hello));
  memcpy(text + 8 + sizeof(*hello), server_nonce, 16);
  memcpy(text + 8 + sizeof(*hello) + 16, &bytes, 8);
  return tt_hash_keyed(key, text, sizeof(text));
}

#endif
