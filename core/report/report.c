/* The list of communicators, and the report as a whole. */
#include "report/report.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"
#include "report/communicator.h"
#include "report/listen.h"
#include "report/memory.h"
#include "report/network.h"

/* A thread that drives operations and does not come round for so long is in a call that does not return. */
#define ROUND_USEC 100000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list; nobody waits for anything while holding it */
static struct ncclComm *first;
static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER; /* one report at a time */

void tt_report_add(struct ncclComm *comm)
{
  pthread_mutex_lock(&lock);
  comm->report_next = first;
  comm->reported = true;
  first = comm;
  pthread_mutex_unlock(&lock);
  if (comm->nranks > 1) tt_listen_start();
}

void tt_report_ready(struct ncclComm *comm)
{
  atomic_store(&comm->stage, TT_STAGE_READY);
}

void tt_report_end(struct ncclComm *comm)
{
  if (atomic_load(&comm->stage) == TT_STAGE_READY && comm->nranks > 1) tt_report_log_memory(comm);
  pthread_mutex_lock(&lock); /* who reads has ended then */
  atomic_store(&comm->stage, TT_STAGE_ENDING);
  pthread_mutex_unlock(&lock);
}

void tt_report_remove(struct ncclComm *comm)
{
  if (!comm->reported) return;
  pthread_mutex_lock(&lock);
  struct ncclComm **place = &first;
  while (*place != comm) place = &(*place)->report_next;
  *place = comm->report_next;
  pthread_mutex_unlock(&lock);
  comm->reported = false;
  if (comm->nranks > 1) tt_listen_stop();
}

/* Notes how often the threads that drive operations have come round. Whether any of them should soon have come round
 * again. */
static bool note_rounds(void)
{
  bool any = false;
  pthread_mutex_lock(&lock);
  for (struct ncclComm *comm = first; comm != NULL; comm = comm->report_next) any |= tt_report_note_round(comm);
  pthread_mutex_unlock(&lock);
  return any;
}

static bool has_network(const struct ncclComm *comm)
{
  return atomic_load(&comm->stage) == TT_STAGE_READY && comm->net != NULL;
}

/* Each library once, though communicators share it. */
static void write_networks(struct tt_writer *writer)
{
  tt_writer_open(writer, "networks", '[');
  for (const struct ncclComm *comm = first, *before; comm != NULL; comm = comm->report_next) {
    if (!has_network(comm)) continue;
    for (before = first; before != comm; before = before->report_next)
      if (has_network(before) && strcmp(tt_net_path(before->net), tt_net_path(comm->net)) == 0) break;
    if (before == comm) tt_report_counters(writer, comm->net);
  }
  tt_writer_close(writer, '[');
}

static bool write_all(struct tt_writer *writer, const struct ncclComm *wanted)
{
  bool found = wanted == NULL;
  tt_writer_open(writer, NULL, '{');
  tt_writer_signed(writer, "pid", getpid());
  tt_writer_text(writer, "host", tt_host_name());
  tt_writer_open(writer, "communicators", '[');
  pthread_mutex_lock(&lock);
  for (struct ncclComm *comm = first; comm != NULL; comm = comm->report_next) {
    if (wanted != NULL && comm != wanted) continue;
    found = true;
    tt_report_communicator(writer, comm);
  }
  tt_writer_close(writer, '[');
  if (wanted == NULL) write_networks(writer);
  pthread_mutex_unlock(&lock);
  tt_writer_close(writer, '{');
  return found;
}

ncclResult_t tt_report_write(const struct ncclComm *comm, bool json, char **text, size_t *bytes)
{
  struct tt_writer writer = {.json = json};
  *text = NULL;
  *bytes = 0;
  pthread_mutex_lock(&reporting);
  if (note_rounds()) usleep(ROUND_USEC);
  bool found = write_all(&writer, comm);
  pthread_mutex_unlock(&reporting);
  ncclResult_t result = ncclSuccess;
  if (!found)
    result = TT_FAIL(ncclInvalidArgument, "comm (%p) is not a communicator of this process, or was destroyed before",
                     (const void *)comm);
  else if (writer.failed)
    result = TT_FAIL(ncclSystemError, "no memory for a report of %zu bytes", writer.used);
  if (result != ncclSuccess) {
    free(writer.text);
    return result;
  }
  *text = writer.text;
  *bytes = writer.used;
  return ncclSuccess;
}

ncclResult_t tt_report_net_stats(const struct ncclComm *wanted, tuttiNetStats_t *stats)
{
  ncclResult_t result = ncclInProgress;
  pthread_mutex_lock(&lock);
  struct ncclComm *comm = first;
  while (comm != NULL && comm != wanted) comm = comm->report_next;
  if (comm != NULL && atomic_load(&comm->stage) == TT_STAGE_READY) result = tt_report_sum_network(comm, stats);
  pthread_mutex_unlock(&lock);
  if (comm != NULL) return result;
  return TT_FAIL(ncclInvalidArgument, "comm (%p) is not a communicator of this process, or was destroyed before",
                 (const void *)wanted);
}
