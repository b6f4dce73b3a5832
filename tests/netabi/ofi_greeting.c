/* How net-ofi's connections begin: bytes that no peer of this version sends, and sides that are not alike. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "ofi_fixture.h"
#include "plugins/common/meeting.h"
#include "plugins/common/meeting_wire.h"
#include "../../plugins/net-ofi/wire.h"

static uint32_t random_state = 1;
static uint32_t random_next(void)
{
  random_state = random_state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
  return random_state >> 8;
}

/* Handles with a few bytes changed, all but the address: an error, or an attempt that leads nowhere. */
START_TEST(handles_of_any_bytes)
{
  size_t address = offsetof(struct tt_ofi_handle, meeting.address), end = address + sizeof(union tt_address);
  start_tcp(NULL);
  for (int round = 0; round < 400; round++) {
    char copy[sizeof handle];
    void *send = NULL, *recv = NULL;
    memcpy(copy, handle, sizeof copy);
    for (uint32_t i = random_next() % 4 + 1; i > 0; i--) {
      size_t at = random_next() % sizeof(struct tt_ofi_handle);
      if (at < address || at >= end) copy[at] = (char)random_next();
    }
    if (memcmp(copy, handle, sizeof copy) == 0) continue;
    ncclResult_t result = net->connect(context, 0, copy, &send, NULL);
    ck_assert_msg(result == ncclSuccess || result == ncclInternalError || result == ncclRemoteError, "result %d",
                  (int)result);
    ck_assert_ptr_null(send);
    if (round % 100 == 0) ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ck_assert_ptr_null(recv);
  }
  finish();
}
END_TEST

/* A client that has the key, and then greets with bytes of its own. */
static int guest(void)
{
  struct tt_ofi_handle inside;
  struct tt_meeting_welcome welcome;
  void *recv = NULL;
  memcpy(&inside, handle, sizeof inside);
  bool v6 = inside.meeting.address.sa.sa_family == AF_INET6;
  int fd = socket(inside.meeting.address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_eq(
      connect(fd, &inside.meeting.address.sa, v6 ? sizeof inside.meeting.address.v6 : sizeof inside.meeting.address.v4),
      0);
  struct tt_meeting_hello hello = {.magic = TT_OFI_MAGIC, .connection = random_next(), .index = 0, .count = 1};
  hello.proof = tt_meeting_hello_proof(&inside.meeting.key, &hello);
  ck_assert_int_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), (int)sizeof hello);
  ssize_t got = 0;
  for (uint64_t end = now_ms() + LONG_MS; got <= 0 && now_ms() < end;) {
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    got = recvfrom(fd, &welcome, sizeof welcome, MSG_DONTWAIT, NULL, NULL);
  }
  ck_assert_int_eq(got, (ssize_t)sizeof welcome);
  return fd;
}

/* What this side greets with, as a start. */
static void read_greeting(int fd, struct tt_ofi_greeting *greeting)
{
  size_t got = 0;
  for (uint64_t end = now_ms() + LONG_MS; got < sizeof *greeting && now_ms() < end;) {
    void *recv = NULL;
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ssize_t n = recvfrom(fd, (char *)greeting + got, sizeof *greeting - got, MSG_DONTWAIT, NULL, NULL);
    if (n > 0) got += (size_t)n;
  }
  ck_assert_uint_eq(got, sizeof *greeting);
}

static void expect_refused(int fd, const struct tt_ofi_greeting *greeting, const char *said)
{
  void *recv = NULL;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_eq(send(fd, greeting, sizeof *greeting, MSG_NOSIGNAL), (int)sizeof *greeting);
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && now_ms() < end;)
    result = net->accept(listener, &recv, NULL);
  ck_assert_msg(result != ncclSuccess, "a greeting was taken that should not be");
  ck_assert_ptr_null(recv);
  ck_assert_msg(strstr(last_warning, said), "\"%s\" is not in: %s", said, last_warning);
  close(fd);
}

START_TEST(greetings_that_do_not_fit)
{
  struct tt_ofi_greeting greeting;
  start_tcp(NULL);
  for (int i = 0; i < 11; i++) {
    const char *said = "in a way that this version does not know";
    int fd = guest();
    read_greeting(fd, &greeting);
    if (i == 0) greeting.magic++;
    if (i == 1) greeting.rails = 0;
    if (i == 2) greeting.rails = TT_OFI_RAILS + 1;
    if (i == 3) greeting.piece_max = 0;
    if (i == 4) greeting.stripe = 0;
    if (i == 5) greeting.stripe = NCCL_MAX_NET_SIZE_BYTES + 1ull;
    if (i == 6) memset(greeting.provider, 'x', sizeof greeting.provider);
    if (i == 7) {
      strcpy(greeting.provider, "psm3");
      said = "uses provider psm3 and this side tcp;ofi_rxm";
    }
    if (i == 8) {
      greeting.rail[0].bytes = 100000;
      said = "has an address of 100000 bytes";
    }
    if (i == 9) {
      greeting.rail[0].bytes = 0;
      said = "has an address of 0 bytes";
    }
    if (i == 10) greeting.immediate = 3;
    expect_refused(fd, &greeting, said);
  }
  /* And after all of them, a peer. */
  void *send, *recv;
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* A side with two NICs in one and a side with one use one. */
START_TEST(unequal_numbers_of_nics)
{
  enum { BYTES = 300000 };
  static char out[BYTES], in[BYTES];
  ncclNetVDeviceProps_v12_t both = {2, {0, 1}};
  void *send, *recv, *memory[2];
  int dev = -1;
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_ge(start("local,nics=2,shuffle"), 2);
  ck_assert_int_eq(net->makeVDevice(&dev, &both), ncclSuccess);
  ck_assert_int_eq(net->listen(context, _i ? dev : 0, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(_i ? 0 : dev, handle, listener, &send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(send, out, BYTES, NCCL_PTR_HOST, &memory[0]), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, BYTES, NCCL_PTR_HOST, &memory[1]), ncclSuccess);
  for (int i = 0; i < 5; i++) {
    memset(out, 'a' + i, BYTES);
    ck_assert_int_eq(transfer(send, recv, out, in, BYTES, memory[0], memory[1]), ncclSuccess);
    ck_assert_mem_eq(in, out, BYTES);
  }
  ck_assert_int_eq(net->deregMr(send, memory[0]), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, memory[1]), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("greeting");
  tcase_add_test(tcase, handles_of_any_bytes);
  tcase_add_test(tcase, greetings_that_do_not_fit);
  tcase_add_loop_test(tcase, unequal_numbers_of_nics, 0, 2);
  return run(argc, argv, tcase);
}
