/* The last messages of a net-socket connection, whose other end closes as soon as it has no more to do: what came is
 * there, and what was taken is sent. */
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
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

/* A receiver whose system takes nothing more until the sender has waited so often. Waiting takes no time, but the clock
 * goes on. */
static struct {
  bool on;
  int takes_after, waits;
  int64_t passed_ns;
} hanging;

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
  va_list args;
  va_start(args, request);
  int *value = va_arg(args, int *);
  va_end(args);
  if (!hanging.on || request != SIOCOUTQ) return (int)syscall(SYS_ioctl, fd, request, value);
  *value = hanging.waits < hanging.takes_after;
  return 0;
}

__attribute__((visibility("default"))) int nanosleep(const struct timespec *time, struct timespec *left)
{
  if (!hanging.on) return (int)syscall(SYS_nanosleep, time, left);
  hanging.waits++;
  hanging.passed_ns += time->tv_sec * 1000000000 + time->tv_nsec;
  return 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *time)
{
  if (!hanging.on) return (int)syscall(SYS_clock_gettime, clock, time);
  *time =
      (struct timespec){.tv_sec = 1000000 + hanging.passed_ns / 1000000000, .tv_nsec = hanging.passed_ns % 1000000000};
  return 0;
}

/* A receiver that hangs is not waited for where messages are dropped anyway. */
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
  hanging.takes_after = INT32_MAX;
  hanging.on = true;
  for (int i = 0; i < COMMS; i++) net->closeSend(send[i]);
  hanging.on = false;
  ck_assert_int_eq(hanging.waits, 0);
  for (int i = 0; i < COMMS; i++) ck_assert_int_eq(net->closeRecv(recv[i]), ncclSuccess);
  free(out);
}
END_TEST

/* Closes a connection to it that has used two tags; how often that waited. */
static int waits_to_close(int takes_after)
{
  void *send, *recv, *requests[2], *wanted;
  char in[8], out[8] = "message";
  connect_self(&send, &recv);
  for (int tag = 0; tag < 2; tag++)
    ck_assert_int_eq(net->isend(send, out, sizeof out, tag, NULL, NULL, &requests[tag]), ncclSuccess);
  wanted = post_recv(recv, in, sizeof in);
  complete(requests[0]);
  complete(requests[1]);
  complete(wanted);
  hanging.waits = 0;
  hanging.takes_after = takes_after;
  hanging.on = true;
  ncclResult_t result = net->closeSend(send);
  hanging.on = false;
  ck_assert_int_eq(result, ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  return hanging.waits;
}

/* A receiver that hangs costs its time once, and not for each of its connections; one that is well gets what it takes,
 * before and after. Later there may be another that hangs. */
START_TEST(who_hangs_is_waited_for_once)
{
  enum { COMMS = 8, ALL_MS = 1000, EACH_MS = 10, WELL_MS = 5 };
  for (int round = 0; round < 2; round++) {
    ck_assert_int_eq(waits_to_close(ALL_MS / 2), ALL_MS / 2);
    int sum = 0, first = waits_to_close(INT32_MAX);
    for (int i = 1; i < COMMS; i++) sum += waits_to_close(INT32_MAX);
    ck_assert_int_eq(first, ALL_MS);
    ck_assert_int_eq(sum, (COMMS - 1) * EACH_MS);
    ck_assert_int_eq(waits_to_close(WELL_MS), WELL_MS);
    hanging.passed_ns += 60000000000;
  }
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("last");
  tcase_add_test(tcase, receiver_closes_when_it_has_all);
  tcase_add_test(tcase, sender_closes_when_all_is_sent);
  tcase_add_test(tcase, who_drops_messages_does_not_wait);
  tcase_add_test(tcase, who_hangs_is_waited_for_once);
  return run_socket_suite(argc, argv, tcase);
}
