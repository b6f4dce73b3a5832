/* Reports: what each communicator of this process is at, on request, at any moment of its life.
 *
 * A list has all communicators, from before they meet the other ranks until they are freed. A report holds the list's
 * lock, so that none is freed meanwhile, reads what may be read in that stage of life, waits for nothing of what
 * operations wait for, and writes to memory only.
 *
 * Who asks: the process itself (tuttiCommReport), a signal, or another process by a socket (listen.h). Any thread. */
#ifndef TT_REPORT_REPORT_H
#define TT_REPORT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include "nccl.h"
#include "plan/comm.h"
#include "tutti.h"

/* Puts a communicator on the list as soon as its rank, number of ranks and identity are set; others may ask from then
 * on, if it has several ranks. It never fails: without a socket or thread there are no answers to others, which is
 * logged. */
void tt_report_add(struct ncclComm *comm);
/* It is made: all of it may be read. */
void tt_report_ready(struct ncclComm *comm);
/* It is about to be taken apart: logs the memory that it holds. Nothing but its name is read from then on. */
void tt_report_end(struct ncclComm *comm);
/* Takes it off the list, if it is there. */
void tt_report_remove(struct ncclComm *comm);

/* The report of one communicator, or of all (NULL). *text is malloc'ed and the caller's, with *bytes bytes and a NUL
 * behind them. ncclInvalidArgument if the communicator is not on the list. May take a tenth of a second, to see whether
 * something moves. */
ncclResult_t tt_report_write(const struct ncclComm *comm, bool json, char **text, size_t *bytes);

/* Fills all but stats->size; see tuttiCommNetStats. */
ncclResult_t tt_report_net_stats(const struct ncclComm *comm, tuttiNetStats_t *stats);

#endif
