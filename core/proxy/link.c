/* See link.h. */
#include "proxy/link.h"

#include <stdbool.h>
#include <stdlib.h>
#include "base/check.h"
#include "proxy/pool.h"

ncclResult_t tt_proxy_link_create(struct tt_net *net, bool send, void *comm, int max_recvs, struct tt_proxy_link **out)
{
  struct tt_proxy_link *link;
  *out = NULL;
  TT_TRY(TT_CALLOC(&link, 1));
  link->net = tt_net_retain(net);
  link->comm = comm;
  link->send = send;
  link->references = 1;
  link->max_recvs = max_recvs;
  link->requests = tt_net_version(net) <= 6 ? NCCL_NET_MAX_REQUESTS_V6 : NCCL_NET_MAX_REQUESTS;
  link->ready_end = &link->ready;
  pthread_mutex_init(&link->lock, NULL);
  *out = link;
  return ncclSuccess;
}

struct tt_proxy_link *tt_proxy_link_retain(struct tt_proxy_link *link)
{
  pthread_mutex_lock(&link->lock);
  link->references++;
  pthread_mutex_unlock(&link->lock);
  return link;
}

static void free_link(struct tt_proxy_link *link)
{
  for (int i = 0; i < link->nregistrations; i++) tt_proxy_slab_release(link->registrations[i].slab);
  tt_net_close(link->net);
  pthread_mutex_destroy(&link->lock);
  free(link->registrations);
  free(link);
}

void tt_proxy_link_abandon(struct tt_proxy_link *link)
{
  if (link) free_link(link);
}

void tt_proxy_link_release(struct tt_proxy_link *link)
{
  if (!link) return;
  pthread_mutex_lock(&link->lock);
  bool last = --link->references == 0;
  pthread_mutex_unlock(&link->lock);
  if (!last) return;
  for (int i = 0; i < link->nregistrations; i++) tt_net_dereg_mr(link->net, link->comm, link->registrations[i].mhandle);
  if (link->send)
    tt_net_close_send(link->net, link->comm);
  else
    tt_net_close_recv(link->net, link->comm);
  free_link(link);
}

static ncclResult_t reserve(struct tt_proxy_link *link)
{
  if (link->nregistrations < link->capacity) return ncclSuccess;
  int capacity = link->capacity ? 2 * link->capacity : 8;
  struct tt_proxy_registration *grown = realloc(link->registrations, (size_t)capacity * sizeof(*grown));
  if (!grown) return TT_FAIL(ncclSystemError, "no memory for %d registrations", capacity);
  link->registrations = grown;
  link->capacity = capacity;
  return ncclSuccess;
}

ncclResult_t tt_proxy_link_register(struct tt_proxy_link *link, struct tt_proxy_slab *slab, void **mhandle)
{
  for (int i = 0; i < link->nregistrations; i++) {
    *mhandle = link->registrations[i].mhandle;
    if (link->registrations[i].slab == slab) return ncclSuccess;
  }
  TT_TRY(reserve(link));
  size_t bytes;
  void *data = tt_proxy_slab_memory(slab, &bytes);
  ncclResult_t result = tt_net_reg_mr(link->net, link->comm, data, bytes, NCCL_PTR_HOST, mhandle);
  if (result != ncclSuccess)
    return TT_FAIL(result, "network %s cannot register %zu bytes of a pool: check `ulimit -l`", tt_net_name(link->net),
                   bytes);
  link->registrations[link->nregistrations++] = (struct tt_proxy_registration){tt_proxy_slab_retain(slab), *mhandle};
  return ncclSuccess;
}

void tt_proxy_link_keep(struct tt_proxy_link *link, struct tt_proxy_slab *slab, void *mhandle)
{
  tt_proxy_slab_retain(slab); /* without memory for the note, for ever */
  if (reserve(link) == ncclSuccess)
    link->registrations[link->nregistrations++] = (struct tt_proxy_registration){slab, mhandle};
}

void tt_proxy_link_count(struct tt_proxy_link *link, int more)
{
  pthread_mutex_lock(&link->lock);
  link->conns += more;
  pthread_mutex_unlock(&link->lock);
}
