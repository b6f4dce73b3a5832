/* Ranks as threads; see ranks.h. */
#include "ranks.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/internal.h"

struct job {
  struct rank *rank;
  rank_body *body;
};

static void *run(void *arg)
{
  struct job *job = arg;
  struct rank *rank = job->rank;
  rank->result = tt_bootstrap_create(rank->id, rank->rank, rank->nranks, rank->abort, &rank->b);
  if (rank->result == ncclSuccess && job->body) rank->result = job->body(rank);
  snprintf(rank->error, sizeof(rank->error), "%s", tt_log_thread_error());
  tt_bootstrap_destroy(rank->b);
  return NULL;
}

void ranks_run(const ncclUniqueId *id, int nranks, rank_body *body, void *arg, struct rank *ranks)
{
  pthread_t *threads = calloc((size_t)nranks, sizeof(*threads));
  struct job *jobs = calloc((size_t)nranks, sizeof(*jobs));
  for (int r = 0; r < nranks; r++) {
    if (ranks[r].nranks == 0) ranks[r].nranks = nranks;
    if (ranks[r].rank == 0) ranks[r].rank = r;
    if (ranks[r].rank < 0) ranks[r].rank = 0;
    ranks[r].id = id;
    ranks[r].arg = arg;
    ranks[r].b = NULL;
    jobs[r] = (struct job){&ranks[r], body};
    ck_assert_int_eq(tt_thread_start(&threads[r], "rank", run, &jobs[r]), ncclSuccess);
  }
  for (int r = 0; r < nranks; r++) pthread_join(threads[r], NULL);
  free(threads);
  free(jobs);
}

void ranks_succeed(int nranks, rank_body *body, void *arg)
{
  ncclUniqueId id;
  struct rank *ranks = calloc((size_t)nranks, sizeof(*ranks));
  ck_assert_int_eq(tt_bootstrap_unique_id(&id), ncclSuccess);
  ranks_run(&id, nranks, body, arg, ranks);
  for (int r = 0; r < nranks; r++)
    ck_assert_msg(ranks[r].result == ncclSuccess, "rank %d of %d: result %d, %s", r, nranks, ranks[r].result,
                  ranks[r].error);
  free(ranks);
}

void environment(const char *const *values)
{
  static const char *const names[] = {"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_BOOTSTRAP_TIMEOUT",
                                      "NCCL_COMM_ID",       "NCCL_HOSTID",        "NCCL_SOCKET_TIMEOUT",
                                      "NCCL_NET_PLUGIN",    "TUTTI_PEER_TIMEOUT"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) unsetenv(names[i]);
  for (; values && *values; values++) {
    char name[64];
    const char *equals = strchr(*values, '=');
    snprintf(name, sizeof(name), "%.*s", (int)(equals - *values), *values);
    setenv(name, equals + 1, 1);
  }
  tt_param_reset();
}

_Atomic int standing_still;

void stand_still(struct rank *me, const _Atomic int *count, int end)
{
  pthread_mutex_lock(&me->b->mutex);
  atomic_fetch_add(&standing_still, 1);
  while (atomic_load(count) < end) usleep(1000);
  pthread_mutex_unlock(&me->b->mutex);
}

void forget_waits(struct rank *me)
{
  pthread_mutex_lock(&me->b->mutex);
  me->b->waited_ns = me->b->relayed_ns = 0;
  pthread_mutex_unlock(&me->b->mutex);
}

void expect_quiet(int threads, int descriptors)
{
  struct held now;
  held_settles((struct held){threads, descriptors, INT_MAX}, 5000, &now);
  ck_assert_int_le(now.threads, threads);
  ck_assert_int_le(now.descriptors, descriptors);
}
