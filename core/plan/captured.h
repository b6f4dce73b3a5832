/* Captured collectives whose buffers ranks use in place for the life of their graph (NCCL_GRAPH_REGISTER).
 *
 * No rank knows the others' buffers, so at the end of a group that is captured the ranks tell each other where theirs
 * lie and how they can be mapped; all map all, or all copy. A captured group may wait for that, as it does for
 * connections: nothing of it runs yet. NCCL's rule is that a collective is captured on all ranks or on none. A rank
 * that does not keep to it, or that has its buffers in windows, says so when it comes to that collective, and then all
 * copy.
 *
 * Ranks mean the same collective by its number (tt_signature.sequence), however each puts its calls into groups. */
#ifndef TT_PLAN_CAPTURED_H
#define TT_PLAN_CAPTURED_H

#include <stdbool.h>
#include "plan/comm.h"

struct tt_captured; /* a communicator's; NULL: it cannot have any, and the other calls do nothing */

/* On all ranks, before a barrier of the bootstrap. */
ncclResult_t tt_captured_open(struct ncclComm *comm);

/* Finds what of a group's tasks is to be agreed on, if they are captured. Local. *wanted: there is something. */
ncclResult_t tt_captured_prepare(struct ncclComm *comm, const struct tt_task *tasks, bool *wanted);
/* Whether that has found out into which graph the stream is captured (0: none), which then need not be asked again. */
bool tt_captured_graph(const struct ncclComm *comm, const void *stream, uint64_t *graph);
/* Whether the stream is captured into the graph on this thread, too. A handle that names another stream on each thread,
 * as cudaStreamPerThread, is so only on the caller's; what is held until the graph's end is asked for by the stream. */
bool tt_captured_here(const struct ncclComm *comm, const void *stream, uint64_t graph);
/* Agrees with the other ranks of the communicator. They must be able to come to it, so one thread that has several of
 * them needs threads. Ends with the communicator's failure or abort, if a rank is gone, or at the bootstrap's deadline;
 * ranks that are missing are named after TUTTI_INIT_WARN. */
ncclResult_t tt_captured_agree(struct ncclComm *comm);
/* The group is over, whatever became of it. */
void tt_captured_forget(struct ncclComm *comm);

/* The plan's next collective: whether all ranks have mapped what it uses of their buffers, and then by rank where this
 * rank's device finds them, until the group is over. Once for each collective of the group, in their order, before it
 * is numbered; also for those that have no program for it, of which nothing was agreed. */
bool tt_captured_next(struct ncclComm *comm, void ***inputs, void ***outputs);

#endif
