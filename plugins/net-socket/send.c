/* The sending side. Requests wait in the order of isend; headers and small payloads of several go out in one system
 * call. Each tag has a pool of requests and, while the receiver has paused it (see match.c), a list of its own to wait
 * in, so that no tag can keep the others from being posted or from passing. */
#include "net_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "plugins/common/send_tags.h"

#define BATCH 16                        /* messages in one system call */
#define BATCH_BYTES ((size_t)256 << 10) /* no further message is added beyond this much payload */
#define STRIPED 4                       /* striped messages on the lanes at once: bounds how far a paused tag runs on */
#define NOTES_EVERY_BYTES ((size_t)1 << 20)
#define NOTES_EVERY_MESSAGES 64

/* What a tag's `state` is. One that is paused is kept though it may have nothing in flight. */
enum { FLOWS, PAUSED };

struct send_request {
  struct tt_sending sending; /* must be first */
  struct tt_netsocket_request base;
  struct send_comm *comm;
  char *data;
  size_t bytes, inline_bytes, sent; /* `sent` counts the header too */
  struct tt_netsocket_header header;
  bool committed; /* its place on the wire is fixed */
  bool written;   /* the main socket took all of its part */
  struct tt_netsocket_stripes stripes;
  _Atomic uint32_t left; /* stripes to go */
};

struct send_comm {
  struct tt_netsocket_link link;
  struct tt_sending_list ready; /* of all tags, in the order of the wire */
  struct tt_send_tags tags;
  int held_count;
  bool several_tags; /* only then can notes come */
  struct send_request *striped[STRIPED];
  size_t since_bytes; /* since notes were looked for */
  int since_messages;
  struct tt_netsocket_header note; /* being received */
  size_t note_got;
};

ncclResult_t tt_netsocket_send_make(int dev, const int *fds, int count, void **send_comm)
{
  struct send_comm *comm = NULL;
  ncclResult_t result = TT_CALLOC(&comm, 1);
  if (result != ncclSuccess) {
    for (int i = 0; i < count; i++) {
      int fd = fds[i];
      tt_socket_close(&fd);
    }
    return result;
  }
  tt_sending_clear(&comm->ready);
  comm->tags.request_bytes = sizeof(struct send_request);
  result = tt_netsocket_link_init(&comm->link, true, dev, comm, fds, count);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  *send_comm = comm;
  return ncclSuccess;
}

/* ---- Tags ---- */

static ncclResult_t get_tag(struct send_comm *comm, int32_t number, struct tt_send_tag **out)
{
  bool several = comm->tags.first && !tt_send_tags_find(&comm->tags, number);
  TT_TRY(tt_send_tags_get(&comm->tags, number, out));
  if (*out && several) comm->several_tags = true;
  return ncclSuccess;
}

static void hold(struct send_comm *comm, struct send_request *request)
{
  tt_sending_append(&request->sending.tag->held, request);
  tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
  comm->held_count++;
}

/* What is partly on the wire stays there. */
static void pause_tag(struct send_comm *comm, struct tt_send_tag *tag)
{
  struct tt_sending_list ready = comm->ready;
  if (tag->state == FLOWS) tag->in_use++;
  tag->state = PAUSED;
  tt_sending_clear(&comm->ready);
  while (ready.first) {
    struct send_request *request = tt_sending_take(&ready);
    if (request->sending.tag == tag && !request->committed)
      hold(comm, request);
    else
      tt_sending_append(&comm->ready, request);
  }
}

static void resume_tag(struct send_comm *comm, struct tt_send_tag *tag)
{
  if (tag->state == PAUSED) tag->in_use--;
  tag->state = FLOWS;
  while (tag->held.first) {
    tt_sending_append(&comm->ready, tt_sending_take(&tag->held));
    comm->held_count--;
  }
}

/* A pause is kept also for a tag that has nothing in flight; a resume of an unknown one has nothing to do. */
static ncclResult_t obey_note(struct send_comm *comm)
{
  const struct tt_netsocket_header *note = &comm->note;
  if (note->kind != TT_NETSOCKET_PAUSE && note->kind != TT_NETSOCKET_RESUME)
    return tt_netsocket_link_fail(
        &comm->link, TT_FAIL(ncclRemoteError, "net socket: %s sent a note of unknown kind 0x%x; the stream is corrupt",
                             comm->link.peer, note->kind));
  if (note->kind == TT_NETSOCKET_RESUME) tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SENDS, 1);
  struct tt_send_tag *tag = tt_send_tags_find(&comm->tags, note->tag);
  if (note->kind == TT_NETSOCKET_PAUSE && !tag) TT_TRY(get_tag(comm, note->tag, &tag));
  if (!tag) return ncclSuccess;
  if (note->kind == TT_NETSOCKET_PAUSE)
    pause_tag(comm, tag);
  else
    resume_tag(comm, tag);
  return ncclSuccess;
}

/* Reads what the receiver says. Also how a sender that waits learns that the receiver is gone. */
static ncclResult_t read_notes(struct send_comm *comm)
{
  comm->since_bytes = 0;
  comm->since_messages = 0;
  for (;;) {
    ssize_t n =
        recv(comm->link.fd, (char *)&comm->note + comm->note_got, sizeof comm->note - comm->note_got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ncclSuccess;
    /* Who has all that was sent may close. */
    if (n == 0 && !comm->ready.first && !comm->held_count) return ncclSuccess;
    if (n <= 0) return tt_netsocket_link_lost(&comm->link, n < 0 ? errno : 0, "sending");
    comm->note_got += (size_t)n;
    if (comm->note_got < sizeof comm->note) continue;
    comm->note_got = 0;
    TT_TRY(obey_note(comm));
  }
}

/* ---- Writing ---- */

/* Starts a striped message; false if it has to wait. */
static bool commit_striped(struct send_comm *comm, struct send_request *request)
{
  int slot = -1;
  for (int i = 0; i < STRIPED; i++) {
    struct send_request *other = comm->striped[i];
    if (!other || atomic_load_explicit(&other->left, memory_order_relaxed) == 0) slot = i;
  }
  if (slot < 0 || !tt_netsocket_lanes_have_room(&comm->link, request->stripes.count)) return false;
  comm->striped[slot] = request;
  comm->since_bytes += request->bytes;
  tt_netsocket_lanes_push(&comm->link, request->stripes, request->data, request->bytes, &request->left);
  return true;
}

static int gather(struct send_comm *comm, struct iovec *iov, size_t *total)
{
  int count = 0;
  *total = 0;
  for (struct tt_sending *at = comm->ready.first; at && count <= 2 * (BATCH - 1) && *total < BATCH_BYTES;
       at = at->next) {
    struct send_request *request = (struct send_request *)at;
    if (!request->committed && request->stripes.count && !commit_striped(comm, request)) break;
    request->committed = true;
    size_t sent = request->sent, header = sizeof request->header;
    if (sent < header) {
      iov[count++] = (struct iovec){(char *)&request->header + sent, header - sent};
      *total += header - sent;
      sent = header;
    }
    size_t rest = header + request->inline_bytes - sent;
    if (rest) iov[count++] = (struct iovec){request->data + (sent - header), rest};
    *total += rest;
  }
  return count;
}

static void advance(struct send_comm *comm, size_t bytes)
{
  comm->since_bytes += bytes;
  while (bytes) {
    struct send_request *request = (struct send_request *)comm->ready.first;
    size_t rest = sizeof request->header + request->inline_bytes - request->sent;
    size_t part = TT_MIN(rest, bytes);
    request->sent += part;
    bytes -= part;
    if (part < rest) return;
    tt_sending_take(&comm->ready);
    request->written = true;
    comm->since_messages++;
  }
}

static ncclResult_t write_ready(struct send_comm *comm)
{
  struct iovec iov[2 * BATCH];
  bool full = false;
  while (comm->ready.first && !full) {
    size_t total;
    struct msghdr message = {.msg_iov = iov};
    message.msg_iovlen = (size_t)gather(comm, iov, &total);
    if (!message.msg_iovlen) break;
    ssize_t n = sendmsg(comm->link.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return tt_netsocket_link_lost(&comm->link, errno, "sending");
    if (n > 0) advance(comm, (size_t)n);
    full = n < (ssize_t)total;
    if (full) tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
  }
  bool due = comm->since_bytes >= NOTES_EVERY_BYTES || comm->since_messages >= NOTES_EVERY_MESSAGES;
  if (full || comm->held_count || due) TT_TRY(read_notes(comm));
  return ncclSuccess;
}

static ncclResult_t progress(struct send_comm *comm)
{
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  TT_TRY(write_ready(comm));
  if (comm->link.lanes) TT_TRY(tt_netsocket_lanes_progress(&comm->link));
  return ncclSuccess;
}

/* ---- The ABI's calls ---- */

ncclResult_t tt_netsocket_isend(void *send_comm, void *data, size_t bytes, int number, void **out)
{
  struct send_comm *comm = send_comm;
  struct tt_send_tag *tag;
  *out = NULL;
  if (!comm || (bytes && !data)) return TT_FAIL(ncclInternalError, "net socket: isend of %zu bytes from NULL", bytes);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  TT_TRY(get_tag(comm, number, &tag));
  struct send_request *request = tag ? tt_send_tag_take(tag) : NULL;
  if (!request) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  tt_count_begun(&comm->link.counted);

  request->base = (struct tt_netsocket_request){.sends = true, .live = true};
  request->comm = comm;
  request->data = data;
  request->bytes = bytes;
  request->sent = 0;
  request->committed = request->written = false;
  request->stripes = tt_netsocket_stripes(&comm->link, bytes);
  request->inline_bytes = request->stripes.count ? 0 : bytes;
  atomic_store_explicit(&request->left, (uint32_t)request->stripes.count, memory_order_relaxed);
  request->header = (struct tt_netsocket_header){.kind = TT_NETSOCKET_MESSAGE, .tag = number, .bytes = bytes};
  if (tag->state == PAUSED)
    hold(comm, request);
  else
    tt_sending_append(&comm->ready, request);

  ncclResult_t result = progress(comm);
  if (result == ncclSuccess) *out = &request->base;
  return result;
}

static bool is_done(const struct send_request *request)
{
  return request->written && atomic_load_explicit(&request->left, memory_order_acquire) == 0;
}

ncclResult_t tt_netsocket_send_test(struct tt_netsocket_request *base, int *done, int *sizes)
{
  struct send_request *request = (struct send_request *)((char *)base - offsetof(struct send_request, base));
  struct send_comm *comm = request->comm;
  *done = 0;
  if (!is_done(request)) {
    ncclResult_t result = progress(comm);
    if (!is_done(request)) return result;
  }
  *done = 1;
  if (sizes) *sizes = (int)request->bytes;
  for (int i = 0; i < STRIPED; i++)
    if (comm->striped[i] == request) comm->striped[i] = NULL;
  request->base.live = false;
  tt_send_tag_return(request);
  tt_count_ended(&comm->link.counted);
  tt_count_message(&comm->link.counted, request->bytes);
  return ncclSuccess;
}

/* The system has taken all that was to be sent. */
static bool is_out(const struct send_comm *comm)
{
  if (comm->ready.first || comm->held_count) return false;
  for (int i = 0; i < STRIPED; i++)
    if (comm->striped[i] && atomic_load_explicit(&comm->striped[i]->left, memory_order_acquire)) return false;
  return true;
}

/* What the system has not taken is dropped, so there is no message to wait for whose sender believes it sent. Notes
 * come only if several tags were used. */
ncclResult_t tt_netsocket_close_send(void *send_comm)
{
  struct send_comm *comm = send_comm;
  if (!comm) return ncclSuccess;
  if (comm->several_tags && comm->link.failed == ncclSuccess && is_out(comm)) tt_netsocket_linger(comm->link.fd);
  tt_netsocket_link_close(&comm->link);
  tt_send_tags_free(&comm->tags);
  free(comm);
  return ncclSuccess;
}
