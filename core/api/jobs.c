/* See jobs.h. */
#include "api/jobs.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/thread.h"

/* The jobs of a list while they run. They may wait for each other, so none begins before all have a thread. */
struct tt_fellows {
  pthread_mutex_t lock; /* for this, and what others look at of a job: its result and text */
  struct tt_job *jobs;
  bool cancelled;
};

static bool may_begin(struct tt_fellows *fellows)
{
  pthread_mutex_lock(&fellows->lock);
  bool may = !fellows->cancelled;
  pthread_mutex_unlock(&fellows->lock);
  return may;
}

static void *run_job(void *arg)
{
  struct tt_job *job = arg;
  if (!may_begin(job->fellows)) return NULL;
  job->ran = true;
  ncclResult_t result = job->run(job);
  char *text = result != ncclSuccess ? strdup(tt_log_thread_error()) : NULL;
  pthread_mutex_lock(&job->fellows->lock);
  job->result = result;
  job->text = text;
  pthread_mutex_unlock(&job->fellows->lock);
  return NULL;
}

/* It has not met the others, of whom it would have its number. Later they hear of it by their connections. */
static bool never_came(const struct tt_job *job)
{
  return job->makes && job->result != ncclSuccess && !job->yielded && job->comm->number == 0;
}

ncclResult_t tt_group_check_fellows(struct tt_job *job)
{
  const struct ncclComm *comm = job->comm;
  pthread_mutex_lock(&job->fellows->lock);
  struct tt_job *other = job->fellows->jobs;
  while (other != NULL && !(never_came(other) && other->comm->id_hash == comm->id_hash)) other = other->next;
  job->yielded = other != NULL;
  ncclResult_t result = ncclSuccess;
  if (other != NULL)
    result = TT_FAIL(other->result, "rank %d of %d gives up, since rank %d, of the same group, could not be made: %s",
                     comm->rank, comm->nranks, other->comm->rank, other->text != NULL ? other->text : "see its log");
  pthread_mutex_unlock(&job->fellows->lock);
  return result;
}

ncclResult_t tt_group_job_result(const struct tt_job *job, ncclResult_t unrun)
{
  if (!job->ran) return unrun;
  if (job->result != ncclSuccess && job->text != NULL) tt_log_remember(job->text);
  return job->result;
}

/* All but the last, which needs no thread of its own. `*unstarted`: the first that has none. */
static ncclResult_t start(struct tt_fellows *fellows, const struct tt_job *last, struct tt_job **unstarted)
{
  ncclResult_t result = ncclSuccess;
  struct tt_job *job = fellows->jobs;
  pthread_mutex_lock(&fellows->lock);
  for (; job != last; job = job->next)
    if ((result = tt_thread_start(&job->thread, "tutti-group", run_job, job)) != ncclSuccess) break;
  fellows->cancelled = result != ncclSuccess;
  pthread_mutex_unlock(&fellows->lock);
  *unstarted = job;
  return result;
}

/* Who gave up because of another has only that one's failure to tell. */
static ncclResult_t first_failure(const struct tt_job *jobs)
{
  const struct tt_job *job = jobs;
  while (job != NULL && (job->result == ncclSuccess || job->yielded)) job = job->next;
  return job != NULL ? tt_group_job_result(job, ncclSuccess) : ncclSuccess;
}

/* The last one runs on the calling thread, so that a single job needs no other. */
ncclResult_t tt_group_run_jobs(struct tt_job *jobs)
{
  struct tt_fellows fellows = {.lock = PTHREAD_MUTEX_INITIALIZER, .jobs = jobs};
  struct tt_job *last = NULL, *unstarted;
  if (jobs == NULL) return ncclSuccess;
  for (struct tt_job *job = jobs; job != NULL; job = job->next) {
    job->fellows = &fellows;
    last = job;
  }
  ncclResult_t started = start(&fellows, last, &unstarted);
  if (started == ncclSuccess) run_job(last);
  for (struct tt_job *job = jobs; job != unstarted; job = job->next) pthread_join(job->thread, NULL);
  return started != ncclSuccess ? started : first_failure(jobs);
}

void tt_group_drop_jobs(struct tt_job *jobs)
{
  for (struct tt_job *job = jobs, *next; job != NULL; job = next) {
    next = job->next;
    free(job->text);
    job->drop(job);
  }
}
