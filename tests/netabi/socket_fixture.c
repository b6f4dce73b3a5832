/* See socket_fixture.h. */
#include "socket_fixture.h"

#include <stdio.h>

static const char *path;
void *listener;
char handle[NCCL_NET_HANDLE_MAXSIZE];

static void set_up(void)
{
  ck_assert_int_eq(net_load(path), ncclSuccess);
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
}

static void tear_down(void)
{
  if (listener) ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  listener = NULL;
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
}

void connect_self(void **send, void **recv)
{
  ck_assert_int_eq(net_meet(0, handle, listener, send, recv), ncclSuccess);
}

static void take(void *argument, const struct tt_counters *counters)
{
  struct tt_counters *wanted = argument;
  if (counters->comm == wanted->comm) *wanted = *counters;
}

struct tt_counters read_counters(const void *comm)
{
  struct tt_counters wanted = {.comm = comm};
  const struct tt_net_counters *table = net_symbol(TT_NET_COUNTERS_SYMBOL);
  ck_assert_int_eq(table->read(take, &wanted), ncclSuccess);
  ck_assert_uint_eq(wanted.size, sizeof wanted);
  return wanted;
}

int run_socket_suite(int argc, char **argv, TCase *tcase)
{
  if (argc != 2) {
    fprintf(stderr, "usage: %s libtutti-net-socket.so\n", argv[0]);
    return 2;
  }
  path = argv[1];
  tcase_add_checked_fixture(tcase, set_up, tear_down);
  return net_run("net-socket", tcase, 200);
}
