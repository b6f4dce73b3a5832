/* The communicator's memory of its first failure, and of what it has to give up. */
#include "plan/comm.h"

#include <stdio.h>
#include "base/check.h"

struct tt_comm_undo {
  struct tt_comm_undo *before;
  tt_comm_end *end;
};

ncclResult_t tt_comm_at_end(struct ncclComm *comm, tt_comm_end *end)
{
  struct tt_comm_undo *undo;
  ncclResult_t result = TT_ZONE_NEW(&comm->zone, &undo, 1);
  if (result != ncclSuccess) {
    end(comm);
    return result;
  }
  undo->before = comm->undo;
  undo->end = end;
  comm->undo = undo;
  return ncclSuccess;
}

void tt_comm_undo(struct ncclComm *comm)
{
  while (comm->undo != NULL) {
    struct tt_comm_undo *undo = comm->undo;
    comm->undo = undo->before;
    undo->end(comm);
  }
}

bool tt_comm_note(struct ncclComm *comm, ncclResult_t result)
{
  pthread_mutex_lock(&comm->error_lock);
  bool first = atomic_load(&comm->async_error) == ncclSuccess;
  if (first) {
    snprintf(comm->error_text, sizeof comm->error_text, "%s", tt_log_thread_error());
    atomic_store(&comm->async_error, result);
  }
  pthread_mutex_unlock(&comm->error_lock);
  return first;
}

void tt_comm_tell(struct ncclComm *comm)
{
  if (comm->health != NULL)
    tt_health_failed(comm->health, (ncclResult_t)atomic_load(&comm->async_error), comm->error_text);
}

ncclResult_t tt_comm_fail(struct ncclComm *comm, ncclResult_t result)
{
  if (result == ncclSuccess || result == ncclInProgress) return result;
  if (tt_comm_note(comm, result)) tt_comm_tell(comm);
  return result;
}
