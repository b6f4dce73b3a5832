/* The user's side of connection set-up, in rounds of a few peers each: waiting for what is needed, and what ends it. */
#include "connect/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/check.h"
#include "base/param.h"

#define ABORT_POLL_MS 100
/* A peer that has left the communicator or is gone may have answered before: what it said comes within this time. */
#define LEFT_NS 500000000u
/* It is read in the worker's next pass, unless the network keeps that for so long. */
#define STUCK_NS 10000000000u
/* The first failure of all is told to all ranks, but what follows from it, such as that a process ends, may be seen
 * sooner. For so long the news is waited for, looked for so often. */
#define CAUSE_NS 500000000u
#define CAUSE_POLL_NS 5000000u

/* One round of tt_connect_run: entries [first, end) of the wanted ones. */
struct round {
  int number, npeers;
  size_t first, end;
  tt_deadline deadline;
  uint64_t started, reported; /* ns */
  int left;                   /* a peer that is missing and has left; -1: none */
  uint64_t left_since;        /* ns; when that was seen first, ... */
  uint64_t left_passes;       /* ... and the worker's passes by then */
  uint64_t dead_since;        /* ns; 0: no peer that is missing is gone */
  uint64_t said_since;        /* ns; 0: nor does the check say anything */
  int warned;                 /* times that the missing peers were named */
};

static int distance(const struct tt_connect *connect, const struct tt_entry *entry)
{
  int n = connect->env->nranks, forward = (entry->connector.peer - connect->env->rank + n) % n;
  return TT_MIN(forward, n - forward);
}

static int nearest_first(const void *a, const void *b, void *context)
{
  const struct tt_entry *x = *(struct tt_entry *const *)a, *y = *(struct tt_entry *const *)b;
  int dx = distance(context, x), dy = distance(context, y);
  if (dx != dy) return dx < dy ? -1 : 1;
  return x->connector.peer < y->connector.peer ? -1 : x->connector.peer > y->connector.peer;
}

/* Takes the entries of the next `limit` peers into the round. */
static void plan_round(const struct tt_connect *connect, struct round *round, int limit)
{
  round->number++;
  round->npeers = 0;
  round->first = round->end;
  for (; round->end < connect->nwanted; round->end++) {
    bool same = round->end > round->first &&
                connect->wanted[round->end]->connector.peer == connect->wanted[round->end - 1]->connector.peer;
    if (!same && round->npeers == limit) break;
    if (!same) round->npeers++;
  }
  round->deadline = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT) * 1000);
  round->started = round->reported = tt_timer_ns();
  round->warned = 0;
  round->left = -1;
  round->dead_since = round->said_since = 0;
}

/* How many peers of the round have everything up; a failed entry in *failed. Called with the lock held. */
static int count_up(const struct tt_connect *connect, const struct round *round, struct tt_entry **failed)
{
  int up = 0;
  *failed = NULL;
  for (size_t i = round->first; i < round->end;) {
    bool whole = true;
    int peer = connect->wanted[i]->connector.peer;
    for (; i < round->end && connect->wanted[i]->connector.peer == peer; i++) {
      whole = whole && tt_entry_is_up(connect->wanted[i]);
      if (connect->wanted[i]->state == TT_ENTRY_FAILED) *failed = connect->wanted[i];
    }
    up += whole;
  }
  return up;
}

/* Names the first peers that lack something and what. Called with the lock held. */
static void describe_missing(const struct tt_connect *connect, const struct round *round, char *text, size_t size)
{
  int named = 0, last = -1;
  size_t at = 0;
  text[0] = '\0';
  for (size_t i = round->first; i < round->end; i++) {
    struct tt_entry *entry = connect->wanted[i];
    if (tt_entry_is_up(entry) || entry->connector.peer == last) continue;
    last = entry->connector.peer;
    if (++named > 8) continue;
    int n = snprintf(text + at, size - at, "%srank %d on %s (channel %d, %s: %s)", at ? ", " : "", last,
                     connect->env->peers[last].host, entry->connector.channel,
                     entry->connector.send ? "send" : "receive", entry->progress);
    at = TT_MIN(at + (size_t)n, size - 1);
  }
  if (named > 8) snprintf(text + at, size - at, " and %d more", named - 8);
}

/* Names the missing peers after TUTTI_INIT_WARN, and after twice the time again. Called with the lock held. */
static void warn_late(const struct tt_connect *connect, struct round *round, uint64_t now)
{
  char missing[1024];
  uint64_t seconds = (uint64_t)tt_param_int(TT_PARAM_TUTTI_INIT_WARN) << TT_MIN(round->warned, 10);
  if (seconds == 0 || now - round->started < seconds * 1000000000u) return;
  round->warned++;
  describe_missing(connect, round, missing, sizeof(missing));
  TT_WARN("rank %d has waited %llu s for connections with %s", connect->env->rank,
          (unsigned long long)((now - round->started) / 1000000000u), missing);
}

/* A peer that the round waits for and that is known to be gone: no use in waiting for the deadline. Called with the
 * lock held. */
static ncclResult_t check_alive(const struct tt_connect *connect, struct round *round, uint64_t now)
{
  int dead;
  char why[256];
  bool missing = false;
  if (!tt_bootstrap_dead(connect->bootstrap, &dead, why, sizeof(why))) return ncclSuccess;
  for (size_t i = round->first; i < round->end; i++)
    missing = missing || (connect->wanted[i]->connector.peer == dead && !tt_entry_is_up(connect->wanted[i]));
  if (!missing) return ncclSuccess;
  if (round->dead_since == 0) round->dead_since = now;
  if (now - round->dead_since <= LEFT_NS) return ncclSuccess;
  return TT_FAIL(ncclRemoteError, "rank %d cannot connect with rank %d: rank %d %s", connect->env->rank, dead, dead,
                 why);
}

static void report(const struct tt_connect *connect, struct round *round, int up)
{
  round->reported = tt_timer_ns();
  TT_INFO(TT_INIT, "Connecting rank %d, round %d: %d of %d peers are up after %.3f s", connect->env->rank,
          round->number, up, round->npeers, (double)(round->reported - round->started) / 1e9);
}

static struct timespec point_in_time(uint64_t ns)
{
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* A peer that said goodbye before its connections were up, or -1. Called with the lock held. */
static int left_peer(const struct tt_connect *connect, const struct round *round)
{
  for (size_t i = round->first; i < round->end; i++) {
    const struct tt_entry *entry = connect->wanted[i];
    if (entry->state != TT_ENTRY_UP && tt_bootstrap_left(connect->bootstrap, entry->connector.peer))
      return entry->connector.peer;
  }
  return -1;
}

/* A missing peer that has left is an error when all that it said before has been read: no letter waits, and the worker
 * has been through a whole pass since then. Called with the lock held. */
static ncclResult_t check_left(struct tt_connect *connect, struct round *round)
{
  uint64_t now = tt_timer_ns();
  int left = left_peer(connect, round);
  if (left != round->left) {
    round->left = left;
    round->left_since = now;
    round->left_passes = connect->passes;
  }
  if (left < 0) return ncclSuccess;
  TT_TRY(tt_connect_wake_worker(connect));
  bool read = connect->letters == NULL && connect->passes - round->left_passes >= 2; /* one may have been under way */
  if (now - round->left_since <= (read ? LEFT_NS : STUCK_NS)) return ncclSuccess;
  return TT_FAIL(ncclRemoteError,
                 "rank %d needs a connection with rank %d, which has left the communicator: it "
                 "destroyed or aborted it before this operation",
                 connect->env->rank, left);
}

/* What ends the wait although no connection has failed; what the check says, `at_once` or when answers have been read.
 * Called with the lock held, which it drops meanwhile. */
static ncclResult_t look_outside(struct tt_connect *connect, struct round *round, bool at_once)
{
  uint64_t now = tt_timer_ns();
  ncclResult_t result = ncclSuccess;
  pthread_mutex_unlock(&connect->lock);
  if (connect->check) result = connect->check(connect->check_context);
  if (result == ncclSuccess)
    round->said_since = 0;
  else if (round->said_since == 0)
    round->said_since = now;
  if (!at_once && now - round->said_since <= LEFT_NS) result = ncclSuccess;
  pthread_mutex_lock(&connect->lock);
  return result == ncclSuccess ? check_left(connect, round) : result;
}

static bool is_aborted(const struct tt_connect *connect)
{
  return connect->env->abort && atomic_load(connect->env->abort);
}

/* What a failed connection follows from, if another rank has reported it. As look_outside. */
static ncclResult_t look_for_cause(struct tt_connect *connect, struct round *round, const struct tt_entry *failed)
{
  uint64_t start = tt_timer_ns(), now = start;
  for (;;) {
    TT_TRY(look_outside(connect, round, true));
    bool may_follow = connect->check && failed->result == ncclRemoteError;
    if (!may_follow || now - start > CAUSE_NS || is_aborted(connect)) return ncclSuccess;
    struct timespec until = point_in_time(now + CAUSE_POLL_NS);
    pthread_cond_timedwait(&connect->changed, &connect->lock, &until);
    now = tt_timer_ns();
  }
}

/* Waits for the round's end. Called with the lock held; returns with it. */
static ncclResult_t wait_round(struct tt_connect *connect, struct round *round)
{
  bool reports = tt_param_int(TT_PARAM_NCCL_REPORT_CONNECT_PROGRESS) != 0;
  for (;;) {
    struct tt_entry *failed;
    int up = count_up(connect, round, &failed);
    if (failed) TT_TRY(look_for_cause(connect, round, failed));
    if (failed)
      return TT_FAIL(failed->result, "rank %d is not connected with rank %d (channel %d, %s): %s", connect->env->rank,
                     failed->connector.peer, failed->connector.channel, failed->connector.send ? "send" : "receive",
                     failed->why);
    uint64_t now = tt_timer_ns();
    if (reports && (up == round->npeers || now - round->reported >= 1000000000u)) report(connect, round, up);
    if (up == round->npeers) return ncclSuccess;
    warn_late(connect, round, now);
    TT_TRY(check_alive(connect, round, now));
    if (is_aborted(connect))
      return TT_FAIL(ncclInternalError, "rank %d was aborted while it connected", connect->env->rank);
    if (tt_deadline_passed(round->deadline)) {
      char missing[1024];
      describe_missing(connect, round, missing, sizeof(missing));
      return TT_FAIL(
          ncclSystemError,
          "rank %d waited %lld s for connections with %s: check that these processes live and are not stopped, "
          "or raise NCCL_BOOTSTRAP_TIMEOUT",
          connect->env->rank, (long long)tt_param_int(TT_PARAM_NCCL_BOOTSTRAP_TIMEOUT), missing);
    }
    struct timespec until =
        point_in_time(now + (uint64_t)tt_deadline_poll_ms(round->deadline, ABORT_POLL_MS) * 1000000u);
    if (pthread_cond_timedwait(&connect->changed, &connect->lock, &until) == ETIMEDOUT)
      TT_TRY(look_outside(connect, round, false));
  }
}

static ncclResult_t run_round(struct tt_connect *connect, struct round *round)
{
  pthread_mutex_lock(&connect->lock);
  for (size_t i = round->first; i < round->end; i++)
    if (connect->wanted[i]->state == TT_ENTRY_NOTED) tt_connect_activate(connect, connect->wanted[i]);
  ncclResult_t result = tt_connect_wake_worker(connect);
  if (result == ncclSuccess) result = wait_round(connect, round);
  pthread_mutex_unlock(&connect->lock);
  return result;
}

ncclResult_t tt_connect_run(struct tt_connect *connect)
{
  ncclResult_t result = ncclSuccess;
  int limit = (int)tt_param_int(TT_PARAM_NCCL_CONNECT_ROUND_MAX_PEERS);
  if (connect->nwanted > 1)
    qsort_r(connect->wanted, connect->nwanted, sizeof(struct tt_entry *), nearest_first, connect);
  struct round round = {0};
  while (result == ncclSuccess && round.end < connect->nwanted) {
    plan_round(connect, &round, limit);
    result = run_round(connect, &round);
  }
  for (size_t i = 0; i < connect->nwanted; i++) connect->wanted[i]->wanted = false;
  connect->nwanted = 0;
  return result;
}
