/* Listening, accepting and moving bytes between two ends in this process. */
#include "support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/socket.h"
#include "tests/common/free_port.h"
#include "tests/common/scarce.h"

#define SOON tt_deadline_in_ms(60)
#define LATER tt_deadline_in_ms(30000)

static void loopback(union tt_address *address)
{
  ck_assert_int_eq(tt_address_parse("127.0.0.1:0", address), ncclSuccess);
}

static void make_pair(int *a, int *b)
{
  union tt_address address;
  int listener;
  loopback(&address);
  ck_assert_int_eq(tt_socket_listen(&address, &listener), ncclSuccess);
  ck_assert_int_eq(tt_socket_connect(&address, a, LATER, NULL), ncclSuccess);
  ck_assert_int_eq(tt_socket_accept(listener, b, LATER, NULL), ncclSuccess);
  ck_assert_int_ge(*b, 0);
  tt_socket_close(&listener);
}

START_TEST(options)
{
  int ends[2];
  make_pair(&ends[0], &ends[1]);
  for (int i = 0; i < 2; i++) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    ck_assert_int_eq(getsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &value, &bytes), 0);
    ck_assert_int_ne(value, 0);
    ck_assert_int_eq(getsockopt(ends[i], SOL_SOCKET, SO_KEEPALIVE, &value, &bytes), 0);
    ck_assert_int_eq(value, 0);
    ck_assert(fcntl(ends[i], F_GETFD) & FD_CLOEXEC);
    ck_assert(fcntl(ends[i], F_GETFL) & O_NONBLOCK);
    tt_socket_close(&ends[i]);
    ck_assert_int_eq(ends[i], -1);
    tt_socket_close(&ends[i]);
  }
}
END_TEST

struct job {
  int fd;
  char *data;
  size_t bytes;
  ncclResult_t result;
};

static void *send_job(void *arg)
{
  struct job *job = arg;
  job->result = tt_socket_send(job->fd, job->data, job->bytes, LATER, NULL);
  return NULL;
}

START_TEST(megabytes)
{
  enum { BYTES = 5 << 20 };
  int a, b;
  make_pair(&a, &b);
  char *sent = malloc(BYTES), *got = malloc(BYTES);
  uint64_t state = 1;
  for (size_t i = 0; i < BYTES; i++) sent[i] = (char)next_random(&state);
  struct job job = {.fd = a, .data = sent, .bytes = BYTES};
  pthread_t thread;
  pthread_create(&thread, NULL, send_job, &job);
  ck_assert_int_eq(tt_socket_recv(b, got, BYTES, LATER, NULL), ncclSuccess);
  pthread_join(thread, NULL);
  ck_assert_int_eq(job.result, ncclSuccess);
  ck_assert(memcmp(sent, got, BYTES) == 0);
  ck_assert_int_eq(tt_socket_recv(b, got, 0, SOON, NULL), ncclSuccess);
  free(sent);
  free(got);
  tt_socket_close(&a);
  tt_socket_close(&b);
}
END_TEST

START_TEST(peer_closes_mid_message)
{
  int a, b;
  char data[16] = {0};
  make_pair(&a, &b);
  ck_assert_int_eq(tt_socket_send(a, data, 5, LATER, NULL), ncclSuccess);
  tt_socket_close(&a);
  ck_assert_int_eq(tt_socket_recv(b, data, 16, LATER, NULL), ncclRemoteError);
  expect_error("after 5 of 16 bytes received");
  expect_error("127.0.0.1<");
  /* Sending to who is gone fails, without a signal, after at most a few segments. */
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 100 && result == ncclSuccess; i++) result = tt_socket_send(b, data, 16, LATER, NULL);
  ck_assert_int_eq(result, ncclRemoteError);
  tt_socket_close(&b);
}
END_TEST

START_TEST(peer_resets)
{
  int a, b;
  char data[16] = {0};
  make_pair(&a, &b);
  struct linger hard = {.l_onoff = 1};
  setsockopt(a, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  tt_socket_close(&a);
  ck_assert_int_eq(tt_socket_recv(b, data, 16, LATER, NULL), ncclRemoteError);
  tt_socket_close(&b);
}
END_TEST

START_TEST(deadlines)
{
  int a, b, listener, fd;
  char *data = calloc(1, 64 << 20);
  union tt_address address;
  make_pair(&a, &b);
  ck_assert_int_eq(tt_socket_recv(b, data, 16, SOON, NULL), ncclRemoteError);
  expect_error("only 0 of 16 bytes came before the deadline");
  ck_assert_int_eq(tt_socket_send(a, data, 64 << 20, SOON, NULL), ncclRemoteError);
  expect_error("taken before the deadline");
  loopback(&address);
  ck_assert_int_eq(tt_socket_listen(&address, &listener), ncclSuccess);
  ck_assert_int_eq(tt_socket_accept(listener, &fd, SOON, NULL), ncclSuccess);
  ck_assert_int_eq(fd, -1);
  free(data);
  tt_socket_close(&a);
  tt_socket_close(&b);
  tt_socket_close(&listener);
}
END_TEST

struct abort_job {
  int kind, fd;
  union tt_address address;
  _Atomic uint32_t abort;
  ncclResult_t result;
};

static void *abortable(void *arg)
{
  struct abort_job *job = arg;
  char byte;
  int fd = -1;
  if (job->kind == 0)
    job->result = tt_socket_recv(job->fd, &byte, 1, TT_DEADLINE_NEVER, &job->abort);
  else if (job->kind == 1)
    job->result = tt_socket_accept(job->fd, &fd, TT_DEADLINE_NEVER, &job->abort);
  else
    job->result = tt_socket_connect(&job->address, &fd, TT_DEADLINE_NEVER, &job->abort);
  return NULL;
}

START_TEST(abort_flags)
{
  int a, b;
  struct abort_job jobs[3] = {{.kind = 0}, {.kind = 1}, {.kind = 2}};
  pthread_t threads[3];
  /* Nothing else would end these within the test's time. */
  set_variable("NCCL_SOCKET_RETRY_SLEEP_MSEC", "60000");
  set_variable("NCCL_SOCKET_TIMEOUT", "86400");
  make_pair(&a, &b);
  jobs[0].fd = b;
  loopback(&jobs[1].address);
  ck_assert_int_eq(tt_socket_listen(&jobs[1].address, &jobs[1].fd), ncclSuccess);
  loopback(&jobs[2].address); /* where nobody listens */
  jobs[2].address.v4.sin_port = htons((uint16_t)free_port());
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, abortable, &jobs[i]);
  usleep(50000);
  for (int i = 0; i < 3; i++) atomic_store(&jobs[i].abort, 1);
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], NULL);
    ck_assert_msg(jobs[i].result == ncclInternalError, "kind %d", i);
  }
  tt_socket_close(&a);
  tt_socket_close(&b);
  tt_socket_close(&jobs[1].fd);
}
END_TEST

START_TEST(pieces)
{
  int a, b;
  char data[100], got[100];
  size_t done = 0, received = 0;
  bool closed;
  memset(data, 'p', sizeof(data));
  make_pair(&a, &b);
  ck_assert_int_eq(tt_socket_progress(b, false, got, sizeof(got), &received, &closed), ncclSuccess);
  ck_assert(received == 0 && !closed);
  ck_assert_int_eq(tt_socket_progress(a, true, data, 60, &done, &closed), ncclSuccess);
  ck_assert_uint_eq(done, 60);
  tt_socket_close(&a);
  for (int i = 0; i < 10000 && !closed; i++) {
    ck_assert_int_eq(tt_socket_progress(b, false, got, sizeof(got), &received, &closed), ncclSuccess);
    usleep(100);
  }
  ck_assert(closed);
  ck_assert_uint_eq(received, 60);
  ck_assert(memcmp(got, data, 60) == 0);
  tt_socket_close(&b);
  ck_assert_int_eq(tt_socket_progress(12345, false, got, sizeof(got), &received, &closed), ncclSystemError);
}
END_TEST

START_TEST(port_range)
{
  int fds[3], files = held_descriptors();
  union tt_address addresses[3];
  char range[32], text[96];
  /* Below the ports that the kernel hands out, and another pair for each process. */
  int first = 10000 + getpid() * 2 % 20000;
  snprintf(range, sizeof(range), "%d-%d", first, first + 1);
  set_variable("TUTTI_PORT_RANGE", range);
  for (int i = 0; i < 2; i++) {
    loopback(&addresses[i]);
    ck_assert_int_eq(tt_socket_listen(&addresses[i], &fds[i]), ncclSuccess);
    int port = ntohs(addresses[i].v4.sin_port);
    ck_assert(port == first || port == first + 1);
  }
  ck_assert_int_ne(addresses[0].v4.sin_port, addresses[1].v4.sin_port);
  loopback(&addresses[2]);
  ck_assert_int_eq(tt_socket_listen(&addresses[2], &fds[2]), ncclSystemError);
  snprintf(text, sizeof(text), "all 2 ports of TUTTI_PORT_RANGE=%s are taken", range);
  expect_error(text);
  tt_socket_close(&fds[0]);
  loopback(&addresses[2]);
  ck_assert_int_eq(tt_socket_listen(&addresses[2], &fds[2]), ncclSuccess);
  ck_assert_int_eq(addresses[2].v4.sin_port, addresses[0].v4.sin_port);
  tt_socket_close(&fds[1]);
  tt_socket_close(&fds[2]);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

START_TEST(fixed_port)
{
  union tt_address address;
  int fd, second;
  loopback(&address);
  ck_assert_int_eq(tt_socket_listen(&address, &fd), ncclSuccess);
  ck_assert_int_eq(tt_socket_listen(&address, &second), ncclSystemError);
  ck_assert_int_eq(second, -1);
  expect_error("another program listens there");
  tt_socket_close(&fd);
  ck_assert_int_eq(tt_socket_listen(&address, &second), ncclSuccess);
  tt_socket_close(&second);
}
END_TEST

START_TEST(files_run_out)
{
  union tt_address address;
  int listener, a, fd;
  loopback(&address);
  ck_assert_int_eq(tt_socket_listen(&address, &listener), ncclSuccess);
  ck_assert_int_eq(tt_socket_connect(&address, &a, LATER, NULL), ncclSuccess);
  scarce_begin(0);
  ck_assert_int_eq(tt_socket_accept(listener, &fd, LATER, NULL), ncclSystemError);
  expect_error("ulimit -n");
  ck_assert_int_eq(tt_socket_connect(&address, &fd, LATER, NULL), ncclSystemError);
  expect_error("ulimit -n");
  scarce_end();
  tt_socket_close(&a);
  tt_socket_close(&listener);
}
END_TEST

Suite *socket_suite(void)
{
  Suite *suite = suite_create("sockets");
  TCase *one = clean_case(suite, "sockets");
  tcase_add_test(one, options);
  tcase_add_test(one, megabytes);
  tcase_add_test(one, peer_closes_mid_message);
  tcase_add_test(one, peer_resets);
  tcase_add_test(one, deadlines);
  tcase_add_test(one, abort_flags);
  tcase_add_test(one, pieces);
  tcase_add_test(one, port_range);
  tcase_add_test(one, fixed_port);
  tcase_add_test(one, files_run_out);
  return suite;
}
