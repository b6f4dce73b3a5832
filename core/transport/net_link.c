/* See net_link.h. */
#include "transport/net_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"

struct tt_net_link {
  struct tt_net_link *next;
  bool send;
  int owner;        /* of one for receiving: the rank */
  int peer;         /* of one for sending: the receiving rank */
  uint64_t process; /* of one for receiving: that of the senders */
  int device, channel, index;
  int conns;          /* that use it now */
  struct tt_net *net; /* that it was made with; referenced */
  struct tt_net_link_offer offer;
  void *listen_comm;
  struct tt_proxy_link *wire; /* NULL: not connected yet */
  ncclResult_t failed;        /* and `why` */
  char why[400];
};

/* Of one communicator in one process, named by the first of its ranks there. */
struct tt_net_links {
  struct tt_net_links *next;
  char name[TT_UDS_NAME_BYTES];
  int envs; /* guarded by `lock`, as is the list */
  pthread_mutex_t links_lock;
  struct tt_net_link *links;
  uint64_t ids;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tt_net_links *all;

static const char *name_of(const struct tt_transport_env *env)
{
  int first = 0;
  while (env->peers[first].process != env->peers[env->rank].process) first++;
  return env->peers[first].uds;
}

ncclResult_t tt_net_links_open(struct tt_transport_env *env)
{
  const char *name = name_of(env);
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&lock);
  struct tt_net_links *links = all;
  while (links && strcmp(links->name, name) != 0) links = links->next;
  if (!links) {
    TT_TRY_GOTO(TT_CALLOC(&links, 1), result, out);
    snprintf(links->name, sizeof(links->name), "%s", name);
    pthread_mutex_init(&links->links_lock, NULL);
    links->next = all;
    all = links;
  }
  links->envs++;
  env->links = links;
out:
  pthread_mutex_unlock(&lock);
  return result;
}

static void free_link(struct tt_net_link *link)
{
  if (link->listen_comm) tt_net_close_listen(link->net, link->listen_comm);
  tt_proxy_link_release(link->wire);
  tt_net_close(link->net);
  free(link);
}

/* Frees the links for receiving of a rank, or all. */
static void free_links(struct tt_net_links *links, int owner, bool everything)
{
  for (struct tt_net_link **at = &links->links; *at;) {
    struct tt_net_link *link = *at;
    if (!everything && (link->send || link->owner != owner)) {
      at = &link->next;
      continue;
    }
    *at = link->next;
    free_link(link);
  }
}

void tt_net_links_close(struct tt_transport_env *env)
{
  struct tt_net_links *links = env->links;
  if (!links) return;
  env->links = NULL;
  pthread_mutex_lock(&links->links_lock);
  free_links(links, env->rank, false);
  pthread_mutex_unlock(&links->links_lock);
  pthread_mutex_lock(&lock);
  bool last = --links->envs == 0;
  struct tt_net_links **at = &all;
  while (last && *at != links) at = &(*at)->next;
  if (last) *at = links->next;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  free_links(links, 0, true);
  pthread_mutex_destroy(&links->links_lock);
  free(links);
}

bool tt_net_link_wanted(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  if (!(connector->conn.flags & TT_CONN_POOLED) || !tt_param_int(TT_PARAM_NCCL_NET_SHARED_COMMS)) return false;
  /* There is something to share only if the sending process has several ranks. */
  int sender = connector->send ? env->rank : connector->peer, ranks = 0;
  for (int r = 0; r < env->nranks; r++) ranks += env->peers[r].process == env->peers[sender].process;
  return ranks > 1;
}

/* Called with the lock held. */
static ncclResult_t make_link(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                              struct tt_net_link **out)
{
  struct tt_net_link *link = aligned_alloc(_Alignof(struct tt_net_link), sizeof(*link));
  if (!link) return TT_FAIL(ncclSystemError, "no memory for a network connection with rank %d", connector->peer);
  memset(link, 0, sizeof(*link));
  link->send = connector->send;
  link->owner = env->rank;
  link->peer = connector->peer;
  link->process = env->peers[connector->peer].process;
  link->device = device;
  link->channel = connector->channel;
  link->index = connector->index;
  link->net = tt_net_retain(env->net);
  link->next = env->links->links;
  env->links->links = link;
  *out = link;
  return ncclSuccess;
}

/* Called with the lock held. */
static ncclResult_t listen_new(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                               struct tt_net_link **out)
{
  struct tt_net_link *link;
  TT_TRY(make_link(env, connector, device, &link));
  ncclResult_t result = tt_net_listen(link->net, device, link->offer.handle, &link->listen_comm);
  if (result != ncclSuccess) {
    env->links->links = link->next;
    free_link(link);
    return result;
  }
  link->offer.id = ++env->links->ids;
  *out = link;
  return ncclSuccess;
}

ncclResult_t tt_net_link_offer(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                               struct tt_net_link **out, struct tt_net_link_offer *offer)
{
  /* As many as have two requests each in flight, at the least that the ABI promises: see proxy/transfer.c. */
  int most = (tt_net_version(env->net) <= 6 ? NCCL_NET_MAX_REQUESTS_V6 : NCCL_NET_MAX_REQUESTS) / 2;
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&env->links->links_lock);
  struct tt_net_link *link = env->links->links;
  while (link && (link->send || link->owner != env->rank || link->process != env->peers[connector->peer].process ||
                  link->device != device || link->channel != connector->channel || link->index != connector->index ||
                  link->failed != ncclSuccess || link->conns >= most))
    link = link->next;
  if (!link) result = listen_new(env, connector, device, &link);
  if (result == ncclSuccess) {
    link->conns++;
    *offer = link->offer;
    *out = link;
  }
  pthread_mutex_unlock(&env->links->links_lock);
  return result;
}

ncclResult_t tt_net_link_join(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                              const struct tt_net_link_offer *offer, struct tt_net_link **out)
{
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&env->links->links_lock);
  struct tt_net_link *link = env->links->links;
  while (link && (!link->send || link->peer != connector->peer || link->offer.id != offer->id)) link = link->next;
  if (!link) {
    result = make_link(env, connector, device, &link);
    if (result == ncclSuccess) link->offer = *offer;
  }
  if (result == ncclSuccess) {
    link->conns++;
    *out = link;
  }
  pthread_mutex_unlock(&env->links->links_lock);
  return result;
}

/* One attempt. *comm stays NULL if it is too early. Called with the lock held. */
static ncclResult_t try_to_connect(struct tt_net_link *link, void **comm, int *max_recvs)
{
  *max_recvs = 1;
  if (link->send) return tt_net_connect(link->net, link->device, link->offer.handle, comm);
  TT_TRY(tt_net_accept(link->net, link->listen_comm, comm));
  if (!*comm) return ncclSuccess;
  void *listen_comm = link->listen_comm;
  link->listen_comm = NULL;
  TT_TRY(tt_net_close_listen(link->net, listen_comm));
  ncclNetProperties_v12_t props;
  TT_TRY(tt_net_get_properties(link->net, link->device, &props));
  *max_recvs = props.maxRecvs;
  return ncclSuccess;
}

/* Called with the lock held. */
static ncclResult_t make_wire(struct tt_net_link *link)
{
  void *comm = NULL;
  int max_recvs;
  ncclResult_t result = try_to_connect(link, &comm, &max_recvs);
  if (result == ncclSuccess && !comm) return ncclSuccess;
  if (result == ncclSuccess) result = tt_proxy_link_create(link->net, link->send, comm, max_recvs, &link->wire);
  if (result == ncclSuccess) return ncclSuccess;
  if (comm && link->send) tt_net_close_send(link->net, comm);
  if (comm && !link->send) tt_net_close_recv(link->net, comm);
  link->failed = result;
  snprintf(link->why, sizeof(link->why), "%s", tt_log_thread_error());
  return result;
}

ncclResult_t tt_net_link_connect(struct tt_transport_env *env, struct tt_net_link *link, struct tt_proxy_link **wire)
{
  ncclResult_t result = ncclSuccess;
  *wire = NULL;
  pthread_mutex_lock(&env->links->links_lock);
  if (link->failed != ncclSuccess)
    result = TT_FAIL(link->failed, "the network connection that rank %d shares with others of its process failed: %s",
                     env->rank, link->why);
  else if (!link->wire)
    result = make_wire(link);
  if (result == ncclSuccess && link->wire) *wire = tt_proxy_link_retain(link->wire);
  pthread_mutex_unlock(&env->links->links_lock);
  return result;
}

void tt_net_link_leave(struct tt_transport_env *env, struct tt_net_link *link)
{
  if (!link) return;
  pthread_mutex_lock(&env->links->links_lock);
  link->conns--;
  pthread_mutex_unlock(&env->links->links_lock);
}
