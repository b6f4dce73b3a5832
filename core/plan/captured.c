/* See captured.h. For each collective: every rank tells the others where its buffers lie (all of a group at once, so
 * that ranks may put their calls into groups as they like), waits for theirs, maps them, and tells that it has. */
#include "plan/captured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"
#include "device/context.h"
#include "plan/captured_internal.h"
#include "plan/mapped.h"
#include "plan/plan.h"
#include "plan/stream.h"
#include "program/emit.h"
#include "transport/user_buffers.h"

/* ---- Life ---- */

static void end_captured(struct ncclComm *comm)
{
  if (comm->captured == NULL) return;
  tt_captured_mail_close(comm->captured);
  tt_captured_forget(comm);
  free(comm->captured);
  comm->captured = NULL;
}

ncclResult_t tt_captured_open(struct ncclComm *comm)
{
  const uint32_t needed = TT_DEVICE_GRAPHS | TT_DEVICE_USER_MEMORY;
  if (comm->nranks == 1 || comm->nnodes > 1 || comm->env == NULL || comm->env->users == NULL ||
      !tt_stream_device(comm) || (comm->device->features & needed) != needed ||
      !tt_param_int(TT_PARAM_NCCL_GRAPH_REGISTER))
    return ncclSuccess;
  TT_TRY(TT_CALLOC(&comm->captured, 1));
  comm->captured->comm = comm;
  ncclResult_t result = tt_captured_mail_open(comm->captured);
  ncclResult_t noted = tt_comm_at_end(comm, end_captured);
  return result != ncclSuccess ? result : noted;
}

/* ---- What there is to agree on ---- */

static bool is_collective(const struct tt_task *task)
{
  return task->collective != TT_FUNC_SEND && task->collective != TT_FUNC_RECV;
}

/* Windows say it without a message. */
static ncclResult_t find_window(const struct ncclComm *comm, const void *ptr, size_t bytes, void **at, bool *all)
{
  struct tt_user_place place;
  if (bytes == 0) return ncclSuccess;
  TT_TRY(tt_user_buffers_find(comm->env->users, ptr, bytes, &place, at));
  *all = *all && place.window != NULL && place.everywhere;
  return ncclSuccess;
}

static ncclResult_t describe(const struct ncclComm *comm, const void *ptr, size_t bytes, struct tt_user_range *range)
{
  if (bytes == 0) return ncclSuccess;
  TT_TRY(tt_user_range_describe(comm->env->users, ptr, bytes, range));
  tt_user_range_export(comm->env->users, ptr, range);
  return ncclSuccess;
}

static ncclResult_t prepare_step(struct ncclComm *comm, const struct tt_task *task, struct tt_captured_step *step)
{
  bool in_windows = true;
  if (!tt_mapped_possible(comm, task) || !tt_plan_prefers_mapped(comm, task)) return ncclSuccess;
  struct tt_mapped_touched touched = tt_mapped_touched(comm, task, comm->rank);
  struct tt_mapped_touched promised = tt_mapped_promised(comm, task);
  TT_TRY(TT_CALLOC(&step->inputs, 2 * (size_t)comm->nranks));
  step->outputs = step->inputs + comm->nranks;
  TT_TRY(find_window(comm, task->input, promised.input, step->inputs, &in_windows));
  TT_TRY(find_window(comm, task->output, promised.output, step->outputs, &in_windows));
  if (in_windows && tt_mapped_by_windows(task)) return ncclSuccess;
  step->task = task;
  TT_TRY(describe(comm, task->input, touched.input, &step->input));
  TT_TRY(describe(comm, task->output, touched.output, &step->output));
  if (tt_mapped_overlaps(comm, task)) snprintf(step->output.why, sizeof step->output.why, "it is in place there");
  return ncclSuccess;
}

/* Streams of different graphs are a mistake that planning names; other ranks need not be asked before. */
static ncclResult_t is_one_graph(const struct ncclComm *comm, const struct tt_task *tasks, uint64_t graph, bool *one)
{
  const void *last = tasks->stream;
  *one = true;
  for (const struct tt_task *task = tasks; task != NULL && *one; task = task->next) {
    uint64_t other = graph;
    if (task->stream != last) TT_TRY(comm->device->capturing(comm->context->handle, task->stream, &other));
    last = task->stream;
    *one = other == graph;
  }
  return ncclSuccess;
}

ncclResult_t tt_captured_prepare(struct ncclComm *comm, const struct tt_task *tasks, bool *wanted)
{
  struct tt_captured *captured = comm->captured;
  int count = 0;
  bool one;
  *wanted = false;
  if (captured == NULL || tasks == NULL) return ncclSuccess;
  TT_TRY(comm->device->capturing(comm->context->handle, tasks->stream, &captured->graph));
  captured->asked = true;
  captured->stream = tasks->stream;
  if (captured->graph == 0) return ncclSuccess;
  TT_TRY(is_one_graph(comm, tasks, captured->graph, &one));
  if (!one) return ncclSuccess;
  for (const struct tt_task *task = tasks; task != NULL; task = task->next) count += is_collective(task);
  if (count == 0) return ncclSuccess;
  TT_TRY(TT_CALLOC(&captured->steps, (size_t)count));
  for (const struct tt_task *task = tasks; task != NULL; task = task->next) {
    if (!is_collective(task)) continue;
    struct tt_captured_step *step = &captured->steps[captured->nsteps++];
    step->number = atomic_load(&comm->collectives) + (uint64_t)captured->nsteps - 1;
    TT_TRY(prepare_step(comm, task, step));
    *wanted = *wanted || step->task != NULL;
  }
  return ncclSuccess;
}

bool tt_captured_graph(const struct ncclComm *comm, const void *stream, uint64_t *graph)
{
  const struct tt_captured *captured = comm->captured;
  if (captured == NULL || !captured->asked || captured->stream != stream) return false;
  *graph = captured->graph;
  return true;
}

bool tt_captured_here(const struct ncclComm *comm, const void *stream, uint64_t graph)
{
  uint64_t here;
  return comm->device->capturing(comm->context->handle, (void *)stream, &here) == ncclSuccess && here == graph;
}

void tt_captured_forget(struct ncclComm *comm)
{
  struct tt_captured *captured = comm->captured;
  if (captured == NULL) return;
  captured->asked = false;
  for (int s = 0; s < captured->nsteps; s++) {
    struct tt_captured_step *step = &captured->steps[s];
    tt_user_range_withdraw(comm->env->users, &step->input);
    tt_user_range_withdraw(comm->env->users, &step->output);
    tt_user_range_free(&step->input);
    tt_user_range_free(&step->output);
    free(step->inputs);
  }
  free(captured->steps);
  captured->steps = NULL;
  captured->nsteps = captured->next = 0;
}

/* ---- Offers ---- */

static void put_signature(struct tt_wire_writer *w, const struct tt_task *task)
{
  tt_wire_put_int(w, task->count, 8);
  tt_wire_put_int(w, (uint64_t)task->collective, 2);
  tt_wire_put_int(w, (uint64_t)task->datatype, 2);
  tt_wire_put_int(w, (uint64_t)task->op, 4);
  tt_wire_put_int(w, (uint64_t)task->root, 4);
}

static ncclResult_t send_offer(struct tt_captured *captured, const struct tt_captured_step *step)
{
  unsigned char *message;
  TT_TRY(TT_CALLOC(&message, TT_CAPTURED_OFFER_BYTES));
  struct tt_wire_writer w = {.data = message, .size = TT_CAPTURED_OFFER_BYTES};
  put_signature(&w, step->task);
  if (step->input.bytes > 0) tt_user_range_put(&w, &step->input);
  if (step->output.bytes > 0) tt_user_range_put(&w, &step->output);
  ncclResult_t result = tt_captured_tell(captured, TT_CAPTURED_OFFER, step->number, message, w.at);
  free(message);
  return result;
}

/* What another rank told. */
struct theirs {
  struct tt_user_range input, output;
  char why[TT_USER_WHY]; /* against it */
};

static void free_theirs(struct theirs *theirs, int nranks)
{
  for (int r = 0; theirs != NULL && r < nranks; r++) {
    tt_user_range_free(&theirs[r].input);
    tt_user_range_free(&theirs[r].output);
  }
  free(theirs);
}

static ncclResult_t malformed(int rank)
{
  return TT_FAIL(ncclRemoteError, "rank %d sent a malformed message about a captured operation", rank);
}

static ncclResult_t read_offer(const struct ncclComm *comm, const struct tt_captured_step *step,
                               const struct tt_captured_note *note, struct theirs *theirs)
{
  struct tt_wire_reader r = {.data = note->data, .size = note->bytes};
  struct tt_mapped_touched touched = tt_mapped_touched(comm, step->task, note->rank);
  unsigned char own[20];
  struct tt_wire_writer w = {.data = own, .size = sizeof own};
  put_signature(&w, step->task);
  const unsigned char *signature = tt_wire_get(&r, sizeof own);
  if (signature != NULL && memcmp(signature, own, sizeof own) != 0) {
    snprintf(theirs->why, sizeof theirs->why, "it is another operation there");
    return ncclSuccess;
  }
  if (touched.input > 0) tt_user_range_get(&r, &theirs->input);
  if (touched.output > 0) tt_user_range_get(&r, &theirs->output);
  if (r.bad || r.at != note->bytes || theirs->input.bytes != touched.input || theirs->output.bytes != touched.output)
    return malformed(note->rank);
  memcpy(theirs->why, theirs->input.why[0] != '\0' ? theirs->input.why : theirs->output.why, sizeof theirs->why);
  return ncclSuccess;
}

static ncclResult_t read_text(const struct tt_captured_note *note, char text[TT_USER_WHY])
{
  struct tt_wire_reader r = {.data = note->data, .size = note->bytes};
  tt_wire_get_text(&r, text, TT_USER_WHY);
  return r.bad ? malformed(note->rank) : ncclSuccess;
}

static void say_refused(const struct ncclComm *comm, const struct tt_captured_step *step, int rank, const char *why)
{
  TT_INFO(TT_REG, "rank %d: %s (collective %llu) is captured, and copied through buffers, since on rank %d (%s): %s",
          comm->rank, tt_collective_name(step->task->collective), (unsigned long long)step->number, rank,
          comm->env->peers[rank].host, why);
}

/* The first rank with something against it, or -1. */
static int find_refusal(const struct ncclComm *comm, const struct theirs *theirs)
{
  for (int r = 0; r < comm->nranks; r++)
    if (theirs[r].why[0] != '\0') return r;
  return -1;
}

/* ---- One collective ---- */

struct imports {
  struct tt_user_import **all;
  int count;
};

static ncclResult_t map_range(const struct ncclComm *comm, int rank, const struct tt_user_range *range, void **at,
                              struct imports *imports)
{
  if (range->bytes == 0) return ncclSuccess;
  TT_TRY(tt_user_range_map(comm->env->users, rank, range, &imports->all[imports->count], at));
  imports->count++;
  return ncclSuccess;
}

static ncclResult_t map_all(const struct ncclComm *comm, struct tt_captured_step *step, const struct theirs *theirs,
                            struct imports *imports)
{
  for (int r = 0; r < comm->nranks; r++) {
    if (r == comm->rank) continue;
    TT_TRY(map_range(comm, r, &theirs[r].input, &step->inputs[r], imports));
    TT_TRY(map_range(comm, r, &theirs[r].output, &step->outputs[r], imports));
  }
  if (step->input.bytes > 0) step->inputs[comm->rank] = (void *)step->task->input;
  if (step->output.bytes > 0) step->outputs[comm->rank] = step->task->output;
  return ncclSuccess;
}

/* Offers of all: theirs[rank]. This rank's own is only its reason. */
static ncclResult_t hear_offers(struct tt_captured *captured, const struct tt_captured_step *step,
                                struct tt_captured_note **notes, struct theirs *theirs)
{
  const struct ncclComm *comm = captured->comm;
  ncclResult_t result = ncclSuccess;
  const char *own = step->input.why[0] != '\0' ? step->input.why : step->output.why;
  TT_TRY(tt_captured_wait(captured, step, 1u << TT_CAPTURED_OFFER | 1u << TT_CAPTURED_DECLINE, notes));
  memcpy(theirs[comm->rank].why, own, TT_USER_WHY);
  for (int r = 0; r < comm->nranks; r++) {
    if (r != comm->rank && result == ncclSuccess)
      result = notes[r]->kind == TT_CAPTURED_OFFER ? read_offer(comm, step, notes[r], &theirs[r])
                                                   : read_text(notes[r], theirs[r].why);
    free(notes[r]);
  }
  return result;
}

/* Ranks tell each other whether they have mapped all. `why` is this rank's own reason, then the first rank's that has
 * one. *rank: that rank, or -1. */
static ncclResult_t exchange_verdicts(struct tt_captured *captured, const struct tt_captured_step *step,
                                      struct tt_captured_note **notes, char why[TT_USER_WHY], int *rank)
{
  const struct ncclComm *comm = captured->comm;
  ncclResult_t result = ncclSuccess;
  char text[TT_USER_WHY];
  TT_TRY(tt_captured_tell(captured, TT_CAPTURED_VERDICT, step->number, why, TT_USER_WHY));
  TT_TRY(tt_captured_wait(captured, step, 1u << TT_CAPTURED_VERDICT, notes));
  *rank = why[0] != '\0' ? comm->rank : -1;
  for (int r = 0; r < comm->nranks; r++) {
    if (r == comm->rank) continue;
    if (result == ncclSuccess) result = read_text(notes[r], text);
    free(notes[r]);
    if (result != ncclSuccess || text[0] == '\0' || (*rank >= 0 && *rank < r)) continue;
    *rank = r;
    memcpy(why, text, TT_USER_WHY);
  }
  return result;
}

static ncclResult_t map_together(struct tt_captured *captured, struct tt_captured_step *step,
                                 struct tt_captured_note **notes, const struct theirs *theirs, struct imports *imports)
{
  const struct ncclComm *comm = captured->comm;
  char why[TT_USER_WHY] = "";
  int refused;
  tt_log_hush(true);
  ncclResult_t mapped = map_all(comm, step, theirs, imports);
  tt_log_hush(false);
  if (mapped != ncclSuccess) snprintf(why, sizeof why, "%.*s", TT_USER_WHY - 1, tt_log_thread_error());
  if (mapped != ncclSuccess && why[0] == '\0') snprintf(why, sizeof why, "error %d", (int)mapped);
  TT_TRY(exchange_verdicts(captured, step, notes, why, &refused));
  if (refused >= 0) {
    say_refused(comm, step, refused, why);
    return ncclSuccess;
  }
  const struct tt_user_range *ranges[] = {&step->input, &step->output};
  int count = imports->count;
  imports->count = 0; /* whatever comes of the next call */
  TT_TRY(tt_user_graph_hold(comm->env->users, step->task->stream, captured->graph, imports->all, count, ranges));
  step->mapped = true;
  TT_INFO(TT_REG, "rank %d: %s (collective %llu) is captured, and in place", comm->rank,
          tt_collective_name(step->task->collective), (unsigned long long)step->number);
  return ncclSuccess;
}

static ncclResult_t agree_on(struct tt_captured *captured, struct tt_captured_step *step)
{
  const struct ncclComm *comm = captured->comm;
  size_t n = (size_t)comm->nranks;
  struct tt_captured_note **notes = NULL;
  struct theirs *theirs = NULL;
  struct imports imports = {0};
  ncclResult_t result;
  tt_captured_pass(captured, step->number);
  TT_TRY_GOTO(TT_CALLOC(&notes, n), result, out);
  TT_TRY_GOTO(TT_CALLOC(&theirs, n), result, out);
  TT_TRY_GOTO(TT_CALLOC(&imports.all, 2 * n), result, out);
  TT_TRY_GOTO(hear_offers(captured, step, notes, theirs), result, out);
  int refused = find_refusal(comm, theirs);
  if (refused >= 0)
    say_refused(comm, step, refused, theirs[refused].why);
  else
    result = map_together(captured, step, notes, theirs, &imports);
out:
  for (int i = 0; i < imports.count; i++) tt_user_import_end(comm->env->users, imports.all[i]);
  free(imports.all);
  free_theirs(theirs, comm->nranks);
  free(notes);
  return result;
}

/* In words of their own: an offer has no place for a reason where the others touch nothing of this rank's, as in a
 * scatter or gather. */
static ncclResult_t refuse_all(struct tt_captured *captured, const char *text)
{
  const struct ncclComm *comm = captured->comm;
  char why[TT_USER_WHY] = "";
  snprintf(why, sizeof why, "%s", text);
  for (int s = 0; s < captured->nsteps; s++) {
    const struct tt_captured_step *step = &captured->steps[s];
    if (step->task == NULL) continue;
    say_refused(comm, step, comm->rank, why);
    TT_TRY(tt_captured_tell(captured, TT_CAPTURED_DECLINE, step->number, why, sizeof why));
  }
  return ncclSuccess;
}

ncclResult_t tt_captured_agree(struct ncclComm *comm)
{
  struct tt_captured *captured = comm->captured;
  tt_user_graphs_reap(comm->env->users);
  if (captured->nsteps > 0 && !tt_captured_here(comm, captured->stream, captured->graph))
    return refuse_all(captured, "its stream is one of the calling thread only");
  for (int s = 0; s < captured->nsteps; s++)
    if (captured->steps[s].task != NULL) TT_TRY(send_offer(captured, &captured->steps[s]));
  for (int s = 0; s < captured->nsteps; s++)
    if (captured->steps[s].task != NULL) TT_TRY(agree_on(captured, &captured->steps[s]));
  return ncclSuccess;
}

bool tt_captured_next(struct ncclComm *comm, void ***inputs, void ***outputs)
{
  struct tt_captured *captured = comm->captured;
  if (captured == NULL) return false;
  tt_captured_pass(captured, atomic_load(&comm->collectives) + 1);
  tt_user_graphs_reap(comm->env->users);
  if (captured->next >= captured->nsteps) return false;
  const struct tt_captured_step *step = &captured->steps[captured->next++];
  if (!step->mapped) return false;
  *inputs = step->inputs;
  *outputs = step->outputs;
  return true;
}
