/* See network.h. */
#include "report/network.h"

#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "report/communicator.h"

/* Connections that are listed; the sums are of all. */
#define LISTED 64

/* ---- The proxy's figures ---- */

struct connections {
  struct tt_writer *writer;
  struct ncclComm *comm;
  int listed, more;
  struct tt_proxy_figures sums[2]; /* of receives, and of sends */
};

static void write_figures(struct tt_writer *writer, const struct tt_proxy_figures *figures)
{
  tt_writer_number(writer, "steps", figures->steps);
  tt_writer_number(writer, "bytes", figures->bytes);
  tt_writer_mean(writer, "slot_fill_percent", 100 * figures->bytes, figures->room);
  tt_writer_mean(writer, "requests_open_mean", figures->open, figures->steps);
  tt_writer_mean(writer, "step_usec_mean", figures->ns / 1000, figures->timed);
  tt_writer_number(writer, "step_usec_most", figures->most_ns / 1000);
}

static void add_figures(struct tt_proxy_figures *sum, const struct tt_proxy_figures *figures)
{
  sum->steps += figures->steps;
  sum->bytes += figures->bytes;
  sum->room += figures->room;
  sum->open += figures->open;
  sum->timed += figures->timed;
  sum->ns += figures->ns;
  if (figures->most_ns > sum->most_ns) sum->most_ns = figures->most_ns;
}

static void write_connection(void *context, const struct tt_proxy_figures *figures)
{
  struct connections *connections = context;
  struct tt_writer *writer = connections->writer;
  add_figures(&connections->sums[figures->send], figures);
  if (connections->listed == LISTED) {
    connections->more++;
    return;
  }
  if (connections->listed++ == 0) tt_writer_open(writer, "connections", '[');
  tt_writer_open(writer, NULL, '{');
  tt_writer_signed(writer, "peer", figures->peer);
  tt_writer_text(writer, "host", tt_report_host(connections->comm, figures->peer));
  tt_writer_text(writer, "direction", figures->send ? "send" : "receive");
  tt_writer_text(writer, "via", figures->label);
  tt_writer_format(writer, "net_comm", "%p", figures->comm);
  write_figures(writer, figures);
  tt_writer_close(writer, '{');
}

/* What is announced for a stream may begin much later, so how long it is under way says nothing. */
static uint64_t busy_ns(const struct ncclComm *comm, const struct tt_proxy_state *state)
{
  return comm->device->features & TT_DEVICE_STREAMS ? 0 : state->busy_ns;
}

void tt_report_network(struct tt_writer *writer, struct ncclComm *comm)
{
  struct tt_proxy_state state;
  struct connections connections = {.writer = writer, .comm = comm};
  if (comm->env == NULL || comm->env->proxy == NULL) return;
  bool looked = tt_proxy_look(comm->env->proxy, NULL, &state);
  tt_writer_open(writer, "network", '{');
  tt_writer_text(writer, "name", comm->net != NULL ? tt_net_name(comm->net) : NULL);
  if (looked) looked = tt_proxy_each_figures(comm->env->proxy, write_connection, &connections);
  if (connections.listed > 0) tt_writer_close(writer, '[');
  if (connections.more > 0) tt_writer_signed(writer, "connections_more", connections.more);
  tt_writer_flag(writer, "busy", !looked);
  if (looked) tt_writer_signed(writer, "active_connections", state.active);
  if (looked) tt_writer_number(writer, "busy_usec", busy_ns(comm, &state) / 1000);
  for (int send = 1; send >= 0 && connections.listed > 0; send--) {
    tt_writer_open(writer, send ? "sends" : "receives", '{');
    write_figures(writer, &connections.sums[send]);
    tt_writer_close(writer, '{');
  }
  tt_writer_close(writer, '{');
}

/* ---- The plugin's counters ---- */

struct counted {
  struct tt_writer *writer;
  bool devices; /* they are listed first, connections the second time */
  int listed, more;
};

static void write_count(struct tt_writer *writer, const struct tt_counters *counters, uint64_t bit, const char *key,
                        uint64_t value)
{
  if (counters->counts & bit) tt_writer_number(writer, key, value);
}

static void write_counters(void *context, const struct tt_counters *counters)
{
  struct counted *counted = context;
  struct tt_writer *writer = counted->writer;
  if ((counters->what == TT_COUNTERS_DEVICE) != counted->devices) return;
  if (counted->listed == LISTED) {
    counted->more++;
    return;
  }
  if (counted->listed++ == 0) tt_writer_open(writer, counted->devices ? "devices" : "connections", '[');
  tt_writer_open(writer, NULL, '{');
  tt_writer_text(writer, "device", counters->name);
  tt_writer_signed(writer, "number", counters->dev);
  if (!counted->devices) {
    tt_writer_format(writer, "net_comm", "%p", counters->comm);
    tt_writer_text(writer, "direction", counters->what == TT_COUNTERS_SEND ? "send" : "receive");
    tt_writer_text(writer, "peer_address", counters->peer);
  }
  write_count(writer, counters, TT_COUNTS_BYTES, "bytes", counters->bytes);
  write_count(writer, counters, TT_COUNTS_OPERATIONS, "operations", counters->operations);
  write_count(writer, counters, TT_COUNTS_RETRIES, "retries", counters->retries);
  write_count(writer, counters, TT_COUNTS_REFUSED, "refused", counters->refused);
  write_count(writer, counters, TT_COUNTS_CLEAR_TO_SENDS, "clear_to_sends", counters->clear_to_sends);
  write_count(writer, counters, TT_COUNTS_CLEAR_TO_SEND_WAITS, "clear_to_send_waits", counters->clear_to_send_waits);
  write_count(writer, counters, TT_COUNTS_QUEUE_DEPTH, "queue_depth", counters->queue_depth);
  write_count(writer, counters, TT_COUNTS_QUEUE_DEPTH, "queue_depth_most", counters->queue_depth_most);
  tt_writer_close(writer, '{');
}

void tt_report_counters(struct tt_writer *writer, struct tt_net *net)
{
  tt_writer_open(writer, NULL, '{');
  tt_writer_text(writer, "name", tt_net_name(net));
  tt_writer_text(writer, "path", tt_net_path(net));
  tt_writer_flag(writer, "counts", (tt_net_can(net) & TT_NET_CAN_COUNT) != 0);
  for (int connections = 0; connections < 2; connections++) {
    struct counted counted = {.writer = writer, .devices = !connections};
    if (tt_net_read_counters(net, write_counters, &counted) != ncclSuccess) break; /* which was logged */
    if (counted.listed > 0) tt_writer_close(writer, '[');
    if (counted.more > 0) tt_writer_signed(writer, "connections_more", counted.more);
  }
  tt_writer_close(writer, '{');
}

/* ---- Sums ---- */

struct sums {
  tuttiNetStats_t *stats;
  const void **comms; /* of the plugin, those that carry this communicator's connections; several may share one */
  size_t count, room;
  bool failed;
};

static void add_connection(void *context, const struct tt_proxy_figures *figures)
{
  struct sums *sums = context;
  tuttiNetTraffic_t *traffic = figures->send ? &sums->stats->send : &sums->stats->recv;
  traffic->messages += figures->steps;
  traffic->bytes += figures->bytes;
  traffic->slotBytes += figures->room;
  traffic->open += figures->open;
  traffic->timed += figures->timed;
  traffic->ns += figures->ns;
  traffic->mostNs = TT_MAX(traffic->mostNs, figures->most_ns);
  if (sums->count == sums->room) {
    size_t room = 2 * sums->room + 16;
    const void **comms = realloc(sums->comms, room * sizeof(*comms));
    sums->failed |= comms == NULL;
    if (comms == NULL) return;
    sums->comms = comms;
    sums->room = room;
  }
  sums->comms[sums->count++] = figures->comm;
}

static int compare(const void *a, const void *b)
{
  uintptr_t left = (uintptr_t) * (const void *const *)a, right = (uintptr_t) * (const void *const *)b;
  return left < right ? -1 : left > right;
}

static void add_counters(void *context, const struct tt_counters *counters)
{
  struct sums *sums = context;
  if (sums->count == 0 || counters->comm == NULL ||
      bsearch(&counters->comm, sums->comms, sums->count, sizeof(*sums->comms), compare) == NULL)
    return;
  tuttiNetTraffic_t *traffic = counters->what == TT_COUNTERS_SEND ? &sums->stats->send : &sums->stats->recv;
  traffic->counts |= counters->counts;
  traffic->retries += counters->retries;
  traffic->refused += counters->refused;
  traffic->clearToSends += counters->clear_to_sends;
  traffic->clearToSendWaits += counters->clear_to_send_waits;
  traffic->queueDepthMost = TT_MAX(traffic->queueDepthMost, counters->queue_depth_most);
}

ncclResult_t tt_report_sum_network(struct ncclComm *comm, tuttiNetStats_t *stats)
{
  tuttiNetStats_t found = {.size = stats->size};
  struct sums sums = {.stats = &found};
  struct tt_proxy_state state;
  ncclResult_t result = ncclSuccess;
  if (comm->env != NULL && comm->env->proxy != NULL && comm->net != NULL) {
    if (!tt_proxy_each_figures(comm->env->proxy, add_connection, &sums) ||
        !tt_proxy_look(comm->env->proxy, NULL, &state))
      result = ncclInProgress;
    else
      found.busyNs = busy_ns(comm, &state);
    if (sums.failed) result = TT_FAIL(ncclSystemError, "no memory for the list of a communicator's connections");
    if (sums.count > 0) qsort(sums.comms, sums.count, sizeof(*sums.comms), compare);
    if (result == ncclSuccess) result = tt_net_read_counters(comm->net, add_counters, &sums);
  }
  free(sums.comms);
  if (result == ncclSuccess) memcpy(stats, &found, TT_MIN(stats->size, sizeof found));
  return result;
}
