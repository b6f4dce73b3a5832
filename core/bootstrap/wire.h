/* The bytes that the bootstrap puts into ids and onto sockets: packing and parsing, nothing else.
 *
 * All numbers are little-endian. A parser takes bytes from anybody: it checks every field and allocates nothing, so
 * that random input can at worst be refused. */
#ifndef TT_BOOTSTRAP_WIRE_H
#define TT_BOOTSTRAP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nccl.h"
#include "base/hash.h"
#include "base/socket.h"

/* Changes whenever any format below does; ranks with different ones refuse each other by name. */
#define TT_WIRE_VERSION 3

/* Where somebody listens: candidates in order of preference. */
#define TT_ENDPOINT_ADDRESSES 3
#define TT_ENDPOINT_BYTES (TT_ENDPOINT_ADDRESSES * 24)
struct tt_endpoint {
  int count;
  union tt_address addresses[TT_ENDPOINT_ADDRESSES];
};
void tt_wire_put_endpoint(unsigned char bytes[TT_ENDPOINT_BYTES], const struct tt_endpoint *endpoint);
/* False if an address is malformed or none is there. */
bool tt_wire_get_endpoint(const unsigned char bytes[TT_ENDPOINT_BYTES], struct tt_endpoint *endpoint);

/* What a unique id says. */
struct tt_id {
  bool fixed; /* from NCCL_COMM_ID: rank 0 listens there, and the key is derived from the text */
  struct tt_key key;
  uint64_t nonce;
  uint64_t host; /* tt_host_hash() of the maker: a hint for error messages */
  struct tt_endpoint root;
};
void tt_wire_put_id(ncclUniqueId *bytes, const struct tt_id *id);
/* False for what is no id, and for that of NCCL_COMM_ID, which may be used again; else the id's nonce. Logs nothing. */
bool tt_wire_nonce_of(const ncclUniqueId *bytes, uint64_t *nonce);
/* ncclInvalidArgument saying what is wrong with it. */
ncclResult_t tt_wire_get_id(const ncclUniqueId *bytes, struct tt_id *id);

/* Handshake of every connection. Client: hello. Server: challenge, which proves that it knows the key. Client: proof.
 * Server: accept. The key never travels. */
enum tt_purpose { TT_PURPOSE_CHECKIN = 1, TT_PURPOSE_PEER = 2 };
#define TT_HANDSHAKE_NONCE 16
#define TT_HELLO_BYTES 40
struct tt_hello {
  uint16_t version;
  uint8_t purpose;
  uint64_t nonce; /* of the id, or of the communicator */
  unsigned char client[TT_HANDSHAKE_NONCE];
  uint32_t rank;
};
void tt_wire_put_hello(unsigned char bytes[TT_HELLO_BYTES], const struct tt_hello *hello);
bool tt_wire_get_hello(const unsigned char bytes[TT_HELLO_BYTES], struct tt_hello *hello);

enum tt_challenge_status { TT_CHALLENGE_OK = 0, TT_CHALLENGE_VERSION = 1, TT_CHALLENGE_UNKNOWN = 2 };
#define TT_CHALLENGE_BYTES 32
struct tt_challenge {
  uint16_t version;
  uint8_t status; /* anything but OK is not authenticated: a hint for messages */
  unsigned char server[TT_HANDSHAKE_NONCE];
  uint64_t mac;
};
void tt_wire_put_challenge(unsigned char bytes[TT_CHALLENGE_BYTES], const struct tt_challenge *challenge);
bool tt_wire_get_challenge(const unsigned char bytes[TT_CHALLENGE_BYTES], struct tt_challenge *challenge);

/* Proof and accept: magic and a MAC. */
#define TT_PROOF_BYTES 16
void tt_wire_put_proof(unsigned char bytes[TT_PROOF_BYTES], uint64_t mac);
bool tt_wire_get_proof(const unsigned char bytes[TT_PROOF_BYTES], uint64_t *mac);

/* What each MAC and derived key is for. */
enum tt_domain {
  TT_DOMAIN_SERVER = 1,
  TT_DOMAIN_CLIENT,
  TT_DOMAIN_ACCEPT,
  TT_DOMAIN_CLIENT_KEY0,
  TT_DOMAIN_CLIENT_KEY1,
  TT_DOMAIN_SERVER_KEY0,
  TT_DOMAIN_SERVER_KEY1
};
uint64_t tt_wire_handshake_mac(const struct tt_key *key, enum tt_domain domain, const struct tt_hello *hello,
                               const unsigned char server[TT_HANDSHAKE_NONCE]);

/* A message: header with its own MAC (so that nobody makes us allocate), payload, MAC of the payload. `sequence` counts
 * messages of a direction and travels only inside the MACs. */
#define TT_HEADER_BYTES 24
#define TT_TRAILER_BYTES 8
#define TT_MESSAGE_MAX ((uint64_t)1 << 30)
struct tt_header {
  uint32_t tag;
  uint64_t bytes;
};
void tt_wire_put_header(unsigned char bytes[TT_HEADER_BYTES], const struct tt_header *header, const struct tt_key *key,
                        uint64_t sequence);
/* NULL, or what is wrong. */
const char *tt_wire_get_header(const unsigned char bytes[TT_HEADER_BYTES], struct tt_header *header,
                               const struct tt_key *key, uint64_t sequence);
uint64_t tt_wire_payload_mac(const struct tt_key *key, uint64_t sequence, const void *data, size_t bytes);

/* A rank's check-in at the root, and the root's answer. */
#define TT_CHECKIN_BYTES (24 + TT_ENDPOINT_BYTES)
#define TT_RANKS_MAX (1 << 24)
struct tt_checkin {
  int rank, nranks;
  int place, places; /* among those that check in with this root: all ranks, unless there are several roots */
  uint64_t list;     /* hash of the unique ids, which all ranks must give in the same order */
  struct tt_endpoint endpoint;
};
void tt_wire_put_checkin(unsigned char bytes[TT_CHECKIN_BYTES], const struct tt_checkin *checkin);
bool tt_wire_get_checkin(const void *bytes, size_t size, struct tt_checkin *checkin);

#define TT_ANSWER_TEXT 1024
struct tt_answer {
  ncclResult_t result;               /* ncclInProgress: none yet, `text` says what is waited for */
  unsigned char salt[16];            /* what this communicator's key is derived with */
  struct tt_endpoint previous, next; /* neighbours in the ring of ranks; valid if ncclSuccess */
  char text[TT_ANSWER_TEXT];         /* why not */
};
/* Returns the number of bytes used. */
#define TT_ANSWER_BYTES (8 + 16 + 2 * TT_ENDPOINT_BYTES + TT_ANSWER_TEXT)
size_t tt_wire_put_answer(unsigned char bytes[TT_ANSWER_BYTES], const struct tt_answer *answer);
bool tt_wire_get_answer(const void *bytes, size_t size, struct tt_answer *answer);

static inline void tt_wire_put_u16(unsigned char *p, uint16_t v)
{
  p[0] = (unsigned char)v;
  p[1] = (unsigned char)(v >> 8);
}
static inline void tt_wire_put_u32(unsigned char *p, uint32_t v)
{
  for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> (8 * i));
}
static inline void tt_wire_put_u64(unsigned char *p, uint64_t v)
{
  for (int i = 0; i < 8; i++) p[i] = (unsigned char)(v >> (8 * i));
}
static inline uint16_t tt_wire_get_u16(const unsigned char *p)
{
  return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t tt_wire_get_u32(const unsigned char *p)
{
  return (uint32_t)tt_wire_get_u16(p) | (uint32_t)tt_wire_get_u16(p + 2) << 16;
}
static inline uint64_t tt_wire_get_u64(const unsigned char *p)
{
  return (uint64_t)tt_wire_get_u32(p) | (uint64_t)tt_wire_get_u32(p + 4) << 32;
}

#endif
