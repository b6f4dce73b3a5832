/* See epochs.h. */
#include "plan/epochs.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/hash.h"

#define BUCKETS 1024
#define KIND_BYTES offsetof(struct tt_tuner_query, epoch)
#define SAID_BYTES offsetof(struct tt_tuner_answer, again)

struct kind {
  struct kind *next;
  struct tt_epoch now;
  /* The one before, and the one after, which was begun and taken back: answers are not asked for twice. */
  struct tt_epoch before, after;
  bool has_before, has_after;
  uint64_t choice;               /* the last that was given */
  struct tt_tuner_answer answer; /* to which it was given */
};

struct tt_epochs {
  struct kind *buckets[BUCKETS];
  int count;
};

/* A choice is a kind's number and, in its lower half, that of an answer. */
#define KIND_SHIFT 32

ncclResult_t tt_epochs_create(struct tt_epochs **out)
{
  return TT_CALLOC(out, 1);
}

void tt_epochs_destroy(struct tt_epochs *epochs)
{
  for (int b = 0; epochs != NULL && b < BUCKETS; b++)
    for (struct kind *kind = epochs->buckets[b], *next; kind != NULL; kind = next) {
      next = kind->next;
      free(kind);
    }
  free(epochs);
}

/* Makes the kind if there is none, and room for it. */
static ncclResult_t find(struct tt_epochs *epochs, const struct tt_tuner_query *query, struct kind **out)
{
  struct kind **bucket = &epochs->buckets[tt_hash(query, KIND_BYTES) % BUCKETS], *kind = *bucket;
  while (kind != NULL && memcmp(&kind->now.query, query, KIND_BYTES) != 0) kind = kind->next;
  *out = kind;
  if (kind != NULL || epochs->count == TT_EPOCHS_KINDS) return ncclSuccess;
  TT_TRY(TT_CALLOC(&kind, 1));
  memcpy(&kind->now.query, query, KIND_BYTES);
  kind->choice = (uint64_t)epochs->count++ << KIND_SHIFT;
  kind->next = *bucket;
  *bucket = *out = kind;
  return ncclSuccess;
}

ncclResult_t tt_epochs_look(struct tt_epochs *epochs, const struct tt_tuner_query *query, struct tt_epoch **out)
{
  struct kind *kind;
  TT_TRY(find(epochs, query, &kind));
  *out = kind != NULL ? &kind->now : NULL;
  return ncclSuccess;
}

ncclResult_t tt_epochs_count(struct tt_epochs *epochs, const struct tt_tuner_query *query, struct tt_epoch **out)
{
  struct kind *kind;
  TT_TRY(find(epochs, query, &kind));
  *out = kind != NULL ? &kind->now : NULL;
  if (kind == NULL) return ncclSuccess;
  struct tt_epoch *now = &kind->now;
  if (now->known && now->answer.again != 0 && now->made == now->answer.again) {
    kind->before = *now;
    if (kind->has_after) {
      *now = kind->after;
    } else {
      *now = (struct tt_epoch){.query = now->query};
      now->query.epoch++;
      now->query.calls = kind->before.made;
    }
    kind->has_before = true;
    kind->has_after = false;
  }
  now->made++;
  return ncclSuccess;
}

void tt_epochs_learn(struct tt_epoch *epoch, const struct tt_tuner_answer *answer)
{
  struct kind *kind = (struct kind *)((char *)epoch - offsetof(struct kind, now));
  if (!(uint32_t)kind->choice || memcmp(&kind->answer, answer, SAID_BYTES) != 0) kind->choice++;
  kind->answer = epoch->answer = *answer;
  epoch->choice = kind->choice;
  epoch->known = true;
}

bool tt_epochs_take_back(struct tt_epochs *epochs, uint64_t choice)
{
  for (int b = 0; b < BUCKETS; b++)
    for (struct kind *kind = epochs->buckets[b]; kind != NULL; kind = kind->next) {
      if (kind->choice >> KIND_SHIFT != choice >> KIND_SHIFT) continue;
      if (kind->now.made == 0) return false;
      if (--kind->now.made > 0 || !kind->has_before) return true;
      kind->after = kind->now;
      kind->now = kind->before;
      kind->has_before = false;
      kind->has_after = true;
      return true;
    }
  return false;
}
