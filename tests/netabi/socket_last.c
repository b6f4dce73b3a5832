/* The last messages of a net-socket connection, whose other end closes as soon as it has no more to do: what came is
 * there, and what was taken is sent. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "socket_fixture.h"

enum {
  MESSAGES = 128,
  BYTES = 1 << 20
}; /* the plugin looks for notes after fewer messages; lanes share so many bytes */

static void *post_recv(void *recv, void *data, size_t room)
{
  int tag = 0;
  void *request = NULL, *mhandle = NULL, *phandle = NULL;
  ck_assert_int_eq(net->irecv(recv, 1, &data, &room, &tag, &mhandle, &phandle, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

static void complete(void *request)
{
  int done = 0;
  for (uint64_t end = now_ms() + LONG_MS; now_ms() < end && !done;)
    ck_assert_msg(net->test(request, &done, NULL) == ncclSuccess, "%s", last_warning);
  ck_assert(done);
}

/* The receiver takes what it waits for and closes while the sender, which has just written that, looks for notes. */
static struct {
  bool armed;
  void *recv, *request;
} receiver;

__attribute__((visibility("default"))) ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
  if (receiver.armed) {
    receiver.armed = false;
    complete(receiver.request);
    ck_assert_int_eq(net->closeRecv(receiver.recv), ncclSuccess);
    receiver.recv = NULL;
  }
  return recvfrom(fd, data, bytes, flags, NULL, NULL);
}

START_TEST(receiver_closes_when_it_has_all)
{
  void *send, *request = NULL;
  char in[8], out[8] = "message";
  connect_self(&send, &receiver.recv);
  for (int i = 0; i < MESSAGES && receiver.recv; i++) {
    receiver.request = post_recv(receiver.recv, in, sizeof in);
    receiver.armed = true;
    ck_assert_msg(net->isend(send, out, sizeof out, 0, NULL, NULL, &request) == ncclSuccess, "%s", last_warning);
    receiver.armed = false;
    ck_assert_ptr_nonnull(request);
    complete(request);
    if (receiver.recv) complete(receiver.request);
  }
  ck_assert_ptr_null(receiver.recv);
  net->closeSend(send);
}
END_TEST

/* More receives are posted than there are messages, as for devices whose works nobody announces. */
START_TEST(sender_closes_when_all_is_sent)
{
  void *send, *recv, *request = NULL;
  char *in = calloc(1, BYTES), *out = malloc(BYTES), more;
  for (int i = 0; i < BYTES; i++) out[i] = (char)(i % 251);
  connect_self(&send, &recv);
  void *wanted = post_recv(recv, in, BYTES);
  void *unwanted = post_recv(recv, &more, sizeof more);
  ck_assert_int_eq(net->isend(send, out, BYTES, 0, NULL, NULL, &request), ncclSuccess);
  complete(request);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  complete(wanted);
  ck_assert_mem_eq(in, out, BYTES);
  ncclResult_t result = ncclSuccess;
  int done = 0;
  for (uint64_t end = now_ms() + LONG_MS; now_ms() < end && result == ncclSuccess;) {
    result = net->test(unwanted, &done, NULL);
    ck_assert_int_eq(done, 0);
  }
  ck_assert_int_eq(result, ncclRemoteError);
  net->closeRecv(recv);
  free(in);
  free(out);
}
END_TEST

/* A receiver that hangs is not waited for, connection by connection, where messages are dropped anyway: waiting a
 * second for each took 8. */
START_TEST(who_drops_messages_does_not_wait)
{
  enum { COMMS = 8, HUGE = 64 << 20 }; /* more than the system takes */
  void *send[COMMS], *recv[COMMS], *first = NULL, *request = NULL;
  char in[8], *out = calloc(1, HUGE);
  int done = 0;
  ck_assert_ptr_nonnull(out);
  for (int i = 0; i < COMMS; i++) {
    connect_self(&send[i], &recv[i]);
    void *wanted = post_recv(recv[i], in, sizeof in);
    ck_assert_int_eq(net->isend(send[i], out, sizeof in, 0, NULL, NULL, &first), ncclSuccess);
    complete(first);
    complete(wanted);
    ck_assert_int_eq(net->isend(send[i], out, HUGE, 1, NULL, NULL, &request), ncclSuccess);
    ck_assert_ptr_nonnull(request);
    ck_assert_int_eq(net->test(request, &done, NULL), ncclSuccess);
    ck_assert_int_eq(done, 0);
  }
  uint64_t begin = now_ms();
  for (int i = 0; i < COMMS; i++) ck_assert_int_eq(net->closeSend(send[i]), ncclSuccess);
  uint64_t took = now_ms() - begin;
  ck_assert_msg(took < 4000, "closing took %llu ms", (unsigned long long)took);
  for (int i = 0; i < COMMS; i++) ck_assert_int_eq(net->closeRecv(recv[i]), ncclSuccess);
  free(out);
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("last");
  tcase_add_test(tcase, receiver_closes_when_it_has_all);
  tcase_add_test(tcase, sender_closes_when_all_is_sent);
  tcase_add_test(tcase, who_drops_messages_does_not_wait);
  return run_socket_suite(argc, argv, tcase);
}
