/* The memory that a communicator holds. */
#ifndef TT_REPORT_MEMORY_H
#define TT_REPORT_MEMORY_H

#include "plan/comm.h"
#include "report/writer.h"

void tt_report_memory(struct tt_writer *writer, struct ncclComm *comm);
/* One line. */
void tt_report_log_memory(struct ncclComm *comm);

#endif
