/* Connections in device memory, between two ranks of a process and of two: data by hand, handshakes that lie, and that
 * nothing is left. The device is the fake one, with some of its functions replaced. */
#include "side.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/uds.h"
#include "tests/fakes/device/fake.h"
#include "transport/imports.h"
#include "transport/memory_wire.h"

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

static void child_loses_owner(int wire)
{
  struct side side;
  struct tt_connector connector;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  side_open(&side, 1, wire, NULL);
  connector = half(&side, false, TT_PROTO_SIMPLE);
  SIDE_CHECK(tt_transport_device.setup(&side.env, &connector, &mine) == ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  side_get(wire, &theirs, sizeof(theirs));
  char closed;
  SIDE_CHECK(recv(wire, &closed, 1, 0) == 0);
  SIDE_CHECK(tt_transport_device.connect(&side.env, &connector, &theirs, &done) == ncclRemoteError && !done);
  SIDE_CHECK(strstr(tt_log_thread_error(), "it has probably ended"));
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
  struct tt_connector connector = half(&side, true, TT_PROTO_SIMPLE);
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

/* Where each field of a handshake begins. */
enum { VERSION = 0, ROLE = 2, PROTOCOL = 3, KIND = 4, NUMBER = 5, BYTES = 9, OFFSET = 17, SLOT_BYTES = 25, END = 33 };

static void expect_refused(struct pair *pair, const struct tt_handshake *bad, const char *why)
{
  bool done = false;
  ncclResult_t result = tt_transport_device.connect(&pair->sides[0].env, &pair->connectors[0], bad, &done);
  ck_assert_int_ne(result, ncclSuccess);
  ck_assert(!done);
  ck_assert_msg(strstr(tt_log_thread_error(), why) != NULL, "\"%s\" lacks \"%s\"", tt_log_thread_error(), why);
}

START_TEST(handshakes_refused)
{
  struct pair pair;
  side_open_both(pair.sides);
  set_up_pair(&pair, TT_PROTO_SIMPLE);
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
  REFUSED(bad.data[KIND] = TT_EXPORT_FD, "malformed"); /* of this process, and not asked by a socket */
  REFUSED(bad.data[KIND] = TT_EXPORT_HANDLE, "malformed");
  REFUSED(bad.data[KIND] = 77, "malformed");
  REFUSED(bad.data[NUMBER] = 2, "not there");
  REFUSED(bad.data[NUMBER + 3] = 0xff, "not there");
  REFUSED(bad.data[OFFSET] += 64, "not in its device memory"); /* not aligned */
  REFUSED(bad.data[OFFSET + 3] = 0x70, "not in its device memory");
  REFUSED(memset(bad.data + OFFSET, 0xff, 8); bad.data[OFFSET] = 0x80, "not in its device memory");
  REFUSED(bad.bytes--, "malformed");
  REFUSED(bad.bytes++, "malformed");
  REFUSED(bad.bytes = 0, "version");
  REFUSED(bad.bytes = UINT16_MAX, "malformed");
#undef REFUSED
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 2); /* no import is left by those that failed behind it */
  connect_pair(&pair);                  /* the right one is still taken */
  close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

START_TEST(handshakes_fuzz)
{
  struct pair pair;
  side_open_both(pair.sides);
  set_up_pair(&pair, TT_PROTO_LL);
  srand(11);
  int taken = 0, refused = 0;
  for (int i = 0; i < 20000; i++) {
    struct tt_handshake bytes = pair.handshakes[1];
    for (int k = rand() % 4; k >= 0; k--)
      bytes.data[rand() % (bytes.bytes + 1)] = (unsigned char)(rand() % 4 ? rand() : 0);
    if (rand() % 4 == 0) bytes.bytes = (uint16_t)(rand() % (TT_HANDSHAKE_MAX + 64));
    struct tt_connector connector = pair.connectors[0];
    connector.resources = NULL;
    struct tt_handshake unused;
    ck_assert_int_eq(tt_transport_device.setup(&pair.sides[0].env, &connector, &unused), ncclSuccess);
    bool done = false;
    ncclResult_t result = tt_transport_device.connect(&pair.sides[0].env, &connector, &bytes, &done);
    ck_assert((result == ncclSuccess) == done);
    taken += done;
    refused += !done;
    if (done) /* wherever it points, it is memory of the other rank */
      for (size_t at = 0; at < connector.conn.slot_bytes[TT_PROTO_LL] * TT_SLOTS; at += 4096)
        connector.conn.slots[TT_PROTO_LL][at] = 1;
    tt_transport_device.close(&pair.sides[0].env, &connector);
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_gt(refused, 1000);
  close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* Whatever step fails, the ends can be closed, nothing is left, and another try works. */
START_TEST(failures_leave_nothing)
{
  struct pair pair;
  side_open_both(pair.sides);
  exports_fail = true;
  pair.connectors[0] = half(&pair.sides[0], true, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_transport_device.setup(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[0]),
                   ncclUnhandledCudaError);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  exports_fail = false;
  set_up_pair(&pair, TT_PROTO_SIMPLE);
  imports_fail = true;
  bool done = false;
  ck_assert_int_eq(tt_transport_device.connect(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[1], &done),
                   ncclUnhandledCudaError);
  ck_assert(!done);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "memory of rank 1"));
  imports_fail = false;
  connect_pair(&pair);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]); /* twice is once */
  /* An end that is never closed: the rank's own end takes its import along. */
  free(pair.connectors[1].resources);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* A protocol without buffers has no connections. */
START_TEST(no_buffers)
{
  struct pair pair;
  side_open_both(pair.sides);
  pair.connectors[0] = half(&pair.sides[0], true, TT_PROTO_LL128);
  ck_assert_int_eq(tt_transport_device.setup(&pair.sides[0].env, &pair.connectors[0], &pair.handshakes[0]),
                   ncclInternalError);
  tt_transport_device.close(&pair.sides[0].env, &pair.connectors[0]);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  expect_nothing_left();
}
END_TEST

/* ---- The service that hands slabs out ---- */

static void child_waits(int wire)
{
  struct side side;
  char go;
  side_open(&side, 1, wire, NULL);
  side_get(wire, &go, 1);
  side_close(&side);
}

/* What a client that knows `key` gets for `object`; -1 if it is dropped. */
static int ask_for(const struct tt_peer_info *info, const struct tt_key *key, uint64_t object, uint64_t *bytes)
{
  int socket, fd = -1;
  ck_assert_int_eq(tt_uds_connect(info->uds, &socket), ncclSuccess);
  ck_assert_int_ge(socket, 0);
  tt_deadline deadline = tt_deadline_in_ms(30000);
  struct tt_memory_hello hello = {TT_MEMORY_MAGIC, TT_MEMORY_VERSION, 1, info->rank, {1, 2}, object};
  struct tt_memory_challenge challenge;
  struct tt_memory_grant last = {0};
  ck_assert_int_eq(tt_uds_send(socket, &hello, sizeof(hello), -1, deadline), ncclSuccess);
  ck_assert_int_eq(tt_uds_recv(socket, &challenge, sizeof(challenge), NULL, deadline), ncclSuccess);
  struct tt_memory_proof proof = {tt_memory_prove(key, 'C', &hello, challenge.nonce, 0)};
  ck_assert_int_eq(tt_uds_send(socket, &proof, sizeof(proof), -1, deadline), ncclSuccess);
  if (tt_uds_recv(socket, &last, sizeof(last), &fd, deadline) != ncclSuccess) fd = -1;
  if (fd >= 0) {
    ck_assert_uint_eq(last.proof, tt_memory_prove(key, 'G', &hello, challenge.nonce, last.bytes));
    ck_assert_uint_ne(last.proof, tt_memory_prove(key, 'G', &hello, challenge.nonce, last.bytes + 1));
    hello.object++;
    ck_assert_uint_ne(last.proof, tt_memory_prove(key, 'G', &hello, challenge.nonce, last.bytes));
  }
  *bytes = last.bytes;
  close(socket);
  return fd;
}

static int open_descriptors(void)
{
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

static uint64_t wait_dropped(const struct side *side, uint64_t wanted)
{
  for (int i = 0; i < 20000 && tt_peer_memory_dropped(side->memory) < wanted; i++) usleep(1000);
  return tt_peer_memory_dropped(side->memory);
}

START_TEST(only_exported_slabs_are_handed_out)
{
  int wire;
  struct side side;
  pid_t pid = side_fork(&wire, child_waits);
  side_open(&side, 0, wire, NULL);
  const struct tt_peer_info *me = &side.peers[0];
  struct tt_key right = me->key, wrong = {right.k0 + 1, right.k1};
  struct tt_slab_piece piece;
  struct tt_device_export shown;
  uint64_t bytes, dropped = 0;
  ck_assert_int_eq(ask_for(me, &right, 1, &bytes), -1); /* not there yet */
  ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
  ck_assert_int_eq(tt_slabs_alloc(side.env.slabs, 1, &piece), ncclSuccess);
  ck_assert_int_eq(ask_for(me, &right, 1, &bytes), -1); /* there, but not exported */
  ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
  ck_assert_int_eq(tt_slab_export(piece.slab, false, &shown), ncclSuccess);
  int before = open_descriptors();
  for (int i = 0; i < 10; i++) {
    int fd = ask_for(me, &right, 1, &bytes);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_eq(bytes, TT_SLAB_BYTES);
    close(fd);
  }
  static const uint64_t none[] = {2, 1ull << 32 | 1, UINT64_MAX};
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(ask_for(me, &right, none[i], &bytes), -1);
    ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
  }
  ck_assert_int_eq(ask_for(me, &wrong, 1, &bytes), -1);
  ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
  int fd = ask_for(me, &right, TT_MEMORY_ARENA, &bytes);
  ck_assert_int_ge(fd, 0);
  ck_assert_uint_eq(bytes, 1 << 28);
  close(fd);
  for (int i = 0; i < 20000 && open_descriptors() > before; i++) usleep(1000); /* the service closes its ends */
  ck_assert_int_eq(open_descriptors(), before);
  side_put(wire, "g", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  side_close(&side);
  expect_nothing_left();
}
END_TEST

/* ---- Exports by handle: the fake's descriptor, found again through /proc ---- */

static ncclResult_t export_handle(struct tt_device_context *context, const struct tt_device_memory *memory, int local,
                                  struct tt_device_export *out)
{
  ncclResult_t result = counted_export(context, memory, local, out);
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
  ncclResult_t result = by_fd.fd >= 0 ? counted_import(context, &by_fd, memory) : ncclSystemError;
  if (by_fd.fd >= 0) close(by_fd.fd);
  return result;
}

START_TEST(exports_by_handle)
{
  int wire;
  struct side side;
  struct tt_connector connector;
  device.export_memory = export_handle;
  device.import_memory = import_handle;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(connect_side(&side, &connector, true), ncclSuccess);
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
  tcase_add_test(tc, owner_is_gone);
  tcase_add_test(tc, handshakes_refused);
  tcase_add_test(tc, handshakes_fuzz);
  tcase_add_test(tc, failures_leave_nothing);
  tcase_add_test(tc, no_buffers);
  tcase_add_test(tc, only_exported_slabs_are_handed_out);
  tcase_add_test(tc, exports_by_handle);
  suite_add_tcase(suite, tc);
}
