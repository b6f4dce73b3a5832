/* Abstract sockets: descriptors, absent listeners, network namespaces. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/uds.h"
#include "tests/common/scarce.h"

#define LATER tt_deadline_in_ms(30000)
#define SOON tt_deadline_in_ms(60)

static void make_pair(int *a, int *b)
{
  char name[TT_UDS_NAME_BYTES];
  int listener;
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  ck_assert_int_eq(tt_uds_connect(name, a), ncclSuccess);
  ck_assert_int_ge(*a, 0);
  ck_assert_int_eq(tt_uds_accept(listener, b, LATER), ncclSuccess);
  ck_assert_int_ge(*b, 0);
  close(listener);
}

START_TEST(descriptors)
{
  int a, b, fd, files = held_descriptors();
  char data[8];
  make_pair(&a, &b);
  int pipe_ends[2];
  ck_assert_int_eq(pipe(pipe_ends), 0);
  ck_assert_int_eq(tt_uds_send(a, "one", 3, -1, LATER), ncclSuccess);
  ck_assert_int_eq(tt_uds_send(a, "two", 3, pipe_ends[1], LATER), ncclSuccess);
  ck_assert_int_eq(tt_uds_send(a, "four", 4, -1, LATER), ncclSuccess);
  /* The descriptor comes with its own message, not with the one before. */
  ck_assert_int_eq(tt_uds_recv(b, data, 3, &fd, LATER), ncclSuccess);
  ck_assert(memcmp(data, "one", 3) == 0 && fd == -1);
  ck_assert_int_eq(tt_uds_recv(b, data, 3, &fd, LATER), ncclSuccess);
  ck_assert(memcmp(data, "two", 3) == 0);
  ck_assert_int_ge(fd, 0);
  ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  ck_assert_int_eq(write(fd, "x", 1), 1);
  ck_assert_int_eq(read(pipe_ends[0], data, 1), 1);
  close(fd);
  ck_assert_int_eq(tt_uds_recv(b, data, 4, &fd, LATER), ncclSuccess);
  ck_assert(memcmp(data, "four", 4) == 0 && fd == -1);
  /* One that is not wanted is closed. */
  ck_assert_int_eq(tt_uds_send(a, "x", 1, pipe_ends[1], LATER), ncclSuccess);
  ck_assert_int_eq(tt_uds_recv(b, data, 1, NULL, LATER), ncclSuccess);
  ck_assert_int_eq(tt_uds_send(a, NULL, 0, pipe_ends[1], LATER), ncclInvalidArgument);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  close(a);
  close(b);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

/* That there is none left is an error for who has to take one, and not while nobody waits. */
START_TEST(no_descriptors)
{
  char name[TT_UDS_NAME_BYTES];
  int listener, a, b, fd, caller;
  char byte;
  make_pair(&a, &b);
  ck_assert_int_eq(tt_uds_send(b, "x", 1, STDERR_FILENO, LATER), ncclSuccess);
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  scarce_begin(0);
  ck_assert_int_eq(tt_uds_accept(listener, &fd, SOON), ncclSuccess);
  ck_assert_int_eq(fd, -1);
  ck_assert_int_eq(tt_uds_recv(a, &byte, 1, &fd, LATER), ncclSystemError);
  expect_error("a file descriptor that a peer sent was lost");
  expect_error("ulimit -n");
  scarce_end();
  scarce_begin(1);
  ck_assert_int_eq(tt_uds_connect(name, &caller), ncclSuccess);
  ck_assert_int_eq(tt_uds_accept(listener, &fd, LATER), ncclSystemError);
  expect_error("ulimit -n");
  scarce_end();
  close(caller);
  close(listener);
  close(a);
  close(b);
}
END_TEST

int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
static int overlooked; /* so many calls of accept4 find nobody */

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
  if (overlooked == 0) return __real_accept4(fd, address, bytes, flags);
  overlooked--;
  errno = EAGAIN;
  return -1;
}

/* Who connects right after accept() has found nobody is no reason for an error. */
START_TEST(just_in_time)
{
  char name[TT_UDS_NAME_BYTES];
  int listener, caller, fd;
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  ck_assert_int_eq(tt_uds_connect(name, &caller), ncclSuccess);
  overlooked = 1;
  ck_assert_int_eq(tt_uds_accept(listener, &fd, LATER), ncclSuccess);
  ck_assert_int_eq(overlooked, 0);
  ck_assert_int_ge(fd, 0);
  close(fd);
  close(caller);
  close(listener);
}
END_TEST

START_TEST(endings)
{
  int a, b, fd, files = held_descriptors();
  char data[8];
  make_pair(&a, &b);
  ck_assert_int_eq(tt_uds_recv(b, data, 1, &fd, SOON), ncclRemoteError);
  expect_error("before the deadline");
  /* A peer that sends a descriptor and dies in the middle leaves nothing open here. */
  ck_assert_int_eq(tt_uds_send(a, "xx", 2, a, LATER), ncclSuccess);
  close(a);
  ck_assert_int_eq(tt_uds_recv(b, data, 8, &fd, SOON), ncclRemoteError);
  ck_assert_int_eq(fd, -1);
  ck_assert_int_eq(tt_uds_send(b, data, 8, -1, LATER), ncclRemoteError);
  expect_error("closed");
  close(b);
  char *many = calloc(1, 16 << 20);
  make_pair(&a, &b);
  ck_assert_int_eq(tt_uds_send(a, many, 16 << 20, -1, SOON), ncclRemoteError);
  free(many);
  close(a);
  close(b);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

START_TEST(nobody_listens)
{
  char name[TT_UDS_NAME_BYTES], other[TT_UDS_NAME_BYTES];
  int listener, second, fd = 5, files = held_descriptors();
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  ck_assert_int_eq(tt_uds_listen(&second, other), ncclSuccess);
  ck_assert_str_ne(name, other);
  ck_assert_int_eq(tt_uds_accept(listener, &fd, SOON), ncclSuccess);
  ck_assert_int_eq(fd, -1);
  close(listener);
  close(second);
  ck_assert_int_eq(tt_uds_connect(name, &fd), ncclSuccess);
  ck_assert_int_eq(fd, -1);
  ck_assert_int_eq(tt_uds_connect("", &fd), ncclInvalidArgument);
  char endless[200];
  memset(endless, 'n', sizeof(endless));
  ck_assert_int_eq(tt_uds_connect(endless, &fd), ncclInvalidArgument);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

#define NOT_PERMITTED 77

START_TEST(other_network_namespace)
{
  char name[TT_UDS_NAME_BYTES];
  int listener, status;
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  pid_t child = fork();
  if (child == 0) {
    int fd;
    if (tt_uds_connect(name, &fd) != ncclSuccess || fd < 0) _exit(1);
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(NOT_PERMITTED);
    if (tt_uds_connect(name, &fd) != ncclSuccess) _exit(2);
    _exit(fd == -1 ? 0 : 3);
  }
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status));
  if (WEXITSTATUS(status) == NOT_PERMITTED)
    fprintf(stderr, "SKIP other_network_namespace: this user may not make network namespaces\n");
  else
    ck_assert_int_eq(WEXITSTATUS(status), 0);
  close(listener);
}
END_TEST

/* Abstract names have no permissions, so the listener looks at who connects. */
START_TEST(other_user)
{
  char name[TT_UDS_NAME_BYTES];
  int listener, status, fd;
  if (geteuid() != 0) {
    fprintf(stderr, "SKIP other_user: only root can become another user\n");
    return;
  }
  start_log("INFO", "INIT");
  ck_assert_int_eq(tt_uds_listen(&listener, name), ncclSuccess);
  pid_t child = fork();
  if (child == 0) {
    char byte;
    if (setresuid(65534, 65534, 65534) != 0) _exit(NOT_PERMITTED);
    if (tt_uds_connect(name, &fd) != ncclSuccess || fd < 0) _exit(1);
    _exit(tt_uds_recv(fd, &byte, 1, NULL, LATER) == ncclRemoteError ? 0 : 2);
  }
  ck_assert_int_eq(tt_uds_accept(listener, &fd, tt_deadline_in_ms(1000)), ncclSuccess);
  ck_assert_int_eq(fd, -1);
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == NOT_PERMITTED)
    fprintf(stderr, "SKIP other_user: this system does not let root do it\n");
  else
    ck_assert_int_eq(WEXITSTATUS(status), 0);
  close(listener);
}
END_TEST

/* More descriptors than anybody asked for, as a hostile peer would send them. */
START_TEST(many_descriptors)
{
  int a, b, fd, many[8], files = held_descriptors();
  char byte;
  make_pair(&a, &b);
  for (int i = 0; i < 8; i++) many[i] = a;
  char control[CMSG_SPACE(sizeof(many))] = {0};
  struct iovec part = {.iov_base = "x", .iov_len = 1};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(many));
  memcpy(CMSG_DATA(header), many, sizeof(many));
  ck_assert_int_eq(sendmsg(a, &message, 0), 1);
  ck_assert_int_eq(tt_uds_recv(b, &byte, 1, &fd, LATER), ncclSuccess);
  ck_assert_int_ge(fd, 0);
  close(fd);
  close(a);
  close(b);
  ck_assert_int_eq(held_descriptors(), files);
}
END_TEST

Suite *uds_suite(void)
{
  Suite *suite = suite_create("Unix sockets");
  TCase *one = clean_case(suite, "Unix sockets");
  tcase_add_test(one, descriptors);
  tcase_add_test(one, no_descriptors);
  tcase_add_test(one, just_in_time);
  tcase_add_test(one, endings);
  tcase_add_test(one, nobody_listens);
  tcase_add_test(one, other_network_namespace);
  tcase_add_test(one, other_user);
  tcase_add_test(one, many_descriptors);
  return suite;
}
