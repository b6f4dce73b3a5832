/* net-socket among strangers: clients that connect and leave, reset, send junk, replay or hold the port of a listener
 * while a real peer connects. The port is known from the handle, whose layout is net-socket's own.
 *
 * Strangers and peer live in one process; the comms are polled by the test. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "plugins/common/meeting.h"
#include "plugins/common/meeting_wire.h"
#include "../../plugins/net-socket/wire.h"
#include "socket_fixture.h"
#include "tests/common/scarce.h"

static int stranger(void)
{
  struct tt_meeting_handle inside;
  memcpy(&inside, handle, sizeof inside);
  bool v6 = inside.address.sa.sa_family == AF_INET6;
  int fd = socket(inside.address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ck_assert_int_ge(fd, 0);
  int result = connect(fd, &inside.address.sa, v6 ? sizeof inside.address.v6 : sizeof inside.address.v4);
  ck_assert_msg(result == 0, "connect: %s", strerror(errno));
  return fd;
}

static void say(int fd, const void *data, size_t bytes)
{
  ck_assert_int_eq(send(fd, data, bytes, MSG_NOSIGNAL), (int)bytes);
}

static void reset(int fd)
{
  struct linger now = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

/* The real peer connects, and a message goes through. */
static void real_peer(void)
{
  static const char text[] = "through all of it";
  char got[64] = "";
  void *send, *recv, *out = NULL, *in = NULL, *data = got, *mhandle = NULL, *phandle = NULL;
  size_t room = sizeof got;
  int tag = 0, done = 0;
  connect_self(&send, &recv);
  ck_assert_int_eq(net->irecv(recv, 1, &data, &room, &tag, &mhandle, &phandle, &in), ncclSuccess);
  ck_assert_int_eq(net->isend(send, (void *)text, sizeof text, 0, NULL, NULL, &out), ncclSuccess);
  for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
    ck_assert_int_eq(net->test(in, &done, NULL), ncclSuccess);
  ck_assert_str_eq(got, text);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
}

/* Polls accept, which must yield nothing, until the stranger's socket was closed by the other side. */
static void expect_dropped(int fd, const char *who)
{
  for (uint64_t end = now_ms() + LONG_MS; now_ms() < end;) {
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    void *recv = NULL;
    char byte;
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ck_assert_msg(!recv, "%s was taken for the peer", who);
    if (poll(&poller, 1, 5) > 0 && recv == NULL && read(fd, &byte, 1) <= 0) {
      close(fd);
      return;
    }
  }
  ck_abort_msg("%s was not dropped", who);
}

START_TEST(connect_and_leave)
{
  for (int i = 0; i < 50; i++) i % 2 ? reset(stranger()) : (void)close(stranger());
  real_peer();
}
END_TEST

START_TEST(junk_is_dropped)
{
  static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  int fd = stranger();
  say(fd, http, sizeof http - 1);
  expect_dropped(fd, "an HTTP client");
  real_peer();
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  listener = NULL;
  expect_logged("clients that were not the peer");
}
END_TEST

/* Everything right but the proof. */
START_TEST(wrong_key_is_dropped)
{
  struct tt_meeting_hello hello = {.magic = TT_NETSOCKET_MAGIC, .connection = 7, .index = 0, .count = 1, .proof = 42};
  int fd = stranger();
  say(fd, &hello, sizeof hello);
  expect_dropped(fd, "a client with a wrong key");
  real_peer();
}
END_TEST

/* The hello of one listener is worth nothing at another. Who brings it may have given up before this has looked often.
 */
START_TEST(other_listeners_handle_is_dropped)
{
  char other[NCCL_NET_HANDLE_MAXSIZE];
  void *second = NULL, *send = NULL, *recv = NULL;
  struct tt_meeting_handle mine, theirs;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_eq(net->listen(context, 0, other, &second), ncclSuccess);
  memcpy(&mine, handle, sizeof mine);
  memcpy(&theirs, other, sizeof theirs);
  ck_assert_mem_ne(&mine.key, &theirs.key, sizeof mine.key);
  theirs.address = mine.address;
  memcpy(other, &theirs, sizeof theirs);
  for (int i = 0; i < 200 && result == ncclSuccess; i++) {
    result = net->connect(context, 0, other, &send, NULL);
    ck_assert(result == ncclSuccess || result == ncclRemoteError);
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ck_assert_msg(!send && !recv, "a connection came about with another listener's key");
    usleep(1000);
  }
  ck_assert_int_eq(net->closeListen(second), ncclSuccess);
  real_peer();
}
END_TEST

/* One byte, then silence; and silence alone. Both end, without the test doing more than polling. */
START_TEST(slow_clients_are_dropped)
{
  int one = stranger(), none = stranger();
  say(one, "x", 1);
  real_peer();
  expect_dropped(one, "a client that sent one byte");
  expect_dropped(none, "a silent client");
}
END_TEST

START_TEST(two_hundred_hold_the_port)
{
  enum { COUNT = 200 };
  int fds[COUNT];
  /* No more than the listen queue at once: the kernel would make a further client wait in connect. */
  for (int i = 0; i < COUNT; i++) {
    void *recv = NULL;
    fds[i] = stranger();
    if (i % 3 == 1) say(fds[i], "\1\2\3", 3);
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ck_assert_ptr_null(recv);
  }
  for (int i = 0; i < 5; i++) real_peer();
  for (int i = 0; i < COUNT; i++) close(fds[i]);
}
END_TEST

/* One descriptor is left, and a slow client has it: that there is no second one is no reason to drop the first. */
START_TEST(the_last_descriptor)
{
  void *recv = NULL;
  int slow = stranger(), other;
  scarce_begin(1);
  for (int i = 0; i < 20; i++) {
    struct pollfd poller = {.fd = slow, .events = POLLIN};
    ck_assert_int_eq(net->accept(listener, &recv, NULL), ncclSuccess);
    ck_assert_msg(poll(&poller, 1, 5) == 0, "the client was dropped");
  }
  scarce_end();
  /* Somebody waits, so it has to go. */
  other = stranger();
  scarce_begin(0);
  expect_dropped(slow, "the client that says nothing");
  scarce_end();
  close(other);
  real_peer();
}
END_TEST

/* A listener that went away is reported by name, not waited for for ever. */
START_TEST(closed_listener_is_an_error)
{
  void *send = NULL;
  ncclResult_t result = ncclSuccess;
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  listener = NULL;
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && now_ms() < end; usleep(1000))
    result = net->connect(context, 0, handle, &send, NULL);
  ck_assert_int_eq(result, ncclRemoteError);
  ck_assert_ptr_null(send);
  ck_assert_msg(strstr(last_warning, "NCCL_SOCKET_RETRY_CNT=3") != NULL, "the warning says \"%s\"", last_warning);
}
END_TEST

/* Polls connect until a client is at `port`, which must be the peer with its greeting; drops it. */
static uint64_t drop_peer(int port, char *copy)
{
  struct tt_meeting_hello hello;
  struct pollfd poller = {.fd = port, .events = POLLIN};
  void *send = NULL;
  for (uint64_t end = now_ms() + LONG_MS; poll(&poller, 1, 1) <= 0 && now_ms() < end;) {
    ck_assert_int_eq(net->connect(context, 0, copy, &send, NULL), ncclSuccess);
    ck_assert_ptr_null(send);
  }
  int fd = accept4(port, NULL, NULL, SOCK_CLOEXEC);
  ck_assert_msg(fd >= 0, "the peer did not come (back)");
  for (uint64_t end = now_ms() + LONG_MS;
       recv(fd, &hello, sizeof hello, MSG_PEEK | MSG_DONTWAIT) < 0 && now_ms() < end;)
    ck_assert_int_eq(net->connect(context, 0, copy, &send, NULL), ncclSuccess);
  ck_assert_int_eq(recv(fd, &hello, sizeof hello, MSG_WAITALL), (int)sizeof hello);
  ck_assert_uint_eq(hello.magic, TT_NETSOCKET_MAGIC);
  close(fd);
  return hello.connection;
}

/* A listener may drop a peer as too slow, when its connect was polled late. The peer comes back as a new connection. */
START_TEST(dropped_peer_comes_back)
{
  char copy[sizeof handle];
  struct tt_meeting_handle inside;
  memcpy(&inside, handle, sizeof inside);
  inside.sockets = 1;
  bool v6 = inside.address.sa.sa_family == AF_INET6;
  socklen_t bytes = v6 ? sizeof inside.address.v6 : sizeof inside.address.v4;
  int port = socket(inside.address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  *(v6 ? &inside.address.v6.sin6_port : &inside.address.v4.sin_port) = 0;
  ck_assert_int_eq(bind(port, &inside.address.sa, bytes), 0);
  ck_assert_int_eq(listen(port, 8), 0);
  ck_assert_int_eq(getsockname(port, &inside.address.sa, &bytes), 0);
  memcpy(copy, handle, sizeof copy);
  memcpy(copy, &inside, sizeof inside);
  uint64_t first = drop_peer(port, copy), second = drop_peer(port, copy);
  ck_assert_uint_ne(first, second);
  close(port);
}
END_TEST

static bool leads_to(int fd, const struct sockaddr_storage *wanted)
{
  struct sockaddr_storage peer;
  socklen_t bytes = sizeof peer;
  memset(&peer, 0, sizeof peer);
  return getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && memcmp(&peer, wanted, bytes) == 0;
}

/* The peer's host may vanish before it accepts: that is looked for on every socket that waits. */
START_TEST(waits_for_no_host_that_vanished)
{
  struct tt_meeting_handle inside;
  struct sockaddr_storage wanted;
  void *send = NULL, *recv = NULL;
  int waiting = 0;
  memcpy(&inside, handle, sizeof inside);
  memset(&wanted, 0, sizeof wanted);
  memcpy(&wanted, &inside.address, sizeof inside.address);
  for (int i = 0; i < 2; i++) ck_assert_int_eq(net->connect(context, 0, handle, &send, NULL), ncclSuccess);
  ck_assert_ptr_null(send);
  for (int fd = 0; fd < 1024; fd++) {
    int on = 0;
    socklen_t bytes = sizeof on;
    if (!leads_to(fd, &wanted)) continue;
    ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &bytes), 0);
    ck_assert_msg(on, "socket %d waits for ever", fd);
    waiting++;
  }
  ck_assert_int_ge(waiting, 1);
  connect_self(&send, &recv);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
}
END_TEST

START_TEST(foreign_handle_is_an_error)
{
  char foreign[NCCL_NET_HANDLE_MAXSIZE];
  void *send = NULL;
  memset(foreign, 0x41, sizeof foreign);
  ck_assert_int_eq(net->connect(context, 0, foreign, &send, NULL), ncclInternalError);
}
END_TEST

/* An attempt that its user gave up is ended by finalize; the leak checker of the sanitizers would tell. */
START_TEST(abandoned_attempts_end)
{
  char copies[10][sizeof handle];
  for (int i = 0; i < 10; i++) {
    void *send = NULL;
    memcpy(copies[i], handle, sizeof handle);
    ck_assert_int_eq(net->connect(context, 0, copies[i], &send, NULL), ncclSuccess);
  }
}
END_TEST

int main(int argc, char **argv)
{
  setenv("NCCL_SOCKET_RETRY_CNT", "3", 1);
  TCase *tcase = tcase_create("hostile");
  tcase_add_test(tcase, connect_and_leave);
  tcase_add_test(tcase, junk_is_dropped);
  tcase_add_test(tcase, wrong_key_is_dropped);
  tcase_add_test(tcase, other_listeners_handle_is_dropped);
  tcase_add_test(tcase, slow_clients_are_dropped);
  tcase_add_test(tcase, two_hundred_hold_the_port);
  tcase_add_test(tcase, the_last_descriptor);
  tcase_add_test(tcase, closed_listener_is_an_error);
  tcase_add_test(tcase, dropped_peer_comes_back);
  tcase_add_test(tcase, waits_for_no_host_that_vanished);
  tcase_add_test(tcase, foreign_handle_is_an_error);
  tcase_add_test(tcase, abandoned_attempts_end);
  return run_socket_suite(argc, argv, tcase);
}
