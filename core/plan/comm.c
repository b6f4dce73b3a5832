/* The communicator's memory of its first failure. */
#include "plan/comm.h"

#include <stdio.h>
#include "base/log.h"

ncclResult_t tt_comm_fail(struct ncclComm *comm, ncclResult_t result)
{
  if (result == ncclSuccess || result == ncclInProgress) return result;
  pthread_mutex_lock(&comm->error_lock);
  bool first = atomic_load(&comm->async_error) == ncclSuccess;
  if (first) {
    snprintf(comm->error_text, sizeof comm->error_text, "%s", tt_log_thread_error());
    atomic_store(&comm->async_error, result);
  }
  pthread_mutex_unlock(&comm->error_lock);
  if (first && comm->health != NULL) tt_health_failed(comm->health, result, comm->error_text);
  return result;
}
