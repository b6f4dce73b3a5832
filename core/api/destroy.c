/* The end of a communicator. */
#include "api/create.h"

#include <stdlib.h>
#include "api/handle.h"
#include "api/parked.h"
#include "api/redop.h"
#include "api/register.h"
#include "base/check.h"
#include "plan/plan.h"
#include "report/report.h"

/* Calls that found a communicator which could not be made have so long to leave. */
#define LEAVE_MS 10000

/* Ends what it does, once. */
static void leave(struct ncclComm *comm)
{
  if (comm->left) return;
  comm->left = true;
  tt_report_end(comm);
  tt_plan_stop(comm);
  if (comm->health != NULL) tt_health_leave(comm->health);
}

void tt_comm_dismantle(struct ncclComm *comm)
{
  if (comm->dismantled) return;
  leave(comm);
  comm->dismantled = true;
  tt_plan_end(comm);
  tt_redop_free(comm);
  tt_register_free(comm);
  tt_comm_undo(comm);
}

static void free_comm(struct ncclComm *comm)
{
  tt_comm_dismantle(comm);
  tt_handle_remove(comm);
  pthread_mutex_destroy(&comm->error_lock);
  pthread_mutex_destroy(&comm->children_lock);
  tt_pool_destroy(comm->pool);
  tt_zone_clear(&comm->zone);
  free(comm);
}

void tt_comm_destroy(struct ncclComm *comm)
{
  if (comm == NULL) return;
  leave(comm);
  if (!tt_comm_park(comm, free_comm)) free_comm(comm);
}

void tt_comm_discard(struct ncclComm *comm)
{
  if (tt_handle_try_take(comm) && tt_handle_wait(comm, LEAVE_MS)) tt_comm_destroy(comm);
}
