/* The end of a communicator. One that was destroyed while graphs hold works of it stays until these are gone: a graph
 * may still be launched, and its works then end at once, since they were stopped, but they look at the communicator's
 * memory first. The end of a graph is told on a thread of the driver's, which must not free that: the next call that
 * makes or ends a communicator does. */
#include "api/create.h"

#include <stdlib.h>
#include "api/handle.h"
#include "api/redop.h"
#include "api/register.h"
#include "base/check.h"
#include "plan/graphs.h"
#include "plan/plan.h"
#include "report/report.h"

/* Calls that found a communicator which could not be made have so long to leave. */
#define LEAVE_MS 10000

static pthread_mutex_t parked_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *parked; /* by group_next, which nothing else uses any more */

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

/* Keeps a communicator that has left the others, if graphs hold works of it. */
static bool park(struct ncclComm *comm)
{
  int graphs = tt_graphs_live(comm);
  if (graphs == 0) return false;
  TT_WARN(
      "rank %d: the communicator ends while %d captured graph%s operations of it, which do nothing from now on; its "
      "memory stays until the graphs are gone. Destroy graphs before their communicator",
      comm->rank, graphs, graphs == 1 ? " holds" : "s hold");
  tt_handle_remove(comm);
  pthread_mutex_lock(&parked_lock);
  comm->group_next = parked;
  parked = comm;
  pthread_mutex_unlock(&parked_lock);
  return true;
}

/* One whose graphs are gone, or NULL. */
static struct ncclComm *take_parked(void)
{
  pthread_mutex_lock(&parked_lock);
  struct ncclComm **place = &parked;
  while (*place != NULL && tt_graphs_live(*place) > 0) place = &(*place)->group_next;
  struct ncclComm *comm = *place;
  if (comm != NULL) *place = comm->group_next;
  pthread_mutex_unlock(&parked_lock);
  return comm;
}

void tt_comm_free_parked(void)
{
  for (struct ncclComm *comm; (comm = take_parked()) != NULL;) free_comm(comm);
}

void tt_comm_destroy(struct ncclComm *comm)
{
  if (comm == NULL) return;
  leave(comm);
  tt_comm_free_parked();
  if (!park(comm)) free_comm(comm);
}

void tt_comm_discard(struct ncclComm *comm)
{
  if (tt_handle_try_take(comm) && tt_handle_wait(comm, LEAVE_MS)) tt_comm_destroy(comm);
}
