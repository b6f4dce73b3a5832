/* See turn.h. */
#include "api/turn.h"

#include <unistd.h>
#include "base/check.h"

#define TURN_USEC 100

uint64_t tt_turn_take(struct ncclComm *comm)
{
  return atomic_fetch_add(&comm->turns_taken, 1);
}

ncclResult_t tt_turn_wait(const char *function, struct ncclComm *comm, uint64_t turn)
{
  while (atomic_load(&comm->turns_done) < turn) {
    if (atomic_load(&comm->abort)) return TT_FAIL(ncclInternalError, "%s: the communicator was aborted", function);
    usleep(TURN_USEC);
  }
  return ncclSuccess;
}

void tt_turn_end(struct ncclComm *comm)
{
  atomic_fetch_add(&comm->turns_done, 1);
}
