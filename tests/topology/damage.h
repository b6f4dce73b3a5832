/* Damage to files, for fuzzers: from a flipped byte to elements that changed their places. Deterministic. */
#ifndef TEST_DAMAGE_H
#define TEST_DAMAGE_H

#include <stddef.h>
#include <stdint.h>

/* A number below `below`. */
uint32_t damage_pick(uint64_t *state, uint32_t below);
/* The text with one to four damages, in a block of exactly its size, so that a sanitizer sees each overrun. The
 * caller's to free. It may hold any byte. */
char *damage(const char *text, size_t bytes, uint64_t *state, size_t *damaged);

#endif
