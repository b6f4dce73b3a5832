/* Questions to tuners, and answers; see tuner.h. */
#include "tuning/tuner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/check.h"
#include "program/emit.h"
#include "tuning/cost.h"
#include "tuning/cost_gpu.h"

/* A message of PAT has this many pieces at most, and a slot must hold a line of each. */
#define SMALLEST_CHUNK ((size_t)TT_MAX(512, TT_PAT_PIECES * TT_PIECE_ALIGN))

_Static_assert(sizeof(struct tt_tuner_query) == 32, "queries travel and are hashed as bytes");
_Static_assert(sizeof(struct tt_tuner_answer) == 48, "answers travel and are compared as bytes");
_Static_assert(TUTTI_NUM_ALGORITHMS == TT_NUM_ALGORITHMS, "tuners number algorithms as programs do");

/* ---- From a table to an answer ---- */

static bool is_changed(float before, float after)
{
  return memcmp(&before, &after, sizeof before) != 0;
}

/* Figures that are not negative; NaN is no figure. */
static bool is_figure(float cost)
{
  return cost >= 0;
}

void tt_tuner_weigh(const float before[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS],
                    const float after[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS], int nalgorithms,
                    const struct tt_tuner_reply *reply, struct tt_tuner_answer *answer)
{
  float best = 0, rest = 0, refused = 0; /* of the tuner's rows, of all rows as far as it left them alone, of -1 */
  int changes = 0, best_at = -1, rest_at = -1;
  memset(answer, 0, sizeof *answer);
  answer->refused_algorithm = answer->refused_protocol = -1;
  answer->nchannels = reply->nchannels;
  answer->again = reply->again;
  for (int i = 0; i < TT_NUM_ALGORITHMS * TT_NUM_PROTOCOLS; i++) {
    int a = i / TT_NUM_PROTOCOLS, p = i % TT_NUM_PROTOCOLS;
    bool known = a < nalgorithms, changed = known && is_changed(before[a][p], after[a][p]);
    float cost = known ? after[a][p] : before[a][p];
    if (!is_figure(before[a][p])) { /* no candidate, whatever was written */
      if (changed && is_figure(cost) && (answer->refused_algorithm < 0 || cost < refused)) {
        refused = cost;
        answer->refused_algorithm = a;
        answer->refused_protocol = p;
      }
      continue;
    }
    changes += changed;
    if (!is_figure(cost)) continue;
    if (known && (best_at < 0 || cost < best)) {
      best = cost;
      best_at = i;
    }
    if (!changed && (rest_at < 0 || cost < rest)) {
      rest = cost;
      rest_at = i;
    }
  }
  bool pair = best_at >= 0 && is_changed(before[best_at / TT_NUM_PROTOCOLS][best_at % TT_NUM_PROTOCOLS], best);
  int at = pair ? best_at : rest_at;
  if (reply->odd) {
    answer->said = TT_SAID_ODD;
    answer->refused_algorithm = reply->algorithm;
    answer->refused_protocol = reply->protocol;
  } else if (changes == 0) {
    answer->said = answer->refused_algorithm >= 0 ? TT_SAID_IMPOSSIBLE : TT_SAID_NOTHING;
  } else if (at < 0) {
    answer->said = TT_SAID_FORBADE_ALL;
  } else {
    answer->said = pair ? TT_SAID_PAIR : TT_SAID_REST;
    answer->algorithm = at / TT_NUM_PROTOCOLS;
    answer->protocol = at % TT_NUM_PROTOCOLS;
  }
}

/* What the tuner makes of the bytes that a channel sends at once, by the choice that its answer comes to. */
static void ask_chunk(const struct tt_tuning *tuning, struct tt_tuner *tuner, const struct tt_tuner_query *query,
                      const struct tt_tuner_question *question, int nalgorithms, struct tt_tuner_answer *answer)
{
  struct tt_choice choice;
  if (tt_tuner_obey(tuning, query, answer, &choice) != ncclSuccess || choice.algorithm >= nalgorithms) return;
  size_t chunk = tt_tuning_chunk(tuning, choice.protocol), before = chunk;
  answer->chunk_result =
      tt_tuner_ask_chunk(tuner, question, choice.algorithm, choice.protocol, choice.nchannels, &chunk);
  if (answer->chunk_result == ncclSuccess && chunk != before) answer->chunk = chunk;
}

void tt_tuner_answer(const struct tt_tuning *tuning, struct tt_tuner *tuner, const struct tt_tuner_query *query,
                     struct tt_tuner_answer *answer)
{
  float before[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS], after[TT_NUM_ALGORITHMS][TT_NUM_PROTOCOLS];
  const struct tt_tuner_question question = {.collective = query->collective,
                                             .bytes = (size_t)query->bytes,
                                             .pipe_ops = 1,
                                             .variant = query->without,
                                             .epoch = query->epoch,
                                             .calls = query->calls};
  int nalgorithms = tt_tuner_features(tuner) & TUTTI_TUNER_ALL_ALGORITHMS ? TUTTI_NUM_ALGORITHMS : NCCL_NUM_ALGORITHMS;
  struct tt_tuner_reply reply;
  tt_tuning_table(tuning, query->collective, (size_t)query->bytes, query->without, before);
  memcpy(after, before, sizeof after);
  ncclResult_t result = tt_tuner_ask(tuner, &question, after, nalgorithms, &reply);
  if (result != ncclSuccess) {
    *answer = (struct tt_tuner_answer){
        .said = TT_SAID_FAILED, .refused_algorithm = -1, .refused_protocol = -1, .result = result};
    return;
  }
  tt_tuner_weigh((const float(*)[TT_NUM_PROTOCOLS])before, (const float(*)[TT_NUM_PROTOCOLS])after, nalgorithms, &reply,
                 answer);
  ask_chunk(tuning, tuner, query, &question, nalgorithms, answer);
}

/* ---- From an answer to a choice ---- */

static const char *algorithm_name(int algorithm)
{
  return algorithm >= 0 && algorithm < TT_NUM_ALGORITHMS ? tt_algorithm_name(algorithm) : "none";
}

static const char *protocol_name(int protocol)
{
  return protocol >= 0 && protocol < TT_NUM_PROTOCOLS ? tt_protocol_name(protocol) : "none";
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...)
{
  size_t at = strlen(text);
  va_list args;
  va_start(args, format);
  vsnprintf(text + at, size - at, format, args);
  va_end(args);
}

/* What an answer's verdict is, in words that follow "the tuner". */
static void explain_verdict(const struct tt_tuning *tuning, const struct tt_tuner_query *query,
                            const struct tt_tuner_answer *answer, char *text, size_t size)
{
  const char *why = NULL;
  bool refused = answer->refused_algorithm >= 0 && answer->said != TT_SAID_ODD;
  if (refused)
    why = tt_tuning_excludes(tuning, query->collective, answer->refused_algorithm, answer->refused_protocol,
                             query->without);
  switch (answer->said) {
  case TT_SAID_PAIR:
    append(text, size, "the tuner's choice");
    break;
  case TT_SAID_REST:
    append(text, size, "the fastest of what the tuner left as it was");
    break;
  case TT_SAID_IMPOSSIBLE:
    append(text, size, "not the tuner's");
    break;
  case TT_SAID_FORBADE_ALL:
    append(text, size, "the tuner forbade everything, which is not obeyed");
    break;
  case TT_SAID_ODD:
    append(text, size, "not the tuner's algorithm %d and protocol %d, which are no pair", answer->refused_algorithm,
           answer->refused_protocol);
    break;
  case TT_SAID_FAILED:
    append(text, size, "the tuner failed with result %d", answer->result);
    break;
  case TT_SAID_TOO_MUCH:
    append(text, size, "the tuner is not asked any more");
    break;
  default:
    append(text, size, "the tuner said nothing");
    break;
  }
  if (refused)
    append(text, size, "; %s with %s is not possible: %s", algorithm_name(answer->refused_algorithm),
           protocol_name(answer->refused_protocol), why != NULL ? why : "it was no candidate");
}

static void obey_channels(const struct tt_tuning *tuning, const struct tt_tuner_query *query, int wanted,
                          struct tt_choice *choice)
{
  if (wanted > 0) tt_tuning_set_channels(tuning, query->collective, (size_t)query->bytes, wanted, choice);
  if (wanted != 0 && wanted != choice->nchannels)
    append(choice->reason, sizeof choice->reason, "; %d channels cannot be had", wanted);
}

static void obey_chunk(const struct tt_tuning *tuning, const struct tt_tuner_answer *answer, struct tt_choice *choice)
{
  char *text = choice->reason;
  size_t size = sizeof choice->reason, fits = tt_tuning_chunk(tuning, choice->protocol);
  if (answer->chunk_result != ncclSuccess)
    append(text, size, "; its getChunkSize failed with result %d", answer->chunk_result);
  if (answer->chunk_result != ncclSuccess || answer->chunk == 0) return;
  choice->largest_chunk = TT_MIN(TT_MAX((size_t)answer->chunk, TT_MIN(SMALLEST_CHUNK, fits)), fits);
  append(text, size, "; chunks of %zu bytes", choice->largest_chunk);
  if (choice->largest_chunk != answer->chunk)
    append(text, size, ", as %llu cannot be had", (unsigned long long)answer->chunk);
}

/* The core's choice, which needs what all collectives that tuners are asked about have: a candidate. */
static ncclResult_t choose_own(const struct tt_tuning *tuning, const struct tt_tuner_query *query,
                               struct tt_choice *choice)
{
  return tt_tuning_choose_without(tuning, query->collective, (size_t)query->bytes, query->without, choice);
}

ncclResult_t tt_tuner_obey(const struct tt_tuning *tuning, const struct tt_tuner_query *query,
                           const struct tt_tuner_answer *answer, struct tt_choice *choice)
{
  if (answer->said != TT_SAID_PAIR && answer->said != TT_SAID_REST) {
    char own[sizeof choice->reason];
    TT_TRY(choose_own(tuning, query, choice));
    snprintf(own, sizeof own, "%s", choice->reason);
    choice->reason[0] = '\0';
    explain_verdict(tuning, query, answer, choice->reason, sizeof choice->reason);
    append(choice->reason, sizeof choice->reason, "; %s", own);
  } else {
    int a = answer->algorithm, p = answer->protocol;
    if (a < 0 || a >= TT_NUM_ALGORITHMS || p < 0 || p >= TT_NUM_PROTOCOLS ||
        tt_tuning_excludes(tuning, query->collective, a, p, query->without) != NULL)
      return TT_FAIL(ncclInternalError,
                     "rank 0 says that %s uses algorithm %s with protocol %s, which this rank cannot use: run the same "
                     "version of this library on all ranks",
                     tt_collective_name(query->collective), algorithm_name(a), protocol_name(p));
    tt_tuning_pair(tuning, query->collective, (size_t)query->bytes, a, p, choice);
    explain_verdict(tuning, query, answer, choice->reason, sizeof choice->reason);
  }
  obey_channels(tuning, query, answer->nchannels, choice);
  obey_chunk(tuning, answer, choice);
  return ncclSuccess;
}

/* ---- Words and constants ---- */

void tt_tuner_describe(const struct tt_tuner_answer *answer, char *text, size_t size)
{
  text[0] = '\0';
  switch (answer->said) {
  case TT_SAID_PAIR:
  case TT_SAID_REST:
    append(text, size, "%s with %s", algorithm_name(answer->algorithm), protocol_name(answer->protocol));
    if (answer->said == TT_SAID_REST) append(text, size, ", as it left that alone");
    break;
  case TT_SAID_IMPOSSIBLE:
    append(text, size, "%s with %s, which is not possible", algorithm_name(answer->refused_algorithm),
           protocol_name(answer->refused_protocol));
    break;
  case TT_SAID_FORBADE_ALL:
    append(text, size, "that nothing is allowed");
    break;
  case TT_SAID_ODD:
    append(text, size, "algorithm %d with protocol %d, which is no pair", answer->refused_algorithm,
           answer->refused_protocol);
    break;
  case TT_SAID_FAILED:
    append(text, size, "an error, result %d", answer->result);
    break;
  case TT_SAID_TOO_MUCH:
    append(text, size, "nothing, as it is not asked any more");
    break;
  default:
    append(text, size, "nothing");
    break;
  }
  if (answer->nchannels != 0) append(text, size, ", %d channels", answer->nchannels);
  if (answer->chunk != 0) append(text, size, ", chunks of %llu bytes", (unsigned long long)answer->chunk);
  if (answer->again != 0) append(text, size, ", to be asked again after %llu calls", (unsigned long long)answer->again);
}

bool tt_tuner_is_wrong(const struct tt_tuner_answer *answer)
{
  return answer->said == TT_SAID_FORBADE_ALL || answer->said == TT_SAID_ODD || answer->said == TT_SAID_FAILED ||
         answer->chunk_result != ncclSuccess || answer->nchannels < 0;
}

void tt_tuner_fill_constants(enum tt_tuning_kind kind, ncclTunerConstants_v6_t *constants)
{
  memset(constants, 0, sizeof *constants);
  for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++) {
    for (int link = 0; link < NCCL_NUM_HW_LINKS; link++) {
      uint64_t latency_ns, per_us;
      if (kind == TT_TUNING_GPU && link != NCCL_HW_NET)
        tt_cost_gpu_link(p, &latency_ns, &per_us);
      else
        tt_cost_link(link != NCCL_HW_NET, p, &latency_ns, &per_us);
      for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++) constants->hwLatencies[link][a][p] = (double)latency_ns / 1000;
      for (int i = 0; link == NCCL_HW_NVLINK && i < NCCL_NUM_COMPCAPS * NCCL_NUM_TUNING_SCALES; i++) {
        int generation = i / NCCL_NUM_TUNING_SCALES, scale = i % NCCL_NUM_TUNING_SCALES;
        double gbytes = (double)per_us / 1000;
        if (p == NCCL_PROTO_LL) constants->llMaxBws[generation][scale] = gbytes;
        if (p == NCCL_PROTO_LL128) constants->perChMaxRingLL128Bws[generation][scale] = gbytes;
        if (p == NCCL_PROTO_LL128) constants->perChMaxTreeLL128Bws[generation][scale] = gbytes;
        if (p == NCCL_PROTO_SIMPLE) constants->perChMaxTreeBws[generation][scale] = gbytes;
        if (p == NCCL_PROTO_SIMPLE) constants->perChMaxNVLSTreeBws[generation][scale] = gbytes;
      }
    }
  }
}
