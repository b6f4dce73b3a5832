/* The roots of this process's unique ids: one service thread with its listeners answers for all ids made here. It
 * starts with the first id and ends when there is nothing left to answer. */
#ifndef TT_BOOTSTRAP_ROOT_H
#define TT_BOOTSTRAP_ROOT_H

#include "bootstrap/wire.h"

/* Tags of the messages between a rank and the root. A rank that cannot go on says why, instead of checking in. */
enum { TT_TAG_CHECKIN = 1, TT_TAG_ANSWER = 2, TT_TAG_GIVE_UP = 3 };

enum { TT_GIVE_UP_BYTES = 400 }; /* of the reason, at most: a longer one is cut */

/* Starts a root for an id whose key and nonce are set; fills id->root with the addresses to reach it. */
ncclResult_t tt_root_add(struct tt_id *id);
/* The same at the fixed address in id->root (NCCL_COMM_ID), which it takes over from a meeting that failed here. */
ncclResult_t tt_root_add_fixed(const struct tt_id *id, int nranks);
/* The meeting fails, unless it is over, since this rank of it cannot come, and `why` is what all others are told. */
void tt_root_give_up(uint64_t nonce, int rank, const char *why);
/* While held, the root goes on telling latecomers that the id is used. Nothing happens if the id was not made here.
 * Where a rank's death ended the meeting, release waits up to 2 s for those that are on their way, unless aborted. */
void tt_root_hold(uint64_t nonce);
void tt_root_release(uint64_t nonce, const _Atomic uint32_t *abort);
/* The id will not be needed any more (one rank only). */
void tt_root_drop(uint64_t nonce);

/* Ids used by this process. ncclInvalidUsage if the creation of a communicator with it has already ended here. */
ncclResult_t tt_root_claim(uint64_t nonce);
void tt_root_claim_done(uint64_t nonce);
/* Both in one, for who is alone: of several that come at the same time one gets it. */
ncclResult_t tt_root_claim_alone(uint64_t nonce);

#endif
