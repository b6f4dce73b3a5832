/* PAT (parallel aggregated trees): all-gather and reduce-scatter in as many steps as the number of ranks has binary
 * digits, for any number of ranks. The step of distance d, a power of two, moves the blocks of up to d ranks to the
 * rank d places away, many blocks in one message. Here distances follow Bruck et al. (1997): in an all-gather rank r
 * holds the blocks r .. r + d - 1 before the step of distance d, and 2 d of them after it. Reduce-scatter is the same
 * backwards: each block flows together along a binomial tree whose root is its rank.
 *
 * Sends are one strand and receives another: a list longer than a message holds is sent as several messages, which must
 * not wait for this rank's own receives. */
#include "base/check.h"
#include "program/algorithms.h"

struct pat {
  int32_t n, rank, most;
  int32_t largest; /* the largest power of two below n; 0 for one rank */
};

/* Chunks first, first + 1, ... of `total`, `count` in a message, from number `done` of the list on. */
static struct tt_chunks slice(int32_t first, int32_t total, int32_t done, int32_t count)
{
  return (struct tt_chunks){
      .start = (first + done) % total, .stride = count, .modulo = total, .count = count, .step = 1};
}

/* A list of `count` chunks is moved by at most two instructions: one for all full messages, one for what is left. */
static bool next_slice(const struct pat *pat, int32_t count, int32_t *done, int32_t *size, uint32_t *repeat)
{
  int32_t left = count - *done;
  if (left == 0) return false;
  *repeat = left >= pat->most ? (uint32_t)(left / pat->most) : 1;
  *size = TT_MIN(left, pat->most);
  return true;
}

/* Blocks that the step of a distance moves. */
static int32_t blocks_of(const struct pat *pat, int32_t distance)
{
  return TT_MIN(distance, pat->n - distance);
}

/* The index of the peer `distance` places away, added when first named. */
static uint16_t peer_at(struct tt_builder *builder, const struct pat *pat, int32_t distance)
{
  int32_t rank = (pat->rank + distance + pat->n) % pat->n;
  for (uint32_t i = 0; i < builder->head.npeers; i++)
    if (builder->peers[i] == rank) return (uint16_t)i;
  return tt_builder_peer(builder, rank);
}

static void send_list(struct tt_builder *builder, const struct pat *pat, uint16_t peer, uint8_t buffer, int32_t first,
                      int32_t total, int32_t count)
{
  int32_t size;
  uint32_t repeat;
  for (int32_t done = 0; next_slice(pat, count, &done, &size, &repeat); done += size * (int32_t)repeat) {
    tt_builder_data(builder, repeat, 0);
    tt_builder_send(builder, peer, buffer, slice(first, total, done, size));
  }
}

/* Whether what the step of a distance sends was received in the step before. In the last one the blocks that are still
 * missing may all be older. */
static bool sends_newest(const struct pat *pat, int32_t distance)
{
  return distance > 1 && blocks_of(pat, distance) > distance / 2;
}

static void gather_sends(struct tt_builder *builder, const struct pat *pat, uint16_t arrived)
{
  struct tt_chunks own = tt_chunk_one(pat->rank, pat->n);
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, 0);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, own);
  if (pat->n > 1) tt_builder_send(builder, peer_at(builder, pat, -1), TT_RESULT, own);
  for (int32_t distance = 2; distance <= pat->largest; distance *= 2) {
    if (sends_newest(pat, distance)) tt_builder_wait(builder, arrived);
    send_list(builder, pat, peer_at(builder, pat, -distance), TT_OUTPUT, pat->rank, pat->n, blocks_of(pat, distance));
  }
}

static void emit_all_gather(struct tt_builder *builder, const struct pat *pat)
{
  int32_t size;
  uint32_t repeat;
  builder->head.output_blocks = (uint32_t)pat->n;
  uint16_t arrived = pat->n > 3 ? tt_builder_semaphore(builder) : 0;
  gather_sends(builder, pat, arrived);
  if (pat->n > 1) tt_builder_strand(builder);
  for (int32_t distance = 1; distance <= pat->largest; distance *= 2) {
    int32_t first = (pat->rank + distance) % pat->n, count = blocks_of(pat, distance);
    uint16_t peer = peer_at(builder, pat, distance);
    for (int32_t done = 0; next_slice(pat, count, &done, &size, &repeat); done += size * (int32_t)repeat) {
      tt_builder_data(builder, repeat, 0);
      tt_builder_receive(builder, peer, TT_OUTPUT, slice(first, pat->n, done, size));
    }
    if (distance < pat->largest && sends_newest(pat, 2 * distance)) tt_builder_signal(builder, arrived);
  }
}

/* Blocks of a reduce-scatter's step, first to first + count - 1 places away from the rank at the receiving end. At the
 * end at hand they are found in the input, if nothing was added to them yet, or in scratch. */
struct sums {
  int32_t first, count;
  bool in_input;
};

/* Scratch block v holds the partial sum of block rank + v. The first step adds only to as many blocks as there are
 * ranks beyond the largest power of two; so the second may have to do with both kinds, and moves two lists. Of a later
 * step all sums are in scratch. */
static int sums_of(const struct pat *pat, int32_t distance, bool sends, struct sums lists[2])
{
  int32_t total = blocks_of(pat, distance), added = blocks_of(pat, pat->largest);
  lists[0] = (struct sums){0, total, distance == pat->largest};
  if (2 * distance != pat->largest) return 1;
  bool few = added < distance;
  int32_t split = few ? added : added - distance;
  lists[0] = (struct sums){0, split, sends && few};
  lists[1] = (struct sums){split, total - split, sends || few};
  return 2;
}

/* Whether the step of a distance sends sums that were made before. */
static bool sends_sums(const struct pat *pat, int32_t distance)
{
  struct sums lists[2];
  bool found = false;
  for (int i = sums_of(pat, distance, true, lists) - 1; i >= 0; i--) found |= lists[i].count > 0 && !lists[i].in_input;
  return found;
}

static void send_sums(struct tt_builder *builder, const struct pat *pat, int32_t distance)
{
  struct sums lists[2];
  uint16_t peer = peer_at(builder, pat, distance);
  int count = sums_of(pat, distance, true, lists);
  for (int i = 0; i < count; i++) {
    int32_t place = lists[i].first + distance, blocks = (int32_t)builder->head.scratch_blocks;
    if (lists[i].in_input)
      send_list(builder, pat, peer, TT_INPUT, (pat->rank + place) % pat->n, pat->n, lists[i].count);
    else
      send_list(builder, pat, peer, TT_SCRATCH, place, blocks, lists[i].count);
  }
}

static void receive_list(struct tt_builder *builder, const struct pat *pat, int32_t distance, uint16_t peer,
                         const struct sums *list)
{
  int32_t size;
  uint32_t repeat;
  for (int32_t done = 0; next_slice(pat, list->count, &done, &size, &repeat); done += size * (int32_t)repeat) {
    struct tt_chunks sums = tt_chunk_one(0, 1);
    if (builder->head.nscratch) sums = slice(list->first, (int32_t)builder->head.scratch_blocks, done, size);
    tt_builder_data(builder, repeat, distance == 1 ? TT_FLAG_FINAL : 0);
    if (list->in_input)
      tt_builder_source(builder, TT_INPUT, slice((pat->rank + list->first) % pat->n, pat->n, done, size));
    else
      tt_builder_source(builder, TT_SCRATCH, sums);
    tt_builder_receive(builder, peer, TT_RESULT, sums);
    if (distance == 1)
      tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(0, 1));
    else
      tt_builder_destination(builder, TT_SCRATCH, sums);
  }
}

/* Each loop uses scratch again: so the receiving strand begins the next loop only when the last sum has been sent. */
static void emit_reduce_scatter(struct tt_builder *builder, const struct pat *pat)
{
  struct sums lists[2];
  int32_t largest = pat->largest;
  bool ordered = largest > 1 && sends_sums(pat, 1);
  builder->head.input_blocks = (uint32_t)pat->n;
  if (largest > 1) {
    builder->head.nscratch = 1;
    builder->head.scratch_blocks = (uint32_t)TT_MAX(pat->n - largest, largest / 2);
  }
  uint16_t summed = ordered ? tt_builder_semaphore(builder) : 0;
  uint16_t sent = ordered ? tt_builder_semaphore(builder) : 0;
  tt_builder_strand(builder);
  for (int32_t distance = largest; distance >= 1; distance /= 2) {
    if (sends_sums(pat, distance)) tt_builder_wait(builder, summed);
    send_sums(builder, pat, distance);
  }
  if (ordered) tt_builder_signal(builder, sent);
  tt_builder_strand(builder);
  for (int32_t distance = largest; distance >= 1; distance /= 2) {
    uint16_t peer = peer_at(builder, pat, -distance);
    int count = sums_of(pat, distance, false, lists);
    for (int i = 0; i < count; i++) receive_list(builder, pat, distance, peer, &lists[i]);
    if (distance > 1 && sends_sums(pat, distance / 2)) tt_builder_signal(builder, summed);
  }
  if (ordered) tt_builder_wait(builder, sent);
}

/* One rank has nobody to talk to: its result is its input. */
static void emit_copy(struct tt_builder *builder)
{
  tt_builder_strand(builder);
  tt_builder_data(builder, 1, TT_FLAG_FINAL);
  tt_builder_source(builder, TT_INPUT, tt_chunk_one(0, 1));
  tt_builder_destination(builder, TT_OUTPUT, tt_chunk_one(0, 1));
}

ncclResult_t tt_emit_pat(struct tt_builder *builder, const struct tt_emit_request *request)
{
  struct pat pat = {.n = request->nranks, .rank = request->rank, .most = request->most_pieces};
  if (pat.most == 0) pat.most = TT_PAT_PIECES;
  if (pat.n > 1) pat.largest = 1;
  while (pat.largest > 0 && pat.largest < pat.n - pat.largest) pat.largest *= 2;
  if (request->collective == TT_FUNC_ALL_GATHER)
    emit_all_gather(builder, &pat);
  else if (pat.n > 1)
    emit_reduce_scatter(builder, &pat);
  else
    emit_copy(builder);
  return ncclSuccess;
}
