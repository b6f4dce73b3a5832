/* Clauses about loading, devices and making connections. */
#include "netabi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void members(void)
{
  const char *missing = net.missing();
  if (missing) fail("required member %s is NULL", missing);
  if (!net.name() || !*net.name()) fail("the plugin has no name");
}

static void check_properties(int dev)
{
  ncclNetProperties_v12_t p;
  CALL(properties, dev, &p);
  if (!p.name || !*p.name) fail("device %d has no name", dev);
  if (p.pciPath && p.pciPath[0] != '/') fail("pciPath of %s is \"%s\": neither NULL nor a path", p.name, p.pciPath);
  if (p.speed <= 0) fail("speed of %s is %d Mbps", p.name, p.speed);
  if (p.latency < 0) fail("latency of %s is %f", p.name, (double)p.latency);
  if (!(p.ptrSupport & NCCL_PTR_HOST)) fail("%s does not take host memory (ptrSupport %d)", p.name, p.ptrSupport);
  if (p.ptrSupport & ~(NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF))
    fail("ptrSupport of %s has unknown bits: 0x%x", p.name, (unsigned)p.ptrSupport);
  if (p.maxComms < 1) fail("maxComms of %s is %d", p.name, p.maxComms);
  if (p.maxRecvs < 1 || p.maxRecvs > 64) fail("maxRecvs of %s is %d", p.name, p.maxRecvs);
  if (p.maxP2pBytes < 1 || p.maxP2pBytes > (size_t)NCCL_MAX_NET_SIZE_BYTES)
    fail("maxP2pBytes of %s is %zu: outside 1..2^40", p.name, p.maxP2pBytes);
  if (p.vProps.ndevs < 1) fail("vProps of %s lists no device", p.name);
  if (p.netDeviceType == NCCL_NET_DEVICE_UNPACK && p.netDeviceVersion != NCCL_NET_DEVICE_UNPACK_VERSION)
    fail("%s offloads with version %d", p.name, p.netDeviceVersion);
}

static void devices(void)
{
  int count = 0, again = 0;
  CALL(devices, &count);
  for (int i = 0; i < count; i++) check_properties(i);
  CALL(devices, &again);
  if (again != count) fail("devices said %d, then %d", count, again);
}

/* The peer does nothing at all meanwhile: it waits at meet(). A call that blocks is named by the watchdog. */
static void never_block(void)
{
  struct connection c = {0};
  CALL(listen, context, device, c.mine, &c.listen);
  tell(c.mine, sizeof c.mine);
  hear(c.theirs, sizeof c.theirs);
  if (side == 0) {
    for (int i = 0; i < 50; i++) {
      CALL(accept, c.listen, &c.recv);
      if (c.recv) fail("accept gave a comm though nobody connected");
    }
    meet();
    meet();
  } else {
    meet();
    for (int i = 0; i < 50 && !c.send; i++) {
      struct timespec nap = {.tv_nsec = 1000000};
      CALL(connect, context, device, c.theirs, &c.send);
      nanosleep(&nap, NULL);
    }
    meet();
  }
  /* Late and in the other order: it still comes about. */
  struct patience patience = patience_start();
  while (side == 0 ? !c.recv : !c.send) {
    if (side == 0)
      CALL(accept, c.listen, &c.recv);
    else
      CALL(connect, context, device, c.theirs, &c.send);
    patience_spend(&patience, "a connection begun by connect before accept");
  }
  CALL(close_listen, c.listen);
  if (side == 0)
    close_receiver(c.recv);
  else
    close_sender(c.send);
}

/* One thread polls both ends, first one, then the other. */
static void self_connect(void)
{
  for (int order = 0; order < 2 && side == 0; order++) {
    struct connection c = {0};
    struct patience patience = patience_start();
    CALL(listen, context, device, c.mine, &c.listen);
    while (!c.send || !c.recv) {
      if (!c.recv && order == 1) CALL(accept, c.listen, &c.recv);
      if (!c.send) CALL(connect, context, device, c.mine, &c.send);
      if (!c.recv && order == 0) CALL(accept, c.listen, &c.recv);
      patience_spend(&patience, "connecting a process with itself");
    }
    CALL(close_listen, c.listen);
    char *data = buffer_new(5000), *out = buffer_new(5000);
    pattern_fill(out, 5000, 9);
    void *recv = must_recv1(c.recv, data, 5000, 1), *send = must_send(c.send, out, 5000, 1);
    bool received = false, sent = false;
    while (!received || !sent) {
      if (!received) received = test_done(recv, NULL);
      if (!sent) sent = test_done(send, NULL);
      patience_spend(&patience, "a message of a process to itself");
    }
    pattern_check(data, 5000, 9, "a message of a process to itself");
    close_all(&c, 1);
    buffer_free(data);
    buffer_free(out);
  }
}

/* 128 bytes are written at most, and only they reach the peer: whatever lies behind them differs there. */
static void handle(void)
{
  struct {
    char bytes[NCCL_NET_HANDLE_MAXSIZE];
    char guard[256];
  } handle;
  struct connection c = {0};
  memset(&handle, side ? 0x33 : 0xcc, sizeof handle);
  char guard = handle.guard[0];
  CALL(listen, context, device, handle.bytes, &c.listen);
  tell(handle.bytes, sizeof handle.bytes);
  memset(handle.bytes, 0x77, sizeof handle.bytes); /* the listener's own copy is not needed any more */
  hear(handle.bytes, sizeof handle.bytes);
  struct patience patience = patience_start();
  while (!c.send || !c.recv) {
    if (!c.send) CALL(connect, context, device, handle.bytes, &c.send);
    if (!c.recv) CALL(accept, c.listen, &c.recv);
    patience_spend(&patience, "connecting with a copied handle");
  }
  for (size_t i = 0; i < sizeof handle.guard; i++)
    if (handle.guard[i] != guard) fail("a byte behind the handle's %d was written", NCCL_NET_HANDLE_MAXSIZE);
  CALL(close_listen, c.listen);
  close_all(&c, 1);
}

static void many(void)
{
  enum { COUNT = 64 };
  static struct connection c[COUNT];
  void *sends[COUNT], *recvs[COUNT];
  char *in = buffer_new(COUNT * 1000), *out = buffer_new(COUNT * 1000);
  connect_all(c, COUNT);
  for (int i = 0; i < COUNT; i++) {
    pattern_fill(out + i * 1000, 1000, (uint64_t)(2 * i + side));
    recvs[i] = must_recv1(c[i].recv, in + i * 1000, 1000, 0);
    sends[i] = must_send(c[i].send, out + i * 1000, 1000, 0);
  }
  struct patience patience = patience_start();
  for (int left = 1; left; patience_spend(&patience, "one message on each of 64 connections")) {
    left = 0;
    for (int i = 0; i < COUNT; i++) {
      if (recvs[i] && test_done(recvs[i], NULL)) recvs[i] = NULL;
      if (sends[i] && test_done(sends[i], NULL)) sends[i] = NULL;
      left += recvs[i] || sends[i];
    }
  }
  for (int i = 0; i < COUNT; i++)
    pattern_check(in + i * 1000, 1000, (uint64_t)(2 * i + !side), "a message on one of 64 connections");
  meet();
  close_all(c, COUNT);
  buffer_free(in);
  buffer_free(out);
}

/* A listener that nobody ever connects to, and one that is closed with a connection half made. */
static void unaccepted(void)
{
  struct connection c = {0}, good;
  CALL(listen, context, device, c.mine, &c.listen);
  CALL(close_listen, c.listen);
  c.listen = NULL;
  CALL(listen, context, device, c.mine, &c.listen);
  tell(c.mine, sizeof c.mine);
  hear(c.theirs, sizeof c.theirs);
  if (side == 0)
    for (int i = 0; i < 20 && !c.send; i++) CALL(connect, context, device, c.theirs, &c.send);
  meet();
  if (side == 1) CALL(accept, c.listen, &c.recv);
  CALL(close_listen, c.listen);
  meet();
  if (c.send) close_sender(c.send);
  if (c.recv) close_receiver(c.recv);
  connect_all(&good, 1);
  meet();
  close_all(&good, 1);
}

const struct clause setup_clauses[] = {
    {"members", members, true, "the struct is exported and complete"},
    {"devices", devices, false, "properties are within their ranges"},
    {"never-block", never_block, false, "listen, connect and accept return whatever the peer does"},
    {"self-connect", self_connect, false, "a process connects to itself, in either order of calls"},
    {"handle", handle, false, "a handle is 128 bytes that can be copied"},
    {"many", many, false, "64 connections at once, each with its own data"},
    {"unaccepted", unaccepted, false, "listeners may be closed without an accept"},
    {0}};
