/* Plain buffers used in place: where all ranks of a communicator are of this process, and one group has the same
 * operation of all of them, each rank's buffers are known to the others without any message. Then they are used as
 * those in windows are (plan/mapped.h), if the devices can.
 *
 * Whether that is so is found out once for each operation, for all its ranks. */
#ifndef TT_PLAN_PLAIN_H
#define TT_PLAN_PLAIN_H

#include <stdbool.h>
#include "plan/comm.h"

struct tt_host_part;
struct tt_plain; /* of all such communicators of a group */
struct tt_plan;

/* Looks for them among the parts of a group, which outlive *out. */
ncclResult_t tt_plain_open(const struct tt_host_part *parts, int nparts, struct tt_plain **out);
/* Whether it is among them. */
bool tt_plain_has(const struct tt_plain *plain, const struct ncclComm *comm);
/* NULL is allowed. */
void tt_plain_close(struct tt_plain *plain);

/* The tasks of all ranks, by rank, of the plan's next collective, if what they use of each other's buffers can be used
 * in place, else NULL. Once for each collective of the plan, in their order. `possible`: a program for it could use
 * members' buffers at all. */
const struct tt_task *const *tt_plain_next(struct tt_plan *plan, bool possible);

#endif
