/* See agreed.h. */
#include "plan/agreed.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/hash.h"
#include "base/param.h"
#include "plan/epochs.h"
#include "program/emit.h"

#define TAG_ASK (TT_TAG_USER + 0x3000u)
#define TAG_REPLY (TT_TAG_USER + 0x3001u)
#define TAG_ALL_BITS 0xffffffffu

/* Questions kept: programs use few sizes. Rank 0 then answers no new ones, since an answer must not change; the others
 * may forget theirs, as rank 0 will repeat it. */
#define MOST_QUESTIONS 16384
#define BUCKETS 1024
#define QUESTION_BYTES offsetof(struct tt_tuner_query, calls) /* that say which question it is */

/* Answers about one kind of calls that rank 0 keeps before it makes epochs longer, and at most: ranks are a few epochs
 * apart, as long as they wait for each other's data. */
#define FREE_ANSWERS 4
#define MOST_ANSWERS 40

/* In both directions: a question with the sender's answer. */
struct message {
  struct tt_tuner_query query;
  struct tt_tuner_answer answer;
};

struct entry {
  struct entry *next;
  struct message content;
  bool used;       /* rank 0: its user came to it */
  int waited_for;  /* rank 0: ranks that do not have this answer, itself included */
  uint8_t heard[]; /* rank 0: a bit for each rank that has it */
};

struct tt_agreed {
  struct tt_agreed_config config;
  pthread_mutex_t lock; /* for all below, and during calls of rank 0's tuner */
  struct entry *buckets[BUCKETS];
  int count;
  int kinds;                /* rank 0, of a tuner that asks to be asked again: kinds of calls it was asked about */
  struct tt_epochs *epochs; /* of such a tuner, else NULL; not by the lock */
  bool warned_difference, warned_wrong, warned_room;
};

/* ---- The table ---- */

static struct entry **bucket_of(struct tt_agreed *agreed, const struct tt_tuner_query *query)
{
  return &agreed->buckets[tt_hash(query, QUESTION_BYTES) % BUCKETS];
}

static struct entry *find(struct tt_agreed *agreed, const struct tt_tuner_query *query)
{
  struct entry *entry = *bucket_of(agreed, query);
  while (entry != NULL && memcmp(&entry->content.query, query, QUESTION_BYTES) != 0) entry = entry->next;
  return entry;
}

static void forget_all(struct tt_agreed *agreed)
{
  for (int b = 0; b < BUCKETS; b++)
    while (agreed->buckets[b] != NULL) {
      struct entry *entry = agreed->buckets[b];
      agreed->buckets[b] = entry->next;
      free(entry);
    }
  agreed->count = 0;
}

/* Of a tuner that asks to be asked again only kinds are counted, of which none is ever forgotten: what depended on the
 * answers that are kept at a moment might be answered otherwise at another. */
static bool is_full(const struct tt_agreed *agreed)
{
  return agreed->epochs == NULL && agreed->count == MOST_QUESTIONS;
}

/* NULL: there is no room. */
static struct entry *keep(struct tt_agreed *agreed, const struct message *message)
{
  size_t bits = agreed->config.rank == 0 ? ((size_t)agreed->config.nranks + 7) / 8 : 0;
  bool full = is_full(agreed);
  if (full && agreed->config.rank != 0) forget_all(agreed);
  struct entry *entry = full && agreed->config.rank == 0 ? NULL : calloc(1, sizeof *entry + bits);
  if (entry == NULL) return NULL;
  struct entry **bucket = bucket_of(agreed, &message->query);
  entry->content = *message;
  entry->waited_for = agreed->config.nranks;
  entry->next = *bucket;
  *bucket = entry;
  agreed->count++;
  return entry;
}

/* On rank 0: a rank has the answer. Where there are more questions to come it is needed no longer than by all. */
static void give(struct tt_agreed *agreed, struct entry *entry, int rank)
{
  uint8_t bit = (uint8_t)(1u << rank % 8);
  if (!(entry->heard[rank / 8] & bit)) entry->waited_for--;
  entry->heard[rank / 8] |= bit;
  entry->used |= rank == 0;
  if (entry->waited_for > 0 || agreed->epochs == NULL) return;
  struct entry **place = bucket_of(agreed, &entry->content.query);
  while (*place != entry) place = &(*place)->next;
  *place = entry->next;
  agreed->count--;
  free(entry);
}

/* ---- Asking, and saying what came of it ---- */

/* Says in the log what was asked and answered; the choice's own line says what came of it. Locked. */
static void report(struct tt_agreed *agreed, const struct message *message)
{
  const struct tt_tuner_query *query = &message->query;
  const char *name = tt_tuner_name(agreed->config.tuner), *collective = tt_collective_name(query->collective);
  char said[256];
  tt_tuner_describe(&message->answer, said, sizeof said);
  if (tt_tuner_is_wrong(&message->answer) && !agreed->warned_wrong) {
    agreed->warned_wrong = true;
    TT_WARN("rank %d: tuner %s, asked for %s of %llu bytes, says %s%s: the core chooses; this is a fault of the tuner, "
            "%s, and further ones are told at INFO",
            agreed->config.rank, name, collective, (unsigned long long)query->bytes, said,
            message->answer.chunk_result != ncclSuccess ? ", and its getChunkSize fails" : "",
            tt_tuner_path(agreed->config.tuner));
    return;
  }
  TT_INFO(TT_TUNING, "Tuner: %s, asked for %s of %llu bytes, says %s", name, collective,
          (unsigned long long)query->bytes, said);
}

/* Both sides say it: either's log may be the one that is read. Locked. */
static void report_difference(struct tt_agreed *agreed, int rank, const struct tt_tuner_query *query,
                              const struct tt_tuner_answer *theirs, const struct tt_tuner_answer *zero)
{
  char a[256], b[256];
  tt_tuner_describe(theirs, a, sizeof a);
  tt_tuner_describe(zero, b, sizeof b);
  if (agreed->warned_difference) {
    TT_INFO(TT_TUNING, "Tuner: for %s of %llu bytes rank %d's says %s, and rank 0's, which is used, %s",
            tt_collective_name(query->collective), (unsigned long long)query->bytes, rank, a, b);
    return;
  }
  agreed->warned_difference = true;
  TT_WARN("tuner %s answers differently on ranks: for %s of %llu bytes rank %d's says %s, rank 0's says %s, which all "
          "ranks use; it must answer alike on all ranks: give all the same files and variables, or use another one",
          tt_tuner_name(agreed->config.tuner), tt_collective_name(query->collective), (unsigned long long)query->bytes,
          rank, a, b);
}

static bool differs(const struct tt_tuner_answer *a, const struct tt_tuner_answer *zero)
{
  return zero->said != TT_SAID_TOO_MUCH && memcmp(a, zero, sizeof *a) != 0;
}

/* Where ranks are far apart the next question of this kind comes later. Locked. */
static void stretch(struct tt_agreed *agreed, struct message *message)
{
  struct tt_tuner_query before = message->query;
  int kept = 0;
  if (message->answer.again == 0) return;
  while (before.epoch-- > 0 && kept < MOST_ANSWERS && find(agreed, &before) != NULL) kept++;
  int shift = TT_MAX(kept - FREE_ANSWERS, 0);
  message->answer.again = TT_MIN(message->answer.again, UINT64_MAX >> MOST_ANSWERS) << shift;
}

/* Whether rank 0's tuner is asked a question that it was not asked before. Locked. */
static bool may_ask(struct tt_agreed *agreed, const struct tt_tuner_query *query)
{
  bool new_kind = agreed->epochs != NULL && query->epoch == 0;
  if (is_full(agreed) || (new_kind && agreed->kinds == MOST_QUESTIONS)) return false;
  agreed->kinds += new_kind;
  return true;
}

/* Rank 0's answer, and its entry, or NULL where there is no room for one. Locked. */
static struct entry *answer_as_zero(struct tt_agreed *agreed, struct message *message)
{
  const struct tt_agreed_config *config = &agreed->config;
  struct entry *entry = find(agreed, &message->query);
  if (entry != NULL) {
    message->answer = entry->content.answer;
    return entry;
  }
  if (may_ask(agreed, &message->query)) {
    tt_tuner_answer(config->tuning, config->tuner, &message->query, &message->answer);
    stretch(agreed, message);
    entry = keep(agreed, message);
  }
  if (entry != NULL) {
    report(agreed, message);
    return entry;
  }
  message->answer = (struct tt_tuner_answer){.said = TT_SAID_TOO_MUCH, .refused_algorithm = -1, .refused_protocol = -1};
  if (!agreed->warned_room)
    TT_INFO(TT_TUNING, "Tuner: %s has answered %d questions and is not asked new ones", tt_tuner_name(config->tuner),
            MOST_QUESTIONS);
  agreed->warned_room = true;
  return NULL;
}

/* On rank 0's service thread. */
static void on_question(void *context, int peer, uint32_t tag, const void *data, size_t bytes)
{
  struct tt_agreed *agreed = context;
  struct message theirs, reply;
  (void)tag;
  if (bytes != sizeof theirs || peer <= 0 || peer >= agreed->config.nranks) return;
  memcpy(&theirs, data, sizeof theirs);
  if (theirs.query.collective < TT_FUNC_BROADCAST || theirs.query.collective > TT_FUNC_ALL_REDUCE) return;
  reply = theirs;
  pthread_mutex_lock(&agreed->lock);
  struct entry *entry = answer_as_zero(agreed, &reply);
  if (entry != NULL) give(agreed, entry, peer);
  if (agreed->epochs == NULL && differs(&theirs.answer, &reply.answer))
    report_difference(agreed, peer, &theirs.query, &theirs.answer, &reply.answer);
  pthread_mutex_unlock(&agreed->lock);
  tt_bootstrap_notify(agreed->config.bootstrap, peer, TAG_REPLY, &reply, sizeof reply);
}

/* Takes replies until the one that is wanted has come. Others are what rank 0 left behind. */
static ncclResult_t receive(struct tt_agreed *agreed, const struct tt_tuner_query *query, struct message *reply)
{
  tt_deadline deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000);
  for (;;) {
    void *data;
    size_t bytes;
    TT_TRY(tt_bootstrap_recv(agreed->config.bootstrap, 0, TAG_REPLY, &data, &bytes, deadline));
    bool right = bytes == sizeof *reply;
    if (right) memcpy(reply, data, sizeof *reply);
    free(data);
    if (!right)
      return TT_FAIL(ncclInternalError,
                     "rank 0's answer of its tuner has %zu bytes, not %zu: run the same version of "
                     "this library on all ranks",
                     bytes, sizeof *reply);
    if (memcmp(&reply->query, query, QUESTION_BYTES) == 0) return ncclSuccess;
    pthread_mutex_lock(&agreed->lock);
    if (find(agreed, &reply->query) == NULL) (void)keep(agreed, reply);
    pthread_mutex_unlock(&agreed->lock);
  }
}

/* On other ranks: what rank 0 says, from the table or from itself. */
static ncclResult_t ask_zero(struct tt_agreed *agreed, struct message *message)
{
  const struct tt_agreed_config *config = &agreed->config;
  struct message mine = *message;
  if (agreed->epochs == NULL) tt_tuner_answer(config->tuning, config->tuner, &mine.query, &mine.answer);
  tt_bootstrap_notify(config->bootstrap, 0, TAG_ASK, &mine, sizeof mine);
  TT_TRY(receive(agreed, &mine.query, message));
  if (agreed->epochs != NULL) return ncclSuccess; /* which remember it */
  pthread_mutex_lock(&agreed->lock);
  report(agreed, &mine);
  if (differs(&mine.answer, &message->answer))
    report_difference(agreed, config->rank, &mine.query, &mine.answer, &message->answer);
  (void)keep(agreed, message); /* without memory it is asked again */
  pthread_mutex_unlock(&agreed->lock);
  return ncclSuccess;
}

/* The answer that all ranks have. */
static ncclResult_t ask(struct tt_agreed *agreed, const struct tt_tuner_query *query, struct tt_tuner_answer *answer)
{
  struct message message = {.query = *query};
  bool zero = agreed->config.rank == 0;
  pthread_mutex_lock(&agreed->lock);
  struct entry *entry = zero ? answer_as_zero(agreed, &message) : find(agreed, query);
  bool asked = zero || entry != NULL;
  if (entry != NULL) {
    message.answer = entry->content.answer;
    if (zero) give(agreed, entry, 0);
  }
  pthread_mutex_unlock(&agreed->lock);
  if (!asked) TT_TRY(ask_zero(agreed, &message));
  *answer = message.answer;
  return ncclSuccess;
}

/* The answer of an epoch, which is asked for once. `epoch` NULL: there is no room for one. */
static ncclResult_t ask_epoch(struct tt_agreed *agreed, const struct tt_tuner_query *kind, struct tt_epoch *epoch,
                              struct tt_tuner_answer *answer)
{
  if (epoch == NULL || !epoch->known) TT_TRY(ask(agreed, epoch != NULL ? &epoch->query : kind, answer));
  if (epoch != NULL && !epoch->known) tt_epochs_learn(epoch, answer);
  if (epoch != NULL) *answer = epoch->answer;
  return ncclSuccess;
}

ncclResult_t tt_agreed_count(struct tt_agreed *agreed, const struct tt_tuner_query *kind, uint64_t *choice)
{
  struct tt_tuner_answer answer;
  *choice = 0;
  if (agreed->epochs == NULL) return ncclSuccess;
  struct tt_epoch *epoch;
  TT_TRY(tt_epochs_count(agreed->epochs, kind, &epoch));
  TT_TRY(ask_epoch(agreed, kind, epoch, &answer));
  if (epoch != NULL) *choice = epoch->choice;
  return ncclSuccess;
}

bool tt_agreed_take_back(struct tt_agreed *agreed, uint64_t choice)
{
  return agreed->epochs == NULL || tt_epochs_take_back(agreed->epochs, choice);
}

ncclResult_t tt_agreed_choose(struct tt_agreed *agreed, const struct tt_tuner_query *query, struct tt_choice *choice)
{
  struct tt_tuner_answer answer;
  struct tt_epoch *epoch = NULL;
  if (agreed->epochs != NULL) TT_TRY(tt_epochs_look(agreed->epochs, query, &epoch));
  TT_TRY(ask_epoch(agreed, query, epoch, &answer));
  return tt_tuner_obey(agreed->config.tuning, query, &answer, choice);
}

/* ---- Life ---- */

ncclResult_t tt_agreed_create(const struct tt_agreed_config *config, struct tt_agreed **out)
{
  struct tt_agreed *agreed;
  *out = NULL;
  TT_TRY(TT_CALLOC(&agreed, 1));
  agreed->config = *config;
  pthread_mutex_init(&agreed->lock, NULL);
  ncclResult_t result = tt_tuner_asks_again(config->tuner) ? tt_epochs_create(&agreed->epochs) : ncclSuccess;
  if (result == ncclSuccess && config->rank == 0)
    result = tt_bootstrap_set_handler(config->bootstrap, TAG_ASK, TAG_ALL_BITS, on_question, agreed);
  if (result != ncclSuccess) {
    tt_agreed_destroy(agreed, false);
    return result;
  }
  *out = agreed;
  return ncclSuccess;
}

/* Rank 0 may be through with a broadcast before another rank comes to it, and be gone when that one asks. */
static void leave_behind(struct tt_agreed *agreed)
{
  for (int b = 0; b < BUCKETS; b++)
    for (const struct entry *entry = agreed->buckets[b]; entry != NULL; entry = entry->next)
      for (int r = 1; r < agreed->config.nranks; r++)
        if (entry->used && !(entry->heard[r / 8] & 1u << r % 8))
          tt_bootstrap_notify(agreed->config.bootstrap, r, TAG_REPLY, &entry->content, sizeof entry->content);
}

void tt_agreed_destroy(struct tt_agreed *agreed, bool fine)
{
  if (agreed == NULL) return;
  if (agreed->config.rank == 0) {
    tt_bootstrap_set_handler(agreed->config.bootstrap, TAG_ASK, TAG_ALL_BITS, NULL, NULL);
    if (fine) leave_behind(agreed);
  }
  forget_all(agreed);
  tt_epochs_destroy(agreed->epochs);
  pthread_mutex_destroy(&agreed->lock);
  free(agreed);
}
