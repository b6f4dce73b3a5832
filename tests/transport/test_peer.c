/* The shared memory transport: data through the slots of both protocols by hand, and handshakes that lie. */
#include "side.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 1000

/* Makes this side's half and completes it with the other's, over the wire. */
static ncclResult_t connect_side(struct side *side, struct tt_connector *connector, bool send)
{
  const struct tt_transport *peer = &tt_transport_peer;
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  *connector = (struct tt_connector){.peer = 1 - side->rank, .send = send};
  ncclResult_t result = peer->setup(&side->env, connector, &mine);
  if (result != ncclSuccess) return result;
  side_put(side->wire, &mine, sizeof(mine));
  side_get(side->wire, &theirs, sizeof(theirs));
  result = peer->connect(&side->env, connector, &theirs, &done);
  return result == ncclSuccess && !done ? ncclInternalError : result;
}

static uint64_t pattern(uint64_t step, uint64_t i)
{
  return step * 1000003 + i * 7919;
}

/* Simple: header and payload in a slot, then the counter. */
static void send_simple(struct tt_conn *conn, uint64_t steps)
{
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (conn->step - atomic_load(conn->head) >= TT_SLOTS) sched_yield();
    uint64_t *slot = (void *)(conn->slots[TT_PROTO_SIMPLE] + conn->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_SIMPLE]);
    for (size_t i = 0; i < conn->slot_bytes[TT_PROTO_SIMPLE] / 8; i++) slot[i] = pattern(conn->step, i);
    atomic_store_explicit(conn->tail, conn->step + 1, memory_order_release);
    tt_doorbell_ring(conn->peer_bell);
  }
}

static bool recv_simple(struct tt_conn *conn, uint64_t steps)
{
  bool good = true;
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (atomic_load_explicit(conn->tail, memory_order_acquire) <= conn->step) sched_yield();
    uint64_t *slot = (void *)(conn->slots[TT_PROTO_SIMPLE] + conn->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_SIMPLE]);
    for (size_t i = 0; i < conn->slot_bytes[TT_PROTO_SIMPLE] / 8; i++) good = good && slot[i] == pattern(conn->step, i);
    atomic_store_explicit(conn->head, conn->step + 1, memory_order_release);
    tt_doorbell_ring(conn->peer_bell);
  }
  return good;
}

/* LL: each 8-byte word carries 4 bytes and a flag, the step. */
static void send_ll(struct tt_conn *conn, uint64_t steps)
{
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    while (conn->step - atomic_load(conn->head) >= TT_SLOTS) sched_yield();
    _Atomic uint64_t *slot = (void *)(conn->slots[TT_PROTO_LL] + conn->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_LL]);
    for (size_t i = 0; i < conn->slot_bytes[TT_PROTO_LL] / 8; i++)
      atomic_store_explicit(&slot[i], (uint64_t)(uint32_t)(conn->step + 1) << 32 | (uint32_t)pattern(conn->step, i),
                            memory_order_relaxed);
  }
}

static bool recv_ll(struct tt_conn *conn, uint64_t steps)
{
  bool good = true;
  for (uint64_t end = conn->step + steps; conn->step < end; conn->step++) {
    _Atomic uint64_t *slot = (void *)(conn->slots[TT_PROTO_LL] + conn->step % TT_SLOTS * conn->slot_bytes[TT_PROTO_LL]);
    for (size_t i = 0; i < conn->slot_bytes[TT_PROTO_LL] / 8; i++) {
      uint64_t word;
      while ((word = atomic_load_explicit(&slot[i], memory_order_relaxed)) >> 32 != (uint32_t)(conn->step + 1))
        sched_yield();
      good = good && (uint32_t)word == (uint32_t)pattern(conn->step, i);
    }
    atomic_store_explicit(conn->head, conn->step + 1, memory_order_release);
  }
  return good;
}

static void child_receives(int wire)
{
  struct side side;
  struct tt_connector connector;
  side_open(&side, 1, wire, NULL);
  SIDE_CHECK(connect_side(&side, &connector, false) == ncclSuccess);
  SIDE_CHECK(connector.bytes >= 65536 + 16384);
  SIDE_CHECK(tt_shm_used(side.env.shm) >= connector.bytes);
  SIDE_CHECK(recv_simple(&connector.conn, STEPS));
  SIDE_CHECK(recv_ll(&connector.conn, STEPS));
  SIDE_CHECK(recv_simple(&connector.conn, 3));
  tt_transport_peer.close(&side.env, &connector);
  SIDE_CHECK(tt_shm_used(side.env.shm) <= 4096); /* the doorbell */
  side_close(&side);
}

START_TEST(data_between_processes)
{
  int wire;
  struct side side;
  struct tt_connector connector;
  pid_t pid = side_fork(&wire, child_receives);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(connect_side(&side, &connector, true), ncclSuccess);
  ck_assert_ptr_null(connector.conn.fifo);
  ck_assert_uint_eq(connector.conn.flags, 0);
  ck_assert_ptr_nonnull(connector.conn.peer_bell);
  ck_assert_ptr_ne(connector.conn.peer_bell, side.env.bell);
  ck_assert_int_eq(connector.conn.peer, 1);
  send_simple(&connector.conn, STEPS);
  send_ll(&connector.conn, STEPS);
  send_simple(&connector.conn, 3);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_peer.close(&side.env, &connector);
  side_close(&side);
}
END_TEST

static void child_closes_early(int wire)
{
  struct side side;
  struct tt_connector connector;
  side_open(&side, 1, wire, NULL);
  SIDE_CHECK(connect_side(&side, &connector, false) == ncclSuccess);
  char connected;
  side_get(wire, &connected, 1);
  tt_transport_peer.close(&side.env, &connector);
  side_close(&side);
  side_put(wire, "c", 1);
}

/* An end that goes first takes nothing away from under the other. */
START_TEST(closed_by_the_other)
{
  int wire;
  struct side side;
  struct tt_connector connector;
  pid_t pid = side_fork(&wire, child_closes_early);
  side_open(&side, 0, wire, NULL);
  ck_assert_int_eq(connect_side(&side, &connector, true), ncclSuccess);
  side_put(wire, "c", 1);
  char closed;
  side_get(wire, &closed, 1);
  send_simple(&connector.conn, TT_SLOTS);
  tt_doorbell_ring(connector.conn.peer_bell);
  ck_assert_int_eq(side_wait(pid), 0);
  tt_transport_peer.close(&side.env, &connector);
  side_close(&side);
}
END_TEST

/* A good handshake of a receiving and of a sending end, from a pair of ranks in one process. */
struct pair {
  struct tt_peer_memory *memory[2];
  struct tt_peer_info peers[2];
  struct tt_transport_env env[2];
  struct tt_connector connector[2]; /* 0 sends to 1 */
  struct tt_handshake handshake[2];
};

static uint64_t pair_first_step;

static void open_pair(struct pair *pair)
{
  memset(pair, 0, sizeof(*pair));
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(tt_peer_memory_create(r, 2, 1 << 24, &pair->memory[r]), ncclSuccess);
    pair->peers[r] = (struct tt_peer_info){.rank = r, .host_hash = 1, .process = 1};
    tt_peer_memory_describe(pair->memory[r], &pair->peers[r]);
  }
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(tt_peer_memory_start(pair->memory[r], pair->peers), ncclSuccess);
    struct tt_transport_env *env = &pair->env[r];
    *env = (struct tt_transport_env){.rank = r, .nranks = 2, .peers = pair->peers, .memory = pair->memory[r]};
    env->shm = tt_peer_memory_shm(pair->memory[r]);
    env->bell = tt_peer_memory_bell(pair->memory[r], &env->bell_offset);
    env->first_step = pair_first_step;
    env->buffer_bytes[TT_PROTO_LL] = 8192;
    env->buffer_bytes[TT_PROTO_SIMPLE] = 32768;
    pair->connector[r] = (struct tt_connector){.peer = 1 - r, .send = r == 0};
    ck_assert_int_eq(tt_transport_peer.setup(env, &pair->connector[r], &pair->handshake[r]), ncclSuccess);
  }
}

static void close_pair(struct pair *pair)
{
  for (int r = 0; r < 2; r++) tt_transport_peer.close(&pair->env[r], &pair->connector[r]);
  for (int r = 0; r < 2; r++) tt_peer_memory_destroy(pair->memory[r]);
}

START_TEST(data_in_one_process)
{
  struct pair pair;
  pair_first_step = _i == 0 ? 0 : (1ull << 32) - 20;
  open_pair(&pair);
  bool done;
  for (int r = 0; r < 2; r++)
    ck_assert_int_eq(tt_transport_peer.connect(&pair.env[r], &pair.connector[r], &pair.handshake[1 - r], &done),
                     ncclSuccess);
  ck_assert_ptr_eq(pair.connector[0].conn.tail, pair.connector[1].conn.tail);
  for (int i = 0; i < 20; i++) {
    send_simple(&pair.connector[0].conn, TT_SLOTS);
    ck_assert(recv_simple(&pair.connector[1].conn, TT_SLOTS));
    send_ll(&pair.connector[0].conn, TT_SLOTS);
    ck_assert(recv_ll(&pair.connector[1].conn, TT_SLOTS));
  }
  close_pair(&pair);
}
END_TEST

START_TEST(handshake_refused)
{
  struct pair pair;
  bool done;
  open_pair(&pair);
  struct tt_handshake good = pair.handshake[1], bad;
#define REFUSED(change)                                                                                                \
  do {                                                                                                                 \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    ck_assert_int_ne(tt_transport_peer.connect(&pair.env[0], &pair.connector[0], &bad, &done), ncclSuccess);           \
    ck_assert(!done);                                                                                                  \
  } while (0)
  REFUSED(bad.data[0]++);   /* another version */
  REFUSED(bad.data[2] = 1); /* both send */
  REFUSED(bad.bytes--);     /* cut */
  REFUSED(bad.bytes++);     /* too long */
  REFUSED(bad.bytes = 0);
  REFUSED(bad.bytes = UINT16_MAX);
  REFUSED(bad.data[11] += 1);        /* block not aligned */
  REFUSED(bad.data[17] = 0xff);      /* block outside */
  REFUSED(bad.data[19 + 1] ^= 0x40); /* other slots */
  REFUSED(bad.data[10] = 0xff);      /* doorbell outside */
#undef REFUSED
  close_pair(&pair);
}
END_TEST

START_TEST(handshake_fuzz)
{
  struct pair pair;
  open_pair(&pair);
  srand(7);
  int taken = 0, refused = 0;
  for (int i = 0; i < 20000; i++) {
    int r = i % 2;
    struct tt_handshake bytes = pair.handshake[1 - r];
    for (int k = rand() % 4; k >= 0; k--)
      bytes.data[rand() % (bytes.bytes + 1)] = (unsigned char)(rand() % 4 ? rand() : 0);
    if (rand() % 4 == 0) bytes.bytes = (uint16_t)(rand() % (TT_HANDSHAKE_MAX + 64));
    bool done = false;
    ncclResult_t result = tt_transport_peer.connect(&pair.env[r], &pair.connector[r], &bytes, &done);
    ck_assert((result == ncclSuccess) == done);
    taken += done;
    refused += !done;
    struct tt_conn *conn = &pair.connector[0].conn;
    if (done && r == 0) /* wherever it points, it is memory of the other rank */
      for (size_t at = 0; at < 32768; at += 4096) conn->slots[TT_PROTO_SIMPLE][at] = 1;
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_gt(refused, 1000);
  close_pair(&pair);
}
END_TEST

void add_peer(Suite *suite)
{
  TCase *tc = tcase_create("peer");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, data_between_processes);
  tcase_add_test(tc, closed_by_the_other);
  tcase_add_loop_test(tc, data_in_one_process, 0, 2);
  tcase_add_test(tc, handshake_refused);
  tcase_add_test(tc, handshake_fuzz);
  suite_add_tcase(suite, tc);
}
