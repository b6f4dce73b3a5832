/* Groups of the software collnet plugin. Operations of a group are numbered alike on all ranks, and each socket carries
 * them in order: towards the root a header and the data of each, back the results. Requests live in a ring. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "software.h"

enum { IN_FLIGHT = 4 };

struct header {
  uint64_t count;
  int32_t type, op;
};

struct request {
  struct group *group;
  struct header header;
  const void *send;
  void *recv;
  size_t bytes;
  bool reduced;          /* root: recv holds the result */
  unsigned char *inputs; /* root: the others' data, one after another */
};

/* How far a socket is: bytes of the current operation, and its number. */
struct cursor {
  uint64_t operation;
  size_t at;
};

struct peer {
  int fd;
  struct cursor in, out;
  struct header header; /* what came of the current operation's */
};

struct group {
  int nranks, rank, npeers;
  struct peer *peers; /* root: ranks 1 .. nranks - 1; else the root */
  struct request requests[IN_FLIGHT];
  uint64_t posted, finished; /* finished: operations whose request was given back */
  bool failed;
};

/* ---- Setting up ---- */

static int patience_ms(void)
{
  const char *text = getenv("SOFTWARE_COLLNET_PATIENCE");
  return text ? atoi(text) : 20000;
}

/* False, said, if nothing happens in time. */
static bool wait_for(int fd, short events, const char *whom)
{
  struct pollfd ready = {.fd = fd, .events = events};
  if (poll(&ready, 1, patience_ms()) > 0) return true;
  WARN("software collnet: waited %d ms for %s", patience_ms(), whom);
  return false;
}

static ncclResult_t system_error(const char *what)
{
  WARN("software collnet: %s: %s", what, strerror(errno));
  return ncclSystemError;
}

ncclResult_t software_listen(void *handle, void **listener)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof(address);
  const char *own = getenv("SOFTWARE_COLLNET_ADDRESS");
  if (own && inet_pton(AF_INET, own, &address.sin_addr) != 1) return system_error("SOFTWARE_COLLNET_ADDRESS");
  int *fd = malloc(sizeof(*fd));
  if (!fd) return ncclSystemError;
  *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, size) || listen(*fd, 128) ||
      getsockname(*fd, (struct sockaddr *)&address, &size)) {
    ncclResult_t result = system_error("listening");
    software_close_listen(fd);
    return result;
  }
  memcpy(handle, &address, sizeof(address));
  *listener = fd;
  return ncclSuccess;
}

ncclResult_t software_close_listen(void *listener)
{
  int *fd = listener;
  if (*fd >= 0) close(*fd);
  free(fd);
  return ncclSuccess;
}

/* All of it, or an error after patience. */
static ncclResult_t transfer_all(int fd, void *data, size_t bytes, bool sends)
{
  for (size_t at = 0; at < bytes;) {
    if (!wait_for(fd, sends ? POLLOUT : POLLIN, "a member")) return ncclSystemError;
    ssize_t moved =
        sends ? send(fd, (char *)data + at, bytes - at, MSG_NOSIGNAL) : recv(fd, (char *)data + at, bytes - at, 0);
    if (moved <= 0) return system_error("a member is gone");
    at += (size_t)moved;
  }
  return ncclSuccess;
}

static ncclResult_t accept_members(struct group *group, int listener)
{
  for (int i = 0; i < group->npeers; i++) {
    int32_t rank = 0;
    if (!wait_for(listener, POLLIN, "members")) return ncclSystemError;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return system_error("accepting");
    ncclResult_t result = transfer_all(fd, &rank, sizeof(rank), false);
    if (result == ncclSuccess && (rank < 1 || rank >= group->nranks || group->peers[rank - 1].fd >= 0))
      result = ncclRemoteError;
    if (result != ncclSuccess) {
      close(fd);
      return result;
    }
    group->peers[rank - 1].fd = fd;
  }
  return ncclSuccess;
}

static ncclResult_t reach_root(struct group *group, const void *handle)
{
  struct sockaddr_in address;
  int32_t rank = group->rank;
  memcpy(&address, handle, sizeof(address));
  int fd = group->peers[0].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address))) return system_error("reaching the root");
  return transfer_all(fd, &rank, sizeof(rank), true);
}

ncclResult_t software_connect(void *handles[], int nranks, int rank, void *listener, struct group **out)
{
  struct group *group = calloc(1, sizeof(*group));
  if (!group) return ncclSystemError;
  group->nranks = nranks;
  group->rank = rank;
  group->npeers = rank == 0 ? nranks - 1 : 1;
  group->peers = calloc((size_t)group->npeers + 1, sizeof(*group->peers));
  for (int i = 0; group->peers && i < group->npeers; i++) group->peers[i].fd = -1;
  ncclResult_t result = !group->peers ? ncclSystemError
                        : rank == 0   ? accept_members(group, *(int *)listener)
                                      : reach_root(group, handles[0]);
  for (int i = 0, one = 1; result == ncclSuccess && i < group->npeers; i++)
    setsockopt(group->peers[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (result != ncclSuccess) {
    software_close(group);
    return result;
  }
  *out = group;
  return ncclSuccess;
}

void software_close(struct group *group)
{
  for (int i = 0; group->peers && i < group->npeers; i++)
    if (group->peers[i].fd >= 0) close(group->peers[i].fd);
  for (int i = 0; i < IN_FLIGHT; i++) free(group->requests[i].inputs);
  free(group->peers);
  free(group);
}

/* ---- Moving ---- */

/* Moves what it can of `bytes` from `*at` on. */
static ncclResult_t transfer(struct group *group, int fd, void *data, size_t bytes, size_t *at, bool sends)
{
  while (*at < bytes) {
    char *place = (char *)data + *at;
    ssize_t moved =
        sends ? send(fd, place, bytes - *at, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, place, bytes - *at, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ncclSuccess;
    if (moved <= 0) {
      WARN("software collnet: member %d of %d lost a peer: %s", group->rank, group->nranks,
           moved ? strerror(errno) : "connection closed");
      group->failed = true;
      return ncclRemoteError;
    }
    *at += (size_t)moved;
  }
  return ncclSuccess;
}

/* A header, then data, of the operation that the cursor is at; *whole: all of it has moved. */
static ncclResult_t transfer_message(struct group *group, int fd, struct header *header, void *data, size_t bytes,
                                     struct cursor *cursor, bool sends, bool *whole)
{
  size_t head = sizeof(*header);
  *whole = false;
  if (cursor->at < head) {
    ncclResult_t result = transfer(group, fd, header, head, &cursor->at, sends);
    if (result != ncclSuccess || cursor->at < head) return result;
  }
  size_t at = cursor->at - head;
  ncclResult_t result = transfer(group, fd, data, bytes, &at, sends);
  cursor->at = head + at;
  *whole = at == bytes;
  return result;
}

static void advance(struct cursor *cursor)
{
  cursor->operation++;
  cursor->at = 0;
}

static struct request *request_of(struct group *group, uint64_t operation)
{
  return &group->requests[operation % IN_FLIGHT];
}

static ncclResult_t mismatch(struct group *group, int from, const struct header *theirs, const struct header *ours)
{
  WARN("software collnet: member %d reduces %llu x %s (operation %d) where member 0 reduces %llu x %s (operation %d)",
       from, (unsigned long long)theirs->count, software_type_name((ncclDataType_t)theirs->type), theirs->op,
       (unsigned long long)ours->count, software_type_name((ncclDataType_t)ours->type), ours->op);
  group->failed = true;
  return ncclInvalidUsage;
}

/* The root takes what a member sent, as far as it has posted the same itself. */
static ncclResult_t take_inputs(struct group *group, int p)
{
  struct peer *peer = &group->peers[p];
  while (peer->in.operation < group->posted) {
    struct request *request = request_of(group, peer->in.operation);
    bool whole, fresh = peer->in.at < sizeof(peer->header);
    if (fresh) {
      ncclResult_t result = transfer(group, peer->fd, &peer->header, sizeof(peer->header), &peer->in.at, false);
      if (result != ncclSuccess || peer->in.at < sizeof(peer->header)) return result;
      if (memcmp(&peer->header, &request->header, sizeof(peer->header)) != 0)
        return mismatch(group, p + 1, &peer->header, &request->header);
    }
    ncclResult_t result = transfer_message(group, peer->fd, &peer->header, request->inputs + (size_t)p * request->bytes,
                                           request->bytes, &peer->in, false, &whole);
    if (result != ncclSuccess || !whole) return result;
    advance(&peer->in);
  }
  return ncclSuccess;
}

/* In the order of the ranks, so that all get the same bits every time. */
static void reduce_ready(struct group *group)
{
  for (uint64_t operation = group->finished; operation < group->posted; operation++) {
    struct request *request = request_of(group, operation);
    for (int p = 0; p < group->npeers; p++)
      if (group->peers[p].in.operation <= operation) return;
    if (request->reduced) continue;
    memcpy(request->recv, request->send, request->bytes);
    for (int p = 0; p < group->npeers; p++)
      software_reduce(request->recv, request->inputs + (size_t)p * request->bytes, request->header.count,
                      (ncclDataType_t)request->header.type, (ncclRedOp_t)request->header.op);
    request->reduced = true;
  }
}

static ncclResult_t give_results(struct group *group, int p)
{
  struct peer *peer = &group->peers[p];
  while (peer->out.operation < group->posted && request_of(group, peer->out.operation)->reduced) {
    struct request *request = request_of(group, peer->out.operation);
    ncclResult_t result = transfer(group, peer->fd, request->recv, request->bytes, &peer->out.at, true);
    if (result != ncclSuccess || peer->out.at < request->bytes) return result;
    advance(&peer->out);
  }
  return ncclSuccess;
}

static ncclResult_t progress_root(struct group *group)
{
  for (int p = 0; p < group->npeers; p++) {
    ncclResult_t result = take_inputs(group, p);
    if (result != ncclSuccess) return result;
  }
  reduce_ready(group);
  for (int p = 0; p < group->npeers; p++) {
    ncclResult_t result = give_results(group, p);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

static ncclResult_t progress_member(struct group *group)
{
  struct peer *root = &group->peers[0];
  while (root->out.operation < group->posted) {
    struct request *request = request_of(group, root->out.operation);
    bool whole;
    ncclResult_t result = transfer_message(group, root->fd, &request->header, (void *)request->send, request->bytes,
                                           &root->out, true, &whole);
    if (result != ncclSuccess) return result;
    if (!whole) break;
    advance(&root->out);
  }
  while (root->in.operation < root->out.operation) {
    struct request *request = request_of(group, root->in.operation);
    ncclResult_t result = transfer(group, root->fd, request->recv, request->bytes, &root->in.at, false);
    if (result != ncclSuccess) return result;
    if (root->in.at < request->bytes) break;
    advance(&root->in);
  }
  return ncclSuccess;
}

static ncclResult_t progress(struct group *group)
{
  if (group->failed) return ncclRemoteError;
  return group->rank == 0 ? progress_root(group) : progress_member(group);
}

/* ---- Requests ---- */

ncclResult_t software_post(struct group *group, const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, struct request **out)
{
  *out = NULL;
  if (group->posted - group->finished == IN_FLIGHT) return progress(group);
  struct request *request = request_of(group, group->posted);
  size_t bytes = count * software_bytes(type);
  unsigned char *inputs = request->inputs;
  if (group->rank == 0) {
    inputs = realloc(inputs, (size_t)group->npeers * bytes + 1);
    if (!inputs) return ncclSystemError;
  }
  *request = (struct request){.group = group,
                              .header = {.count = count, .type = (int32_t)type, .op = (int32_t)op},
                              .send = send,
                              .recv = recv,
                              .bytes = bytes,
                              .inputs = inputs};
  group->posted++;
  *out = request;
  return progress(group);
}

/* Requests are done in their order, and tested in it by the core; an early one is asked again. */
static bool is_done(struct group *group)
{
  if (group->rank > 0) return group->peers[0].in.operation > group->finished;
  for (int p = 0; p < group->npeers; p++)
    if (group->peers[p].out.operation <= group->finished) return false;
  return request_of(group, group->finished)->reduced;
}

ncclResult_t software_test(struct request *request, int *done)
{
  struct group *group = request->group;
  ncclResult_t result = progress(group);
  *done = result == ncclSuccess && request == request_of(group, group->finished) && is_done(group);
  if (*done) group->finished++;
  return result;
}
