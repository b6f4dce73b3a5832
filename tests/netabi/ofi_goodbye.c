/* net-ofi: a sender that closes in good order, and what it and its receiver say and read then. A place that comes to a
 * closed endpoint resets the connection over tcp, with all that the receiver has not read. Both ends in the test's
 * process, which does things in the middle of the plugin's closing. */
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "../../plugins/net-ofi/wire.h"
#include "ofi_fixture.h"

enum { COUNT = 30, BYTES = 8000, ROOM = 20000, TAG = 3 };

static void *send_comm, *recv_comm, *memory, *receives[COUNT];
static char out[COUNT][BYTES], in[COUNT][ROOM]; /* places are told ahead of buffers that would hold large messages */

static void complete(void *request)
{
  int done = 0;
  for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
    ck_assert_msg(net->test(request, &done, NULL) == ncclSuccess, "%s", last_warning);
  ck_assert_int_eq(done, 1);
}

static void *receive(void *data, size_t bytes, int tag)
{
  void *request = NULL, *phandle = NULL;
  ck_assert_int_eq(net->irecv(recv_comm, 1, &data, &bytes, &tag, &memory, &phandle, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

/* All messages are sent, as far as the sender can see, and none is read. */
static void send_all(void)
{
  void *request = NULL;
  start_tcp(NULL);
  ck_assert_int_eq(try_connect(&send_comm, &recv_comm), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv_comm, in, sizeof in, NCCL_PTR_HOST, &memory), ncclSuccess);
  for (int i = 0; i < COUNT; i++) {
    memset(out[i], i + 1, BYTES);
    ck_assert_int_eq(net->isend(send_comm, out[i], BYTES, TAG, NULL, NULL, &request), ncclSuccess);
    complete(request);
  }
}

static void post_all(void)
{
  for (int i = 0; i < COUNT; i++) receives[i] = receive(in[i], ROOM, TAG);
}

static void expect_all(void)
{
  for (int i = 0; i < COUNT; i++) {
    complete(receives[i]);
    ck_assert_mem_eq(in[i], out[i], BYTES);
  }
}

/* All are here, and the goodbye is heard: there will be no more. */
static void expect_the_end(void)
{
  static char more;
  void *request = receive(&more, 1, TAG);
  ncclResult_t result = ncclSuccess;
  int done = 0;
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && now_ms() < end;)
    result = net->test(request, &done, NULL);
  ck_assert_int_eq(done, 0);
  ck_assert_int_eq(result, ncclRemoteError);
}

static void close_receiver(void)
{
  ck_assert_int_eq(net->deregMr(recv_comm, memory), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv_comm), ncclSuccess);
  finish();
}

/* The plugin's calls, in the middle of which something else happens. */
static struct {
  void (*before_goodbye)(void), (*waiting)(void);
  int fd;    /* on which the goodbye went */
  int heard; /* how often its sender looked at that since */
} closing;

__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
  const struct tt_ofi_note *note = data;
  if (closing.before_goodbye && bytes == sizeof *note && note->kind == TT_OFI_BYE) {
    void (*before)(void) = closing.before_goodbye;
    closing.before_goodbye = NULL;
    closing.fd = fd;
    before();
  }
  return sendto(fd, data, bytes, flags, NULL, 0);
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
  if (closing.fd && fd == closing.fd && closing.heard++ == 0 && closing.waiting) {
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    closing.waiting();
    ck_assert_int_eq(poll(&answer, 1, LONG_MS), 1);
  }
  return recvfrom(fd, data, bytes, flags, NULL, NULL);
}

/* A receiver that comes when its sender has gone gets what that has sent. */
START_TEST(receives_after_the_goodbye)
{
  send_all();
  ck_assert_int_eq(net->closeSend(send_comm), ncclSuccess);
  post_all();
  expect_all();
  expect_the_end();
  close_receiver();
}
END_TEST

/* So does one that comes just before the goodbye, and tells a place that the sender no longer waits for: it reads that
 * all the same, though nobody answers. */
START_TEST(receives_at_the_goodbye)
{
  send_all();
  closing.before_goodbye = post_all;
  ck_assert_int_eq(net->closeSend(send_comm), ncclSuccess);
  ck_assert_int_ne(closing.fd, 0);
  expect_all();
  expect_the_end();
  close_receiver();
}
END_TEST

static void take_all(void)
{
  expect_all();
  expect_the_end();
}

/* A receiver that is there answers, and ends the wait. */
START_TEST(answer_ends_the_wait)
{
  send_all();
  closing.before_goodbye = post_all;
  closing.waiting = take_all;
  ck_assert_int_eq(net->closeSend(send_comm), ncclSuccess);
  ck_assert_int_ge(closing.heard, 1);
  ck_assert_int_lt(closing.heard, 10); /* else it does so every millisecond */
  close_receiver();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("goodbye");
  tcase_add_test(tcase, receives_after_the_goodbye);
  tcase_add_test(tcase, receives_at_the_goodbye);
  tcase_add_test(tcase, answer_ends_the_wait);
  return run(argc, argv, tcase);
}
