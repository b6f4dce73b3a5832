/* The plan: turns the tasks of a group into works that a device executes, and runs them.
 *
 * Order: collectives in call order, then point-to-point operations in rounds (graph/join.h), in which each rank
 * sends to one rank and receives from one, the k-th message of a pair in pass k. Everything that a group needs is
 * connected before any of it is launched. */
#ifndef TT_PLAN_PLAN_H
#define TT_PLAN_PLAN_H

#include "nccl.h"
#include "base/zone.h"
#include "plan/comm.h"

struct tt_pairs;
struct tt_plain;

/* One communicator's works of one group. */
struct tt_plan {
  struct ncclComm *comm;
  struct tt_work **works;
  int nworks, capacity;
  struct tt_zone zone; /* what is needed only while works are made or bound */
  bool launched;       /* on a stream: the works may be kept */
  /* On a device with streams: that of the first task, on which all is launched; the others of its tasks, which it
   * joins; and the graph that they are captured into, or 0. */
  void *stream, **others;
  int nothers;
  uint64_t graph;
  struct tt_plain *plain; /* plan/plain.h; of the group, NULL: none */
  int plain_step;
  const struct tt_pairs *pairs; /* plan/pairs.h, likewise */
};

/* Appends a task to the communicator's open group. */
ncclResult_t tt_plan_add_task(struct ncclComm *comm, const struct tt_task *task);
/* The task's number in logs and reports: each collective has its own, the sends and receives of a group share one. Once
 * a task, before it is added. */
uint64_t tt_plan_number(struct ncclComm *comm, const struct tt_task *task);
/* Drops the tasks of the open group. */
void tt_plan_drop_tasks(struct ncclComm *comm);
/* Frees a list of tasks. */
void tt_plan_free_tasks(struct tt_task *tasks);

/* Plans the communicator's `ntasks` tasks and notes the connections that they need. Local: sends nothing. `plain` and
 * `pairs` are of the group that they are in (plan/plain.h, plan/pairs.h). */
ncclResult_t tt_plan_build(struct ncclComm *comm, struct tt_task *tasks, int ntasks, struct tt_plain *plain,
                           const struct tt_pairs *pairs, struct tt_plan *plan);
/* What they would take, in microseconds, by the cost model. */
ncclResult_t tt_plan_estimate(const struct ncclComm *comm, float *microseconds);
/* Once the connections are up: hands each work its connections and scratch memory, and tells the proxy what will pass.
 */
ncclResult_t tt_plan_bind(struct tt_plan *plan);
/* Runs the plans of one group: enqueues those of devices with streams, and runs the others to their end on the calling
 * thread. The first failure is kept in its communicator. May change the plans' order. */
ncclResult_t tt_plan_run(struct tt_plan *plans, int nplans);
void tt_plan_free(struct tt_plan *plan);
/* Frees a plan that was not run. Its works leave no gap in the sequence numbers, so that the communicator stays usable.
 */
void tt_plan_take_back(struct tt_plan *plan);
/* Nothing of the communicator runs from then on; what still does is stopped. */
void tt_plan_stop(struct ncclComm *comm);
/* Frees what a communicator's operations keep, after that. */
void tt_plan_end(struct ncclComm *comm);

/* A collective's algorithm, protocol and channels, where there are several ranks; `bytes` as for the tuning; `mapped`:
 * all ranks have mapped its buffers. Where a tuner has a say it may wait for rank 0's service, never for a user's call.
 */
ncclResult_t tt_plan_choose(const struct ncclComm *comm, const struct tt_task *task, size_t bytes, bool mapped,
                            struct tt_choice *choice);

/* Whether tt_plan_choose would take Mapped, if it could; true where a tuner has a say. The same of a message, where none
 * has. Asks nobody, and is cheap. */
bool tt_plan_prefers_mapped(struct ncclComm *comm, const struct tt_task *task);

/* A task's op as signatures have it; 0 where nothing is reduced. */
int tt_plan_op(const struct tt_task *task);
/* Whether an all-to-all's input and output share no memory. Of other collectives nobody asks: false. */
bool tt_plan_apart(const struct ncclComm *comm, const struct tt_task *task);

/* works.c: makes a work with channels and room for their connections, and for the buffers of `nmembers` ranks, and
 * appends it to the plan. */
struct tt_work *tt_plan_new_work(struct tt_plan *plan, const struct tt_program *const *programs, int nchannels,
                                 int nmembers);
/* Appends a work; false for lack of memory. */
bool tt_plan_append(struct tt_plan *plan, struct tt_work *work);
/* Channels for a copy within the rank. */
int tt_plan_copy_channels(const struct ncclComm *comm, size_t bytes);
/* Whether each rank has messages for each other rank, or one rank for all: all-to-all, gather and scatter. */
bool tt_plan_exchanges(int collective);
/* The slots of a connection, in bytes, for a protocol. */
size_t tt_plan_slot_bytes(const struct ncclComm *comm, int protocol);
/* Notes the connections of a work's programs. */
ncclResult_t tt_plan_need(struct ncclComm *comm, const struct tt_work *work);

/* collective.c, point_to_point.c: from tasks to works. */
ncclResult_t tt_plan_collective(struct tt_plan *plan, const struct tt_task *task);
ncclResult_t tt_plan_point_to_point(struct tt_plan *plan, struct tt_task *const *tasks, int ntasks);

#endif
