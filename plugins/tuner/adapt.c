/* See adapt.h.
 *
 * What is measured is how long operations had messages under way on this rank (tuttiNetStats_t.busyNs) for each call of
 * the kind. Other calls of the communicator take part in that. So one kind is tried at a time, and a figure counts only
 * if two epochs agree on the bytes that were moved for each call: then the others' part is the same for all that is
 * tried, and it is also found out where calls and counters do not belong together. */
#include "adapt.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"

#define MOST_CANDIDATES 4
#define NEAR 2.0 /* times the cost of the model's best, which is seldom off by more */
#define MOST_KINDS 4096

/* Calls of an epoch: while something is tried, the first of which are not measured, since connections are made; before
 * there is a reference; and after, twice as many each time that all is well, so that questions cost next to nothing. */
#define TRY_CALLS 8
#define WAIT_CALLS 32
#define WATCH_CALLS 64
#define MOST_WATCH_CALLS 1024

#define MOST_TRIES 8     /* epochs in which two that agree must be found */
#define LIKE 0.125       /* by which bytes of a call may differ */
#define BETTER 0.9       /* what takes the place of another takes this much of its time at most */
#define WORSE 1.5        /* times the reference: something has changed */
#define RETRIES 0.01     /* of all messages; fewer are nothing to worry about */
#define MOST_PATIENCE 64 /* epochs that are worse before it looks again: two, and twice as many after looks in vain */
#define STALE_QUESTIONS 256 /* about other kinds, after which that which is tried is not called any more */

enum state {
  WAITING, /* for its turn */
  TRYING,
  SETTLED,
  LEFT /* to the model */
};

/* Of one call, on average. */
struct sample {
  double usec, bytes, messages, retries;
};

struct candidate {
  int algorithm, protocol;
  float model;
  double usec; /* 0: not measured */
};

struct kind {
  struct kind *next;
  int collective;
  uint64_t bytes;
  uint32_t variant;
  enum state state;
  struct candidate candidates[MOST_CANDIDATES];
  int count, at, best; /* at: which is tried */
  int epochs;          /* of it, or since it settled */
  bool marked, has_last;
  tuttiNetStats_t mark; /* at the last question */
  struct sample last;   /* of what is tried */
  struct sample reference;
  int worse, patience;
  uint64_t watch_calls;
};

struct tt_adapt {
  struct kind *kinds, *trying;
  int count;
  uint64_t questions, tried_at; /* tried_at: the last about `trying` */
  bool said_nothing_counts;
};

struct tt_adapt *tt_adapt_open(void)
{
  struct tt_adapt *adapt;
  return TT_CALLOC(&adapt, 1) == ncclSuccess ? adapt : NULL;
}

void tt_adapt_close(struct tt_adapt *adapt)
{
  for (struct kind *kind = adapt->kinds, *next; kind != NULL; kind = next) {
    next = kind->next;
    free(kind);
  }
  free(adapt);
}

/* ---- The log ---- */

#define NAME_BYTES 32
static const char *name(const struct candidate *candidate, char *text)
{
  snprintf(text, NAME_BYTES, "%s %s", tt_table_algorithm(candidate->algorithm), tt_table_protocol(candidate->protocol));
  return text;
}

static void say(const struct kind *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct kind *kind, const char *format, ...)
{
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  TT_INFO(TT_TUNING, "TUNER/Tutti: %s of %" PRIu64 " bytes %s", tt_table_collective(kind->collective), kind->bytes,
          text);
}

/* ---- Kinds and their candidates ---- */

/* In the order of their costs, the first of equals first, as the core chooses. */
static void insert(struct kind *kind, const struct candidate *candidate)
{
  int at = kind->count < MOST_CANDIDATES ? kind->count++ : MOST_CANDIDATES;
  while (at > 0 && candidate->model < kind->candidates[at - 1].model) {
    if (at < MOST_CANDIDATES) kind->candidates[at] = kind->candidates[at - 1];
    at--;
  }
  if (at < MOST_CANDIDATES) kind->candidates[at] = *candidate;
}

static void find_candidates(struct kind *kind, const struct tt_table_costs *costs)
{
  for (int i = 0; i < costs->rows * costs->columns; i++)
    if (costs->cost[i] >= 0)
      insert(kind, &(struct candidate){
                       .algorithm = i / costs->columns, .protocol = i % costs->columns, .model = costs->cost[i]});
  while (kind->count > 1 && kind->candidates[kind->count - 1].model > NEAR * kind->candidates[0].model) kind->count--;
}

/* NULL: there are too many, or no memory. */
static struct kind *find(struct tt_adapt *adapt, const tuttiTunerEpoch_v1_t *question,
                         const struct tt_table_costs *costs)
{
  struct kind *kind = adapt->kinds;
  while (kind != NULL && (kind->collective != (int)question->collType || kind->bytes != question->nBytes ||
                          kind->variant != question->variant))
    kind = kind->next;
  if (kind != NULL || adapt->count == MOST_KINDS) return kind;
  kind = calloc(1, sizeof *kind);
  if (kind == NULL) return NULL;
  *kind = (struct kind){.next = adapt->kinds,
                        .collective = (int)question->collType,
                        .bytes = question->nBytes,
                        .variant = question->variant,
                        .patience = 2};
  find_candidates(kind, costs);
  if (kind->count < 2) kind->state = LEFT;
  adapt->kinds = kind;
  adapt->count++;
  return kind;
}

/* ---- Measuring ---- */

enum outcome { NOT_NOW, NOTHING, MEASURED };

static double per(uint64_t now, uint64_t before, uint64_t calls)
{
  return (double)(now - before) / (double)calls;
}

static enum outcome measure(struct kind *kind, const tuttiTunerEpoch_v1_t *question, struct sample *sample)
{
  tuttiNetStats_t now = {.size = sizeof now}, before = kind->mark;
  bool marked = kind->marked;
  uint64_t calls = question->calls;
  kind->marked = question->netStats(question->core, &now) == ncclSuccess;
  kind->mark = now;
  if (!marked || !kind->marked || calls == 0) return NOT_NOW;
  *sample = (struct sample){
      .usec = per(now.busyNs, before.busyNs, calls) / 1000,
      .bytes = per(now.send.bytes + now.recv.bytes, before.send.bytes + before.recv.bytes, calls),
      .messages = per(now.send.messages + now.recv.messages, before.send.messages + before.recv.messages, calls),
      .retries = per(now.send.retries + now.recv.retries, before.send.retries + before.recv.retries, calls)};
  return now.busyNs == before.busyNs ? NOTHING : MEASURED;
}

static bool is_like(const struct sample *a, const struct sample *b)
{
  double least = TT_MIN(a->bytes, b->bytes), most = TT_MAX(a->bytes, b->bytes);
  return most - least <= LIKE * most;
}

/* ---- Trying ---- */

static void try_next(struct kind *kind, int at)
{
  char text[NAME_BYTES];
  kind->at = at;
  kind->epochs = 0;
  kind->has_last = false;
  kind->candidates[at].usec = 0;
  say(kind, "tries %s, %d of %d, for which the model says %.1f us", name(&kind->candidates[at], text), at + 1,
      kind->count, (double)kind->candidates[at].model);
}

/* Whether no kind is being tried that is still called. */
static bool is_free(const struct tt_adapt *adapt)
{
  return adapt->trying == NULL || adapt->questions - adapt->tried_at >= STALE_QUESTIONS;
}

static void begin(struct tt_adapt *adapt, struct kind *kind)
{
  if (adapt->trying != NULL) adapt->trying->state = WAITING;
  adapt->trying = kind;
  adapt->tried_at = adapt->questions;
  kind->state = TRYING;
  try_next(kind, 0);
}

static void settle(struct tt_adapt *adapt, struct kind *kind)
{
  const struct candidate *incumbent = &kind->candidates[kind->best];
  char text[NAME_BYTES], before[NAME_BYTES];
  int best = kind->best;
  for (int c = 0; c < kind->count && incumbent->usec > 0; c++) {
    double usec = kind->candidates[c].usec;
    if (usec > 0 && usec < BETTER * incumbent->usec && (best == kind->best || usec < kind->candidates[best].usec))
      best = c;
  }
  if (best != kind->best)
    say(kind, "settles on %s: %.1f us a call, where %s took %.1f us", name(&kind->candidates[best], text),
        kind->candidates[best].usec, name(incumbent, before), incumbent->usec);
  else if (incumbent->usec > 0)
    say(kind, "stays with %s: %.1f us a call, and nothing is better by a tenth", name(incumbent, text),
        incumbent->usec);
  else
    say(kind, "stays with %s, since nothing can be compared with it", name(incumbent, text));
  kind->patience = best != kind->best || kind->reference.usec == 0 ? 2 : TT_MIN(2 * kind->patience, MOST_PATIENCE);
  kind->best = best;
  kind->state = SETTLED;
  kind->epochs = kind->worse = 0;
  kind->reference = (struct sample){0};
  adapt->trying = NULL;
}

/* There is a figure for what is tried, or there will be none. */
static void conclude(struct tt_adapt *adapt, struct kind *kind, const char *why_none)
{
  const struct candidate *candidate = &kind->candidates[kind->at];
  char text[NAME_BYTES];
  if (why_none != NULL)
    say(kind, "has no figure for %s: %s", name(candidate, text), why_none);
  else
    say(kind, "took %.1f us a call by %s, with %.0f bytes and %.1f messages sent and received, and %.2f retries",
        candidate->usec, name(candidate, text), kind->last.bytes, kind->last.messages, kind->last.retries);
  if (kind->at + 1 < kind->count)
    try_next(kind, kind->at + 1);
  else
    settle(adapt, kind);
}

static void leave(struct tt_adapt *adapt, struct kind *kind)
{
  kind->state = LEFT;
  adapt->trying = NULL;
  if (!adapt->said_nothing_counts)
    TT_INFO(TT_INIT | TT_TUNING,
            "TUNER/Tutti: %s of %" PRIu64 " bytes moves nothing over the network that is timed, so the core's choice "
            "is kept, as for all else of which this is true",
            tt_table_collective(kind->collective), kind->bytes);
  adapt->said_nothing_counts = true;
}

static void tried(struct tt_adapt *adapt, struct kind *kind, enum outcome outcome, const struct sample *sample)
{
  struct candidate *candidate = &kind->candidates[kind->at];
  adapt->tried_at = adapt->questions;
  if (kind->epochs++ == 0) return; /* connections were made, and calls of before ended */
  if (outcome == NOTHING && kind->at == kind->best) {
    leave(adapt, kind);
  } else if (outcome == NOTHING) {
    conclude(adapt, kind, "it moves nothing over this rank's network");
  } else if (outcome == MEASURED && kind->has_last && is_like(sample, &kind->last)) {
    candidate->usec = TT_MIN(sample->usec, kind->last.usec);
    conclude(adapt, kind, NULL);
  } else if (kind->epochs == MOST_TRIES) {
    conclude(adapt, kind, "what is moved for a call differs each time");
  } else if (outcome == MEASURED) {
    kind->last = *sample;
    kind->has_last = true;
  }
}

/* ---- Watching what it settled on ---- */

/* Another mixture of calls says nothing of this one, nor does what is seen while another kind is tried. */
static void watch(struct tt_adapt *adapt, struct kind *kind, const struct sample *sample)
{
  struct sample *reference = &kind->reference;
  if (!is_free(adapt)) return;
  if (kind->epochs++ == 0) return; /* as above */
  if (reference->usec == 0 || !is_like(sample, reference)) {
    *reference = *sample;
    kind->worse = 0;
    kind->watch_calls = WATCH_CALLS;
    return;
  }
  bool retries = sample->retries > RETRIES * sample->messages && sample->retries > 2 * reference->retries;
  bool worse = sample->usec > WORSE * reference->usec || retries;
  kind->worse = worse ? kind->worse + 1 : 0;
  kind->watch_calls = worse ? WATCH_CALLS : TT_MIN(2 * kind->watch_calls, MOST_WATCH_CALLS);
  if (!worse && sample->usec < reference->usec) reference->usec += (sample->usec - reference->usec) / 4;
  if (kind->worse < kind->patience) return;
  say(kind, "takes %.1f us a call and %.2f retries, where it took %.1f us and %.2f: looks again", sample->usec,
      sample->retries, reference->usec, reference->retries);
  begin(adapt, kind);
}

/* ---- Answers ---- */

/* What the next calls use; NULL: what the core chooses. */
static const struct candidate *in_use(const struct kind *kind)
{
  if (kind->state == LEFT) return NULL;
  return &kind->candidates[kind->state == TRYING ? kind->at : kind->best];
}

uint64_t tt_adapt_answer(struct tt_adapt *adapt, const tuttiTunerEpoch_v1_t *question,
                         const struct tt_table_costs *costs)
{
  struct kind *kind = question->netStats != NULL ? find(adapt, question, costs) : NULL;
  struct sample sample = {0};
  if (kind == NULL || kind->state == LEFT) return 0;
  adapt->questions++;
  enum outcome outcome = measure(kind, question, &sample);
  if (kind->state == TRYING)
    tried(adapt, kind, outcome, &sample);
  else if (kind->state == WAITING && is_free(adapt))
    begin(adapt, kind);
  else if (kind->state == SETTLED && outcome == MEASURED)
    watch(adapt, kind, &sample);
  const struct candidate *candidate = in_use(kind);
  if (candidate == NULL) return 0;
  float *cost = &costs->cost[candidate->algorithm * costs->columns + candidate->protocol];
  if (*cost >= 0) tt_table_make_win(costs, cost);
  if (kind->state == TRYING) return TRY_CALLS;
  return kind->state == WAITING || kind->reference.usec == 0 ? WAIT_CALLS : kind->watch_calls;
}
