/* Clauses about optional members, repeated use, and what is left behind. */
#include "netabi.h"

#include <stdio.h>
#include <string.h>

static void exchange(struct connection *c)
{
  char *in = buffer_new(3000), *out = buffer_new(3000);
  pattern_fill(out, 3000, (uint64_t)side);
  void *recv = must_recv1(c->recv, in, 3000, 0), *send = must_send(c->send, out, 3000, 0);
  wait_done(send, NULL, "a send");
  wait_done(recv, NULL, "a receive");
  pattern_check(in, 3000, (uint64_t)!side, "a message");
  buffer_free(in);
  buffer_free(out);
}

/* NULL from iflush means complete; else the request is tested like any other. */
static void optional_members(void)
{
  struct connection c;
  char *in = buffer_new(100), *out = buffer_new(100);
  int size = -1;
  connect_all(&c, 1);
  void *recv = must_recv1(c.recv, in, 100, 0), *send = must_send(c.send, out, 100, 0);
  wait_done(send, NULL, "a send");
  wait_done(recv, &size, "a receive");
  if (net.iflush) {
    void *data = in, *mhandle = NULL, *request = (void *)0x0badf00d;
    CALL(reg, c.recv, in, 100, NCCL_PTR_HOST, &mhandle);
    CALL(iflush, c.recv, 1, &data, &size, &mhandle, &request);
    if (request == (void *)0x0badf00d) fail("iflush left *request unwritten");
    if (request) wait_done(request, NULL, "a flush");
    CALL(dereg, c.recv, mhandle);
  }
  if (net.consumed) CALL(consumed, c.recv, 1, recv);
  meet();
  close_all(&c, 1);
  buffer_free(in);
  buffer_free(out);
}

static void virtual_device(void)
{
  int before = 0, after = 0, dev = -1, devs[2] = {0, 1};
  if (!net.vdevice) skip("makeVDevice is NULL: devices are never fused");
  CALL(devices, &before);
  if (before < 2) skip("only %d device to fuse", before);
  if (TRY(vdevice, &dev, devs, 2) != ncclSuccess) skip("the plugin declined to fuse devices 0 and 1");
  CALL(devices, &after);
  if (after != before + 1 || dev != before)
    fail("makeVDevice gave index %d of %d devices, was %d before", dev, after, before);
}

/* v9 on: completion of the receive need not be tracked, but a request is still returned. */
static void optional_completion(void)
{
  struct connection c;
  char *data = buffer_new(256);
  if (net.abi < 9) skip("since v9");
  connect_all(&c, 1);
  for (int i = 0; i < 100; i++) {
    if (side == 0) {
      pattern_fill(data, 256, (uint64_t)i);
      wait_done(must_send(c.send, data, 256, 0), NULL, "a send");
    } else {
      struct patience patience = patience_start();
      void *request = NULL, *where = data, *mhandle = NULL;
      size_t size = 256;
      int tag = 0;
      CALL(reg, c.recv, data, 256, NCCL_PTR_HOST, &mhandle);
      for (;;) {
        request = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
        CALL(irecv, c.recv, 1, &where, &size, &tag, &mhandle, &request);
        if (request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION) fail("irecv left *request unwritten");
        if (request) break;
        patience_spend(&patience, "irecv gave no request");
      }
      wait_done(request, NULL, "a receive of optional completion");
      CALL(dereg, c.recv, mhandle);
    }
    meet(); /* it may complete before the data are there, but not before the other side says that they are sent */
  }
  close_all(&c, 1);
  buffer_free(data);
}

static void init_again(void)
{
  struct connection c;
  for (int i = 0; i < 5; i++) {
    connect_all(&c, 1);
    exchange(&c);
    meet();
    close_all(&c, 1);
    final_plugin();
    init_plugin();
  }
}

/* Two communicators: the end of one leaves the other alone. */
static void two_users(void)
{
  struct connection c;
  void *first = context;
  if (net.abi < 11) skip("since v11");
  init_plugin();
  void *second = context;
  connect_all(&c, 1);
  context = first;
  final_plugin();
  context = second;
  exchange(&c);
  meet();
  close_all(&c, 1);
}

/* What a communicator began to connect and gave up ends with it; what another began does not. */
static void given_up(void)
{
  enum { COUNT = 5 };
  char handle[COUNT + 1][NCCL_NET_HANDLE_MAXSIZE];
  void *first = context, *listen = NULL, *send = NULL, *recv = NULL;
  struct connection c;
  if (net.abi < 11) skip("since v11");
  connect_all(&c, 1); /* warms */
  exchange(&c);
  meet();
  close_all(&c, 1);
  CALL(listen, first, device, handle[0], &listen);
  for (int i = 1; i <= COUNT; i++) memcpy(handle[i], handle[0], sizeof handle[0]);
  CALL(connect, first, device, handle[0], &send);
  int before = count_fds();
  init_plugin();
  for (int i = 1; i <= COUNT; i++) CALL(connect, context, device, handle[i], &send);
  if (send) fail("connect gave a comm that nobody had accepted");
  final_plugin();
  context = first;
  int now = count_fds();
  if (now != before) fail("%d descriptors open after finalize, %d before init", now, before);
  for (struct patience patience = patience_start(); !send || !recv;) {
    if (!send) CALL(connect, first, device, handle[0], &send);
    if (!recv) CALL(accept, listen, &recv);
    patience_spend(&patience, "the attempt of another communicator was ended");
  }
  CALL(close_send, send);
  CALL(close_recv, recv);
  CALL(close_listen, listen);
}

/* After one warming cycle, further ones leave no descriptor behind. */
static void no_leak(void)
{
  enum { COUNT = 4 };
  struct connection c[COUNT];
  int before = 0;
  for (int i = 0; i < 5; i++) {
    connect_all(c, COUNT);
    for (int k = 0; k < COUNT; k++) exchange(&c[k]);
    meet();
    close_all(c, COUNT);
    meet();
    int now = count_fds();
    if (i == 0) before = now;
    if (now != before) fail("%d descriptors open after cycle %d, %d after the first", now, i + 1, before);
  }
}

const struct clause life_clauses[] = {
    {"optional-members", optional_members, false, "iflush and irecvConsumed work or are NULL"},
    {"virtual-device", virtual_device, false, "makeVDevice is NULL, declines, or gives the next index"},
    {"optional-completion", optional_completion, false, "irecv returns a request also for *request == 1"},
    {"init-again", init_again, false, "the plugin can be started again and again"},
    {"two-users", two_users, false, "finalize of one communicator leaves others alone"},
    {"given-up", given_up, false, "finalize ends what its communicator began to connect, and nothing else"},
    {"no-leak", no_leak, false, "closing gives back every descriptor"},
    {0}};
