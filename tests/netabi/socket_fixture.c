/* See socket_fixture.h. */
#include "socket_fixture.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *path;
static void *library;
const ncclNet_v12_t *net;
void *context, *listener;
char handle[NCCL_NET_HANDLE_MAXSIZE];
char last_warning[1024], last_drops[1024];

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  char text[1024];
  va_list args;
  (void)flags, (void)where, (void)line;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (level == NCCL_LOG_WARN) strcpy(last_warning, text);
  if (strstr(text, "dropped")) strcpy(last_drops, text);
}

static void set_up(void)
{
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  net = dlsym(library, "ncclNetPlugin_v12");
  ck_assert_ptr_nonnull(net);
  ck_assert_int_eq(net->init(&context, 1, NULL, logger, NULL), ncclSuccess);
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
}

static void tear_down(void)
{
  if (listener) ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  listener = NULL;
  ck_assert_int_eq(net->finalize(context), ncclSuccess);
}

uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

void connect_self(void **send, void **recv)
{
  char copy[sizeof handle];
  memcpy(copy, handle, sizeof copy);
  *send = *recv = NULL;
  for (uint64_t end = now_ms() + LONG_MS; (!*send || !*recv) && now_ms() < end;) {
    if (!*send) ck_assert_int_eq(net->connect(context, 0, copy, send, NULL), ncclSuccess);
    if (!*recv) ck_assert_int_eq(net->accept(listener, recv, NULL), ncclSuccess);
  }
  ck_assert_msg(*send && *recv, "the real peer did not get through");
}

static void take(void *argument, const struct tt_counters *counters)
{
  struct tt_counters *wanted = argument;
  if (counters->comm == wanted->comm) *wanted = *counters;
}

struct tt_counters read_counters(const void *comm)
{
  struct tt_counters wanted = {.comm = comm};
  const struct tt_net_counters *table = dlsym(library, TT_NET_COUNTERS_SYMBOL);
  ck_assert_ptr_nonnull(table);
  ck_assert_int_eq(table->read(take, &wanted), ncclSuccess);
  ck_assert_uint_eq(wanted.size, sizeof wanted);
  return wanted;
}

int run_socket_suite(int argc, char **argv, TCase *tcase)
{
  if (argc != 2) {
    fprintf(stderr, "usage: %s libtutti-net-socket.so\n", argv[0]);
    return 2;
  }
  path = argv[1];
  tcase_add_checked_fixture(tcase, set_up, tear_down);
  tcase_set_timeout(tcase, 200);
  Suite *suite = suite_create("net-socket");
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
