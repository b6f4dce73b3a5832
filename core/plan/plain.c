/* See plain.h. */
#include "plan/plain.h"

#include "base/check.h"
#include "base/param.h"
#include "plan/host_stream.h"
#include "plan/mapped.h"
#include "transport/user_buffers.h"

enum state { UNKNOWN, IN_PLACE, COPIED };

/* One communicator whose ranks are all in the group. */
struct tt_plain {
  struct tt_plain *next;
  uint64_t number;
  int nranks, nsteps;
  struct tt_user_buffers **users; /* by rank */
  const struct tt_task **tasks;   /* nranks for each step; NULL: that rank has fewer collectives */
  unsigned char *states;          /* by step */
};

static bool is_collective(const struct tt_task *task)
{
  return task->collective != TT_FUNC_SEND && task->collective != TT_FUNC_RECV;
}

static int count_collectives(const struct tt_host_part *part)
{
  int count = 0;
  for (const struct tt_task *task = part->tasks; task != NULL; task = task->next) count += is_collective(task);
  return count;
}

static const struct tt_host_part *find_part(const struct tt_host_part *parts, int nparts, uint64_t number, int rank)
{
  for (int p = 0; p < nparts; p++)
    if (parts[p].comm->number == number && parts[p].comm->rank == rank) return &parts[p];
  return NULL;
}

/* Whether all ranks of the communicator have collectives in the group; the most that one has. */
static bool is_whole(const struct tt_host_part *parts, int nparts, const struct ncclComm *comm, int *most)
{
  *most = 0;
  if (comm->nranks == 1 || comm->nranks > nparts || comm->nnodes > 1 || comm->env == NULL) return false;
  for (int r = 0; r < comm->nranks; r++) {
    const struct tt_host_part *part = find_part(parts, nparts, comm->number, r);
    int count = part != NULL ? count_collectives(part) : 0;
    if (count == 0 || part->comm->nranks != comm->nranks || part->comm->env == NULL ||
        !tt_user_plain_possible(part->comm->env->users))
      return false;
    *most = TT_MAX(*most, count);
  }
  return true;
}

static ncclResult_t open_one(const struct tt_host_part *parts, int nparts, struct ncclComm *comm, int nsteps,
                             struct tt_plain **out)
{
  size_t n = (size_t)comm->nranks, steps = (size_t)nsteps;
  struct tt_plain *plain = tt_pool_take_zeroed(comm->pool, sizeof *plain + (1 + steps) * n * sizeof(void *) + steps);
  if (plain == NULL) return TT_FAIL(ncclSystemError, "no memory for %d operations of %d ranks", nsteps, comm->nranks);
  *plain = (struct tt_plain){.number = comm->number, .nranks = comm->nranks, .nsteps = nsteps};
  plain->users = (struct tt_user_buffers **)(plain + 1);
  plain->tasks = (const struct tt_task **)(plain->users + n);
  plain->states = (unsigned char *)(plain->tasks + steps * n);
  for (size_t r = 0; r < n; r++) {
    const struct tt_host_part *part = find_part(parts, nparts, comm->number, (int)r);
    size_t step = 0;
    plain->users[r] = part->comm->env->users;
    for (const struct tt_task *task = part->tasks; task != NULL; task = task->next)
      if (is_collective(task)) plain->tasks[step++ * n + r] = task;
  }
  *out = plain;
  return ncclSuccess;
}

ncclResult_t tt_plain_open(const struct tt_host_part *parts, int nparts, struct tt_plain **out)
{
  *out = NULL;
  if (!tt_param_int(TT_PARAM_NCCL_SINGLE_PROC_MEM_REG_ENABLE)) return ncclSuccess;
  for (int p = 0; p < nparts; p++) {
    struct tt_plain *plain;
    int nsteps;
    if (parts[p].comm->rank != 0 || !is_whole(parts, nparts, parts[p].comm, &nsteps)) continue;
    ncclResult_t result = open_one(parts, nparts, parts[p].comm, nsteps, &plain);
    if (result != ncclSuccess) {
      tt_plain_close(*out);
      *out = NULL;
      return result;
    }
    plain->next = *out;
    *out = plain;
  }
  return ncclSuccess;
}

static const struct tt_plain *find(const struct tt_plain *plain, const struct ncclComm *comm)
{
  while (plain != NULL && plain->number != comm->number) plain = plain->next;
  return plain;
}

bool tt_plain_has(const struct tt_plain *plain, const struct ncclComm *comm)
{
  return find(plain, comm) != NULL;
}

void tt_plain_close(struct tt_plain *plain)
{
  for (struct tt_plain *next; plain != NULL; plain = next) {
    next = plain->next;
    tt_pool_give(plain);
  }
}

/* Mistakes of the user's are found when the operations run. */
static bool is_alike(const struct tt_task *a, const struct tt_task *b)
{
  return a != NULL && b != NULL && a->collective == b->collective && a->count == b->count &&
         a->datatype == b->datatype && a->op == b->op && a->root == b->root && !a->scaled && !b->scaled;
}

static bool can_use(const struct tt_plan *plan, const struct tt_plain *plain, const struct tt_task *const *tasks)
{
  struct ncclComm *comm = plan->comm;
  if (plan->graph != 0 && !tt_param_int(TT_PARAM_NCCL_GRAPH_REGISTER)) return false;
  for (int r = 0; r < plain->nranks; r++)
    if (!is_alike(tasks[0], tasks[r]) || tt_mapped_overlaps(comm, tasks[r])) return false;
  if (!tt_plan_prefers_mapped(comm, tasks[0])) return false;
  for (int r = 0; r < plain->nranks; r++) {
    struct tt_mapped_touched touched = tt_mapped_touched(comm, tasks[r], r);
    if (touched.input > 0 && !tt_user_plain_usable(plain->users, plain->nranks, r, tasks[r]->input, touched.input))
      return false;
    if (touched.output > 0 && !tt_user_plain_usable(plain->users, plain->nranks, r, tasks[r]->output, touched.output))
      return false;
  }
  return true;
}

const struct tt_task *const *tt_plain_next(struct tt_plan *plan, bool possible)
{
  const struct tt_plain *plain = find(plan->plain, plan->comm);
  int step = plan->plain_step++;
  if (plain == NULL) return NULL;
  const struct tt_task *const *tasks = plain->tasks + (size_t)step * (size_t)plain->nranks;
  unsigned char *state = &plain->states[step];
  if (*state == UNKNOWN) *state = possible && can_use(plan, plain, tasks) ? IN_PLACE : COPIED;
  return *state == IN_PLACE ? tasks : NULL;
}
