/* See helper.h. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "helper.h"

#define LINES 20000
static char (*lines)[160];
static int nlines;
static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_path[64];

static void record(const char *text)
{
  pthread_mutex_lock(&lines_lock);
  ck_assert_int_lt(nlines, LINES);
  snprintf(lines[nlines++], sizeof(*lines), "%s", text);
  pthread_mutex_unlock(&lines_lock);
}

static void remove_log(void)
{
  unlink(log_path);
}

void start(const char *plugins)
{
  char text[32];
  if (!lines) {
    lines = calloc(LINES, sizeof(*lines));
    snprintf(log_path, sizeof(log_path), "/tmp/test_plugin.%d.log", (int)getpid());
    atexit(remove_log);
  }
  snprintf(text, sizeof(text), "%lx", (unsigned long)(uintptr_t)record);
  setenv("STUB_RECORD", text, 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "ALL", 1);
  setenv("NCCL_DEBUG_FILE", log_path, 1);
  unsetenv("NCCL_NET");
  if (plugins)
    setenv("NCCL_NET_PLUGIN", plugins, 1);
  else
    unsetenv("NCCL_NET_PLUGIN");
  tt_param_reset();
  tt_log_reset();
  ck_assert_int_eq(tt_net_reset(), ncclSuccess);
  forget_calls();
}

void behave(const char *name, const char *what, const char *value)
{
  char variable[128];
  snprintf(variable, sizeof(variable), "STUB_%s_%s", name, what);
  if (value)
    setenv(variable, value, 1);
  else
    unsetenv(variable);
}

void forget_calls(void)
{
  nlines = 0;
}

static const char *call_of(const char *line, const char *name)
{
  size_t bytes = strlen(name);
  return strncmp(line, name, bytes) == 0 && strncmp(line + bytes, ": ", 2) == 0 ? line + bytes + 2 : NULL;
}

const char *calls(const char *name)
{
  static char text[16384];
  size_t bytes = 0;
  text[0] = '\0';
  for (int i = 0; i < nlines; i++) {
    const char *call = call_of(lines[i], name);
    if (call) bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, "%s\n", call);
    ck_assert_uint_lt(bytes, sizeof(text));
  }
  return text;
}

int count_calls(const char *name, const char *beginning)
{
  int count = 0;
  for (int i = 0; i < nlines; i++) {
    const char *call = call_of(lines[i], name);
    if (call && strncmp(call, beginning, strlen(beginning)) == 0) count++;
  }
  return count;
}

const char *logged(void)
{
  static char text[1 << 18];
  FILE *file = fopen(log_path, "r");
  ck_assert_ptr_nonnull(file);
  text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
  fclose(file);
  return text;
}

void check_logged(const char *part)
{
  ck_assert_msg(strstr(logged(), part) != NULL, "not logged: \"%s\"; logged is:\n%s", part, logged());
}

void check_error(const char *part)
{
  ck_assert_msg(strstr(tt_log_thread_error(), part) != NULL, "\"%s\" is not in the error: %s", part,
                tt_log_thread_error());
}

const struct tt_net_request plain = {.comm_id = 77, .traffic_class = NCCL_CONFIG_UNDEF_INT};

struct tt_net *open_net(const struct tt_net_request *request)
{
  struct tt_net_set *set;
  struct tt_net *net;
  uint8_t offer[TT_NET_OFFER_BYTES];
  ck_assert_msg(tt_net_candidates(request, &set) == ncclSuccess, "candidates: %s", tt_log_thread_error());
  tt_net_offer(set, offer);
  ck_assert_msg(tt_net_choose(set, offer, 1, 0, &net) == ncclSuccess, "choose: %s", tt_log_thread_error());
  tt_net_set_free(set);
  ck_assert_ptr_nonnull(net);
  return net;
}

struct tt_net *open_named(const char *name)
{
  struct tt_net_request request = plain;
  request.net_name = name;
  struct tt_net *net = open_net(&request);
  ck_assert_str_eq(tt_net_name(net), name);
  return net;
}

void close_net(struct tt_net *net)
{
  ck_assert_int_eq(tt_net_close(net), ncclSuccess);
}

struct tt_net_report report_of(const char *asked)
{
  struct tt_net_report report;
  for (int i = 0; tt_net_report(i, &report); i++) {
    size_t all = strlen(report.asked), part = strlen(asked);
    if (all >= part && strcmp(report.asked + all - part, asked) == 0) return report;
  }
  ck_abort_msg("nothing was asked for like %s", asked);
}
