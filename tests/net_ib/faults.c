/* What goes wrong in NICs and networks: an error on both sides that says where and what to check, or survived. */
#include "ib_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Statuses and the words for them; `remote`: not this side's fault. */
static const struct {
  const char *status, *words, *check;
  bool remote;
} statuses[] = {{"LOC_LEN_ERR", "local length error", "longer than the port", false},
                {"LOC_QP_OP_ERR", "local queue pair operation error", "system log", false},
                {"LOC_EEC_OP_ERR", "unknown status", "system log", false},
                {"LOC_PROT_ERR", "local protection error", "not registered any more", false},
                {"WR_FLUSH_ERR", "flushed", "first error", true},
                {"MW_BIND_ERR", "memory window bind error", "system log", false},
                {"BAD_RESP_ERR", "bad response", "firmware", true},
                {"LOC_ACCESS_ERR", "local access error", "not registered any more", false},
                {"REM_INV_REQ_ERR", "remote invalid request", "same version", true},
                {"REM_ACCESS_ERR", "remote access error", "see its log", true},
                {"REM_OP_ERR", "remote operation error", "system log", true},
                {"RETRY_EXC_ERR", "transport retry counter exceeded", "NCCL_IB_TIMEOUT", true},
                {"RNR_RETRY_EXC_ERR", "receiver not ready", "same version", true},
                {"LOC_RDD_VIOL_ERR", "local RDD violation", "system log", false},
                {"REM_INV_RD_REQ_ERR", "remote invalid RD request", "cannot take", true},
                {"REM_ABORT_ERR", "remote aborted", "system log", true},
                {"INV_EECN_ERR", "invalid end-to-end context number", "system log", false},
                {"INV_EEC_STATE_ERR", "invalid end-to-end context state", "system log", false},
                {"FATAL_ERR", "fatal error", "system log", false},
                {"RESP_TIMEOUT_ERR", "response timeout", "check its link", true},
                {"GENERAL_ERR", "general error", "system log", false}};
enum { STATUSES = sizeof statuses / sizeof statuses[0] };

/* The completion of the data fails: the first error names all that there is to name, the other side's quotes it. */
START_TEST(status_in_words)
{
  struct pair pair;
  ncclResult_t results[2];
  char action[64];
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  void *recv = post_recv(&pair, 1000, 0), *next = post_recv(&pair, 1000, 0);
  /* The clear-to-send entries are through, so the next completion is of data. */
  all_sent();
  snprintf(action, sizeof action, "status %s 1", statuses[_i].status);
  fake(action);
  void *send = post_send(&pair, 1000, 0);
  drive(send, recv, results); /* the data itself has arrived */
  ck_assert_int_eq(results[0], statuses[_i].remote ? ncclRemoteError : ncclSystemError);
  ncclResult_t of_next[2];
  drive(NULL, next, of_next);
  ck_assert_int_eq(of_next[1], ncclRemoteError);
  char line[1024];
  first_warning(line, sizeof line);
  const char *const parts[] = {statuses[_i].words, statuses[_i].check, "fake0 port 1",    "queue pair",
                               "::ffff:10.77.1.1", "the peer",         "vendor error 0x", "writing data failed"};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
    ck_assert_msg(strstr(line, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], line);
  ck_assert_msg(strstr(last_warning, statuses[_i].words) != NULL, "the other side's: %s", last_warning);
  /* It stays failed. */
  void *request = &pair, *data = pair.in;
  size_t size = 10;
  int tag = 0;
  ck_assert_int_eq(net->isend(pair.send, pair.out, 10, 0, pair.out_memory, NULL, &request), results[0]);
  ck_assert_ptr_null(request);
  ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &size, &tag, &pair.in_memory, NULL, &request), ncclRemoteError);
  ck_assert_ptr_null(request);
  pair_close(&pair);
  stop();
}
END_TEST

/* A message that takes several writes, of which the first, which tells nothing when all is well, fails: that is the
 * cause that is named, not that the others were flushed. */
START_TEST(first_of_many_writes)
{
  struct pair pair;
  ncclResult_t results[2];
  char line[1024];
  setenv("FAKE_VERBS_LIMITS", "msg_bytes=100000", 1);
  start();
  pair_open(&pair, 0, 0, 300000);
  exchange(&pair, 300000);
  void *recv = post_recv(&pair, 300000, 0);
  all_sent();
  fake("status REM_ACCESS_ERR 1");
  drive(post_send(&pair, 300000, 0), recv, results);
  ck_assert_int_eq(results[0], ncclRemoteError);
  first_warning(line, sizeof line);
  ck_assert_msg(strstr(line, "remote access error") != NULL, "%s", line);
  pair_close(&pair);
  stop();
}
END_TEST

/* What was received in a GPU's memory is there only once it is flushed: a flush that fails is an error. */
START_TEST(flush_fails)
{
  struct pair pair;
  enum { BYTES = 4096 };
  int size = BYTES;
  ncclResult_t results[2];
  void *memory, *request;
  start();
  pair_open(&pair, 0, 0, BYTES);
  void *data = register_gpu(&pair, BYTES, &memory);
  fake("status LOC_PROT_ERR 1");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  drive(NULL, request, results);
  ck_assert_int_eq(results[1], ncclSystemError);
  ck_assert_msg(strstr(last_warning, "flushing what was received failed: local protection error") != NULL, "%s",
                last_warning);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

/* A message that is here is delivered though it is found behind the error that ends its connection. */
START_TEST(message_behind_an_error)
{
  struct pair pair;
  enum { BYTES = 4096 };
  int size = BYTES;
  ncclResult_t results[2];
  void *memory, *request;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  start();
  pair_open(&pair, 0, 1, BYTES);
  void *data = register_gpu(&pair, BYTES, &memory);
  exchange(&pair, BYTES);
  void *recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake("status LOC_PROT_ERR 1");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  answered(1);
  finish(post_send(&pair, BYTES, 0));
  finish(recv);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  drive(NULL, request, results);
  ck_assert_int_eq(results[1], ncclSystemError);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

/* The sender fails, says why, and leaves; that its NIC does not answer any more is no cause. */
START_TEST(receiver_names_the_cause)
{
  struct pair pair;
  ncclResult_t results[2];
  void *request;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  pair_open(&pair, 0, 1, 1000);
  post_recv(&pair, 1000, 0);
  all_sent();
  fake("fail post_send 1 22");
  ck_assert_int_eq(net->isend(pair.send, pair.out, 1000, 0, pair.out_memory, NULL, &request), ncclSystemError);
  pair_close_send(&pair);
  void *recv = post_recv(&pair, 1000, 0);
  answered(1);
  drive(NULL, recv, results);
  ck_assert_int_eq(results[1], ncclRemoteError);
  ck_assert_msg(strstr(last_warning, "failed: net ib: fake0 port 1 takes no more requests"), "%s", last_warning);
  pair_close_recv(&pair);
  stop();
}
END_TEST

/* An event of a queue, or of the whole NIC, reaches comms that wait. */
static void expect_event(const char *action, const char *words)
{
  struct pair pair;
  ncclResult_t results[2];
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  void *recv = post_recv(&pair, 1000, 0);
  fake(action);
  drive(NULL, recv, results);
  ck_assert_msg(results[1] == ncclSystemError || results[1] == ncclRemoteError, "result %d", results[1]);
  wait_logged(words);
  ck_assert_msg(strstr(last_warning, "fake0") != NULL, "%s", last_warning);
  pair_close(&pair);
  stop();
}

START_TEST(event_of_a_queue_pair)
{
  expect_event("event fake0 1", "work queue catastrophic error");
}
END_TEST

START_TEST(event_of_a_completion_queue)
{
  expect_event("event fake0 0", "CQ error");
}
END_TEST

START_TEST(event_of_the_nic)
{
  expect_event("event fake0 8", "local catastrophic error");
}
END_TEST

START_TEST(removed)
{
  expect_event("remove fake0", "fake0 reports a fatal error");
}
END_TEST

/* The comm has not heard of the NIC's end when memory that it lacks is sent or received. */
START_TEST(registered_after_removal)
{
  struct pair pair;
  void *data, *request = &pair;
  size_t bytes = 1000;
  int tag = 0;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  start();
  pair_open(&pair, _i, !_i, bytes);
  exchange(&pair, bytes);
  if (_i == 0) post_recv(&pair, bytes, 0);
  all_sent();
  fake("remove fake0");
  wait_logged("fake0 reports a fatal error");
  void *comm = _i ? pair.recv : pair.send, **memory = _i ? &pair.in_memory : &pair.out_memory;
  data = _i ? pair.in : pair.out;
  ck_assert_int_eq(net->deregMr(comm, *memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(comm, data, bytes, NCCL_PTR_HOST, memory), ncclSuccess);
  ncclResult_t result = _i ? net->irecv(comm, 1, &data, &bytes, &tag, memory, NULL, &request)
                           : net->isend(comm, data, bytes, 0, *memory, NULL, &request);
  ck_assert_int_eq(result, ncclSystemError);
  ck_assert_ptr_null(request);
  ck_assert_msg(strstr(last_warning, "fake0 port 1 failed") != NULL, "%s", last_warning);
  pair_close(&pair);
  stop();
}
END_TEST

START_TEST(events_that_are_nothing)
{
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 1000);
  static const int harmless[] = {4, 11, 12, 13, 17, 18};
  for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
    char action[32];
    snprintf(action, sizeof action, "event fake0 %d", harmless[i]);
    fake(action);
    exchange(&pair, 1000);
  }
  pair_close(&pair);
  stop();
}
END_TEST

START_TEST(events_can_be_for_the_log_only)
{
  struct pair pair;
  setenv("NCCL_IB_RETURN_ASYNC_EVENTS", "0", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  fake("event fake0 1");
  for (uint64_t end = now_ms() + LONG_MS; !logged("catastrophic") && now_ms() < end;) exchange(&pair, 10);
  ck_assert_ptr_nonnull(logged("catastrophic"));
  exchange(&pair, 1000);
  pair_close(&pair);
  stop();
}
END_TEST

/* The answer to a message is lost, and its receiver closes: the message has arrived, and one that has not is an error,
 * with a receive for it or without. */
START_TEST(receiver_closes)
{
  struct pair pair;
  ncclResult_t results[2];
  void *next[2];
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  void *recv = post_recv(&pair, 1000, 0);
  post_recv(&pair, 1000, 0);
  all_sent();
  fake("status RETRY_EXC_ERR 1");
  void *send = post_send(&pair, 1000, 0);
  finish(recv);
  pair_close_recv(&pair);
  for (int i = 0; i < 2; i++) next[i] = post_send(&pair, 1000, 0);
  finish(send);
  for (int i = 0; i < 2; i++) {
    drive(next[i], NULL, results);
    ck_assert_int_eq(results[0], ncclRemoteError);
  }
  ck_assert_msg(strstr(last_warning, "lost the peer") != NULL, "%s", last_warning);
  pair_close_send(&pair);
  stop();
}
END_TEST

/* 4096 ns * 2^16 * 8 are 2.1 s, of which the clock lets 2 pass. */
START_TEST(port_comes_back)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "16", 1);
  start();
  pair_open(&pair, 0, 0, 100000);
  exchange(&pair, 1000);
  all_sent();
  clock_stop();
  set_port(0, "down");
  void *recv = post_recv(&pair, 100000, 0), *send = post_send(&pair, 100000, 0);
  for (int i = 0; i < 20; i++) {
    int done = 0;
    clock_pass(100);
    ck_assert_int_eq(net->test(send, &done, NULL), ncclSuccess);
    ck_assert_int_eq(done, 0);
    ck_assert_int_eq(net->test(recv, &done, NULL), ncclSuccess);
    ck_assert_int_eq(done, 0);
  }
  set_port(0, "up");
  drive(send, recv, results);
  ck_assert_int_eq(results[0], ncclSuccess);
  ck_assert_int_eq(results[1], ncclSuccess);
  ck_assert_int_eq(memcmp(pair.in, pair.out, 100000), 0);
  expect_logged("fake0 port 1 is up again after 2000 ms");
  pair_close(&pair);
  stop();
}
END_TEST

/* 4096 ns * 2^12 * 2 are 34 ms. */
START_TEST(port_stays_down)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  fake(_i ? "mute fake0" : "down fake0");
  void *recv = post_recv(&pair, 1000, 0), *send = post_send(&pair, 1000, 0);
  drive(send, recv, results);
  ck_assert_msg(results[0] == ncclRemoteError || results[0] == ncclSystemError, "result %d", results[0]);
  ck_assert_msg(results[1] == ncclRemoteError || results[1] == ncclSystemError, "result %d", results[1]);
  ck_assert_msg(logged(_i ? "transport retry counter exceeded" : "fake0 port 1 has been down") ||
                    logged("transport retry counter exceeded"),
                "%s", log_text);
  pair_close(&pair);
  stop();
}
END_TEST

/* Nothing is sent, so no NIC tries anything: the plugin itself looks. */
START_TEST(port_stays_down_meanwhile)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  void *recv = post_recv(&pair, 1000, 0);
  all_sent();
  fake("down fake0");
  drive(NULL, recv, results);
  ck_assert_int_eq(results[1], ncclSystemError);
  ck_assert_msg(logged("fake0 port 1 has been down"), "%s", log_text);
  pair_close(&pair);
  stop();
}
END_TEST

/* Each call that takes something of the NIC may fail; then there is an error with the call's reason, and nothing is
 * left. The n-th of each, counted from here. */
START_TEST(no_resources)
{
  static const struct {
    const char *call, *words;
    int calls; /* of these while a pair is made */
  } list[] = {{"create_cq", "completion queue", 2},
              {"create_qp", "queue pair", 4},
              {"modify_qp", "queue pair", 12},
              {"reg_mr", "register", 2},
              {"post_recv", "receives", 3}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    for (int n = 1; n <= list[i].calls; n++) {
      char action[64], handle[NCCL_NET_HANDLE_MAXSIZE];
      void *listener, *send = NULL, *recv = NULL;
      ncclResult_t result = ncclSuccess;
      setenv("NCCL_IB_QPS_PER_CONNECTION", "2", 1);
      start();
      log_text[0] = 0;
      ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
      snprintf(action, sizeof action, "fail %s %d 12", list[i].call, n);
      fake(action);
      for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && (!send || !recv) && now_ms() < end;) {
        if (!send) result = net->connect(context, 0, handle, &send, NULL);
        if (result == ncclSuccess && !recv) result = net->accept(listener, &recv, NULL);
      }
      /* ENOMEM */
      ck_assert_msg(result == ncclSystemError, "%s %d: result %d: %s", list[i].call, n, result, log_text);
      ck_assert_msg(logged("Cannot allocate memory") && logged(list[i].words), "%s %d: %s", list[i].call, n, log_text);
      if (send) net->closeSend(send);
      if (recv) net->closeRecv(recv);
      net->closeListen(listener);
      stop();
    }
  }
}
END_TEST

/* The connecting side hears why there is no connection, whatever failed at the other. */
START_TEST(refused)
{
  static const char *const calls[] = {"create_cq 2", "create_qp 2", "modify_qp 3", "post_recv 1", "create_qp 3"};
  char action[64], handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send = NULL, *recv = NULL;
  ncclResult_t result = ncclSuccess;
  start();
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
  snprintf(action, sizeof action, "fail %s 12", calls[_i]); /* ENOMEM */
  fake(action);
  for (uint64_t end = now_ms() + LONG_MS; result == ncclSuccess && now_ms() < end;) {
    result = net->connect(context, 0, handle, &send, NULL);
    net->accept(listener, &recv, NULL);
  }
  ck_assert_int_eq(result, ncclRemoteError);
  ck_assert_msg(strstr(last_warning, "cannot make the connection: net ib: ") &&
                    strstr(last_warning, "Cannot allocate memory"),
                "%s", last_warning);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  stop();
}
END_TEST

START_TEST(no_device_at_all)
{
  static const struct {
    const char *call;
    int error;
  } list[] = {{"get_device_list", 38}, {"open_device", 13}, {"query_device", 5}, {"query_port", 5}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    char script[64];
    int count = -1;
    snprintf(script, sizeof script, "fail %s 1 %d", list[i].call, list[i].error);
    /* The library is opened by the plugin, which is asked afterwards. */
    if (i == 0) setenv("FAKE_VERBS_DEVICES", "fake0", 1);
    fake(script);
    start_without_devices();
    ck_assert_int_eq(net->devices(&count), ncclSuccess);
    ck_assert_int_eq(count, 0);
    stop();
  }
}
END_TEST

/* A full registration table is an error that tells so, and the comm goes on. */
START_TEST(registration_fails)
{
  struct pair pair;
  void *memory = &pair;
  char *data = malloc(100000);
  start();
  pair_open(&pair, 0, 0, 1000);
  fake("fail reg_mr 1 12");
  ck_assert_int_eq(net->regMr(pair.send, data, 100000, NCCL_PTR_HOST, &memory), ncclSystemError);
  ck_assert_ptr_null(memory);
  ck_assert_msg(strstr(last_warning, "ulimit -l"), "%s", last_warning);
  exchange(&pair, 1000);
  free(data);
  pair_close(&pair);
  stop();
}
END_TEST

/* The receiver frees memory that is written to: its NIC refuses, and both sides say so. */
START_TEST(memory_is_gone)
{
  struct pair pair;
  ncclResult_t results[2];
  void *data, *memory, *request = NULL;
  size_t bytes = 50000;
  int tag = 0;
  ck_assert_int_eq(posix_memalign(&data, 4096, 65536), 0);
  start();
  pair_open(&pair, 0, 0, 50000);
  ck_assert_int_eq(net->regMr(pair.recv, data, 50000, NCCL_PTR_HOST, &memory), ncclSuccess);
  ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &memory, NULL, &request), ncclSuccess);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  drive(post_send(&pair, 50000, 0), request, results);
  ck_assert_msg(results[0] != ncclSuccess && results[1] != ncclSuccess, "results %d %d", results[0], results[1]);
  wait_logged("access");
  pair_close(&pair);
  free(data);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("faults");
  tcase_add_loop_test(tcase, status_in_words, 0, STATUSES);
  tcase_add_test(tcase, first_of_many_writes);
  tcase_add_test(tcase, flush_fails);
  tcase_add_test(tcase, message_behind_an_error);
  tcase_add_test(tcase, receiver_names_the_cause);
  tcase_add_test(tcase, event_of_a_queue_pair);
  tcase_add_test(tcase, event_of_a_completion_queue);
  tcase_add_test(tcase, event_of_the_nic);
  tcase_add_test(tcase, removed);
  tcase_add_loop_test(tcase, registered_after_removal, 0, 2);
  tcase_add_test(tcase, events_that_are_nothing);
  tcase_add_test(tcase, events_can_be_for_the_log_only);
  tcase_add_test(tcase, receiver_closes);
  tcase_add_test(tcase, port_comes_back);
  tcase_add_loop_test(tcase, port_stays_down, 0, 2);
  tcase_add_test(tcase, port_stays_down_meanwhile);
  tcase_add_test(tcase, no_resources);
  tcase_add_loop_test(tcase, refused, 0, 5);
  tcase_add_test(tcase, no_device_at_all);
  tcase_add_test(tcase, registration_fails);
  tcase_add_test(tcase, memory_is_gone);
  return run_ib_suite(argc, argv, tcase);
}
