/* Receives of several connections in one request, where these share a comm.
 *
 * A group is complete when all its messages have come, so each of them may seem to come as late as the last. Nobody may
 * wait for that who could make the last one come, so only the last message that is expected of a connection joins a
 * group: all before it are posted by themselves, and its sender is through when the network has taken it. What is
 * delayed is then only the end of this rank's own operations, which waits for all messages anyway. Small messages are
 * their connections' last ones, so those that profit are grouped.
 *
 * All collectives of a user's group are announced before the first runs, and run one after another. Who is to send for
 * a later one may wait until this rank is through with an earlier one: so a group has messages of one turn alone
 * (tt_proxy_next_turn).
 *
 * Not so those of devices whose works are asked for while they run (running.c): what a work has received may let its
 * device begin another one, which somebody waits for. */
#include <stdlib.h>
#include "base/check.h"
#include "proxy/internal.h"

struct tt_proxy_group {
  void *request;
  int left; /* members that have not taken their message */
  bool done;
  int sizes[TT_NET_MAX_RECVS];
};

bool tt_proxy_group_fits(const struct tt_proxy_conn *conn)
{
  return conn->config.link && !conn->config.send && !conn->config.free_running && conn->wire->max_recvs > 1 &&
         conn->wire->conns > 1 && conn->expected - conn->posted == 1;
}

void tt_proxy_group_offer(struct tt_proxy_conn *conn)
{
  struct tt_proxy_link *link = conn->wire;
  if (conn->ready) return;
  conn->ready = true;
  conn->ready_next = NULL;
  *link->ready_end = conn;
  link->ready_end = &conn->ready_next;
  if (link->listed) return;
  link->listed = true;
  link->next_listed = conn->proxy->listed;
  conn->proxy->listed = link;
}

static void take_out(struct tt_proxy_link *link, struct tt_proxy_conn **at)
{
  struct tt_proxy_conn *conn = *at;
  *at = conn->ready_next;
  if (!*at) link->ready_end = at;
  conn->ready = false;
}

/* What the plugin is asked to receive. */
struct batch {
  int n;
  struct tt_proxy_conn *conns[TT_NET_MAX_RECVS];
  void *data[TT_NET_MAX_RECVS], *mhandles[TT_NET_MAX_RECVS];
  size_t bytes[TT_NET_MAX_RECVS];
  int tags[TT_NET_MAX_RECVS];
};

static struct tt_proxy_transfer *next_transfer(struct tt_proxy_conn *conn)
{
  return &conn->transfers[conn->posted % TT_SLOTS];
}

/* Whether who was offered still is to join. Who was expected to receive more since went on by itself; it is offered
 * again when its last message has a slot, which is not so while that is the one of an earlier message under way. */
static bool is_ready(struct tt_proxy_conn *conn)
{
  const struct tt_proxy_transfer *transfer = next_transfer(conn);
  return tt_proxy_group_fits(conn) && transfer->prepared && !transfer->request;
}

/* As many as fit of those that are ready, all of one turn. */
static void fill(struct tt_proxy_link *link, struct batch *batch)
{
  batch->n = 0;
  for (struct tt_proxy_conn **at = &link->ready; *at && batch->n < link->max_recvs;) {
    struct tt_proxy_conn *conn = *at;
    if (!is_ready(conn)) {
      take_out(link, at);
      continue;
    }
    if (batch->n > 0 && conn->turn != batch->conns[0]->turn) break;
    const struct tt_proxy_transfer *transfer = next_transfer(conn);
    batch->conns[batch->n] = conn;
    batch->data[batch->n] = transfer->data;
    batch->mhandles[batch->n] = transfer->mhandle;
    batch->bytes[batch->n] = transfer->bytes;
    batch->tags[batch->n++] = conn->config.tag;
    at = &conn->ready_next;
  }
}

/* The members' transfers are the group's now; a message alone needs none. */
static ncclResult_t note(struct tt_proxy_link *link, const struct batch *batch, void *request)
{
  struct tt_proxy_group *group = NULL;
  if (batch->n > 1) TT_TRY(TT_CALLOC(&group, 1));
  if (group) *group = (struct tt_proxy_group){.request = request, .left = batch->n};
  for (int i = 0; i < batch->n; i++) {
    struct tt_proxy_transfer *transfer = next_transfer(batch->conns[i]);
    transfer->request = request;
    transfer->group = group;
    transfer->member = i;
    take_out(link, &link->ready);
    tt_proxy_conn_posted(batch->conns[i]);
  }
  return ncclSuccess;
}

/* Called with the link's lock held. */
static ncclResult_t post_link(struct tt_proxy_link *link, bool *moved)
{
  struct batch batch;
  while (link->ready) {
    void *request = NULL;
    fill(link, &batch);
    if (batch.n == 0) break;
    ncclResult_t result = tt_net_irecv(link->net, link->comm, batch.n, batch.data, batch.bytes, batch.tags,
                                       batch.mhandles, NULL, &request);
    if (result != ncclSuccess)
      return TT_FAIL(result, "rank %d: receiving from rank %d and %d others via %s failed: %s",
                     batch.conns[0]->proxy->rank, batch.conns[0]->config.peer, batch.n - 1, batch.conns[0]->label,
                     tt_log_thread_error());
    if (!request) break;
    TT_TRY(note(link, &batch, request));
    *moved = true;
  }
  return ncclSuccess;
}

ncclResult_t tt_proxy_groups_post(struct tt_proxy *proxy, bool *moved)
{
  ncclResult_t result = ncclSuccess;
  for (struct tt_proxy_link **at = &proxy->listed; *at && result == ncclSuccess;) {
    struct tt_proxy_link *link = *at;
    pthread_mutex_lock(&link->lock);
    result = post_link(link, moved);
    pthread_mutex_unlock(&link->lock);
    link->listed = link->ready != NULL;
    if (link->listed)
      at = &link->next_listed;
    else
      *at = link->next_listed;
  }
  return result;
}

ncclResult_t tt_proxy_group_test(struct tt_proxy_conn *conn, struct tt_proxy_transfer *transfer, int *done, int *size)
{
  struct tt_proxy_group *group = transfer->group;
  int complete = 0;
  if (!group->done) TT_TRY(tt_net_test(conn->proxy->net, group->request, &complete, group->sizes));
  group->done |= complete != 0;
  *done = group->done;
  *size = group->sizes[transfer->member];
  return ncclSuccess;
}

void tt_proxy_group_leave(struct tt_proxy_transfer *transfer)
{
  struct tt_proxy_group *group = transfer->group;
  transfer->group = NULL;
  if (group && --group->left == 0) free(group);
}

void tt_proxy_group_forget(struct tt_proxy_conn *conn)
{
  struct tt_proxy_link *link = conn->wire;
  for (struct tt_proxy_conn **at = &link->ready; conn->ready && *at;) {
    if (*at == conn)
      take_out(link, at);
    else
      at = &(*at)->ready_next;
  }
  for (int i = 0; i < TT_SLOTS; i++) tt_proxy_group_leave(&conn->transfers[i]);
  if (link->ready || !link->listed) return;
  struct tt_proxy_link **listed = &conn->proxy->listed;
  while (*listed != link) listed = &(*listed)->next_listed;
  *listed = link->next_listed;
  link->listed = false;
}
