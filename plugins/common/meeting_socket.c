/* How sockets of a connection are set up, and which errors of theirs pass. */
#include "plugins/common/meeting.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

void tt_meeting_tune(int fd)
{
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  tt_socket_watch_peer(fd);
}

bool tt_meeting_transient(int error)
{
  return error == 0 /* closed by the peer */ || error == EPIPE || tt_socket_transient(error);
}
