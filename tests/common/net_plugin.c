/* See net_plugin.h. */
#include "tests/common/net_plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void *library;
const ncclNet_v12_t *net;
void *context;
char log_text[1 << 16], last_warning[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* threads of the plugin log too */

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *where, int line, const char *format, ...)
{
  char text[1024];
  va_list args;
  (void)flags, (void)where, (void)line;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&lock);
  size_t at = strlen(log_text);
  if (at + strlen(text) + 8 < sizeof log_text)
    snprintf(log_text + at, sizeof log_text - at, "%s %s\n", level == NCCL_LOG_WARN ? "WARN" : "INFO", text);
  if (level == NCCL_LOG_WARN) strcpy(last_warning, text);
  pthread_mutex_unlock(&lock);
}

ncclResult_t net_load(const char *path)
{
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  net = net_symbol("ncclNetPlugin_v12");
  return net->init(&context, 1, NULL, logger, NULL);
}

void *net_symbol(const char *name)
{
  void *symbol = dlsym(library, name);
  ck_assert_msg(symbol != NULL, "%s", dlerror());
  return symbol;
}

ncclResult_t net_meet(int send_dev, const char *handle, void *listener, void **send, void **recv)
{
  char copy[NCCL_NET_HANDLE_MAXSIZE];
  ncclResult_t result = ncclSuccess;
  memcpy(copy, handle, sizeof copy);
  *send = *recv = NULL;
  for (uint64_t end = now_ms() + LONG_MS; (!*send || !*recv) && result == ncclSuccess;) {
    if (now_ms() >= end) ck_abort_msg("no connection, and no error:\n%s", log_text);
    if (!*send) result = net->connect(context, send_dev, copy, send, NULL);
    if (!*recv && result == ncclSuccess) result = net->accept(listener, recv, NULL);
  }
  return result;
}

const char *logged(const char *part)
{
  pthread_mutex_lock(&lock);
  const char *found = strstr(log_text, part);
  pthread_mutex_unlock(&lock);
  return found;
}

void expect_logged(const char *part)
{
  ck_assert_msg(logged(part) != NULL, "\"%s\" is not in:\n%s", part, log_text);
}

void first_warning(char *line, size_t size)
{
  pthread_mutex_lock(&lock);
  const char *found = strstr(log_text, "WARN");
  if (found) snprintf(line, size, "%.*s", (int)strcspn(found, "\n"), found);
  pthread_mutex_unlock(&lock);
  ck_assert_ptr_nonnull(found);
}

uint64_t now_ms(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

int net_run(const char *name, TCase *tcase, int timeout_s)
{
  tcase_set_timeout(tcase, timeout_s);
  Suite *suite = suite_create(name);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
