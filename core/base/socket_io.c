/* Moving bytes, waiting, options and closing. */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/socket_internal.h"

/* Without an abort flag to look at, only the deadline ends a wait. */
#define LONG_SLICE_MS 1000

bool tt_socket_aborted(const _Atomic uint32_t *abort)
{
  return abort && atomic_load_explicit(abort, memory_order_acquire) != 0;
}

ncclResult_t tt_socket_abort_result(const char *what)
{
  TT_INFO(TT_INIT | TT_NET, "aborted: %s", what);
  return ncclInternalError;
}

void tt_socket_wait(int fd, short events, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  struct pollfd ready = {.fd = fd, .events = events};
  poll(&ready, fd >= 0 ? 1 : 0, tt_deadline_poll_ms(deadline, abort ? TT_SOCKET_SLICE_MS : LONG_SLICE_MS));
}

void tt_socket_tune(int fd)
{
  union tt_address address;
  socklen_t bytes = sizeof(address);
  if (getsockname(fd, &address.sa, &bytes) != 0) return;
  if (address.sa.sa_family != AF_INET && address.sa.sa_family != AF_INET6) return;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
  int receive = (int)tt_param_int(TT_PARAM_NCCL_SOCKET_RCVBUF), send = (int)tt_param_int(TT_PARAM_NCCL_SOCKET_SNDBUF);
  if (receive >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof(receive));
  if (send >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof(send));
}

/* The peer's address for messages; also says when it is not known any more. */
static const char *peer_text(int fd, char text[TT_ADDRESS_TEXT])
{
  union tt_address address;
  socklen_t bytes = sizeof(address);
  memset(&address, 0, sizeof(address));
  if (getpeername(fd, &address.sa, &bytes) != 0) return "a peer that is gone";
  return tt_address_print(&address, text);
}

/* The stream ended, in whichever way: the peer closed, died, or is out of reach. */
static bool is_gone(int error)
{
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == ENOTCONN || error == ECONNABORTED ||
         error == EHOSTUNREACH || error == ENETUNREACH;
}

ncclResult_t tt_socket_progress(int fd, bool send_it, void *data, size_t bytes, size_t *done, bool *closed)
{
  *closed = false;
  while (*done < bytes) {
    char *at = (char *)data + *done;
    size_t left = bytes - *done;
    ssize_t moved = send_it ? send(fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, left, MSG_DONTWAIT);
    if (moved > 0) {
      *done += (size_t)moved;
      continue;
    }
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == ENOBUFS)) return ncclSuccess;
    if (moved == 0 || is_gone(errno)) {
      *closed = true;
      return ncclSuccess;
    }
    char text[TT_ADDRESS_TEXT];
    int error = errno;
    return TT_FAIL(ncclSystemError, "%s %s: %s", send_it ? "sending to" : "receiving from", peer_text(fd, text),
                   strerror(error));
  }
  return ncclSuccess;
}

static ncclResult_t move_all(int fd, bool send_it, void *data, size_t bytes, tt_deadline deadline,
                             const _Atomic uint32_t *abort)
{
  char text[TT_ADDRESS_TEXT];
  size_t done = 0;
  for (;;) {
    bool closed;
    if (tt_socket_aborted(abort)) return tt_socket_abort_result(send_it ? "send" : "receive");
    TT_TRY(tt_socket_progress(fd, send_it, data, bytes, &done, &closed));
    if (done == bytes) return ncclSuccess;
    if (closed)
      return TT_FAIL(ncclRemoteError, "%s closed the connection after %zu of %zu bytes %s", peer_text(fd, text), done,
                     bytes, send_it ? "sent" : "received");
    if (tt_deadline_passed(deadline))
      return TT_FAIL(ncclRemoteError, "%s: only %zu of %zu bytes %s before the deadline", peer_text(fd, text), done,
                     bytes, send_it ? "taken" : "came");
    tt_socket_wait(fd, send_it ? POLLOUT : POLLIN, deadline, abort);
  }
}

ncclResult_t tt_socket_send(int fd, const void *data, size_t bytes, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  return move_all(fd, true, (void *)data, bytes, deadline, abort);
}

ncclResult_t tt_socket_recv(int fd, void *data, size_t bytes, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  return move_all(fd, false, data, bytes, deadline, abort);
}

void tt_socket_close(int *fd)
{
  int saved = errno;
  if (*fd >= 0) close(*fd);
  *fd = -1;
  errno = saved;
}
