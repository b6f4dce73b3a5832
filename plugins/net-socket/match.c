/* Which message goes to which buffer. The rule: the oldest receive that has a free slot of the message's tag.
 *
 * If there is none but receives of other tags wait, they may wait for messages behind this one, so the stream must go
 * on: the message is kept in memory of its own ("early"). To bound that memory the sender is asked to pause a tag of
 * which a lot is early; it may be some messages late in obeying. If nothing waits, the message simply stays in the
 * socket. */
#include "recv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define PAUSE_BYTES ((size_t)1 << 20) /* early bytes, or */
#define PAUSE_MESSAGES 64             /* messages, above which a tag is paused */

static ncclResult_t fits(struct tt_netsocket_recv_comm *comm, const struct tt_netsocket_slot *slot, size_t bytes)
{
  if (bytes <= slot->room) return ncclSuccess;
  return tt_netsocket_link_fail(
      &comm->link,
      TT_FAIL(ncclInvalidUsage,
              "net socket: a message of %zu bytes with tag %d from %s is larger than its receive buffer of %zu bytes; "
              "both sides must agree on counts and types",
              bytes, slot->tag, comm->link.peer, slot->room));
}

static void take_slot(struct tt_netsocket_recv_request *request, struct tt_netsocket_slot *slot, size_t bytes,
                      uint32_t pieces)
{
  slot->matched = true;
  slot->bytes = bytes;
  atomic_store_explicit(&slot->left, pieces, memory_order_relaxed);
  request->matched++;
}

/* ---- Early messages ---- */

static struct tt_netsocket_pause *find_pause(struct tt_netsocket_recv_comm *comm, int32_t tag)
{
  for (int i = 0; i < comm->pause_count; i++)
    if (comm->pauses[i].tag == tag) return &comm->pauses[i];
  return NULL;
}

/* A sender that has closed sends no more, and a note would only reset the connection. */
static bool sender_closed(const struct tt_netsocket_recv_comm *comm)
{
  struct tcp_info info;
  socklen_t bytes = sizeof info;
  memset(&info, 0, sizeof info);
  return getsockopt(comm->link.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0 || info.tcpi_state != TCP_ESTABLISHED;
}

static void consider_pause(struct tt_netsocket_recv_comm *comm, int32_t tag)
{
  if (comm->early_bytes < PAUSE_BYTES && comm->early_count < PAUSE_MESSAGES) return;
  struct tt_netsocket_pause *pause = find_pause(comm, tag);
  if (pause) {
    /* A resume that is not out yet is called back. */
    if (pause->state == TT_NETSOCKET_TO_RESUME) pause->state = TT_NETSOCKET_PAUSED;
  } else if (comm->pause_count < TT_NETSOCKET_PAUSES && !sender_closed(comm)) {
    comm->pauses[comm->pause_count++] = (struct tt_netsocket_pause){tag, TT_NETSOCKET_TO_PAUSE};
  }
}

/* Called when an early message of the tag found its receive. */
static void consider_resume(struct tt_netsocket_recv_comm *comm, int32_t tag)
{
  struct tt_netsocket_pause *pause = find_pause(comm, tag);
  if (!pause) return;
  for (struct tt_netsocket_early *early = comm->early; early; early = early->next)
    if (early->tag == tag && !early->slot) return;
  if (pause->state == TT_NETSOCKET_TO_PAUSE)
    *pause = comm->pauses[--comm->pause_count];
  else
    pause->state = TT_NETSOCKET_TO_RESUME;
}

/* False: the socket takes no more now. A sender that is gone needs no notes. */
static bool push_note(struct tt_netsocket_recv_comm *comm)
{
  if (!comm->note_left) return true;
  const char *rest = (const char *)&comm->note + sizeof comm->note - comm->note_left;
  ssize_t n = send(comm->link.fd, rest, comm->note_left, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  comm->note_left = n < 0 ? 0 : comm->note_left - (size_t)n;
  return comm->note_left == 0;
}

static void send_notes(struct tt_netsocket_recv_comm *comm)
{
  for (int i = 0; i < comm->pause_count && push_note(comm); i++) {
    struct tt_netsocket_pause *pause = &comm->pauses[i];
    if (pause->state == TT_NETSOCKET_PAUSED) continue;
    bool resume = pause->state == TT_NETSOCKET_TO_RESUME;
    comm->note =
        (struct tt_netsocket_header){.kind = resume ? TT_NETSOCKET_RESUME : TT_NETSOCKET_PAUSE, .tag = pause->tag};
    comm->note_left = sizeof comm->note;
    if (resume) tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
    if (resume)
      comm->pauses[i--] = comm->pauses[--comm->pause_count];
    else
      pause->state = TT_NETSOCKET_PAUSED;
  }
  push_note(comm);
}

/* Delivers what is complete. An early message has its slot, or none, from the moment it or the receive came. */
static void deliver_early(struct tt_netsocket_recv_comm *comm)
{
  for (struct tt_netsocket_early **at = &comm->early; *at;) {
    struct tt_netsocket_early *early = *at;
    if (!early->slot || atomic_load_explicit(&early->left, memory_order_acquire)) {
      at = &early->next;
      continue;
    }
    if (early->bytes) memcpy(early->slot->data, early->data, early->bytes);
    atomic_store_explicit(&early->slot->left, 0, memory_order_relaxed);
    comm->early_bytes -= early->bytes;
    comm->early_count--;
    *at = early->next;
    if (!*at) comm->early_end = at;
    free(early->data);
    free(early);
  }
}

ncclResult_t tt_netsocket_match_progress(struct tt_netsocket_recv_comm *comm)
{
  if (comm->early) deliver_early(comm);
  if (comm->pause_count || comm->note_left) send_notes(comm);
  return ncclSuccess;
}

void tt_netsocket_match_free(struct tt_netsocket_recv_comm *comm)
{
  while (comm->early) {
    struct tt_netsocket_early *early = comm->early;
    comm->early = early->next;
    free(early->data);
    free(early);
  }
  comm->early_end = &comm->early;
}

static ncclResult_t make_early(struct tt_netsocket_recv_comm *comm, const struct tt_netsocket_header *header,
                               uint32_t pieces, struct tt_netsocket_early **out)
{
  struct tt_netsocket_early *early = calloc(1, sizeof *early);
  if (early && header->bytes) early->data = malloc(header->bytes);
  if (!early || (header->bytes && !early->data)) {
    free(early);
    return tt_netsocket_link_fail(
        &comm->link, TT_FAIL(ncclSystemError,
                             "net socket: no memory for a message of %llu bytes with tag %d from %s, which came before "
                             "its receive",
                             (unsigned long long)header->bytes, header->tag, comm->link.peer));
  }
  early->tag = header->tag;
  early->bytes = header->bytes;
  atomic_store_explicit(&early->left, pieces, memory_order_relaxed);
  *comm->early_end = early;
  comm->early_end = &early->next;
  comm->early_bytes += early->bytes;
  comm->early_count++;
  consider_pause(comm, early->tag);
  *out = early;
  return ncclSuccess;
}

/* ---- Matching ---- */

ncclResult_t tt_netsocket_match_receive(struct tt_netsocket_recv_comm *comm, struct tt_netsocket_recv_request *request)
{
  for (int i = 0; i < request->n && comm->early; i++) {
    struct tt_netsocket_slot *slot = &request->slot[i];
    struct tt_netsocket_early *early = comm->early;
    while (early && (early->slot || early->tag != slot->tag)) early = early->next;
    if (!early) continue;
    TT_TRY(fits(comm, slot, early->bytes));
    take_slot(request, slot, early->bytes, 1);
    early->slot = slot;
    consider_resume(comm, slot->tag);
  }
  if (request->matched == request->n) return ncclSuccess;
  request->next = NULL;
  *comm->open_end = request;
  comm->open_end = &request->next;
  return ncclSuccess;
}

/* The oldest free slot of the tag, and in *at the place of its receive in the queue. */
static struct tt_netsocket_slot *find_slot(struct tt_netsocket_recv_comm *comm, int32_t tag,
                                           struct tt_netsocket_recv_request ***at)
{
  for (*at = &comm->open; **at; *at = &(**at)->next)
    for (int i = 0; i < (**at)->n; i++)
      if (!(**at)->slot[i].matched && (**at)->slot[i].tag == tag) return &(**at)->slot[i];
  return NULL;
}

static void begin_arrival(struct tt_netsocket_recv_comm *comm, struct tt_netsocket_stripes stripes, char *data,
                          size_t bytes, _Atomic uint32_t *left)
{
  if (stripes.count)
    tt_netsocket_lanes_push(&comm->link, stripes, data, bytes, left);
  else
    comm->arrival = (struct tt_netsocket_arrival){.active = true, .data = data, .bytes = bytes, .left = left};
}

ncclResult_t tt_netsocket_match_message(struct tt_netsocket_recv_comm *comm, const struct tt_netsocket_header *header,
                                        bool *stalled)
{
  struct tt_netsocket_recv_request **at;
  *stalled = true;
  if (header->kind != TT_NETSOCKET_MESSAGE || header->bytes > NCCL_MAX_NET_SIZE_BYTES)
    return tt_netsocket_link_fail(&comm->link,
                                  TT_FAIL(ncclRemoteError,
                                          "net socket: %s sent a header of unknown kind 0x%x; the stream is corrupt",
                                          comm->link.peer, header->kind));
  if (!comm->open) return ncclSuccess;
  struct tt_netsocket_stripes stripes = tt_netsocket_stripes(&comm->link, header->bytes);
  if (stripes.count && !tt_netsocket_lanes_have_room(&comm->link, stripes.count)) return ncclSuccess;
  uint32_t pieces = stripes.count ? (uint32_t)stripes.count : 1;
  struct tt_netsocket_slot *slot = find_slot(comm, header->tag, &at);
  *stalled = false;
  if (!slot) {
    struct tt_netsocket_early *early = NULL;
    TT_TRY(make_early(comm, header, pieces, &early));
    begin_arrival(comm, stripes, early->data, early->bytes, &early->left);
    return ncclSuccess;
  }
  TT_TRY(fits(comm, slot, header->bytes));
  struct tt_netsocket_recv_request *request = *at;
  take_slot(request, slot, header->bytes, pieces);
  begin_arrival(comm, stripes, slot->data, header->bytes, &slot->left);
  if (request->matched == request->n) {
    *at = request->next;
    if (!*at) comm->open_end = at;
  }
  return ncclSuccess;
}
