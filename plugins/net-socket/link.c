/* What send and receive comms share: the main socket, the lanes, and how a lost peer is reported. */
#include "net_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What the kernel had to send again, on all sockets. It counts for a socket that was closed by the peer as well. */
static void count_retries(struct tt_counted *counted)
{
  struct tt_netsocket_link *link = (void *)((char *)counted - offsetof(struct tt_netsocket_link, counted));
  uint64_t retries = 0;
  for (int i = -1; i < link->lanes; i++) {
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (getsockopt(i < 0 ? link->fd : link->lane[i].fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
      retries += info.tcpi_total_retrans;
  }
  tt_count_set(counted, TT_COUNT_RETRIES, retries);
}

static void begin_counting(struct tt_netsocket_link *link, int dev, const void *comm)
{
  struct tt_netsocket_device *device;
  if (tt_netsocket_device(dev, &device) != ncclSuccess) return;
  link->counted = (struct tt_counted){.sends = link->sends,
                                      .dev = dev,
                                      .comm = comm,
                                      .name = device->name,
                                      .peer = link->peer,
                                      .counts = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS | TT_COUNTS_RETRIES |
                                                TT_COUNTS_REFUSED | TT_COUNTS_CLEAR_TO_SENDS | TT_COUNTS_QUEUE_DEPTH |
                                                (link->sends ? TT_COUNTS_CLEAR_TO_SEND_WAITS : 0),
                                      .refresh = count_retries};
  tt_counted_open(&link->counted);
}

ncclResult_t tt_netsocket_link_init(struct tt_netsocket_link *link, bool sends, int dev, const void *comm,
                                    const int *fds, int count)
{
  union tt_address address;
  socklen_t bytes = sizeof address;
  memset(link, 0, sizeof *link);
  link->sends = sends;
  link->fd = fds[0];
  if (getpeername(link->fd, &address.sa, &bytes) == 0)
    tt_address_print(&address, link->peer);
  else
    strcpy(link->peer, "an unknown address");
  for (int i = 0; i < count; i++) tt_meeting_tune(fds[i]);
  ncclResult_t result = tt_netsocket_lanes_start(link, fds + 1, count - 1);
  if (result != ncclSuccess)
    tt_netsocket_link_close(link);
  else
    begin_counting(link, dev, comm);
  return result;
}

void tt_netsocket_link_close(struct tt_netsocket_link *link)
{
  tt_counted_close(&link->counted);
  tt_netsocket_lanes_stop(link);
  tt_socket_close(&link->fd);
}

ncclResult_t tt_netsocket_link_fail(struct tt_netsocket_link *link, ncclResult_t result)
{
  link->failed = result;
  return result;
}

ncclResult_t tt_netsocket_link_lost(struct tt_netsocket_link *link, int error, const char *doing)
{
  const char *cause = error ? strerror(error) : "the connection was closed";
  return tt_netsocket_link_fail(link,
                                TT_FAIL(ncclRemoteError,
                                        "net socket: lost the peer %s while %s: %s; its process ended or the network "
                                        "between failed, see its log",
                                        link->peer, doing, cause));
}
