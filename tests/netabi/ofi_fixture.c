/* See ofi_fixture.h. */
#include "ofi_fixture.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *path, *fake;
const ncclNet_v12_t *net;
void *context, *listener;
char handle[NCCL_NET_HANDLE_MAXSIZE];
char last_warning[1024], last_info[1024];

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  char text[1024];
  va_list args;
  (void)flags, (void)where, (void)line;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (level == NCCL_LOG_WARN) strcpy(last_warning, text);
  if (strstr(text, "NET/OFI")) strcpy(last_info, text);
}

uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* The devices there are, with FAKE_FABRIC=`words`; NULL: the real library. */
int start(const char *words)
{
  int count = -1;
  if (words) setenv("TUTTI_OFI_LIBRARY", fake, 1);
  if (words) setenv("FAKE_FABRIC", words, 1);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  net = dlsym(library, "ncclNetPlugin_v12");
  ck_assert_int_eq(net->init(&context, 1, NULL, logger, NULL), ncclSuccess);
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  return count;
}

void start_tcp(const char *words)
{
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_ge(start(words), 1);
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
}

void finish(void)
{
  if (listener) ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
}

void expect_said(const char *text, const char *part)
{
  ck_assert_msg(strstr(text, part) != NULL, "\"%s\" does not say \"%s\"", text, part);
}

/* Connects the process with itself; the first error of either side. */
ncclResult_t try_connect(void **send, void **recv)
{
  char copy[sizeof handle];
  ncclResult_t result = ncclSuccess;
  memcpy(copy, handle, sizeof copy);
  *send = *recv = NULL;
  for (uint64_t end = now_ms() + LONG_MS; (!*send || !*recv) && result == ncclSuccess;) {
    ck_assert_msg(now_ms() < end, "no connection, and no error");
    if (!*send) result = net->connect(context, 0, copy, send, NULL);
    if (!*recv && result == ncclSuccess) result = net->accept(listener, recv, NULL);
  }
  return result;
}

/* One message; the first error. */
ncclResult_t transfer(void *send, void *recv, char *out, char *in, size_t bytes, void *out_memory, void *in_memory)
{
  void *requests[2] = {NULL, NULL}, *data = in, *phandle = NULL;
  int tag = 3, done[2] = {0, 0};
  ncclResult_t result = net->irecv(recv, 1, &data, &bytes, &tag, &in_memory, &phandle, &requests[0]);
  if (result == ncclSuccess) result = net->isend(send, out, bytes, tag, out_memory, NULL, &requests[1]);
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && (!done[0] || !done[1]);) {
    ck_assert_msg(now_ms() < end, "a message of %zu bytes does not arrive", bytes);
    for (int i = 0; i < 2 && result == ncclSuccess; i++)
      if (!done[i]) result = net->test(requests[i], &done[i], NULL);
  }
  return result;
}

int run(int argc, char **argv, TCase *tcase)
{
  if (argc != 3) {
    fprintf(stderr, "usage: %s libtutti-net-ofi.so fake-fabric.so\n", argv[0]);
    return 2;
  }
  path = argv[1];
  fake = argv[2];
  tcase_set_timeout(tcase, 120);
  Suite *suite = suite_create("net-ofi");
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
