/* Dialling: an endpoint's addresses are tried one after the other, each for a bounded time that grows from round to
 * round, so that an interface that goes nowhere costs a second and not the job. See dial.h. */
#include "bootstrap/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/check.h"
#include "base/host.h"
#include "base/param.h"

/* The first round gives each address a second: enough for one lost SYN (retransmitted after 1 s) only from the second
 * round on, but then an address that answers at all has been found long ago. */
#define FIRST_ATTEMPT_MS 1000
#define MAX_ATTEMPT_MS 8000
#define MAX_PAUSE_MS 1000

void tt_dial_tune(int fd)
{
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

static void send_hello(struct tt_link *link)
{
  unsigned char bytes[TT_HELLO_BYTES];
  tt_wire_put_hello(bytes, &link->hello);
  /* 40 bytes always fit the buffer of a fresh connection. */
  if (send(link->fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(bytes)) {
    tt_dial_failed(link, strerror(errno), false);
    return;
  }
  link->state = TT_LINK_CHALLENGE;
  link->head_got = 0;
  link->timer = TT_MIN(tt_deadline_in_ms(TT_LINK_HANDSHAKE_MS), link->deadline);
}

/* To itself, perhaps, where the root of NCCL_COMM_ID does not listen yet; while that stays open, the root cannot. */
static void established(struct tt_link *link)
{
  if (tt_socket_met_itself(link->fd, &link->target.addresses[link->candidate]))
    tt_dial_failed(link, strerror(ECONNREFUSED), true);
  else
    send_hello(link);
}

/* Starts one connect(). */
static void attempt(struct tt_link *link)
{
  const union tt_address *address = &link->target.addresses[link->candidate];
  int fd = socket(address->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    char why[180], hint[100];
    snprintf(why, sizeof(why), "socket(): %s%s", strerror(errno), tt_host_file_hint(errno, hint, sizeof(hint)));
    tt_dial_failed(link, why, false);
    return;
  }
  tt_dial_tune(fd);
  link->fd = fd;
  int shift = link->round < 3 ? link->round : 3;
  link->timer = TT_MIN(tt_deadline_in_ms(TT_MIN(FIRST_ATTEMPT_MS << shift, MAX_ATTEMPT_MS)), link->deadline);
  link->state = TT_LINK_CONNECTING;
  if (connect(fd, &address->sa, tt_address_bytes(address)) == 0)
    established(link);
  else if (errno != EINPROGRESS && errno != EINTR)
    tt_dial_failed(link, strerror(errno), errno == ECONNREFUSED);
}

static bool give_up(const struct tt_link *link)
{
  if (tt_deadline_passed(link->deadline)) return true;
  if (link->refused_ms && link->refused_since &&
      tt_timer_ns() - link->refused_since > (uint64_t)link->refused_ms * 1000000)
    return true;
  return link->retries >= 0 && link->round > link->retries;
}

void tt_dial_failed(struct tt_link *link, const char *why, bool refused)
{
  char text[TT_ADDRESS_TEXT], reason[sizeof(link->why)];
  snprintf(reason, sizeof(reason), "%s: %s", tt_address_print(&link->target.addresses[link->candidate], text), why);
  memcpy(link->why, reason, sizeof(reason));
  tt_socket_close(&link->fd);
  if (!refused)
    link->refused_since = 0;
  else if (!link->refused_since)
    link->refused_since = tt_timer_ns();
  link->eof = false;
  link->state = TT_LINK_PAUSE;
  link->timer = tt_timer_ns(); /* now */
  if (++link->candidate == link->target.count) {
    link->candidate = 0;
    link->round++;
    int64_t pause = tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_SLEEP_MSEC) * link->round;
    /* Ranks that failed together must not come back together. */
    pause = TT_MAX(1, TT_MIN(pause, MAX_PAUSE_MS)) + (int64_t)(link->hello.rank * 7919u % 50u);
    link->timer = TT_MIN(tt_deadline_in_ms(pause), link->deadline);
  }
  if (give_up(link)) tt_link_close(link, reason);
}

static void connected(struct tt_link *link)
{
  struct pollfd poll_fd = {.fd = link->fd, .events = POLLOUT};
  int error = 0;
  socklen_t length = sizeof(error);
  if (poll(&poll_fd, 1, 0) <= 0) {
    if (tt_deadline_passed(link->timer)) tt_dial_failed(link, "no answer to the connection request", false);
    return;
  }
  getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error)
    tt_dial_failed(link, strerror(error), error == ECONNREFUSED);
  else
    established(link);
}

void tt_dial_progress(struct tt_link *link)
{
  if (link->state == TT_LINK_PAUSE && tt_deadline_passed(link->timer)) {
    if (tt_deadline_passed(link->deadline))
      tt_link_close(link, link->why[0] ? link->why : "no time left");
    else
      attempt(link);
  } else if (link->state == TT_LINK_CONNECTING) {
    connected(link);
  }
}

/* A link-local address is good only with a scope of this host, and only the interface that the bootstrap uses here can
 * be meant. */
static void add_candidates(struct tt_link *link, const struct tt_endpoint *target, const union tt_address *local)
{
  link->target = *target;
  if (!local || local->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&local->v6.sin6_addr)) return;
  for (int i = 0; i < target->count; i++) {
    union tt_address *address = &link->target.addresses[i];
    if (address->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr))
      address->v6.sin6_scope_id = local->v6.sin6_scope_id;
  }
}

ncclResult_t tt_link_dial(const struct tt_endpoint *target, const union tt_address *local, const struct tt_key *key,
                          enum tt_purpose purpose, uint64_t nonce, int rank, const struct tt_link_patience *patience,
                          struct tt_link **out)
{
  struct tt_link *link;
  TT_TRY(TT_CALLOC(&link, 1));
  link->fd = -1;
  link->dialled = true;
  link->key = *key;
  link->hello = (struct tt_hello){
      .version = TT_WIRE_VERSION, .purpose = (uint8_t)purpose, .nonce = nonce, .rank = (uint32_t)rank};
  link->deadline = patience->deadline;
  link->refused_ms = patience->refused_ms;
  link->retries = patience->forever ? -1 : (int)tt_param_int(TT_PARAM_NCCL_SOCKET_RETRY_CNT);
  add_candidates(link, target, local);
  ncclResult_t result = tt_random(link->hello.client, sizeof(link->hello.client));
  if (result != ncclSuccess) {
    tt_link_free(link);
    return result;
  }
  attempt(link);
  *out = link;
  return ncclSuccess;
}
