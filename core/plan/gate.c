/* See gate.h. Ranks of a process find each other by their communicator and number; one lock guards all gates. A rank
 * says how many operations it has made ready: collectives, which all ranks count alike, and messages for each peer. */
#include "plan/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/check.h"
#include "base/param.h"
#include "base/text.h"
#include "base/timer.h"
#include "plan/stream.h"
#include "plan/watch.h"

/* How often a wait looks for failures, and when it is first said to be long; then again after twice the time. */
#define LOOK_NS 20000000l
#define WARN_NS 10000000000ull

/* What is ready. `sends` and `recvs` are by place among the ranks of this process. */
struct ready {
  uint64_t collectives, *sends, *recvs;
};

struct tt_gate {
  struct tt_gate *next;
  uint64_t number;
  int own, count;           /* this rank's place, and how many there are */
  int *ranks;               /* of this communicator in this process, ascending */
  struct ready now, before; /* with and without what arrived last */
  bool left;                /* the rank has left; what it had ready before counts */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct tt_gate *gates;

static void make_condition(void)
{
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* ---- Life ---- */

static bool is_wanted(void)
{
  const char *mode = tt_param_string(TT_PARAM_NCCL_LAUNCH_MODE);
  return mode != NULL && tt_text_equal_nocase(mode, strlen(mode), "GROUP");
}

static void free_gate(struct tt_gate *gate)
{
  free(gate->now.sends);
  free(gate->now.recvs);
  free(gate->before.sends);
  free(gate->before.recvs);
  free(gate->ranks);
  free(gate);
}

static ncclResult_t make_gate(const struct ncclComm *comm, int count, struct tt_gate **out)
{
  const struct tt_peer_info *peers = comm->env->peers;
  struct tt_gate *gate;
  ncclResult_t result = ncclSuccess;
  TT_TRY(TT_CALLOC(&gate, 1));
  gate->number = comm->number;
  TT_TRY_GOTO(TT_CALLOC(&gate->ranks, (size_t)count), result, out);
  TT_TRY_GOTO(TT_CALLOC(&gate->now.sends, (size_t)count), result, out);
  TT_TRY_GOTO(TT_CALLOC(&gate->now.recvs, (size_t)count), result, out);
  TT_TRY_GOTO(TT_CALLOC(&gate->before.sends, (size_t)count), result, out);
  TT_TRY_GOTO(TT_CALLOC(&gate->before.recvs, (size_t)count), result, out);
  for (int r = 0; r < comm->nranks; r++) {
    if (peers[r].process != peers[comm->rank].process) continue;
    if (r == comm->rank) gate->own = gate->count;
    gate->ranks[gate->count++] = r;
  }
out:
  if (result == ncclSuccess)
    *out = gate;
  else
    free_gate(gate);
  return result;
}

ncclResult_t tt_gate_open(struct ncclComm *comm)
{
  int count = 0;
  if (!is_wanted() || !tt_stream_device(comm) || comm->env == NULL) return ncclSuccess;
  for (int r = 0; r < comm->nranks; r++) count += comm->env->peers[r].process == comm->env->peers[comm->rank].process;
  if (count == 1) return ncclSuccess;
  TT_TRY(make_gate(comm, count, &comm->gate));
  pthread_once(&once, make_condition);
  pthread_mutex_lock(&lock);
  comm->gate->next = gates;
  gates = comm->gate;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static bool all_left(uint64_t number)
{
  const struct tt_gate *gate = gates;
  while (gate != NULL && (gate->number != number || gate->left)) gate = gate->next;
  return gate == NULL;
}

static void free_all(uint64_t number)
{
  for (struct tt_gate **place = &gates; *place != NULL;) {
    struct tt_gate *gate = *place;
    if (gate->number == number) {
      *place = gate->next;
      free_gate(gate);
    } else {
      place = &gate->next;
    }
  }
}

/* Who waits may not have looked since this rank came, launched and left: so its gate stays until nobody can wait. */
void tt_gate_close(struct ncclComm *comm)
{
  if (comm->gate == NULL) return;
  uint64_t number = comm->gate->number;
  pthread_mutex_lock(&lock);
  comm->gate->left = true;
  comm->gate = NULL;
  if (all_left(number)) free_all(number);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* ---- Launches ---- */

void tt_gate_arrive(struct ncclComm *comm)
{
  struct tt_gate *gate = comm->gate;
  if (gate == NULL) return;
  size_t bytes = (size_t)gate->count * sizeof *gate->now.sends;
  pthread_mutex_lock(&lock);
  gate->before.collectives = gate->now.collectives;
  memcpy(gate->before.sends, gate->now.sends, bytes);
  memcpy(gate->before.recvs, gate->now.recvs, bytes);
  gate->now.collectives = comm->collectives;
  for (int i = 0; i < gate->count; i++) {
    gate->now.sends[i] = comm->sends[gate->ranks[i]];
    gate->now.recvs[i] = comm->recvs[gate->ranks[i]];
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static const struct tt_gate *find(const struct tt_gate *own, int place)
{
  const struct tt_gate *gate = gates;
  while (gate != NULL && (gate->number != own->number || gate->own != place)) gate = gate->next;
  return gate;
}

/* Whether this rank's last arrival needs that rank's, and it has not come. Only firsts count: the others of a group may
 * be in another group there, which this one's launch may have to precede. */
static bool is_awaited(const struct tt_gate *own, int place, const struct tt_gate *other)
{
  const struct ready *now = &own->now, *before = &own->before;
  if (now->collectives > before->collectives && (other == NULL || other->now.collectives <= before->collectives))
    return true;
  if (now->sends[place] > before->sends[place] && (other == NULL || other->now.recvs[own->own] <= before->sends[place]))
    return true;
  return now->recvs[place] > before->recvs[place] &&
         (other == NULL || other->now.sends[own->own] <= before->recvs[place]);
}

/* The ranks that are missing, as text: empty if there are none. *gone: one of them that has left, or -1. */
static void find_missing(const struct tt_gate *own, char *text, size_t size, int *gone)
{
  size_t at = 0;
  text[0] = '\0';
  *gone = -1;
  for (int i = 0; i < own->count; i++) {
    const struct tt_gate *other = find(own, i);
    if (i == own->own || !is_awaited(own, i, other)) continue;
    if (other == NULL || other->left) *gone = own->ranks[i];
    int wrote = snprintf(text + at, size - at, "%s%d", at > 0 ? ", " : "", own->ranks[i]);
    at = TT_MIN(at + (size_t)wrote, size - 1);
  }
}

static ncclResult_t check_patience(const struct ncclComm *comm, uint64_t waited, const char *missing)
{
  char where[250];
  snprintf(where, sizeof where, "at the launch gate (NCCL_LAUNCH_MODE=GROUP) for rank %s of this process", missing);
  return tt_watch_patience(comm, (int)(waited / 1000000000u), where);
}

static ncclResult_t look(const struct tt_plan *plan, uint64_t waited, const char *missing, int gone)
{
  const struct ncclComm *comm = plan->comm;
  if (atomic_load(&comm->abort))
    return TT_FAIL(ncclInternalError, "rank %d: aborted at the launch gate, before its operation had begun",
                   comm->rank);
  TT_TRY(tt_watch_check(plan, 1, true));
  if (gone < 0) return check_patience(comm, waited, missing);
  return TT_FAIL(
      ncclRemoteError,
      "rank %d waits at the launch gate (NCCL_LAUNCH_MODE=GROUP) for rank %d of this process, which has left "
      "the communicator",
      comm->rank, gone);
}

static void warn_if_due(const struct tt_plan *plan, uint64_t waited, const char *missing, uint64_t *warn_after)
{
  if (waited < *warn_after) return;
  *warn_after *= 2;
  TT_WARN(
      "rank %d has waited %d s at the launch gate (NCCL_LAUNCH_MODE=GROUP) for rank %s of this process; each needs a "
      "thread of its own, or all one group",
      plan->comm->rank, (int)(waited / 1000000000u), missing);
}

static void wait_a_little(void)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&changed, &lock, &until);
}

/* What it had ready is not launched, and nobody may take it for something that was. Locked. */
static void withdraw(struct tt_gate *gate)
{
  size_t bytes = (size_t)gate->count * sizeof *gate->now.sends;
  gate->now.collectives = gate->before.collectives;
  memcpy(gate->now.sends, gate->before.sends, bytes);
  memcpy(gate->now.recvs, gate->before.recvs, bytes);
}

ncclResult_t tt_gate_wait(const struct tt_plan *plan)
{
  struct tt_gate *gate = plan->comm->gate;
  uint64_t warn_after = WARN_NS;
  ncclResult_t result = ncclSuccess;
  char missing[160];
  int gone;
  if (gate == NULL) return ncclSuccess;
  uint64_t start = tt_timer_ns();
  pthread_mutex_lock(&lock);
  find_missing(gate, missing, sizeof missing, &gone);
  while (missing[0] != '\0' && result == ncclSuccess) {
    wait_a_little();
    find_missing(gate, missing, sizeof missing, &gone);
    if (missing[0] == '\0') break;
    pthread_mutex_unlock(&lock);
    uint64_t waited = tt_timer_ns() - start;
    warn_if_due(plan, waited, missing, &warn_after);
    result = look(plan, waited, missing, gone);
    pthread_mutex_lock(&lock);
    find_missing(gate, missing, sizeof missing, &gone);
  }
  if (result != ncclSuccess) withdraw(gate);
  pthread_mutex_unlock(&lock);
  return result;
}
