/* Calls of all ranks that may fail on some of them. Who does not go on with one tells its partners, and each rank hands
 * the first such word of a call on to its own: so all ranks know after a few steps, whomever they wait for. The word is
 * kept for those that come to the call later. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bootstrap/internal.h"

/* What is known of so many calls before the last one is kept, since several may be on their way at a time. An older
 * word is not handed on, either, so that none goes round for ever. */
#define KEPT 64

struct tt_given_up {
  struct tt_given_up *next;
  uint64_t number;
  int part, rank;
  char why[240];
};

/* What ends the call for a part: that of a rank that all need, or of one of the part. */
static const struct tt_given_up *find(const struct tt_bootstrap *b, uint64_t number, int part)
{
  const struct tt_given_up *known = b->given_up;
  while (known && !(known->number == number && (known->part == TT_PART_ALL || known->part == part)))
    known = known->next;
  return known;
}

void tt_calls_begin(struct tt_bootstrap *b, uint64_t number)
{
  b->last_call = TT_MAX(b->last_call, number);
  for (struct tt_given_up **place = &b->given_up; *place;) {
    struct tt_given_up *known = *place;
    if (known->number + KEPT >= b->last_call) {
      place = &known->next;
      continue;
    }
    *place = known->next;
    free(known);
  }
}

static void tell(struct tt_service_link *l, const struct tt_given_up *what)
{
  unsigned char note[16 + sizeof(what->why)];
  size_t length = strlen(what->why);
  tt_wire_put_u64(note, what->number);
  tt_wire_put_u32(note + 8, (uint32_t)what->part);
  tt_wire_put_u32(note + 12, (uint32_t)what->rank);
  memcpy(note + 16, what->why, length);
  (void)tt_link_send(l->link, TT_TAG_GAVE_UP, note, 16 + length);
}

/* Keeps the word and hands it on, if it is news. Without memory, neither: others may know it from elsewhere. */
static void learn(struct tt_bootstrap *b, uint64_t number, int part, int rank, const char *why, size_t length)
{
  struct tt_given_up *what;
  if (number + KEPT < b->last_call || find(b, number, part) || !(what = calloc(1, sizeof(*what)))) return;
  what->number = number;
  what->part = part;
  what->rank = rank;
  snprintf(what->why, sizeof(what->why), "%.*s", (int)TT_MIN(length, sizeof(what->why) - 1), why);
  what->next = b->given_up;
  b->given_up = what;
  TT_INFO(TT_INIT | TT_BOOTSTRAP, "Bootstrap: rank %d knows that rank %d gave up call %llu: %s", b->rank, rank,
          (unsigned long long)number, what->why);
  pthread_cond_broadcast(&b->changed);
  for (int i = 0; i < b->nlinks; i++) {
    struct tt_service_link *l = b->links[i];
    if (l->ready && !l->gone && !l->said && b->peers[l->peer].out == l) tell(l, what);
  }
  tt_service_wake(b); /* what the sockets do not take at once is the service's to send */
}

void tt_calls_heard(struct tt_bootstrap *b, const struct tt_message *message)
{
  if (message->bytes < 16) return;
  uint32_t rank = tt_wire_get_u32(message->data + 12);
  if (rank >= (uint32_t)b->nranks) return;
  learn(b, tt_wire_get_u64(message->data), (int)tt_wire_get_u32(message->data + 8), (int)rank,
        (const char *)message->data + 16, message->bytes - 16);
}

ncclResult_t tt_calls_check(const struct tt_bootstrap *b, const struct tt_bootstrap_call *call)
{
  const struct tt_given_up *known = find(b, call->number, call->part);
  if (!known) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "%s: rank %d gives up, since rank %d did: %s", call->function, b->rank, known->rank,
                 known->why);
}

void tt_calls_free(struct tt_bootstrap *b)
{
  while (b->given_up) {
    struct tt_given_up *known = b->given_up;
    b->given_up = known->next;
    free(known);
  }
}

void tt_bootstrap_call_give_up(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, const char *why)
{
  pthread_mutex_lock(&b->mutex);
  tt_calls_begin(b, call->number);
  learn(b, call->number, call->part, b->rank, why, strlen(why));
  pthread_mutex_unlock(&b->mutex);
}

ncclResult_t tt_bootstrap_call_check(struct tt_bootstrap *b, const struct tt_bootstrap_call *call)
{
  pthread_mutex_lock(&b->mutex);
  ncclResult_t result = tt_calls_check(b, call);
  pthread_mutex_unlock(&b->mutex);
  return result;
}

ncclResult_t tt_bootstrap_call_send(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, const void *data, size_t bytes)
{
  unsigned char *packed = malloc(TT_CALL_BYTES + bytes);
  if (!packed) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", bytes);
  tt_wire_put_u64(packed, call->number);
  if (bytes) memcpy(packed + TT_CALL_BYTES, data, bytes);
  ncclResult_t result = tt_bootstrap_send(b, peer, tag, packed, TT_CALL_BYTES + bytes);
  free(packed);
  return result;
}

ncclResult_t tt_bootstrap_call_recv(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, void **data, size_t *bytes, tt_deadline deadline)
{
  struct tt_message *message;
  *data = NULL;
  *bytes = 0;
  TT_TRY(tt_mail_receive(b, peer, tag, (struct tt_mail_scope){.call = call}, deadline, &message));
  size_t got = message->bytes - TT_CALL_BYTES;
  *data = malloc(got ? got : 1);
  if (*data) memcpy(*data, message->data + TT_CALL_BYTES, got);
  free(message);
  if (!*data) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", got);
  *bytes = got;
  return ncclSuccess;
}
