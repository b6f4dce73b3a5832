/* What goes wrong, and when. FAKE_VERBS_SCRIPT is a list of lines, separated by ';':
 *
 *     [MS:]ACTION       done MS milliseconds after the devices were first listed, or at once
 *
 *     down DEV[:PORT]   the port loses its link, and an event says so     up DEV[:PORT]   it has it again
 *     mute DEV[:PORT]   nothing passes any more, and no event says so
 *     remove DEV        the device is gone: a fatal event, and everything fails with EIO
 *     event DEV TYPE    an asynchronous event, by its number in enum ibv_event_type; for a CQ or QP: of the first one
 *     fail CALL N ERRNO the N-th call from now of ibv_CALL, post_send or post_recv fails
 *     before CALL N ACTION  the N-th call from now of one of these finds that ACTION has just happened
 *     status NAME N     the N-th completion of a send queue from now has this status: a number, or RETRY_EXC_ERR etc.
 *     late MS           completions show so much later
 *     reorder           completions of different queues that share a CQ come in any order
 *     torn US           short writes reach memory a line of 64 bytes at a time, in order, so far apart */
#include "fake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

#define ACTIONS 32
static struct {
  bool ready;
  uint64_t start_ns;
  struct {
    uint64_t at_ms;
    char text[80];
    bool done;
  } planned[ACTIONS];
  int count;
  struct {
    char call[48];
    int left, error;
  } fault[ACTIONS];
  int faults;
  struct {
    char call[48], action[48];
    int left;
  } before[ACTIONS];
  int befores;
  struct {
    int left;
    enum ibv_wc_status status;
  } status[ACTIONS];
  int statuses;
  uint64_t late_ns;
  bool reorder;
  int torn_usec;
  struct {
    char what[24];
    uint64_t count;
  } counter[64];
} script;

uint64_t fake_now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void fake_misuse(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  fprintf(stderr, "fake verbs: misuse: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  abort();
}

void fake_count(const char *what)
{
  for (size_t i = 0; i < sizeof script.counter / sizeof script.counter[0]; i++) {
    if (script.counter[i].what[0] && strcmp(script.counter[i].what, what) != 0) continue;
    snprintf(script.counter[i].what, sizeof script.counter[i].what, "%s", what);
    script.counter[i].count++;
    return;
  }
}

uint64_t fake_verbs_count(const char *what)
{
  uint64_t count = 0;
  pthread_mutex_lock(&fake_lock);
  for (size_t i = 0; i < sizeof script.counter / sizeof script.counter[0]; i++)
    if (strcmp(script.counter[i].what, what) == 0) count = script.counter[i].count;
  pthread_mutex_unlock(&fake_lock);
  return count;
}

static bool act(const char *text);

int fake_should_fail(const char *call)
{
  fake_count(call);
  for (int i = 0; i < script.befores; i++)
    if (script.before[i].left > 0 && strcmp(script.before[i].call, call) == 0 && --script.before[i].left == 0)
      act(script.before[i].action);
  for (int i = 0; i < script.faults; i++)
    if (script.fault[i].left > 0 && strcmp(script.fault[i].call, call) == 0 && --script.fault[i].left == 0)
      return script.fault[i].error;
  return 0;
}

enum ibv_wc_status fake_send_status(void)
{
  for (int i = 0; i < script.statuses; i++)
    if (script.status[i].left > 0 && --script.status[i].left == 0) return script.status[i].status;
  return IBV_WC_SUCCESS;
}

uint64_t fake_delay_ns(void)
{
  return script.late_ns;
}

bool fake_reorders(void)
{
  return script.reorder;
}

int fake_torn_usec(void)
{
  return script.torn_usec;
}

static int find_status(const char *name)
{
  static const char *const names[] = {
      "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
      "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
      "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
      "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
      "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
      "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
  for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
    if (strcmp(names[i], name) == 0) return i;
  return name[0] >= '0' && name[0] <= '9' ? atoi(name) : -1;
}

static bool set_port(char *where, bool up, bool tell)
{
  char *colon = strchr(where, ':');
  int number = colon ? atoi(colon + 1) : 1;
  if (colon) *colon = 0;
  struct fake_device *device = fake_find_device(where);
  if (!device || number < 1 || number > device->ports) return false;
  device->port[number - 1].up = up;
  if (tell) {
    /* The element of the event is a union; for ports it is the number. */
    fake_raise(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, (void *)(intptr_t)number);
  }
  return true;
}

static bool remove_device(struct fake_device *device)
{
  if (!device) return false;
  device->removed = true;
  fake_raise(device, IBV_EVENT_DEVICE_FATAL, NULL);
  for (struct fake_qp *qp = fake_qps; qp; qp = qp->next)
    if (fake_context(qp->qp.context)->device == device) fake_to_error(qp);
  return true;
}

static bool raise_event(struct fake_device *device, int type)
{
  struct fake_qp *qp = fake_qps;
  if (!device) return false;
  while (qp && fake_context(qp->qp.context)->device != device) qp = qp->next;
  if (type == IBV_EVENT_CQ_ERR)
    fake_raise(device, type, qp ? qp->qp.send_cq : NULL);
  else if (type <= IBV_EVENT_PATH_MIG_ERR)
    fake_raise(device, type, qp ? &qp->qp : NULL);
  else
    fake_raise(device, type, (void *)1);
  return true;
}

static bool act(const char *text)
{
  char verb[16] = "", first[48] = "";
  int number = 0, error = EIO, rest = 0;
  int words = sscanf(text, " %15s %47s %d %n%d", verb, first, &number, &rest, &error);
  if (!strcmp(verb, "down") && words >= 2) return set_port(first, false, true);
  if (!strcmp(verb, "up") && words >= 2) return set_port(first, true, true);
  if (!strcmp(verb, "mute") && words >= 2) return set_port(first, false, false);
  if (!strcmp(verb, "remove") && words >= 2) return remove_device(fake_find_device(first));
  if (!strcmp(verb, "event") && words >= 3) return raise_event(fake_find_device(first), number);
  if (!strcmp(verb, "late") && words >= 2) {
    script.late_ns = (uint64_t)atoi(first) * 1000000;
    return true;
  }
  if (!strcmp(verb, "reorder")) return script.reorder = true;
  if (!strcmp(verb, "torn") && words >= 2) {
    script.torn_usec = atoi(first);
    return true;
  }
  if (!strcmp(verb, "fail") && words >= 3 && script.faults < ACTIONS) {
    snprintf(script.fault[script.faults].call, sizeof script.fault[0].call, "%s", first);
    script.fault[script.faults].left = number;
    script.fault[script.faults++].error = error;
    return true;
  }
  if (!strcmp(verb, "before") && words >= 3 && rest && script.befores < ACTIONS) {
    snprintf(script.before[script.befores].call, sizeof script.before[0].call, "%s", first);
    snprintf(script.before[script.befores].action, sizeof script.before[0].action, "%s", text + rest);
    script.before[script.befores++].left = number;
    return true;
  }
  if (!strcmp(verb, "status") && words >= 3 && script.statuses < ACTIONS && find_status(first) >= 0) {
    script.status[script.statuses].left = number;
    script.status[script.statuses++].status = (enum ibv_wc_status)find_status(first);
    return true;
  }
  return false;
}

int fake_verbs_do(const char *action)
{
  pthread_mutex_lock(&fake_lock);
  bool done = act(action);
  pthread_mutex_unlock(&fake_lock);
  fake_wire_wake();
  return done ? 0 : -1;
}

void fake_script_init(void)
{
  if (script.ready) return;
  script.ready = true;
  script.start_ns = fake_now_ns();
  const char *text = getenv("FAKE_VERBS_SCRIPT");
  while (text && *text && script.count < ACTIONS) {
    size_t bytes = strcspn(text, ";");
    char line[80];
    unsigned ms = 0;
    int skip = 0;
    snprintf(line, sizeof line, "%.*s", (int)bytes, text);
    if (sscanf(line, " %u:%n", &ms, &skip) < 1 || skip == 0) ms = 0, skip = 0;
    script.planned[script.count].at_ms = ms;
    snprintf(script.planned[script.count++].text, sizeof script.planned[0].text, "%s", line + skip);
    text += bytes + (text[bytes] == ';');
  }
  fake_script_run();
}

int fake_script_run(void)
{
  uint64_t now_ms = (fake_now_ns() - script.start_ns) / 1000000;
  int next = -1;
  for (int i = 0; i < script.count; i++) {
    if (script.planned[i].done) continue;
    if (script.planned[i].at_ms <= now_ms) {
      script.planned[i].done = true;
      if (!act(script.planned[i].text)) fake_misuse("FAKE_VERBS_SCRIPT: what is \"%s\"?", script.planned[i].text);
    } else if (next < 0 || (int)(script.planned[i].at_ms - now_ms) < next) {
      next = (int)(script.planned[i].at_ms - now_ms);
    }
  }
  return next;
}
