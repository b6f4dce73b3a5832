/* Connections in device memory, between two ranks of a process and of two: data by hand, who keeps memory alive,
 * failures on the way, and that nothing is left. */
#include "device_side.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"

static bool in_slab(const struct tt_slab_piece *piece, const void *ptr)
{
  return (const unsigned char *)ptr >= piece->ptr && (const unsigned char *)ptr < piece->ptr + piece->bytes;
}

START_TEST(data_in_one_process)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (p == TT_PROTO_LL128) continue; /* no buffer of it here */
    device_set_up_pair(&pair, p);
    device_connect_pair(&pair);
    struct tt_conn *send = &pair.connectors[0].conn, *recv = &pair.connectors[1].conn;
    for (int q = 0; q < TT_NUM_PROTOCOLS; q++) ck_assert((send->slots[q] != NULL) == (q == p));
    ck_assert_uint_eq((uintptr_t)send->slots[p] % 128, 64);
    ck_assert_uint_eq(send->slot_bytes[p] % 128, 0);
    ck_assert_ptr_null(send->peer_bell);
    char label[64];
    tt_transport_device.label(&pair.sides[0].env, &pair.connectors[0], label, sizeof(label));
    ck_assert_str_eq(label, p == TT_PROTO_LL ? "P2P/direct pointer/LL" : "P2P/direct pointer/Simple");
    for (int i = 0; i < 20; i++) {
      device_send(send, p, TT_SLOTS);
      ck_assert(device_recv(recv, p, TT_SLOTS));
    }
    device_close_pair(&pair);
  }
  ck_assert_int_eq(device_allocs, 2);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

/* Each end polls its own memory. */
START_TEST(polled_words_are_local)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  struct tt_slab_piece first[2];
  for (int r = 0; r < 2; r++) ck_assert_int_eq(tt_slabs_alloc(pair.sides[r].env.slabs, 1, &first[r]), ncclSuccess);
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  device_connect_pair(&pair);
  struct tt_slab_piece whole[2];
  for (int r = 0; r < 2; r++) whole[r] = (struct tt_slab_piece){.ptr = first[r].ptr, .bytes = TT_SLAB_BYTES};
  for (int end = 0; end < 2; end++) {
    const struct tt_conn *conn = &pair.connectors[end].conn;
    ck_assert(in_slab(&whole[0], (const void *)conn->head));
    ck_assert(in_slab(&whole[1], (const void *)conn->tail));
    ck_assert(in_slab(&whole[1], conn->slots[TT_PROTO_SIMPLE]));
  }
  device_close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

static bool always_reads(const void *routes, int from, int to)
{
  (void)routes;
  ck_assert(from == 0 && to == 1); /* both ends ask about sender and receiver */
  return true;
}

/* Slots to be read lie in the sender's memory; LL is written all the same. */
START_TEST(slots_to_be_read)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  for (int r = 0; r < 2; r++) pair.sides[r].env.reads = always_reads;
  struct tt_slab_piece first[2];
  for (int r = 0; r < 2; r++) ck_assert_int_eq(tt_slabs_alloc(pair.sides[r].env.slabs, 1, &first[r]), ncclSuccess);
  for (int r = 0; r < 2; r++) first[r].bytes = TT_SLAB_BYTES;
  for (int p = 0; p < TT_NUM_PROTOCOLS; p += TT_PROTO_SIMPLE) {
    device_set_up_pair(&pair, p);
    device_connect_pair(&pair);
    for (int end = 0; end < 2; end++) {
      const struct tt_conn *conn = &pair.connectors[end].conn;
      ck_assert(in_slab(&first[0], (const void *)conn->head));
      ck_assert(in_slab(&first[1], (const void *)conn->tail));
      ck_assert(in_slab(&first[p == TT_PROTO_SIMPLE ? 0 : 1], conn->slots[p]));
      char label[64];
      tt_transport_device.label(&pair.sides[end].env, &pair.connectors[end], label, sizeof(label));
      ck_assert_str_eq(label, p == TT_PROTO_LL ? "P2P/direct pointer/LL" : "P2P/direct pointer/read/Simple");
    }
    /* What is given out next lies behind all slots. */
    int owner = p == TT_PROTO_SIMPLE ? 0 : 1;
    const struct tt_conn *own = &pair.connectors[owner].conn;
    struct tt_slab_piece next;
    ck_assert_int_eq(tt_slabs_alloc(pair.sides[owner].env.slabs, 1, &next), ncclSuccess);
    ck_assert(next.ptr >= own->slots[p] + TT_SLOTS * own->slot_bytes[p]);
    for (int i = 0; i < 20; i++) {
      device_send(&pair.connectors[0].conn, p, TT_SLOTS);
      ck_assert(device_recv(&pair.connectors[1].conn, p, TT_SLOTS));
    }
    device_close_pair(&pair);
  }
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

START_TEST(only_one_reads)
{
  struct device_pair pair;
  bool done = false;
  side_open_both(pair.sides);
  pair.sides[1].env.reads = always_reads;
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_device.connect(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[1], &done),
                   ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_P2P_READ_ENABLE"));
  device_close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

/* Slabs are exported once a kind and imported once a peer, however many connections there are; a piece larger than a
 * slab gets its own. */
START_TEST(slabs_are_shared)
{
  enum { PAIRS = 40 };
  struct device_pair pair;
  side_open_both(pair.sides);
  struct tt_connector connectors[PAIRS][2];
  for (int i = 0; i < PAIRS; i++) {
    device_set_up_pair(&pair, TT_PROTO_SIMPLE);
    device_connect_pair(&pair);
    memcpy(connectors[i], pair.connectors, sizeof(pair.connectors));
  }
  ck_assert_int_eq(device_allocs, 2);
  ck_assert_int_eq(device_exports[1], 2);
  ck_assert_int_eq(device_exports[0], 0);
  ck_assert_int_eq(device_imports, 2);
  struct tt_slab_piece large, small;
  ck_assert_int_eq(tt_slabs_alloc(pair.sides[0].env.slabs, 3 * TT_SLAB_BYTES, &large), ncclSuccess);
  ck_assert_int_eq(tt_slabs_alloc(pair.sides[0].env.slabs, 100, &small), ncclSuccess);
  ck_assert_uint_eq(tt_slab_number(large.slab), 2);
  ck_assert_uint_eq(tt_slab_number(small.slab), 1);
  large.ptr[3 * TT_SLAB_BYTES - 1] = 1;
  for (int i = 0; i < PAIRS; i++)
    for (int r = 0; r < 2; r++) tt_transport_device.close(&pair.sides[r].env, &connectors[i][r]);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

/* A rank leaves while its neighbour still uses its memory. */
START_TEST(owner_leaves_first)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  device_connect_pair(&pair);
  tt_transport_device.close(&pair.sides[1].env, &pair.connectors[1]);
  side_close(&pair.sides[1]);
  device_send(&pair.connectors[0].conn, TT_PROTO_SIMPLE, TT_SLOTS); /* into slots of a rank that is gone */
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 2);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 1);
  side_close(&pair.sides[0]);
  device_expect_nothing_left();
}
END_TEST

static ncclResult_t connect_side(struct side *side, struct tt_connector *connector, bool send)
{
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  *connector = device_half(side, send, TT_PROTO_SIMPLE);
  ncclResult_t result = tt_transport_device.setup(&side->env, connector, &mine);
  if (result != ncclSuccess) return result;
  side_put(side->wire, &mine, sizeof(mine));
  side_get(side->wire, &theirs, sizeof(theirs));
  result = tt_transport_device.connect(&side->env, connector, &theirs, &done);
  return result == ncclSuccess && !done ? ncclInternalError : result;
}

static void child_receives(int wire)
{
  struct side side;
  struct tt_connector connector;
  side_open(&side, 1, wire, NULL);
  SIDE_CHECK(connect_side(&side, &connector, false) == ncclSuccess);
  SIDE_CHECK(device_recv(&connector.conn, TT_PROTO_SIMPLE, 500));
  tt_transport_device.close(&side.env, &connector);
  SIDE_CHECK(device_imports == 1 && device_exports[0] == 1 && device_exports[1] == 0);
  side_close(&side);
  struct fake_counts counts;
  fake_count(&counts);
  SIDE_CHECK(counts.memories == 0 && counts.contexts == 0);
}

START_TEST(data_between_processes)
{
  int wire;
  struct side side;
  struct tt_connector connector;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(connect_side(&side, &connector, true), ncclSuccess);
  char label[64];
  tt_transport_device.label(&side.env, &connector, label, sizeof(label));
  ck_assert_str_eq(label, "P2P/CUMEM/Simple");
  device_send(&connector.conn, TT_PROTO_SIMPLE, 500);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_device.close(&side.env, &connector);
  side_close(&side);
  device_expect_nothing_left();
}
END_TEST

static void child_loses_owner(int wire)
{
  struct side side;
  struct tt_connector connector;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  side_open(&side, 1, wire, NULL);
  connector = device_half(&side, false, TT_PROTO_SIMPLE);
  SIDE_CHECK(tt_transport_device.setup(&side.env, &connector, &mine) == ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  side_get(wire, &theirs, sizeof(theirs));
  char closed;
  SIDE_CHECK(recv(wire, &closed, 1, 0) == 0);
  SIDE_CHECK(tt_transport_device.connect(&side.env, &connector, &theirs, &done) == ncclRemoteError && !done);
  SIDE_CHECK(strstr(tt_log_thread_error(), "it has ended"));
  tt_transport_device.close(&side.env, &connector);
  side_close(&side);
  struct fake_counts counts;
  fake_count(&counts);
  SIDE_CHECK(counts.memories == 0 && counts.contexts == 0);
}

/* Its memory cannot be had any more, and the other side is told so instead of waiting. */
START_TEST(owner_is_gone)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_loses_owner);
  side_open(&side, 0, wire, NULL);
  struct tt_connector connector = device_half(&side, true, TT_PROTO_SIMPLE);
  struct tt_handshake mine = {0}, theirs;
  ck_assert_int_eq(tt_transport_device.setup(&side.env, &connector, &mine), ncclSuccess);
  side_get(wire, &theirs, sizeof(theirs));
  tt_transport_device.close(&side.env, &connector);
  side_close(&side);
  side_put(wire, &mine, sizeof(mine));
  shutdown(wire, SHUT_WR);
  ck_assert_int_eq(side_wait(pid), 0);
}
END_TEST

/* Whatever step fails, the ends can be closed, nothing is left, and another try works. */
START_TEST(failures_leave_nothing)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  device_exports_fail = true;
  pair.connectors[0] = device_half(&pair.sides[0], true, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_device.setup(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[0]),
                   ncclUnhandledCudaError);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  device_exports_fail = false;
  device_set_up_pair(&pair, TT_PROTO_SIMPLE);
  device_imports_fail = true;
  bool done = false;
  ck_assert_int_eq(tt_transport_device.connect(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[1], &done),
                   ncclUnhandledCudaError);
  ck_assert(!done);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "memory of rank 1"));
  device_imports_fail = false;
  device_connect_pair(&pair);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]); /* twice is once */
  /* An end that is never closed: the rank's own end takes its import along. */
  free(pair.connectors[1].resources);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

/* A protocol without buffers has no connections. */
START_TEST(no_buffers)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  pair.connectors[0] = device_half(&pair.sides[0], true, TT_PROTO_LL128);
  ck_assert_int_eq(tt_transport_device.setup(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[0]),
                   ncclInternalError);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

/* ---- Exports by handle: the fake's descriptor, found again through /proc ---- */

static ncclResult_t export_handle(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                  struct tt_device_export *out)
{
  ncclResult_t result = device_counted_export(context, memory, local, out);
  if (result != ncclSuccess || local) return result;
  /* The descriptor stays open as long as the process lives. */
  snprintf((char *)out->handle, sizeof(out->handle), "/proc/%d/fd/%d", (int)getpid(), out->fd);
  out->kind = TT_EXPORT_HANDLE;
  out->fd = -1;
  return ncclSuccess;
}

static ncclResult_t import_handle(struct tt_device_context *context, const struct tt_device_export *in,
                                  struct tt_device_memory *memory)
{
  if (in->kind != TT_EXPORT_HANDLE) return ncclInternalError;
  struct tt_device_export by_fd = {
      .kind = TT_EXPORT_FD, .fd = open((const char *)in->handle, O_RDWR), .bytes = in->bytes};
  ncclResult_t result = by_fd.fd >= 0 ? device_counted_import(context, &by_fd, memory) : ncclSystemError;
  if (by_fd.fd >= 0) close(by_fd.fd);
  return result;
}

START_TEST(exports_by_handle)
{
  int wire;
  struct side side;
  struct tt_connector connector;
  device_fake.export_memory = export_handle;
  device_fake.import_memory = import_handle;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(connect_side(&side, &connector, true), ncclSuccess);
  device_send(&connector.conn, TT_PROTO_SIMPLE, 500);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_device.close(&side.env, &connector);
  side_close(&side);
  device_expect_nothing_left();
}
END_TEST

void add_device(Suite *suite)
{
  TCase *tc = tcase_create("device");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, device_use_fake, device_use_none);
  tcase_add_test(tc, data_in_one_process);
  tcase_add_test(tc, polled_words_are_local);
  tcase_add_test(tc, slots_to_be_read);
  tcase_add_test(tc, only_one_reads);
  tcase_add_test(tc, slabs_are_shared);
  tcase_add_test(tc, owner_leaves_first);
  tcase_add_test(tc, data_between_processes);
  tcase_add_test(tc, owner_is_gone);
  tcase_add_test(tc, failures_leave_nothing);
  tcase_add_test(tc, no_buffers);
  tcase_add_test(tc, exports_by_handle);
  suite_add_tcase(suite, tc);
}
