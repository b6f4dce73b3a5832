/* The sending side. Requests wait in the order of isend; headers and small payloads of several go out in one system
 * call. Each tag has a pool of requests and, while the receiver has paused it (see match.c), a list of its own to wait
 * in, so that no tag can keep the others from being posted or from passing. */
#include "net_socket.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define BATCH 16                        /* messages in one system call */
#define BATCH_BYTES ((size_t)256 << 10) /* no further message is added beyond this much payload */
#define STRIPED 4                       /* striped messages on the lanes at once: bounds how far a paused tag runs on */
#define NOTES_EVERY_BYTES ((size_t)1 << 20)
#define NOTES_EVERY_MESSAGES 64
#define LINGER_MS 1000
#define TAGS 256 /* in flight at once; each takes some kilobytes */

struct tag;
struct send_request {
  struct tt_netsocket_request base;
  struct send_comm *comm;
  struct tag *owner;
  struct send_request *next; /* in the list that it is in: free, ready or held */
  char *data;
  size_t bytes, inline_bytes, sent; /* `sent` counts the header too */
  struct tt_netsocket_header header;
  bool committed; /* its place on the wire is fixed */
  bool written;   /* the main socket took all of its part */
  struct tt_netsocket_stripes stripes;
  _Atomic uint32_t left; /* stripes to go */
};

struct list {
  struct send_request *first, **end;
};

struct tag {
  int32_t tag;
  bool paused;
  int in_flight;
  struct list held; /* waits for the end of the pause */
  struct send_request *free;
  struct tag *next;
  struct send_request requests[NCCL_NET_MAX_REQUESTS];
};

struct send_comm {
  struct tt_netsocket_link link;
  struct list ready; /* of all tags, in the order of the wire */
  struct tag *tags, *last;
  int tag_count, held_count;
  bool several_tags; /* only then can notes come */
  struct send_request *striped[STRIPED];
  size_t since_bytes; /* since notes were looked for */
  int since_messages;
  struct tt_netsocket_header note; /* being received */
  size_t note_got;
};

static void append(struct list *list, struct send_request *request)
{
  request->next = NULL;
  *list->end = request;
  list->end = &request->next;
}

static void clear(struct list *list)
{
  list->first = NULL;
  list->end = &list->first;
}

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
  clear(&comm->ready);
  result = tt_netsocket_link_init(&comm->link, true, dev, comm, fds, count);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  *send_comm = comm;
  return ncclSuccess;
}

/* ---- Tags ---- */

static struct tag *find_tag(struct send_comm *comm, int32_t number)
{
  if (comm->last && comm->last->tag == number) return comm->last;
  struct tag *tag = comm->tags;
  while (tag && tag->tag != number) tag = tag->next;
  if (tag) comm->last = tag;
  return tag;
}

/* The tag's entry; for a new one that of an idle tag is reused. *out = NULL if too many are in flight. */
static ncclResult_t get_tag(struct send_comm *comm, int32_t number, struct tag **out)
{
  *out = find_tag(comm, number);
  if (*out) return ncclSuccess;
  struct tag *tag = comm->tags;
  while (tag && (tag->paused || tag->in_flight)) tag = tag->next;
  if (!tag && comm->tag_count == TAGS) return ncclSuccess;
  if (comm->tags) comm->several_tags = true;
  if (!tag) {
    TT_TRY(TT_CALLOC(&tag, 1));
    clear(&tag->held);
    for (int i = NCCL_NET_MAX_REQUESTS - 1; i >= 0; i--) {
      struct send_request *request = &tag->requests[i];
      request->comm = comm;
      request->owner = tag;
      request->next = tag->free;
      tag->free = request;
    }
    tag->next = comm->tags;
    comm->tags = tag;
    comm->tag_count++;
  }
  tag->tag = number;
  *out = comm->last = tag;
  return ncclSuccess;
}

static void hold(struct send_comm *comm, struct send_request *request)
{
  append(&request->owner->held, request);
  tt_count(&comm->link.counted, TT_COUNT_CLEAR_TO_SEND_WAITS, 1);
  comm->held_count++;
}

/* What is partly on the wire stays there. */
static void pause_tag(struct send_comm *comm, struct tag *tag)
{
  struct send_request *request = comm->ready.first;
  tag->paused = true;
  clear(&comm->ready);
  while (request) {
    struct send_request *next = request->next;
    if (request->owner == tag && !request->committed)
      hold(comm, request);
    else
      append(&comm->ready, request);
    request = next;
  }
}

static void resume_tag(struct send_comm *comm, struct tag *tag)
{
  struct send_request *request = tag->held.first;
  tag->paused = false;
  clear(&tag->held);
  while (request) {
    struct send_request *next = request->next;
    append(&comm->ready, request);
    comm->held_count--;
    request = next;
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
  struct tag *tag = find_tag(comm, note->tag);
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
  for (struct send_request *request = comm->ready.first; request && count <= 2 * (BATCH - 1) && *total < BATCH_BYTES;
       request = request->next) {
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
    struct send_request *request = comm->ready.first;
    size_t rest = sizeof request->header + request->inline_bytes - request->sent;
    size_t part = TT_MIN(rest, bytes);
    request->sent += part;
    bytes -= part;
    if (part < rest) return;
    comm->ready.first = request->next;
    if (!request->next) comm->ready.end = &comm->ready.first;
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
  struct tag *tag;
  *out = NULL;
  if (!comm || (bytes && !data)) return TT_FAIL(ncclInternalError, "net socket: isend of %zu bytes from NULL", bytes);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  TT_TRY(get_tag(comm, number, &tag));
  struct send_request *request = tag ? tag->free : NULL;
  if (!request) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  tag->free = request->next;
  tag->in_flight++;
  tt_count_begun(&comm->link.counted);

  request->base = (struct tt_netsocket_request){.sends = true, .live = true};
  request->data = data;
  request->bytes = bytes;
  request->sent = 0;
  request->committed = request->written = false;
  request->stripes = tt_netsocket_stripes(&comm->link, bytes);
  request->inline_bytes = request->stripes.count ? 0 : bytes;
  atomic_store_explicit(&request->left, (uint32_t)request->stripes.count, memory_order_relaxed);
  request->header = (struct tt_netsocket_header){.kind = TT_NETSOCKET_MESSAGE, .tag = number, .bytes = bytes};
  if (tag->paused)
    hold(comm, request);
  else
    append(&comm->ready, request);

  ncclResult_t result = progress(comm);
  if (result == ncclSuccess) *out = request;
  return result;
}

static bool is_done(const struct send_request *request)
{
  return request->written && atomic_load_explicit(&request->left, memory_order_acquire) == 0;
}

ncclResult_t tt_netsocket_send_test(struct tt_netsocket_request *base, int *done, int *sizes)
{
  struct send_request *request = (struct send_request *)base;
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
  request->next = request->owner->free;
  request->owner->free = request;
  request->owner->in_flight--;
  tt_count_ended(&comm->link.counted);
  tt_count_message(&comm->link.counted, request->bytes);
  return ncclSuccess;
}

/* Closing a socket while a note of the receiver is unread, or comes later, resets the connection and discards what is
 * still on its way to the receiver. Notes come only if several tags were used; then the close waits, shortly, until the
 * receiver's system has everything. */
static void linger(struct send_comm *comm)
{
  tt_deadline deadline = tt_deadline_in_ms(LINGER_MS);
  char drain[256];
  int waiting = 1;
  shutdown(comm->link.fd, SHUT_WR);
  while (!tt_deadline_passed(deadline)) {
    ssize_t n = recv(comm->link.fd, drain, sizeof drain, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return;
    if (n > 0) continue;
    if (ioctl(comm->link.fd, SIOCOUTQ, &waiting) < 0 || waiting == 0) return;
    struct timespec nap = {.tv_nsec = 1000000};
    nanosleep(&nap, NULL);
  }
}

ncclResult_t tt_netsocket_close_send(void *send_comm)
{
  struct send_comm *comm = send_comm;
  if (!comm) return ncclSuccess;
  if (comm->several_tags && comm->link.failed == ncclSuccess) linger(comm);
  tt_netsocket_link_close(&comm->link);
  while (comm->tags) {
    struct tag *tag = comm->tags;
    comm->tags = tag->next;
    free(tag);
  }
  free(comm);
  return ncclSuccess;
}
