/* What ranks exchange: written, read, and refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "transport/buffers.h"
#include "transport/node.h"
#include "transport/peer_info.h"
#include "transport/relay_wire.h"
#include "transport/wire.h"

START_TEST(peer_info_survives)
{
  struct tt_peer_info info = {.rank = 5,
                              .device = 3,
                              .pid = 4711,
                              .node = 2,
                              .host_hash = 0x0123456789abcdefu,
                              .process = 0xfedcba9876543210u,
                              .key = {1, UINT64_MAX},
                              .host = "node-a",
                              .uds = "tutti-x",
                              .device_id = {7, [15] = 9},
                              .pci = "0000:1b:00.0"};
  unsigned char bytes[TT_PEER_INFO_BYTES];
  struct tt_peer_info back;
  tt_peer_info_pack(&info, bytes);
  ck_assert_int_eq(tt_peer_info_unpack(bytes, &back), ncclSuccess);
  ck_assert_int_eq(back.rank, 5);
  ck_assert_int_eq(back.device, 3);
  ck_assert_int_eq(back.pid, 4711);
  ck_assert_int_eq(back.node, 2);
  ck_assert_uint_eq(back.host_hash, info.host_hash);
  ck_assert_uint_eq(back.process, info.process);
  ck_assert_uint_eq(back.key.k0, 1);
  ck_assert_uint_eq(back.key.k1, UINT64_MAX);
  ck_assert_str_eq(back.host, "node-a");
  ck_assert_str_eq(back.uds, "tutti-x");
  ck_assert_mem_eq(back.device_id, info.device_id, sizeof(info.device_id));
  ck_assert_str_eq(back.pci, "0000:1b:00.0");
  /* The order of bytes is part of the format. */
  ck_assert_int_eq(bytes[8], 5);
  ck_assert_int_eq(bytes[24], 0xef);
}
END_TEST

START_TEST(peer_info_cuts_long_texts)
{
  struct tt_peer_info info = {0}, back;
  memset(info.host, 'h', sizeof(info.host)); /* no NUL at all */
  unsigned char bytes[TT_PEER_INFO_BYTES];
  tt_peer_info_pack(&info, bytes);
  ck_assert_int_eq(tt_peer_info_unpack(bytes, &back), ncclSuccess);
  ck_assert_uint_eq(strlen(back.host), sizeof(back.host) - 1);
}
END_TEST

START_TEST(peer_info_refuses)
{
  struct tt_peer_info info = {.host = "a", .uds = "b"}, back;
  unsigned char good[TT_PEER_INFO_BYTES], bad[TT_PEER_INFO_BYTES];
  tt_peer_info_pack(&info, good);
  memcpy(bad, good, sizeof(bad));
  bad[0] ^= 1;
  ck_assert_int_eq(tt_peer_info_unpack(bad, &back), ncclRemoteError);
  memcpy(bad, good, sizeof(bad));
  bad[4]++; /* a later version */
  ck_assert_int_eq(tt_peer_info_unpack(bad, &back), ncclRemoteError);
  memcpy(bad, good, sizeof(bad));
  memset(bad + 56, 'x', 64); /* a host without an end */
  ck_assert_int_eq(tt_peer_info_unpack(bad, &back), ncclRemoteError);
}
END_TEST

START_TEST(peer_info_fuzz)
{
  srand(1);
  struct tt_peer_info info = {.host = "a", .uds = "b"}, back;
  int taken = 0;
  for (int i = 0; i < 20000; i++) {
    unsigned char bytes[TT_PEER_INFO_BYTES];
    tt_peer_info_pack(&info, bytes);
    for (int k = rand() % 8; k >= 0; k--) bytes[8 + rand() % (TT_PEER_INFO_BYTES - 8)] = (unsigned char)rand();
    if (tt_peer_info_unpack(bytes, &back) != ncclSuccess) continue;
    taken++;
    ck_assert_uint_lt(strlen(back.host), sizeof(back.host));
    ck_assert_uint_lt(strlen(back.uds), sizeof(back.uds));
  }
  ck_assert_int_gt(taken, 0);
}
END_TEST

START_TEST(wire_knows_its_end)
{
  unsigned char bytes[10];
  struct tt_wire_writer w = {.data = bytes, .size = sizeof(bytes)};
  tt_wire_put_int(&w, 0x1122334455667788u, 8);
  ck_assert(!w.full);
  tt_wire_put_int(&w, 1, 4);
  ck_assert(w.full);
  ck_assert_uint_eq(w.at, 8);
  struct tt_wire_reader r = {.data = bytes, .size = 8};
  ck_assert_uint_eq(tt_wire_get_int(&r, 2), 0x7788);
  ck_assert_uint_eq(tt_wire_get_int(&r, 4), 0x33445566);
  ck_assert(!r.bad);
  ck_assert_uint_eq(tt_wire_get_int(&r, 4), 0);
  ck_assert(r.bad);
  ck_assert_uint_eq(tt_wire_get_int(&r, 1), 0); /* stays bad */
}
END_TEST

START_TEST(nodes_agree)
{
  struct tt_peer_info peers[6] = {0};
  const int plain[6] = {0, 0, 2, 0, 2, 5};
  tt_node_agree(plain, 6, peers);
  for (int r = 0; r < 6; r++) ck_assert_int_eq(peers[r].node, plain[r]);
  /* 3 claims 1, which is in 0's node and so does not head one; 4 claims a rank above; 5 one that does not exist. */
  const int strange[6] = {0, 0, 2, 1, 5, -7};
  tt_node_agree(strange, 6, peers);
  const int expected[6] = {0, 0, 2, 3, 4, 5};
  for (int r = 0; r < 6; r++) ck_assert_int_eq(peers[r].node, expected[r]);
}
END_TEST

START_TEST(buffers_do_not_overlap)
{
  struct tt_transport_env env = {0};
  for (size_t ll = 0; ll < 40000; ll += 5000) {
    env.buffer_bytes[TT_PROTO_LL] = ll;
    env.buffer_bytes[TT_PROTO_SIMPLE] = 3 * ll + 1024;
    struct tt_buffers buffers;
    ck_assert_int_eq(tt_buffers_layout(&env, TT_ALL_PROTOCOLS, &buffers), ncclSuccess);
    unsigned char *block = calloc(1, buffers.bytes);
    struct tt_conn conn = {0};
    tt_buffers_apply(&buffers, block, &conn);
    ck_assert((ll == 0) == (conn.slots[TT_PROTO_LL] == NULL));
    ck_assert_ptr_null(conn.slots[TT_PROTO_LL128]);
    /* Everything that belongs to somebody is marked once. */
    unsigned char *ranges[4] = {(void *)conn.tail, (void *)conn.head, conn.slots[TT_PROTO_LL],
                                conn.slots[TT_PROTO_SIMPLE]};
    size_t bytes[4] = {64, 64, conn.slot_bytes[TT_PROTO_LL] * TT_SLOTS, conn.slot_bytes[TT_PROTO_SIMPLE] * TT_SLOTS};
    for (int i = 0; i < 4; i++) {
      if (!ranges[i]) continue;
      ck_assert_uint_eq((size_t)(ranges[i] - block) % 64, 0);
      ck_assert_uint_le((size_t)(ranges[i] - block) + bytes[i], buffers.bytes);
      bool untouched = true;
      for (size_t k = 0; k < bytes[i]; k++) untouched = ranges[i][k]++ == 0 && untouched;
      ck_assert(untouched);
    }
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      ck_assert_uint_eq(conn.slot_bytes[p], tt_transport_slot_bytes(&env, p));
      ck_assert_uint_le(conn.slot_bytes[p] * TT_SLOTS, env.buffer_bytes[p]);
    }
    free(block);
  }
}
END_TEST

/* Payloads of LL128, and all in device memory, begin at a line of 128 bytes. */
START_TEST(wide_buffers)
{
  static const struct tt_device gpu = {.features = TT_DEVICE_MEMORY};
  for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
    struct tt_transport_env env = {.device = on_gpu ? &gpu : NULL, .buffer_bytes = {9000, 9000, 9000}};
    struct tt_buffers all;
    ck_assert_int_eq(tt_buffers_layout(&env, TT_ALL_PROTOCOLS, &all), ncclSuccess);
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      struct tt_buffers one;
      bool wide = on_gpu || p == TT_PROTO_LL128;
      ck_assert_uint_eq(all.slot_bytes[p], wide ? 1024 : 1088);
      if (wide) ck_assert_uint_eq(all.slots[p] % 128, 64);
      for (int q = 0; q < p; q++) ck_assert_uint_ge(all.slots[p], all.slots[q] + TT_SLOTS * all.slot_bytes[q]);
      ck_assert_uint_ge(all.bytes, all.slots[p] + TT_SLOTS * all.slot_bytes[p]);
      ck_assert_uint_eq(tt_transport_slot_bytes(&env, p), all.slot_bytes[p]);
      ck_assert_int_eq(tt_buffers_layout(&env, 1u << p, &one), ncclSuccess);
      for (int q = 0; q < TT_NUM_PROTOCOLS; q++) ck_assert_uint_eq(one.slot_bytes[q], q == p ? all.slot_bytes[p] : 0);
      ck_assert_uint_lt(one.bytes, all.bytes);
    }
  }
}
END_TEST

START_TEST(buffers_too_small)
{
  struct tt_transport_env env = {.buffer_bytes = {[TT_PROTO_SIMPLE] = 1023}};
  struct tt_buffers buffers;
  ck_assert_int_eq(tt_buffers_layout(&env, TT_ALL_PROTOCOLS, &buffers), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_BUFFSIZE"));
}
END_TEST

/* What relays and their users say. */
START_TEST(relay_messages)
{
  static const struct tt_relay_request request = {.block = UINT64_MAX - 63,
                                                  .bell = 4096,
                                                  .device = 3,
                                                  .peer = 70000,
                                                  .channel = 63,
                                                  .index = 5,
                                                  .pooled = 1,
                                                  .first_step = UINT64_MAX,
                                                  .slot_bytes = {64, 0, 1u << 30},
                                                  .handle = {1, [NCCL_NET_HANDLE_MAXSIZE - 1] = 9}};
  struct tt_relay_request back;
  unsigned char bytes[TT_RELAY_MESSAGE_MAX];
  char why[TT_DESK_TEXT];
  uint64_t block;
  size_t size = tt_relay_pack_request(&request, bytes);
  ck_assert(tt_relay_parse_request(bytes, size, &back));
  ck_assert_mem_eq(&back, &request, sizeof(request));
  ck_assert(!tt_relay_parse_refusal(bytes, size, &block, why));
  ck_assert(!tt_relay_parse_request(bytes, size - 1, &back));
  ck_assert(!tt_relay_parse_request(bytes, size + 1, &back));
  ck_assert(!tt_relay_parse_request(bytes, 0, &back));
  bytes[0]++; /* version */
  ck_assert(!tt_relay_parse_request(bytes, size, &back));

  size = tt_relay_pack_refusal(77, "because", bytes);
  ck_assert(tt_relay_parse_refusal(bytes, size, &block, why));
  ck_assert_uint_eq(block, 77);
  ck_assert_str_eq(why, "because");
  ck_assert(!tt_relay_parse_request(bytes, size, &back));
  ck_assert(!tt_relay_parse_refusal(bytes, size - 1, &block, why));
  memset(bytes + size - TT_DESK_TEXT, 'x', TT_DESK_TEXT); /* a text without an end */
  ck_assert(!tt_relay_parse_refusal(bytes, size, &block, why));
}
END_TEST

void add_formats(Suite *suite)
{
  TCase *tc = tcase_create("formats");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, peer_info_survives);
  tcase_add_test(tc, peer_info_cuts_long_texts);
  tcase_add_test(tc, peer_info_refuses);
  tcase_add_test(tc, peer_info_fuzz);
  tcase_add_test(tc, wire_knows_its_end);
  tcase_add_test(tc, nodes_agree);
  tcase_add_test(tc, buffers_do_not_overlap);
  tcase_add_test(tc, wide_buffers);
  tcase_add_test(tc, buffers_too_small);
  tcase_add_test(tc, relay_messages);
  suite_add_tcase(suite, tc);
}
