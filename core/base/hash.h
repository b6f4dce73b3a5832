/* Hashing, keyed authentication and random numbers. */
#ifndef TT_BASE_HASH_H
#define TT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include "nccl.h"

/* FNV-1a, 64 bits (public domain; offset basis and prime from the authors' page). Not for untrusted input. */
uint64_t tt_hash(const void *data, size_t bytes);
uint64_t tt_hash_more(uint64_t hash, const void *data, size_t bytes);

/* SipHash-2-4 with a 128-bit key (Aumasson and Bernstein, 2012): authenticates short messages. */
struct tt_key {
  uint64_t k0, k1;
};
uint64_t tt_hash_keyed(const struct tt_key *key, const void *data, size_t bytes);

/* Random bytes from the kernel (getrandom). */
ncclResult_t tt_random(void *out, size_t bytes);

#endif
