/* Connections of devices in the host's memory, between two ranks of a process and of two: data by hand, how often
 * memory is mapped, what other ranks may say, failures on the way, and that nothing is left. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "device_side.h"
#include "transport/pinned.h"

/* Where each field of a receiver's handshake begins. */
enum { VERSION = 0, ROLE = 2, PROTOCOL = 3, SLOT_BYTES = 4, SLAB = 12, BYTES = 20, OFFSET = 28, END = 36 };

static void use_host(void)
{
  device_use_fake();
  device_transport = &tt_transport_host;
}

static void use_device(void)
{
  device_use_none();
  device_transport = &tt_transport_device;
}

static void close_sides(struct device_pair *pair)
{
  for (int r = 0; r < 2; r++) side_close(&pair->sides[r]);
  device_expect_nothing_left();
}

/* The ends are opened on the device as well, which finds what is not mapped. */
START_TEST(host_in_one_process)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p += TT_PROTO_SIMPLE) {
    device_set_up_pair(&pair, p);
    device_connect_pair(&pair);
    struct tt_conn *send = &pair.connectors[0].conn, *recv = &pair.connectors[1].conn;
    for (int r = 0; r < 2; r++) {
      struct tt_conn *conn = &pair.connectors[r].conn;
      for (int q = 0; q < TT_NUM_PROTOCOLS; q++) ck_assert((conn->slots[q] != NULL) == (q == p));
      ck_assert_uint_eq((uintptr_t)conn->slots[p] % 128, 64);
      ck_assert_ptr_null(conn->peer_bell);
      ck_assert_int_eq(device_fake.conn_open(pair.sides[r].env.context->handle, conn), ncclSuccess);
    }
    char label[64];
    tt_transport_host.label(&pair.sides[0].env, &pair.connectors[0], label, sizeof(label));
    ck_assert_str_eq(label, "SHM/direct/direct");
    for (int i = 0; i < 20; i++) {
      device_send(send, p, TT_SLOTS);
      ck_assert(device_recv(recv, p, TT_SLOTS));
    }
    for (int r = 0; r < 2; r++) device_fake.conn_close(pair.sides[r].env.context->handle, &pair.connectors[r].conn);
    device_close_pair(&pair);
  }
  close_sides(&pair);
}
END_TEST

/* Connections of a slab share its mapping, on both sides; a piece larger than a slab gets its own. */
START_TEST(mapped_once)
{
  enum { PAIRS = 40 };
  struct device_pair pair;
  struct fake_counts counts;
  struct tt_connector connectors[PAIRS][2];
  side_open_both(pair.sides);
  for (int i = 0; i < PAIRS; i++) {
    device_set_up_pair(&pair, TT_PROTO_SIMPLE);
    device_connect_pair(&pair);
    memcpy(connectors[i], pair.connectors, sizeof(pair.connectors));
  }
  ck_assert_int_eq(device_maps, 2);
  struct tt_pinned_place large, small;
  unsigned char *at;
  size_t bytes = TT_PINNED_LARGE_PIECE;
  ck_assert_int_eq(tt_pinned_alloc(pair.sides[1].env.pinned, bytes, &large, &at), ncclSuccess);
  ck_assert_int_eq(device_maps, 3);
  ck_assert_uint_eq(large.slab_bytes, bytes);
  ck_assert_uint_eq(at[0] + at[bytes - 1], 0);
  ck_assert_int_eq(tt_pinned_alloc(pair.sides[1].env.pinned, 100, &small, &at), ncclSuccess);
  ck_assert_uint_ne(small.slab, large.slab);
  ck_assert_int_eq(device_maps, 3);
  for (int i = 0; i < PAIRS; i++) tt_transport_host.close(&pair.sides[0].env, &connectors[i][0]);
  fake_count(&counts);
  ck_assert_int_eq(counts.hosts, 2); /* the last sender's end has ended its mapping */
  for (int i = 0; i < PAIRS; i++) tt_transport_host.close(&pair.sides[1].env, &connectors[i][1]);
  close_sides(&pair);
}
END_TEST

/* A rank leaves while its neighbour still has its memory mapped, and may write there. */
START_TEST(host_owner_leaves_first)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  device_connect_pair(&pair);
  tt_transport_host.close(&pair.sides[1].env, &pair.connectors[1]);
  side_close(&pair.sides[1]);
  device_send(&pair.connectors[0].conn, TT_PROTO_SIMPLE, TT_SLOTS);
  tt_transport_host.close(&pair.sides[0].env, &pair.connectors[0]);
  side_close(&pair.sides[0]);
  device_expect_nothing_left();
}
END_TEST

static void child_receives(int wire)
{
  struct side side;
  struct tt_connector connector;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  side_open(&side, 1, wire, NULL);
  connector = device_half(&side, false, TT_PROTO_SIMPLE);
  SIDE_CHECK(tt_transport_host.setup(&side.env, &connector, &mine) == ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  side_get(wire, &theirs, sizeof(theirs));
  SIDE_CHECK(tt_transport_host.connect(&side.env, &connector, &theirs, &done) == ncclSuccess && done);
  SIDE_CHECK(device_recv(&connector.conn, TT_PROTO_SIMPLE, 500));
  tt_transport_host.close(&side.env, &connector);
  side_close(&side);
  struct fake_counts counts;
  fake_count(&counts);
  SIDE_CHECK(counts.hosts == 0 && counts.contexts == 0);
}

START_TEST(host_between_processes)
{
  int wire;
  struct side side;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  struct tt_connector connector = device_half(&side, true, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_host.setup(&side.env, &connector, &mine), ncclSuccess);
  side_get(wire, &theirs, sizeof(theirs));
  ck_assert_int_eq(tt_transport_host.connect(&side.env, &connector, &theirs, &done), ncclSuccess);
  ck_assert(done);
  ck_assert_int_eq(device_fake.conn_open(side.env.context->handle, &connector.conn), ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  device_send(&connector.conn, TT_PROTO_SIMPLE, 500);
  ck_assert_int_eq(side_wait(pid), 0);
  device_fake.conn_close(side.env.context->handle, &connector.conn);
  tt_transport_host.close(&side.env, &connector);
  side_close(&side);
  device_expect_nothing_left();
}
END_TEST

/* Whatever step fails, the ends can be closed, nothing is left, and another try works. */
START_TEST(host_failures_leave_nothing)
{
  struct device_pair pair;
  bool done = false;
  side_open_both(pair.sides);
  device_maps_fail = true;
  pair.connectors[1] = device_half(&pair.sides[1], false, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_host.setup(&pair.sides[1].env, &pair.connectors[1], &pair.handshakes[1]),
                   ncclUnhandledCudaError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "cannot be mapped for device fake"));
  tt_transport_host.close(&pair.sides[1].env, &pair.connectors[1]);
  device_maps_fail = false;
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  device_maps_fail = true;
  ck_assert_int_eq(tt_transport_host.connect(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[1], &done),
                   ncclUnhandledCudaError);
  ck_assert(!done);
  device_maps_fail = false;
  device_connect_pair(&pair);
  tt_transport_host.close(&pair.sides[0].env, &pair.connectors[0]);
  tt_transport_host.close(&pair.sides[0].env, &pair.connectors[0]); /* twice is once */
  /* An end that is never closed: the rank's own end takes its memory along. */
  free(pair.connectors[1].resources);
  close_sides(&pair);
}
END_TEST

/* Lines of LL128 do not stay whole in the host's memory; protocols without buffers have no connections. */
START_TEST(protocols_refused)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  for (int buffers = 0; buffers < 2; buffers++) {
    pair.sides[0].env.buffer_bytes[TT_PROTO_LL128] = buffers ? 65536 : 0;
    pair.connectors[0] = device_half(&pair.sides[0], true, TT_PROTO_LL128);
    ck_assert_int_eq(tt_transport_host.setup(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[0]),
                     ncclInternalError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), buffers ? "stay whole" : "no buffers"));
    tt_transport_host.close(&pair.sides[0].env, &pair.connectors[0]);
  }
  close_sides(&pair);
}
END_TEST

static void expect_refused(struct device_pair *pair, const struct tt_handshake *bad, const char *why)
{
  bool done = false;
  ncclResult_t result = tt_transport_host.connect(&pair->sides[0].env, &pair->connectors[0], bad, &done);
  ck_assert_int_ne(result, ncclSuccess);
  ck_assert(!done);
  ck_assert_msg(strstr(tt_log_thread_error(), why) != NULL, "\"%s\" lacks \"%s\"", tt_log_thread_error(), why);
}

START_TEST(host_handshakes_refused)
{
  struct device_pair pair;
  struct fake_counts counts;
  side_open_both(pair.sides);
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  struct tt_handshake good = pair.handshakes[1], bad;
  ck_assert_uint_eq(good.bytes, END);
#define REFUSED(change, why)                                                                                           \
  do {                                                                                                                 \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    expect_refused(&pair, &bad, why);                                                                                  \
  } while (0)
  REFUSED(bad.data[VERSION]++, "version");
  REFUSED(bad.data[ROLE] = 1, "malformed"); /* both send */
  REFUSED(bad.data[PROTOCOL] = TT_PROTO_LL, "must be equal");
  REFUSED(bad.data[SLOT_BYTES + 1] ^= 0x40, "must be equal");
  REFUSED(bad.data[SLAB] += 64, "no piece");
  REFUSED(bad.data[SLAB + 4] = 0x7f, "not in its memory");
  REFUSED(memset(bad.data + SLAB, 0xff, 8); memset(bad.data + SLAB, 0, 2), "not in its memory");
  REFUSED(bad.data[BYTES] = 1, "no piece");
  REFUSED(memset(bad.data + BYTES, 0, 8), "no piece");
  REFUSED(bad.data[BYTES + 5] = 1, "not in its memory");
  REFUSED(bad.data[OFFSET] += 64, "no piece");
  REFUSED(bad.data[OFFSET + 3] = 0x70, "no piece");
  REFUSED(memset(bad.data + OFFSET, 0xff, 8); bad.data[OFFSET] = 0x80, "no piece");
  REFUSED(bad.bytes--, "malformed");
  REFUSED(bad.bytes++, "malformed");
  REFUSED(bad.bytes = 0, "version");
  REFUSED(bad.bytes = UINT16_MAX, "malformed");
#undef REFUSED
  fake_count(&counts);
  ck_assert_int_eq(counts.hosts, 1); /* the owner's */
  device_connect_pair(&pair);        /* the right one is still taken */
  device_close_pair(&pair);
  close_sides(&pair);
}
END_TEST

void add_host(Suite *suite)
{
  TCase *tc = tcase_create("host");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, use_host, use_device);
  tcase_add_test(tc, host_in_one_process);
  tcase_add_test(tc, mapped_once);
  tcase_add_test(tc, host_owner_leaves_first);
  tcase_add_test(tc, host_between_processes);
  tcase_add_test(tc, host_failures_leave_nothing);
  tcase_add_test(tc, protocols_refused);
  tcase_add_test(tc, host_handshakes_refused);
  suite_add_tcase(suite, tc);
}
