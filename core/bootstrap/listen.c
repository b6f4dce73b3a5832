/* Listening sockets of roots and ranks; see listen.h. */
#include "bootstrap/listen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/check.h"
#include "base/host.h"

/* A shortage of descriptors that other threads may end by themselves, or that of two ends which give up an attempt. */
#define SHORT_MS 5000

/* The longest queue of connections the system grants. */
static int backlog_for(int nranks)
{
  int limit = SOMAXCONN;
  FILE *file = fopen("/proc/sys/net/core/somaxconn", "re");
  if (file) {
    if (fscanf(file, "%d", &limit) != 1) limit = SOMAXCONN;
    fclose(file);
  }
  /* Never below 64: clients that have no business here queue as well. */
  return TT_MIN(TT_MAX(nranks, 64), limit);
}

static bool same_host_address(const union tt_address *a, const union tt_address *b)
{
  if (a->sa.sa_family != b->sa.sa_family) return false;
  if (a->sa.sa_family == AF_INET) return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
  return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, 16) == 0;
}

/* Moves entry `from` of the list to place `to`, keeping the order of the others. */
static void move(struct tt_interface *list, int from, int to)
{
  struct tt_interface entry = list[from];
  memmove(&list[to + 1], &list[to], (size_t)(from - to) * sizeof(entry));
  list[to] = entry;
}

/* Preferred address first, then the first address of each interface not seen yet. */
static void arrange(struct tt_interface *list, int count, const union tt_address *preferred)
{
  int placed = 0;
  for (int i = 0; preferred && i < count; i++)
    if (same_host_address(&list[i].address, preferred)) {
      move(list, i, placed++);
      break;
    }
  for (int i = placed; i < count; i++) {
    bool seen = false;
    for (int j = 0; j < placed; j++) seen |= strcmp(list[j].name, list[i].name) == 0;
    if (!seen) move(list, i, placed++);
  }
}

ncclResult_t tt_listener_open(const union tt_address *preferred, int max, int nranks, struct tt_listener *listener)
{
  struct tt_interface *list = NULL;
  int count = 0;
  ncclResult_t result = ncclSuccess;
  memset(listener, 0, sizeof(*listener));
  /* A loopback address that led to the root proves that it is usable, whatever else the host has. */
  bool local = preferred && tt_address_is_loopback(preferred);
  TT_TRY(tt_socket_interfaces(&list, &count));
  arrange(list, count, preferred);
  if (local && count > 0 && !tt_address_is_loopback(&list[0].address)) {
    list[0].address = *preferred;
    snprintf(list[0].name, sizeof(list[0].name), "lo");
    count = 1;
  }
  for (int i = 0; i < count && listener->count < TT_MIN(max, TT_ENDPOINT_ADDRESSES); i++) {
    union tt_address address = list[i].address;
    int fd = -1;
    if (address.sa.sa_family == AF_INET)
      address.v4.sin_port = 0;
    else
      address.v6.sin6_port = 0;
    TT_TRY_GOTO(tt_socket_listen(&address, &fd), result, out);
    listen(fd, backlog_for(nranks));
    if (listener->count == 0) memcpy(listener->ifname, list[i].name, sizeof(listener->ifname));
    listener->fds[listener->count] = fd;
    listener->endpoint.addresses[listener->count] = address;
    listener->endpoint.count = ++listener->count;
  }
out:
  free(list);
  if (result != ncclSuccess) tt_listener_close(listener);
  return result;
}

ncclResult_t tt_listener_open_fixed(const union tt_address *address, int nranks, struct tt_listener *listener)
{
  char text[TT_ADDRESS_TEXT], hint[100];
  int one = 1;
  memset(listener, 0, sizeof(*listener));
  int fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return TT_FAIL(ncclSystemError, "socket() for the bootstrap root failed: %s%s", strerror(errno),
                   tt_host_file_hint(errno, hint, sizeof(hint)));
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, &address->sa, tt_address_bytes(address)) != 0 || listen(fd, backlog_for(nranks)) != 0) {
    int error = errno;
    tt_socket_close(&fd);
    return TT_FAIL(ncclInvalidUsage, "rank 0 cannot listen on %s, the address in NCCL_COMM_ID: %s%s",
                   tt_address_print(address, text), strerror(error),
                   error == EADDRINUSE      ? "; another program, or another communicator's root, has this port"
                   : error == EADDRNOTAVAIL ? "; it must be an address of rank 0's host"
                                            : "");
  }
  listener->count = listener->endpoint.count = 1;
  listener->fds[0] = fd;
  listener->endpoint.addresses[0] = *address;
  return ncclSuccess;
}

void tt_listener_close(struct tt_listener *listener)
{
  for (int i = 0; i < listener->count; i++) tt_socket_close(&listener->fds[i]);
  listener->count = 0;
}

bool tt_shortage_note(struct tt_shortage *shortage, bool waits)
{
  if (!waits)
    shortage->since_ns = 0;
  else if (shortage->since_ns == 0)
    shortage->since_ns = tt_timer_ns();
  return waits;
}

bool tt_shortage_lasts(const struct tt_shortage *shortage)
{
  return shortage->since_ns && tt_timer_ns() - shortage->since_ns > SHORT_MS * 1000000ull;
}

int tt_listener_accept(int fd, bool *exhausted)
{
  for (;;) {
    int accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) return accepted;
    /* A client that reset its connection before we took it is no error. */
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    *exhausted |= errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return -1;
  }
}
