/* What networks have moved. For report.c, which holds the list's lock. */
#ifndef TT_REPORT_NETWORK_H
#define TT_REPORT_NETWORK_H

#include "plan/comm.h"
#include "tutti.h"
#include "report/writer.h"

/* One communicator's use of its network, as its proxy sees it. Of one that is made. */
void tt_report_network(struct tt_writer *writer, struct ncclComm *comm);
/* What the plugin of its network has counted, for all communicators of the process. */
void tt_report_counters(struct tt_writer *writer, struct tt_net *net);

/* Sums for tuttiCommNetStats. ncclInProgress: the proxy cannot be asked now. */
ncclResult_t tt_report_sum_network(struct ncclComm *comm, tuttiNetStats_t *stats);

#endif
