/* See collnet.h. Each member listens once a channel, makes what it needs, and tells all others its handles; then they
 * connect, channel after channel. After each step they learn whether one of them failed, so that nobody waits for it in
 * the next. Slots lie in memory of this rank alone. */
#include "transport/collnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/check.h"
#include "bootstrap/bootstrap.h"
#include "proxy/reduce.h"
#include "transport/buffers.h"

struct link {
  struct tt_connector ends[2]; /* receive, send */
  unsigned char *block;
  size_t block_bytes;
  int device;
  void *listen_comm, *comm; /* comm: until the proxy has it */
  struct tt_proxy_reduce *reduce;
};

struct tt_collnet_links {
  struct tt_transport_env *env;
  struct tt_collnet_links_config config;
  struct link *links; /* nchannels */
};

/* What a member tells the others: whether it failed, then its handles, one a channel. */
static size_t hello_bytes(const struct tt_collnet_links_config *config)
{
  return sizeof(struct tt_collnet_failure) + (size_t)config->nchannels * NCCL_NET_HANDLE_MAXSIZE;
}

static struct tt_collnet_failure *hello_of(const struct tt_collnet_links_config *config, unsigned char *all, int member)
{
  return (struct tt_collnet_failure *)(void *)(all + (size_t)member * hello_bytes(config));
}

static unsigned char *handle_of(const struct tt_collnet_links_config *config, unsigned char *all, int member,
                                int channel)
{
  unsigned char *handles = (unsigned char *)(hello_of(config, all, member) + 1);
  return handles + (size_t)channel * NCCL_NET_HANDLE_MAXSIZE;
}

static ncclResult_t listen_all(struct tt_collnet_links *links, unsigned char *all)
{
  const struct tt_collnet_links_config *config = &links->config;
  const struct tt_peer_info *peers = links->env->peers;
  int ndev = tt_collnet_ndev(config->collnet), index = 0;
  /* Spreads the channels of all ranks of a node over its devices. */
  for (int r = 0; r < links->env->rank; r++) index += peers[r].node == peers[links->env->rank].node;
  for (int c = 0; c < config->nchannels; c++) {
    struct link *link = &links->links[c];
    link->device = (index + c) % ndev;
    TT_TRY(tt_collnet_listen(config->collnet, link->device, handle_of(config, all, config->me, c), &link->listen_comm));
  }
  return ncclSuccess;
}

static void note(struct tt_collnet_failure *failure, int rank, ncclResult_t result)
{
  *failure = (struct tt_collnet_failure){.result = result, .rank = rank};
  if (result != ncclSuccess) snprintf(failure->why, sizeof(failure->why), "%s", tt_log_thread_error());
}

/* Two buffers of the Simple protocol and their FIFOs. */
static ncclResult_t make_block(struct tt_collnet_links *links, int channel)
{
  struct link *link = &links->links[channel];
  struct tt_buffers buffers;
  TT_TRY(tt_buffers_layout(links->env, 1u << TT_PROTO_SIMPLE, &buffers));
  size_t fifo = TT_SLOTS * sizeof(struct tt_conn_fifo), bytes = 2 * buffers.bytes + 2 * fifo;
  void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED)
    return TT_FAIL(ncclSystemError, "%zu bytes for a connection with network %s: %m; lower NCCL_BUFFSIZE", bytes,
                   tt_collnet_name(links->config.collnet));
  link->block = block;
  link->block_bytes = bytes;
  for (int send = 0; send < 2; send++) {
    struct tt_connector *end = &link->ends[send];
    *end = (struct tt_connector){.peer = TT_PEER_NETWORK - links->config.network, .channel = channel, .send = send};
    end->conn.peer = end->peer;
    tt_buffers_apply(&buffers, link->block + (size_t)send * buffers.bytes, &end->conn);
    tt_buffers_start(&end->conn, links->env->first_step);
    end->conn.fifo = (struct tt_conn_fifo *)(void *)(link->block + 2 * buffers.bytes + (size_t)send * fifo);
    end->conn.flags = TT_CONN_PROXIED;
    end->connected = true;
    end->bytes = bytes / 2;
  }
  ncclNetProperties_v12_t props;
  TT_TRY(tt_collnet_get_properties(links->config.collnet, link->device, &props));
  size_t payload = buffers.slot_bytes[TT_PROTO_SIMPLE] - TT_SLOT_HEADER;
  if (payload <= props.maxCollBytes) return ncclSuccess;
  return TT_FAIL(ncclInvalidUsage,
                 "slots of %zu bytes are more than the %zu that network %s reduces at once: lower NCCL_BUFFSIZE to at "
                 "most %zu",
                 payload, props.maxCollBytes, tt_collnet_name(links->config.collnet), props.maxCollBytes * TT_SLOTS);
}

/* All that a member does alone before it connects. */
static ncclResult_t prepare(struct tt_collnet_links *links, unsigned char *all)
{
  struct tt_transport_env *env = links->env;
  /* A communicator without a net plugin has no proxy yet. */
  if (!env->proxy) TT_TRY(tt_proxy_create(NULL, env->rank, &env->proxy));
  TT_TRY(listen_all(links, all));
  for (int c = 0; c < links->config.nchannels; c++) TT_TRY(make_block(links, c));
  return ncclSuccess;
}

/* ---- All members ---- */

/* Tells the others how it went here, and what else this member's part of `all` holds. Fails if it went wrong anywhere:
 * *failure is this member's own, if it has one, or else another's. */
static ncclResult_t exchange(const struct tt_collnet_links *links, struct tt_bootstrap *bootstrap, ncclResult_t result,
                             void *all, size_t each, struct tt_collnet_failure *failure)
{
  const struct tt_collnet_links_config *config = &links->config;
  unsigned char *parts = all;
  note((struct tt_collnet_failure *)(void *)(parts + (size_t)config->me * each), links->env->rank, result);
  TT_TRY(tt_bootstrap_group_all_gather(bootstrap, config->members, config->me, config->nmembers, all, each));
  for (int i = 0; i < config->nmembers; i++) {
    int member = (config->me + i) % config->nmembers;
    memcpy(failure, parts + (size_t)member * each, sizeof(*failure));
    failure->why[sizeof(failure->why) - 1] = '\0';
    if (failure->result != ncclSuccess) return (ncclResult_t)failure->result;
  }
  return ncclSuccess;
}

static ncclResult_t connect_channel(struct tt_collnet_links *links, int channel, unsigned char *all, void **handles)
{
  const struct tt_collnet_links_config *config = &links->config;
  struct link *link = &links->links[channel];
  for (int m = 0; m < config->nmembers; m++) handles[m] = handle_of(config, all, m, channel);
  TT_TRY(tt_collnet_connect(config->collnet, handles, config->nmembers, config->me, link->listen_comm, &link->comm));
  TT_TRY(tt_collnet_close_listen(config->collnet, link->listen_comm));
  link->listen_comm = NULL;
  char label[64];
  snprintf(label, sizeof(label), "COLLNET/%s/%d", tt_collnet_name(config->collnet), link->device);
  const struct tt_proxy_reduce_config reduce = {.collnet = config->collnet,
                                                .comm = link->comm,
                                                .send = &link->ends[1].conn,
                                                .recv = &link->ends[0].conn,
                                                .label = label};
  TT_TRY(tt_proxy_reduce_create(links->env->proxy, &reduce, &link->reduce));
  link->comm = NULL;
  link->ends[1].reduced = link->reduce;
  TT_INFO(TT_INIT | TT_NET, "CollNet %02d/%d : %d [network %d of %d ranks] via %s", channel, link->device,
          links->env->rank, config->network, config->nmembers, label);
  return ncclSuccess;
}

/* A plugin's connect may wait for all members: nobody begins the next one before all are through with the last. */
static ncclResult_t connect_all(struct tt_collnet_links *links, struct tt_bootstrap *bootstrap, unsigned char *all,
                                struct tt_collnet_failure *failure)
{
  const struct tt_collnet_links_config *config = &links->config;
  struct tt_collnet_failure *told = NULL;
  void **handles = NULL;
  ncclResult_t result;
  TT_TRY_GOTO(TT_CALLOC(&handles, (size_t)config->nmembers), result, out);
  TT_TRY_GOTO(TT_CALLOC(&told, (size_t)config->nmembers), result, out);
  for (int c = 0; c < config->nchannels; c++) {
    result = connect_channel(links, c, all, handles);
    TT_TRY_GOTO(exchange(links, bootstrap, result, told, sizeof(*told), failure), result, out);
  }
out:
  free(told);
  free(handles);
  return result;
}

ncclResult_t tt_collnet_links_create(struct tt_transport_env *env, struct tt_bootstrap *bootstrap,
                                     const struct tt_collnet_links_config *config, struct tt_collnet_links **out,
                                     struct tt_collnet_failure *failure)
{
  struct tt_collnet_links *links;
  unsigned char *all = NULL;
  ncclResult_t result;
  *out = NULL;
  *failure = (struct tt_collnet_failure){.result = ncclSuccess};
  TT_TRY_GOTO(TT_CALLOC(&links, 1), result, out);
  links->env = env;
  links->config = *config;
  TT_TRY_GOTO(TT_CALLOC(&links->links, (size_t)config->nchannels), result, out);
  TT_TRY_GOTO(TT_CALLOC(&all, (size_t)config->nmembers * hello_bytes(config)), result, out);
  result = prepare(links, all);
  TT_TRY_GOTO(exchange(links, bootstrap, result, all, hello_bytes(config), failure), result, out);
  TT_TRY_GOTO(connect_all(links, bootstrap, all, failure), result, out);
  links->config.members = NULL; /* the caller's */
  *out = links;
out:
  free(all);
  if (result != ncclSuccess && failure->result == ncclSuccess) note(failure, env->rank, result);
  if (result != ncclSuccess) tt_collnet_links_destroy(links);
  return result;
}

void tt_collnet_links_destroy(struct tt_collnet_links *links)
{
  if (!links) return;
  for (int c = 0; links->links && c < links->config.nchannels; c++) {
    struct link *link = &links->links[c];
    tt_proxy_reduce_destroy(link->reduce);
    tt_collnet_close_coll(links->config.collnet, link->comm);
    tt_collnet_close_listen(links->config.collnet, link->listen_comm);
    if (link->block) munmap(link->block, link->block_bytes);
  }
  free(links->links);
  free(links);
}

struct tt_connector *tt_collnet_links_connector(struct tt_collnet_links *links, int peer, int channel, bool send)
{
  if (!links || peer != TT_PEER_NETWORK - links->config.network || channel < 0 || channel >= links->config.nchannels)
    return NULL;
  return &links->links[channel].ends[send];
}

size_t tt_collnet_links_bytes(const struct tt_collnet_links *links)
{
  size_t bytes = 0;
  for (int c = 0; links && c < links->config.nchannels; c++) bytes += links->links[c].block_bytes;
  return bytes;
}
