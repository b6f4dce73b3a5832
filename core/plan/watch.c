/* What the other ranks of a run say, looked at while this one waits. */
#include "plan/watch.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/check.h"
#include "base/param.h"
#include "base/timer.h"
#include "plan/stream.h"
#include "program/signature.h"

/* Idle times after which other ranks' deaths are looked for, and after which this rank says what it waits in. */
#define LOOK_NS 5000000ull
#define STALL_NS 1000000000ull
/* First warning about a wait; the next come after twice the time. */
#define WARN_NS 10000000000ull
/* How long a failure may wait for another rank's account of its cause, and how often that is looked for. */
#define CAUSE_NS 500000000ull
#define CAUSE_USEC 1000
/* How late a rank may be behind others of its process that have left, where TUTTI_PEER_TIMEOUT does not say. */
#define LATE_SECONDS 60

void tt_watch_moved(struct tt_watch_clock *clock)
{
  if (atomic_load_explicit(&clock->idle_since, memory_order_relaxed) != 0)
    atomic_store_explicit(&clock->idle_since, 0, memory_order_relaxed);
}

struct tt_watch_due tt_watch_idle(struct tt_watch_clock *clock, uint64_t now)
{
  uint64_t since = atomic_load_explicit(&clock->idle_since, memory_order_relaxed);
  atomic_store_explicit(&clock->looked, now, memory_order_relaxed);
  if (since == 0) {
    since = clock->stalled_since = now;
    clock->warn_after = WARN_NS;
    clock->left = false;
    atomic_store_explicit(&clock->idle_since, now, memory_order_relaxed);
  }
  uint64_t idle = now - since;
  struct tt_watch_due due = {.look = idle > LOOK_NS, .stalled = now - clock->stalled_since > STALL_NS};
  if (!due.stalled) return due;
  clock->stalled_since = now;
  due.left_before = clock->left;
  due.idle_seconds = (int)(idle / 1000000000u);
  if (idle > clock->warn_after) {
    due.report_seconds = due.idle_seconds;
    clock->warn_after *= 2;
  }
  return due;
}

static bool has_work(const struct tt_plan *plan)
{
  return plan->comm->health != NULL && plan->nworks > 0;
}

static bool is_collective(const struct tt_signature *signature)
{
  return signature->collective != TT_FUNC_SEND_RECV;
}

void tt_watch_begin(const struct tt_plan *plans, int nplans)
{
  for (int p = 0; p < nplans; p++)
    for (int w = 0; has_work(&plans[p]) && w < plans[p].nworks; w++)
      if (is_collective(&plans[p].works[w]->signature))
        tt_health_begin(plans[p].comm->health, &plans[p].works[w]->signature);
}

/* What another thread of this process has failed ends what runs: an abort of operations on streams. So does an abort
 * when the device is done, which would see it, and only the network is waited for. */
static ncclResult_t check_failed(const struct ncclComm *comm)
{
  ncclResult_t failed = (ncclResult_t)atomic_load(&comm->async_error);
  if (failed != ncclSuccess) {
    tt_log_remember(comm->error_text);
    return failed;
  }
  if (atomic_load(&comm->abort))
    return TT_FAIL(ncclInternalError,
                   "rank %d: aborted, before what was called was complete and the network had taken all of it",
                   comm->rank);
  return ncclSuccess;
}

ncclResult_t tt_watch_check(const struct tt_plan *plans, int nplans, bool idle)
{
  for (int p = 0; p < nplans; p++) {
    if (!has_work(&plans[p])) continue;
    if (atomic_load(&plans[p].comm->revoked))
      return TT_FAIL(ncclInvalidUsage, "rank %d: the communicator was revoked while an operation ran",
                     plans[p].comm->rank);
    TT_TRY(tt_health_check(plans[p].comm->health, idle));
    TT_TRY(check_failed(plans[p].comm));
  }
  return ncclSuccess;
}

ncclResult_t tt_watch_cause(const struct tt_plan *plans, int nplans, ncclResult_t result)
{
  for (uint64_t start = tt_timer_ns(); tt_timer_ns() - start < CAUSE_NS; usleep(CAUSE_USEC))
    TT_TRY(tt_watch_check(plans, nplans, true));
  return result;
}

/* Sends and receives meet one peer each; of collectives the ranks tell each other (core/health). */
static bool meets_all(const struct tt_watch_wait *wait)
{
  return !wait->unsent && is_collective(&wait->signature);
}

static ncclResult_t check_peer(const struct tt_watch_wait *wait, struct tt_watch_clock *clock, bool left_before)
{
  if (meets_all(wait) || !wait->left) return ncclSuccess;
  clock->left = true;
  if (!left_before) return ncclSuccess;
  if (wait->either != NULL && wait->either[0] != 0)
    return TT_FAIL(ncclRemoteError,
                   "rank %d waits in receives from ranks %s, which have left the communicator: one of them, or more, "
                   "destroyed or aborted it before this operation; the network receives their messages in one",
                   wait->comm->rank, wait->either);
  return TT_FAIL(ncclRemoteError,
                 "rank %d waits in a %s rank %d, which has left the communicator: it destroyed or "
                 "aborted it before this operation",
                 wait->comm->rank, wait->sending ? "send to" : "receive from", wait->peer);
}

/* "not heard of in it: rank 1, 3". A work on a stream has no number, since a graph may repeat it (stream.c): then all
 * that is known is who has begun as many operations as this rank. */
static void describe_late(const struct tt_watch_wait *wait, char *text, size_t size)
{
  char late[160] = "";
  const char *some = "not heard of in it: rank ", *none = "all ranks are in it";
  uint64_t sequence = wait->signature.sequence;
  if (meets_all(wait) && tt_stream_device(wait->comm)) {
    sequence = TT_HEALTH_LATEST;
    some = "not heard to have begun as many operations: rank ";
    none = "all ranks have begun as many operations";
  }
  if (meets_all(wait))
    tt_health_late(wait->comm->health, sequence, late, sizeof late);
  else if (wait->peer >= 0)
    snprintf(late, sizeof late, "%d", wait->peer);
  snprintf(text, size, "%s%s", late[0] ? some : none, late);
}

/* What a wait is in, and for whom: "AllReduce ...; not heard of in it: rank 1, 3" */
static void describe(const struct tt_watch_wait *wait, char *text, size_t size)
{
  char operation[300] = "a send that the network has not taken all of", late[220];
  if (!wait->unsent) tt_signature_describe(&wait->signature, operation, sizeof operation);
  describe_late(wait, late, sizeof late);
  snprintf(text, size, "%s; %s", operation, late);
}

static bool is_too_long(int seconds)
{
  int64_t limit = tt_param_int(TT_PARAM_TUTTI_LATE_TIMEOUT);
  return limit != 0 && seconds >= limit;
}

ncclResult_t tt_watch_patience(const struct ncclComm *comm, int seconds, const char *where)
{
  if (!is_too_long(seconds)) return ncclSuccess;
  return TT_FAIL(ncclRemoteError,
                 "rank %d has waited %d s, which is all that TUTTI_LATE_TIMEOUT allows, %s; look at what the ranks do, "
                 "or raise TUTTI_LATE_TIMEOUT (0: no limit)",
                 comm->rank, seconds, where);
}

static ncclResult_t check_patience(const struct tt_watch_wait *wait, int seconds)
{
  char text[500], where[510];
  if (!is_too_long(seconds)) return ncclSuccess;
  describe(wait, text, sizeof text);
  snprintf(where, sizeof where, "in %s", text);
  return tt_watch_patience(wait->comm, seconds, where);
}

ncclResult_t tt_watch_waits(const struct tt_watch_wait *wait, struct tt_watch_clock *clock,
                            const struct tt_watch_due *due)
{
  tt_health_stalled(wait->comm->health);
  TT_TRY(check_patience(wait, due->idle_seconds));
  if (due->report_seconds > 0) { /* one line for who wonders why nothing happens */
    char text[500];
    describe(wait, text, sizeof text);
    TT_WARN("rank %d has waited %d s in %s", wait->comm->rank, due->report_seconds, text);
  }
  return check_peer(wait, clock, due->left_before);
}

/* A message's one peer; -1: of a collective, or of this rank to itself. */
static int peer_of(const struct tt_work *work)
{
  const struct tt_program *program = work->channels[0].program;
  return is_collective(&work->signature) || program->npeers == 0 ? -1 : program->peers[0];
}

/* A receive over a network connection that the ranks of the peer's process share. */
static bool is_shared(const struct tt_work *work)
{
  const struct tt_work_channel *channel = &work->channels[0];
  return peer_of(work) >= 0 && channel->program->collective == TT_FUNC_RECV &&
         (channel->recv[0]->flags & TT_CONN_POOLED) != 0;
}

/* By rank, whether such a receive waits for it, and it has not left. */
static ncclResult_t find_late(const struct tt_plan *plan, bool **late)
{
  TT_TRY(TT_CALLOC(late, (size_t)plan->comm->nranks));
  for (int w = 0; w < plan->nworks; w++) {
    const struct tt_work *work = plan->works[w];
    if (!work->complete && is_shared(work) && !tt_bootstrap_left(plan->comm->bootstrap, peer_of(work)))
      (*late)[peer_of(work)] = true;
  }
  return ncclSuccess;
}

/* Whether a work's peer has left, and its message would be seen if it had come. Several ranks' messages may be one
 * request of the network (proxy/group.c), of which nothing is seen before all of them are there: as long as one is
 * late, nobody knows of the others'. But it may have sent, too, and wait for this rank itself, so that this is believed
 * only for a time. `late` is found when it is needed, and then the caller's to free. */
static ncclResult_t look_for_left(const struct tt_plan *plan, const struct tt_work *work, int idle_seconds, bool **late,
                                  bool *left)
{
  int peer = peer_of(work);
  int64_t limit = tt_param_int(TT_PARAM_TUTTI_PEER_TIMEOUT);
  *left = tt_bootstrap_left(plan->comm->bootstrap, peer);
  if (!*left || !is_shared(work) || idle_seconds >= (limit > 0 ? limit : LATE_SECONDS)) return ncclSuccess;
  if (*late == NULL) TT_TRY(find_late(plan, late));
  const struct tt_peer_info *peers = plan->comm->env->peers;
  for (int r = 0; r < plan->comm->nranks && *left; r++) *left = !(*late)[r] || peers[r].process != peers[peer].process;
  return ncclSuccess;
}

/* The ranks of the peer's process whose receives wait, too, and that have left, with the peer: its message may have
 * come, and one of theirs not. "" if it is the only one. */
static void list_left(const struct tt_plan *plan, int peer, char *text, size_t size)
{
  const struct ncclComm *comm = plan->comm;
  size_t at = 0;
  int count = 0;
  for (int r = 0; r < comm->nranks; r++) {
    bool waits = false;
    if (comm->env->peers[r].process != comm->env->peers[peer].process) continue;
    for (int w = 0; w < plan->nworks && !waits; w++)
      waits = peer_of(plan->works[w]) == r && is_shared(plan->works[w]) && !plan->works[w]->complete;
    if (!waits || !tt_bootstrap_left(comm->bootstrap, r)) continue;
    if (at + 16 < size) at += (size_t)snprintf(text + at, size - at, "%s%d", count > 0 ? ", " : "", r);
    count++;
  }
  if (count < 2) text[0] = 0;
}

static bool is_sent(const struct ncclComm *comm, const struct tt_conn *conn)
{
  const struct tt_connector *connector = (const struct tt_connector *)conn;
  struct tt_proxy_state state;
  if (connector == NULL || connector->proxied == NULL) return true;
  return !tt_proxy_look(comm->env->proxy, connector->proxied, &state) || state.done == state.expected;
}
_Static_assert(offsetof(struct tt_connector, conn) == 0, "a connection is found by its first member");

/* Whether nothing is left of a work: when its device is done, what it has sent may still be with the proxy. What a
 * network is to reduce has come back by then. */
static bool is_over(const struct tt_plan *plan, const struct tt_work *work)
{
  bool over = work->complete;
  for (uint32_t c = 0; over && c < work->nchannels; c++)
    for (uint32_t p = 0; over && p < work->channels[c].program->npeers; p++)
      over = is_sent(plan->comm, work->channels[c].send[p]);
  return over;
}

static ncclResult_t check_plan(const struct tt_plan *plan, struct tt_watch_clock *clock, struct tt_watch_due due,
                               bool **late)
{
  char either[300] = "";
  for (int w = 0; has_work(plan) && w < plan->nworks; w++) {
    const struct tt_work *work = plan->works[w];
    if (is_over(plan, work)) continue;
    struct tt_watch_wait wait = {.comm = plan->comm,
                                 .signature = work->signature,
                                 .peer = peer_of(work),
                                 .sending = work->channels[0].program->collective == TT_FUNC_SEND,
                                 .either = either};
    TT_TRY(look_for_left(plan, work, due.idle_seconds, late, &wait.left));
    if (wait.left && due.left_before && is_shared(work)) list_left(plan, wait.peer, either, sizeof either);
    TT_TRY(tt_watch_waits(&wait, clock, &due));
    due.report_seconds = 0; /* one line a communicator */
  }
  return ncclSuccess;
}

ncclResult_t tt_watch_stalled(const struct tt_plan *plans, int nplans, struct tt_watch_clock *clock,
                              const struct tt_watch_due *due)
{
  ncclResult_t result = ncclSuccess;
  for (int p = 0; p < nplans && result == ncclSuccess; p++) {
    bool *late = NULL;
    result = check_plan(&plans[p], clock, *due, &late);
    free(late);
  }
  return result;
}
