/* How large connections' buffers are on hosts with many GPUs. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>
#include "api/buffers.h"
#include "base/param.h"

#define MIB ((size_t)1 << 20)

/* As CUDA's, with as many channels as there can be. */
static const struct tt_device device = {
    .features = TT_DEVICE_MEMORY | TT_DEVICE_STREAMS,
    .protocols = 7,
    .channels = 64,
    .default_buffer = {[TT_PROTO_LL] = 8 * 16448, [TT_PROTO_LL128] = 8 * 140096, [TT_PROTO_SIMPLE] = 8 * 524352}};

static void get(const struct tt_device *of, int ranks, size_t bytes[TT_NUM_PROTOCOLS])
{
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) ck_assert_int_eq(tt_comm_buffer_bytes(of, p, &bytes[p]), ncclSuccess);
  tt_comm_fit_buffers(of, ranks, false, bytes);
}

/* Connections of collectives on 64 channels and of messages on 32, with every peer, in three protocols. */
START_TEST(all_connections_fit)
{
  size_t most[TT_NUM_PROTOCOLS], bytes[TT_NUM_PROTOCOLS];
  get(&device, 2, most);
  for (int ranks = 1; ranks <= 16; ranks++) {
    size_t total = 0;
    get(&device, ranks, bytes);
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++) {
      ck_assert_uint_le(bytes[p], most[p]);
      ck_assert_uint_eq(bytes[p] % (TT_SLOTS * 128), 0);
      bool whole = ranks <= (p == TT_PROTO_LL128 ? 2 : TT_BUFFERS_ROOMY);
      ck_assert(whole ? bytes[p] == most[p] : bytes[p] < most[p] || p == TT_PROTO_SIMPLE);
      total += (size_t)(ranks - 1) * 96 * bytes[p];
    }
    if (ranks > TT_BUFFERS_ROOMY) ck_assert_msg(total <= 240 * MIB, "%d ranks: %zu bytes", ranks, total);
    if (ranks == 8) ck_assert_uint_ge(bytes[TT_PROTO_SIMPLE] / TT_SLOTS, 24 << 10); /* and the room is used */
    /* Messages of a power of two of bytes fill slots of LL128. */
    size_t holds = tt_conn_capacity(bytes[TT_PROTO_LL128] / TT_SLOTS, TT_PROTO_LL128);
    ck_assert_uint_ge(holds, ranks <= 2 ? 131072 : ranks <= 4 ? 65536 : (size_t)65536 / (size_t)ranks);
    ck_assert_uint_le(holds, ranks <= 2 ? 132000 : 66000);
  }
}
END_TEST

START_TEST(users_have_the_last_word)
{
  size_t bytes[TT_NUM_PROTOCOLS];
  setenv("NCCL_BUFFSIZE", "4194304", 1);
  setenv("NCCL_LL_BUFFSIZE", "65536", 1);
  tt_param_reset();
  get(&device, 8, bytes);
  ck_assert_uint_eq(bytes[TT_PROTO_SIMPLE], 4194304);
  ck_assert_uint_eq(bytes[TT_PROTO_LL], 65536);
  ck_assert_uint_lt(bytes[TT_PROTO_LL128], device.default_buffer[TT_PROTO_LL128]);
  unsetenv("NCCL_BUFFSIZE");
  unsetenv("NCCL_LL_BUFFSIZE");
  tt_param_reset();
}
END_TEST

/* It is only touched where it is used. */
START_TEST(host_memory_keeps_its_own)
{
  struct tt_device host = device;
  size_t bytes[TT_NUM_PROTOCOLS];
  host.features = 0;
  get(&host, 64, bytes);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++) ck_assert_uint_ge(bytes[p], device.default_buffer[p]);
}
END_TEST

/* Only Simple's, on the host, and not what the user asks for. */
START_TEST(networks_have_larger_slots)
{
  struct tt_device host = device;
  size_t bytes[TT_NUM_PROTOCOLS], before[TT_NUM_PROTOCOLS];
  host.features = 0;
  host.default_buffer[TT_PROTO_SIMPLE] = TT_SLOTS * (128 << 10);
  for (int asked = 0; asked < 2; asked++) {
    if (asked) setenv("NCCL_BUFFSIZE", "65536", 1);
    tt_param_reset();
    get(&host, 2, before);
    memcpy(bytes, before, sizeof bytes);
    tt_comm_fit_buffers(&host, 2, true, bytes);
    ck_assert_uint_eq(bytes[TT_PROTO_SIMPLE], asked ? 65536 : TT_SLOTS * TT_BUFFERS_NETWORK_SLOT);
    ck_assert_uint_eq(bytes[TT_PROTO_LL], before[TT_PROTO_LL]);
    get(&device, 2, before);
    memcpy(bytes, before, sizeof bytes);
    tt_comm_fit_buffers(&device, 2, true, bytes);
    ck_assert_mem_eq(bytes, before, sizeof bytes);
  }
  unsetenv("NCCL_BUFFSIZE");
  tt_param_reset();
}
END_TEST

Suite *buffers_suite(void)
{
  Suite *suite = suite_create("buffers");
  TCase *tc = tcase_create("buffers");
  tcase_add_test(tc, all_connections_fit);
  tcase_add_test(tc, users_have_the_last_word);
  tcase_add_test(tc, networks_have_larger_slots);
  tcase_add_test(tc, host_memory_keeps_its_own);
  suite_add_tcase(suite, tc);
  return suite;
}
