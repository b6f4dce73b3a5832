/* The accepting side. Who has met us is the peer, and shows a card; the comm that it asks for is made, and the answer
 * tells of it. Several may be at it at once. */
#include "net_ib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARD_MS 30000 /* for each of a peer's two messages; its connect moves only when it is polled */

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
  struct tt_meeting *meeting;
  const struct tt_ib_device *device;
  struct client *clients; /* oldest first */
};

ncclResult_t tt_ib_listen(int dev, void *handle, void **listen_comm)
{
  struct listener *listener = NULL;
  struct tt_ib_handle out;
  ncclResult_t result;
  *listen_comm = NULL;
  memset(&out, 0, sizeof out);
  TT_TRY(TT_CALLOC(&listener, 1));
  TT_TRY_GOTO(tt_ib_device(dev, &listener->device), result, out);
  TT_TRY_GOTO(tt_meeting_listen(&tt_ib_meeting, tt_ib_address(), 1, &out.meeting, &listener->meeting), result, out);
  out.rails = (uint32_t)listener->device->count;
  out.qps = (uint32_t)tt_param_int(TT_PARAM_NCCL_IB_QPS_PER_CONNECTION);
  memcpy(handle, &out, sizeof out);
  *listen_comm = listener;
  listener = NULL;
out:
  free(listener);
  return result;
}

static void drop(struct client **at)
{
  struct client *client = *at;
  *at = client->next;
  tt_ib_close_recv(client->comm);
  tt_socket_close(&client->fd);
  free(client);
}

static ncclResult_t take_clients(struct listener *listener)
{
  for (;;) {
    int fds[TT_MEETING_SOCKETS], count;
    struct client *client = NULL, **end = &listener->clients;
    TT_TRY(tt_meeting_accept(listener->meeting, fds, &count));
    if (count == 0) return ncclSuccess;
    ncclResult_t result = TT_CALLOC(&client, 1);
    if (result != ncclSuccess) {
      tt_socket_close(&fds[0]);
      return result;
    }
    client->fd = fds[0];
    client->deadline = tt_deadline_in_ms(CARD_MS);
    while (*end) end = &(*end)->next;
    *end = client;
  }
}

static ncclResult_t make_comm(struct listener *listener, struct client *client)
{
  const struct tt_ib_card *card = &client->card;
  int own = (int)tt_param_int(TT_PARAM_NCCL_IB_FIFO_TC);
  TT_TRY(tt_ib_recv_make(listener->device, (int)card->qps, (int)card->pieces, &client->comm));
  struct tt_ib_link *link = tt_ib_recv_link(client->comm);
  tt_ib_link_met(link, client->fd);
  link->told = true; /* by the answer, before which nothing may be said */
  client->fd = -1;
  TT_TRY(tt_ib_link_connect(link, card, own >= 0 ? (uint8_t)own : card->traffic_class));
  TT_TRY(tt_ib_give_up_lost(link));
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
  answer->connection = client->card.connection;
  answer->traffic_class = client->card.traffic_class;
  answer->service_level = client->card.service_level;
  if (result != ncclSuccess) snprintf(answer->refusal, sizeof answer->refusal, "%s", tt_log_thread_error());
  client->phase = PHASE_TELL;
  client->moved = 0;
  client->deadline = tt_deadline_in_ms(CARD_MS);
  if (result != ncclSuccess) {
    size_t sent = 0;
    tt_ib_socket_move(fd, true, answer, sizeof *answer, &sent);
  }
  return result;
}

static bool card_is_good(const struct listener *listener, const struct tt_ib_card *card)
{
  return card->qps >= 1 && card->qps <= TT_IB_QPS && card->pieces >= 1 && card->pieces <= TT_IB_PIECES &&
         card->pieces <= card->qps && card->rails >= 1 && card->rails <= TT_IB_RAILS &&
         card->qps >= (uint32_t)listener->device->count;
}

/* One step of one client. *gone: it is to be dropped, and why; *ready: the connection is there. */
static ncclResult_t advance(struct listener *listener, struct client *client, const char **gone, bool *ready)
{
  if (client->phase == PHASE_HEAR) {
    size_t bytes = sizeof client->card;
    if (tt_ib_socket_move(client->fd, false, &client->card, bytes, &client->moved) != ncclSuccess) {
      *gone = "it left";
      return ncclSuccess;
    }
    if (client->moved < bytes) return ncclSuccess;
    if (!card_is_good(listener, &client->card)) {
      *gone = "what it wants is impossible; do both run the same version?";
      return ncclSuccess;
    }
    TT_TRY(answer_card(listener, client));
  }
  int fd = tt_ib_recv_link(client->comm)->fd;
  if (client->phase == PHASE_TELL) {
    if (tt_ib_socket_move(fd, true, &client->answer, sizeof client->answer, &client->moved) != ncclSuccess)
      *gone = "it left";
    if (client->moved < sizeof client->answer) return ncclSuccess;
    tt_ib_recv_link(client->comm)->told = false;
    client->phase = PHASE_WAIT;
    client->moved = 0;
  }
  if (tt_ib_socket_move(fd, false, &client->go, sizeof client->go, &client->moved) != ncclSuccess) *gone = "it left";
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
    if (!gone && !ready && tt_deadline_passed(client->deadline)) gone = "it stayed silent";
    if (result != ncclSuccess || ready) {
      drop(at);
      return result;
    }
    if (gone) {
      TT_INFO(TT_NET, "NET/IB : a connection was not made: %s", gone);
      drop(at);
    } else {
      at = &client->next;
    }
  }
  return ncclSuccess;
}

ncclResult_t tt_ib_close_listen(void *listen_comm)
{
  struct listener *listener = listen_comm;
  if (!listener) return ncclSuccess;
  while (listener->clients) drop(&listener->clients);
  tt_meeting_close(listener->meeting);
  free(listener);
  return ncclSuccess;
}
