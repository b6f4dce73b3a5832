/* Sends and receives between ranks of this process or of several, with data that tells who sent it and for which
 * time: what a test of messages that go in place needs, which are large. */
#ifndef TT_TESTS_PLAN_MESSAGES_H
#define TT_TESTS_PLAN_MESSAGES_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include "nccl.h"

/* Beyond the size up to which all are copied. */
enum { MESSAGE_COUNT = (5 << 20) / 4, MESSAGE_BYTES = MESSAGE_COUNT * 4 };

/* One rank's: partners, or -1; elements. */
struct messages {
  int rank, to, from;
  size_t count;
  uint32_t *in, *out;
};

void messages_fill(const struct messages *messages, uint32_t time);
/* The calls, which the caller puts in a group; the first failure. */
ncclResult_t messages_call(const struct messages *messages, ncclComm_t comm, void *stream);
void messages_check(const struct messages *messages, uint32_t time);
/* A partial permutation without fixed points at random: pairs, rings, chains, and ranks that are left out. */
void messages_draw(int n, uint64_t *random, int *to, int *from);
uint64_t messages_random(uint64_t *state);

void add_pairs(Suite *suite);
void add_offers(Suite *suite);
void add_offers_order(Suite *suite);

#endif
