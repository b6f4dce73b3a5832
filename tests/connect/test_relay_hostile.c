/* Sending through another rank: requests that no rank of this library makes, which must not lead the relay anywhere. */
#include "relay_pair.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "tests/fakes/device/fake.h"
#include "transport/relay.h"

#if defined NET_SOCKET && defined NET_COUNTING

#define TAG_HANDLE (TT_TAG_USER + 77)

/* Rank 2 is there for the relay, as far as that comes. */
static void listen_for_relay(struct rank *rank)
{
  unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listen_comm, *comm = NULL, *word = NULL;
  size_t bytes;
  RANK_CHECK(rank, tt_net_listen(rank->net, 0, handle, &listen_comm) == ncclSuccess);
  RANK_CHECK(rank, tt_bootstrap_send(rank->bootstrap, 0, TAG_HANDLE, handle, sizeof(handle)) == ncclSuccess);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess && !word) {
    if (!comm) tt_net_accept(rank->net, listen_comm, &comm);
    result = tt_bootstrap_try_recv(rank->bootstrap, 0, TAG_HANDLE, &word, &bytes);
    sched_yield();
  }
  free(word);
  if (comm) tt_net_close_recv(rank->net, comm);
  tt_net_close_listen(rank->net, listen_comm);
  RANK_CHECK(rank, result == ncclSuccess);
}

/* Asks for `index` with slots of a pool. */
static ncclResult_t ask_relay(struct rank *rank, int index, const unsigned char *handle)
{
  struct tt_connector connector = {.peer = 2, .index = index, .send = true, .conn = {.flags = TT_CONN_POOLED}};
  struct tt_relayed relayed = {0};
  bool done = false;
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  ncclResult_t result = tt_relayed_setup(rank->env, &connector, 1, 1, &relayed);
  while (result == ncclSuccess && !done && !tt_deadline_passed(deadline)) {
    result = tt_relayed_connect(rank->env, &connector, &relayed, handle, "hostile", &done);
    sched_yield();
  }
  tt_relayed_stop(rank->env, &connector, &relayed);
  tt_proxy_conn_destroy(connector.proxied);
  tt_relayed_close(rank->env, &relayed);
  return result;
}

static void lines_from_a_pool(struct rank *rank)
{
  RANK_CHECK(rank, tt_bootstrap_barrier(rank->bootstrap) == ncclSuccess);
  if (rank->rank == 2) listen_for_relay(rank);
  if (rank->rank != 0) return;
  void *handle;
  size_t bytes;
  tt_deadline deadline = tt_deadline_in_ms(PATIENCE_MS);
  RANK_CHECK(rank, tt_bootstrap_recv(rank->bootstrap, 2, TAG_HANDLE, &handle, &bytes, deadline) == ncclSuccess);
  ncclResult_t result = ask_relay(rank, tt_connect_index(true, TT_PROTO_LL, false), handle);
  free(handle);
  RANK_CHECK(rank, result == ncclRemoteError);
  RANK_CHECK(rank, strstr(tt_log_thread_error(), "which says: only connections of Simple have slots of a pool"));
  RANK_CHECK(rank, tt_bootstrap_send(rank->bootstrap, 2, TAG_HANDLE, "x", 1) == ncclSuccess);
}

static void print(int level, const char *text)
{
  fprintf(stderr, "fake device: %d %s\n", level, text);
}

/* The block is then the desk alone: there are no slots for the relay to write to. */
START_TEST(lines_with_slots_of_a_pool)
{
  char why[64];
  int statuses[3];
  use_counting();
  world_use_device(tutti_device(print, why, sizeof(why)));
  world_run_processes(3, lines_from_a_pool, statuses);
  for (int r = 0; r < 3; r++) ck_assert_msg(statuses[r] == 0, "rank %d: %d", r, statuses[r]);
}
END_TEST

void add_relay_hostile(Suite *suite)
{
  TCase *tc = tcase_create("relay_hostile");
  tcase_set_timeout(tc, 300);
  tcase_add_test(tc, lines_with_slots_of_a_pool);
  suite_add_tcase(suite, tc);
}

#else

void add_relay_hostile(Suite *suite)
{
  (void)suite;
  fprintf(stderr, "skipped: the socket plugin is not built\n");
}

#endif
