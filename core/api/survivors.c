/* The first of the survivors calls the others, and gives the id to those that reply. An attempt may fail on one rank
 * and not be known to another, which was not called by it, gave up earlier or has not come yet; so what is left of it
 * in the inboxes must be told from what comes next, and the ranks cannot agree on a number by counting. The first one
 * numbers its calls instead, and the others send the number back: a reply to an earlier call is passed over, and so is
 * an answer to a reply of an earlier attempt. */
#include "api/survivors.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"

#define TAG_WORD (TT_TAG_USER + 0x2001u)  /* of the first */
#define TAG_REPLY (TT_TAG_USER + 0x2002u) /* to it */

enum { CALLS, GIVES, FAILED };

struct word {
  uint64_t attempt;
  uint64_t kind;
  ncclUniqueId id;
};

struct reply {
  uint64_t attempt;
  uint64_t excluded; /* a hash of the list */
};

static tt_deadline deadline(void)
{
  return tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000);
}

static ncclResult_t receive(struct ncclComm *parent, int peer, uint32_t tag, void *out, size_t bytes, tt_deadline until)
{
  void *data;
  size_t got;
  TT_TRY(tt_bootstrap_recv(parent->bootstrap, peer, tag, &data, &got, until));
  if (got == bytes) memcpy(out, data, bytes);
  free(data);
  if (got == bytes) return ncclSuccess;
  return TT_FAIL(ncclInternalError, "ncclCommShrink: rank %d sent %zu bytes, not %zu; do all ranks run one version?",
                 peer, got, bytes);
}

/* ---- The first ---- */

static ncclResult_t say(struct ncclComm *parent, int member, const struct word *word)
{
  return tt_bootstrap_send(parent->bootstrap, member, TAG_WORD, word, sizeof *word);
}

/* Hears all, also when one differs or is gone: who has not replied would not know an answer for its own. */
static ncclResult_t hear(struct ncclComm *parent, const int *members, int nmembers, uint64_t excluded, bool *heard)
{
  ncclResult_t result = ncclSuccess;
  int differs = -1;
  tt_deadline until = deadline();
  for (int m = 1; m < nmembers; m++) {
    struct reply reply = {0};
    ncclResult_t received;
    do received = receive(parent, members[m], TAG_REPLY, &reply, sizeof reply, until);
    while (received == ncclSuccess && reply.attempt != parent->shrinks);
    heard[m] = received == ncclSuccess;
    if (heard[m] && reply.excluded != excluded && differs < 0) differs = members[m];
    if (result == ncclSuccess) result = received;
  }
  if (differs < 0) return result;
  return TT_FAIL(ncclInvalidUsage,
                 "ncclCommShrink: rank %d leaves out other ranks than rank %d does; all ranks that stay must give the "
                 "same list",
                 differs, parent->rank);
}

static ncclResult_t lead(struct ncclComm *parent, const int *members, int nmembers, uint64_t excluded, ncclUniqueId *id)
{
  bool *heard;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&heard, (size_t)nmembers));
  struct word word = {.attempt = ++parent->shrinks, .kind = CALLS};
  for (int m = 1; m < nmembers; m++) {
    ncclResult_t said = say(parent, members[m], &word);
    if (result == ncclSuccess) result = said;
  }
  ncclResult_t agreed = hear(parent, members, nmembers, excluded, heard);
  if (result == ncclSuccess) result = agreed;
  if (result == ncclSuccess) result = tt_bootstrap_own_id(id);
  word.kind = result == ncclSuccess ? GIVES : FAILED;
  if (result == ncclSuccess) word.id = *id;
  for (int m = 1; m < nmembers; m++) {
    ncclResult_t said = heard[m] ? say(parent, members[m], &word) : ncclSuccess;
    if (result == ncclSuccess) result = said;
  }
  free(heard);
  return result;
}

/* ---- The others ---- */

static ncclResult_t follow(struct ncclComm *parent, int first, uint64_t excluded, ncclUniqueId *id)
{
  struct word word;
  struct reply reply = {.excluded = excluded}; /* attempts begin with 1 */
  for (;;) {
    TT_TRY(receive(parent, first, TAG_WORD, &word, sizeof word, deadline()));
    if (word.kind == CALLS) {
      reply.attempt = word.attempt;
      TT_TRY(tt_bootstrap_send(parent->bootstrap, first, TAG_REPLY, &reply, sizeof reply));
    } else if (word.attempt == reply.attempt) {
      break;
    }
  }
  if (word.kind == FAILED)
    return TT_FAIL(ncclRemoteError,
                   "ncclCommShrink: rank %d, the first of the new communicator, failed; its log says why", first);
  *id = word.id;
  return ncclSuccess;
}

ncclResult_t tt_survivors_meet(struct ncclComm *parent, const int *members, int nmembers, uint64_t excluded,
                               ncclUniqueId *id)
{
  return members[0] == parent->rank ? lead(parent, members, nmembers, excluded, id)
                                    : follow(parent, members[0], excluded, id);
}
