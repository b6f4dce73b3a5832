/* Graphs that hold a communicator's works. Their replays need its memory, and no call announces them: so it is known
 * which graphs there are, and the memory outlives them (api/parked.h). */
#ifndef TT_PLAN_GRAPHS_H
#define TT_PLAN_GRAPHS_H

#include "plan/comm.h"

/* Notes that works are about to be launched on a stream that is captured into graph number `graph`. One thread at a
 * time. */
ncclResult_t tt_graphs_note(struct ncclComm *comm, void *stream, uint64_t graph);
/* How many of them exist. */
int tt_graphs_live(const struct ncclComm *comm);
/* From now on `gone` is called when none exists any more: on a thread of the driver's, where it may only tell others. */
void tt_graphs_tell(struct ncclComm *comm, void (*gone)(void));
/* Forgets them: before the communicator is freed. */
void tt_graphs_close(struct ncclComm *comm);

#endif
