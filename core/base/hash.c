/* FNV-1a, SipHash-2-4 and the kernel's random numbers. */
#include "base/hash.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/check.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x100000001b3u

uint64_t tt_hash_more(uint64_t hash, const void *data, size_t bytes)
{
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * FNV_PRIME;
  return hash;
}

uint64_t tt_hash(const void *data, size_t bytes)
{
  return tt_hash_more(FNV_BASIS, data, bytes);
}

static inline uint64_t rotate(uint64_t x, int bits)
{
  return (x << bits) | (x >> (64 - bits));
}

static void sip_rounds(uint64_t v[4], int rounds)
{
  for (int i = 0; i < rounds; i++) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
  }
}

/* The bytes that fill no word. Little-endian, so that all machines agree. */
static uint64_t load_rest(const unsigned char *at, size_t bytes)
{
  uint64_t word = 0;
  for (size_t i = 0; i < bytes; i++) word |= (uint64_t)at[i] << (8 * i);
  return word;
}

uint64_t tt_hash_keyed(const struct tt_key *key, const void *data, size_t bytes)
{
  const unsigned char *at = data;
  uint64_t v[4] = {key->k0 ^ 0x736f6d6570736575u, key->k1 ^ 0x646f72616e646f6du, key->k0 ^ 0x6c7967656e657261u,
                   key->k1 ^ 0x7465646279746573u};
  size_t left = bytes;
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    word = le64toh(word);
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
  }
  uint64_t last = load_rest(at, left) | (uint64_t)(bytes & 0xff) << 56;
  v[3] ^= last;
  sip_rounds(v, 2);
  v[0] ^= last;
  v[2] ^= 0xff;
  sip_rounds(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

ncclResult_t tt_random(void *out, size_t bytes)
{
  unsigned char *at = out;
  while (bytes > 0) {
    ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return TT_FAIL(ncclSystemError, "the kernel gave no random numbers: %s", strerror(errno));
    at += got;
    bytes -= (size_t)got;
  }
  return ncclSuccess;
}
