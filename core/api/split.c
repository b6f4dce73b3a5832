/* Children of a communicator: Split and Shrink. A child is a communicator like any other, with a bootstrap, connections
 * and memory of its own; the parent only introduces its ranks to each other: the first of them makes a unique id and
 * hands it out over the parent's bootstrap. So a parent that failed can still have children, as long as those that take
 * part can reach each other. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "api/check.h"
#include "api/config.h"
#include "api/create.h"
#include "api/export.h"
#include "api/group.h"
#include "api/handle.h"
#include "api/survivors.h"
#include "api/turn.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/param.h"
#include "plan/stream.h"
#include "transport/memory.h"

#define TAG_ID (TT_TAG_USER + 0x2000u)

struct child_job {
  struct tt_job job;       /* its communicator is the parent, which it holds */
  struct tt_create create; /* id, rank and nranks are found out */
  ncclComm_t *out;
  uint64_t turn;
  bool had_turn;
  struct tt_bootstrap_call call; /* of a split, which all ranks of the parent take part in */
  int color, key;
  int *excluded; /* of a shrink, ascending; NULL: a split */
  int nexcluded;
  bool aborts;  /* NCCL_SHRINK_ABORT */
  int *members; /* parent's ranks, by the child's */
  int *numbers; /* theirs in the parent's memory, behind them in the same block */
  struct tt_bootstrap_probe probe;
};

struct place {
  int32_t color, key;
};

/* ---- Who is in it ---- */

static int by_key(const void *a, const void *b, void *of)
{
  const struct place *places = of;
  int left = *(const int *)a, right = *(const int *)b;
  if (places[left].key != places[right].key) return places[left].key < places[right].key ? -1 : 1;
  return left < right ? -1 : 1;
}

static void find_myself(struct child_job *child)
{
  for (int r = 0; r < child->create.nranks; r++)
    if (child->members[r] == child->job.comm->rank) child->create.rank = r;
}

/* The ranks of this one's color, by key. A rank without color has none. From here on they need only each other. */
static ncclResult_t gather_members(struct child_job *child)
{
  struct ncclComm *parent = child->job.comm;
  struct place *places;
  TT_TRY(TT_CALLOC(&places, (size_t)parent->nranks));
  places[parent->rank] = (struct place){child->color, child->key};
  ncclResult_t result = ncclSuccess;
  if (parent->nranks > 1) result = tt_bootstrap_call_gather(parent->bootstrap, &child->call, places, sizeof *places);
  if (result == ncclSuccess) child->call.part = child->color;
  for (int r = 0; result == ncclSuccess && r < parent->nranks; r++)
    if (places[r].color == child->color) child->members[child->create.nranks++] = r;
  qsort_r(child->members, (size_t)child->create.nranks, sizeof *child->members, by_key, places);
  free(places);
  find_myself(child);
  return result;
}

static void keep_members(struct child_job *child)
{
  for (int r = 0, e = 0; r < child->job.comm->nranks; r++) {
    if (e < child->nexcluded && child->excluded[e] == r)
      e++;
    else
      child->members[child->create.nranks++] = r;
  }
  find_myself(child);
}

/* ---- The id ---- */

static tt_deadline deadline(void)
{
  return tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000);
}

/* The first rank makes the id; without one, for whatever reason, it says so by an empty message. */
static ncclResult_t give_id(struct child_job *child)
{
  struct ncclComm *parent = child->job.comm;
  ncclResult_t result = tt_bootstrap_own_id(&child->create.id);
  size_t bytes = result == ncclSuccess ? sizeof child->create.id : 0;
  for (int r = 1; r < child->create.nranks; r++) {
    ncclResult_t sent =
        tt_bootstrap_call_send(parent->bootstrap, &child->call, child->members[r], TAG_ID, &child->create.id, bytes);
    if (result == ncclSuccess) result = sent;
  }
  return result;
}

static ncclResult_t take_id(struct child_job *child)
{
  struct ncclComm *parent = child->job.comm;
  int first = child->members[0];
  void *data;
  size_t bytes;
  TT_TRY(tt_bootstrap_call_recv(parent->bootstrap, &child->call, first, TAG_ID, &data, &bytes, deadline()));
  if (bytes == sizeof child->create.id) memcpy(&child->create.id, data, bytes);
  free(data);
  if (bytes == sizeof child->create.id) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "%s: rank %d, the first of the new communicator, failed; its log says why",
                 child->create.function, first);
}

/* ---- The job ---- */

static ncclResult_t introduce(struct child_job *child)
{
  TT_TRY(tt_turn_wait(child->create.function, child->job.comm, child->turn));
  if (child->excluded != NULL) {
    keep_members(child);
    if (child->create.nranks == 1) return ncclSuccess;
    uint64_t excluded = tt_hash(child->excluded, (size_t)child->nexcluded * sizeof *child->excluded);
    return tt_survivors_meet(child->job.comm, child->members, child->create.nranks, excluded, &child->create.id);
  }
  TT_TRY(gather_members(child));
  if (child->color == NCCL_SPLIT_NOCOLOR || child->create.nranks == 1) return ncclSuccess;
  return child->create.rank == 0 ? give_id(child) : take_id(child);
}

static void end_turn(struct child_job *child)
{
  if (!child->had_turn) tt_turn_end(child->job.comm);
  child->had_turn = true;
}

/* A child that is being made is among its parent's, so that who aborts the parent ends that, too. */
static void list_child(struct ncclComm *parent, struct ncclComm *child)
{
  pthread_mutex_lock(&parent->children_lock);
  if (atomic_load(&parent->abort)) atomic_store(&child->abort, 1);
  child->children_next = parent->children;
  parent->children = child;
  pthread_mutex_unlock(&parent->children_lock);
}

static void unlist_child(struct ncclComm *parent, const struct ncclComm *child)
{
  pthread_mutex_lock(&parent->children_lock);
  struct ncclComm **place = &parent->children;
  while (*place != child) place = &(*place)->children_next;
  *place = child->children_next;
  pthread_mutex_unlock(&parent->children_lock);
}

/* The parent's connections tell of what the child's root cannot notice: of a rank that will not come to it. One that
 * has left the parent did not come, since none has its child while another one still asks this. */
static ncclResult_t check_members(void *context)
{
  struct child_job *child = context;
  struct tt_bootstrap *bootstrap = child->job.comm->bootstrap;
  int gone = -1;
  char why[240] = "has left it: it was aborted there, most likely";
  if (!tt_bootstrap_dead_among(bootstrap, child->members, child->create.nranks, &gone, why, sizeof why))
    for (int r = 0; r < child->create.nranks && gone < 0; r++)
      if (tt_bootstrap_left(bootstrap, child->members[r])) gone = child->members[r];
  if (gone >= 0)
    return TT_FAIL(ncclRemoteError, "%s: the new communicator cannot be made: rank %d of the parent %s",
                   child->create.function, gone, why);
  return child->excluded == NULL ? tt_bootstrap_call_check(bootstrap, &child->call) : ncclSuccess;
}

static ncclResult_t make_child(struct child_job *job)
{
  struct ncclComm *parent = job->job.comm, *child;
  TT_TRY(tt_comm_alloc(&job->create, &child));
  list_child(parent, child);
  ncclResult_t result = tt_comm_init(child, &job->create);
  unlist_child(parent, child);
  if (result == ncclSuccess && atomic_load(&child->abort))
    result = TT_FAIL(ncclInternalError, "%s: the parent was aborted", job->create.function);
  if (result == ncclSuccess)
    *job->out = child;
  else
    tt_comm_discard(child);
  return result;
}

/* As in NCCL the parent's config decides, and neither a revoked parent nor one that is aborted for the child shares.
 * Only host memory is shared: connections in device memory belong to a context, and who aborts ends all that runs in
 * its context. */
static void offer_memory(struct child_job *child, const struct ncclComm *parent)
{
  bool wanted = child->excluded == NULL ? parent->config.splitShare == 1 : parent->config.shrinkShare == 1;
  if (!wanted || child->aborts || atomic_load(&parent->revoked) || parent->env == NULL ||
      tt_transport_device_memory(parent->env))
    return;
  for (int r = 0; r < child->create.nranks; r++)
    child->numbers[r] = tt_peer_memory_number(parent->env->memory, child->members[r]);
  child->create.numbers = child->numbers;
  child->create.resources = tt_peer_memory_resources(parent->env->memory);
}

/* So that the others do not wait for this rank. In a shrink they only hear of it when it leaves the parent. */
static void give_up(struct ncclComm *parent, const struct tt_bootstrap_call *call, const char *why)
{
  if (call->number > 0 && parent->bootstrap != NULL) tt_bootstrap_call_give_up(parent->bootstrap, call, why);
}

static ncclResult_t introduce_and_make(struct child_job *child)
{
  struct ncclComm *parent = child->job.comm;
  tt_log_set_device(parent->device_index);
  TT_INFO(TT_INIT, "%s comm %p rank %d nranks %d splitCount %" PRIu64 " color %d key %d excluded %d",
          child->create.function, (void *)parent, parent->rank, parent->nranks, child->turn + 1, child->color,
          child->key, child->nexcluded);
  ncclResult_t result = introduce(child);
  end_turn(child);
  if (result != ncclSuccess) return result;
  if (child->excluded == NULL && child->color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  offer_memory(child, parent);
  return make_child(child);
}

static ncclResult_t run_child(struct tt_job *job)
{
  struct child_job *child = (struct child_job *)job;
  ncclResult_t result = introduce_and_make(child);
  if (result != ncclSuccess) give_up(job->comm, &child->call, tt_log_thread_error());
  return result;
}

static void free_child(struct child_job *child)
{
  tt_config_free_names(&child->create.config);
  free(child->excluded);
  free(child->members);
  free(child);
}

static void drop_child(struct tt_job *job)
{
  struct child_job *child = (struct child_job *)job;
  if (!job->ran) give_up(job->comm, &child->call, "its group failed, or was ended, before it ran");
  end_turn(child);
  tt_handle_let_go(job->comm);
  free_child(child);
}

/* ---- Calls ---- */

/* A job for a child of a held parent, which it holds from then on. */
static ncclResult_t new_child(const char *function, struct ncclComm *parent, ncclComm_t *out,
                              const ncclConfig_t *config, struct child_job **made)
{
  struct child_job *child;
  ncclConfig_t read = parent->config;
  if (config != NULL)
    TT_TRY(tt_config_read(config, &read));
  else
    read.commName = NULL; /* a name is one communicator's */
  TT_TRY(TT_CALLOC(&child, 1));
  ncclResult_t result = tt_config_own_names(&read);
  if (result == ncclSuccess && (result = TT_CALLOC(&child->members, 2 * (size_t)parent->nranks)) != ncclSuccess)
    tt_config_free_names(&read);
  if (result != ncclSuccess) {
    free(child);
    return result;
  }
  child->job =
      (struct tt_job){.run = run_child, .drop = drop_child, .comm = parent, .blocking = parent->config.blocking != 0};
  child->numbers = child->members + parent->nranks;
  child->out = out;
  child->probe = (struct tt_bootstrap_probe){.ask = check_members, .context = child};
  child->create = (struct tt_create){.function = function,
                                     .device = parent->context != NULL ? parent->device_index : -1,
                                     .config = read,
                                     .probe = &child->probe};
  *made = child;
  return ncclSuccess;
}

/* Hands the job to the group, whatever becomes of that. A call that is refused has no turn on this rank. */
static ncclResult_t start_child(struct child_job *child)
{
  struct ncclComm *parent = child->job.comm;
  ncclResult_t result = child->job.blocking ? ncclSuccess : tt_group_join(parent);
  if (result == ncclSuccess) result = tt_group_add_job(&child->job);
  if (result == ncclSuccess)
    child->turn = tt_turn_take(parent);
  else
    free_child(child);
  return result;
}

static ncclResult_t start_split(struct ncclComm *parent, const struct tt_bootstrap_call *call, int color, int key,
                                ncclComm_t *out, const ncclConfig_t *config)
{
  struct child_job *child;
  TT_TRY(tt_api_check_pointer(call->function, "newcomm", out));
  TT_TRY(tt_api_check_parent(call->function, parent));
  TT_TRY(new_child(call->function, parent, out, config, &child));
  child->call = *call;
  child->color = color;
  child->key = key;
  return start_child(child);
}

/* One that is refused counts, and the others are told: they may have begun it. But not while an earlier call is in
 * progress here: then it is to be made again, and they wait for that. */
static ncclResult_t split(struct ncclComm *parent, int color, int key, ncclComm_t *out, const ncclConfig_t *config)
{
  struct tt_bootstrap_call call = {.function = "ncclCommSplit", .part = TT_PART_ALL};
  TT_TRY(tt_api_check_ready(call.function, parent));
  call.number = atomic_fetch_add(&parent->splits, 1) + 1;
  ncclResult_t result = start_split(parent, &call, color, key, out, config);
  if (result != ncclSuccess) give_up(parent, &call, tt_log_thread_error());
  return result;
}

static int ascending(const void *a, const void *b)
{
  int left = *(const int *)a, right = *(const int *)b;
  return (left > right) - (left < right);
}

/* A sorted copy of the list, checked. */
static ncclResult_t read_excluded(const struct ncclComm *parent, const int *list, int count, int **out)
{
  int *copy;
  TT_TRY(tt_api_check_pointer("ncclCommShrink", "excludeRanksList", list));
  if (count < 1 || count >= parent->nranks)
    return TT_FAIL(ncclInvalidArgument, "ncclCommShrink: excludeRanksCount is %d; with %d ranks allowed are 1 to %d",
                   count, parent->nranks, parent->nranks - 1);
  TT_TRY(TT_CALLOC(&copy, (size_t)count));
  memcpy(copy, list, (size_t)count * sizeof *copy);
  qsort(copy, (size_t)count, sizeof *copy, ascending);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < count && result == ncclSuccess; i++) {
    if (copy[i] < 0 || copy[i] >= parent->nranks)
      result = TT_FAIL(ncclInvalidArgument, "ncclCommShrink: excludeRanksList names rank %d; there are 0 to %d",
                       copy[i], parent->nranks - 1);
    else if (copy[i] == parent->rank)
      result =
          TT_FAIL(ncclInvalidArgument,
                  "ncclCommShrink: excludeRanksList names rank %d, the caller: only ranks that stay may call", copy[i]);
    else if (i > 0 && copy[i] == copy[i - 1])
      result = TT_FAIL(ncclInvalidArgument, "ncclCommShrink: excludeRanksList names rank %d twice", copy[i]);
  }
  if (result != ncclSuccess)
    free(copy);
  else
    *out = copy;
  return result;
}

static ncclResult_t shrink(struct ncclComm *parent, const int *list, int count, ncclComm_t *out,
                           const ncclConfig_t *config, int flags)
{
  struct child_job *child;
  int *excluded;
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
    return TT_FAIL(ncclInvalidArgument,
                   "ncclCommShrink: shrinkFlags is %d; allowed are NCCL_SHRINK_DEFAULT (%d) and NCCL_SHRINK_ABORT (%d)",
                   flags, NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT);
  TT_TRY(tt_api_check_ready("ncclCommShrink", parent));
  TT_TRY(read_excluded(parent, list, count, &excluded));
  ncclResult_t result = new_child("ncclCommShrink", parent, out, config, &child);
  if (result != ncclSuccess) {
    free(excluded);
    return result;
  }
  if (flags == NCCL_SHRINK_ABORT) tt_stream_abort(parent);
  child->excluded = excluded;
  child->nexcluded = count;
  child->aborts = flags == NCCL_SHRINK_ABORT;
  return start_child(child);
}

/* Runs `made`, the outcome of a call that holds the parent, in its group. */
static ncclResult_t end_call(struct ncclComm *parent, ncclResult_t made)
{
  if (made != ncclSuccess) tt_handle_let_go(parent); /* else the job does */
  tt_group_note(made);
  ncclResult_t ended = tt_group_end();
  return made != ncclSuccess ? made : ended;
}

TT_EXPORT(ncclResult_t, ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config))
{
  if (newcomm != NULL) *newcomm = NULL;
  TT_TRY(tt_handle_hold_own("ncclCommSplit", comm));
  tt_group_start();
  return end_call(comm, split(comm, color, key, newcomm, config));
}

TT_EXPORT(ncclResult_t, ncclCommShrink,
          (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,
           int shrinkFlags))
{
  TT_TRY(tt_api_check_pointer("ncclCommShrink", "newcomm", newcomm));
  *newcomm = NULL;
  TT_TRY(tt_handle_hold_own("ncclCommShrink", comm));
  tt_group_start();
  return end_call(comm, shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
}
