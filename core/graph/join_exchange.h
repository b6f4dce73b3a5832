/* How ranks learn what all others found: two all-gathers, the second only if machines differ.
 *
 * In the first each rank gives its card. Who has the same machine as all others knows everything then. Else each
 * different shape is told by all ranks that found it together, each giving an equal part of it, so that a large job of
 * two kinds of machines exchanges a few bytes a rank. */
#ifndef TT_GRAPH_JOIN_EXCHANGE_H
#define TT_GRAPH_JOIN_EXCHANGE_H

#include "graph/join.h"

#define TT_JOIN_CARD_BYTES 40

/* `blocks` holds a block of `bytes` for each rank, the caller's is filled in. */
typedef ncclResult_t tt_join_gather(void *context, void *blocks, size_t bytes);

/* All ranks call it. *cards has nranks cards, to be freed with free; *shapes all different shapes, a copy of `shape`
 * among them. ncclInvalidUsage, naming the rank, where one is of another release or what it says is damaged. */
ncclResult_t tt_join_exchange(const struct tt_join_card *card, const struct tt_join_shape *shape, int rank, int nranks,
                              tt_join_gather *gather, void *context, struct tt_join_card **cards,
                              struct tt_join_shapes *shapes);

/* A card as TT_JOIN_CARD_BYTES bytes, and back: ncclInvalidUsage with the reason. */
void tt_join_card_pack(const struct tt_join_card *card, uint8_t *bytes);
ncclResult_t tt_join_card_unpack(const uint8_t *bytes, int rank, struct tt_join_card *card);

/* A shape as its `bytes` bytes, and back. Nothing is assumed of what comes. */
size_t tt_join_shape_pack(const struct tt_join_shape *shape, uint8_t *out); /* `out` NULL: only says how many */
ncclResult_t tt_join_shape_unpack(const uint8_t *bytes, size_t size, struct tt_join_shape **shape);

/* A shape has no more bytes than this. */
enum { TT_JOIN_MOST_BYTES = 7 + 5 * 18 + TT_GRAPH_MOST_CHANNELS * (2 * 2 + 3 * (1 + 2 * TT_JOIN_MOST_LOCAL)) };

#endif
