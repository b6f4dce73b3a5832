/* What hostile or broken ranks can say about device memory: handshakes, and requests to the service that hands it out.
 */
#include "device_side.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/uds.h"
#include "transport/memory_wire.h"

/* Where each field of a handshake begins. */
enum {
  VERSION = 0,
  ROLE = 2,
  PROTOCOL = 3,
  SLOT_BYTES = 4,
  READS = 12,
  KIND = 13,
  NUMBER = 14,
  BYTES = 18,
  OFFSET = 26,
  END = 34
};

static void expect_refused(struct device_pair *pair, const struct tt_handshake *bad, const char *why)
{
  bool done = false;
  ncclResult_t result = tt_transport_device.connect(&pair->sides[0].env, &pair->connectors[0], bad, &done);
  ck_assert_int_ne(result, ncclSuccess);
  ck_assert(!done);
  ck_assert_msg(strstr(tt_log_thread_error(), why) != NULL, "\"%s\" lacks \"%s\"", tt_log_thread_error(), why);
}

START_TEST(handshakes_refused)
{
  struct device_pair pair;
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
  REFUSED(bad.data[READS] = 1, "NCCL_P2P_READ_ENABLE");
  REFUSED(bad.data[SLOT_BYTES + 1] ^= 0x40, "must be equal");
  REFUSED(bad.data[KIND] = TT_EXPORT_FD, "malformed"); /* of this process, and not asked by a socket */
  REFUSED(bad.data[KIND] = TT_EXPORT_HANDLE, "malformed");
  REFUSED((bad.data[KIND] = TT_EXPORT_FABRIC, bad.bytes += 64), "malformed"); /* which leads to other hosts only */
  REFUSED(bad.data[KIND] = 77, "malformed");
  REFUSED(bad.data[NUMBER] = 2, "not there");
  REFUSED(bad.data[NUMBER + 3] = 0x7f, "not there");
  REFUSED(bad.data[NUMBER + 3] = 0xff, "malformed");                     /* one that would be lent */
  REFUSED(bad.data[OFFSET] += 64, "not in the device memory of rank 1"); /* not aligned */
  REFUSED(bad.data[OFFSET + 3] = 0x70, "not in the device memory of rank 1");
  REFUSED(memset(bad.data + OFFSET, 0xff, 8); bad.data[OFFSET] = 0x80, "not in the device memory of rank 1");
  REFUSED(bad.bytes--, "malformed");
  REFUSED(bad.bytes++, "malformed");
  REFUSED(bad.bytes = 0, "version");
  REFUSED(bad.bytes = UINT16_MAX, "malformed");
#undef REFUSED
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.memories, 2); /* no import is left by those that failed behind it */
  device_connect_pair(&pair);           /* the right one is still taken */
  device_close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
}
END_TEST

START_TEST(handshakes_fuzz)
{
  struct device_pair pair;
  side_open_both(pair.sides);
  device_set_up_pair(&pair, TT_PROTO_LL);
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
  device_close_pair(&pair);
  for (int r = 0; r < 2; r++) side_close(&pair.sides[r]);
  device_expect_nothing_left();
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
  ck_assert_int_eq(tt_slab_export(piece.slab, TT_EXPORT_NEAR, &shown), ncclSuccess);
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
  ck_assert_int_eq(ask_for(me, &right, TT_SLAB_OFFERED, &bytes), -1); /* nothing is offered */
  ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
  tt_slabs_offer(side.env.slabs, shown.fd, 77);
  int offered = ask_for(me, &right, TT_SLAB_OFFERED, &bytes);
  ck_assert_int_ge(offered, 0);
  ck_assert_uint_eq(bytes, 77);
  close(offered);
  tt_slabs_offer(side.env.slabs, -1, 0);
  ck_assert_int_eq(ask_for(me, &right, TT_SLAB_OFFERED, &bytes), -1);
  ck_assert_uint_eq(wait_dropped(&side, ++dropped), dropped);
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
  device_expect_nothing_left();
}
END_TEST

void add_device_hostile(Suite *suite)
{
  TCase *tc = tcase_create("device_hostile");
  tcase_set_timeout(tc, 120);
  tcase_add_checked_fixture(tc, device_use_fake, device_use_none);
  tcase_add_test(tc, handshakes_refused);
  tcase_add_test(tc, handshakes_fuzz);
  tcase_add_test(tc, only_exported_slabs_are_handed_out);
  suite_add_tcase(suite, tc);
}
