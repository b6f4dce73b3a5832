/* Connections that copy engines serve, by hand, in one process and in two: what the proxy copies arrives, broken
 * handshakes are refused, and nothing is left. */
#include "device_side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "proxy/proxy.h"

/* Where the fields of a handshake begin. */
enum {
  VERSION = 0,
  ROLE = 2,
  PROTOCOL = 3,
  SLOT_BYTES = 4,
  COUNTERS = 12,
  KIND = 20,
  NUMBER = 21,
  OFFSET = 33,
  END = 41
};

static struct device_pair pair;

static void open_pair(void)
{
  side_open_both(pair.sides);
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(tt_proxy_create(NULL, r, &pair.sides[r].env.proxy), ncclSuccess);
    pair.connectors[r] = device_half(&pair.sides[r], r == 0, TT_PROTO_SIMPLE);
    ck_assert_int_eq(tt_transport_copied.setup(&pair.sides[r].env, &pair.connectors[r], &pair.handshakes[r]),
                     ncclSuccess);
  }
}

static void close_pair(void)
{
  for (int r = 0; r < 2; r++) tt_transport_copied.close(&pair.sides[r].env, &pair.connectors[r]);
  for (int r = 0; r < 2; r++) {
    tt_proxy_destroy(pair.sides[r].env.proxy);
    side_close(&pair.sides[r]);
  }
  device_expect_nothing_left();
}

static ncclResult_t connect_end(int r, const struct tt_handshake *theirs)
{
  bool done = false;
  ncclResult_t result = tt_transport_copied.connect(&pair.sides[r].env, &pair.connectors[r], theirs, &done);
  ck_assert_int_eq(done, result == ncclSuccess);
  return result;
}

START_TEST(data)
{
  open_pair();
  for (int r = 0; r < 2; r++) ck_assert_int_eq(connect_end(r, &pair.handshakes[1 - r]), ncclSuccess);
  struct tt_conn *send = &pair.connectors[0].conn, *recv = &pair.connectors[1].conn;
  ck_assert_ptr_ne(send->slots[TT_PROTO_SIMPLE], recv->slots[TT_PROTO_SIMPLE]);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < TT_SLOTS; i++) send->fifo[i].size = (int64_t)send->slot_bytes[TT_PROTO_SIMPLE];
    device_send(send, TT_PROTO_SIMPLE, TT_SLOTS);
    bool moved, idle;
    for (int turn = 0; turn < 1000 && *recv->tail != send->step; turn++)
      ck_assert_int_eq(tt_proxy_progress(pair.sides[0].env.proxy, &moved, &idle), ncclSuccess);
    ck_assert(device_recv(recv, TT_PROTO_SIMPLE, TT_SLOTS));
  }
  char label[64];
  tt_transport_copied.label(&pair.sides[0].env, &pair.connectors[0], label, sizeof(label));
  ck_assert_str_eq(label, "P2P/direct pointer/CE");
  close_pair();
}
END_TEST

START_TEST(handshakes_refused)
{
  open_pair();
  struct tt_handshake good = pair.handshakes[1], bad;
  ck_assert_uint_eq(good.bytes, END);
#define REFUSED(change, why)                                                                                           \
  do {                                                                                                                 \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    ck_assert_int_ne(connect_end(0, &bad), ncclSuccess);                                                               \
    ck_assert_msg(strstr(tt_log_thread_error(), why) != NULL, "\"%s\" lacks \"%s\"", tt_log_thread_error(), why);      \
  } while (0)
  REFUSED(bad.data[VERSION]++, "version");
  REFUSED(bad.data[ROLE] = 1, "malformed");
  REFUSED(bad.data[PROTOCOL] = TT_PROTO_LL, "must be equal");
  REFUSED(bad.data[KIND] = TT_EXPORT_FD, "malformed");
  REFUSED(bad.data[NUMBER + 3] = 0x80, "malformed"); /* one that would be lent */
  REFUSED(bad.data[NUMBER] = 77, "not there");
  REFUSED(bad.data[SLOT_BYTES + 1] ^= 0x40, "must be equal");
  REFUSED(bad.data[COUNTERS]++, "malformed"); /* within a page */
  REFUSED(bad.bytes--, "malformed");
  REFUSED(bad.bytes++, "malformed");
  REFUSED(bad.bytes = 0, "version");
  /* What the end has got when these are refused goes with it. */
  REFUSED(bad.data[OFFSET + 3] = 0x70, "not in the device memory of rank 1");
#undef REFUSED
  close_pair();
  open_pair();
  bad = pair.handshakes[1];
  bad.data[COUNTERS + 6] = 0x70; /* beyond the rank's memory */
  ck_assert_int_ne(connect_end(0, &bad), ncclSuccess);
  close_pair();
}
END_TEST

/* Whatever the other end says, it is refused or it is a place of its own. */
START_TEST(copied_fuzz)
{
  int taken = 0, refused = 0;
  open_pair();
  srand(3);
  for (int i = 0; i < 600; i++) {
    struct tt_handshake bytes = pair.handshakes[1], unused;
    for (int k = rand() % 3; k >= 0; k--)
      bytes.data[rand() % (bytes.bytes + 1)] = (unsigned char)(rand() % 4 ? rand() : 0);
    if (rand() % 4 == 0) bytes.bytes = (uint16_t)(rand() % (TT_HANDSHAKE_MAX + 64));
    struct tt_connector connector = device_half(&pair.sides[0], true, TT_PROTO_SIMPLE);
    bool done = false;
    ck_assert_int_eq(tt_transport_copied.setup(&pair.sides[0].env, &connector, &unused), ncclSuccess);
    ncclResult_t result = tt_transport_copied.connect(&pair.sides[0].env, &connector, &bytes, &done);
    ck_assert_int_eq(done, result == ncclSuccess);
    taken += done;
    refused += !done;
    tt_transport_copied.close(&pair.sides[0].env, &connector);
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_gt(refused, 100);
  close_pair();
}
END_TEST

/* Whatever fails, closing the end leaves nothing. */
START_TEST(failures_of_copied)
{
  bool *const fails[] = {&device_maps_fail, &device_exports_fail, &device_imports_fail};
  struct tt_handshake unused;
  for (int i = 0; i < 2; i++) {
    struct side sides[2];
    side_open_both(sides);
    struct tt_connector connector = device_half(&sides[1], false, TT_PROTO_SIMPLE);
    *fails[i] = true;
    ck_assert_int_eq(tt_transport_copied.setup(&sides[1].env, &connector, &unused), ncclUnhandledCudaError);
    *fails[i] = false;
    tt_transport_copied.close(&sides[1].env, &connector);
    ck_assert_ptr_null(connector.resources);
    for (int r = 0; r < 2; r++) side_close(&sides[r]);
    device_expect_nothing_left();
  }
  open_pair();
  device_imports_fail = true;
  ck_assert_int_eq(connect_end(0, &pair.handshakes[1]), ncclUnhandledCudaError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "memory of rank 1"));
  device_imports_fail = false;
  close_pair();
}
END_TEST

/* ---- Between processes ---- */

static void child_receives(int wire)
{
  struct side side;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  char go;
  side_open(&side, 1, wire, NULL);
  struct tt_connector connector = device_half(&side, false, TT_PROTO_SIMPLE);
  SIDE_CHECK(tt_transport_copied.setup(&side.env, &connector, &mine) == ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  side_get(wire, &theirs, sizeof(theirs));
  SIDE_CHECK(tt_transport_copied.connect(&side.env, &connector, &theirs, &done) == ncclSuccess && done);
  SIDE_CHECK(device_recv(&connector.conn, TT_PROTO_SIMPLE, 5 * TT_SLOTS));
  side_get(wire, &go, 1); /* the sender still sees the counters until then */
  tt_transport_copied.close(&side.env, &connector);
  side_close(&side);
  struct fake_counts counts;
  fake_count(&counts);
  SIDE_CHECK(counts.memories == 0 && counts.contexts == 0 && counts.hosts == 0);
}

static void expect_refused(struct side *side, struct tt_connector *connector, const struct tt_handshake *bad)
{
  bool done = true;
  ck_assert_int_eq(tt_transport_copied.connect(&side->env, connector, bad, &done), ncclRemoteError);
  ck_assert(!done);
  ck_assert_msg(strstr(tt_log_thread_error(), "malformed") != NULL, "%s", tt_log_thread_error());
}

START_TEST(copied_between_processes)
{
  int wire;
  struct side side;
  struct tt_handshake mine = {0}, theirs, bad;
  bool done = false, moved, idle;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(tt_proxy_create(NULL, 0, &side.env.proxy), ncclSuccess);
  struct tt_connector connector = device_half(&side, true, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_copied.setup(&side.env, &connector, &mine), ncclSuccess);
  side_get(wire, &theirs, sizeof(theirs));
  bad = theirs;
  bad.data[KIND] = TT_EXPORT_LOCAL; /* this rank's pointers are none of theirs */
  expect_refused(&side, &connector, &bad);
  bad.data[KIND] = TT_EXPORT_FABRIC; /* which is for other hosts */
  expect_refused(&side, &connector, &bad);
  side_put(wire, &mine, sizeof(mine));
  ck_assert_int_eq(tt_transport_copied.connect(&side.env, &connector, &theirs, &done), ncclSuccess);
  ck_assert(done);
  char label[64];
  tt_transport_copied.label(&side.env, &connector, label, sizeof(label));
  ck_assert_str_eq(label, "P2P/CUMEM/CE");
  struct tt_conn *send = &connector.conn;
  for (int round = 0; round < 5; round++) {
    while (send->step != *send->head) ck_assert_int_eq(tt_proxy_progress(side.env.proxy, &moved, &idle), ncclSuccess);
    for (int i = 0; i < TT_SLOTS; i++) send->fifo[i].size = (int64_t)send->slot_bytes[TT_PROTO_SIMPLE];
    device_send(send, TT_PROTO_SIMPLE, TT_SLOTS);
  }
  while (send->step != *send->head) ck_assert_int_eq(tt_proxy_progress(side.env.proxy, &moved, &idle), ncclSuccess);
  side_put(wire, "g", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_copied.close(&side.env, &connector);
  tt_proxy_destroy(side.env.proxy);
  side_close(&side);
  device_expect_nothing_left();
}
END_TEST

void add_copied(Suite *suite)
{
  TCase *tc = tcase_create("copied");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, device_use_fake, device_use_none);
  tcase_add_test(tc, data);
  tcase_add_test(tc, handshakes_refused);
  tcase_add_test(tc, copied_fuzz);
  tcase_add_test(tc, failures_of_copied);
  tcase_add_test(tc, copied_between_processes);
  suite_add_tcase(suite, tc);
}
