/* net-ofi where things are missing, fail, or are not what they say: no library, no provider, resources that run out,
 * completions with errors, and memory of GPUs. A libfabric that stands before the real one plays the hardware
 * (tests/fakes/fabric). Both ends live in the test's process, and each test in a process of its own, since parameters
 * are read once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ofi_fixture.h"

/* ---- Nothing to use ---- */

START_TEST(no_library)
{
  setenv("FI_PROVIDER", "tcp", 1);
  setenv("TUTTI_OFI_LIBRARY", "/nowhere/libfabric.so", 1);
  ck_assert_int_eq(start(NULL), 0);
  expect_logged("no devices: libfabric cannot be opened: /nowhere/libfabric.so");
  finish();
}
END_TEST

START_TEST(no_libfabric)
{
  setenv("NCCL_NET", "ofi", 1);
  setenv("TUTTI_OFI_LIBRARY", "libm.so.6", 1);
  ck_assert_int_eq(start(NULL), 0);
  expect_logged("no devices: libm.so.6 lacks functions of libfabric");
  finish();
}
END_TEST

START_TEST(no_provider)
{
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_eq(start("fail=getinfo"), 0);
  expect_logged("no provider with reliable endpoints");
  finish();
}
END_TEST

/* Sockets and shared memory are for whom asks for them. */
START_TEST(software_is_not_taken_by_itself)
{
  unsetenv("FI_PROVIDER");
  ck_assert_int_eq(start(NULL), 0);
  /* A machine with a NIC of InfiniBand may have no provider for it either. */
  if (!logged("there is no NIC")) expect_logged("no NIC's provider is there");
  finish();
}
END_TEST

START_TEST(software_by_name)
{
  unsetenv("FI_PROVIDER");
  setenv(_i ? "NCCL_NET" : "TUTTI_OFI_PROVIDERS", _i ? "ofi" : "cxi,shm", 1);
  ck_assert_int_ge(start(NULL), 1);
  expect_logged(_i ? "Using provider" : "Using provider shm");
  finish();
}
END_TEST

/* Names are those of providers, or of the pieces of their names, in any case; the first of the list that is there. */
static const struct {
  const char *names, *used; /* NULL: none is there */
} preferences[] = {{"shm,tcp", "shm"},
                   {"tcp,shm", "tcp;ofi_rxm"},
                   {" TCP ,shm", "tcp;ofi_rxm"},
                   {"tcp;ofi_rxm", "tcp;ofi_rxm"},
                   {"cxi,Ofi_Rxm", "tcp;ofi_rxm"},
                   {"cxi", NULL},
                   {"tc,tcp;ofi,sh", NULL}};

START_TEST(names_of_providers)
{
  char using[64], none[64];
  const char *used = preferences[_i].used;
  unsetenv("FI_PROVIDER");
  setenv("NCCL_NET", "ofi", 1); /* which takes any provider, if none is named */
  setenv("TUTTI_OFI_PROVIDERS", preferences[_i].names, 1);
  int count = start(NULL);
  snprintf(using, sizeof using, "Using provider %s of", used ? used : "");
  snprintf(none, sizeof none, "no provider of TUTTI_OFI_PROVIDERS=%s", preferences[_i].names);
  expect_logged(used ? using : none);
  ck_assert_int_eq(count > 0, used != NULL);
  finish();
}
END_TEST

/* A provider that is not to be used, and none, name none. */
START_TEST(nobody_is_named)
{
  setenv("FI_PROVIDER", _i ? "" : "^psm3", 1);
  ck_assert_int_eq(start(NULL), 0);
  if (!logged("there is no NIC")) expect_logged("no NIC's provider is there");
  finish();
}
END_TEST

/* ---- Resources ---- */

static const char *const missing[][2] = {{"fabric", "its fabric cannot be opened"},
                                         {"domain", "its domain cannot be opened"},
                                         {"endpoint", "fi_endpoint failed"},
                                         {"cq", "fi_cq_open failed"},
                                         {"av", "fi_av_open failed"}};

START_TEST(resources_run_out)
{
  char words[32];
  void *send, *recv;
  snprintf(words, sizeof words, "fail=%s", missing[_i][0]);
  start_tcp(words);
  ck_assert_int_eq(try_connect(&send, &recv), ncclSystemError);
  expect_logged(missing[_i][1]);
  finish();
}
END_TEST

/* What a process that was killed has left does not stop one that has its number, unless no name is free (_i: 1). */
START_TEST(names_are_taken)
{
  char out[100] = "over endpoints whose names are free", in[100] = "";
  void *send, *recv, *memory = NULL;
  start_tcp(_i ? "taken=1000000" : "taken=5");
  ck_assert_int_eq(try_connect(&send, &recv), _i ? ncclSystemError : ncclSuccess);
  ck_assert_int_eq(logged("fi_enable failed") != NULL, _i);
  if (_i == 0) {
    ck_assert_int_eq(net->regMr(recv, in, sizeof in, NCCL_PTR_HOST, &memory), ncclSuccess);
    ck_assert_int_eq(transfer(send, recv, out, in, sizeof out, NULL, memory), ncclSuccess);
    ck_assert_str_eq(in, out);
    ck_assert_int_eq(net->deregMr(recv, memory), ncclSuccess);
    ck_assert_int_eq(net->closeSend(send), ncclSuccess);
    ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  }
  finish();
}
END_TEST

START_TEST(registration_fails)
{
  void *send, *recv, *mhandle = (void *)1;
  char data[100];
  start_tcp("fail=mr");
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, data, sizeof data, NCCL_PTR_HOST, &mhandle), ncclSystemError);
  ck_assert_ptr_null(mhandle);
  expect_logged("100 bytes of host memory cannot be registered");
  ck_assert_int_eq(net->regMr(recv, data, sizeof data, NCCL_PTR_CUDA, &mhandle), ncclInternalError);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* A completion with an error names device, provider, peer and status, and ends the comm. The first packet is the
 * greeting's, so from the second on they are messages. */
START_TEST(completion_with_an_error)
{
  enum { BYTES = 100000 };
  static char out[BYTES], in[BYTES];
  void *send, *recv, *memory = NULL, *request;
  ncclResult_t result = ncclSuccess;
  start_tcp("break=3");
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, BYTES, NCCL_PTR_HOST, &memory), ncclSuccess);
  for (int i = 0; i < 8 && result == ncclSuccess; i++)
    result = transfer(send, recv, out, in, _i ? BYTES : 100, NULL, memory);
  ck_assert_int_eq(result, ncclRemoteError);
  expect_logged(_i ? "writing a part of a message to" : "sending a packet to");
  expect_logged("(tcp;ofi_rxm)");
  expect_logged("made-up status 12");
  ck_assert_int_eq(net->isend(send, out, 1, 0, NULL, NULL, &request), ncclRemoteError);
  ck_assert_ptr_null(request);
  ck_assert_int_eq(net->deregMr(recv, memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* ---- Memory of GPUs: small messages are written too, and flushes read from the same memory ---- */

START_TEST(memory_of_gpus)
{
  enum { BYTES = 200000 };
  static char out[BYTES], in[BYTES];
  static const size_t sizes[] = {1, 100, 5000, BYTES};
  ncclNetProperties_v12_t props = {0};
  void *send, *recv, *memory[2], *data = in, *flush = NULL;
  start_tcp("hmem,local,nics=1");
  ck_assert_int_eq(net->getProperties(0, &props), ncclSuccess);
  ck_assert_int_ne(props.ptrSupport & NCCL_PTR_CUDA, 0);
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(send, out, BYTES, NCCL_PTR_CUDA, &memory[0]), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, BYTES, NCCL_PTR_CUDA, &memory[1]), ncclSuccess);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int size = (int)sizes[i], done = 0;
    memset(out, 'a' + (int)i, BYTES);
    ck_assert_int_eq(transfer(send, recv, out, in, sizes[i], memory[0], memory[1]), ncclSuccess);
    ck_assert_mem_eq(in, out, sizes[i]);
    ck_assert_int_eq(net->iflush(recv, 1, &data, &size, &memory[1], &flush), ncclSuccess);
    ck_assert_ptr_nonnull(flush);
    for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
      ck_assert_int_eq(net->test(flush, &done, NULL), ncclSuccess);
    ck_assert_int_eq(done, 1);
  }
  ck_assert_int_eq(net->deregMr(send, memory[0]), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, memory[1]), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* A flush is a read on each of several NICs, of which the last one's ends it. */
START_TEST(memory_of_gpus_on_two_nics)
{
  enum { BYTES = 300000 };
  static char out[BYTES], in[BYTES];
  ncclNetVDeviceProps_v12_t both = {2, {0, 1}};
  char copy[sizeof handle];
  void *send = NULL, *recv = NULL, *memory[2], *data = in, *flush = NULL;
  int dev = -1, size = BYTES, done = 0;
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_ge(start("hmem,local,nics=2,shuffle,lag=100"), 2);
  ck_assert_int_eq(net->makeVDevice(&dev, &both), ncclSuccess);
  ck_assert_int_eq(net->listen(context, dev, handle, &listener), ncclSuccess);
  memcpy(copy, handle, sizeof copy);
  for (uint64_t end = now_ms() + LONG_MS; (!send || !recv) && now_ms() < end;) {
    if (!send) ck_assert_int_eq(net->connect(context, dev, copy, &send, NULL), ncclSuccess);
    if (!recv) ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
  }
  ck_assert(send && recv);
  ck_assert_int_eq(net->regMr(send, out, BYTES, NCCL_PTR_CUDA, &memory[0]), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, BYTES, NCCL_PTR_CUDA, &memory[1]), ncclSuccess);
  memset(out, 'g', BYTES);
  ck_assert_int_eq(transfer(send, recv, out, in, BYTES, memory[0], memory[1]), ncclSuccess);
  ck_assert_mem_eq(in, out, BYTES);
  uint64_t begin = now_ms();
  ck_assert_int_eq(net->iflush(recv, 1, &data, &size, &memory[1], &flush), ncclSuccess);
  for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
    ck_assert_int_eq(net->test(flush, &done, NULL), ncclSuccess);
  ck_assert_int_eq(done, 1);
  ck_assert_uint_ge(now_ms() - begin, 90);
  ck_assert_int_eq(net->deregMr(send, memory[0]), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, memory[1]), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

START_TEST(memory_of_gpus_is_not_wanted)
{
  ncclNetProperties_v12_t props = {0};
  setenv("TUTTI_OFI_HMEM", "0", 1);
  start_tcp("hmem,nics=1");
  ck_assert_int_eq(net->getProperties(0, &props), ncclSuccess);
  ck_assert_int_eq(props.ptrSupport, NCCL_PTR_HOST);
  finish();
}
END_TEST

/* ---- NICs that work as one ---- */

START_TEST(fused_nics)
{
  ncclNetProperties_v12_t one = {0}, both = {0};
  ncclNetVDeviceProps_v12_t good = {2, {1, 0}}, twice = {2, {0, 0}}, far = {2, {0, 99}}, alone = {1, {0}};
  int first = -1, again = -1, before = 0, count = 0;
  start_tcp("nics=2");
  ck_assert_int_eq(net->devices(&before), ncclSuccess);
  ck_assert_int_eq(net->makeVDevice(&first, &good), ncclSuccess);
  ck_assert_int_eq(net->makeVDevice(&again, &good), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_eq(first, before);
  ck_assert_int_eq(again, first);
  ck_assert_int_eq(count, before + 1);
  ck_assert_int_eq(net->getProperties(0, &one), ncclSuccess);
  ck_assert_int_eq(net->getProperties(first, &both), ncclSuccess);
  ck_assert_int_eq(both.vProps.ndevs, 2);
  ck_assert_int_eq(both.vProps.devs[0], 1);
  ck_assert_int_ge(both.speed, 2 * one.speed);
  ck_assert_int_eq(net->makeVDevice(&first, &twice), ncclInvalidUsage);
  expect_logged("device 0 is listed twice");
  ck_assert_int_eq(net->makeVDevice(&first, &far), ncclInvalidUsage);
  expect_logged("device 99");
  ck_assert_int_eq(net->makeVDevice(&first, &alone), ncclInvalidUsage);
  finish();
}
END_TEST

/* ---- */

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("faults");
  tcase_add_test(tcase, no_library);
  tcase_add_test(tcase, no_libfabric);
  tcase_add_test(tcase, no_provider);
  tcase_add_test(tcase, software_is_not_taken_by_itself);
  tcase_add_loop_test(tcase, software_by_name, 0, 2);
  tcase_add_loop_test(tcase, names_of_providers, 0, (int)(sizeof preferences / sizeof *preferences));
  tcase_add_loop_test(tcase, nobody_is_named, 0, 2);
  tcase_add_loop_test(tcase, resources_run_out, 0, (int)(sizeof missing / sizeof *missing));
  tcase_add_loop_test(tcase, names_are_taken, 0, 2);
  tcase_add_test(tcase, registration_fails);
  tcase_add_loop_test(tcase, completion_with_an_error, 0, 2);
  tcase_add_test(tcase, memory_of_gpus);
  tcase_add_test(tcase, memory_of_gpus_on_two_nics);
  tcase_add_test(tcase, memory_of_gpus_is_not_wanted);
  tcase_add_test(tcase, fused_nics);
  return run(argc, argv, tcase);
}
