/* tuttiCommReport: arguments and buffers, operation numbers, what a rank that waits says, and what a failed one does.
 */
#include "suites.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "plan/comm.h"
#include "tutti.h"

/* The caller frees it. */
static char *report(ncclComm_t comm, tuttiReportFormat_t format)
{
  char *text = NULL;
  for (size_t room = 0, bytes = 1; room < bytes;) {
    room = bytes + 1000;
    text = realloc(text, room);
    bytes = room;
    ck_assert_int_eq(tuttiCommReport(comm, format, text, &bytes), ncclSuccess);
  }
  return text;
}

/* Reports until one says all of the words. */
static char *wait_for(ncclComm_t comm, const char *first, const char *second)
{
  for (int tries = 0; tries < 3000; tries++) {
    char *text = report(comm, tuttiReportText);
    if (strstr(text, first) != NULL && strstr(text, second) != NULL) return text;
    if (tries == 2999) ck_abort_msg("no report with '%s' and '%s'; the last one:\n%s", first, second, text);
    free(text);
    usleep(10000);
  }
  return NULL;
}

START_TEST(arguments)
{
  char buffer[64];
  size_t bytes = sizeof buffer, needed = 0;
  ncclComm_t comm;
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportText, buffer, NULL), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportText, NULL, &bytes), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommReport(comm, (tuttiReportFormat_t)7, buffer, &bytes), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommReport((ncclComm_t)buffer, tuttiReportText, buffer, &bytes), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportJson, NULL, &needed), ncclSuccess);
  ck_assert_uint_gt(needed, sizeof buffer);
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportJson, buffer, &bytes), ncclSuccess);
  ck_assert_uint_eq(bytes, needed);
  ck_assert_uint_eq(strlen(buffer), sizeof buffer - 1); /* cut */
  char *text = malloc(needed);
  bytes = needed;
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportJson, text, &bytes), ncclSuccess);
  ck_assert_uint_eq(strlen(text), needed - 1);
  free(text);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
  bytes = sizeof buffer;
  ck_assert_int_eq(tuttiCommReport(comm, tuttiReportText, buffer, &bytes), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommReport(NULL, tuttiReportText, NULL, &(size_t){0}), ncclSuccess);
}
END_TEST

/* A communicator of one process has no network, and says so by zeros. */
START_TEST(net_stats)
{
  tuttiNetStats_t stats = {.size = sizeof stats, .send.messages = 1, .recv.counts = 1}, none = {.size = sizeof none};
  ncclComm_t comm;
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert_int_eq(tuttiCommNetStats(comm, NULL), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommNetStats(NULL, &stats), ncclInvalidArgument);
  ck_assert_int_eq(tuttiCommNetStats((ncclComm_t)&stats, &stats), ncclInvalidArgument);
  stats.size = offsetof(tuttiNetStats_t, busyNs) - 1;
  ck_assert_int_eq(tuttiCommNetStats(comm, &stats), ncclInvalidArgument);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(NULL), "stats->size"));
  ck_assert_uint_eq(stats.send.messages, 1);
  stats.size = offsetof(tuttiNetStats_t, busyNs); /* of who was compiled before that */
  stats.busyNs = 7;
  ck_assert_int_eq(tuttiCommNetStats(comm, &stats), ncclSuccess);
  ck_assert_uint_eq(stats.busyNs, 7);
  ck_assert_uint_eq(stats.send.messages, 0);
  stats.size = sizeof stats;
  ck_assert_int_eq(tuttiCommNetStats(comm, &stats), ncclSuccess);
  ck_assert_mem_eq(&stats, &none, sizeof stats);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
  ck_assert_int_eq(tuttiCommNetStats(comm, &stats), ncclInvalidArgument);
}
END_TEST

/* Each collective has a number, also in a group and without elements; a group's messages share one. */
START_TEST(numbers)
{
  float data[8] = {0}, more[8];
  ncclComm_t comm;
  ck_assert_int_eq(ncclCommInitAll(&comm, 1, NULL), ncclSuccess);
  ck_assert_int_eq(ncclAllReduce(data, more, 8, ncclFloat, ncclSum, comm, NULL), ncclSuccess); /* 0 */
  ck_assert_int_eq(ncclAllReduce(data, more, 0, ncclFloat, ncclSum, comm, NULL), ncclSuccess); /* 1 */
  ck_assert_uint_eq(atomic_load(&comm->op_count), 2);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclSend(data, 4, ncclFloat, 0, comm, NULL), ncclSuccess);         /* 2 */
  ck_assert_int_eq(ncclAllGather(data, more, 8, ncclFloat, comm, NULL), ncclSuccess); /* 3 */
  ck_assert_int_eq(ncclRecv(more, 4, ncclFloat, 0, comm, NULL), ncclSuccess);         /* 2 */
  ck_assert_uint_eq(comm->tasks->op_count, 2);
  ck_assert_uint_eq(comm->tasks->next->op_count, 3);
  ck_assert_uint_eq(comm->tasks->next->next->op_count, 2);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  ck_assert_int_eq(ncclGroupStart(), ncclSuccess);
  ck_assert_int_eq(ncclSend(data, 4, ncclFloat, 0, comm, NULL), ncclSuccess); /* 4 */
  ck_assert_int_eq(ncclRecv(more, 4, ncclFloat, 0, comm, NULL), ncclSuccess);
  ck_assert_int_eq(ncclGroupEnd(), ncclSuccess);
  char *text = report(comm, tuttiReportText);
  ck_assert_msg(strstr(text, "op_count: 5\n") != NULL && strstr(text, "state: idle\n") != NULL, "%s", text);
  free(text);
  ck_assert_int_eq(ncclCommDestroy(comm), ncclSuccess);
}
END_TEST

enum { COUNT = 1 << 20 };

struct rank {
  ncclComm_t comm;
  float *data;
  bool message;
  ncclResult_t result;
  pthread_t thread;
};

static void *call(void *arg)
{
  struct rank *rank = arg;
  rank->result = rank->message ? ncclRecv(rank->data, COUNT, ncclFloat, 1, rank->comm, NULL)
                               : ncclAllReduce(rank->data, rank->data, COUNT, ncclFloat, ncclSum, rank->comm, NULL);
  return NULL;
}

static void start(struct rank *rank, ncclComm_t comm, bool message)
{
  *rank = (struct rank){.comm = comm, .data = calloc(COUNT, sizeof(float)), .message = message};
  ck_assert_int_eq(pthread_create(&rank->thread, NULL, call, rank), 0);
}

static ncclResult_t finish(struct rank *rank)
{
  pthread_join(rank->thread, NULL);
  free(rank->data);
  return rank->result;
}

/* A rank that waits says in what, for whom, how far it is; and no longer, when it goes on. */
START_TEST(waiting)
{
  ncclComm_t comms[2];
  struct rank first, second;
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  start(&first, comms[0], false);
  char *text = wait_for(comms[0], "state: waits to receive from rank 1 on ", "not_heard_of: 1\n");
  ck_assert_msg(strstr(text, "operation: AllReduce of 1048576 x float32, sum") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "steps_done: 0\n") != NULL && strstr(text, "thread: waits\n") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "op_count: 0\n") != NULL, "%s", text);
  free(text);
  start(&second, comms[1], false);
  ck_assert_int_eq(finish(&second), ncclSuccess);
  ck_assert_int_eq(finish(&first), ncclSuccess);
  text = report(comms[0], tuttiReportText);
  ck_assert_msg(strstr(text, "state: idle\n") != NULL && strstr(text, "operations:") == NULL, "%s", text);
  free(text);
  start(&first, comms[0], true);
  text =
      wait_for(comms[0], "operation: Recv of 4194304 bytes from rank 1\n", "state: waits to receive from rank 1 on ");
  ck_assert_msg(strstr(text, "not_heard_of") == NULL, "%s", text);
  ck_assert_msg(strstr(text, "op_count: 1\n") != NULL, "%s", text);
  free(text);
  float *data = calloc(COUNT, sizeof *data);
  ck_assert_int_eq(ncclSend(data, COUNT, ncclFloat, 0, comms[1], NULL), ncclSuccess);
  free(data);
  ck_assert_int_eq(finish(&first), ncclSuccess);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
}
END_TEST

/* Several operations: the first one waits for the peer, the others for their turn. */
static void *call_group(void *arg)
{
  struct rank *rank = arg;
  ncclGroupStart();
  for (int i = 0; i < 40; i++) ncclAllReduce(rank->data, rank->data, 100, ncclFloat, ncclSum, rank->comm, NULL);
  rank->result = ncclGroupEnd();
  return NULL;
}

START_TEST(groups)
{
  ncclComm_t comms[2];
  struct rank first, second;
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  first = (struct rank){.comm = comms[0], .data = calloc(COUNT, sizeof(float))};
  second = (struct rank){.comm = comms[1], .data = calloc(COUNT, sizeof(float))};
  ck_assert_int_eq(pthread_create(&first.thread, NULL, call_group, &first), 0);
  char *text = wait_for(comms[0], "state: waits to receive from rank 1 on ", "operations_more: ");
  ck_assert_msg(strstr(text, "state: waits for the operation before it\n") != NULL, "%s", text);
  ck_assert_msg(strstr(text, "operations_complete: ") != NULL, "%s", text);
  free(text);
  ck_assert_int_eq(pthread_create(&second.thread, NULL, call_group, &second), 0);
  ck_assert_int_eq(finish(&second), ncclSuccess);
  ck_assert_int_eq(finish(&first), ncclSuccess);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
}
END_TEST

START_TEST(failures)
{
  ncclComm_t comms[2];
  struct rank first;
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  start(&first, comms[0], false);
  free(wait_for(comms[0], "state: waits to receive from rank 1", ""));
  ck_assert_int_eq(ncclCommAbort(comms[1]), ncclSuccess);
  ck_assert_int_ne(finish(&first), ncclSuccess);
  char *text = report(comms[0], tuttiReportText);
  ck_assert_msg(strstr(text, "state: failed\n") != NULL && strstr(text, "error_text: ") != NULL &&
                    strstr(text, "rank 1 ") != NULL,
                "%s", text);
  free(text);
  ck_assert_int_eq(ncclCommFinalize(comms[0]), ncclSuccess);
  ck_assert_int_eq(ncclCommDestroy(comms[0]), ncclSuccess);
}
END_TEST

START_TEST(memory_is_counted)
{
  ncclComm_t comms[2];
  struct rank ranks[2];
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  char *text = report(comms[0], tuttiReportText);
  ck_assert_msg(strstr(text, "connections: 0\n") != NULL && strstr(text, "memory:\n    bytes: 0\n") != NULL, "%s",
                text);
  free(text);
  for (int r = 0; r < 2; r++) start(&ranks[r], comms[r], false);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(finish(&ranks[r]), ncclSuccess);
  text = report(comms[0], tuttiReportText);
  char expected[64];
  snprintf(expected, sizeof expected, "connection_bytes: %zu\n", tt_connect_bytes(comms[0]->connect));
  ck_assert_msg(strstr(text, expected) != NULL && strstr(text, "connections: 0\n") == NULL, "%s", text);
  snprintf(expected, sizeof expected, "SIMPLE: %zu\n", comms[0]->env->buffer_bytes[TT_PROTO_SIMPLE]);
  ck_assert_msg(strstr(text, expected) != NULL, "%s", text); /* one connection to receive by */
  free(text);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
}
END_TEST

/* A proxy that is never to be had. */
static int busy_proxy;

bool __real_tt_proxy_look(struct tt_proxy *proxy, struct tt_proxy_conn *conn, struct tt_proxy_state *state);
bool __wrap_tt_proxy_look(struct tt_proxy *proxy, struct tt_proxy_conn *conn, struct tt_proxy_state *state)
{
  if ((void *)proxy != &busy_proxy) return __real_tt_proxy_look(proxy, conn, state);
  *state = (struct tt_proxy_state){0};
  return false;
}

bool __real_tt_proxy_each_figures(struct tt_proxy *proxy, tt_proxy_figures_visit *visit, void *context);
bool __wrap_tt_proxy_each_figures(struct tt_proxy *proxy, tt_proxy_figures_visit *visit, void *context)
{
  return (void *)proxy != &busy_proxy && __real_tt_proxy_each_figures(proxy, visit, context);
}

/* What is not known is not told as if it were nothing. */
START_TEST(memory_that_is_not_known)
{
  ncclComm_t comms[2];
  ck_assert_int_eq(ncclCommInitAll(comms, 2, NULL), ncclSuccess);
  struct tt_proxy *own = comms[0]->env->proxy;
  comms[0]->env->proxy = (struct tt_proxy *)&busy_proxy;
  char *json = report(comms[0], tuttiReportJson), *text = report(comms[0], tuttiReportText);
  comms[0]->env->proxy = own;
  ck_assert_msg(strstr(json, "\"network_pool_bytes\": null,\n\"network_pool_spares\": null") != NULL, "%s", json);
  ck_assert_msg(strstr(json, "\"memory\": {\n\"bytes\": null") != NULL, "%s", json);
  ck_assert_msg(strstr(text, "network_pool_bytes") == NULL && strstr(text, "scratch_bytes") != NULL, "%s", text);
  free(json);
  free(text);
  for (int r = 0; r < 2; r++) ck_assert_int_eq(ncclCommDestroy(comms[r]), ncclSuccess);
}
END_TEST

Suite *calls_suite(void)
{
  Suite *suite = suite_create("calls");
  TCase *tcase = tcase_create("report");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, arguments);
  tcase_add_test(tcase, net_stats);
  tcase_add_test(tcase, numbers);
  tcase_add_test(tcase, waiting);
  tcase_add_test(tcase, groups);
  tcase_add_test(tcase, failures);
  tcase_add_test(tcase, memory_is_counted);
  tcase_add_test(tcase, memory_that_is_not_known);
  suite_add_tcase(suite, tcase);
  return suite;
}
