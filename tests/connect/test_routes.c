/* Routes: connections over a network use the devices that the routes say. A counting plugin that claims several devices
 * looks on. */
#include "world.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "tests/fakes/net/counting.h"

#if defined NET_SOCKET && defined NET_COUNTING

static counting_read_fn *counting_read;
static struct counting seen;

static void use_devices(const char *devices)
{
  world_use_net(true);
  set_env("NCCL_SHM_DISABLE", "1");
  set_env("NCCL_NET_PLUGIN", NET_COUNTING);
  set_env("COUNTING_INNER", NET_SOCKET);
  set_env("COUNTING_DEVICES", devices);
  /* Both stay loaded to the end, as in test_net.c. */
  ck_assert_ptr_nonnull(dlopen(NET_SOCKET, RTLD_NOW | RTLD_LOCAL));
  void *plugin = dlopen(NET_COUNTING, RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(plugin);
  counting_read = (counting_read_fn *)dlsym(plugin, "counting_read");
  ck_assert_ptr_nonnull(counting_read);
  counting_read(&seen, 1);
}

/* Sends on device 2 + channel and receives on device channel; of channel 2 it knows nothing. */
static bool by_channel(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct rank *rank = routes;
  if (channel == 2 || peer == rank->rank || index != 0) return false;
  *route = (struct tt_route){.device = channel + 2 * send, .rank = rank->rank};
  return true;
}

static bool label_is(struct rank *rank, const struct tt_connector *connector, const char *expected)
{
  char text[96];
  tt_transport_net.label(rank->env, connector, text, sizeof(text));
  return strcmp(text, expected) == 0;
}

static void routed(struct rank *rank)
{
  static const char *const labels[2][2] = {{"NET/Counting/0", "NET/Counting/2"}, {"NET/Counting/1", "NET/Counting/3"}};
  int peer = 1 - rank->rank;
  rank->env->route = by_channel;
  rank->env->routes = rank;
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  for (int c = 0; c < 3; c++)
    for (int send = 0; send < 2; send++)
      RANK_CHECK(rank, tt_connect_need(rank->connect, peer, c, 0, send) == ncclSuccess);
  RANK_CHECK(rank, tt_connect_run(rank->connect) == ncclSuccess);
  for (int c = 0; c < 3; c++) {
    struct tt_connector *send = tt_connect_get(rank->connect, peer, c, 0, true);
    struct tt_connector *recv = tt_connect_get(rank->connect, peer, c, 0, false);
    RANK_CHECK(rank, send && recv);
    if (c < 2) RANK_CHECK(rank, label_is(rank, send, labels[c][1]) && label_is(rank, recv, labels[c][0]));
    RANK_CHECK(rank, send_by_hand(rank, send, 5) && recv_by_hand(rank, recv, 5));
  }
}

START_TEST(devices_of_routes)
{
  use_devices("5");
  world_run(2, routed);
  counting_read(&seen, 1);
  /* Channel 2, without a route: rank + channel. */
  static const int listened[COUNTING_DEVICES] = {2, 2, 1, 1}, connected[COUNTING_DEVICES] = {0, 0, 3, 3};
  for (int d = 0; d < COUNTING_DEVICES; d++) {
    ck_assert_int_eq(seen.listened[d], listened[d]);
    ck_assert_int_eq(seen.connected[d], connected[d]);
  }
}
END_TEST

static bool no_such_device(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  const struct rank *rank = routes;
  (void)peer, (void)channel, (void)index;
  *route = (struct tt_route){.device = send ? 2 : -1, .rank = rank->rank};
  return true;
}

/* Nobody receives through another rank, and no rank is outside the communicator. */
static bool no_such_rank(const void *routes, int peer, int channel, int index, bool send, struct tt_route *route)
{
  (void)routes, (void)channel, (void)index;
  *route = (struct tt_route){.device = 0, .rank = send ? 2 : peer};
  return true;
}

static void misrouted(struct rank *rank)
{
  const struct tt_transport *net = &tt_transport_net;
  static tt_route_find *const wrong[] = {no_such_device, no_such_rank};
  rank->env->routes = rank;
  for (int i = 0; i < 4; i++) {
    struct tt_connector connector = {.peer = 1 - rank->rank, .send = i % 2};
    struct tt_handshake mine = {0};
    rank->env->route = wrong[i / 2];
    RANK_CHECK(rank, net->setup(rank->env, &connector, &mine) == ncclInternalError);
    net->close(rank->env, &connector);
  }
}

START_TEST(routes_that_lead_nowhere)
{
  use_devices("2");
  world_run(2, misrouted);
}
END_TEST

void add_routes(Suite *suite)
{
  TCase *tc = tcase_create("routes");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, devices_of_routes);
  tcase_add_test(tc, routes_that_lead_nowhere);
  suite_add_tcase(suite, tc);
}

#else

void add_routes(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
