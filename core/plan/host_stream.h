/* Host streams: queues of operations on devices without streams of their own. A stream is a thread, started when it is
 * first used, that runs the stream's items one after another and sleeps when there are none.
 *
 * An item is what one group asks of communicators that share streams. It runs when it is the first in the queues of all
 * its streams and all earlier items of its communicators are done, on the thread of the first of its streams. Items
 * enter all their queues at once, and wait only for items that entered before, so they cannot wait for each other in a
 * circle.
 *
 * Handles are numbers in the form of a pointer, which are looked up and never followed, and not given out twice.
 *
 * Threads: any. One lock guards all queues; nobody keeps it while an operation runs. */
#ifndef TT_PLAN_HOST_STREAM_H
#define TT_PLAN_HOST_STREAM_H

#include <stdbool.h>
#include "nccl.h"
#include "plan/comm.h"

ncclResult_t tt_host_stream_create(void **handle);
/* Waits for what is on the stream, and ends it. The failure that nobody was told yet. ncclInvalidArgument naming
 * `function` and the handle where there is no such stream; so in the next two. */
ncclResult_t tt_host_stream_destroy(const char *function, void *handle);
/* Waits for what is on the stream now. The first failure since the last that was told. */
ncclResult_t tt_host_stream_synchronize(const char *function, void *handle);
/* ncclInProgress, or else what synchronize would return; tells the failure, and does not forget it. */
ncclResult_t tt_host_stream_query(const char *function, void *handle);
ncclResult_t tt_host_stream_check(const char *function, void *handle);
/* Whether it looks like a handle of these, dead ones included: no other kind of pointer does. */
bool tt_host_stream_like(const void *handle);

/* A communicator's share of an item. */
struct tt_host_part {
  struct ncclComm *comm;
  struct tt_task *tasks; /* owned; tt_plan_free_tasks */
  int ntasks;
  uint64_t turn; /* among the communicator's items */
};

/* Runs the tasks of the parts to their end. A failure is in the communicators when it returns. */
typedef ncclResult_t tt_host_run(struct tt_host_part *parts, int nparts);
/* Frees a communicator that was left to its items (tt_host_leave). */
typedef void tt_host_free(struct ncclComm *comm);

struct tt_host_item;
/* Room for so many streams and parts; filled by the next two. */
ncclResult_t tt_host_item_new(int streams, int parts, tt_host_run *run, tt_host_free *end, struct tt_host_item **out);
/* Nothing if the item has the stream. */
void tt_host_item_add_stream(struct tt_host_item *item, void *handle);
/* Takes over the tasks of the communicator's open group. */
void tt_host_item_add_part(struct tt_host_item *item, struct ncclComm *comm);
/* Somebody will wait for it (tt_host_item_wait). Before it is enqueued. */
void tt_host_item_keep(struct tt_host_item *item);
/* Puts all items on their streams, or none: ncclInvalidArgument where a stream is gone. Those that are not kept belong
 * to the streams then. */
ncclResult_t tt_host_enqueue(struct tt_host_item **items, int nitems);
/* Waits for an item that was kept, and lets go of it. Returns its failure, as this thread's. */
ncclResult_t tt_host_item_wait(struct tt_host_item *item);
void tt_host_item_free(struct tt_host_item *item);

/* Why an operation of the communicator cannot begin, if it has failed or is aborted. */
ncclResult_t tt_host_not_begun(const struct ncclComm *comm);
/* Waits until no item of the communicator is left; ncclInternalError if it is aborted meanwhile. */
ncclResult_t tt_host_drain(struct ncclComm *comm);
/* Takes the communicator out of items that have not begun, which is a failure of their streams, and waits at most
 * timeout_ms for one that runs. Whether there were any. The communicator has failed, so that what runs ends. */
bool tt_host_abort(struct ncclComm *comm, int timeout_ms);
/* Of a communicator that nobody uses any more: whether no item of it is left, so that the caller frees it. Else the
 * last of them does. */
bool tt_host_leave(struct ncclComm *comm);
/* How many items run now. */
int tt_host_running(void);

#endif
