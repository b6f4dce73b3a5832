/* See jobs.h. */
#include "api/jobs.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/thread.h"

static void *run_job(void *arg)
{
  struct tt_job *job = arg;
  job->ran = true;
  job->result = job->run(job);
  if (job->result != ncclSuccess) job->text = strdup(tt_log_thread_error());
  return NULL;
}

ncclResult_t tt_group_job_result(const struct tt_job *job, ncclResult_t unrun)
{
  if (!job->ran) return unrun;
  if (job->result != ncclSuccess && job->text != NULL) tt_log_remember(job->text);
  return job->result;
}

/* The last one runs on the calling thread, so that a single job needs no other. */
ncclResult_t tt_group_run_jobs(struct tt_job *jobs)
{
  ncclResult_t result = ncclSuccess;
  struct tt_job *last = jobs;
  for (struct tt_job *job = jobs; job != NULL; job = job->next) last = job;
  struct tt_job *unstarted = last;
  for (struct tt_job *job = jobs; job != last; job = job->next) {
    ncclResult_t started = tt_thread_start(&job->thread, "tutti-group", run_job, job);
    if (started == ncclSuccess) continue;
    result = started; /* the others wait for this one until their deadline; running it here would wait for them */
    unstarted = job;
    break;
  }
  if (last != NULL && unstarted == last) run_job(last);
  for (struct tt_job *job = jobs; job != unstarted; job = job->next) pthread_join(job->thread, NULL);
  for (struct tt_job *job = jobs; job != NULL && result == ncclSuccess; job = job->next)
    result = tt_group_job_result(job, ncclSuccess);
  return result;
}

void tt_group_drop_jobs(struct tt_job *jobs)
{
  for (struct tt_job *job = jobs, *next; job != NULL; job = next) {
    next = job->next;
    free(job->text);
    job->drop(job);
  }
}
