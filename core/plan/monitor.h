/* Looks after works on streams, which nobody waits for: a thread a communicator of a device with streams. What ends
 * them (a failure of their own, another rank's, a rank that is gone, ranks that disagree) becomes the communicator's
 * error, is told to the others, and stops the works. */
#ifndef TT_PLAN_MONITOR_H
#define TT_PLAN_MONITOR_H

#include <stdbool.h>
#include "plan/comm.h"

/* Something that the works need has failed: that is the communicator's error, or what caused it, and ends them. The
 * sentence is the calling thread's last error. May wait a little. */
void tt_monitor_failed(struct ncclComm *comm, ncclResult_t result);
/* Starts it; nothing if it runs. */
ncclResult_t tt_monitor_start(struct ncclComm *comm);
/* Ends it, if it runs. */
void tt_monitor_end(struct ncclComm *comm);
/* The communicator's failure; or one that its device reports and that the thread has not looked at yet. Takes no lock
 * and waits for nothing. */
ncclResult_t tt_monitor_peek(struct ncclComm *comm);
/* The same, and waits, a second at most, until the sentence is there too. */
ncclResult_t tt_monitor_settle(struct ncclComm *comm);
/* What the device says of its works, for reports: any thread, while the communicator lives. False: nothing was
 * launched, or the process exits. */
struct tt_device_status;
bool tt_monitor_look(struct ncclComm *comm, struct tt_device_status *status);
/* Whether the process exits, and so nothing is looked after any more. */
bool tt_monitor_over(void);

#endif
