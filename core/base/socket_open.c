/* Listening, accepting and connecting, with retries of what may pass. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/host.h"
#include "base/hash.h"
#include "base/param.h"
#include "base/socket.h"
#include "base/socket_internal.h"
#include "base/text.h"

/* More than most kernels grant; they cut it to net.core.somaxconn. */
#define BACKLOG 16384

static uint16_t get_port(const union tt_address *address)
{
  return ntohs(address->sa.sa_family == AF_INET6 ? address->v6.sin6_port : address->v4.sin_port);
}

static void set_port(union tt_address *address, uint16_t port)
{
  if (address->sa.sa_family == AF_INET6)
    address->v6.sin6_port = htons(port);
  else
    address->v4.sin_port = htons(port);
}

static ncclResult_t out_of_files(const char *what)
{
  char hint[100];
  return TT_FAIL(ncclSystemError, "%s: %s%s", what, strerror(errno), tt_host_file_hint(errno, hint, sizeof(hint)));
}

static ncclResult_t open_socket(const union tt_address *address, int *fd)
{
  *fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd >= 0) {
    tt_socket_tune(*fd);
    return ncclSuccess;
  }
  if (errno == EMFILE || errno == ENFILE) return out_of_files("no socket");
  return TT_FAIL(ncclSystemError, "no socket of family %d: %s", address->sa.sa_family, strerror(errno));
}

/* Binds and listens; an errno of the failure. A fixed port must be free again right after its last user ended, hence
 * SO_REUSEADDR; with it two sockets may bind one port, and only listen tells that it is taken. */
static int try_port(int fd, const union tt_address *address)
{
  if (get_port(address) != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  if (bind(fd, &address->sa, tt_address_bytes(address)) != 0) return errno;
  return listen(fd, BACKLOG) != 0 ? errno : 0;
}

/* Tries all ports of the range from a random one on, so that ranks which start together seldom meet. A socket that was
 * bound cannot be bound again, so each try has a fresh one. */
static ncclResult_t listen_in_range(union tt_address *address, const char *range, int *fd)
{
  uint16_t first, last;
  uint32_t start = 0;
  if (!tt_text_port_range(range, &first, &last))
    return TT_FAIL(ncclInvalidUsage, "TUTTI_PORT_RANGE=%s is not allowed: it must be first-last, such as 40000-40099",
                   range);
  TT_TRY(tt_random(&start, sizeof(start)));
  uint32_t count = (uint32_t)(last - first) + 1;
  for (uint32_t i = 0; i < count; i++) {
    set_port(address, (uint16_t)(first + (start + i) % count));
    TT_TRY(open_socket(address, fd));
    int error = try_port(*fd, address);
    if (!error) return ncclSuccess;
    tt_socket_close(fd);
    char text[TT_ADDRESS_TEXT];
    if (error != EADDRINUSE && error != EACCES)
      return TT_FAIL(ncclSystemError, "cannot listen on %s: %s", tt_address_print(address, text), strerror(error));
  }
  return TT_FAIL(ncclSystemError, "all %u ports of TUTTI_PORT_RANGE=%s are taken; widen it", count, range);
}

ncclResult_t tt_socket_listen(union tt_address *address, int *fd)
{
  char text[TT_ADDRESS_TEXT];
  const char *range = tt_param_string(TT_PARAM_TUTTI_PORT_RANGE);
  int made = -1;
  *fd = -1;
  if (get_port(address) == 0 && range) {
    TT_TRY(listen_in_range(address, range, &made));
    *fd = made;
    return ncclSuccess;
  }
  TT_TRY(open_socket(address, &made));
  int error = try_port(made, address);
  socklen_t bytes = sizeof(*address);
  if (!error && getsockname(made, &address->sa, &bytes) != 0) error = errno;
  if (error) {
    tt_socket_close(&made);
    return TT_FAIL(ncclSystemError, "cannot listen on %s: %s%s", tt_address_print(address, text), strerror(error),
                   error == EADDRINUSE ? "; another program listens there" : "");
  }
  *fd = made;
  return ncclSuccess;
}

/* What accept reports of a connection that failed before it was taken; the next one may be fine. */
static bool only_that_connection(int error)
{
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == ENETDOWN || error == ENETUNREACH ||
         error == EHOSTDOWN || error == EHOSTUNREACH || error == ENOPROTOOPT || error == ENONET || error == ETIMEDOUT;
}

ncclResult_t tt_socket_accept(int listen_fd, int *fd, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  *fd = -1;
  for (;;) {
    if (tt_socket_aborted(abort)) return tt_socket_abort_result("accept");
    int made = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made >= 0) {
      tt_socket_tune(made);
      *fd = made;
      return ncclSuccess;
    }
    if (errno == EMFILE || errno == ENFILE) return out_of_files("a connection cannot be accepted");
    if (errno != EAGAIN && !only_that_connection(errno))
      return TT_FAIL(ncclSystemError, "a connection cannot be accepted: %s", strerror(errno));
    if (tt_deadline_passed(deadline)) return ncclSuccess;
    tt_socket_wait(listen_fd, POLLIN, deadline, abort);
  }
}

bool tt_socket_transient(int error)
{
  switch (error) {
  case EINTR:
  case EAGAIN:
  case ETIMEDOUT:
  case EHOSTUNREACH:
  case EHOSTDOWN:
  case ENETUNREACH:
  case ENETDOWN:
  case ECONNREFUSED:
  case ECONNRESET:
  case ECONNABORTED:
  case EADDRNOTAVAIL:
    return true;
  default:
    return false;
  }
}

bool tt_socket_met_itself(int fd, const union tt_address *peer)
{
  const struct linger at_once = {.l_onoff = 1};
  union tt_address own;
  socklen_t bytes = sizeof(own);
  if (getsockname(fd, &own.sa, &bytes) != 0 || own.sa.sa_family != peer->sa.sa_family) return false;
  if (get_port(&own) != get_port(peer)) return false;
  bool same = own.sa.sa_family == AF_INET ? own.v4.sin_addr.s_addr == peer->v4.sin_addr.s_addr
                                          : IN6_ARE_ADDR_EQUAL(&own.v6.sin6_addr, &peer->v6.sin6_addr);
  if (same) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  return same;
}

/* One attempt: 0 with *fd connected, or an errno. ETIMEDOUT at the deadline, ECANCELED for an abort. */
static int attempt(const union tt_address *address, int fd, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  if (connect(fd, &address->sa, tt_address_bytes(address)) != 0 && errno != EINPROGRESS && errno != EINTR) return errno;
  for (;;) {
    if (tt_socket_aborted(abort)) return ECANCELED;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) > 0) break;
    if (tt_deadline_passed(deadline)) return ETIMEDOUT;
    tt_socket_wait(fd, POLLOUT, deadline, abort);
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
  return !error && tt_socket_met_itself(fd, address) ? ECONNREFUSED : error;
}

/* Sleeps, in slices, until `until`, the deadline or an abort. */
static void sleep_until(tt_deadline until, tt_deadline deadline, const _Atomic uint32_t *abort)
{
  if (deadline < until) until = deadline;
  while (!tt_deadline_passed(until) && !tt_socket_aborted(abort)) tt_socket_wait(-1, 0, until, abort);
}

/* The state of one tt_socket_connect. */
struct retries {
  char text[TT_ADDRESS_TEXT];
  int64_t attempts;
  int last, said[8], nsaid; /* causes, as errno */
};

static void say_once(struct retries *retries, int error)
{
  retries->last = error;
  for (int i = 0; i < retries->nsaid; i++)
    if (retries->said[i] == error) return;
  if (retries->nsaid < (int)TT_COUNT(retries->said)) retries->said[retries->nsaid++] = error;
  TT_INFO(TT_INIT | TT_NET, "connecting to %s: %s; trying again", retries->text, strerror(error));
}

static ncclResult_t give_up(const struct retries *retries, uint64_t start)
{
  return TT_FAIL(ncclRemoteError,
                 "cannot connect to %s: %s (%lld attempts in %.1f s; NCCL_SOCKET_RETRY_CNT=%lld, "
                 "NCCL_SOCKET_RETRY_SLEEP_MSEC=%lld, NCCL_SOCKET_TIMEOUT=%lld s). Is the peer alive, is the network "
                 "interface the right one (NCCL_SOCKET_IFNAME), does a firewall close the port (TUTTI_PORT_RANGE)?",
                 retries->text, strerror(retries->last ? retries->last : ETIMEDOUT), (long long)retries->attempts,
                 (double)(tt_timer_ns() - start) / 1e9, (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_CNT),
                 (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC),
                 (long long)tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT));
}

ncclResult_t tt_socket_connect(const union tt_address *address, int *fd, tt_deadline deadline,
                               const _Atomic uint32_t *abort)
{
  struct retries retries = {.attempts = 0};
  uint64_t start = tt_timer_ns();
  int64_t most = tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_CNT);
  int64_t sleep_ms = tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC);
  tt_deadline limit = tt_deadline_in_ms(tt_param_int(TT_PARAM_NCCL_SOCKET_TIMEOUT) * 1000);
  *fd = -1;
  if (limit < deadline) deadline = limit;
  tt_address_print(address, retries.text);
  for (;;) {
    int made;
    if (tt_socket_aborted(abort)) return tt_socket_abort_result(retries.text);
    TT_TRY(open_socket(address, &made));
    int error = attempt(address, made, deadline, abort);
    if (!error) {
      *fd = made;
      return ncclSuccess;
    }
    tt_socket_close(&made);
    if (error == ECANCELED) return tt_socket_abort_result(retries.text);
    if (!tt_socket_transient(error))
      return TT_FAIL(ncclSystemError, "cannot connect to %s: %s", retries.text, strerror(error));
    retries.attempts++;
    if (retries.attempts > most || tt_deadline_passed(deadline)) {
      /* At the deadline the cause of an earlier attempt says more. */
      if (!retries.last || error != ETIMEDOUT) retries.last = error;
      return give_up(&retries, start);
    }
    say_once(&retries, error);
    sleep_until(tt_deadline_in_ms(sleep_ms * retries.attempts), deadline, abort);
    if (tt_deadline_passed(deadline)) return give_up(&retries, start);
  }
}
