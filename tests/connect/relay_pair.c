/* See relay_pair.h. */
#include "relay_pair.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#if defined NET_SOCKET && defined NET_COUNTING

counting_read_fn *counting_read;
counting_hold_fn *counting_hold;
counting_refuse_fn *counting_refuse;
struct counting seen;

void use_counting(void)
{
  world_use_net(true);
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_PLUGIN", NET_COUNTING);
  set_env("COUNTING_INNER", NET_SOCKET);
  set_env("COUNTING_DEVICES", "4");
  /* Both stay loaded to the end, as in test_net.c. */
  ck_assert_ptr_nonnull(dlopen(NET_SOCKET, RTLD_NOW | RTLD_LOCAL));
  void *plugin = dlopen(NET_COUNTING, RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(plugin);
  counting_read = (counting_read_fn *)dlsym(plugin, "counting_read");
  counting_hold = (counting_hold_fn *)dlsym(plugin, "counting_hold");
  counting_refuse = (counting_refuse_fn *)dlsym(plugin, "counting_refuse");
  ck_assert_ptr_nonnull(counting_read);
  ck_assert_ptr_nonnull(counting_hold);
  ck_assert_ptr_nonnull(counting_refuse);
  counting_read(&seen, 1);
}

/* Everybody sends through the rank that comes next; what rank r receives comes on device 0. */
static bool through_next(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct rank *rank = routes;
  int next = (rank->rank + 1) % rank->nranks;
  (void)peer, (void)index;
  *route = (struct tt_route){.device = send ? 1 + channel : 0, .rank = send ? next : rank->rank};
  return true;
}

bool use_routes(struct rank *rank)
{
  rank->env->route = through_next;
  rank->env->routes = rank;
  return tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess;
}

int conn_index;

ncclResult_t connect_channels(struct rank *rank, int to, int from, int channels)
{
  ncclResult_t result = ncclSuccess;
  for (int c = 0; c < channels; c++) {
    if (to >= 0 && result == ncclSuccess) result = tt_connect_need(rank->connect, to, c, conn_index, true);
    if (from >= 0 && result == ncclSuccess) result = tt_connect_need(rank->connect, from, c, conn_index, false);
  }
  return result == ncclSuccess ? tt_connect_run(rank->connect) : result;
}

struct tt_connector *end_of(struct rank *rank, int channel)
{
  return rank->rank == 0 ? tt_connect_get(rank->connect, 2, channel, conn_index, true)
                         : tt_connect_get(rank->connect, 0, channel, conn_index, false);
}

bool pass_on(struct rank *rank, int count)
{
  for (int c = 0; c < CHANNELS; c++) {
    struct tt_connector *end = end_of(rank, c);
    if (!end || !(rank->rank == 0 ? send_by_hand(rank, end, count) : recv_by_hand(rank, end, count))) return false;
  }
  return true;
}

bool connect_pair(struct rank *rank)
{
  if (rank->rank == 1) return true;
  return connect_channels(rank, rank->rank == 0 ? 2 : -1, rank->rank == 0 ? -1 : 0, CHANNELS) == ncclSuccess;
}

void use_pool(const char *slots)
{
  use_counting();
  world_use_device(&world_device_by_hand);
  conn_index = 1;
  set_env("NCCL_NET_SHARED_COMMS", "0");
  set_env("TUTTI_NET_POOL_SLOTS", slots);
}

/* Down to one slot for all, so that spares are needed. */
void *abort_soon(void *arg)
{
  struct rank *rank = arg;
  usleep(100000);
  atomic_store(&rank->abort, 1);
  return NULL;
}

#endif
