/* Cards and parts of shapes between ranks. */
#include "graph/join_exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/hash.h"

enum { CARD_VERSION = 1 };
static const uint8_t magic[4] = {'T', 'T', 'c', 'd'};

static void put(uint8_t *out, uint64_t value, int width)
{
  for (int i = 0; i < width; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *in, int width)
{
  uint64_t value = 0;
  for (int i = 0; i < width; i++) value |= (uint64_t)in[i] << (8 * i);
  return value;
}

/* Magic 0, version 4, peer channels 6, leader 8, shape's bytes 12, digest 16, sm 24, arch 28, vendor 30, NET 32, and a
 * hash of all that 36. */
void tt_join_card_pack(const struct tt_join_card *card, uint8_t *bytes)
{
  uint32_t net;
  memcpy(&net, &card->net_bandwidth, sizeof(net));
  memcpy(bytes, magic, sizeof(magic));
  put(bytes + 4, CARD_VERSION, 2);
  put(bytes + 6, (uint64_t)card->peer_channels, 2);
  put(bytes + 8, (uint64_t)card->leader, 4);
  put(bytes + 12, card->shape_bytes, 4);
  put(bytes + 16, card->digest, 8);
  put(bytes + 24, (uint64_t)card->sm, 4);
  put(bytes + 28, (uint64_t)card->arch, 2);
  put(bytes + 30, (uint64_t)card->vendor, 2);
  put(bytes + 32, net, 4);
  put(bytes + 36, tt_hash(bytes, 36), 4);
}

ncclResult_t tt_join_card_unpack(const uint8_t *bytes, int rank, struct tt_join_card *card)
{
  if (memcmp(bytes, magic, sizeof(magic)) != 0 || get(bytes + 4, 2) != CARD_VERSION)
    return TT_FAIL(ncclInvalidUsage,
                   "rank %d describes its machine in version %u, not %u; run one release on all ranks", rank,
                   (unsigned)get(bytes + 4, 2), (unsigned)CARD_VERSION);
  if (get(bytes + 36, 4) != (uint32_t)tt_hash(bytes, 36))
    return TT_FAIL(ncclInvalidUsage, "rank %d's card is damaged; the network between ranks changes data", rank);
  uint32_t net = (uint32_t)get(bytes + 32, 4);
  *card = (struct tt_join_card){.peer_channels = (int)get(bytes + 6, 2),
                                .leader = (int32_t)get(bytes + 8, 4),
                                .shape_bytes = (uint32_t)get(bytes + 12, 4),
                                .digest = get(bytes + 16, 8),
                                .sm = (int)(int32_t)get(bytes + 24, 4),
                                .arch = (int)get(bytes + 28, 2),
                                .vendor = (int)get(bytes + 30, 2)};
  memcpy(&card->net_bandwidth, &net, sizeof(net));
  if (card->leader < 0 || card->shape_bytes > TT_JOIN_MOST_BYTES || !isfinite(card->net_bandwidth))
    return TT_FAIL(ncclInvalidUsage, "rank %d's card says leader %d, %u bytes and %g GB/s, which cannot be", rank,
                   card->leader, card->shape_bytes, (double)card->net_bandwidth);
  return ncclSuccess;
}

/* One of the different shapes: who tells it. */
struct teller {
  uint64_t digest;
  uint32_t bytes;
  int ranks; /* that found it */
  int next;  /* part to be read */
  size_t part;
  uint8_t *packed;
};

static int compare_tellers(const void *a, const void *b)
{
  const struct teller *x = a, *y = b;
  return (x->digest > y->digest) - (x->digest < y->digest);
}

static struct teller *find(struct teller *tellers, int count, uint64_t digest)
{
  const struct teller key = {.digest = digest};
  return bsearch(&key, tellers, (size_t)count, sizeof(*tellers), compare_tellers);
}

/* The different shapes of leaders, in the order of their digests; returns their number. */
static int list_tellers(const struct tt_join_card *cards, int nranks, struct teller *tellers)
{
  int count = 0, different = 0;
  for (int r = 0; r < nranks; r++)
    if (cards[r].leader == r)
      tellers[count++] = (struct teller){.digest = cards[r].digest, .bytes = cards[r].shape_bytes};
  qsort(tellers, (size_t)count, sizeof(*tellers), compare_tellers);
  for (int i = 0; i < count; i++)
    if (i == 0 || tellers[i].digest != tellers[different - 1].digest) tellers[different++] = tellers[i];
  for (int r = 0; r < nranks; r++) {
    struct teller *teller = find(tellers, different, cards[r].digest);
    if (teller) teller->ranks++;
  }
  for (int i = 0; i < different; i++)
    tellers[i].part = (tellers[i].bytes + (size_t)tellers[i].ranks - 1) / (size_t)tellers[i].ranks;
  return different;
}

static void copy_part(struct teller *teller, size_t part, uint8_t *packed, uint8_t *block, bool read)
{
  const size_t at = part * teller->part;
  if (at >= teller->bytes) return;
  const size_t bytes = TT_MIN(teller->part, teller->bytes - at);
  memcpy(read ? packed + at : block, read ? block : packed + at, bytes);
}

/* Fills in this rank's part: it is as far down as ranks before it found the same. */
static ncclResult_t give_part(const struct tt_join_card *cards, const struct tt_join_shape *shape, int rank,
                              struct teller *teller, uint8_t *block)
{
  uint8_t *packed;
  size_t part = 0;
  if (!teller) return ncclSuccess;
  TT_TRY(TT_CALLOC(&packed, teller->bytes));
  for (int r = 0; r < rank; r++) part += cards[r].digest == teller->digest;
  tt_join_shape_pack(shape, packed);
  copy_part(teller, part, packed, block, false);
  free(packed);
  return ncclSuccess;
}

static ncclResult_t read_parts(const struct tt_join_card *cards, int nranks, struct teller *tellers, int count,
                               uint8_t *blocks, size_t bytes, struct tt_join_shapes *shapes)
{
  for (int i = 0; i < count; i++) TT_TRY(TT_CALLOC(&tellers[i].packed, (size_t)tellers[i].bytes + 1));
  for (int r = 0; r < nranks; r++) {
    struct teller *teller = find(tellers, count, cards[r].digest);
    if (teller) copy_part(teller, (size_t)teller->next++, teller->packed, blocks + (size_t)r * bytes, true);
  }
  for (int i = 0; i < count; i++) {
    if (tt_hash(tellers[i].packed, tellers[i].bytes) != tellers[i].digest)
      return TT_FAIL(ncclInvalidUsage,
                     "what %d ranks told of their machine is damaged; the network between ranks "
                     "changes data",
                     tellers[i].ranks);
    TT_TRY(tt_join_shape_unpack(tellers[i].packed, tellers[i].bytes, &shapes->shapes[i]));
    shapes->count++;
  }
  return ncclSuccess;
}

/* The second all-gather. */
static ncclResult_t exchange_shapes(const struct tt_join_card *cards, const struct tt_join_shape *shape, int rank,
                                    int nranks, tt_join_gather *gather, void *context, struct tt_join_shapes *shapes)
{
  struct teller *tellers = NULL;
  uint8_t *blocks = NULL;
  size_t bytes = 1;
  int count = 0;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&tellers, (size_t)nranks), result, out);
  count = list_tellers(cards, nranks, tellers);
  for (int i = 0; i < count; i++) bytes = TT_MAX(bytes, tellers[i].part);
  TT_TRY_GOTO(TT_CALLOC(&blocks, (size_t)nranks * bytes), result, out);
  TT_TRY_GOTO(TT_CALLOC(&shapes->shapes, (size_t)count + 1), result, out);
  TT_TRY_GOTO(give_part(cards, shape, rank, find(tellers, count, cards[rank].digest), blocks + (size_t)rank * bytes),
              result, out);
  TT_TRY_GOTO(gather(context, blocks, bytes), result, out);
  result = read_parts(cards, nranks, tellers, count, blocks, bytes, shapes);
out:
  for (int i = 0; i < count; i++) free(tellers[i].packed);
  free(tellers);
  free(blocks);
  return result;
}

static ncclResult_t copy_shape(const struct tt_join_shape *shape, struct tt_join_shapes *shapes)
{
  uint8_t *packed;
  TT_TRY(TT_CALLOC(&shapes->shapes, 1));
  TT_TRY(TT_CALLOC(&packed, shape->bytes));
  ncclResult_t result = tt_join_shape_unpack(packed, tt_join_shape_pack(shape, packed), &shapes->shapes[0]);
  shapes->count = result == ncclSuccess;
  free(packed);
  return result;
}

ncclResult_t tt_join_exchange(const struct tt_join_card *card, const struct tt_join_shape *shape, int rank, int nranks,
                              tt_join_gather *gather, void *context, struct tt_join_card **out,
                              struct tt_join_shapes *shapes)
{
  struct tt_join_card *cards = NULL;
  uint8_t *blocks = NULL;
  bool same = true;
  ncclResult_t result;
  *out = NULL;
  *shapes = (struct tt_join_shapes){0};
  TT_TRY_GOTO(TT_CALLOC(&blocks, (size_t)nranks * TT_JOIN_CARD_BYTES), result, out);
  TT_TRY_GOTO(TT_CALLOC(&cards, (size_t)nranks), result, out);
  tt_join_card_pack(card, blocks + (size_t)rank * TT_JOIN_CARD_BYTES);
  TT_TRY_GOTO(gather(context, blocks, TT_JOIN_CARD_BYTES), result, out);
  for (int r = 0; r < nranks; r++) {
    TT_TRY_GOTO(tt_join_card_unpack(blocks + (size_t)r * TT_JOIN_CARD_BYTES, r, &cards[r]), result, out);
    same = same && cards[r].digest == cards[0].digest;
  }
  result = same ? copy_shape(shape, shapes) : exchange_shapes(cards, shape, rank, nranks, gather, context, shapes);
out:
  free(blocks);
  if (result == ncclSuccess) {
    *out = cards;
    return result;
  }
  free(cards);
  tt_join_shapes_free(shapes);
  return result;
}
