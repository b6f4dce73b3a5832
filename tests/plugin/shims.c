/* Every shim, against a stub of its version: arguments arrive, limits hold, absent members get their defaults. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "helper.h"

static char name[16];
static struct tt_net *net;
static int v;

static const struct tt_net_request with_class = {.comm_id = 77, .traffic_class = 5};

static void open_version(int version)
{
  char path[512];
  v = version;
  snprintf(name, sizeof(name), "stub%d", version);
  snprintf(path, sizeof(path), "%s/lib%s.so", STUBS, name);
  start(path);
  net = open_net(&with_class);
  ck_assert_str_eq(tt_net_name(net), name);
  ck_assert_int_eq(tt_net_version(net), version);
  ck_assert_ptr_nonnull(strstr(tt_net_path(net), name));
}

#define GB (1ul << 30)
static char comm[] = "comm";

START_TEST(test_life)
{
  open_version(_i);
  if (v >= 11)
    ck_assert_str_eq(calls(name), "init 77 5\ndevices 2\n");
  else if (v == 10)
    ck_assert_str_eq(calls(name), "profile (nil)\ninit\ndevices 2\n");
  else
    ck_assert_str_eq(calls(name), "init\ndevices 2\n");

  /* A second communicator: old versions are initialised once, new ones for each. */
  struct tt_net_request other = {.comm_id = 88, .traffic_class = NCCL_CONFIG_UNDEF_INT};
  forget_calls();
  struct tt_net *second = open_net(&other);
  ck_assert_int_eq(count_calls(name, "init 88 -1"), v >= 11);
  ck_assert_int_eq(count_calls(name, "init"), v >= 11);
  close_net(second);
  ck_assert_int_eq(count_calls(name, "finalize 88"), v >= 11);
  ck_assert_int_eq(count_calls(name, "unloaded"), 0);
  close_net(net);
  ck_assert_int_eq(count_calls(name, "finalize 77"), v >= 11);
  ck_assert_int_eq(count_calls(name, "unloaded"), 1);
}
END_TEST

START_TEST(test_properties)
{
  ncclNetProperties_v12_t p;
  open_version(_i);
  ck_assert_int_eq(tt_net_get_properties(net, 1, &p), ncclSuccess);
  ck_assert_str_eq(p.name, "stub device");
  ck_assert_str_eq(p.pciPath, "/sys/stub");
  ck_assert_uint_eq(p.guid, 43);
  ck_assert_int_eq(p.ptrSupport, NCCL_PTR_HOST | NCCL_PTR_DMABUF);
  ck_assert_int_eq(p.speed, 100000);
  ck_assert_int_eq(p.port, 3);
  ck_assert_float_eq(p.latency, 1.5f);
  ck_assert_int_eq(p.maxComms, 1000);
  ck_assert_int_eq(p.maxRecvs, 4);
  ck_assert_int_eq(p.netDeviceType, NCCL_NET_DEVICE_HOST);
  ck_assert_int_eq(p.netDeviceVersion, v >= 7 ? 7 : 0);
  ck_assert_int_eq(p.regIsGlobal, v >= 8);
  ck_assert_int_eq(p.forceFlush, v >= 9);
  ck_assert_int_eq(p.vProps.ndevs, v >= 9 ? 2 : 1);
  ck_assert_int_eq(p.vProps.devs[0], v >= 9 ? 5 : 1);
  ck_assert_int_eq(p.vProps.devs[1], v >= 9 ? 6 : 0);
  ck_assert_uint_eq(p.maxP2pBytes, v >= 9 ? 32 * GB : GB);
  ck_assert_uint_eq(p.maxCollBytes, v >= 9 ? 64 * GB : GB / 2);
  ck_assert_int_eq(p.maxMultiRequestSize, v >= 11 ? 3 : 1);
  ck_assert_int_eq(p.railId, v >= 12 ? 6 : -1);
  ck_assert_int_eq(p.planeId, v >= 12 ? 9 : -1);

  unsigned expected = TT_NET_CAN_DMABUF | TT_NET_CAN_FLUSH;
  if (v >= 7) expected |= TT_NET_CAN_DEVICE_MR | TT_NET_CAN_CONSUMED;
  if (v >= 9) expected |= TT_NET_CAN_VDEVICE | TT_NET_CAN_LARGE | TT_NET_CAN_OPTIONAL_RECV;
  if (v >= 10) expected |= TT_NET_CAN_PROFILE | TT_NET_CAN_TRAFFIC_CLASS;
  if (v >= 11) expected |= TT_NET_CAN_ATTR | TT_NET_CAN_CONTEXT | TT_NET_CAN_COUNT;
  ck_assert_uint_eq(tt_net_can(net), expected);
  close_net(net);
}
END_TEST

START_TEST(test_max_p2p_range)
{
  static const char *const bad[] = {"0", "1099511627777"};
  ncclNetProperties_v12_t p;
  open_version(12);
  for (int i = 0; i < 2; i++) {
    behave(name, "P2P", bad[i]);
    ck_assert_int_eq(tt_net_get_properties(net, 0, &p), ncclInternalError);
    check_error(bad[i]);
    check_error("stub12");
  }
  behave(name, "P2P", "1099511627776");
  ck_assert_int_eq(tt_net_get_properties(net, 0, &p), ncclSuccess);
  close_net(net);
}
END_TEST

START_TEST(test_connections)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE], expected[512];
  void *listen_comm, *send_comm = NULL, *recv_comm = NULL;
  open_version(_i);
  behave(name, "PENDING", "2");
  forget_calls();
  ck_assert_int_eq(tt_net_listen(net, 1, handle, &listen_comm), ncclSuccess);
  /* The attempt's state lives in the handle, so it must not be copied between calls. */
  for (int call = 0; call < 3; call++) {
    ck_assert_int_eq(tt_net_connect(net, 1, handle, &send_comm), ncclSuccess);
    ck_assert_int_eq(tt_net_accept(net, listen_comm, &recv_comm), ncclSuccess);
    ck_assert_int_eq(send_comm != NULL, call == 2);
    ck_assert_int_eq(recv_comm != NULL, call == 2);
  }
  ck_assert_int_eq(tt_net_close_listen(net, listen_comm), ncclSuccess);
  ck_assert_int_eq(tt_net_close_send(net, send_comm), ncclSuccess);
  ck_assert_int_eq(tt_net_close_recv(net, recv_comm), ncclSuccess);
  ck_assert_int_eq(tt_net_close_listen(net, NULL), ncclSuccess);
  ck_assert_int_eq(tt_net_close_send(net, NULL), ncclSuccess);
  ck_assert_int_eq(tt_net_close_recv(net, NULL), ncclSuccess);

  const char *before_listen = v >= 11 ? "listen for 77\n" : "";
  const char *before_connect = v >= 11 ? "connect for 77\n" : v == 10 ? "connect config 5\n" : "";
  int bytes = snprintf(expected, sizeof(expected), "%slisten 1\n", before_listen);
  for (int call = 0; call < 3; call++)
    bytes += snprintf(expected + bytes, sizeof(expected) - (size_t)bytes, "%sconnect 1 %d\naccept listen-%s\n",
                      before_connect, call, name);
  snprintf(expected + bytes, sizeof(expected) - (size_t)bytes,
           "closeListen listen-%s\ncloseSend send-%s\n"
           "closeRecv recv-%s\n",
           name, name, name);
  ck_assert_str_eq(calls(name), expected);
  close_net(net);
}
END_TEST

START_TEST(test_failed_connections)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listen_comm, *comm = NULL;
  open_version(_i);
  behave(name, "NO_LISTEN", "1");
  ck_assert_int_eq(tt_net_listen(net, 0, handle, &listen_comm), ncclInternalError);
  check_error("without a listenComm");
  behave(name, "NO_LISTEN", NULL);
  ck_assert_int_eq(tt_net_listen(net, 0, handle, &listen_comm), ncclSuccess);

  behave(name, "CONNECT_ERROR", "6");
  ck_assert_int_eq(tt_net_connect(net, 0, handle, &comm), ncclRemoteError);
  ck_assert_ptr_null(comm);
  ck_assert_int_eq(count_calls(name, "closeSend send-"), 1);
  check_error("connect");
  ck_assert_int_eq(tt_net_accept(net, listen_comm, &comm), ncclRemoteError);
  ck_assert_ptr_null(comm);
  ck_assert_int_eq(count_calls(name, "closeRecv recv-"), 1);
  tt_net_close_listen(net, listen_comm);
  close_net(net);
}
END_TEST

START_TEST(test_transfers)
{
  void *request = (void *)0x999, *mhandle;
  void *data[2] = {(void *)0xa000, (void *)0xb000}, *mhandles[2] = {(void *)0x11, (void *)0x12};
  void *phandles[2] = {(void *)0x21, (void *)0x22};
  size_t sizes[2] = {4096, 0};
  int tags[2] = {3, 4}, flush_sizes[2] = {40, 50}, done, bytes;
  open_version(_i);
  forget_calls();

  ck_assert_int_eq(tt_net_reg_mr(net, comm, data[0], 4096, NCCL_PTR_HOST, &mhandle), ncclSuccess);
  ck_assert_ptr_eq(mhandle, (void *)0x10);
  ck_assert_int_eq(tt_net_reg_mr_dmabuf(net, comm, data[0], 5 * GB, NCCL_PTR_CUDA, 7, 9, &mhandle), ncclSuccess);
  ck_assert_ptr_eq(mhandle, (void *)0x20);
  ck_assert_int_eq(tt_net_isend(net, comm, data[0], 4096, 3, mhandles[0], phandles[0], &request), ncclSuccess);
  ck_assert_ptr_eq(request, (void *)0x100);
  ck_assert_int_eq(tt_net_irecv(net, comm, 2, data, sizes, tags, mhandles, phandles, &request), ncclSuccess);
  ck_assert_ptr_eq(request, (void *)0x200);
  ck_assert_int_eq(tt_net_iflush(net, comm, 2, data, flush_sizes, mhandles, &request), ncclSuccess);
  ck_assert_ptr_eq(request, (void *)0x300);
  ck_assert_int_eq(tt_net_test(net, (void *)0x200, &done, &bytes), ncclSuccess);
  ck_assert_int_eq(done, 1);
  ck_assert_int_eq(bytes, 11);
  ck_assert_int_eq(tt_net_test(net, (void *)0x300, &done, NULL), ncclSuccess);
  ck_assert_int_eq(tt_net_irecv_consumed(net, comm, 2, (void *)0x200), ncclSuccess);
  ck_assert_int_eq(tt_net_dereg_mr(net, comm, (void *)0x10), ncclSuccess);

  char expected[1024];
  const char *ph[3] = {"(nil)", "(nil)", "(nil)"};
  if (v >= 10) ph[0] = ph[1] = "0x21", ph[2] = "0x22";
  snprintf(expected, sizeof(expected),
           "regMr comm 0xa000 4096 1\n"
           "regMrDmaBuf comm 0xa000 5368709120 2 7 9\n"
           "isend comm 0xa000 4096 3 0x11 %s\n"
           "irecv comm 0/2 0xa000 4096 3 0x11 %s on (nil)\n"
           "irecv comm 1/2 0xb000 0 4 0x12 %s on (nil)\n"
           "iflush comm 2 0xa000 40 0x11\n"
           "test 0x200\ntest 0x300\n%sderegMr comm 0x10\n",
           ph[0], ph[1], ph[2], v >= 7 ? "irecvConsumed comm 2 0x200\n" : "");
  ck_assert_str_eq(calls(name), expected);
  close_net(net);
}
END_TEST

/* Nothing posted is seen as nothing posted, though the plugin writes nothing; the mark of optional completion reaches
 * only versions that know it. */
START_TEST(test_busy_and_mark)
{
  void *request, *data = (void *)0xa000, *mhandle = NULL;
  size_t size = 8;
  int tag = 0;
  open_version(_i);
  for (int busy = 0; busy < 2; busy++) {
    behave(name, "BUSY", busy ? "1" : NULL);
    forget_calls();
    request = (void *)0x999;
    ck_assert_int_eq(tt_net_isend(net, comm, data, 8, 0, NULL, NULL, &request), ncclSuccess);
    ck_assert_int_eq(request == NULL, busy);

    request = (void *)0x999; /* an old flush request */
    ck_assert_int_eq(tt_net_irecv(net, comm, 1, &data, &size, &tag, &mhandle, NULL, &request), ncclSuccess);
    ck_assert_int_eq(request == NULL, busy);
    ck_assert_int_eq(count_calls(name, "irecv comm 0/1 0xa000 8 0 (nil) (nil) on (nil)"), 1);

    forget_calls();
    request = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    ck_assert_int_eq(tt_net_irecv(net, comm, 1, &data, &size, &tag, &mhandle, NULL, &request), ncclSuccess);
    ck_assert_int_eq(request == NULL, busy);
    ck_assert_int_eq(count_calls(name, "irecv comm 0/1 0xa000 8 0 (nil) (nil) on 0x1"), v >= 9);
    ck_assert_int_eq(count_calls(name, "irecv comm 0/1 0xa000 8 0 (nil) (nil) on (nil)"), v < 9);
  }
  close_net(net);
}
END_TEST

/* Messages above 1 GiB from v9 on, registrations of 2 GiB from v8 on; no size is ever cut. */
START_TEST(test_sizes)
{
  static const size_t sizes[] = {0, 1, GB - 1, GB, GB + 1, 2 * GB - 1, 2 * GB, 4 * GB, 4 * GB + 1, 32 * GB};
  void *data[2] = {(void *)0xa000, (void *)0xb000}, *mhandles[2] = {NULL, NULL}, *request, *mhandle;
  int tags[2] = {0, 0};
  char expected[128];
  open_version(_i);
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    size_t size = sizes[i], pair[2] = {1, size};
    bool fits = v >= 9 || size <= GB, registers = v >= 8 || size < 2 * GB;
    forget_calls();
    request = NULL;
    ck_assert_int_eq(tt_net_isend(net, comm, data[0], size, 0, NULL, NULL, &request),
                     fits ? ncclSuccess : ncclInternalError);
    if (!fits) check_error("maxP2pBytes");
    snprintf(expected, sizeof(expected), "isend comm 0xa000 %zu 0", size);
    ck_assert_int_eq(count_calls(name, expected), fits);
    ck_assert_int_eq(count_calls(name, "isend"), fits);

    request = NULL;
    ck_assert_int_eq(tt_net_irecv(net, comm, 2, data, pair, tags, mhandles, NULL, &request),
                     fits ? ncclSuccess : ncclInternalError);
    snprintf(expected, sizeof(expected), "irecv comm 1/2 0xb000 %zu 0", size);
    ck_assert_int_eq(count_calls(name, expected), fits);
    ck_assert_int_eq(count_calls(name, "irecv"), fits ? 2 : 0);

    ck_assert_int_eq(tt_net_reg_mr(net, comm, data[0], size, NCCL_PTR_HOST, &mhandle),
                     registers ? ncclSuccess : ncclInternalError);
    if (!registers) check_error("exports v8 or newer");
    snprintf(expected, sizeof(expected), "regMr comm 0xa000 %zu 1", size);
    ck_assert_int_eq(count_calls(name, expected), registers);
  }
  size_t many[TT_NET_MAX_RECVS + 1] = {0};
  ck_assert_int_eq(tt_net_irecv(net, comm, TT_NET_MAX_RECVS + 1, data, many, tags, mhandles, NULL, &request),
                   ncclInternalError);
  ck_assert_int_eq(tt_net_irecv(net, comm, 0, data, many, tags, mhandles, NULL, &request), ncclInternalError);
  close_net(net);
}
END_TEST

START_TEST(test_virtual_devices)
{
  ncclNetVDeviceProps_v12_t props = {.ndevs = 4, .devs = {10, 11, 12, 13, 14, 15, 16, 17}};
  int dev = -1;
  open_version(_i);
  forget_calls();
  ck_assert_int_eq(tt_net_make_vdevice(net, &dev, &props), v >= 9 ? ncclSuccess : ncclInvalidUsage);
  if (v >= 9) {
    ck_assert_int_eq(dev, 17);
    ck_assert_str_eq(calls(name), "makeVDevice 4: 10 ... 13\n");
  } else {
    check_error("cannot fuse");
  }
  props.ndevs = 8;
  ck_assert_int_eq(tt_net_make_vdevice(net, &dev, &props), v >= 12 ? ncclSuccess : ncclInvalidUsage);
  ck_assert_int_eq(count_calls(name, "makeVDevice 8: 10 ... 17"), v >= 12);
  props.ndevs = 1;
  ck_assert_int_eq(tt_net_make_vdevice(net, &dev, &props), ncclInvalidUsage);
  ck_assert_int_eq(count_calls(name, "makeVDevice 1"), 0);
  close_net(net);
}
END_TEST

START_TEST(test_attributes)
{
  ncclNetAttr_v12_t attr = NCCL_NET_ATTR_INIT;
  attr.sendCommAttr.maxConcurrentPeers = 6;
  open_version(_i);
  forget_calls();
  tt_net_set_attr(net, &attr);
  ck_assert_str_eq(calls(name), v >= 11 ? "setNetAttr 77 6 4294967295\n" : "");
  close_net(net);
}
END_TEST

START_TEST(test_absent_members)
{
  static const char *const files[] = {STUB("bare8"), STUB("bare12")};
  ncclNetVDeviceProps_v12_t props = {.ndevs = 2};
  ncclNetAttr_v12_t attr = NCCL_NET_ATTR_INIT;
  ncclNetProperties_v12_t p;
  void *request = (void *)0x999, *data = NULL, *mhandle = NULL;
  int size = 1, dev;
  start(files[_i]);
  net = open_net(&plain);
  unsigned optional = TT_NET_CAN_DMABUF | TT_NET_CAN_FLUSH | TT_NET_CAN_DEVICE_MR | TT_NET_CAN_CONSUMED |
                      TT_NET_CAN_VDEVICE | TT_NET_CAN_ATTR;
  ck_assert_uint_eq(tt_net_can(net) & optional, 0);
  ck_assert_int_eq(tt_net_get_properties(net, 0, &p), ncclSuccess);
  ck_assert_int_eq(p.ptrSupport, NCCL_PTR_HOST);
  ck_assert_int_eq(tt_net_iflush(net, comm, 1, &data, &size, &mhandle, &request), ncclSuccess);
  ck_assert_ptr_null(request);
  ck_assert_int_eq(tt_net_irecv_consumed(net, comm, 1, data), ncclSuccess);
  tt_net_set_attr(net, &attr);
  ck_assert_int_eq(tt_net_make_vdevice(net, &dev, &props), ncclInvalidUsage);
  ck_assert_int_eq(tt_net_reg_mr_dmabuf(net, comm, data, 1, NCCL_PTR_CUDA, 0, 0, &mhandle), ncclInternalError);
  close_net(net);
}
END_TEST

/* Two libraries of one old version at once: each call reaches its own. */
static void take_counters(void *context, const struct tt_counters *counters)
{
  struct tt_counters *taken = context;
  ck_assert_uint_eq(taken->size, 0);
  *taken = *counters;
}

/* What the plugin's own release did not have reads as zero. */
START_TEST(test_counters)
{
  struct tt_counters taken = {0};
  open_version(_i);
  ck_assert_int_eq(tt_net_read_counters(net, take_counters, &taken), ncclSuccess);
  ck_assert_uint_eq(taken.size, v >= 11 ? sizeof taken : 0);
  if (v >= 11) {
    ck_assert_str_eq(taken.name, "counted");
    ck_assert_uint_eq(taken.operations, 2);
    ck_assert_uint_eq(taken.retries, v == 12 ? 3 : 0);
    ck_assert_uint_eq(taken.queue_depth_most, v == 12 ? 4 : 0);
  }
  close_net(net);
}
END_TEST

START_TEST(test_twins)
{
  void *request;
  start(STUB("stub8") "," STUB("twin8"));
  struct tt_net *a = open_named("stub8"), *b = open_named("twin8");
  forget_calls();
  ck_assert_int_eq(tt_net_isend(a, comm, (void *)0xa, 1, 1, NULL, NULL, &request), ncclSuccess);
  ck_assert_int_eq(tt_net_isend(b, comm, (void *)0xb, 2, 2, NULL, NULL, &request), ncclSuccess);
  ck_assert_int_eq(tt_net_isend(a, comm, (void *)0xc, 3, 3, NULL, NULL, &request), ncclSuccess);
  ck_assert_str_eq(calls("stub8"), "isend comm 0xa 1 1 (nil) (nil)\nisend comm 0xc 3 3 (nil) (nil)\n");
  ck_assert_str_eq(calls("twin8"), "isend comm 0xb 2 2 (nil) (nil)\n");
  close_net(a);
  ck_assert_int_eq(tt_net_isend(b, comm, (void *)0xd, 4, 4, NULL, NULL, &request), ncclSuccess);
  close_net(b);
}
END_TEST

/* The plugin's own struct is as it was, bit for bit. */
START_TEST(test_never_patched)
{
  char before[176], symbol[32];
  open_version(_i);
  close_net(net);
  void *library = dlopen(report_of(".so").asked, RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(library);
  snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
  void *plugin = dlsym(library, symbol);
  size_t bytes = v == 6 ? 136 : v <= 8 ? 152 : v <= 10 ? 160 : 176;
  memcpy(before, plugin, bytes);
  net = open_net(&plain);
  ck_assert_mem_eq(before, plugin, bytes);
  close_net(net);
  ck_assert_mem_eq(before, plugin, bytes);
  dlclose(library);
}
END_TEST

/* An error that the plugin explains keeps the plugin's words; one that it does not gets ours. */
START_TEST(test_error_texts)
{
  void *request;
  open_version(_i);
  behave(name, "ISEND_ERROR", "2");
  ck_assert_int_eq(tt_net_isend(net, comm, NULL, 1, 1, NULL, NULL, &request), ncclSystemError);
  check_error(name);
  check_error("isend");
  check_error("ncclSystemError");
  behave(name, "WARN", "1");
  ck_assert_int_eq(tt_net_isend(net, comm, NULL, 1, 1, NULL, NULL, &request), ncclSystemError);
  check_error("the stub explains ISEND_ERROR 2");
  behave(name, "WARN", NULL);
  ck_assert_int_eq(tt_net_isend(net, comm, NULL, 1, 1, NULL, NULL, &request), ncclSystemError);
  check_error("gave no reason");
  close_net(net);
}
END_TEST

void add_shim_tests(Suite *suite)
{
  TCase *tcase = tcase_create("shims");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, test_life, 6, 13);
  tcase_add_loop_test(tcase, test_properties, 6, 13);
  tcase_add_test(tcase, test_max_p2p_range);
  tcase_add_loop_test(tcase, test_connections, 6, 13);
  tcase_add_loop_test(tcase, test_failed_connections, 6, 13);
  tcase_add_loop_test(tcase, test_transfers, 6, 13);
  tcase_add_loop_test(tcase, test_busy_and_mark, 6, 13);
  tcase_add_loop_test(tcase, test_sizes, 6, 13);
  tcase_add_loop_test(tcase, test_virtual_devices, 6, 13);
  tcase_add_loop_test(tcase, test_attributes, 6, 13);
  tcase_add_loop_test(tcase, test_absent_members, 0, 2);
  tcase_add_loop_test(tcase, test_counters, 6, 13);
  tcase_add_test(tcase, test_twins);
  tcase_add_loop_test(tcase, test_never_patched, 6, 13);
  tcase_add_loop_test(tcase, test_error_texts, 6, 13);
  suite_add_tcase(suite, tcase);
}
