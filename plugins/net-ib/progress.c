/* What send and receive comms share: requests, their completions, and how trouble is found and told. */
#include "net_ib.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "gid.h"

#define POLL 16        /* completions at once */
#define LOOK_AROUND 64 /* calls of progress between two looks at the socket */
/* Where others can take over for a port without a link: how long it may be without, as for a moment ports often are. */
#define GRACE_MS 500
/* A NIC that has failed leaves no more completions if it left none for so long. */
#define SPENT_MS 100

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

/* ---- Failures ---- */

/* Both sides have an error then, with the cause. */
ncclResult_t tt_ib_link_fail(struct tt_ib_link *link, ncclResult_t result)
{
  struct tt_ib_note note = {.kind = TT_IB_FAILED, .value = (uint32_t)result};
  link->failed = result;
  link->left = false;
  if (link->told) return result;
  link->told = true;
  snprintf(note.text, sizeof note.text, "%s", tt_log_thread_error());
  tt_ib_note_send(link, &note);
  return result;
}

/* *saved: other ports have taken over where this queue pair goes. Else the caller fails. A flush goes no way but
 * through its NIC, and another cannot flush what that has written: they take over only if it is gone, if nothing is
 * left to flush, or if they are ports of the same. */
static ncclResult_t request_failed(struct tt_ib_link *link, int qp, bool gone, const char *why, bool *saved)
{
  int rail = link->qp[qp].rail;
  if (qp < link->qps) return tt_ib_fail_over(link, qp, why, saved);
  *saved = tt_ib_other_flushes(link, rail);
  if (gone || tt_ib_is_flushed(link, rail)) TT_TRY(tt_ib_fail_over_rail(link, rail, why, saved));
  link->qp[qp].dead = *saved;
  return ncclSuccess;
}

/* There is no peer in it. */
static ncclResult_t flush_failed(struct tt_ib_link *link, const struct ibv_wc *wc, const struct tt_ib_qp *qp)
{
  struct tt_ib_status status = tt_ib_status(wc->status);
  bool down = atomic_load(&qp->port->down_since_ns) != 0;
  char here[TT_IB_GID_TEXT];
  return tt_ib_link_fail(
      link, TT_FAIL(status.remote ? ncclRemoteError : ncclSystemError,
                    "net ib: flushing what was received failed: %s (status %d, vendor error 0x%x) on %s port %d, queue "
                    "pair %u, GID %s; no other NIC can flush what this one has written; %s",
                    status.words, (int)wc->status, wc->vendor_err, qp->port->name, qp->port->number, wc->qp_num,
                    tt_ib_gid_print(&qp->port->gid, here),
                    down ? "the port has no link, check its cable and the switch" : "look at its system log"));
}

static ncclResult_t completion_failed(struct tt_ib_link *link, const struct ibv_wc *wc, const struct tt_ib_done *done)
{
  static const char *const works[] = {"writing data",
                                      "writing data",
                                      "telling the sender what to send",
                                      "receiving",
                                      "flushing what was received",
                                      "reading what has arrived"};
  const struct tt_ib_qp *qp = &link->qp[TT_MIN(done->qp, link->qps + link->loops - 1)];
  if (done->work == TT_IB_WORK_FLUSH) return flush_failed(link, wc, qp);
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
    TT_TRY(request_failed(link, index, error == EIO, strerror(error), &saved));
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
  TT_TRY(tt_ib_fail_over(link, index, strerror(error), &saved));
  if (saved) return ncclSuccess;
  return tt_ib_link_fail(link,
                         TT_FAIL(ncclSystemError, "net ib: %s port %d takes no more receives on queue pair %u: %s",
                                 qp->port->name, qp->port->number, qp->qp->qp_num, strerror(error)));
}

/* ---- Progress ---- */

/* Of a queue pair that was stopped only errors are left, and what was done before. A receiver that has closed answers
 * nothing any more; what it has it has said, and the rest fails when its socket ends. So does what a receiver does with
 * a sender that has left, and of a connection that has failed nothing but flushes can fail. */
static ncclResult_t take_error(struct tt_ib_link *link, const struct ibv_wc *wc, const struct tt_ib_done *what)
{
  struct tt_ib_qp *qp = &link->qp[what->qp];
  bool flush = what->work == TT_IB_WORK_FLUSH;
  if (what->work == TT_IB_WORK_RECEIVE) qp->receives--;
  if (link->failed != ncclSuccess && !flush) return ncclSuccess;
  if (!qp->dead && !flush) TT_TRY(tt_ib_notes_read(link));
  if (link->ended || (!link->sends && link->lost_since && !flush)) return ncclSuccess;
  struct tt_ib_status status = tt_ib_status(wc->status);
  bool saved = qp->dead;
  bool fatal = atomic_load(&qp->port->nic->fatal) != 0;
  /* A NIC that is gone may give its requests back before it is known to be. */
  bool gone = fatal || wc->status == IBV_WC_WR_FLUSH_ERR || wc->status == IBV_WC_FATAL_ERR;
  if (!saved && (status.path || fatal)) TT_TRY(request_failed(link, what->qp, gone, status.words, &saved));
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
    if (!qp->dead && link->failed == ncclSuccess) TT_TRY(tt_ib_link_post_receive(link, what.qp));
  } else {
    qp->retired = (uint32_t)(wc->wr_id >> 32);
  }
  return link->hooks->done(link, &what);
}

/* Deadlines are looked at before the NIC is: what has come meanwhile, while this thread was held up, is in time. */
static bool is_over(tt_deadline deadline)
{
  return deadline && tt_deadline_passed(deadline);
}

/* After each poll. `failed`: the NIC had, before it; `over`: so was the time for it to show more. */
static void look_if_spent(struct tt_ib_rail *rail, bool failed, bool over, int got)
{
  if (!failed) return;
  if (got > 0 || !rail->spent_at) rail->spent_at = tt_deadline_in_ms(SPENT_MS);
  rail->spent = got <= 0 && over;
}

/* All that it brings is taken, also behind an error: it may be of a message that is here, or of a flush. */
static ncclResult_t poll_rail(struct tt_ib_link *link, int r, bool *some)
{
  struct ibv_wc wc[POLL];
  struct tt_ib_rail *rail = &link->rail[r];
  bool failed = atomic_load_explicit(&rail->port->nic->fatal, memory_order_relaxed) != 0;
  bool over = is_over(rail->spent_at);
  int got = ibv_poll_cq(rail->cq, POLL, wc);
  look_if_spent(rail, failed, over, got);
  if (got < 0) {
    bool saved;
    TT_TRY(tt_ib_fail_over_rail(link, r, "its completion queue cannot be polled", &saved));
    if (link->loops) link->qp[link->qps + r].dead = true; /* as good as gone */
    if (saved) return ncclSuccess;
    return tt_ib_link_fail(link, TT_FAIL(ncclSystemError, "net ib: the completion queue of %s port %d cannot be polled",
                                         rail->port->name, rail->port->number));
  }
  *some |= got > 0;
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < got; i++) {
    ncclResult_t taken = take_completion(link, &wc[i]);
    if (result == ncclSuccess) result = taken;
  }
  return result;
}

static ncclResult_t poll_rails(struct tt_ib_link *link, bool *some)
{
  ncclResult_t result = ncclSuccess;
  for (int r = 0; r < link->rails; r++) {
    ncclResult_t polled = poll_rail(link, r, some);
    if (result == ncclSuccess) result = polled;
  }
  return result;
}

static uint64_t ms_since(uint64_t time_ns)
{
  uint64_t now = tt_timer_ns();
  return now > time_ns ? (now - time_ns) / 1000000 : 0;
}

/* Has another port had its link for longer? */
static bool others_have_links(const struct tt_ib_link *link, int rail, uint64_t ms)
{
  for (int r = 0; r < link->rails; r++) {
    const struct tt_ib_port *port = link->rail[r].port;
    if (r != rail && tt_ib_rail_alive(link, r) && !atomic_load(&port->down_since_ns) &&
        ms_since(atomic_load(&port->up_since_ns)) > ms)
      return true;
  }
  return false;
}

/* What the thread of the NIC has marked. A port may come back, so it is waited for as long as its NIC itself tries,
 * unless others can take over that have a link. Where all lose theirs, as when a switch starts anew, the one that comes
 * back first waits for the others: the two sides could choose differently, and nothing would be left. */
static ncclResult_t look_at_port(struct tt_ib_link *link, int r)
{
  const struct tt_ib_port *port = link->rail[r].port;
  int fatal = atomic_load_explicit(&port->nic->fatal, memory_order_relaxed);
  uint64_t since = atomic_load_explicit(&port->down_since_ns, memory_order_relaxed);
  if ((!fatal && !since) || !tt_ib_rail_alive(link, r)) return ncclSuccess;
  const char *words = fatal ? tt_ib_verbs(NULL)->event_type_str((enum ibv_event_type)(fatal - 1)) : "it has no link";
  uint64_t down_ms = since ? ms_since(since) : 0, grace_ms = TT_MIN(GRACE_MS, (uint64_t)link->patience_ms);
  bool saved = false;
  /* When it is not waited for any longer, any other that has a link will do. */
  uint64_t others_ms = down_ms > (uint64_t)link->patience_ms ? 0 : grace_ms;
  if (fatal || (down_ms > grace_ms && others_have_links(link, r, others_ms)))
    TT_TRY(tt_ib_fail_over_rail(link, r, words, &saved));
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

ncclResult_t tt_ib_link_look_for(struct tt_ib_link *link, const struct tt_ib_memory *memory)
{
  for (int r = 0; memory && r < link->rails; r++)
    if (!memory->mr[r] && tt_ib_rail_alive(link, r)) return look_at_events(link);
  return ncclSuccess;
}

ncclResult_t tt_ib_link_progress(struct tt_ib_link *link)
{
  bool some = false;
  if (link->failed != ncclSuccess) {
    tt_ib_notes_flush(link);
    return link->failed;
  }
  bool over = is_over(link->lost_since);
  TT_TRY(poll_rails(link, &some));
  TT_TRY(look_at_events(link));
  if (link->note_count) tt_ib_notes_flush(link);
  if (link->rounds++ % LOOK_AROUND == 0) TT_TRY(tt_ib_notes_read(link));
  if (!link->lost_since) return ncclSuccess;
  if (some) link->lost_since = tt_deadline_in_ms(TT_IB_LINGER_MS);
  if (some || !over) return ncclSuccess;
  link->told = true; /* nobody listens */
  tt_ib_link_fail(link, TT_FAIL(ncclRemoteError,
                                "net ib: lost the peer %s: its socket was closed; its process ended, see its log",
                                link->peer));
  link->left = true;
  return link->failed;
}

ncclResult_t tt_ib_link_look(struct tt_ib_link *link)
{
  bool some = false;
  return poll_rails(link, &some);
}
