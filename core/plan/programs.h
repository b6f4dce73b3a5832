/* A communicator's programs, emitted when first needed and kept. */
#ifndef TT_PLAN_PROGRAMS_H
#define TT_PLAN_PROGRAMS_H

#include <stdint.h>
#include "nccl.h"
#include "tutti/program.h"

struct tt_programs;

/* `order` is the ring order, `node` each rank's node (nranks entries each); both outlive the object. */
ncclResult_t tt_programs_create(int rank, int nranks, const int32_t *order, const int32_t *node,
                                struct tt_programs **out);
void tt_programs_destroy(struct tt_programs *programs);

/* The program of this rank. `root` is the peer for TT_FUNC_SEND and TT_FUNC_RECV. `channel` chooses among trees and
 * heads.
 * Owned by `programs`. */
ncclResult_t tt_programs_get(struct tt_programs *programs, int collective, int algorithm, int root, int channel,
                             const struct tt_program **out);

#endif
