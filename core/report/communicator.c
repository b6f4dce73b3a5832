/* See communicator.h. */
#include "report/communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/check.h"
#include "base/timer.h"
#include "plan/monitor.h"
#include "program/signature.h"
#include "report/memory.h"
#include "report/network.h"

/* Connections that are being made and are listed; the rest are counted. */
#define LISTED 64
/* Ranks say what they are at when they have waited a second; before that silence means nothing. */
#define HEARD_NS 1500000000ull

const char *tt_report_host(const struct ncclComm *comm, int peer)
{
  if (peer < 0 || peer >= comm->nranks) return "a network that reduces";
  return comm->env != NULL ? comm->env->peers[peer].host : "";
}

bool tt_report_note_round(struct ncclComm *comm)
{
  struct tt_pending_group group;
  if (atomic_load(&comm->stage) != TT_STAGE_READY) return false;
  tt_pending_look(comm, 0, &group, NULL, NULL);
  comm->report_passes = group.passes;
  return group.phase == TT_PENDING_RUNNING && group.idle_since == 0;
}

static const char *stage_text(int stage)
{
  static const char *const texts[] = {
      [TT_STAGE_JOINING] = "meets the other ranks",
      [TT_STAGE_AGREEING] = "compares settings and networks with the other ranks",
      [TT_STAGE_SHARING] = "makes its memory and learns who shares its host",
      [TT_STAGE_SEARCHING] = "looks at its machine, and learns what the others found of theirs",
      [TT_STAGE_TUNING] = "prepares its choices, and a collnet if there is one",
      [TT_STAGE_LAST_BARRIER] = "waits until all ranks are as far",
      [TT_STAGE_ENDING] = "is being destroyed",
  };
  return stage >= 0 && stage < (int)TT_COUNT(texts) ? texts[stage] : NULL;
}

static const char *state_of(struct ncclComm *comm, int stage, bool running)
{
  if (stage == TT_STAGE_ENDING) return "ending";
  if (stage != TT_STAGE_READY) return "init";
  if (atomic_load(&comm->abort)) return "aborted";
  if (atomic_load(&comm->revoked)) return "revoked";
  if (atomic_load(&comm->async_error) != ncclSuccess) return "failed";
  if (running) return "in operation";
  if (atomic_load(&comm->host_pending) > 0) return "queued";
  return atomic_load(&comm->finalized) ? "finalized" : "idle";
}

static void write_error(struct tt_writer *writer, struct ncclComm *comm)
{
  char text[sizeof comm->error_text] = "";
  ncclResult_t result = (ncclResult_t)atomic_load(&comm->async_error);
  if (result == ncclSuccess) return;
  pthread_mutex_lock(&comm->error_lock);
  snprintf(text, sizeof text, "%s", comm->error_text);
  pthread_mutex_unlock(&comm->error_lock);
  tt_writer_signed(writer, "error", result);
  tt_writer_text(writer, "error_text", text);
}

struct connecting {
  struct tt_writer *writer;
  struct ncclComm *comm;
  int listed, more;
};

static void write_connecting(void *context, const struct tt_connect_state *state)
{
  struct connecting *connecting = context;
  if (state->up) return;
  if (connecting->listed == LISTED) {
    connecting->more++;
    return;
  }
  struct tt_writer *writer = connecting->writer;
  if (connecting->listed++ == 0) tt_writer_open(writer, "connecting", '[');
  tt_writer_open(writer, NULL, '{');
  tt_writer_signed(writer, "peer", state->connector->peer);
  tt_writer_text(writer, "host", tt_report_host(connecting->comm, state->connector->peer));
  tt_writer_signed(writer, "channel", state->connector->channel);
  tt_writer_text(writer, "direction", state->connector->send ? "send" : "receive");
  tt_writer_text(writer, "progress", state->progress != NULL ? state->progress : "not begun");
  tt_writer_close(writer, '{');
}

static void write_connections_being_made(struct tt_writer *writer, struct ncclComm *comm)
{
  struct connecting connecting = {.writer = writer, .comm = comm};
  if (comm->connect == NULL) return;
  tt_connect_look(comm->connect, write_connecting, &connecting);
  if (connecting.listed == 0) return;
  tt_writer_close(writer, '[');
  if (connecting.more > 0) tt_writer_signed(writer, "connecting_more", connecting.more);
}

/* A device with streams knows one work that waits, if any does. */
static void write_device_wait(struct tt_writer *writer, struct ncclComm *comm, const struct tt_device_status *status)
{
  char text[300];
  tt_signature_describe(&status->signature, text, sizeof text);
  tt_writer_open(writer, "device_waits", '{');
  tt_writer_text(writer, "operation", text);
  tt_writer_text(writer, "direction", status->sending ? "send" : "receive");
  tt_writer_signed(writer, "peer", status->peer);
  tt_writer_text(writer, "host", tt_report_host(comm, status->peer));
  tt_writer_close(writer, '{');
}

static void write_all(struct tt_writer *writer, struct ncclComm *comm, const struct tt_device_status *status)
{
  tt_writer_format(writer, "device", "%s %d", comm->device->name, comm->device_index);
  tt_writer_signed(writer, "hosts", comm->nnodes);
  write_error(writer, comm);
  tt_writer_number(writer, "op_count", atomic_load(&comm->op_count));
  uint32_t on_streams = atomic_load(&comm->host_pending);
  if (on_streams > 0) tt_writer_number(writer, "groups_on_host_streams", on_streams);
  uint64_t sequence, still = tt_report_operations(writer, comm, &sequence);
  bool stalled = status->stalled != 0, message = status->signature.collective == TT_FUNC_SEND_RECV;
  if (stalled) write_device_wait(writer, comm, status);
  if (comm->health != NULL && ((stalled && !message) || still > HEARD_NS)) tt_report_late(writer, comm, sequence);
  write_connections_being_made(writer, comm);
  tt_report_network(writer, comm);
  tt_report_memory(writer, comm);
}

void tt_report_communicator(struct tt_writer *writer, struct ncclComm *comm)
{
  int stage = atomic_load(&comm->stage);
  struct tt_pending_group group = {0};
  struct tt_device_status status = {0};
  if (stage == TT_STAGE_READY) {
    tt_pending_look(comm, 0, &group, NULL, NULL);
    if (!tt_monitor_look(comm, &status)) status.stalled = 0;
  }
  tt_writer_open(writer, NULL, '{');
  tt_writer_format(writer, "comm", "%p", (void *)comm);
  tt_writer_text(writer, "name", comm->name);
  tt_writer_format(writer, "comm_id", "0x%llx", (unsigned long long)comm->id_hash);
  tt_writer_signed(writer, "rank", comm->rank);
  tt_writer_signed(writer, "nranks", comm->nranks);
  tt_writer_text(writer, "state", state_of(comm, stage, group.phase != TT_PENDING_NONE || status.stalled));
  if (stage != TT_STAGE_READY)
    tt_writer_text(writer, "stage", stage_text(stage));
  else
    write_all(writer, comm, &status);
  tt_writer_close(writer, '{');
}
