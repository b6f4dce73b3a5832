/* Connecting to who is not there yet, or never. */
#include "support.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/socket.h"
#include "tests/common/free_port.h"

/* An address of this host where nobody listens. */
static void free_address(union tt_address *address)
{
  char text[TT_ADDRESS_TEXT];
  snprintf(text, sizeof(text), "127.0.0.1:%d", free_port());
  ck_assert_int_eq(tt_address_parse(text, address), ncclSuccess);
}

START_TEST(refused_until_the_count)
{
  union tt_address address;
  int fd;
  char text[TT_ADDRESS_TEXT];
  set_variable("NCCL_SOCKET_RETRY_CNT", "2");
  set_variable("NCCL_SOCKET_RETRY_SLEEP_MSEC", "1");
  start_log("INFO", "NET");
  free_address(&address);
  int files = held_descriptors();
  ck_assert_int_eq(tt_socket_connect(&address, &fd, TT_DEADLINE_NEVER, NULL), ncclRemoteError);
  ck_assert_int_eq(fd, -1);
  ck_assert_int_le(held_descriptors(), files + 1); /* the log's own */
  expect_error(tt_address_print(&address, text));
  expect_error("Connection refused (3 attempts");
  expect_error("NCCL_SOCKET_RETRY_CNT=2");
  ck_assert_int_eq(logged_times("trying again"), 1);
}
END_TEST

START_TEST(refused_until_the_deadline)
{
  union tt_address address;
  int fd;
  free_address(&address);
  uint64_t start = tt_timer_ns();
  ck_assert_int_eq(tt_socket_connect(&address, &fd, tt_deadline_in_ms(250), NULL), ncclRemoteError);
  ck_assert_uint_ge(tt_timer_ns() - start, 250000000u);
  expect_error("Connection refused");
}
END_TEST

START_TEST(timeout_variable)
{
  union tt_address address;
  int fd;
  free_address(&address);
  set_variable("NCCL_SOCKET_TIMEOUT", "1");
  ck_assert_int_eq(tt_socket_connect(&address, &fd, TT_DEADLINE_NEVER, NULL), ncclRemoteError);
  expect_error("NCCL_SOCKET_TIMEOUT=1 s");
}
END_TEST

static void *listen_late(void *arg)
{
  union tt_address *address = arg;
  int listener, fd;
  usleep(150000);
  ck_assert_int_eq(tt_socket_listen(address, &listener), ncclSuccess);
  ck_assert_int_eq(tt_socket_accept(listener, &fd, tt_deadline_in_ms(30000), NULL), ncclSuccess);
  tt_socket_close(&listener);
  return (void *)(intptr_t)fd;
}

START_TEST(listener_comes_late)
{
  union tt_address address, copy;
  int fd;
  pthread_t thread;
  void *other;
  free_address(&address);
  copy = address;
  pthread_create(&thread, NULL, listen_late, &copy);
  ck_assert_int_eq(tt_socket_connect(&address, &fd, tt_deadline_in_ms(30000), NULL), ncclSuccess);
  pthread_join(thread, &other);
  int accepted = (int)(intptr_t)other;
  ck_assert_int_ge(accepted, 0);
  tt_socket_close(&fd);
  tt_socket_close(&accepted);
}
END_TEST

/* Addresses that the kernel rejects outright are not tried again. */
START_TEST(permanent_errors)
{
  union tt_address address;
  int fd;
  memset(&address, 0, sizeof(address));
  ck_assert_int_eq(tt_socket_connect(&address, &fd, TT_DEADLINE_NEVER, NULL), ncclSystemError);
  ck_assert_int_eq(tt_address_parse("255.255.255.255:9", &address), ncclSuccess);
  int files = held_descriptors();
  ck_assert_int_ne(tt_socket_connect(&address, &fd, tt_deadline_in_ms(300), NULL), ncclSuccess);
  expect_error("255.255.255.255<9>");
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

Suite *connect_suite(void)
{
  Suite *suite = suite_create("connecting");
  TCase *one = clean_case(suite, "connecting");
  tcase_add_test(one, refused_until_the_count);
  tcase_add_test(one, refused_until_the_deadline);
  tcase_add_test(one, timeout_variable);
  tcase_add_test(one, listener_comes_late);
  tcase_add_test(one, permanent_errors);
  return suite;
}
