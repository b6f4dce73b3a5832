/* How the survivors of a shrink meet over the parent's bootstrap. */
#ifndef TT_API_SURVIVORS_H
#define TT_API_SURVIVORS_H

#include "plan/comm.h"

/* The id that the first of the members made for this attempt, which all of them take part in with the same list of
 * ranks that they leave out; `excluded` is a hash of it. An attempt that failed leaves nothing to the next one, however
 * often each of them has tried. */
ncclResult_t tt_survivors_meet(struct ncclComm *parent, const int *members, int nmembers, uint64_t excluded,
                               ncclUniqueId *id);

#endif
