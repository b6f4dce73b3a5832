/* See offers.h: life, and what of a group there is to agree on. */
#include "plan/offers.h"

#include <stdlib.h>
#include "base/check.h"
#include "base/param.h"
#include "device/context.h"
#include "plan/captured.h"
#include "plan/offers_internal.h"
#include "transport/user_buffers.h"

/* ---- Life ---- */

static void free_offers(struct ncclComm *comm)
{
  free(comm->offers->sent);
  free(comm->offers->given_up);
  free(comm->offers->no_offers);
  free(comm->offers);
  comm->offers = NULL;
}

static void end_offers(struct ncclComm *comm)
{
  if (comm->offers == NULL) return;
  tt_offers_mail_close(comm->offers);
  tt_offers_forget(comm);
  free_offers(comm);
}

ncclResult_t tt_offers_open(struct ncclComm *comm)
{
  size_t n = (size_t)comm->nranks;
  ncclResult_t result;
  if (comm->captured == NULL) return ncclSuccess; /* what it needs is the same */
  TT_TRY(TT_CALLOC(&comm->offers, 1));
  struct tt_offers *offers = comm->offers;
  offers->comm = comm;
  offers->patience_ms = (uint64_t)tt_param_int(TT_PARAM_TUTTI_CAPTURE_WAIT);
  TT_TRY_GOTO(TT_CALLOC(&offers->sent, 2 * n), result, out);
  TT_TRY_GOTO(TT_CALLOC(&offers->given_up, n), result, out);
  TT_TRY_GOTO(TT_CALLOC(&offers->no_offers, 2 * n), result, out);
  offers->received = offers->sent + n;
  offers->no_answers = offers->no_offers + n;
  TT_TRY_GOTO(tt_offers_mail_open(offers), result, out);
  return tt_comm_at_end(comm, end_offers);
out:
  free_offers(comm);
  return result;
}

/* ---- What there is to agree on ---- */

static const struct tt_task *first_that_may(struct ncclComm *comm, const struct tt_task *tasks)
{
  while (tasks != NULL && !tt_exchange_may(comm, tasks)) tasks = tasks->next;
  return tasks;
}

/* The graph that all of a group's streams are captured into; 0: there is none, or not one for all, which planning
 * refuses. */
static ncclResult_t find_graph(const struct ncclComm *comm, const struct tt_task *tasks, uint64_t *graph)
{
  const void *last = tasks->stream;
  if (!tt_captured_graph(comm, last, graph))
    TT_TRY(comm->device->capturing(comm->context->handle, tasks->stream, graph));
  for (const struct tt_task *task = tasks; task != NULL && *graph != 0; task = task->next) {
    uint64_t other = *graph;
    if (task->stream != last) TT_TRY(comm->device->capturing(comm->context->handle, task->stream, &other));
    last = task->stream;
    if (other != *graph) *graph = 0;
  }
  return ncclSuccess;
}

ncclResult_t tt_offers_prepare(struct ncclComm *comm, const struct tt_task *tasks, bool *wanted)
{
  struct tt_offers *offers = comm->offers;
  *wanted = false;
  if (offers == NULL || first_that_may(comm, tasks) == NULL) return ncclSuccess;
  TT_TRY(find_graph(comm, tasks, &offers->graph));
  if (offers->graph == 0) return ncclSuccess;
  offers->tasks = tasks;
  offers->possible = tt_exchange_find(comm, tasks, &offers->exchange);
  *wanted = true;
  return ncclSuccess;
}

/* The number of a send or receive of the group between the two ranks. */
static uint64_t number_of(const struct tt_offers *offers, const struct tt_task *task)
{
  const struct ncclComm *comm = offers->comm;
  uint64_t number = (task->collective == TT_FUNC_RECV ? comm->recvs : comm->sends)[task->root];
  for (const struct tt_task *before = offers->tasks; before != task; before = before->next)
    number += before->collective == task->collective && before->root == task->root;
  return number;
}

/* Those who could send in place need not wait: nothing of the group's is. What could have been sent in place is as what
 * was waited for in vain: with a later receive of this rank's in place, and the peer's receive of it later still, each
 * would find the other's message in its way. */
static ncclResult_t refuse_all(struct tt_offers *offers)
{
  for (const struct tt_task *task = offers->tasks; task != NULL; task = task->next) {
    if (!tt_exchange_may(offers->comm, task)) continue;
    if (task->collective == TT_FUNC_RECV)
      TT_TRY(tt_offers_tell(offers, task->root, TT_OFFER_WITHDRAW, number_of(offers, task), NULL, 0));
    else if (offers->possible)
      tt_offers_give_up(offers, task->root, number_of(offers, task));
  }
  return ncclSuccess;
}

ncclResult_t tt_offers_agree(struct ncclComm *comm)
{
  struct tt_offers *offers = comm->offers;
  if (offers == NULL || offers->tasks == NULL) return ncclSuccess;
  tt_user_graphs_reap(comm->env->users);
  bool deals =
      offers->possible && !tt_offers_gave_up(offers) && tt_captured_here(comm, offers->tasks->stream, offers->graph);
  return deals ? tt_offers_deal(offers) : refuse_all(offers);
}

const struct tt_exchange *tt_offers_find(const struct ncclComm *comm)
{
  return comm->offers != NULL && comm->offers->agreed ? &comm->offers->exchange : NULL;
}

void tt_offers_forget(struct ncclComm *comm)
{
  struct tt_offers *offers = comm->offers;
  if (offers == NULL || offers->tasks == NULL) return;
  tt_user_range_withdraw(comm->env->users, &offers->output);
  tt_user_range_free(&offers->output);
  offers->output = (struct tt_user_range){0};
  offers->tasks = NULL;
  offers->possible = offers->agreed = false;
}

void tt_offers_pass(struct ncclComm *comm, int peer)
{
  struct tt_offers *offers = comm->offers;
  if (offers == NULL) return;
  atomic_store(&offers->sent[peer], comm->sends[peer]);
  atomic_store(&offers->received[peer], comm->recvs[peer]);
  tt_offers_sweep(offers);
}
