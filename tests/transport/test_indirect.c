/* Connections through a third rank's device, by hand: data, all three ranks in one process and in two, what other ranks
 * may say of the memory that is lent, failures on the way, and that nothing is left. Rank 0 sends to 1, 2 lends. */
#include "device_side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "transport/lent.h"
#include "transport/reach.h"

enum { RANKS = 3, LENDER = 2, LL = TT_PROTO_LL };
/* Where each field of a receiver's handshake begins. A sender's ends before NUMBER. */
enum { VERSION = 0, ROLE = 2, PROTOCOL = 3, SLOT_BYTES = 4, BETWEEN = 12, NUMBER = 16, OFFSET = 20, END = 28 };

static const struct tt_transport *const indirect = &tt_transport_indirect;

static int between(const void *routes, int from, int to)
{
  (void)routes;
  return from < LENDER && to < LENDER ? LENDER : -1;
}

static void open_ranks(struct side *sides, uint32_t here, int wire)
{
  memset(sides, 0, RANKS * sizeof(*sides));
  side_open_group(sides, here, RANKS, wire);
  for (int r = 0; r < RANKS; r++) {
    if (!(here >> r & 1)) continue;
    sides[r].env.between = between;
    if (tt_lent_create(&sides[r].env, &sides[r].env.lent) != ncclSuccess) abort();
  }
}

/* Who uses what is lent leaves first, or last: each is in order. */
static void close_ranks(struct side *sides, uint32_t here)
{
  for (int r = 0; r < RANKS; r++) {
    if (!(here >> r & 1)) continue;
    tt_lent_destroy(sides[r].env.lent);
    side_close(&sides[r]);
  }
}

/* ---- In one process ---- */

struct pair {
  struct side sides[RANKS];
  struct tt_connector connectors[2];
  struct tt_handshake handshakes[2];
};

static void set_up(struct pair *pair, int protocol)
{
  for (int r = 0; r < 2; r++) {
    pair->connectors[r] = device_half(&pair->sides[r], r == 0, protocol);
    ck_assert_int_eq(indirect->setup(&pair->sides[r].env, &pair->connectors[r], &pair->handshakes[r]), ncclSuccess);
  }
}

static ncclResult_t connect_end(struct pair *pair, int r, const struct tt_handshake *theirs)
{
  bool done = false;
  ncclResult_t result = indirect->connect(&pair->sides[r].env, &pair->connectors[r], theirs, &done);
  ck_assert_int_eq(done, result == ncclSuccess);
  return result;
}

static void close_ends(struct pair *pair)
{
  for (int r = 0; r < 2; r++) indirect->close(&pair->sides[r].env, &pair->connectors[r]);
}

START_TEST(indirect_data)
{
  struct pair pair;
  open_ranks(pair.sides, 7, -1);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p += TT_PROTO_SIMPLE) {
    set_up(&pair, p);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(connect_end(&pair, r, &pair.handshakes[1 - r]), ncclSuccess);
    struct tt_conn *send = &pair.connectors[0].conn, *recv = &pair.connectors[1].conn;
    ck_assert_ptr_eq(send->slots[p], recv->slots[p]);
    struct tt_slab *slab = tt_slab_find(pair.sides[LENDER].peers[LENDER].uds, TT_SLAB_LENT | 1 << 8);
    ck_assert_ptr_nonnull(slab); /* rank 1 has asked rank 2 */
    tt_slab_release(slab);
    char label[64];
    indirect->label(&pair.sides[0].env, &pair.connectors[0], label, sizeof(label));
    ck_assert_msg(strncmp(label, "P2P/indirect/2[", 15) == 0, "%s", label);
    for (int i = 0; i < 20; i++) {
      device_send(send, p, TT_SLOTS);
      ck_assert(device_recv(recv, p, TT_SLOTS));
    }
    close_ends(&pair);
  }
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

START_TEST(lender_leaves_first)
{
  struct pair pair;
  open_ranks(pair.sides, 7, -1);
  set_up(&pair, LL);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(connect_end(&pair, r, &pair.handshakes[1 - r]), ncclSuccess);
  close_ranks(pair.sides, 1 << LENDER);
  device_send(&pair.connectors[0].conn, LL, TT_SLOTS);
  ck_assert(device_recv(&pair.connectors[1].conn, LL, TT_SLOTS));
  close_ends(&pair);
  close_ranks(pair.sides, 3);
  device_expect_nothing_left();
}
END_TEST

/* ---- What others may say ---- */

static ncclResult_t expect_refused(struct pair *pair, int r, const struct tt_handshake *bad, const char *why)
{
  ncclResult_t result = connect_end(pair, r, bad);
  ck_assert_int_ne(result, ncclSuccess);
  ck_assert_msg(strstr(tt_log_thread_error(), why) != NULL, "\"%s\" lacks \"%s\"", tt_log_thread_error(), why);
  return result;
}

#define REFUSED(end, change, why)                                                                                      \
  do {                                                                                                                 \
    struct tt_handshake bad = pair.handshakes[1 - (end)];                                                              \
    change;                                                                                                            \
    expect_refused(&pair, end, &bad, why);                                                                             \
  } while (0)

START_TEST(indirect_refused)
{
  struct pair pair;
  struct fake_counts counts;
  open_ranks(pair.sides, 7, -1);
  set_up(&pair, TT_PROTO_SIMPLE);
  ck_assert_uint_eq(pair.handshakes[0].bytes, NUMBER);
  ck_assert_uint_eq(pair.handshakes[1].bytes, END);
  for (int r = 0; r < 2; r++) {
    REFUSED(r, bad.data[VERSION]++, "version");
    REFUSED(r, bad.data[ROLE] ^= 1, "malformed");
    REFUSED(r, bad.data[PROTOCOL] = LL, "must be equal");
    REFUSED(r, bad.data[SLOT_BYTES + 1] ^= 0x40, "must be equal");
    REFUSED(r, bad.data[BETWEEN] = 1, "same topology");
    REFUSED(r, memset(bad.data + BETWEEN, 0xff, 4), "same topology");
    REFUSED(r, bad.bytes--, "malformed");
    REFUSED(r, bad.bytes++, "malformed");
    REFUSED(r, bad.bytes = 0, "version");
    REFUSED(r, bad.bytes = UINT16_MAX, "malformed");
  }
  REFUSED(0, bad.data[NUMBER + 3] = 0, "malformed");    /* a slab that the lender has for itself */
  REFUSED(0, bad.data[NUMBER + 1] = 0, "malformed");    /* one that it lends to this rank */
  REFUSED(0, bad.data[NUMBER + 1] = 2, "malformed");    /* to itself */
  REFUSED(0, bad.data[NUMBER + 3] = 0xff, "malformed"); /* to a rank that there is none of */
  const char *outside = "not in the device memory of rank 2";
  REFUSED(0, bad.data[OFFSET] += 64, outside); /* not aligned */
  REFUSED(0, bad.data[OFFSET + 3] = 0x02, outside);
  REFUSED(0, (memset(bad.data + OFFSET, 0xff, 8), bad.data[OFFSET] = 0x80), outside);
  uint32_t last = (uint32_t)TT_SLAB_LENT_BYTES - TT_SLAB_ALIGNMENT; /* begins inside, and ends outside */
  REFUSED(0, memcpy(bad.data + OFFSET, &last, 4), outside);
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 2); /* what is lent, and the receiver's import of it */
  for (int r = 0; r < 2; r++) ck_assert_int_eq(connect_end(&pair, r, &pair.handshakes[1 - r]), ncclSuccess);
  close_ends(&pair);
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

/* A receiver may make the lender lend no more than it would for itself. */
START_TEST(lends_no_more)
{
  struct pair pair;
  open_ranks(pair.sides, 7, -1);
  set_up(&pair, LL);
  int before = device_allocs;
  for (int i = 1; i < TT_SLAB_MOST_LENT; i++) {
    struct tt_handshake next = pair.handshakes[1];
    struct tt_connector connector = device_half(&pair.sides[0], true, LL);
    struct tt_handshake unused;
    bool done;
    next.data[NUMBER] = (unsigned char)i;
    ck_assert_int_eq(indirect->setup(&pair.sides[0].env, &connector, &unused), ncclSuccess);
    ck_assert_int_eq(indirect->connect(&pair.sides[0].env, &connector, &next, &done), ncclSuccess);
    indirect->close(&pair.sides[0].env, &connector);
  }
  ck_assert_int_eq(device_allocs - before, TT_SLAB_MOST_LENT - 1);
  REFUSED(0, bad.data[NUMBER] = TT_SLAB_MOST_LENT, "not there");
  REFUSED(0, bad.data[NUMBER] = 0xff, "not there");
  ck_assert_int_eq(device_allocs - before, TT_SLAB_MOST_LENT - 1);
  close_ends(&pair);
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

START_TEST(indirect_fuzz)
{
  struct pair pair;
  open_ranks(pair.sides, 7, -1);
  set_up(&pair, LL);
  srand(5);
  int taken = 0, refused = 0;
  for (int i = 0; i < 5000; i++) {
    struct tt_handshake bytes = pair.handshakes[1], unused;
    for (int k = rand() % 4; k >= 0; k--)
      bytes.data[rand() % (bytes.bytes + 1)] = (unsigned char)(rand() % 4 ? rand() : 0);
    if (rand() % 4 == 0) bytes.bytes = (uint16_t)(rand() % (TT_HANDSHAKE_MAX + 64));
    struct tt_connector connector = device_half(&pair.sides[0], true, LL);
    ck_assert_int_eq(indirect->setup(&pair.sides[0].env, &connector, &unused), ncclSuccess);
    bool done = false;
    ncclResult_t result = indirect->connect(&pair.sides[0].env, &connector, &bytes, &done);
    ck_assert((result == ncclSuccess) == done);
    taken += done;
    refused += !done;
    if (done) /* wherever it points, it is what was lent */
      for (size_t at = 0; at < connector.conn.slot_bytes[LL] * TT_SLOTS; at += 4096) connector.conn.slots[LL][at] = 1;
    indirect->close(&pair.sides[0].env, &connector);
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_gt(refused, 1000);
  close_ends(&pair);
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

/* ---- Failures on the way ---- */

START_TEST(indirect_failures)
{
  struct pair pair;
  struct tt_handshake unused;
  open_ranks(pair.sides, 7, -1);
  struct tt_connector *recv = &pair.connectors[1];
  *recv = device_half(&pair.sides[1], false, LL);
  device_imports_fail = true;
  ck_assert_int_eq(indirect->setup(&pair.sides[1].env, recv, &unused), ncclUnhandledCudaError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "memory of rank 2"));
  indirect->close(&pair.sides[1].env, recv);
  device_imports_fail = false;
  set_up(&pair, LL);
  device_imports_fail = true;
  ck_assert_int_eq(connect_end(&pair, 0, &pair.handshakes[1]), ncclUnhandledCudaError);
  close_ends(&pair);
  device_imports_fail = false;
  /* A slot that what is lent at a time cannot hold. */
  pair.sides[1].env.buffer_bytes[TT_PROTO_SIMPLE] = TT_SLAB_LENT_BYTES;
  *recv = device_half(&pair.sides[1], false, TT_PROTO_SIMPLE);
  ck_assert_int_eq(indirect->setup(&pair.sides[1].env, recv, &unused), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "lower NCCL_BUFFSIZE"));
  indirect->close(&pair.sides[1].env, recv);
  /* Nobody lies between, as this end's routes say. */
  pair.sides[1].env.between = NULL;
  *recv = device_half(&pair.sides[1], false, LL);
  ck_assert_int_eq(indirect->setup(&pair.sides[1].env, recv, &unused), ncclInternalError);
  indirect->close(&pair.sides[1].env, recv);
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

/* ---- Between processes ---- */

/* Ranks of the child: the receiver, with or without the lender. */
static uint32_t childs;

static void child_receives(int wire)
{
  struct side sides[RANKS];
  struct tt_handshake mine = {0}, theirs;
  bool done = false;
  char go;
  open_ranks(sides, childs, wire);
  struct tt_transport_env *env = &sides[1].env;
  struct tt_connector connector = device_half(&sides[1], false, LL);
  SIDE_CHECK(indirect->setup(env, &connector, &mine) == ncclSuccess);
  side_put(wire, &mine, sizeof(mine));
  side_get(wire, &theirs, sizeof(theirs));
  SIDE_CHECK(indirect->connect(env, &connector, &theirs, &done) == ncclSuccess && done);
  SIDE_CHECK(device_recv(&connector.conn, LL, 500));
  side_get(wire, &go, 1); /* the lender answers until then */
  indirect->close(env, &connector);
  close_ranks(sides, childs);
  struct fake_counts counts;
  fake_count(&counts);
  SIDE_CHECK(counts.memories == 0 && counts.contexts == 0);
}

/* Either end is asked by the lender's socket in one arrangement, and has its pointers in the other. */
START_TEST(indirect_between_processes)
{
  int wire;
  struct pair pair;
  struct tt_handshake *theirs = &pair.handshakes[1];
  childs = _i ? 6 : 2;
  uint32_t here = 7 & ~childs;
  pid_t pid = side_fork(&wire, child_receives);
  open_ranks(pair.sides, here, wire);
  struct tt_transport_env *env = &pair.sides[0].env;
  pair.connectors[0] = device_half(&pair.sides[0], true, LL);
  ck_assert_int_eq(indirect->setup(env, &pair.connectors[0], &pair.handshakes[0]), ncclSuccess);
  side_get(wire, theirs, sizeof(*theirs));
  REFUSED(0, bad.data[NUMBER + 1] = 0, "malformed");
  REFUSED(0, bad.data[BETWEEN] = 1, "same topology");
  REFUSED(0, bad.data[OFFSET + 3] = 0x02, "not in the device memory of rank 2");
  side_put(wire, &pair.handshakes[0], sizeof(pair.handshakes[0]));
  ck_assert_int_eq(connect_end(&pair, 0, theirs), ncclSuccess);
  device_send(&pair.connectors[0].conn, LL, 500);
  side_put(wire, "g", 1);
  ck_assert_int_eq(side_wait(pid), 0);
  indirect->close(env, &pair.connectors[0]);
  close_ranks(pair.sides, here);
  device_expect_nothing_left();
}
END_TEST

/* ---- Where it is used ---- */

START_TEST(indirect_can)
{
  struct pair pair;
  char why[192];
  open_ranks(pair.sides, 7, -1);
  struct tt_transport_env *env = &pair.sides[0].env;
  ck_assert_int_eq(tt_reach_create(env->device, 0, RANKS, env->peers, NULL, &env->reach), ncclSuccess);
  ck_assert(indirect->can(env, 0, 1, why, sizeof(why)));
  ck_assert(!indirect->can(env, 0, 0, why, sizeof(why)));
  ck_assert(!indirect->can(env, 0, LENDER, why, sizeof(why))); /* nobody is between these */
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  tt_param_reset();
  ck_assert(indirect->can(env, 0, 1, why, sizeof(why)));
  pair.sides[0].peers[1].process++;
  ck_assert(!indirect->can(env, 0, 1, why, sizeof(why)));
  ck_assert_ptr_nonnull(strstr(why, "NCCL_CUMEM_ENABLE is 0"));
  unsetenv("NCCL_CUMEM_ENABLE");
  tt_param_reset();
  ck_assert(indirect->can(env, 0, 1, why, sizeof(why)));
  pair.sides[0].peers[LENDER].node = 2;
  ck_assert(!indirect->can(env, 0, 1, why, sizeof(why)));
  ck_assert_str_eq(why, "");
  env->between = NULL;
  ck_assert(!indirect->can(env, 0, 1, why, sizeof(why)));
  tt_reach_destroy(env->reach);
  close_ranks(pair.sides, 7);
  device_expect_nothing_left();
}
END_TEST

void add_indirect(Suite *suite)
{
  TCase *tc = tcase_create("indirect");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, device_use_fake, device_use_none);
  tcase_add_test(tc, indirect_data);
  tcase_add_test(tc, lender_leaves_first);
  tcase_add_test(tc, indirect_refused);
  tcase_add_test(tc, lends_no_more);
  tcase_add_test(tc, indirect_fuzz);
  tcase_add_test(tc, indirect_failures);
  tcase_add_loop_test(tc, indirect_between_processes, 0, 2);
  tcase_add_test(tc, indirect_can);
  suite_add_tcase(suite, tc);
}
