/* See pending.h. */
#include "plan/pending.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include "base/check.h"
#include "kernels/host/host.h"
#include "plan/plan.h"
#include "plan/progress.h"
#include "plan/watch.h"

/* To a few milliseconds, which is enough for a report and costs a short operation nothing. */
static uint64_t coarse_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void tt_pending_begin(struct ncclComm *comm, struct tt_work *const *works, int nworks)
{
  struct tt_pending *pending = &comm->pending;
  pending->works = works;
  pending->nworks = nworks;
  pending->since = coarse_ns();
  atomic_store_explicit(&pending->phase, TT_PENDING_CONNECTING, memory_order_release);
}

void tt_pending_gate(struct ncclComm *comm)
{
  if (atomic_load_explicit(&comm->pending.phase, memory_order_relaxed) == TT_PENDING_NONE) return;
  atomic_store_explicit(&comm->pending.phase, TT_PENDING_GATED, memory_order_release);
}

void tt_pending_run(struct ncclComm *comm, const struct tt_watch_clock *clock)
{
  struct tt_pending *pending = &comm->pending;
  if (atomic_load_explicit(&pending->phase, memory_order_relaxed) == TT_PENDING_NONE) return;
  pending->clock = clock;
  atomic_store_explicit(&pending->phase, TT_PENDING_RUNNING, memory_order_release);
}

/* Either the looker sees that it is over, or this thread sees the looker: both use one order of all. */
void tt_pending_end(struct ncclComm *comm)
{
  struct tt_pending *pending = &comm->pending;
  if (atomic_load_explicit(&pending->phase, memory_order_relaxed) == TT_PENDING_NONE) return;
  atomic_store(&pending->phase, TT_PENDING_NONE);
  while (atomic_load(&pending->lookers) != 0) sched_yield();
}

/* The connectors of a work's channel, sends first, by index into the program's peers; NULL where there is none. */
static struct tt_connector *connector_of(const struct tt_work_channel *channel, uint32_t end)
{
  uint32_t npeers = channel->program->npeers;
  struct tt_conn *conn = end < npeers ? channel->send[end] : channel->recv[end - npeers];
  return (struct tt_connector *)conn;
}
_Static_assert(offsetof(struct tt_connector, conn) == 0, "a connection is found by its first member");

/* What is known while works are visited: memory for the most ends of any work. */
struct look {
  struct ncclComm *comm;
  enum tt_pending_phase phase;
  struct tt_pending_end_state *ends;
  struct tt_progress_end *steps; /* of one channel */
};

static size_t ends_of(const struct tt_work *work)
{
  size_t ends = 0;
  for (uint32_t c = 0; c < work->nchannels; c++) ends += 2 * (size_t)work->channels[c].program->npeers;
  return ends;
}

/* The connectors count the steps of all operations that were ever planned; the works of this group are the last of
 * them. Sets `counted` of their connectors to where the first of these works begins. */
static void rewind_connectors(struct look *look, struct tt_work *const *works, int nworks)
{
  for (int pass = 0; pass < 2; pass++)
    for (int w = 0; w < nworks; w++)
      for (uint32_t c = 0; c < works[w]->nchannels; c++) {
        const struct tt_work_channel *channel = &works[w]->channels[c];
        if (pass == 1) tt_progress_count(channel->program, look->steps);
        for (uint32_t end = 0; end < 2 * channel->program->npeers; end++) {
          struct tt_connector *connector = connector_of(channel, end);
          if (connector == NULL) continue;
          if (pass == 0)
            connector->counted = look->comm->env->first_step + connector->planned;
          else
            connector->counted -= look->steps[end].per_loop * channel->geometry.loops;
        }
      }
}

/* The ends of a channel that the work uses; moves their connectors on to the next work. Returns how many. */
static int look_at_channel(struct look *look, const struct tt_work *work, uint32_t c, struct tt_pending_end_state *ends)
{
  const struct tt_work_channel *channel = &work->channels[c];
  uint32_t npeers = channel->program->npeers;
  int nends = 0;
  tt_progress_count(channel->program, look->steps);
  for (uint32_t e = 0; e < 2 * npeers; e++) {
    struct tt_connector *connector = connector_of(channel, e);
    struct tt_progress_end *end = &look->steps[e];
    if (connector == NULL || end->per_loop == 0) continue;
    uint64_t first = connector->counted, steps = end->per_loop * channel->geometry.loops;
    uint64_t now = __atomic_load_n(&connector->conn.step, __ATOMIC_RELAXED);
    connector->counted = first + steps;
    end->done = (int64_t)(now - first) <= 0 ? 0 : TT_MIN(now - first, steps);
    end->ready = end->done < steps && tt_host_ready(&connector->conn, work->protocol, e < npeers, first + end->done);
  }
  tt_progress_find(channel->program, channel->geometry.loops, look->steps);
  for (uint32_t e = 0; e < 2 * npeers; e++) {
    const struct tt_progress_end *end = &look->steps[e];
    if (connector_of(channel, e) == NULL || end->per_loop == 0) continue;
    ends[nends++] = (struct tt_pending_end_state){.connector = connector_of(channel, e),
                                                  .channel = (int)c,
                                                  .send = e < npeers,
                                                  .done = end->done,
                                                  .steps = end->per_loop * channel->geometry.loops,
                                                  .awaited = end->current && !end->ready};
  }
  return nends;
}

static bool is_complete(const struct tt_work *work)
{
  return __atomic_load_n(&work->complete, __ATOMIC_RELAXED) != 0;
}

/* Whether two works follow each other, and do not run beside each other. */
static bool same_chain(const struct tt_work *a, const struct tt_work *b)
{
  const struct tt_program *p = a->channels[0].program, *q = b->channels[0].program;
  if (a->signature.collective != b->signature.collective &&
      (a->signature.collective == TT_FUNC_SEND_RECV || b->signature.collective == TT_FUNC_SEND_RECV))
    return false;
  if (a->signature.collective != TT_FUNC_SEND_RECV) return true;
  return p->collective == q->collective && (p->npeers > 0 ? p->peers[0] : -1) == (q->npeers > 0 ? q->peers[0] : -1);
}

static void visit_works(struct look *look, int most, struct tt_pending_group *group, tt_pending_visit *visit,
                        void *context)
{
  struct tt_work *const *works = look->comm->pending.works;
  int nworks = look->comm->pending.nworks, first = 0, shown = 0;
  bool running = look->phase == TT_PENDING_RUNNING;
  if (running) rewind_connectors(look, works, nworks);
  for (int w = 0; w < nworks; w++) {
    struct tt_pending_operation operation = {.work = works[w], .ends = look->ends};
    bool complete = running && is_complete(works[w]), before = false;
    for (uint32_t c = 0; running && c < works[w]->nchannels; c++)
      operation.nends += look_at_channel(look, works[w], c, look->ends + operation.nends);
    group->complete += complete;
    if (complete || shown == most) continue;
    if (shown++ == 0) first = w;
    for (int earlier = first; earlier < w && !before; earlier++)
      before = !is_complete(works[earlier]) && same_chain(works[earlier], works[w]);
    operation.waits_its_turn = before;
    visit(context, &operation);
  }
}

/* Called as a looker. */
static void look_at(struct ncclComm *comm, enum tt_pending_phase phase, int most, struct tt_pending_group *group,
                    tt_pending_visit *visit, void *context)
{
  const struct tt_pending *pending = &comm->pending;
  struct look look = {.comm = comm, .phase = phase};
  size_t most_ends = 1, most_steps = 1;
  group->since = pending->since;
  group->operations = pending->nworks;
  if (phase == TT_PENDING_RUNNING) {
    group->idle_since = atomic_load_explicit(&pending->clock->idle_since, memory_order_relaxed);
    group->looked = atomic_load_explicit(&pending->clock->looked, memory_order_relaxed);
    group->passes = atomic_load_explicit(&pending->clock->passes, memory_order_relaxed);
  }
  if (most == 0) return;
  for (int w = 0; w < pending->nworks; w++) {
    most_ends = TT_MAX(most_ends, ends_of(pending->works[w]));
    for (uint32_t c = 0; c < pending->works[w]->nchannels; c++)
      most_steps = TT_MAX(most_steps, 2 * (size_t)pending->works[w]->channels[c].program->npeers);
  }
  if (TT_CALLOC(&look.ends, most_ends) == ncclSuccess && TT_CALLOC(&look.steps, most_steps) == ncclSuccess)
    visit_works(&look, most, group, visit, context);
  free(look.ends);
  free(look.steps);
}

void tt_pending_look(struct ncclComm *comm, int most, struct tt_pending_group *group, tt_pending_visit *visit,
                     void *context)
{
  struct tt_pending *pending = &comm->pending;
  *group = (struct tt_pending_group){0};
  atomic_fetch_add(&pending->lookers, 1);
  group->phase = (enum tt_pending_phase)atomic_load(&pending->phase);
  if (group->phase != TT_PENDING_NONE) look_at(comm, group->phase, most, group, visit, context);
  atomic_fetch_sub(&pending->lookers, 1);
}
