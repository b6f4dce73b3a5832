/* What send and receive comms share: rails, queue pairs, completions, the socket, and how trouble is found and told. */
#include "net_ib.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "gid.h"

#define SEND_DEPTH 256   /* requests on a send queue: of data */
#define CLEAR_DEPTH 64   /* and of clear-to-send entries */
#define LOOP_DEPTH 64    /* and of flushes */
#define INLINE_BYTES 256 /* at most; what is larger is as quick by the NIC's own reading */
#define POLL 16          /* completions at once */
#define LOOK_AROUND 64   /* calls of progress between two looks at the socket */
/* Where others can take over for a port without a link: how long it may be without, as for a moment ports often are. */
#define GRACE_MS 500

/* ---- wr_id: what, where, and how many requests of the queue are over with it ---- */

static uint64_t pack(struct tt_ib_done what, uint32_t count)
{
  return (uint64_t)count << 32 | (uint64_t)what.work << 24 | (uint64_t)what.qp << 16 | (uint64_t)what.slot << 8 |
         (uint64_t)what.piece;
}

static struct tt_ib_done unpack(uint64_t id)
{
  return (struct tt_ib_done){.work = (enum tt_ib_work)(id >> 24 & 0xff),
                             .qp = (int)(id >> 16 & 0xff),
                             .slot = (int)(id >> 8 & 0xff),
                             .piece = (int)(id & 0xff)};
}

/* ---- Making and ending ---- */

static ncclResult_t make_rail(struct tt_ib_rail *rail, struct tt_ib_port *port, void *user, int entries, void *memory,
                              size_t bytes)
{
  rail->port = port;
  rail->cq = tt_ib_verbs(NULL)->create_cq(port->nic->context, entries, user, NULL, 0);
  if (!rail->cq)
    return TT_FAIL(ncclSystemError,
                   "net ib: no completion queue of %d entries on %s: %s; fewer queue pairs need less "
                   "(NCCL_IB_QPS_PER_CONNECTION)",
                   entries, port->name, strerror(errno));
  return tt_ib_register_own(port, memory, bytes, &rail->mr);
}

ncclResult_t tt_ib_link_make(struct tt_ib_link *link, const struct tt_ib_hooks *hooks, bool sends,
                             const struct tt_ib_device *device, int qps, int pieces, void *memory, size_t bytes)
{
  uint32_t depth = sends ? SEND_DEPTH : CLEAR_DEPTH, receives = sends ? 1 : (uint32_t)(TT_IB_SLOTS * pieces);
  int on_a_rail = (qps + device->count - 1) / device->count;
  ncclResult_t result = ncclSuccess;
  tt_ib_comm_counts(1);
  link->hooks = hooks;
  link->device = device;
  link->sends = sends;
  link->fd = -1;
  link->rails = device->count;
  link->pieces = pieces;
  int64_t timeout_us = 4096ll << tt_param_int(TT_PARAM_NCCL_IB_TIMEOUT);
  link->patience_ms =
      (int)TT_MIN(timeout_us / 1000 * (1 + tt_param_int(TT_PARAM_NCCL_IB_RETRY_CNT)) / 1000 + 1, 3600000);
  for (int i = 0; i < link->rails; i++)
    TT_TRY_GOTO(make_rail(&link->rail[i], tt_ib_port(device->port[i]), link,
                          on_a_rail * (int)(depth + receives) + LOOP_DEPTH + 1, memory, bytes),
                result, out);
  for (int i = 0; i < qps; i++) {
    struct tt_ib_rail *rail = &link->rail[i % link->rails];
    if ((int)TT_MAX(depth, receives) > rail->port->nic->max_wr) {
      if ((int)receives > rail->port->nic->max_wr) {
        result = TT_FAIL(ncclInvalidUsage,
                         "net ib: messages in %d pieces need queues of %u receives, and %s has %d at most; lower "
                         "NCCL_IB_QPS_PER_CONNECTION",
                         pieces, receives, rail->port->name, rail->port->nic->max_wr);
        goto out;
      }
      depth = (uint32_t)rail->port->nic->max_wr;
    }
    TT_TRY_GOTO(tt_ib_qp_make(&link->qp[i], rail->port, rail->cq, link, depth, receives,
                              tt_param_int(TT_PARAM_NCCL_IB_USE_INLINE) ? INLINE_BYTES : 0),
                result, out);
    link->qp[i].rail = i % link->rails;
    link->qps = i + 1;
  }
  return ncclSuccess;
out:
  tt_ib_link_end(link);
  return result;
}

/* A queue pair that is connected with itself on each rail, for reads of the memory here. */
ncclResult_t tt_ib_link_add_loops(struct tt_ib_link *link)
{
  struct tt_ib_card own;
  memset(&own, 0, sizeof own);
  tt_ib_link_card(link, NULL, &own);
  for (int r = 0; r < link->rails; r++) {
    struct tt_ib_qp *qp = &link->qp[link->qps + r];
    TT_TRY(tt_ib_qp_make(qp, link->rail[r].port, link->rail[r].cq, link, LOOP_DEPTH, 1, 0));
    link->loops = r + 1;
    qp->rail = r;
    qp->remote_number = qp->qp->qp_num;
    struct tt_ib_path path = {.remote = own.rail[r]};
    TT_TRY(tt_ib_qp_connect(qp, &path));
  }
  return ncclSuccess;
}

void tt_ib_link_end(struct tt_ib_link *link)
{
  const struct tt_ib_verbs *verbs = tt_ib_verbs(NULL);
  tt_counted_close(&link->counted);
  for (int i = 0; i < link->qps + link->loops; i++) tt_ib_qp_end(&link->qp[i]);
  for (int i = 0; i < link->rails; i++) {
    struct tt_ib_rail *rail = &link->rail[i];
    if (rail->mr) verbs->dereg_mr(rail->mr);
    if (rail->cq) verbs->destroy_cq(rail->cq);
    memset(rail, 0, sizeof *rail);
  }
  tt_socket_close(&link->fd);
  free(link->notes);
  link->notes = NULL;
  link->qps = link->loops = link->rails = 0;
  tt_ib_comm_counts(-1);
}

void tt_ib_link_card(const struct tt_ib_link *link, const void *memory, struct tt_ib_card *card)
{
  card->memory = (uintptr_t)memory;
  card->rails = (uint32_t)link->rails;
  card->qps = (uint32_t)link->qps;
  card->pieces = (uint32_t)link->pieces;
  for (int i = 0; i < link->rails; i++) {
    const struct tt_ib_port *port = link->rail[i].port;
    struct tt_ib_wire_rail *rail = &card->rail[i];
    rail->gid = port->gid;
    rail->rkey = link->rail[i].mr->rkey;
    rail->lid = port->lid;
    rail->link_layer = port->link_layer;
    rail->mtu = port->mtu;
    snprintf(rail->name, sizeof rail->name, "%.26s port %d", port->name, port->number);
  }
  for (int i = 0; i < link->qps; i++) card->qp[i] = link->qp[i].qp->qp_num;
}

void tt_ib_link_met(struct tt_ib_link *link, int fd)
{
  union tt_address address;
  socklen_t bytes = sizeof address;
  link->fd = fd;
  tt_meeting_tune(fd);
  if (getpeername(fd, &address.sa, &bytes) == 0)
    tt_address_print(&address, link->peer);
  else
    strcpy(link->peer, "an unknown address");
}

ncclResult_t tt_ib_link_connect(struct tt_ib_link *link, const struct tt_ib_card *card, uint8_t traffic_class)
{
  link->remote = *card;
  if (card->rails < 1 || card->rails > TT_IB_RAILS || card->qps != (uint32_t)link->qps ||
      card->pieces != (uint32_t)link->pieces)
    return TT_FAIL(
        ncclInternalError,
        "net ib: the peer %s has %u devices in one, %u queue pairs and %u pieces a message, and this side %d, %d "
        "and %d; do both run the same version?",
        link->peer, card->rails, card->qps, card->pieces, link->rails, link->qps, link->pieces);
  for (int i = 0; i < link->qps; i++) {
    struct tt_ib_qp *qp = &link->qp[i];
    qp->remote_rail = i % (int)card->rails;
    qp->remote_number = card->qp[i];
    struct tt_ib_path path = {.traffic_class = traffic_class,
                              .service_level = card->service_level,
                              .flow_label = tt_ib_flow_label(card->connection, i),
                              .remote = card->rail[qp->remote_rail]};
    path.remote.name[sizeof path.remote.name - 1] = 0;
    if (path.remote.link_layer != qp->port->link_layer)
      return TT_FAIL(ncclInvalidUsage,
                     "net ib: %s port %d is %s, and %s of the peer %s is %s; NCCL_IB_HCA chooses devices of one kind",
                     qp->port->name, qp->port->number, tt_ib_link_name(qp->port->link_layer), path.remote.name,
                     link->peer, tt_ib_link_name(path.remote.link_layer));
    TT_TRY(tt_ib_qp_connect(qp, &path));
  }
  /* What NICs send again they do not tell; retries are what went another way after a port had failed. */
  link->counted = (struct tt_counted){
      .sends = link->sends,
      .dev = link->device->index,
      .comm = link,
      .name = link->device->name,
      .peer = link->peer,
      .counts = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS | TT_COUNTS_RETRIES | TT_COUNTS_REFUSED |
                TT_COUNTS_CLEAR_TO_SENDS | (link->sends ? TT_COUNTS_CLEAR_TO_SEND_WAITS : 0) | TT_COUNTS_QUEUE_DEPTH};
  tt_counted_open(&link->counted);
  return ncclSuccess;
}

/* ---- Failures ---- */

/* Both sides have an error then, with the cause. */
ncclResult_t tt_ib_link_fail(struct tt_ib_link *link, ncclResult_t result)
{
  struct tt_ib_note note = {.kind = TT_IB_FAILED, .value = (uint32_t)result};
  link->failed = result;
  if (link->told) return result;
  link->told = true;
  snprintf(note.text, sizeof note.text, "%s", tt_log_thread_error());
  tt_ib_note_send(link, &note);
  return result;
}

/* *saved: other ports have taken over where this queue pair goes. Else the caller fails. */
static ncclResult_t way_failed(struct tt_ib_link *link, int qp, const char *why, bool *saved)
{
  *saved = false;
  /* Reads of our own memory have no way; they go with the rail. */
  for (int i = 0; qp >= link->qps && i < link->qps; i++)
    if (link->qp[i].rail == link->qp[qp].rail) qp = i;
  if (qp >= link->qps) return ncclSuccess;
  return tt_ib_fail_over(link, qp, why, saved);
}

static ncclResult_t completion_failed(struct tt_ib_link *link, const struct ibv_wc *wc, const struct tt_ib_done *done)
{
  static const char *const works[] = {"writing data", "writing data", "telling the sender what to send", "receiving",
                                      "flushing what was received"};
  const struct tt_ib_qp *qp = &link->qp[TT_MIN(done->qp, link->qps + link->loops - 1)];
  struct tt_ib_status status = tt_ib_status(wc->status);
  char here[TT_IB_GID_TEXT], there[TT_IB_GID_TEXT];
  const struct tt_ib_wire_rail *remote = &link->remote.rail[qp->remote_rail];
  return tt_ib_link_fail(
      link,
      TT_FAIL(status.remote ? ncclRemoteError : ncclSystemError,
              "net ib: %s failed: %s (status %d, vendor error 0x%x) on %s port %d, queue pair %u, GID %s, to the peer "
              "%s, %s, queue pair %u, GID %s; %s",
              done->work < TT_COUNT(works) ? works[done->work] : "a request", status.words, (int)wc->status,
              wc->vendor_err, qp->port->name, qp->port->number, wc->qp_num, tt_ib_gid_print(&qp->port->gid, here),
              link->peer, remote->name, qp->remote_number, tt_ib_gid_print(&remote->gid, there), status.check));
}

/* ---- Posting ---- */

bool tt_ib_link_room(const struct tt_ib_link *link, int index, uint32_t count)
{
  const struct tt_ib_qp *qp = &link->qp[index];
  return qp->posted - qp->retired + count <= qp->depth;
}

ncclResult_t tt_ib_link_post(struct tt_ib_link *link, int index, struct ibv_send_wr *wr, struct tt_ib_done what,
                             bool tell)
{
  struct tt_ib_qp *qp = &link->qp[index];
  struct ibv_send_wr *bad;
  what.qp = index;
  uint32_t count = qp->posted + 1;
  /* The queue gets room only by completions that tell, so there is one in each quarter of it. */
  if (tell || count - qp->signaled >= qp->depth / 4) wr->send_flags |= IBV_SEND_SIGNALED;
  wr->wr_id = pack(what, count);
  int error = ibv_post_send(qp->qp, wr, &bad);
  if (error) {
    bool saved;
    TT_TRY(way_failed(link, index, strerror(error), &saved));
    if (saved) return ncclSuccess;
    return tt_ib_link_fail(link,
                           TT_FAIL(ncclSystemError, "net ib: %s port %d takes no more requests on queue pair %u: %s%s",
                                   qp->port->name, qp->port->number, qp->qp->qp_num, strerror(error),
                                   error == EIO ? "; the NIC was removed or failed, see the system log" : ""));
  }
  qp->posted = count;
  if (wr->send_flags & IBV_SEND_SIGNALED) qp->signaled = count;
  return ncclSuccess;
}

ncclResult_t tt_ib_link_post_receive(struct tt_ib_link *link, int index)
{
  struct tt_ib_qp *qp = &link->qp[index];
  struct ibv_recv_wr wr = {.wr_id = pack((struct tt_ib_done){.work = TT_IB_WORK_RECEIVE, .qp = index}, 0)}, *bad;
  int error = ibv_post_recv(qp->qp, &wr, &bad);
  if (!error) {
    qp->receives++;
    return ncclSuccess;
  }
  bool saved;
  TT_TRY(way_failed(link, index, strerror(error), &saved));
  if (saved) return ncclSuccess;
  return tt_ib_link_fail(link,
                         TT_FAIL(ncclSystemError, "net ib: %s port %d takes no more receives on queue pair %u: %s",
                                 qp->port->name, qp->port->number, qp->qp->qp_num, strerror(error)));
}

/* ---- Progress ---- */

/* Of a queue pair that was stopped only errors are left, and what was done before. */
static ncclResult_t take_error(struct tt_ib_link *link, const struct ibv_wc *wc, const struct tt_ib_done *what)
{
  struct tt_ib_qp *qp = &link->qp[what->qp];
  struct tt_ib_status status = tt_ib_status(wc->status);
  bool saved = qp->dead;
  if (what->work == TT_IB_WORK_RECEIVE) qp->receives--;
  if (!saved && (status.path || atomic_load(&qp->port->nic->fatal)))
    TT_TRY(way_failed(link, what->qp, status.words, &saved));
  return saved ? ncclSuccess : completion_failed(link, wc, what);
}

static ncclResult_t take_completion(struct tt_ib_link *link, const struct ibv_wc *wc)
{
  struct tt_ib_done what = unpack(wc->wr_id);
  if (what.qp >= link->qps + link->loops)
    return tt_ib_link_fail(link, TT_FAIL(ncclInternalError, "net ib: a completion for queue pair %d of %d", what.qp,
                                         link->qps + link->loops));
  struct tt_ib_qp *qp = &link->qp[what.qp];
  if (wc->status != IBV_WC_SUCCESS) return take_error(link, wc, &what);
  if (what.work == TT_IB_WORK_RECEIVE) {
    what.imm = ntohl(wc->imm_data);
    qp->receives--;
    if (!qp->dead) TT_TRY(tt_ib_link_post_receive(link, what.qp));
  } else {
    qp->retired = (uint32_t)(wc->wr_id >> 32);
  }
  return link->hooks->done(link, &what);
}

static int first_qp(const struct tt_ib_link *link, int rail)
{
  int qp = 0;
  while (qp + 1 < link->qps && (link->qp[qp].rail != rail || link->qp[qp].dead)) qp++;
  return qp;
}

/* All ways that begin at the rail; they need not all be there still. */
static ncclResult_t rail_failed(struct tt_ib_link *link, int rail, const char *why, bool *saved)
{
  *saved = !tt_ib_rail_alive(link, rail);
  while (tt_ib_rail_alive(link, rail)) {
    TT_TRY(tt_ib_fail_over(link, first_qp(link, rail), why, saved));
    if (!*saved) break;
  }
  return ncclSuccess;
}

static ncclResult_t poll_rails(struct tt_ib_link *link, bool *some)
{
  struct ibv_wc wc[POLL];
  for (int r = 0; r < link->rails; r++) {
    int got = ibv_poll_cq(link->rail[r].cq, POLL, wc);
    if (got < 0) {
      bool saved;
      TT_TRY(rail_failed(link, r, "its completion queue cannot be polled", &saved));
      if (saved) continue;
      return tt_ib_link_fail(link,
                             TT_FAIL(ncclSystemError, "net ib: the completion queue of %s port %d cannot be polled",
                                     link->rail[r].port->name, link->rail[r].port->number));
    }
    *some |= got > 0;
    for (int i = 0; i < got; i++) TT_TRY(take_completion(link, &wc[i]));
  }
  return ncclSuccess;
}

/* What the thread of the NIC has marked. A port may come back, so it is waited for as long as its NIC itself tries,
 * unless others can take over. */
static ncclResult_t look_at_port(struct tt_ib_link *link, int r)
{
  const struct tt_ib_port *port = link->rail[r].port;
  int fatal = atomic_load_explicit(&port->nic->fatal, memory_order_relaxed);
  uint64_t since = atomic_load_explicit(&port->down_since_ns, memory_order_relaxed);
  if ((!fatal && !since) || !tt_ib_rail_alive(link, r)) return ncclSuccess;
  const char *words = fatal ? tt_ib_verbs(NULL)->event_type_str((enum ibv_event_type)(fatal - 1)) : "it has no link";
  uint64_t now = tt_timer_ns(), down_ms = since && now > since ? (now - since) / 1000000 : 0;
  bool saved = false;
  if (fatal || down_ms > TT_MIN(GRACE_MS, (uint64_t)link->patience_ms)) TT_TRY(rail_failed(link, r, words, &saved));
  if (saved) return ncclSuccess;
  if (fatal)
    return tt_ib_link_fail(link,
                           TT_FAIL(ncclSystemError,
                                   "net ib: %s port %d failed: \"%s\"; the NIC was removed or broke down, see the "
                                   "system log",
                                   port->name, port->number, words));
  if (down_ms <= (uint64_t)link->patience_ms) return ncclSuccess;
  return tt_ib_link_fail(link, TT_FAIL(ncclSystemError,
                                       "net ib: %s port %d has been down for %llu ms, as long as NCCL_IB_TIMEOUT and "
                                       "NCCL_IB_RETRY_CNT wait; check its cable and the switch",
                                       port->name, port->number, (unsigned long long)down_ms));
}

static ncclResult_t look_at_events(struct tt_ib_link *link)
{
  int event = atomic_load_explicit(&link->event, memory_order_relaxed);
  if (event)
    return tt_ib_link_fail(
        link, TT_FAIL(ncclSystemError,
                      "net ib: %s reports \"%s\" for the connection with the peer %s, %s; see its log, "
                      "and the system logs of both",
                      link->rail[0].port->name, tt_ib_verbs(NULL)->event_type_str((enum ibv_event_type)(event - 1)),
                      link->peer, link->remote.rail[0].name));
  for (int r = 0; r < link->rails; r++) TT_TRY(look_at_port(link, r));
  return ncclSuccess;
}

ncclResult_t tt_ib_link_progress(struct tt_ib_link *link)
{
  bool some = false;
  if (link->failed != ncclSuccess) {
    tt_ib_notes_flush(link);
    return link->failed;
  }
  TT_TRY(poll_rails(link, &some));
  TT_TRY(look_at_events(link));
  if (link->note_count) tt_ib_notes_flush(link);
  if (link->rounds++ % LOOK_AROUND == 0) TT_TRY(tt_ib_notes_read(link));
  if (!link->lost_since) return ncclSuccess;
  if (some) link->lost_since = tt_deadline_in_ms(TT_IB_LINGER_MS);
  if (!tt_deadline_passed(link->lost_since)) return ncclSuccess;
  link->told = true; /* nobody listens */
  return tt_ib_link_fail(
      link, TT_FAIL(ncclRemoteError, "net ib: lost the peer %s: its socket was closed; its process ended, see its log",
                    link->peer));
}
