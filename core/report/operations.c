/* The report's part about operations: which are pending, what each waits for, and who is late. */
#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/timer.h"
#include "plan/exchange.h"
#include "program/emit.h"
#include "program/signature.h"
#include "report/communicator.h"

/* Operations that are listed, and ends of connections of one; the rest are counted. */
#define OPERATIONS 32
#define ENDS 64

struct operations {
  struct tt_writer *writer;
  struct ncclComm *comm;
  const struct tt_pending_group *group;
  int listed;
  uint64_t sequence; /* of the first of them that is a collective; TT_HEALTH_LATEST: none is */
};

static bool is_message(const struct tt_work *work)
{
  return work->signature.collective == TT_FUNC_SEND_RECV;
}

static void describe_message(const struct tt_work *work, char *text, size_t size)
{
  int to = tt_exchange_to(work), from = tt_exchange_from(work);
  int used = snprintf(text, size, "%s of %llu bytes", tt_collective_name(work->channels[0].program->collective),
                      (unsigned long long)work->signature.count);
  for (int sends = 1; sends >= 0; sends--) {
    int rank = sends ? to : from;
    if (rank < 0 || used < 0 || (size_t)used >= size) continue;
    used += snprintf(text + used, size - (size_t)used, " %s rank %d", sends ? "to" : "from", rank);
  }
}

static void describe(const struct tt_work *work, char *text, size_t size)
{
  const struct tt_program *program = work->channels[0].program;
  if (!is_message(work))
    tt_signature_describe(&work->signature, text, size);
  else if (program->npeers == 0)
    snprintf(text, size, "Send and Recv of %llu bytes, of this rank to itself",
             (unsigned long long)work->signature.count);
  else
    describe_message(work, text, size);
}

static void write_what(struct tt_writer *writer, const struct tt_work *work)
{
  const struct tt_signature *signature = &work->signature;
  const struct tt_program *program = work->channels[0].program;
  bool message = is_message(work);
  int collective = message ? program->collective : signature->collective;
  size_t blocks = !message && tt_collective_has_blocks(collective) ? (size_t)program->nranks : 1;
  tt_writer_number(writer, "op_count", work->op_count);
  tt_writer_number(writer, "sequence", signature->sequence);
  tt_writer_text(writer, "collective", tt_collective_name(collective));
  tt_writer_number(writer, "count", signature->count);
  tt_writer_text(writer, "type", tt_datatype_name(signature->datatype));
  tt_writer_number(writer, "bytes", signature->count * tt_datatype_bytes(signature->datatype) * blocks);
  if (tt_collective_reduces(collective)) tt_writer_text(writer, "op", tt_op_name(signature->op));
  if (tt_collective_has_root(collective)) tt_writer_signed(writer, "root", signature->root);
  if (message && program->npeers > 0) tt_writer_signed(writer, "peer", program->peers[0]);
  tt_writer_text(writer, "algorithm", tt_algorithm_name(program->algorithm));
  tt_writer_text(writer, "protocol", tt_protocol_name(work->protocol));
  tt_writer_number(writer, "channels", work->nchannels);
}

/* The first thing that the operation waits for, in a sentence. */
static void write_sentence(const struct operations *operations, const struct tt_pending_operation *operation)
{
  const struct tt_pending_end_state *end = NULL;
  for (int e = 0; e < operation->nends && end == NULL; e++)
    if (operation->ends[e].awaited) end = &operation->ends[e];
  const char *text = operations->group->phase == TT_PENDING_CONNECTING ? "waits for connections"
                     : operations->group->phase == TT_PENDING_GATED
                         ? "waits for other ranks of this process, at the launch gate"
                     : operation->waits_its_turn ? "waits for the operation before it"
                                                 : "goes on";
  if (end == NULL || operation->waits_its_turn) {
    tt_writer_text(operations->writer, "state", text);
    return;
  }
  int peer = end->connector->peer;
  tt_writer_format(operations->writer, "state", "%s rank %d on %s: channel %d, step %llu of %llu",
                   end->send ? "waits for room to send to" : "waits to receive from", peer,
                   tt_report_host(operations->comm, peer), end->channel, (unsigned long long)end->done,
                   (unsigned long long)end->steps);
}

static void write_end(struct tt_writer *writer, struct ncclComm *comm, const struct tt_pending_end_state *end)
{
  const struct tt_connector *connector = end->connector;
  char label[96] = "";
  if (connector->peer >= 0) tt_transport_get(connector->transport)->label(comm->env, connector, label, sizeof label);
  tt_writer_open(writer, NULL, '{');
  tt_writer_signed(writer, "peer", connector->peer);
  tt_writer_text(writer, "host", tt_report_host(comm, connector->peer));
  tt_writer_text(writer, "direction", end->send ? "send" : "receive");
  tt_writer_signed(writer, "channel", end->channel);
  tt_writer_flag(writer, "awaited", end->awaited);
  tt_writer_number(writer, "steps_done", end->done);
  tt_writer_number(writer, "steps", end->steps);
  if (label[0] != '\0') tt_writer_text(writer, "via", label);
  struct tt_proxy_state state;
  if (connector->proxied != NULL && tt_proxy_look(comm->env->proxy, connector->proxied, &state)) {
    tt_writer_number(writer, "requests_open", state.posted - state.done);
    tt_writer_number(writer, "requests_to_come", state.expected - state.posted);
  }
  tt_writer_close(writer, '{');
}

/* The ends that are not through: those that are awaited first, as far as there is room. */
static void write_ends(struct tt_writer *writer, struct ncclComm *comm, const struct tt_pending_operation *operation)
{
  int through = 0, listed = 0;
  for (int e = 0; e < operation->nends; e++) through += operation->ends[e].done == operation->ends[e].steps;
  int left = operation->nends - through;
  tt_writer_signed(writer, "connections_through", through);
  if (left == 0) return;
  tt_writer_open(writer, "connections", '[');
  for (int awaited = 1; awaited >= 0; awaited--)
    for (int e = 0; e < operation->nends && listed < ENDS; e++) {
      const struct tt_pending_end_state *end = &operation->ends[e];
      if (end->awaited != (awaited != 0) || end->done == end->steps) continue;
      write_end(writer, comm, end);
      listed++;
    }
  tt_writer_close(writer, '[');
  if (listed < left) tt_writer_signed(writer, "connections_more", left - listed);
}

static void write_operation(void *context, const struct tt_pending_operation *operation)
{
  struct operations *operations = context;
  struct tt_writer *writer = operations->writer;
  char text[300];
  if (operations->sequence == TT_HEALTH_LATEST && !is_message(operation->work))
    operations->sequence = operation->work->signature.sequence;
  describe(operation->work, text, sizeof text);
  if (operations->listed++ == 0) tt_writer_open(writer, "operations", '[');
  tt_writer_open(writer, NULL, '{');
  tt_writer_text(writer, "operation", text);
  write_sentence(operations, operation);
  write_what(writer, operation->work);
  if (operation->nends > 0 && !operation->waits_its_turn) write_ends(writer, operations->comm, operation);
  tt_writer_close(writer, '{');
}

/* A thread that waits looks every millisecond or so. */
#define STUCK_NS 1000000000ull

/* Returns how long nothing has moved. */
static uint64_t write_times(struct tt_writer *writer, const struct ncclComm *comm, const struct tt_pending_group *group)
{
  uint64_t now = tt_timer_ns(), since = group->since, looked = TT_MAX(group->looked, group->since);
  bool runs = group->phase == TT_PENDING_RUNNING, moves = runs && group->idle_since == 0;
  bool stuck = runs && (moves ? group->passes == comm->report_passes : now > looked && now - looked > STUCK_NS);
  if (moves) since = stuck ? looked : now;
  if (runs && !moves) since = group->idle_since;
  uint64_t still = now > since ? now - since : 0;
  tt_writer_seconds(writer, "pending_seconds", now > group->since ? now - group->since : 0);
  tt_writer_seconds(writer, "still_seconds", still);
  tt_writer_text(writer, "thread",
                 stuck   ? "does not come round: it is in a call of a network plugin, or not scheduled"
                 : moves ? "moves data"
                         : "waits");
  return still;
}

uint64_t tt_report_operations(struct tt_writer *writer, struct ncclComm *comm, uint64_t *sequence)
{
  struct tt_pending_group group;
  struct operations operations = {.writer = writer, .comm = comm, .group = &group, .sequence = TT_HEALTH_LATEST};
  tt_pending_look(comm, OPERATIONS, &group, write_operation, &operations);
  if (operations.listed > 0) tt_writer_close(writer, '[');
  *sequence = operations.sequence;
  if (group.phase == TT_PENDING_NONE) return 0;
  tt_writer_signed(writer, "operations_complete", group.complete);
  if (group.operations - group.complete > operations.listed)
    tt_writer_signed(writer, "operations_more", group.operations - group.complete - operations.listed);
  uint64_t still = write_times(writer, comm, &group);
  return operations.sequence != TT_HEALTH_LATEST ? still : 0;
}

/* Ranks that have said nothing of a collective are told from those that have none to say it of by the time that went
 * by, which is the caller's to know. */
void tt_report_late(struct tt_writer *writer, struct ncclComm *comm, uint64_t sequence)
{
  uint64_t *reached = calloc((size_t)comm->nranks, sizeof *reached);
  int *late = calloc((size_t)comm->nranks, sizeof *late), nlate = 0;
  if (reached != NULL && late != NULL) {
    uint64_t begun = tt_health_look(comm->health, reached), waits_in = sequence < begun ? sequence + 1 : begun;
    for (int r = 0; r < comm->nranks; r++)
      if (reached[r] < waits_in) late[nlate++] = r;
    tt_writer_number(writer, "collectives_begun", begun);
    tt_writer_list(writer, "not_heard_of", late, nlate);
  }
  free(reached);
  free(late);
}
