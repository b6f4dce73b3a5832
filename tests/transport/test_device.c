/* Connections in device memory, between two ranks of a process and of two: data by hand, handshakes that lie, and that
 * nothing is left. The device is the fake one, with some of its functions replaced. */
#include "side.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "tests/fakes/device/fake.h"
#include "transport/imports.h"

static const struct tt_device *fake;
static struct tt_device device;
static int nimports, nexports[2], nallocs;
static bool imports_fail, exports_fail;

static ncclResult_t counted_alloc(struct tt_device_context *context, size_t bytes, struct tt_device_memory *memory)
{
  nallocs++;
  return fake->alloc(context, bytes, memory);
}

static ncclResult_t counted_export(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                   struct tt_device_export *out)
{
  nexports[local]++;
  if (exports_fail) return ncclUnhandledCudaError;
  return fake->export_memory(context, memory, local, out);
}

static ncclResult_t counted_import(struct tt_device_context *context, const struct tt_device_export *in,
                                   struct tt_device_memory *memory)
{
  nimports++;
  if (imports_fail) return ncclUnhandledCudaError;
  return fake->import_memory(context, in, memory);
}

static void print(int level, const char *text)
{
  (void)level;
  fprintf(stderr, "fake device: %s\n", text);
}

static void use_fake(void)
{
  char why[64];
  fake = tutti_device(print, why, sizeof(why));
  device = *fake;
  device.alloc = counted_alloc;
  device.export_memory = counted_export;
  device.import_memory = counted_import;
  nimports = nexports[0] = nexports[1] = nallocs = 0;
  imports_fail = exports_fail = false;
  side_use_device(&device);
}

static void use_none(void)
{
  side_use_device(NULL);
}

static void expect_nothing_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.twins, 0);
}

static struct tt_connector half(const struct side *side, bool send, int protocol)
{
  return (struct tt_connector){.peer = 1 - side->rank, .send = send, .index = tt_connect_index(true, protocol, false)};
}

/* A pair of ends in this process: rank 0 sends. */
struct pair {
  struct side sides[2];
  struct tt_connector connectors[2];
  struct tt_handshake handshakes[2];
};

static void set_up_pair(struct pair *pair, int protocol)
{
  for (int r = 0; r < 2; r++) {
    pair->connectors[r] = half(&pair->sides[r], r == 0, protocol);
    ck_assert_int_eq(tt_transport_device.setup(&pair->sides[r].env, &pair->connectors[r], &pair->handshakes[r]),
                     ncclSuccess);
  }
}

static void connect_pair(struct pair *pair)
{
  for (int r = 0; r < 2; r++) {
    bool done = false;
    ck_assert_int_eq(
        tt_transport_device.connect(&pair->sides[r].env, &pair->connectors[r], &pair->handshakes[1 - r], &done),
        ncclSuccess);
    ck_assert(done);
  }
}

static void close_pair(struct pair *pair)
{
  for (int r = 0; r < 2; r++) tt_transport_device.close(&pair->sides[r].env, &pair->connectors[r]);
}

static void send_by_hand(struct tt_conn *conn, int protocol, uint64_t steps)
{
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (conn->step - atomic_load_explicit(conn->head, memory_order_acquire) >= TT_SLOTS) sched_yield();
    uint64_t *slot = (void *)(conn->slots[protocol] + conn->step % TT_SLOTS * conn->slot_bytes[protocol]);
    for (size_t i = 0; i < conn->slot_bytes[protocol] / 8; i++) slot[i] = conn->step * 1000003 + i;
    atomic_store_explicit(conn->tail, conn->step + 1, memory_order_release);
  }
}

static bool recv_by_hand(struct tt_conn *conn, int protocol, uint64_t steps)
{
  bool good = true;
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (atomic_load_explicit(conn->tail, memory_order_acquire) <= conn->step) sched_yield();
    uint64_t *slot = (void *)(conn->slots[protocol] + conn->step % TT_SLOTS * conn->slot_bytes[protocol]);
    for (size_t i = 0; i < conn->slot_bytes[protocol] / 8; i++) good = good && slot[i] == conn->step * 1000003 + i;
    atomic_store_explicit(conn->head, conn->step + 1, memory_order_release);
  }
  return good;
}

static bool in_slab(const struct tt_slab_piece *piece, const void *ptr)
{
  return (const unsigned char *)ptr >= piece->ptr && (const unsigned char *)ptr < piece->ptr + piece->bytes;
}

START_TEST(data_in_one_process)
{
  struct pair pair;
  side_open_both(pair.sides);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
    if (p == TT_PROTO_LL128) continue; /* no buffer of it here */
    set_up_pair(&pair, p);
    connect_pair(&pair);
    struct tt_conn *send = &pair.connectors[0].conn, *recv = &pair.connectors[1].conn;
    for (int q = 0; q < TT_NUM_PROTOCOLS; q++) ck_assert((send->slots[q] != NULL) == (q == p));
    ck_assert_uint_eq((uintptr_t)send->slots[p] % 128, 64);
    ck_assert_uint_eq(send->slot_bytes[p] % 128, 0);
    ck_assert_ptr_null(send->peer_bell);
    char label[64];
    tt_transport_device.label(&pair.sides[0].env, &pair.connectors[0], label, sizeof(label));
    ck_assert_str_eq(label, p == TT_PROTO_LL ? "P2P/direct/LL" : "P2P/direct/Simple");
    for (int i = 0; i < 20; i++) {
      send_by_hand(send, p, TT_SLOTS);
      ck_assert(recv_by_hand(recv, p, TT_SLOTS));
    }
    close_pair(&pair);
  }
  ck_assert_int_eq(nallocs, 2);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* Each end polls its own memory. */
START_TEST(polled_words_are_local)
{
  struct pair pair;
  side_open_both(pair.sides);
  struct tt_slab_piece first[2];
  for (int r = 0; r < 2; r++) ck_assert_int_eq(tt_slabs_alloc(pair.sides[r].env.slabs, 1, &first[r]), ncclSuccess);
  set_up_pair(&pair, TT_PROTO_SIMPLE);
  connect_pair(&pair);
  struct tt_slab_piece whole[2];
  for (int r = 0; r < 2; r++) whole[r] = (struct tt_slab_piece){.ptr = first[r].ptr, .bytes = TT_SLAB_BYTES};
  for (int end = 0; end < 2; end++) {
    const struct tt_conn *conn = &pair.connectors[end].conn;
    ck_assert(in_slab(&whole[0], (const void *)conn->head));
    ck_assert(in_slab(&whole[1], (const void *)conn->tail));
    ck_assert(in_slab(&whole[1], conn->slots[TT_PROTO_SIMPLE]));
  }
  close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* Slabs are exported once a kind and imported once a peer, however many connections there are; a piece larger than a
 * slab gets its own. */
START_TEST(slabs_are_shared)
{
  enum { PAIRS = 40 };
  struct pair pair;
  side_open_both(pair.sides);
  struct tt_connector connectors[PAIRS][2];
  for (int i = 0; i < PAIRS; i++) {
    set_up_pair(&pair, TT_PROTO_SIMPLE);
    connect_pair(&pair);
    memcpy(connectors[i], pair.connectors, sizeof(pair.connectors));
  }
  ck_assert_int_eq(nallocs, 2);
  ck_assert_int_eq(nexports[1], 2);
  ck_assert_int_eq(nexports[0], 0);
  ck_assert_int_eq(nimports, 2);
  struct tt_slab_piece large, small;
  ck_assert_int_eq(tt_slabs_alloc(pair.sides[0].env.slabs, 3 * TT_SLAB_BYTES, &large), ncclSuccess);
  ck_assert_int_eq(tt_slabs_alloc(pair.sides[0].env.slabs, 100, &small), ncclSuccess);
  ck_assert_uint_eq(tt_slab_number(large.slab), 2);
  ck_assert_uint_eq(tt_slab_number(small.slab), 1);
  large.ptr[3 * TT_SLAB_BYTES - 1] = 1;
  for (int i = 0; i < PAIRS; i++)
    for (int r = 0; r < 2; r++) tt_transport_device.close(&pair.sides[r].env, &connectors[i][r]);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* A rank leaves while its neighbour still uses its memory. */
START_TEST(owner_leaves_first)
{
  struct pair pair;
  side_open_both(pair.sides);
  set_up_pair(&pair, TT_PROTO_SIMPLE);
  connect_pair(&pair);
  tt_transport_device.close(&pair.sides[1].env, &pair.connectors[1]);
  side_close(&pair.sides[1]);
  send_by_hand(&pair.connectors[0].conn, TT_PROTO_SIMPLE, TT_SLOTS); /* into slots of a rank that is gone */
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 2);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 1);
  side_close(&pair.sides[0]);
  expect_nothing_left();
}
END_TEST

static ncclResult_t connect_side(struct side *side, struct tt_connector *connector, bool send)
{
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  *connector = half(side, send, TT_PROTO_SIMPLE);
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
  SIDE_CHECK(recv_by_hand(&connector.conn, TT_PROTO_SIMPLE, 500));
  tt_transport_device.close(&side.env, &connector);
  SIDE_CHECK(nimports == 1 && nexports[0] == 1 && nexports[1] == 0);
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
  ck_assert_str_eq(label, "P2P/export/Simple");
  send_by_hand(&connector.conn, TT_PROTO_SIMPLE, 500);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_device.close(&side.env, &connector);
  side_close(&side);
  expect_nothing_left();
}
END_TEST

void add_device(Suite *suite)
{
  TCase *tc = tcase_create("device");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, use_fake, use_none);
  tcase_add_test(tc, data_in_one_process);
  tcase_add_test(tc, polled_words_are_local);
  tcase_add_test(tc, slabs_are_shared);
  tcase_add_test(tc, owner_leaves_first);
  tcase_add_test(tc, data_between_processes);
  suite_add_tcase(suite, tc);
}
