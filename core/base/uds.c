/* Abstract Unix stream sockets. A descriptor travels with the first byte of its message. */
#include "base/uds.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"
#include "base/hash.h"

#define BACKLOG 4096
/* How long connecting waits for room in a full backlog. */
#define BACKLOG_WAIT_MS 5000
/* More descriptors than ours: all that a peer may squeeze in are received, to be closed. */
#define MANY_FDS 16

/* Returns the address's length, 0 if the name is none. */
static socklen_t fill_address(const char *name, struct sockaddr_un *address)
{
  size_t length = strnlen(name, TT_UDS_NAME_BYTES);
  memset(address, 0, sizeof(*address));
  if (length == 0 || length >= TT_UDS_NAME_BYTES) return 0;
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path + 1, name, length);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static ncclResult_t open_socket(int *fd)
{
  *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd >= 0) return ncclSuccess;
  char hint[100];
  return TT_FAIL(ncclSystemError, "no Unix socket: %s%s", strerror(errno),
                 tt_host_file_hint(errno, hint, sizeof(hint)));
}

ncclResult_t tt_uds_listen_as(const char *prefix, int *fd, char name[TT_UDS_NAME_BYTES])
{
  uint64_t random[2];
  struct sockaddr_un address;
  *fd = -1;
  TT_TRY(tt_random(random, sizeof(random)));
  snprintf(name, TT_UDS_NAME_BYTES, "%.30s%016llx%016llx", prefix, (unsigned long long)random[0],
           (unsigned long long)random[1]);
  int made;
  TT_TRY(open_socket(&made));
  socklen_t bytes = fill_address(name, &address);
  if (bind(made, (struct sockaddr *)&address, bytes) != 0 || listen(made, BACKLOG) != 0) {
    int error = errno;
    close(made);
    return TT_FAIL(ncclSystemError, "cannot listen on the abstract Unix socket @%s: %s", name, strerror(error));
  }
  *fd = made;
  return ncclSuccess;
}

ncclResult_t tt_uds_listen(int *fd, char name[TT_UDS_NAME_BYTES])
{
  return tt_uds_listen_as("tutti-", fd, name);
}

ncclResult_t tt_uds_connect(const char *name, int *fd)
{
  struct sockaddr_un address;
  socklen_t bytes = fill_address(name, &address);
  int made;
  *fd = -1;
  if (!bytes)
    return TT_FAIL(ncclInvalidArgument, "a Unix socket name must have 1 to %d characters", TT_UDS_NAME_BYTES - 1);
  TT_TRY(open_socket(&made));
  tt_deadline deadline = tt_deadline_in_ms(BACKLOG_WAIT_MS);
  while (connect(made, (struct sockaddr *)&address, bytes) != 0) {
    int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN && !tt_deadline_passed(deadline)) {
      nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
      continue;
    }
    close(made);
    if (error == ECONNREFUSED || error == ENOENT) return ncclSuccess;
    return TT_FAIL(ncclSystemError, "cannot connect to the abstract Unix socket @%s: %s", name, strerror(error));
  }
  *fd = made;
  return ncclSuccess;
}

bool tt_uds_is_there(const char *name)
{
  int fd;
  tt_log_hush(true);
  ncclResult_t result = tt_uds_connect(name, &fd);
  tt_log_hush(false);
  if (fd >= 0) close(fd);
  return result != ncclSuccess || fd >= 0;
}

/* True if who connected is the same user or root: abstract names have no file permissions. */
static bool may_talk(int fd)
{
  struct ucred peer;
  socklen_t bytes = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

ncclResult_t tt_uds_accept(int listen_fd, int *fd, tt_deadline deadline)
{
  char hint[100];
  *fd = -1;
  for (;;) {
    int made = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made >= 0 && may_talk(made)) {
      *fd = made;
      return ncclSuccess;
    }
    if (made >= 0) {
      TT_INFO(TT_INIT, "dropped a connection from another user on a Unix socket");
      close(made);
      if (tt_deadline_passed(deadline)) return ncclSuccess;
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    /* Without a free descriptor accept() fails even if nobody waits. */
    struct pollfd waits = {.fd = listen_fd, .events = POLLIN};
    int error = errno;
    if (error != EAGAIN && poll(&waits, 1, 0) != 0)
      return TT_FAIL(ncclSystemError, "accept on a Unix socket: %s%s", strerror(error),
                     tt_host_file_hint(error, hint, sizeof(hint)));
    if (tt_deadline_passed(deadline)) return ncclSuccess;
    struct pollfd ready = {.fd = listen_fd, .events = POLLIN};
    poll(&ready, 1, tt_deadline_poll_ms(deadline, 1000));
  }
}

/* Waits until the socket may be ready; false once the deadline has passed. */
static bool wait_ready(int socket, short events, tt_deadline deadline)
{
  if (tt_deadline_passed(deadline)) return false;
  struct pollfd ready = {.fd = socket, .events = events};
  poll(&ready, 1, tt_deadline_poll_ms(deadline, 1000));
  return true;
}

union control {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(MANY_FDS * sizeof(int))];
};

static void attach_fd(struct msghdr *message, union control *control, int fd)
{
  memset(control, 0, sizeof(*control));
  message->msg_control = control->bytes;
  message->msg_controllen = CMSG_SPACE(sizeof(int));
  struct cmsghdr *header = CMSG_FIRSTHDR(message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(fd));
}

ncclResult_t tt_uds_send(int socket, const void *data, size_t bytes, int fd, tt_deadline deadline)
{
  if (bytes == 0 && fd >= 0)
    return TT_FAIL(ncclInvalidArgument, "a file descriptor needs a byte of data to travel with");
  const char *at = data;
  for (size_t sent = 0; sent < bytes;) {
    union control control;
    struct iovec part = {.iov_base = (char *)at + sent, .iov_len = bytes - sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0 && sent == 0) attach_fd(&message, &control, fd);
    ssize_t put = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      sent += (size_t)put;
    } else if (errno == EAGAIN) {
      if (!wait_ready(socket, POLLOUT, deadline))
        return TT_FAIL(ncclRemoteError, "a peer on this host does not read: %zu of %zu bytes sent before the deadline",
                       sent, bytes);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return TT_FAIL(ncclRemoteError, "a peer on this host closed its Unix socket after %zu of %zu bytes", sent, bytes);
    } else if (errno == ETOOMANYREFS) {
      return TT_FAIL(ncclSystemError, "too many file descriptors are on their way to peers; raise ulimit -n");
    } else if (errno != EINTR) {
      return TT_FAIL(ncclSystemError, "sending to a peer on this host: %s", strerror(errno));
    }
  }
  return ncclSuccess;
}

/* Keeps the first descriptor in *fd, if one is wanted and none came yet, and closes all others. */
static void take_fds(struct msghdr *message, int *fd)
{
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int one;
      memcpy(&one, CMSG_DATA(header) + i * sizeof(one), sizeof(one));
      if (fd && *fd < 0)
        *fd = one;
      else
        close(one);
    }
  }
}

static ncclResult_t recv_all(int socket, char *at, size_t bytes, int *fd, tt_deadline deadline)
{
  char hint[100];
  for (size_t got = 0; got < bytes;) {
    union control control;
    struct iovec part = {.iov_base = at + got, .iov_len = bytes - got};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (count > 0) {
      got += (size_t)count;
      take_fds(&message, fd);
      if (message.msg_flags & MSG_CTRUNC)
        return TT_FAIL(ncclSystemError, "a file descriptor that a peer sent was lost, since there is no room for it%s",
                       tt_host_file_hint(EMFILE, hint, sizeof(hint)));
    } else if (count == 0 || errno == ECONNRESET) {
      return TT_FAIL(ncclRemoteError, "a peer on this host closed its Unix socket after %zu of %zu bytes", got, bytes);
    } else if (errno == EAGAIN) {
      if (!wait_ready(socket, POLLIN, deadline))
        return TT_FAIL(ncclRemoteError, "a peer on this host sent %zu of %zu bytes before the deadline", got, bytes);
    } else if (errno != EINTR) {
      return TT_FAIL(ncclSystemError, "receiving from a peer on this host: %s", strerror(errno));
    }
  }
  return ncclSuccess;
}

ncclResult_t tt_uds_recv(int socket, void *data, size_t bytes, int *fd, tt_deadline deadline)
{
  if (fd) *fd = -1;
  ncclResult_t result = recv_all(socket, data, bytes, fd, deadline);
  if (result != ncclSuccess && fd && *fd >= 0) {
    close(*fd);
    *fd = -1;
  }
  return result;
}
