/* From the calls of a group to items of host streams. */
#ifndef TT_API_HOST_STREAM_H
#define TT_API_HOST_STREAM_H

#include <stdbool.h>
#include "plan/host_stream.h"

/* What one group asks of host streams. All zero: nothing. */
struct tt_host_items {
  struct tt_host_item **items;
  bool *kept; /* a call of it named no stream, so that the group waits for it */
  int count;
};

/* Takes the tasks of those communicators of a group (a list by group_next, `ncomms` long) that name host streams.
 * Communicators that have a stream in common are one item; the others do not wait for each other. */
ncclResult_t tt_host_items_make(struct ncclComm *comms, int ncomms, tt_host_run *run, tt_host_free *end,
                                struct tt_host_items *out);
/* Waits for those that were kept, if they were enqueued, and frees all that the streams do not own. The first failure
 * of what it waited for. */
ncclResult_t tt_host_items_end(struct tt_host_items *items, bool enqueued);

#endif
