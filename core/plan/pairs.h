/* Messages in place between ranks of one process, where one group has both ends: each rank's buffers are known to the
 * other without any message, as those of collectives are (plan/plain.h). The k-th message that a rank sends to another
 * one meets the k-th that this receives from it.
 *
 * Ranks that send to each other, in pairs, chains or rings, are all in place or all copy: for each its messages are one
 * work (plan/exchange.h). That is found out once for all of a group. */
#ifndef TT_PLAN_PAIRS_H
#define TT_PLAN_PAIRS_H

#include "plan/exchange.h"

struct tt_host_part;
struct tt_pairs; /* of all communicators of a group */

/* Looks for them among the parts of a group, which outlive *out. */
ncclResult_t tt_pairs_open(const struct tt_host_part *parts, int nparts, struct tt_pairs **out);
/* NULL is allowed. */
void tt_pairs_close(struct tt_pairs *pairs);
/* What a rank does in place in the group; NULL: nothing that is known from the group alone. */
const struct tt_exchange *tt_pairs_find(const struct tt_pairs *pairs, const struct ncclComm *comm);

#endif
