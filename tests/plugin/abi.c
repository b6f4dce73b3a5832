/* The layouts of the net ABI, as vendors' plugins were compiled: all offsets of properties, slots of the plugin
 * structs, values of constants. */
#include <stddef.h>
#include <string.h>
#include "helper.h"

struct place {
  const char *what;
  size_t offset, expected;
};

#define P(version, member, offset)                                                                                     \
  {                                                                                                                    \
#version " " #member, offsetof(ncclNetProperties_##version##_t, member), offset                                    \
  }
#define SLOT(version, member, slot)                                                                                    \
  {                                                                                                                    \
#version " " #member, offsetof(ncclNet_##version##_t, member), (slot)*8                                            \
  }

static const struct place places[] = {
    P(v6, speed, 28),
    P(v6, port, 32),
    P(v6, latency, 36),
    P(v6, maxComms, 40),
    P(v6, maxRecvs, 44),
    P(v7, speed, 28),
    P(v7, maxRecvs, 44),
    P(v7, netDeviceType, 48),
    P(v7, netDeviceVersion, 52),
    P(v8, regIsGlobal, 28),
    P(v8, speed, 32),
    P(v8, port, 36),
    P(v8, latency, 40),
    P(v8, maxComms, 44),
    P(v8, maxRecvs, 48),
    P(v8, netDeviceType, 52),
    P(v8, netDeviceVersion, 56),
    P(v9, regIsGlobal, 28),
    P(v9, forceFlush, 32),
    P(v9, speed, 36),
    P(v9, port, 40),
    P(v9, latency, 44),
    P(v9, maxComms, 48),
    P(v9, maxRecvs, 52),
    P(v9, netDeviceType, 56),
    P(v9, netDeviceVersion, 60),
    P(v9, vProps, 64),
    P(v9, maxP2pBytes, 88),
    P(v9, maxCollBytes, 96),
    P(v10, maxCollBytes, 96),
    P(v11, vProps, 64),
    P(v11, maxP2pBytes, 88),
    P(v11, maxCollBytes, 96),
    P(v11, maxMultiRequestSize, 104),
    P(v12, ptrSupport, 24),
    P(v12, vProps, 64),
    P(v12, maxP2pBytes, 104),
    P(v12, maxCollBytes, 112),
    P(v12, maxMultiRequestSize, 120),
    P(v12, railId, 124),
    P(v12, planeId, 126),
    SLOT(v6, name, 0),
    SLOT(v6, init, 1),
    SLOT(v6, closeListen, 16),
    SLOT(v7, getDeviceMr, 17),
    SLOT(v8, irecvConsumed, 18),
    SLOT(v9, makeVDevice, 19),
    SLOT(v10, makeVDevice, 19),
    SLOT(v11, finalize, 20),
    SLOT(v11, setNetAttr, 21),
    SLOT(v12, devices, 2),
    SLOT(v12, getProperties, 3),
    SLOT(v12, listen, 4),
    SLOT(v12, connect, 5),
    SLOT(v12, accept, 6),
    SLOT(v12, regMr, 7),
    SLOT(v12, regMrDmaBuf, 8),
    SLOT(v12, deregMr, 9),
    SLOT(v12, isend, 10),
    SLOT(v12, irecv, 11),
    SLOT(v12, iflush, 12),
    SLOT(v12, test, 13),
    SLOT(v12, closeSend, 14),
    SLOT(v12, closeRecv, 15),
    SLOT(v12, closeListen, 16),
    SLOT(v12, getDeviceMr, 17),
    SLOT(v12, irecvConsumed, 18),
    SLOT(v12, makeVDevice, 19),
    SLOT(v12, finalize, 20),
    SLOT(v12, setNetAttr, 21),
};

START_TEST(test_layouts)
{
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
    ck_assert_msg(places[i].offset == places[i].expected, "%s is at %zu, not %zu", places[i].what, places[i].offset,
                  places[i].expected);
  ck_assert_uint_eq(sizeof(ncclNet_v6_t), 136);
  ck_assert_uint_eq(sizeof(ncclNet_v8_t), 152);
  ck_assert_uint_eq(sizeof(ncclNet_v10_t), 160);
  ck_assert_uint_eq(sizeof(ncclNet_v12_t), 176);
  ck_assert_uint_eq(sizeof(ncclNetProperties_v12_t), 128);
}
END_TEST

START_TEST(test_constants)
{
  ck_assert_int_eq(NCCL_NET_HANDLE_MAXSIZE, 128);
  ck_assert_int_eq(NCCL_NET_MAX_REQUESTS, 32);
  ck_assert_int_eq(NCCL_PTR_HOST | NCCL_PTR_CUDA << 4 | NCCL_PTR_DMABUF << 8, 0x421);
  ck_assert_int_eq(NCCL_MAX_NET_SIZE_BYTES, 1LL << 40);
  ck_assert_int_eq(MAX_NET_SIZE, 1LL << 30);
  ck_assert_int_eq(MAX_COLLNET_SIZE, 1LL << 29);
  ck_assert_int_eq(NCCL_LOG_TRACE, 5);
  ck_assert_int_eq(NCCL_RAS, 0x8000);
  ck_assert_int_eq(NCCL_ALLOC_HOST, 0x20000);
  ck_assert_int_eq(ncclFuncGather, 10);
  ck_assert_int_eq(NCCL_NET_DEVICE_GIN_GDAKI, 3);
}
END_TEST

/* The offer survives the trip, and nonsense is refused rather than believed. */
START_TEST(test_offer)
{
  struct tt_net_offered in = {.count = 2}, out;
  uint8_t bytes[TT_NET_OFFER_BYTES];
  strcpy(in.net[0].name, "IB");
  in.net[0].version = 11;
  in.net[0].ndev = 0x01020304;
  memset(in.net[1].name, 'x', 63);
  in.net[1].version = 12;
  in.net[1].ndev = 1;
  tt_net_offer_write(&in, bytes);
  ck_assert(tt_net_offer_read(bytes, &out));
  ck_assert_mem_eq(&in, &out, sizeof(in));

  uint8_t spoiled[TT_NET_OFFER_BYTES];
  const struct {
    int at, value;
  } spoilings[] = {{0, 'X'}, {3, 2}, {4, 200}, {5, 9}, {8, 0}, {8 + 63, 'x'}, {8 + 70 + 66, 0}, {8 + 69, 0xff}};
  for (size_t i = 0; i < sizeof(spoilings) / sizeof(spoilings[0]); i++) {
    memcpy(spoiled, bytes, sizeof(bytes));
    spoiled[spoilings[i].at] = (uint8_t)spoilings[i].value;
    ck_assert_msg(!tt_net_offer_read(spoiled, &out), "byte %d = %d was accepted", spoilings[i].at, spoilings[i].value);
  }

  struct tt_net_offered failed = {.result = ncclInvalidUsage};
  memset(failed.reason, 'r', sizeof(failed.reason) - 1);
  tt_net_offer_write(&failed, bytes);
  ck_assert(tt_net_offer_read(bytes, &out));
  ck_assert_int_eq(out.result, ncclInvalidUsage);
  ck_assert_str_eq(out.reason, failed.reason);
}
END_TEST

void add_abi_tests(Suite *suite)
{
  TCase *tcase = tcase_create("abi");
  tcase_add_test(tcase, test_layouts);
  tcase_add_test(tcase, test_constants);
  tcase_add_test(tcase, test_offer);
  suite_add_tcase(suite, tcase);
}
