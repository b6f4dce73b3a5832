/* Running a launch with the host's executor, and saying whom it waits for when it stalls. */
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include "kernels/host/executor.h"
#include "kernels/host/half.h"
#include "kernels/host/host.h"

#define STALL_NS 50000000u
/* What moves this launch may be in another process, which rings no bell here: look often, then less often. */
#define PAUSE_FIRST_NS 10000
#define PAUSE_LAST_NS 200000

_Thread_local char fake_warning[512];
static _Atomic bool hide_signatures;

__attribute__((visibility("default"))) void fake_hide_signatures(bool hide)
{
  atomic_store(&hide_signatures, hide);
}

_Thread_local bool fake_in_stream;

/* Visits every end of the launch: in `found` those of a work that come first of what it waits for. */
static void count_steps(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn)
{
  const struct tt_program *program = channel->program;
  struct fake_twin *twin = (struct fake_twin *)conn;
  for (uint32_t i = 0; i < program->ninstructions; i++) {
    const struct tt_instruction *instruction = &program->instructions[i];
    for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++) {
      const struct tt_operand *operand = &program->operands[instruction->first_operand + k];
      if (operand->kind == (send ? TT_SEND : TT_RECV) && operand->peer == peer)
        twin->last += instruction->repeat * channel->geometry.loops;
    }
  }
}

typedef bool visit_fn(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn,
                      void *context);

/* All ends that the launch uses, receiving ones first, until `visit` returns true. */
static bool visit_ends(const struct fake_launch *launch, visit_fn *visit, void *context)
{
  for (int send = 0; send < 2; send++)
    for (int w = 0; w < launch->nworks; w++)
      for (uint32_t c = 0; c < launch->works[w]->nchannels; c++) {
        const struct tt_work_channel *channel = &launch->works[w]->channels[c];
        for (uint32_t p = 0; p < channel->program->npeers; p++) {
          struct tt_conn *conn = (send ? channel->send : channel->recv)[p];
          if (conn != NULL && visit(channel, send, p, conn, context)) return true;
        }
      }
  return false;
}

static bool start_end(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn,
                      void *context)
{
  (void)channel, (void)send, (void)peer, (void)context;
  ((struct fake_twin *)conn)->last = conn->step;
  return false;
}

static bool count_end(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn,
                      void *context)
{
  (void)context;
  count_steps(channel, send, peer, conn);
  return false;
}

/* Asks for what comes from pools. */
static bool ask_end(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn,
                    void *context)
{
  (void)channel, (void)send, (void)peer, (void)context;
  if (conn->flags & TT_CONN_POOLED) atomic_store(tt_conn_asked(conn), ((struct fake_twin *)conn)->last);
  return false;
}

struct wait {
  const struct tt_conn *conn;
  bool sending;
};

static bool find_wait(const struct tt_work_channel *channel, bool send, uint32_t peer, struct tt_conn *conn,
                      void *context)
{
  struct wait *wait = context;
  const struct tt_host_operand operand = {.kind = send ? TT_SEND : TT_RECV, .conn = conn, .step = conn->step};
  (void)channel, (void)peer;
  if (conn->step >= ((struct fake_twin *)conn)->last) return false; /* it has done its part */
  bool arrived = atomic_load(conn->tail) > conn->step || tt_host_ll_peek(&operand);
  if (send ? tt_host_has_room(&operand) : arrived) return false;
  *wait = (struct wait){.conn = conn, .sending = send};
  return true;
}

static void set_stalled(const struct fake_launch *launch, bool stalled)
{
  struct tt_device_context *context = launch->context;
  struct wait wait = {.conn = NULL};
  int w = 0;
  if (stalled) visit_ends(launch, find_wait, &wait);
  while (w + 1 < launch->nworks && launch->works[w]->complete) w++;
  pthread_mutex_lock(&context->lock);
  struct tt_device_status *status = &context->status;
  status->stalled = stalled;
  status->peer = wait.conn != NULL ? wait.conn->peer : -1;
  status->sending = wait.sending;
  status->signature = launch->works[w]->signature;
  pthread_mutex_unlock(&context->lock);
}

/* A failure that is none of the stop's ends all works of the context. */
static void set_failure(struct tt_device_context *context, ncclResult_t result)
{
  pthread_mutex_lock(&context->lock);
  if (atomic_load(&context->abort) == 0 && context->status.result == ncclSuccess) {
    context->status.result = result;
    snprintf(context->status.text, sizeof context->status.text, "%s", fake_warning);
    if (result == ncclInvalidUsage && atomic_load(&hide_signatures)) {
      context->status.unexplained = 1;
      snprintf(context->status.text, sizeof context->status.text, "rank %d and another do not execute the same",
               context->rank);
    }
    atomic_store(&context->abort, 1);
  }
  pthread_mutex_unlock(&context->lock);
}

static ncclResult_t drive(const struct fake_launch *launch, struct tt_launch *host)
{
  uint64_t moved_at = tt_timer_ns();
  long pause = PAUSE_FIRST_NS;
  bool stalled = false;
  for (int moved, done;;) {
    ncclResult_t result = tt_host_device()->progress(host, &moved, &done);
    if ((moved || done || result != ncclSuccess) && stalled) set_stalled(launch, stalled = false);
    if (done || result != ncclSuccess) return result;
    if (moved) {
      moved_at = tt_timer_ns();
      pause = PAUSE_FIRST_NS;
      continue;
    }
    if (!stalled && tt_timer_ns() - moved_at > STALL_NS) set_stalled(launch, stalled = true);
    nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    pause = TT_MIN(2 * pause, PAUSE_LAST_NS);
  }
}

/* The factor as it is now, where it lies in memory. */
static void read_factor(struct tt_work *work)
{
  const void *at = work->scale_at;
  struct tt_reduction *reduction = &work->reduction;
  if (at == NULL || !reduction->scale_inputs) return;
  reduction->scale.bits = 0;
  if (reduction->datatype == ncclFloat16)
    reduction->scale.f32 = tt_half_to_float(*(const uint16_t *)at);
  else if (reduction->datatype == ncclBfloat16)
    reduction->scale.f32 = tt_bfloat_to_float(*(const uint16_t *)at);
  else /* integers are multiplied by their low bits */
    memcpy(&reduction->scale, at, tt_datatype_bytes(reduction->datatype));
}

void fake_run(struct fake_launch *launch)
{
  struct tt_launch *host = NULL;
  if (atomic_load(&launch->context->abort) != 0) return;
  fake_warning[0] = 0;
  for (int w = 0; w < launch->nworks; w++) {
    launch->works[w]->complete = 0; /* it may have run before */
    read_factor(launch->works[w]);
  }
  visit_ends(launch, start_end, NULL);
  visit_ends(launch, count_end, NULL);
  visit_ends(launch, ask_end, NULL);
  ncclResult_t result = tt_host_device()->launch(launch->works, launch->nworks, NULL, &host);
  if (result == ncclSuccess) result = drive(launch, host);
  tt_host_device()->finish(host);
  if (result != ncclSuccess) set_failure(launch->context, result);
}
