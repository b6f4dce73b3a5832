/* The report's part about one communicator. For report.c, which holds the list's lock and lets one report be made at a
 * time. */
#ifndef TT_REPORT_COMMUNICATOR_H
#define TT_REPORT_COMMUNICATOR_H

#include <stdbool.h>
#include "plan/comm.h"
#include "report/writer.h"

/* Notes how often the thread that drives the communicator has come round. Whether it is to be looked at again, since it
 * found something to do when it last did. */
bool tt_report_note_round(struct ncclComm *comm);
void tt_report_communicator(struct tt_writer *writer, struct ncclComm *comm);

/* operations.c: what is pending of the running group. Returns how long a collective has waited in which nothing moves,
 * in nanoseconds. *sequence: the first collective's number; TT_HEALTH_LATEST: none is known to be pending. */
uint64_t tt_report_operations(struct tt_writer *writer, struct ncclComm *comm, uint64_t *sequence);
/* Ranks that have not said to be in the collective that this rank is in; TT_HEALTH_LATEST: that it has begun last. */
void tt_report_late(struct tt_writer *writer, struct ncclComm *comm, uint64_t sequence);

/* The host of a rank, or of a network that reduces. */
const char *tt_report_host(const struct ncclComm *comm, int peer);

#endif
