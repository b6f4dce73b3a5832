/* Memory that the ranks of a node share, TT_SHARED and TT_MULTICAST of programs: each has a copy. Devices that can make
 * a team of it (plan/team.h), with a multicast address; on the host device each maps the others' copies. */
#ifndef TT_PLAN_SHARED_H
#define TT_PLAN_SHARED_H

#include <stddef.h>
#include "nccl.h"
#include "tutti/device.h"

struct ncclComm;

/* Takes part of all ranks, during init: makes this rank's copy, for `channels` channels (equal on all ranks; 0: none is
 * needed), and reaches those of the others. */
ncclResult_t tt_shared_join(struct ncclComm *comm, int channels);
/* Unmaps, while the transport env still is. This rank's copy goes with its env, since a rank that was not told of an
 * abort yet may still use it. */
void tt_shared_leave(struct ncclComm *comm);

/* Of this rank's copy; 0 if there is none. */
size_t tt_shared_bytes(const struct ncclComm *comm);

/* Bytes that may be moved at a time on so many nodes, as users say. */
size_t tt_shared_largest(int nnodes);
/* Bytes that a program's chunk may have: at most `capacity` and tt_shared_largest, and all fit a channel's area. */
size_t tt_shared_chunk(const struct ncclComm *comm, const struct tt_program *program, size_t capacity);
/* Gives the work the memory, if its programs share any, and channel `channel` its area. `element`: bytes of one. */
ncclResult_t tt_shared_place(const struct ncclComm *comm, struct tt_work *work, int channel, size_t element);

#endif
