/* The receiving side: the stream of the main socket. Reads go into a small staging area, so that one system call brings
 * several small messages; the rest of a large payload is read straight into its buffer. */
#include "recv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define READ_BYTES ((size_t)1 << 20) /* payload in one system call */
#define READS 8                      /* system calls in one round, so that other comms get their turn */

ncclResult_t tt_netsocket_recv_make(int dev, const int *fds, int count, void **recv_comm)
{
  struct tt_netsocket_recv_comm *comm = NULL;
  ncclResult_t result = TT_CALLOC(&comm, 1);
  if (result != ncclSuccess) {
    for (int i = 0; i < count; i++) {
      int fd = fds[i];
      tt_socket_close(&fd);
    }
    return result;
  }
  comm->open_end = &comm->open;
  comm->early_end = &comm->early;
  for (int i = 0; i < TT_NETSOCKET_RECV_REQUESTS; i++) {
    comm->requests[i].next = comm->free;
    comm->free = &comm->requests[i];
  }
  result = tt_netsocket_link_init(&comm->link, false, dev, comm, fds, count);
  if (result != ncclSuccess) {
    free(comm);
    return result;
  }
  *recv_comm = comm;
  return ncclSuccess;
}

static void arrived(struct tt_netsocket_recv_comm *comm, size_t bytes)
{
  struct tt_netsocket_arrival *arrival = &comm->arrival;
  arrival->got += bytes;
  if (arrival->got < arrival->bytes) return;
  arrival->active = false;
  atomic_store_explicit(arrival->left, 0, memory_order_relaxed);
}

/* Uses up staging as far as possible. *stalled: a header waits there for a receive. */
static ncclResult_t consume(struct tt_netsocket_recv_comm *comm, bool *stalled)
{
  *stalled = false;
  for (;;) {
    size_t there = comm->end - comm->begin;
    struct tt_netsocket_arrival *arrival = &comm->arrival;
    if (arrival->active) {
      size_t part = TT_MIN(there, arrival->bytes - arrival->got);
      if (part) memcpy(arrival->data + arrival->got, comm->staging + comm->begin, part);
      comm->begin += part;
      arrived(comm, part);
      if (arrival->active) return ncclSuccess;
      continue;
    }
    struct tt_netsocket_header header;
    if (there < sizeof header) return ncclSuccess;
    memcpy(&header, comm->staging + comm->begin, sizeof header);
    TT_TRY(tt_netsocket_match_message(comm, &header, stalled));
    if (*stalled) return ncclSuccess;
    comm->begin += sizeof header;
  }
}

/* One read behind what staging holds. *drained: the socket has no more now. */
static ncclResult_t read_more(struct tt_netsocket_recv_comm *comm, bool *drained)
{
  struct iovec iov[2];
  struct msghdr message = {.msg_iov = iov};
  struct tt_netsocket_arrival *arrival = &comm->arrival;
  size_t payload = arrival->active ? TT_MIN(arrival->bytes - arrival->got, READ_BYTES) : 0;
  bool whole = payload == arrival->bytes - arrival->got;
  memmove(comm->staging, comm->staging + comm->begin, comm->end - comm->begin);
  comm->end -= comm->begin;
  comm->begin = 0;
  size_t room = TT_NETSOCKET_STAGING - comm->end;
  if (payload) iov[message.msg_iovlen++] = (struct iovec){arrival->data + arrival->got, payload};
  if (!payload || whole) iov[message.msg_iovlen++] = (struct iovec){comm->staging + comm->end, room};
  size_t want = payload + (!payload || whole ? room : 0);
  ssize_t n = recvmsg(comm->link.fd, &message, MSG_DONTWAIT);
  *drained = n < (ssize_t)want;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ncclSuccess;
  if (n <= 0) {
    bool middle = arrival->active || comm->end;
    comm->ended = n == 0 && !middle;
    return tt_netsocket_link_lost(&comm->link, n < 0 ? errno : 0,
                                  middle ? "receiving, in the middle of a message" : "waiting for a message");
  }
  size_t first = TT_MIN((size_t)n, payload);
  if (first) arrived(comm, first);
  comm->end += (size_t)n - first;
  return ncclSuccess;
}

static ncclResult_t read_stream(struct tt_netsocket_recv_comm *comm)
{
  bool stalled = false, drained = false;
  TT_TRY(consume(comm, &stalled));
  for (int i = 0; i < READS && !stalled && !drained && (comm->open || comm->arrival.active); i++) {
    TT_TRY(read_more(comm, &drained));
    TT_TRY(consume(comm, &stalled));
  }
  return ncclSuccess;
}

/* What came before the failure is delivered all the same, and so is what the lanes still bring when the main socket has
 * ended. */
static ncclResult_t progress(struct tt_netsocket_recv_comm *comm)
{
  ncclResult_t result = comm->link.failed, lanes = ncclSuccess;
  if (result != ncclSuccess && !comm->ended) return result;
  if (result == ncclSuccess) result = read_stream(comm);
  if (comm->link.lanes && (result == ncclSuccess || comm->ended)) lanes = tt_netsocket_lanes_progress(&comm->link);
  if (lanes != ncclSuccess) {
    result = lanes;
    comm->ended = false;
  }
  ncclResult_t delivered = tt_netsocket_match_progress(comm);
  return result != ncclSuccess ? result : delivered;
}

ncclResult_t tt_netsocket_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **out)
{
  struct tt_netsocket_recv_comm *comm = recv_comm;
  *out = NULL;
  if (!comm || n < 1 || n > TT_NETSOCKET_RECVS)
    return TT_FAIL(ncclInternalError, "net socket: irecv of %d buffers; 1 to %d are possible", n, TT_NETSOCKET_RECVS);
  if (comm->link.failed != ncclSuccess) return comm->link.failed;
  struct tt_netsocket_recv_request *request = comm->free;
  if (!request) {
    tt_count(&comm->link.counted, TT_COUNT_REFUSED, 1);
    return ncclSuccess;
  }
  comm->free = request->next;
  tt_count_begun(&comm->link.counted);
  request->base = (struct tt_netsocket_request){.sends = false, .live = true};
  request->comm = comm;
  request->n = n;
  request->matched = 0;
  for (int i = 0; i < n; i++) {
    struct tt_netsocket_slot *slot = &request->slot[i];
    slot->data = data[i];
    slot->room = sizes[i];
    slot->bytes = 0;
    slot->tag = tags[i];
    slot->matched = false;
  }
  TT_TRY(tt_netsocket_match_receive(comm, request));
  *out = request;
  return ncclSuccess;
}

static bool is_done(const struct tt_netsocket_recv_request *request)
{
  if (request->matched < request->n) return false;
  for (int i = 0; i < request->n; i++)
    if (atomic_load_explicit(&request->slot[i].left, memory_order_acquire)) return false;
  return true;
}

ncclResult_t tt_netsocket_recv_test(struct tt_netsocket_request *base, int *done, int *sizes)
{
  struct tt_netsocket_recv_request *request = (struct tt_netsocket_recv_request *)base;
  struct tt_netsocket_recv_comm *comm = request->comm;
  *done = 0;
  if (!is_done(request)) {
    ncclResult_t result = progress(comm);
    bool comes = comm->ended && request->matched == request->n; /* by lanes */
    if (!is_done(request)) return comes ? ncclSuccess : result;
  }
  *done = 1;
  for (int i = 0; i < request->n; i++) {
    if (sizes) sizes[i] = (int)request->slot[i].bytes;
    tt_count_message(&comm->link.counted, request->slot[i].bytes);
  }
  tt_count_ended(&comm->link.counted);
  request->base.live = false;
  request->next = comm->free;
  comm->free = request;
  return ncclSuccess;
}

ncclResult_t tt_netsocket_close_recv(void *recv_comm)
{
  struct tt_netsocket_recv_comm *comm = recv_comm;
  if (!comm) return ncclSuccess;
  tt_netsocket_link_close(&comm->link);
  tt_netsocket_match_free(comm);
  free(comm);
  return ncclSuccess;
}
