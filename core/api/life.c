/* The life of a communicator, as the user calls it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "api/check.h"
#include "api/config.h"
#include "api/create.h"
#include "api/export.h"
#include "api/group.h"
#include "api/handle.h"
#include "base/check.h"
#include "base/param.h"
#include "plan/host_stream.h"
#include "plan/stream.h"
#include "tutti.h"

/* A thread that waits inside a call sees the abort word within one sleep of its wait, and leaves. Only one that waits
 * for a device, in ncclCommFinalize, may stay longer. */
#define LEAVE_MS 10000
/* So long an abort waits for the end of a running operation before it leaves the freeing to it. */
#define RUNNING_MS 500

TT_EXPORT(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId))
{
  TT_TRY(tt_api_check_pointer("ncclGetUniqueId", "uniqueId", uniqueId));
  TT_TRY(tt_param_check());
  return tt_bootstrap_unique_id(uniqueId);
}

struct create_job {
  struct tt_job job;
  struct tt_create create;
  struct tt_bootstrap_probe probe;
  ncclUniqueId *ids; /* create.ids: a copy */
  ncclComm_t *out;
};

static ncclResult_t check_fellows(void *job)
{
  return tt_group_check_fellows(job);
}

static ncclResult_t run_create(struct tt_job *job)
{
  return tt_comm_init(job->comm, &((struct create_job *)job)->create);
}

/* What could not be made ends here, unless its user has yet to ask for the reason, or another thread has aborted it. */
static void end_create(struct create_job *create)
{
  struct ncclComm *comm = create->job.comm;
  bool made = create->job.ran && create->job.result == ncclSuccess;
  bool mine = false;
  if (!made && !create->job.background) {
    *create->out = NULL;
    mine = tt_handle_try_take(comm) && tt_handle_wait(comm, LEAVE_MS);
  }
  if (atomic_exchange(&comm->in_group, TT_COMM_IDLE) == TT_COMM_ABANDONED || mine) tt_comm_destroy(comm);
}

static void free_create(struct create_job *create)
{
  tt_config_free_names(&create->create.config);
  free(create->ids);
  free(create);
}

static void drop_create(struct tt_job *job)
{
  end_create((struct create_job *)job);
  free_create((struct create_job *)job);
}

static int by_bytes(const void *a, const void *b)
{
  return memcmp(a, b, sizeof(ncclUniqueId));
}

/* In one order on all ranks, in whatever order they have them. */
static ncclResult_t copy_ids(struct create_job *job)
{
  struct tt_create *create = &job->create;
  size_t bytes = (size_t)create->nids * sizeof *job->ids;
  if ((job->ids = malloc(bytes)) == NULL) return TT_FAIL(ncclSystemError, "no memory for %d unique ids", create->nids);
  memcpy(job->ids, create->ids, bytes);
  qsort(job->ids, (size_t)create->nids, sizeof *job->ids, by_bytes);
  create->ids = job->ids;
  create->id = job->ids[0]; /* names the communicator */
  return ncclSuccess;
}

static ncclResult_t fill_create(struct create_job *job)
{
  TT_TRY(tt_config_own_names(&job->create.config)); /* the group may end long after the call */
  if (job->create.ids != NULL) TT_TRY(copy_ids(job));
  return tt_comm_alloc(&job->create, &job->job.comm);
}

/* The handle is there at once, so that others can ask for the state of what it stands for, and abort it. */
static ncclResult_t add_create(ncclComm_t *out, const struct tt_create *create)
{
  struct create_job *job;
  TT_TRY(TT_CALLOC(&job, 1));
  job->create = *create;
  job->probe = (struct tt_bootstrap_probe){.ask = check_fellows, .context = &job->job};
  job->create.probe = &job->probe;
  job->out = out;
  ncclResult_t result = fill_create(job);
  if (result != ncclSuccess) {
    free_create(job);
    return result;
  }
  job->job.run = run_create;
  job->job.drop = drop_create;
  job->job.makes = true;
  job->job.blocking = create->config.blocking != 0;
  atomic_store(&job->job.comm->in_group, TT_COMM_IN_GROUP);
  *out = job->job.comm;
  result = tt_group_add_job(&job->job);
  if (result != ncclSuccess) drop_create(&job->job);
  return result;
}

#define TEXT_OF(value) #value
#define DOTTED(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
#define NCCL_API_VERSION DOTTED(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

static void log_version(int rank)
{
  tt_log_version("NCCL version " NCCL_API_VERSION " (Tutti " TUTTI_VERSION_STRING ")", rank == 0);
}

static ncclResult_t check_create(const char *function, ncclComm_t *comm, const struct tt_create *create)
{
  TT_TRY(tt_api_check_pointer(function, "comm", comm));
  if (create->nranks < 1)
    return TT_FAIL(ncclInvalidArgument, "%s: nranks is %d; allowed are 1 and more", function, create->nranks);
  if (create->rank < 0 || create->rank >= create->nranks)
    return TT_FAIL(ncclInvalidArgument, "%s: rank is %d; with nranks %d allowed are 0 to %d", function, create->rank,
                   create->nranks, create->nranks - 1);
  return ncclSuccess;
}

/* The device that this thread has chosen, since the communicator may be made on another one; -1 if its kind does not
 * know of that. A device that cannot be used is reported when all ranks have met, so that the others learn of it. */
static int chosen_device(void)
{
  const struct tt_device *device;
  int index;
  bool known = tt_device_choose(&device) == ncclSuccess && device->current != NULL;
  return known && device->current(&index) == ncclSuccess ? index : -1;
}

static ncclResult_t start_create(const char *function, ncclComm_t *comm, struct tt_create *create,
                                 const ncclConfig_t *config)
{
  TT_TRY(check_create(function, comm, create));
  *comm = NULL;
  TT_TRY(tt_param_check());
  log_version(create->rank);
  TT_TRY(tt_config_read(config, &create->config));
  create->device = chosen_device();
  return add_create(comm, create);
}

static ncclResult_t start_in_group(ncclComm_t *comm, struct tt_create *create, const ncclConfig_t *config)
{
  tt_group_start();
  ncclResult_t result = tt_group_note(start_create(create->function, comm, create, config));
  ncclResult_t ended = tt_group_end();
  return result != ncclSuccess ? result : ended;
}

static ncclResult_t init_rank(const char *function, ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config)
{
  struct tt_create create = {.function = function, .id = *id, .rank = rank, .nranks = nranks};
  return start_in_group(comm, &create, config);
}

TT_EXPORT(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank))
{
  return init_rank("ncclCommInitRank", comm, nranks, &commId, rank, NULL);
}

TT_EXPORT(ncclResult_t, ncclCommInitRankScalable,
          (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config))
{
  struct tt_create create = {
      .function = "ncclCommInitRankScalable", .rank = myrank, .nranks = nranks, .ids = commIds, .nids = nId};
  TT_TRY(tt_api_check_pointer(create.function, "commIds", commIds));
  if (nId < 1 || nId > nranks)
    return TT_FAIL(ncclInvalidArgument, "ncclCommInitRankScalable: nId is %d; with nranks %d allowed are 1 to %d", nId,
                   nranks, nranks);
  return start_in_group(newcomm, &create, config);
}

TT_EXPORT(ncclResult_t, ncclCommInitRankConfig,
          (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config))
{
  return init_rank("ncclCommInitRankConfig", comm, nranks, &commId, rank, config);
}

static ncclResult_t check_devices(int ndev, const int *devlist)
{
  const struct tt_device *device;
  int devices;
  TT_TRY(tt_device_choose(&device));
  TT_TRY(device->count(&devices));
  for (int i = 0; i < ndev; i++) {
    int index = devlist != NULL ? devlist[i] : i;
    if (index < 0 || index >= devices)
      return TT_FAIL(ncclInvalidArgument, "ncclCommInitAll: devlist[%d] is %d; the %s device has devices 0 to %d", i,
                     index, device->name, devices - 1);
    for (int k = 0; devlist != NULL && k < i; k++)
      if (devlist[k] == index)
        return TT_FAIL(ncclInvalidUsage, "ncclCommInitAll: devlist names device %d twice, at %d and %d", index, k, i);
  }
  return ncclSuccess;
}

static ncclResult_t start_create_all(ncclComm_t *comms, int ndev, const int *devlist)
{
  struct tt_create create = {.function = "ncclCommInitAll", .nranks = ndev};
  TT_TRY(tt_api_check_pointer("ncclCommInitAll", "comm", comms));
  if (ndev < 1) return TT_FAIL(ncclInvalidArgument, "ncclCommInitAll: ndev is %d; allowed are 1 and more", ndev);
  for (int i = 0; i < ndev; i++) comms[i] = NULL;
  TT_TRY(tt_param_check());
  TT_TRY(check_devices(ndev, devlist));
  log_version(0);
  TT_TRY(tt_config_read(NULL, &create.config));
  if (ndev > 1) TT_TRY(tt_bootstrap_own_id(&create.id));
  for (create.rank = 0; create.rank < ndev; create.rank++) {
    create.device = devlist != NULL ? devlist[create.rank] : create.rank;
    TT_TRY(add_create(&comms[create.rank], &create));
  }
  return ncclSuccess;
}

/* Jobs of a group that is still open go with them: it would make what is freed, and write to the caller's array, which
 * may be gone by then. */
static void drop_all(ncclComm_t *comms, int ndev)
{
  for (int i = 0; i < ndev; i++) {
    if (comms[i] != NULL) tt_group_forget(comms[i]); /* sets it to NULL if it had the job */
    if (comms[i] != NULL) tt_comm_discard(comms[i]);
    comms[i] = NULL;
  }
}

TT_EXPORT(ncclResult_t, ncclCommInitAll, (ncclComm_t * comm, int ndev, const int *devlist))
{
  tt_group_start();
  ncclResult_t result = tt_group_note(start_create_all(comm, ndev, devlist));
  ncclResult_t ended = tt_group_end();
  if (result == ncclSuccess) result = ended;
  if (result != ncclSuccess && result != ncclInProgress && comm != NULL) drop_all(comm, ndev);
  return result;
}

static ncclResult_t run_finalize(struct tt_job *job)
{
  return tt_stream_drain(job->comm);
}

static void drop_finalize(struct tt_job *job)
{
  free(job);
}

/* A non-blocking one is in its group, which waits in background. */
static ncclResult_t start_finalize(struct ncclComm *comm)
{
  struct tt_job *job;
  TT_TRY(tt_group_join(comm));
  TT_TRY(TT_CALLOC(&job, 1));
  *job = (struct tt_job){.run = run_finalize, .drop = drop_finalize, .comm = comm};
  ncclResult_t result = tt_group_add_job(job);
  if (result != ncclSuccess) free(job);
  return result;
}

static ncclResult_t finalize(struct ncclComm *comm)
{
  TT_TRY(tt_api_check_ready("ncclCommFinalize", comm));
  if (atomic_load(&comm->revoked))
    return TT_FAIL(ncclInvalidArgument, "ncclCommFinalize: the communicator was revoked; destroy it");
  if (atomic_exchange(&comm->finalized, 1))
    return TT_FAIL(ncclInvalidArgument, "ncclCommFinalize: the communicator was finalized before");
  return comm->config.blocking ? tt_stream_drain(comm) : start_finalize(comm);
}

TT_EXPORT(ncclResult_t, ncclCommFinalize, (ncclComm_t comm))
{
  if (comm == NULL) return ncclSuccess;
  TT_TRY(tt_handle_hold_own("ncclCommFinalize", comm));
  tt_group_start();
  ncclResult_t result = tt_group_note(finalize(comm));
  tt_handle_let_go(comm);
  ncclResult_t ended = tt_group_end();
  return result != ncclSuccess ? result : ended;
}

/* What runs on this rank ends with an error, as does what the other ranks wait for in vain. */
static ncclResult_t revoke_comm(struct ncclComm *comm, int flags)
{
  if (flags != 0) return TT_FAIL(ncclInvalidArgument, "ncclCommRevoke: revokeFlags is %d; only 0 is allowed", flags);
  if (atomic_load(&comm->stage) != TT_STAGE_READY)
    return TT_FAIL(ncclInvalidArgument, "ncclCommRevoke: the communicator is not made; abort it");
  if (atomic_load(&comm->finalized))
    return TT_FAIL(ncclInvalidArgument, "ncclCommRevoke: the communicator was finalized; destroy it");
  if (atomic_exchange(&comm->revoked, 1))
    return TT_FAIL(ncclInvalidArgument, "ncclCommRevoke: the communicator was revoked before");
  tt_comm_fail(comm, TT_FAIL(ncclInvalidUsage, "rank %d revoked the communicator (ncclCommRevoke)", comm->rank));
  tt_stream_abort(comm);
  return ncclSuccess;
}

TT_EXPORT(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags))
{
  if (comm == NULL) return ncclSuccess;
  TT_TRY(tt_handle_hold_own("ncclCommRevoke", comm));
  ncclResult_t result = revoke_comm(comm, revokeFlags);
  tt_handle_let_go(comm);
  return result;
}

static void end_comm(struct ncclComm *comm, const char *how)
{
  TT_INFO(TT_INIT, "comm %p rank %d nranks %d commId 0x%llx - %s COMPLETE", (void *)comm, comm->rank, comm->nranks,
          (unsigned long long)comm->id_hash, how);
  tt_comm_destroy(comm);
}

static ncclResult_t wait_for_others(const char *function, struct ncclComm *comm)
{
  if (tt_handle_wait(comm, LEAVE_MS)) return ncclSuccess;
  return TT_FAIL(ncclSystemError, "%s: a thread did not leave its call within %d s; the communicator's memory stays",
                 function, LEAVE_MS / 1000);
}

TT_EXPORT(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))
{
  if (comm == NULL) return ncclSuccess;
  if (tt_group_has_calls(comm))
    return TT_FAIL(ncclInvalidUsage,
                   "ncclCommDestroy: the communicator has calls in an open group; end the group first");
  TT_TRY(tt_handle_take("ncclCommDestroy", comm, true));
  TT_TRY(wait_for_others("ncclCommDestroy", comm));
  if (atomic_load(&comm->in_group)) { /* a call that held it has begun an operation */
    tt_handle_give_back(comm);
    return TT_FAIL(ncclInvalidUsage,
                   "ncclCommDestroy: another thread is using the communicator; ncclCommAbort ends what "
                   "that thread does");
  }
  tt_stream_drain(comm); /* a failure is the communicator's, which ends in any case */
  end_comm(comm, "Destroy");
  return ncclSuccess;
}

/* Ends all waits of it, and of the children that it is just making. */
static void raise_abort(struct ncclComm *comm)
{
  pthread_mutex_lock(&comm->children_lock);
  atomic_store(&comm->abort, 1);
  for (struct ncclComm *child = comm->children; child != NULL; child = child->children_next)
    atomic_store(&child->abort, 1);
  pthread_mutex_unlock(&comm->children_lock);
}

TT_EXPORT(ncclResult_t, ncclCommAbort, (ncclComm_t comm))
{
  if (comm == NULL) return ncclSuccess;
  TT_TRY(tt_handle_take("ncclCommAbort", comm, false));
  tt_group_forget(comm); /* the rest of this thread's open group, if there is one, is not affected */
  raise_abort(comm);
  TT_TRY(wait_for_others("ncclCommAbort", comm));
  tt_stream_abort_host(comm); /* a group may wait for what it has on streams */
  for (tt_deadline end = tt_deadline_in_ms(RUNNING_MS); atomic_load(&comm->in_group) && !tt_deadline_passed(end);)
    usleep(100);
  if (!tt_group_leave(comm)) return ncclSuccess; /* an open group of another thread: it frees the communicator */
  tt_stream_abort(comm);
  if (!tt_host_leave(comm)) return ncclSuccess; /* what still runs on a host stream frees it */
  end_comm(comm, "Abort");
  return ncclSuccess;
}
