/* See carrier.h. */
#include "plan/carrier.h"

#include "plan/monitor.h"
#include "proxy/thread.h"

static void failed(void *context, ncclResult_t result)
{
  tt_monitor_failed(context, result);
}

static bool over(void *context)
{
  (void)context;
  return tt_monitor_over();
}

static bool is_needed(const struct ncclComm *comm)
{
  return comm->env != NULL && comm->env->proxy != NULL && tt_proxy_runs(comm->env->proxy);
}

static ncclResult_t start(struct ncclComm *comm)
{
  struct tt_proxy_thread_config config = {.proxy = comm->env->proxy,
                                          .bell = comm->env->bell,
                                          .crowd = comm->local_ranks,
                                          .device = comm->device_index,
                                          .failed = failed,
                                          .over = over,
                                          .context = comm};
  return tt_proxy_thread_start(&config, &comm->carrier);
}

ncclResult_t tt_carrier_launch(struct ncclComm *comm)
{
  if (comm->carrier == NULL) return is_needed(comm) ? start(comm) : ncclSuccess;
  tt_proxy_thread_wake(comm->carrier);
  return ncclSuccess;
}

bool tt_carrier_through(struct ncclComm *comm)
{
  return comm->carrier == NULL || tt_proxy_quiet(comm->env->proxy);
}

void tt_carrier_end(struct ncclComm *comm)
{
  tt_proxy_thread_end(comm->carrier);
  comm->carrier = NULL;
}
