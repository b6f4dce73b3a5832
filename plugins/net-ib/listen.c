/* The accepting side. Anyone can connect to a listening port, so nothing counts before it has proved itself: a client
 * that is silent, slow, wrong or gone is dropped and counted, and disturbs nobody.
 *
 * A real peer may be dropped as too slow, since its connect moves only when it is polled; it notices and comes back. */
#include "net_ib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/host.h"

#define GREETING_MS 5000 /* for a card */
#define ANSWER_MS 30000  /* from the card to the sender's GO */
#define CLIENTS 256      /* that have not shown a card; the oldest goes when more come */

enum phase { PHASE_HEAR, PHASE_TELL, PHASE_WAIT };

struct client {
  int fd; /* -1 once the comm has it */
  enum phase phase;
  tt_deadline deadline;
  size_t moved;
  struct tt_ib_card card, answer;
  struct tt_ib_note go;
  struct tt_ib_recv_comm *comm;
  struct client *next;
};

struct listener {
  int fd;
  const struct tt_ib_device *device;
  struct tt_key key;
  union tt_address address;
  struct client *clients; /* oldest first */
  int count;
  uint64_t dropped;
};

ncclResult_t tt_ib_listen(int dev, void *handle, void **listen_comm)
{
  struct listener *listener = NULL;
  ncclResult_t result;
  *listen_comm = NULL;
  TT_TRY(TT_CALLOC(&listener, 1));
  listener->fd = -1;
  TT_TRY_GOTO(tt_ib_device(dev, &listener->device), result, out);
  TT_TRY_GOTO(tt_random(&listener->key, sizeof listener->key), result, out);
  listener->address = *tt_ib_address();
  TT_TRY_GOTO(tt_socket_listen(&listener->address, &listener->fd), result, out);
  struct tt_ib_handle out;
  memset(&out, 0, sizeof out);
  out.magic = TT_IB_MAGIC;
  out.key = listener->key;
  out.rails = (uint32_t)listener->device->count;
  out.qps = (uint32_t)tt_param_int(TT_PARAM_NCCL_IB_QPS_PER_CONNECTION);
  out.address = listener->address;
  memcpy(handle, &out, sizeof out);
  *listen_comm = listener;
  listener = NULL;
out:
  free(listener);
  return result;
}

static void drop(struct listener *listener, struct client **at)
{
  struct client *client = *at;
  *at = client->next;
  listener->count--;
  tt_ib_close_recv(client->comm);
  tt_socket_close(&client->fd);
  free(client);
}

/* The first is worth a line, since it tells of a port scanner or a wrong firewall; the sum is told at the end. */
static void drop_stranger(struct listener *listener, struct client **at, const char *why)
{
  char text[TT_ADDRESS_TEXT];
  if (listener->dropped++ == 0)
    TT_INFO(TT_NET, "NET/IB : dropped a client of %s that %s; waiting on for the real peer",
            tt_address_print(&listener->address, text), why);
  drop(listener, at);
}

/* Takes all that waits at the port. Errors of single connections are theirs; only a lack of resources is ours, and then
 * strangers make room first. */
static ncclResult_t take_clients(struct listener *listener)
{
  for (;;) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return ncclSuccess;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        char hint[100];
        if (listener->clients) {
          drop_stranger(listener, &listener->clients, "was the oldest one when descriptors ran out");
          return ncclSuccess;
        }
        return TT_FAIL(ncclSystemError, "net ib: cannot accept a connection: %s%s", strerror(errno),
                       tt_host_file_hint(errno, hint, sizeof hint));
      }
      if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
        return TT_FAIL(ncclInternalError, "net ib: accept on a listener that is not open: %s", strerror(errno));
      continue;
    }
    if (listener->count == CLIENTS) drop_stranger(listener, &listener->clients, "was the oldest of too many");
    struct client *client = NULL, **end = &listener->clients;
    ncclResult_t result = TT_CALLOC(&client, 1);
    if (result != ncclSuccess) {
      close(fd);
      return result;
    }
    client->fd = fd;
    client->deadline = tt_deadline_in_ms(GREETING_MS);
    while (*end) end = &(*end)->next;
    *end = client;
    listener->count++;
  }
}

static ncclResult_t make_comm(struct listener *listener, struct client *client)
{
  const struct tt_ib_card *card = &client->card;
  int own = (int)tt_param_int(TT_PARAM_NCCL_IB_FIFO_TC);
  TT_TRY(tt_ib_recv_make(listener->device, (int)card->qps, (int)card->pieces, &client->comm));
  struct tt_ib_link *link = tt_ib_recv_link(client->comm);
  link->fd = client->fd;
  client->fd = -1;
  TT_TRY(tt_ib_link_connect(link, card, own >= 0 ? (uint8_t)own : card->traffic_class));
  TT_TRY(tt_ib_recv_start(client->comm));
  tt_ib_link_card(link, tt_ib_recv_memory(client->comm), &client->answer);
  return ncclSuccess;
}

/* Makes the comm that the card asks for, and the answer. What goes wrong is told to the peer too. */
static ncclResult_t answer_card(struct listener *listener, struct client *client)
{
  int fd = client->fd;
  struct tt_ib_card *answer = &client->answer;
  ncclResult_t result = make_comm(listener, client);
  answer->magic = TT_IB_MAGIC;
  answer->connection = client->card.connection;
  answer->answers = 1;
  answer->traffic_class = client->card.traffic_class;
  answer->service_level = client->card.service_level;
  if (result != ncclSuccess) snprintf(answer->refusal, sizeof answer->refusal, "%s", tt_log_thread_error());
  answer->proof = tt_ib_card_proof(&listener->key, answer);
  client->phase = PHASE_TELL;
  client->moved = 0;
  client->deadline = tt_deadline_in_ms(ANSWER_MS);
  if (result != ncclSuccess) {
    size_t sent = 0;
    tt_ib_socket_move(fd, true, answer, sizeof *answer, &sent);
  }
  return result;
}

static bool card_is_good(const struct listener *listener, const struct tt_ib_card *card)
{
  return card->magic == TT_IB_MAGIC && !card->answers && card->proof == tt_ib_card_proof(&listener->key, card) &&
         card->qps >= 1 && card->qps <= TT_IB_QPS && card->pieces >= 1 && card->pieces <= TT_IB_PIECES &&
         card->pieces <= card->qps && card->rails >= 1 && card->rails <= TT_IB_RAILS &&
         card->qps >= (uint32_t)listener->device->count;
}

/* One step of one client. *gone: it is to be dropped, and why; *ready: the connection is there. */
static ncclResult_t advance(struct listener *listener, struct client *client, const char **gone, bool *ready)
{
  if (client->phase == PHASE_HEAR) {
    size_t bytes = sizeof client->card;
    if (tt_ib_socket_move(client->fd, false, &client->card, bytes, &client->moved) != ncclSuccess) {
      *gone = "left without a greeting";
      return ncclSuccess;
    }
    if (client->moved < bytes) return ncclSuccess;
    if (!card_is_good(listener, &client->card)) {
      *gone = "did not know the secret of this port";
      return ncclSuccess;
    }
    TT_TRY(answer_card(listener, client));
  }
  int fd = tt_ib_recv_link(client->comm)->fd;
  if (client->phase == PHASE_TELL) {
    if (tt_ib_socket_move(fd, true, &client->answer, sizeof client->answer, &client->moved) != ncclSuccess)
      *gone = "left before its answer";
    if (client->moved < sizeof client->answer) return ncclSuccess;
    client->phase = PHASE_WAIT;
    client->moved = 0;
  }
  if (tt_ib_socket_move(fd, false, &client->go, sizeof client->go, &client->moved) != ncclSuccess)
    *gone = "left before the connection was there";
  *ready = client->moved == sizeof client->go && client->go.kind == TT_IB_GO;
  return ncclSuccess;
}

ncclResult_t tt_ib_accept(void *listen_comm, void **recv_comm)
{
  struct listener *listener = listen_comm;
  *recv_comm = NULL;
  if (!listener) return TT_FAIL(ncclInternalError, "net ib: accept on NULL");
  TT_TRY(take_clients(listener));
  for (struct client **at = &listener->clients; *at;) {
    struct client *client = *at;
    const char *gone = NULL;
    bool ready = false;
    ncclResult_t result = advance(listener, client, &gone, &ready);
    if (ready) {
      *recv_comm = client->comm;
      client->comm = NULL;
    }
    if (!gone && !ready && tt_deadline_passed(client->deadline)) gone = "stayed silent";
    if (result != ncclSuccess || ready) {
      drop(listener, at);
      return result;
    }
    if (gone)
      drop_stranger(listener, at, gone);
    else
      at = &client->next;
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_close_listen(void *listen_comm)
{
  struct listener *listener = listen_comm;
  char text[TT_ADDRESS_TEXT];
  if (!listener) return ncclSuccess;
  if (listener->dropped)
    TT_INFO(TT_NET, "NET/IB : %s dropped %llu clients that were not the peer",
            tt_address_print(&listener->address, text), (unsigned long long)listener->dropped);
  while (listener->clients) drop(listener, &listener->clients);
  tt_socket_close(&listener->fd);
  free(listener);
  return ncclSuccess;
}
