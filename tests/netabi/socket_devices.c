/* net-socket's devices and the environment that shapes its connections. Each test runs in a process of its own, since
 * parameters are read once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/common/net_plugin.h"

static const char *path;

START_TEST(one_device_an_interface)
{
  int count = 0;
  ncclNetProperties_v12_t a, b;
  ck_assert_int_eq(net_load(path), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_ge(count, 1);
  for (int i = 0; i < count; i++)
    for (int k = 0; k < i; k++) {
      ck_assert_int_eq(net->getProperties(i, &a), ncclSuccess);
      ck_assert_int_eq(net->getProperties(k, &b), ncclSuccess);
      ck_assert_str_ne(a.name, b.name);
      ck_assert_uint_ne(a.guid, b.guid);
    }
  ck_assert_int_eq(net->getProperties(count, &a), ncclInternalError);
  ck_assert_int_eq(net->getProperties(-1, &a), ncclInternalError);
}
END_TEST

START_TEST(interface_by_name)
{
  int count = 0;
  ncclNetProperties_v12_t props;
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  ck_assert_int_eq(net_load(path), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_eq(count, 1);
  ck_assert_int_eq(net->getProperties(0, &props), ncclSuccess);
  ck_assert_str_eq(props.name, "lo");
  ck_assert_ptr_null(props.pciPath);
  ck_assert_int_eq(props.speed, 10000); /* the loopback has none of its own */
}
END_TEST

START_TEST(no_such_interface)
{
  setenv("NCCL_SOCKET_IFNAME", "=none-such", 1);
  ck_assert_int_eq(net_load(path), ncclInvalidUsage);
  ck_assert_msg(strstr(last_warning, "none-such") != NULL, "the warning says \"%s\"", last_warning);
}
END_TEST

START_TEST(too_many_sockets)
{
  setenv("NCCL_SOCKET_NTHREADS", "16", 1);
  setenv("NCCL_NSOCKS_PERTHREAD", "5", 1);
  ck_assert_int_eq(net_load(path), ncclInvalidUsage);
  ck_assert_msg(strstr(last_warning, "NCCL_SOCKET_NTHREADS=16") && strstr(last_warning, "NCCL_NSOCKS_PERTHREAD=5"),
                "the warning says \"%s\"", last_warning);
}
END_TEST

static const struct {
  const char *threads, *sockets, *said;
} shapes[] = {{"-1", "-1", "0 data sockets a connection, 0 helper threads"},
              {"0", "1", "0 data sockets a connection, 0 helper threads"},
              {"0", "3", "3 data sockets a connection, 0 helper threads"},
              {"1", "1", "1 data sockets a connection, 1 helper threads"},
              {"4", "-1", "4 data sockets a connection, 4 helper threads"},
              {"16", "4", "64 data sockets a connection, 16 helper threads"},
              {"2", "0", "0 data sockets a connection, 0 helper threads"}};

START_TEST(threads_times_sockets)
{
  setenv("NCCL_SOCKET_NTHREADS", shapes[_i].threads, 1);
  setenv("NCCL_NSOCKS_PERTHREAD", shapes[_i].sockets, 1);
  ck_assert_int_eq(net_load(path), ncclSuccess);
  expect_logged(shapes[_i].said);
}
END_TEST

static void quiet(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  (void)level, (void)flags, (void)where, (void)line, (void)format;
}

START_TEST(finalize_is_counted)
{
  void *second;
  int count = 0;
  ck_assert_int_eq(net_load(path), ncclSuccess);
  ck_assert_int_eq(net->init(&second, 2, NULL, quiet, NULL), ncclSuccess);
  ck_assert_int_eq(net->finalize(second), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  ck_assert_int_ge(count, 1);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
  ck_assert_int_eq(net->finalize(context), ncclInternalError);
}
END_TEST

int main(int argc, char **argv)
{
  if (argc != 2) {
    fprintf(stderr, "usage: %s libtutti-net-socket.so\n", argv[0]);
    return 2;
  }
  path = argv[1];
  TCase *tcase = tcase_create("devices");
  tcase_add_test(tcase, one_device_an_interface);
  tcase_add_test(tcase, interface_by_name);
  tcase_add_test(tcase, no_such_interface);
  tcase_add_test(tcase, too_many_sockets);
  tcase_add_loop_test(tcase, threads_times_sockets, 0, (int)(sizeof shapes / sizeof shapes[0]));
  tcase_add_test(tcase, finalize_is_counted);
  return net_run("net-socket", tcase, 60);
}
