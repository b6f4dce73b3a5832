/* How nodes look to the algorithms over networks that reduce. Ranks of a node are counted from 0; network k reduces for
 * those with number k on every node, so there are as many networks as the smallest node has ranks. */
#ifndef TT_PROGRAM_COLLNET_SHAPE_H
#define TT_PROGRAM_COLLNET_SHAPE_H

#include "program/emit.h"

struct tt_collnet_shape {
  int32_t networks; /* at least 1 */
  int32_t nlocal;   /* ranks of this rank's node */
  int32_t local;    /* this rank's number among them */
  int32_t *ranks;   /* nlocal, ascending */
};

/* Reports a node number that is out of range, or one that no rank has. tt_collnet_shape_free also after a failure. */
ncclResult_t tt_collnet_shape_find(const struct tt_emit_request *request, struct tt_collnet_shape *shape);
void tt_collnet_shape_free(struct tt_collnet_shape *shape);

#endif
