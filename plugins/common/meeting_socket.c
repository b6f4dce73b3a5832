/* How sockets of a connection are set up, and which errors of theirs pass. */
#include "plugins/common/meeting.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include "base/check.h"
#include "base/param.h"

/* An idle connection is tried after TUTTI_PEER_TIMEOUT, and then so many times within half of that: where the whole
 * host is gone the ranks know it by then, and can say so. */
#define KEEPALIVE_PROBES 8
/* Where that is off, a host that vanished is still noticed, after this many seconds and half as many. */
#define KEEPALIVE_ELSE_S 120

/* The one interface of several that is dead is noticed here only, since the ranks still hear of each other. Of the two
 * ends the one that waits notices: it has nothing on its way, which its kernel would rather send again. A kernel
 * answers for a process that is stopped. A failure here costs speed or a late report, so it is not an error. There is
 * no TCP_USER_TIMEOUT: it would also end connections to peers that are alive and merely do not read. */
void tt_meeting_tune(int fd)
{
  int seconds = (int)tt_param_int(TT_PARAM_TUTTI_PEER_TIMEOUT);
  if (seconds == 0) seconds = KEEPALIVE_ELSE_S;
  int one = 1, idle = TT_MIN(seconds, 32767), interval = TT_MIN(TT_MAX(seconds / 2 / KEEPALIVE_PROBES, 1), 32767);
  int probes = TT_MIN(TT_MAX(seconds / 2 / interval, 1), KEEPALIVE_PROBES);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool tt_meeting_transient(int error)
{
  switch (error) {
  case 0: /* closed by the peer */
  case ECONNREFUSED:
  case ECONNRESET:
  case ECONNABORTED:
  case EPIPE:
  case ETIMEDOUT:
  case EHOSTUNREACH:
  case EHOSTDOWN:
  case ENETUNREACH:
  case ENETDOWN:
  case EADDRNOTAVAIL:
  case EAGAIN:
    return true;
  default:
    return false;
  }
}
