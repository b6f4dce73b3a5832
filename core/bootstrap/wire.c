/* Packing and parsing of what the bootstrap sends; see wire.h. */
#include "bootstrap/wire.h"

#include <stdio.h>
#include <string.h>
#include "base/check.h"

static const char id_magic[8] = {'T', 'U', 'T', 'T', 'I', '-', 'I', 'D'};
#define HANDSHAKE_MAGIC 0x42545554u /* "TUTB" */
#define MESSAGE_MAGIC 0x4d545554u   /* "TUTM" */

static void put_address(unsigned char *p, const union tt_address *address)
{
  memset(p, 0, 24);
  if (address->sa.sa_family == AF_INET) {
    p[0] = 4;
    tt_wire_put_u16(p + 2, ntohs(address->v4.sin_port));
    memcpy(p + 8, &address->v4.sin_addr, 4);
  } else if (address->sa.sa_family == AF_INET6) {
    p[0] = 6;
    tt_wire_put_u16(p + 2, ntohs(address->v6.sin6_port));
    tt_wire_put_u32(p + 4, address->v6.sin6_scope_id);
    memcpy(p + 8, &address->v6.sin6_addr, 16);
  }
}

static bool get_address(const unsigned char *p, union tt_address *address)
{
  uint16_t port = tt_wire_get_u16(p + 2);
  memset(address, 0, sizeof(*address));
  if (p[1] != 0 || port == 0) return false;
  if (p[0] == 4) {
    address->v4.sin_family = AF_INET;
    address->v4.sin_port = htons(port);
    memcpy(&address->v4.sin_addr, p + 8, 4);
    return true;
  }
  if (p[0] != 6) return false;
  address->v6.sin6_family = AF_INET6;
  address->v6.sin6_port = htons(port);
  address->v6.sin6_scope_id = tt_wire_get_u32(p + 4);
  memcpy(&address->v6.sin6_addr, p + 8, 16);
  return true;
}

void tt_wire_put_endpoint(unsigned char bytes[TT_ENDPOINT_BYTES], const struct tt_endpoint *endpoint)
{
  memset(bytes, 0, TT_ENDPOINT_BYTES);
  for (int i = 0; i < endpoint->count; i++) put_address(bytes + 24 * i, &endpoint->addresses[i]);
}

bool tt_wire_get_endpoint(const unsigned char bytes[TT_ENDPOINT_BYTES], struct tt_endpoint *endpoint)
{
  memset(endpoint, 0, sizeof(*endpoint));
  for (int i = 0; i < TT_ENDPOINT_ADDRESSES && bytes[24 * i] != 0; i++) {
    if (!get_address(bytes + 24 * i, &endpoint->addresses[i])) return false;
    endpoint->count = i + 1;
  }
  return endpoint->count > 0;
}

/* Id: magic 8, version 2, flags 1, zero 5, key 16, nonce 8, host 8, endpoint 72, check 8. */
void tt_wire_put_id(ncclUniqueId *id_bytes, const struct tt_id *id)
{
  unsigned char *p = (unsigned char *)id_bytes->internal;
  memset(p, 0, NCCL_UNIQUE_ID_BYTES);
  memcpy(p, id_magic, 8);
  tt_wire_put_u16(p + 8, TT_WIRE_VERSION);
  p[10] = id->fixed;
  tt_wire_put_u64(p + 16, id->key.k0);
  tt_wire_put_u64(p + 24, id->key.k1);
  tt_wire_put_u64(p + 32, id->nonce);
  tt_wire_put_u64(p + 40, id->host);
  tt_wire_put_endpoint(p + 48, &id->root);
  tt_wire_put_u64(p + 120, tt_hash(p, 120));
}

bool tt_wire_nonce_of(const ncclUniqueId *bytes, uint64_t *nonce)
{
  const unsigned char *p = (const unsigned char *)bytes->internal;
  *nonce = tt_wire_get_u64(p + 32);
  return memcmp(p, id_magic, 8) == 0 && p[10] == 0;
}

ncclResult_t tt_wire_get_id(const ncclUniqueId *id_bytes, struct tt_id *id)
{
  const unsigned char *p = (const unsigned char *)id_bytes->internal;
  unsigned char any = 0;
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) any |= p[i];
  memset(id, 0, sizeof(*id));
  if (any == 0)
    return TT_FAIL(ncclInvalidArgument, "the unique id is all zeros: it was never filled by ncclGetUniqueId, or did "
                                        "not reach this rank before ncclCommInitRank was called");
  if (memcmp(p, id_magic, 8) != 0)
    return TT_FAIL(ncclInvalidArgument,
                   "the unique id was not made by this library's ncclGetUniqueId: it starts with "
                   "%02x%02x%02x%02x%02x%02x%02x%02x; it is damaged or another library's",
                   p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]);
  if (tt_wire_get_u16(p + 8) != TT_WIRE_VERSION)
    return TT_FAIL(ncclInvalidArgument,
                   "the unique id has bootstrap protocol version %d, this rank's library has %d: "
                   "all ranks must load the same version of the library",
                   tt_wire_get_u16(p + 8), TT_WIRE_VERSION);
  if (tt_wire_get_u64(p + 120) != tt_hash(p, 120) || !tt_wire_get_endpoint(p + 48, &id->root))
    return TT_FAIL(ncclInvalidArgument,
                   "the unique id is damaged: its checksum is wrong; all %d bytes must reach every "
                   "rank unchanged",
                   NCCL_UNIQUE_ID_BYTES);
  id->fixed = p[10] != 0;
  id->key.k0 = tt_wire_get_u64(p + 16);
  id->key.k1 = tt_wire_get_u64(p + 24);
  id->nonce = tt_wire_get_u64(p + 32);
  id->host = tt_wire_get_u64(p + 40);
  return ncclSuccess;
}

/* Hello: magic 4, version 2, purpose 1, zero 1, nonce 8, client 16, rank 4, zero 4. */
void tt_wire_put_hello(unsigned char bytes[TT_HELLO_BYTES], const struct tt_hello *hello)
{
  memset(bytes, 0, TT_HELLO_BYTES);
  tt_wire_put_u32(bytes, HANDSHAKE_MAGIC);
  tt_wire_put_u16(bytes + 4, hello->version);
  bytes[6] = hello->purpose;
  tt_wire_put_u64(bytes + 8, hello->nonce);
  memcpy(bytes + 16, hello->client, TT_HANDSHAKE_NONCE);
  tt_wire_put_u32(bytes + 32, hello->rank);
}

bool tt_wire_get_hello(const unsigned char bytes[TT_HELLO_BYTES], struct tt_hello *hello)
{
  if (tt_wire_get_u32(bytes) != HANDSHAKE_MAGIC || bytes[7] != 0) return false;
  hello->version = tt_wire_get_u16(bytes + 4);
  hello->purpose = bytes[6];
  hello->nonce = tt_wire_get_u64(bytes + 8);
  memcpy(hello->client, bytes + 16, TT_HANDSHAKE_NONCE);
  hello->rank = tt_wire_get_u32(bytes + 32);
  return hello->purpose == TT_PURPOSE_CHECKIN || hello->purpose == TT_PURPOSE_PEER;
}

/* Challenge: magic 4, version 2, status 1, zero 1, server 16, mac 8. */
void tt_wire_put_challenge(unsigned char bytes[TT_CHALLENGE_BYTES], const struct tt_challenge *challenge)
{
  memset(bytes, 0, TT_CHALLENGE_BYTES);
  tt_wire_put_u32(bytes, HANDSHAKE_MAGIC);
  tt_wire_put_u16(bytes + 4, challenge->version);
  bytes[6] = challenge->status;
  memcpy(bytes + 8, challenge->server, TT_HANDSHAKE_NONCE);
  tt_wire_put_u64(bytes + 24, challenge->mac);
}

bool tt_wire_get_challenge(const unsigned char bytes[TT_CHALLENGE_BYTES], struct tt_challenge *challenge)
{
  if (tt_wire_get_u32(bytes) != HANDSHAKE_MAGIC || bytes[7] != 0) return false;
  challenge->version = tt_wire_get_u16(bytes + 4);
  challenge->status = bytes[6];
  memcpy(challenge->server, bytes + 8, TT_HANDSHAKE_NONCE);
  challenge->mac = tt_wire_get_u64(bytes + 24);
  return challenge->status <= TT_CHALLENGE_UNKNOWN;
}

void tt_wire_put_proof(unsigned char bytes[TT_PROOF_BYTES], uint64_t mac)
{
  memset(bytes, 0, TT_PROOF_BYTES);
  tt_wire_put_u32(bytes, HANDSHAKE_MAGIC);
  tt_wire_put_u64(bytes + 8, mac);
}

bool tt_wire_get_proof(const unsigned char bytes[TT_PROOF_BYTES], uint64_t *mac)
{
  *mac = tt_wire_get_u64(bytes + 8);
  return tt_wire_get_u32(bytes) == HANDSHAKE_MAGIC && tt_wire_get_u32(bytes + 4) == 0;
}

uint64_t tt_wire_handshake_mac(const struct tt_key *key, enum tt_domain domain, const struct tt_hello *hello,
                               const unsigned char server[TT_HANDSHAKE_NONCE])
{
  unsigned char text[8 + TT_HELLO_BYTES + TT_HANDSHAKE_NONCE];
  tt_wire_put_u64(text, domain);
  tt_wire_put_hello(text + 8, hello);
  memcpy(text + 8 + TT_HELLO_BYTES, server, TT_HANDSHAKE_NONCE);
  return tt_hash_keyed(key, text, sizeof(text));
}

/* Header: magic 4, tag 4, bytes 8, mac 8. */
static uint64_t header_mac(const unsigned char bytes[TT_HEADER_BYTES], const struct tt_key *key, uint64_t sequence)
{
  unsigned char text[24];
  memcpy(text, bytes, 16);
  tt_wire_put_u64(text + 16, sequence);
  return tt_hash_keyed(key, text, sizeof(text));
}

void tt_wire_put_header(unsigned char bytes[TT_HEADER_BYTES], const struct tt_header *header, const struct tt_key *key,
                        uint64_t sequence)
{
  tt_wire_put_u32(bytes, MESSAGE_MAGIC);
  tt_wire_put_u32(bytes + 4, header->tag);
  tt_wire_put_u64(bytes + 8, header->bytes);
  tt_wire_put_u64(bytes + 16, header_mac(bytes, key, sequence));
}

const char *tt_wire_get_header(const unsigned char bytes[TT_HEADER_BYTES], struct tt_header *header,
                               const struct tt_key *key, uint64_t sequence)
{
  if (tt_wire_get_u32(bytes) != MESSAGE_MAGIC) return "a message does not start with the protocol's magic number";
  if (tt_wire_get_u64(bytes + 16) != header_mac(bytes, key, sequence)) return "a message's header is not authentic";
  header->tag = tt_wire_get_u32(bytes + 4);
  header->bytes = tt_wire_get_u64(bytes + 8);
  if (header->bytes > TT_MESSAGE_MAX) return "a message is longer than the limit of 1 GiB";
  return NULL;
}

uint64_t tt_wire_payload_mac(const struct tt_key *key, uint64_t sequence, const void *data, size_t bytes)
{
  struct tt_key mixed = {key->k0 ^ sequence, key->k1 ^ UINT64_C(0x7061796c6f616400)};
  return tt_hash_keyed(&mixed, data, bytes);
}

/* Check-in: rank 4, nranks 4, place 4, places 4, list 8, endpoint. */
void tt_wire_put_checkin(unsigned char bytes[TT_CHECKIN_BYTES], const struct tt_checkin *checkin)
{
  tt_wire_put_u32(bytes, (uint32_t)checkin->rank);
  tt_wire_put_u32(bytes + 4, (uint32_t)checkin->nranks);
  tt_wire_put_u32(bytes + 8, (uint32_t)checkin->place);
  tt_wire_put_u32(bytes + 12, (uint32_t)checkin->places);
  tt_wire_put_u64(bytes + 16, checkin->list);
  tt_wire_put_endpoint(bytes + 24, &checkin->endpoint);
}

bool tt_wire_get_checkin(const void *data, size_t size, struct tt_checkin *checkin)
{
  const unsigned char *bytes = data;
  if (size != TT_CHECKIN_BYTES) return false;
  uint32_t rank = tt_wire_get_u32(bytes), nranks = tt_wire_get_u32(bytes + 4);
  uint32_t place = tt_wire_get_u32(bytes + 8), places = tt_wire_get_u32(bytes + 12);
  if (nranks < 2 || nranks > TT_RANKS_MAX || rank >= nranks) return false;
  if (places < 2 || places > nranks || place >= places) return false;
  checkin->rank = (int)rank;
  checkin->nranks = (int)nranks;
  checkin->place = (int)place;
  checkin->places = (int)places;
  checkin->list = tt_wire_get_u64(bytes + 16);
  return tt_wire_get_endpoint(bytes + 24, &checkin->endpoint);
}

/* Answer: result 4, length of text 4, salt 16, two endpoints, text. */
size_t tt_wire_put_answer(unsigned char bytes[TT_ANSWER_BYTES], const struct tt_answer *answer)
{
  size_t length = strnlen(answer->text, TT_ANSWER_TEXT - 1), fixed = 24 + 2 * TT_ENDPOINT_BYTES;
  memset(bytes, 0, fixed);
  tt_wire_put_u32(bytes, (uint32_t)answer->result);
  tt_wire_put_u32(bytes + 4, (uint32_t)length);
  memcpy(bytes + 8, answer->salt, 16);
  tt_wire_put_endpoint(bytes + 24, &answer->previous);
  tt_wire_put_endpoint(bytes + 24 + TT_ENDPOINT_BYTES, &answer->next);
  memcpy(bytes + fixed, answer->text, length);
  return fixed + length;
}

bool tt_wire_get_answer(const void *data, size_t size, struct tt_answer *answer)
{
  const unsigned char *bytes = data;
  size_t fixed = 24 + 2 * TT_ENDPOINT_BYTES;
  memset(answer, 0, sizeof(*answer));
  if (size < fixed) return false;
  uint32_t result = tt_wire_get_u32(bytes), length = tt_wire_get_u32(bytes + 4);
  if (result >= ncclNumResults || length >= TT_ANSWER_TEXT || size != fixed + length) return false;
  answer->result = (ncclResult_t)result;
  memcpy(answer->salt, bytes + 8, 16);
  memcpy(answer->text, bytes + fixed, length);
  if (result != ncclSuccess) return true;
  return tt_wire_get_endpoint(bytes + 24, &answer->previous) &&
         tt_wire_get_endpoint(bytes + 24 + TT_ENDPOINT_BYTES, &answer->next);
}
