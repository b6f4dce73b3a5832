/* See pairs.h. */
#include "plan/pairs.h"

#include "base/check.h"
#include "base/param.h"
#include "device/context.h"
#include "plan/host_stream.h"
#include "plan/stream.h"
#include "transport/user_buffers.h"

/* A rank whose messages may be in place. */
struct member {
  struct ncclComm *comm;
  struct tt_exchange exchange;
  bool in_place;
};

struct tt_pairs {
  int count;
  struct member members[];
};

/* One that may be captured, where the user wants none of that in place. */
static ncclResult_t is_unwanted(const struct ncclComm *comm, const struct tt_exchange *exchange, bool *unwanted)
{
  const struct tt_task *tasks[] = {exchange->send, exchange->recv};
  *unwanted = false;
  if (tt_param_int(TT_PARAM_NCCL_GRAPH_REGISTER) || !(comm->device->features & TT_DEVICE_GRAPHS)) return ncclSuccess;
  for (size_t t = 0; t < TT_COUNT(tasks); t++) {
    uint64_t graph = 0;
    if (tasks[t] != NULL) TT_TRY(comm->device->capturing(comm->context->handle, tasks[t]->stream, &graph));
    *unwanted = *unwanted || graph != 0;
  }
  return ncclSuccess;
}

static ncclResult_t add_member(struct tt_pairs *pairs, const struct tt_host_part *part)
{
  struct member *member = &pairs->members[pairs->count];
  bool unwanted;
  if (!tt_stream_device(part->comm) || part->comm->env == NULL || !tt_user_plain_possible(part->comm->env->users) ||
      !tt_exchange_find(part->comm, part->tasks, &member->exchange))
    return ncclSuccess;
  TT_TRY(is_unwanted(part->comm, &member->exchange, &unwanted));
  if (unwanted) return ncclSuccess;
  member->comm = part->comm;
  member->in_place = true;
  pairs->count++;
  return ncclSuccess;
}

static struct member *find(struct tt_pairs *pairs, uint64_t number, int rank)
{
  for (int m = 0; m < pairs->count; m++)
    if (pairs->members[m].comm->number == number && pairs->members[m].comm->rank == rank) return &pairs->members[m];
  return NULL;
}

/* Whether what one sends is what the other receives. */
static bool is_met(const struct member *sender, const struct member *receiver)
{
  return sender != NULL && receiver != NULL && sender->in_place && receiver->in_place &&
         sender->exchange.to == receiver->comm->rank && receiver->exchange.from == sender->comm->rank &&
         sender->exchange.bytes == receiver->exchange.bytes &&
         sender->comm->sends[receiver->comm->rank] == receiver->comm->recvs[sender->comm->rank];
}

/* Whether all that it sends and receives meets its other end in the group. */
static bool is_closed(struct tt_pairs *pairs, const struct member *member)
{
  uint64_t number = member->comm->number;
  const struct tt_exchange *exchange = &member->exchange;
  if (exchange->to >= 0 && !is_met(member, find(pairs, number, exchange->to))) return false;
  return exchange->from < 0 || is_met(find(pairs, number, exchange->from), member);
}

/* Takes those out that do not, and whoever sends to them or receives from them. */
static void settle(struct tt_pairs *pairs)
{
  for (bool changed = true; changed;) {
    changed = false;
    for (int m = 0; m < pairs->count; m++) {
      struct member *member = &pairs->members[m];
      if (!member->in_place || is_closed(pairs, member)) continue;
      member->in_place = false;
      changed = true;
    }
  }
}

/* Whether the sender's device reaches the receiver's output; says where it lies. */
static bool reach(struct tt_pairs *pairs, struct member *sender)
{
  const struct member *receiver = find(pairs, sender->comm->number, sender->exchange.to);
  struct tt_user_buffers *users[] = {receiver->comm->env->users, sender->comm->env->users};
  sender->exchange.target = receiver->exchange.recv->output;
  return tt_user_plain_usable(users, 2, 0, sender->exchange.target, sender->exchange.bytes);
}

ncclResult_t tt_pairs_open(const struct tt_host_part *parts, int nparts, struct tt_pairs **out)
{
  *out = NULL;
  if (nparts < 2 || !tt_param_int(TT_PARAM_NCCL_SINGLE_PROC_MEM_REG_ENABLE)) return ncclSuccess;
  struct tt_pairs *pairs =
      tt_pool_take_zeroed(parts[0].comm->pool, sizeof *pairs + (size_t)nparts * sizeof *pairs->members);
  if (pairs == NULL) return TT_FAIL(ncclSystemError, "no memory for the messages of %d ranks", nparts);
  for (int p = 0; p < nparts; p++) {
    ncclResult_t result = add_member(pairs, &parts[p]);
    if (result == ncclSuccess) continue;
    tt_pairs_close(pairs);
    return result;
  }
  settle(pairs);
  for (int m = 0; m < pairs->count; m++) {
    struct member *member = &pairs->members[m];
    if (member->in_place && member->exchange.to >= 0 && !reach(pairs, member)) member->in_place = false;
  }
  settle(pairs);
  *out = pairs;
  return ncclSuccess;
}

void tt_pairs_close(struct tt_pairs *pairs)
{
  if (pairs != NULL) tt_pool_give(pairs);
}

const struct tt_exchange *tt_pairs_find(const struct tt_pairs *pairs, const struct ncclComm *comm)
{
  for (int m = 0; pairs != NULL && m < pairs->count; m++)
    if (pairs->members[m].comm == comm && pairs->members[m].in_place) return &pairs->members[m].exchange;
  return NULL;
}
