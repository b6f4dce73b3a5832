/* See net_link.h. */
#include "transport/net_link.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/param.h"

struct tt_net_link {
  struct tt_net_link *next;
  bool send;
  uint64_t process; /* of one for receiving: that of the senders */
  int device, channel, index;
  int conns;          /* that use it now; guarded by the links' lock */
  struct tt_net *net; /* that it was made with; referenced */
  struct tt_net_link_offer offer;
  pthread_mutex_t lock; /* guards what follows: who connects calls the network meanwhile */
  void *listen_comm;
  struct tt_proxy_link *wire; /* NULL: not connected yet */
  _Atomic int failed;         /* and `why`; may be read without the lock */
  char why[400];
};

/* Of one communicator in one process, named by the first of its ranks there, and by a number: that rank has the same
 * name in all communicators that share memory. There may be thousands of links, and every one is looked for as often as
 * there are connections. */
struct tt_net_links {
  struct tt_net_links *next;
  char name[TT_UDS_NAME_BYTES];
  uint64_t communicator;
  int envs; /* guarded by `lock`, as is the list */
  int nranks;
  pthread_mutex_t links_lock;    /* guards the lists, and is held for looking only */
  struct tt_net_link **receives; /* by the rank that owns them */
  struct tt_net_link **sends;    /* by the receiving rank */
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

static void free_lists(struct tt_net_links *links)
{
  free(links->receives);
  free(links->sends);
  free(links);
}

static ncclResult_t new_links(const struct tt_transport_env *env, struct tt_net_links **out)
{
  struct tt_net_links *links;
  TT_TRY(TT_CALLOC(&links, 1));
  ncclResult_t result = TT_CALLOC(&links->receives, (size_t)env->nranks);
  if (result == ncclSuccess) result = TT_CALLOC(&links->sends, (size_t)env->nranks);
  if (result != ncclSuccess) {
    free_lists(links);
    return result;
  }
  snprintf(links->name, sizeof(links->name), "%s", name_of(env));
  links->communicator = env->communicator;
  links->nranks = env->nranks;
  pthread_mutex_init(&links->links_lock, NULL);
  *out = links;
  return ncclSuccess;
}

ncclResult_t tt_net_links_open(struct tt_transport_env *env)
{
  const char *name = name_of(env);
  ncclResult_t result = ncclSuccess;
  pthread_mutex_lock(&lock);
  struct tt_net_links *links = all;
  while (links && (links->communicator != env->communicator || strcmp(links->name, name) != 0)) links = links->next;
  if (!links) {
    TT_TRY_GOTO(new_links(env, &links), result, out);
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
  pthread_mutex_destroy(&link->lock);
  free(link);
}

static void free_links(struct tt_net_link **list)
{
  while (*list) {
    struct tt_net_link *link = *list;
    *list = link->next;
    free_link(link);
  }
}

void tt_net_links_close(struct tt_transport_env *env)
{
  struct tt_net_links *links = env->links;
  if (!links) return;
  env->links = NULL;
  pthread_mutex_lock(&links->links_lock);
  free_links(&links->receives[env->rank]);
  pthread_mutex_unlock(&links->links_lock);
  pthread_mutex_lock(&lock);
  bool last = --links->envs == 0;
  struct tt_net_links **at = &all;
  while (last && *at != links) at = &(*at)->next;
  if (last) *at = links->next;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  for (int r = 0; r < links->nranks; r++) {
    free_links(&links->receives[r]);
    free_links(&links->sends[r]);
  }
  pthread_mutex_destroy(&links->links_lock);
  free_lists(links);
}

bool tt_net_link_wanted(const struct tt_transport_env *env, const struct tt_connector *connector, bool pooled)
{
  if (!pooled || !tt_param_int(TT_PARAM_NCCL_NET_SHARED_COMMS)) return false;
  /* There is something to share only if the sending process has several ranks. */
  int sender = connector->send ? env->rank : connector->peer, ranks = 0;
  for (int r = 0; r < env->nranks; r++) ranks += env->peers[r].process == env->peers[sender].process;
  return ranks > 1;
}

/* Of a connection's kind and ranks. */
static struct tt_net_link **list_of(const struct tt_transport_env *env, const struct tt_connector *connector)
{
  return connector->send ? &env->links->sends[connector->peer] : &env->links->receives[env->rank];
}

/* Called with the lists' lock held. */
static ncclResult_t make_link(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                              struct tt_net_link **out)
{
  struct tt_net_link *link = aligned_alloc(_Alignof(struct tt_net_link), sizeof(*link));
  if (!link) return TT_FAIL(ncclSystemError, "no memory for a network connection with rank %d", connector->peer);
  memset(link, 0, sizeof(*link));
  link->send = connector->send;
  link->process = env->peers[connector->peer].process;
  link->device = device;
  link->channel = connector->channel;
  link->index = connector->index;
  link->net = tt_net_retain(env->net);
  pthread_mutex_init(&link->lock, NULL);
  struct tt_net_link **list = list_of(env, connector);
  link->next = *list;
  *list = link;
  *out = link;
  return ncclSuccess;
}

/* Called with the lists' lock held. */
static ncclResult_t listen_new(struct tt_transport_env *env, const struct tt_connector *connector, int device,
                               struct tt_net_link **out)
{
  struct tt_net_link *link;
  TT_TRY(make_link(env, connector, device, &link));
  ncclResult_t result = tt_net_listen(link->net, device, link->offer.handle, &link->listen_comm);
  if (result != ncclSuccess) {
    *list_of(env, connector) = link->next;
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
  struct tt_net_link *link = *list_of(env, connector);
  while (link && (link->process != env->peers[connector->peer].process || link->device != device ||
                  link->channel != connector->channel || link->index != connector->index ||
                  atomic_load(&link->failed) != ncclSuccess || link->conns >= most))
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
  struct tt_net_link *link = *list_of(env, connector);
  while (link && link->offer.id != offer->id) link = link->next;
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

/* One attempt. *comm stays NULL if it is too early. Called with the link's lock held. */
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

/* Called with the link's lock held. */
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
  snprintf(link->why, sizeof(link->why), "%s", tt_log_thread_error());
  atomic_store(&link->failed, result);
  return result;
}

ncclResult_t tt_net_link_connect(struct tt_transport_env *env, struct tt_net_link *link, struct tt_proxy_link **wire)
{
  ncclResult_t result = ncclSuccess;
  *wire = NULL;
  /* Somebody else is at it: its result is seen when this is called again. */
  if (pthread_mutex_trylock(&link->lock) != 0) return ncclSuccess;
  if (atomic_load(&link->failed) != ncclSuccess)
    result = TT_FAIL((ncclResult_t)atomic_load(&link->failed),
                     "the network connection that rank %d shares with others of its process failed: %s", env->rank,
                     link->why);
  else if (!link->wire)
    result = make_wire(link);
  if (result == ncclSuccess && link->wire) *wire = tt_proxy_link_retain(link->wire);
  pthread_mutex_unlock(&link->lock);
  return result;
}

void tt_net_link_leave(struct tt_transport_env *env, struct tt_net_link *link)
{
  if (!link) return;
  pthread_mutex_lock(&env->links->links_lock);
  link->conns--;
  pthread_mutex_unlock(&env->links->links_lock);
}
