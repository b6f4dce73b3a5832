/* Checks all values at once, when a communicator is first made: a wrong setting must not look like a working one. */
#include "base/param.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/param_internal.h"
#include "base/param_source.h"
#include "base/text.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool checked;        /* under `mutex` */
static ncclResult_t result; /* under `mutex` */

/* Strings whose few possible values are known in this layer; others are checked by who uses them. */
static bool string_is_wrong(enum tt_param_id id, const char **allowed)
{
  const char *text = tt_param_string(id);
  if (!text) return false;
  uint16_t first, last;
  switch (id) {
  case TT_PARAM_NCCL_SOCKET_FAMILY:
    *allowed = "AF_INET or AF_INET6";
    return !tt_text_equal_nocase(text, strlen(text), "AF_INET") &&
           !tt_text_equal_nocase(text, strlen(text), "AF_INET6");
  case TT_PARAM_NCCL_LAUNCH_MODE:
    *allowed = "PARALLEL or GROUP";
    return !tt_text_equal_nocase(text, strlen(text), "PARALLEL") && !tt_text_equal_nocase(text, strlen(text), "GROUP");
  case TT_PARAM_TUTTI_PORT_RANGE:
    *allowed = "first-last with 1 <= first <= last <= 65535, such as 40000-40099";
    return !tt_text_port_range(text, &first, &last);
  default:
    return false;
  }
}

ncclResult_t tt_param_refuse(enum tt_param_id id, const char *allowed)
{
  const struct tt_param *param = tt_param_describe(id);
  const char *file;
  char range[80] = "0 or 1";
  if (param->type == TT_PARAM_INT)
    snprintf(range, sizeof(range), "an integer from %lld to %lld", (long long)param->min, (long long)param->max);
  tt_param_origin(id, &file);
  return TT_FAIL(ncclInvalidUsage, "%s=%s, set by %s, is not allowed: it must be %s (%s)", param->name,
                 tt_param_text(id), file ? file : "environment", allowed ? allowed : range, param->help);
}

static ncclResult_t check_value(enum tt_param_id id)
{
  const char *allowed = NULL;
  tt_param_source_announce(id);
  bool string = tt_param_describe(id)->type == TT_PARAM_STRING;
  bool wrong = string ? string_is_wrong(id, &allowed) : tt_param_malformed(id);
  return wrong ? tt_param_refuse(id, allowed) : ncclSuccess;
}

static ncclResult_t check_all(void)
{
  const struct tt_param_files *files = tt_param_files();
  for (int i = 0; i < files->nproblems; i++) TT_WARN("%s", files->problems[i]);
  tt_param_report_unknown();
  ncclResult_t first = ncclSuccess;
  for (int id = 0; id < TT_PARAM_COUNT; id++) {
    ncclResult_t one = check_value((enum tt_param_id)id);
    if (first == ncclSuccess) first = one;
  }
  return first;
}

ncclResult_t tt_param_check(void)
{
  pthread_mutex_lock(&mutex);
  if (!checked) {
    result = check_all();
    checked = true;
  }
  ncclResult_t answer = result;
  pthread_mutex_unlock(&mutex);
  return answer;
}

void tt_param_forget_check(void)
{
  pthread_mutex_lock(&mutex);
  checked = false;
  pthread_mutex_unlock(&mutex);
}
