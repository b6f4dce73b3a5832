/* Two ports that work as one: when one fails, in whatever way and moment, every message arrives once, whole and in
 * order. */
#include "ib_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MESSAGES = 100, WINDOW = 16, BYTES = 200000 };

static size_t size_of(int message)
{
  static const size_t sizes[] = {BYTES, 1, 5000, 8193, 0, 70000, 64, 150001};
  return sizes[message % 8];
}

/* Each message has its own byte, and its number in front. */
static void fill(char *data, int message)
{
  memset(data, message + 1, size_of(message));
  if (size_of(message) >= sizeof message) memcpy(data, &message, sizeof message);
}

/* Messages of all sizes with many under way; `action` in the middle. Buffers are spoiled as soon as they are free
 * again, so that a second write would show. */
static void stream(struct pair *pair, const char *action, int when)
{
  void *sends[WINDOW] = {NULL}, *recvs[WINDOW] = {NULL};
  int sent[WINDOW], received[WINDOW], next_send = 0, next_recv = 0, done = 0;
  char *spare = malloc(BYTES);
  uint64_t end = now_ms() + LONG_MS;
  while (done < MESSAGES) {
    for (int i = 0; i < WINDOW; i++) {
      int ready = 0, size = -1, tag = 0;
      size_t room = BYTES;
      char *out = pair->out + (size_t)i * BYTES, *in = pair->in + (size_t)i * BYTES;
      void *data = in;
      if (sends[i]) {
        ncclResult_t result = net->test(sends[i], &ready, &size);
        ck_assert_msg(result == ncclSuccess, "send %d: %s", sent[i], log_text);
        if (ready) sends[i] = NULL;
      }
      if (!sends[i] && next_send < MESSAGES) {
        fill(out, next_send);
        ck_assert_int_eq(net->isend(pair->send, out, size_of(next_send), 0, pair->out_memory, NULL, &sends[i]),
                         ncclSuccess);
        if (sends[i]) sent[i] = next_send++;
        if (next_send == when && sends[i]) fake(action);
      }
      ready = 0;
      if (recvs[i]) {
        ncclResult_t result = net->test(recvs[i], &ready, &size);
        ck_assert_msg(result == ncclSuccess, "receive %d: %s", received[i], log_text);
      }
      if (ready) {
        recvs[i] = NULL;
        ck_assert_int_eq(size, (int)size_of(received[i]));
        fill(spare, received[i]);
        ck_assert_msg(memcmp(in, spare, size_of(received[i])) == 0, "message %d is wrong", received[i]);
        memset(in, 0x5a, BYTES);
        done++;
      }
      if (!recvs[i] && next_recv < MESSAGES) {
        memset(spare, 0x5a, BYTES);
        ck_assert_msg(next_recv < WINDOW || memcmp(in, spare, BYTES) == 0,
                      "a buffer was written after its receive was done");
        ck_assert_int_eq(net->irecv(pair->recv, 1, &data, &room, &tag, &pair->in_memory, NULL, &recvs[i]), ncclSuccess);
        if (recvs[i]) received[i] = next_recv++;
      }
    }
    ck_assert_msg(now_ms() < end, "%d of %d messages: %s", done, MESSAGES, log_text);
  }
  for (int i = 0; i < WINDOW; i++)
    for (int ready = 0; sends[i] && !ready;) ck_assert_int_eq(net->test(sends[i], &ready, NULL), ncclSuccess);
  free(spare);
}

static int open_fused(struct pair *pair)
{
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  int index = fuse(0, 1);
  pair_open(pair, index, index, (size_t)WINDOW * BYTES);
  return index;
}

/* Two ports here and two others there, so that what happens to one has to do with one side. */
static void open_apart(struct pair *pair, size_t bytes)
{
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(pair, from, to, bytes);
}

static const char *const actions[] = {"down fake0",         "down fake1",
                                      "mute fake0",         "mute fake1",
                                      "remove fake0",       "status RETRY_EXC_ERR 1",
                                      "status FATAL_ERR 2", "status WR_FLUSH_ERR 5",
                                      "fail post_send 1 5", "fail post_recv 1 5"};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

START_TEST(others_take_over)
{
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", _i % 2 ? "2" : "1", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", _i % 2 ? "1" : "0", 1);
  open_fused(&pair);
  if (_i % 2) fake("reorder");
  stream(&pair, actions[_i / 2], 3 + 4 * _i);
  ck_assert_msg(logged("is not used any more") && logged("other ports go on"), "%s", log_text);
  /* And it goes on. */
  exchange(&pair, BYTES);
  int clears = clears_of(&pair, 8, MESSAGES, 1);
  ck_assert_msg(clears <= MESSAGES / 3, "%d clear-to-sends", clears);
  pair_close(&pair);
  stop();
}
END_TEST

/* What has arrived when a way is stopped may show only later, and must not be sent again: the receiver waits for it
 * before it says what it has. The sender's call fails at once, so that the receiver hears of it before. */
START_TEST(seen_late)
{
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", "2", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  open_fused(&pair);
  fake("late 20");
  stream(&pair, "fail post_send 1 5", 20 + _i);
  ck_assert_msg(logged("is not used any more") && logged("other ports go on"), "%s", log_text);
  pair_close(&pair);
  stop();
}
END_TEST

/* The receiver's NIC is removed when more has come over it than one call looks at: what the others find later has
 * arrived as well, and its buffers are the user's then. */
START_TEST(removed_with_much_unseen)
{
  enum { MANY = 32, EACH = 16384 };
  static char spoiled[MANY * EACH];
  struct pair pair;
  void *sends[MANY], *recvs[MANY];
  size_t bytes = EACH;
  int tag = 0;
  open_apart(&pair, sizeof spoiled);
  for (int i = 0; i < MANY; i++) {
    void *data = pair.in + i * EACH;
    ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &pair.in_memory, NULL, &recvs[i]), ncclSuccess);
    ck_assert_ptr_nonnull(recvs[i]);
  }
  all_sent();
  memset(pair.out, 7, sizeof spoiled);
  for (int i = 0; i < MANY; i++) {
    ck_assert_int_eq(net->isend(pair.send, pair.out + i * EACH, EACH, tag, pair.out_memory, NULL, &sends[i]),
                     ncclSuccess);
    ck_assert_ptr_nonnull(sends[i]);
  }
  all_sent();
  fake("remove fake2");
  wait_logged("fake2 reports a fatal error");
  drive_all(recvs, MANY);
  ck_assert_int_eq(memcmp(pair.in, pair.out, sizeof spoiled), 0);
  memset(spoiled, 0x5a, sizeof spoiled);
  memset(pair.in, 0x5a, sizeof spoiled);
  drive_all(sends, MANY);
  ck_assert_msg(memcmp(pair.in, spoiled, sizeof spoiled) == 0, "a buffer was written after its receive was done");
  exchange(&pair, EACH);
  pair_close(&pair);
  stop();
}
END_TEST

/* What a NIC did before it failed shows late, and the thread that looks for it is held up meanwhile: it is there, and
 * is not sent again. */
START_TEST(held_up_when_a_nic_fails)
{
  struct pair pair;
  ncclResult_t results[2];
  clock_stop();
  open_apart(&pair, BYTES);
  void *recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake("late 1000");
  fake("status RETRY_EXC_ERR 1");
  uint64_t stored = fake_count("stored");
  void *send = post_send(&pair, 1000, 0);
  while (fake_count("stored") == stored) usleep(1000);
  fake("remove fake2");
  wait_logged("fake2 reports a fatal error");
  clock_step(150);
  drive(NULL, recv, results);
  ck_assert_msg(results[1] == ncclSuccess, "result %d: %s", results[1], log_text);
  clock_step(0);
  fake("late 0");
  drive(send, NULL, results);
  ck_assert_msg(results[0] == ncclSuccess, "result %d: %s", results[0], log_text);
  ck_assert_uint_eq(fake_count("write_imm"), 1);
  exchange(&pair, BYTES);
  pair_close(&pair);
  stop();
}
END_TEST

/* Only the answer to the last message is lost, or to one of its pieces, and its receiver, who has it, calls nothing any
 * more: the sender finds out by itself, though it may have to look twice. */
START_TEST(receiver_calls_no_more)
{
  struct pair pair;
  bool split = _i & 1, early = _i & 2;
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", split ? "1" : "0", 1);
  open_fused(&pair);
  exchange(&pair, BYTES);
  uint64_t answered = fake_count("sent"), reads = fake_count("read");
  void *recv = post_recv(&pair, BYTES, 0);
  while (fake_count("sent") == answered) usleep(1000);
  fake("status RETRY_EXC_ERR 1");
  void *send = post_send(&pair, BYTES, 0);
  for (int done = 0; early && fake_count("read") < reads + 2;) {
    if (net->test(send, &done, NULL) != ncclSuccess || done) ck_abort_msg("done %d: %s", done, log_text);
  }
  finish(recv);
  finish(send);
  ck_assert_ptr_nonnull(logged("is not used any more"));
  /* What the receiver says once it is called again is news to nobody. */
  exchange(&pair, BYTES);
  pair_close(&pair);
  stop();
}
END_TEST

/* As before, or no way's answer comes, and the receiver closes: its last word counts. */
START_TEST(receiver_closes)
{
  struct pair pair;
  open_fused(&pair);
  exchange(&pair, BYTES);
  all_sent();
  void *recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake(_i ? "status RETRY_EXC_ERR 2" : "status RETRY_EXC_ERR 1");
  void *send = post_send(&pair, BYTES, 0);
  finish(recv);
  pair_close_recv(&pair);
  finish(send);
  pair_close_send(&pair);
  stop();
}
END_TEST

/* Memory that is registered when a NIC has failed goes the other way, though the comm has not heard of it yet: at the
 * sender, whose NIC is gone, and at the receiver, whose NIC would refuse what is not registered with it. */
START_TEST(registered_after_a_failure)
{
  struct pair pair;
  ncclResult_t results[2];
  void *recv = NULL;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  if (_i == 0) recv = post_recv(&pair, BYTES, 0);
  all_sent();
  fake(_i ? "event fake2 8" : "remove fake0");
  wait_logged("reports a fatal error");
  void *comm = _i ? pair.recv : pair.send, **memory = _i ? &pair.in_memory : &pair.out_memory;
  ck_assert_int_eq(net->deregMr(comm, *memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(comm, _i ? pair.in : pair.out, BYTES, NCCL_PTR_HOST, memory), ncclSuccess);
  if (_i == 1) recv = post_recv(&pair, BYTES, 0);
  if (_i == 1) all_sent();
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* A NIC is gone, on one side or on both, when a connection is made: it goes over those that are left, whether the
 * events have told of it or not. Without any there is none. */
START_TEST(connects_without_a_nic)
{
  static const char *const removed[][4] = {{"remove fake0", NULL, "remove fake1", "device fake0+fake1"},
                                           {"remove fake3", NULL, "remove fake2", "device fake2+fake3"},
                                           {"remove fake1", "remove fake2", "remove fake3", "device fake2+fake3"}};
  const char *const *action = removed[_i / 2];
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send, *recv;
  struct pair pair;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  if (_i % 2) setenv("NCCL_IB_RETURN_ASYNC_EVENTS", "0", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  for (int i = 0; i < 2; i++)
    if (action[i]) fake(action[i]);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  expect_logged("is made without fake");
  stream(&pair, "reorder", MESSAGES / 2);
  pair_close(&pair);
  fake(action[2]);
  ck_assert_int_eq(net->listen(context, to, handle, &listener), ncclSuccess);
  ck_assert_int_ne(net_meet(from, handle, listener, &send, &recv), ncclSuccess);
  ck_assert_msg(strstr(last_warning, action[3]) && strstr(last_warning, "makes no connection"), "%s", last_warning);
  if (send) ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  stop();
}
END_TEST

/* A NIC is removed while a connection is made, before any call that asks something of one: the others make it. Some are
 * made in each process, over four NICs of their own. */
static const struct {
  const char *call;
  int calls; /* of these while a connection is made */
} steps[] = {{"query_port", 4}, {"create_cq", 4}, {"reg_mr", 4}, {"create_qp", 6}, {"modify_qp", 18}, {"post_recv", 4}};
enum { STEPS = 4 + 4 + 4 + 6 + 18 + 4, RECEIVES = 2 * 32 * 2 / 4 }; /* of post_recv one in so many */
enum { TOGETHER = 4 };

/* A connection is made without the NIC, or one of the sides does not use it any more. */
static bool is_done_without(int nic)
{
  static const char *const lines[] = {"is made without fake%d port 1:", "net ib: fake%d port 1 to fake",
                                      "port 1 to fake%d port 1 of the peer"};
  char line[64];
  bool found = false;
  for (int i = 0; i < 3; i++) {
    snprintf(line, sizeof line, lines[i], nic);
    found |= logged(line) != NULL;
  }
  return found;
}

static void remove_while_it_connects(int first, bool sender, int n)
{
  struct pair pair;
  char action[64];
  int step = 0;
  for (; n >= steps[step].calls; step++) n -= steps[step].calls;
  n = strcmp(steps[step].call, "post_recv") == 0 ? n * RECEIVES : n;
  int from = fuse(first, first + 1), to = fuse(first + 2, first + 3);
  int nic = first + (sender ? n % 2 : 2 + n % 2);
  snprintf(action, sizeof action, "before %s %d remove fake%d", steps[step].call, n + 1, nic);
  fake(action);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  stream(&pair, "reorder", MESSAGES / 2);
  ck_assert_msg(is_done_without(nic), "%s", log_text);
  pair_close(&pair);
}

START_TEST(removed_while_it_connects)
{
  setenv("FAKE_VERBS_DEVICES",
         "fake0,fake1,fake2,fake3,fake4,fake5,fake6,fake7,fake8,fake9,fake10,fake11,fake12,fake13,fake14,fake15", 1);
  start();
  for (int i = 0; i < TOGETHER; i++) remove_while_it_connects(4 * i, _i % 2 == 0, _i / 2 * TOGETHER + i);
  stop();
}
END_TEST

/* So it is where a port loses its link just when a queue pair is to find its way. */
START_TEST(no_link_while_it_connects)
{
  static const struct {
    int device, call;
  } lost[] = {{2, 5}, {3, 7}, {2, 10}, {3, 13}, {0, 15}, {1, 17}};
  struct pair pair;
  char action[64];
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  snprintf(action, sizeof action, "before modify_qp %d down fake%d", lost[_i].call, lost[_i].device);
  fake(action);
  snprintf(action, sizeof action, "fail modify_qp %d 101", lost[_i].call); /* ENETUNREACH */
  fake(action);
  pair_open(&pair, from, to, (size_t)WINDOW * BYTES);
  stream(&pair, "reorder", MESSAGES / 2);
  expect_logged("it was lost while the connection was made");
  pair_close(&pair);
  stop();
}
END_TEST

/* Who wants no other port to take over has no connection without one. */
START_TEST(connects_with_all_or_not)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener, *send, *recv;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2", 1);
  setenv("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0", 1);
  start();
  int from = fuse(0, 1);
  fake("remove fake1");
  ck_assert_int_eq(net->listen(context, 2, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(from, handle, listener, &send, &recv), ncclSystemError);
  ck_assert_msg(strstr(last_warning, "on fake1 of device fake0+fake1") != NULL, "%s", last_warning);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  stop();
}
END_TEST

/* No other port can flush what the one has written whose flush fails, be it the only one here or not: an error. */
START_TEST(flush_fails)
{
  enum { GPU = 4096 };
  struct pair pair;
  ncclResult_t results[2];
  void *memory, *request;
  int size = GPU;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = _i ? fuse(2, 3) : 2;
  pair_open(&pair, from, to, BYTES);
  exchange(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  all_sent();
  fake("status REM_OP_ERR 1");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  drive(NULL, request, results);
  ck_assert_int_eq(results[1], ncclRemoteError);
  ck_assert_msg(strstr(last_warning, "flushing what was received failed: remote operation error") != NULL, "%s",
                last_warning);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* A NIC that is removed takes its flushes along, those under way and the next, which finds out. Then there are more
 * than a queue has room for, through the other NIC. */
START_TEST(flush_without_a_nic)
{
  enum { GPU = 4096, MANY = 200 };
  struct pair pair;
  void *memory, *requests[MANY];
  int size = GPU, under_way = _i & 1 ? 3 : 0;
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  all_sent();
  fake("late 5");
  for (int i = 0; i < MANY; i++) {
    if (i == under_way) fake(_i & 2 ? "remove fake3" : "remove fake2");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &requests[i]), ncclSuccess);
    ck_assert_ptr_nonnull(requests[i]);
  }
  drive_all(requests, MANY);
  ck_assert_ptr_nonnull(logged("other ports go on"));
  exchange(&pair, BYTES);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* A receiver's rail is given up, for want of the peer's link or its own, and its NIC, which is well, has yet to flush
 * what had come there before: that is not done before the NIC has, over its other port, or when the link is back; or it
 * fails. */
START_TEST(flush_without_a_link)
{
  enum { GPU = 4096, STAYS_DOWN = 0, COMES_BACK, OTHER_PORT, OF_THE_PEER };
  struct pair pair;
  ncclResult_t results[2];
  void *memory, *request;
  int size = GPU, done = 0;
  setenv("FAKE_VERBS_DEVICES", _i == OTHER_PORT ? "fake0,fake1,fake2*2" : "fake0,fake1,fake2,fake3", 1);
  setenv("NCCL_IB_TIMEOUT", _i == COMES_BACK ? "20" : "12", 1); /* 34 s; 34 ms */
  setenv("NCCL_IB_RETRY_CNT", _i == COMES_BACK ? "7" : "1", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(&pair, from, to, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  set_port(_i == OF_THE_PEER ? 0 : 2, "down");
  for (uint64_t end = now_ms() + LONG_MS; !logged("fake2 port 1 to fake0"); exchange(&pair, BYTES))
    if (now_ms() >= end) ck_abort_msg("it is not given up: %s", log_text);
  uint64_t reads = fake_count("read");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  switch (_i) {
  case STAYS_DOWN:
    drive(NULL, request, results);
    ck_assert_int_eq(results[1], ncclRemoteError);
    ck_assert_msg(strstr(last_warning, "flushing what was received failed: transport retry counter exceeded") &&
                      strstr(last_warning, "fake2 port 1") && strstr(last_warning, "has no link"),
                  "%s", last_warning);
    break;
  case COMES_BACK:
    clock_stop();
    for (int ms = 0; ms < 50; ms++) {
      clock_pass(1);
      if (net->test(request, &done, NULL) != ncclSuccess || done) ck_abort_msg("done %d: %s", done, log_text);
    }
    set_port(2, "up");
    finish(request);
    /* Nothing has come there since. */
    reads = fake_count("read");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    ck_assert_int_eq(fake_count("read") - reads, 1);
    finish(request);
    break;
  default:
    ck_assert_int_eq(fake_count("read") - reads, _i == OTHER_PORT ? 1 : 2);
    finish(request);
  }
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* All that came over a port is flushed when it loses its link: a read there that fails means no more than that. */
START_TEST(flush_of_nothing_without_a_link)
{
  enum { GPU = 4096 };
  struct pair pair;
  void *memory, *request;
  int size = GPU;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  for (int i = 0; i < 2; i++) {
    if (i == 1) set_port(2, "down");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    finish(request);
  }
  expect_logged("fake2 port 1 to fake0");
  answered(2);
  exchange(&pair, BYTES);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

/* The ports of a NIC flush for each other, also where a read fails while they have links. */
START_TEST(flush_over_the_other_port)
{
  enum { GPU = 4096 };
  struct pair pair;
  void *memory, *request;
  int size = GPU;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2*2", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(&pair, from, to, BYTES);
  void *data = register_gpu(&pair, GPU, &memory);
  exchange(&pair, BYTES);
  all_sent();
  fake("status REM_OP_ERR 1");
  for (int reads = 2; reads >= 1; reads--) {
    uint64_t before = fake_count("read");
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
    ck_assert_int_eq(fake_count("read") - before, reads);
    finish(request);
    exchange(&pair, BYTES);
  }
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, GPU);
  stop();
}
END_TEST

START_TEST(not_wanted)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0", 1);
  open_fused(&pair);
  exchange(&pair, BYTES);
  fake("mute fake0");
  void *recv = post_recv(&pair, BYTES, 0);
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] != ncclSuccess && results[1] != ncclSuccess, "results %d %d", results[0], results[1]);
  ck_assert_ptr_null(logged("other ports go on"));
  pair_close(&pair);
  stop();
}
END_TEST

static void expect_under_way(void *const requests[2])
{
  for (int i = 0; i < 2; i++) {
    int done = 0;
    ncclResult_t result = requests[i] ? net->test(requests[i], &done, NULL) : ncclSuccess;
    if (result != ncclSuccess || done) ck_abort_msg("%d: result %d, done %d: %s", i, result, done, log_text);
  }
}

/* Time in which nothing is done, and nothing is given up. */
static void wait_in_vain(int ms, void *const requests[2])
{
  enum { STEP_MS = 10 };
  for (; ms > 0; ms -= STEP_MS) {
    clock_pass(STEP_MS);
    expect_under_way(requests);
    if (logged("is not used any more")) ck_abort_msg("%d ms before the time: %s", ms, log_text);
  }
}

enum { GRACE_MS = 500 }; /* for which a port may be without a link where others have theirs */

/* No port has a link for longer than one may be without, and the two sides lose and get theirs in another order. */
START_TEST(all_ports_come_back)
{
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "20", 1); /* 34 s */
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  all_sent();
  clock_stop();
  set_port(0, "down");
  set_port(3, "down");
  clock_pass(GRACE_MS / 5);
  set_port(1, "down");
  set_port(2, "down");
  void *requests[2] = {post_send(&pair, BYTES, 0), post_recv(&pair, BYTES, 0)};
  wait_in_vain(2 * GRACE_MS, requests);
  set_port(0, "up");
  set_port(3, "up");
  wait_in_vain(GRACE_MS / 2, requests);
  set_port(1, "up");
  set_port(2, "up");
  drive(requests[0], requests[1], results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  ck_assert_ptr_null(logged("is not used any more"));
  pair_close(&pair);
  stop();
}
END_TEST

/* A port stays without a link, and the other one has its own again, if not for long, when the first is given up. */
START_TEST(one_port_comes_back)
{
  enum { FIRST_MS = 150, SECOND_MS = 100, PATIENCE_MS = 536 };
  struct pair pair;
  ncclResult_t results[2];
  setenv("NCCL_IB_TIMEOUT", "14", 1); /* 536.9 ms */
  setenv("NCCL_IB_RETRY_CNT", "7", 1);
  open_apart(&pair, BYTES);
  exchange(&pair, BYTES);
  void *requests[2] = {NULL, post_recv(&pair, BYTES, 0)};
  all_sent();
  clock_stop();
  set_port(3, "down");
  clock_pass(FIRST_MS);
  set_port(2, "down");
  clock_pass(SECOND_MS);
  set_port(2, "up");
  wait_in_vain(PATIENCE_MS / 10 * 10 - FIRST_MS - SECOND_MS, requests);
  clock_pass(20);
  expect_under_way(requests);
  expect_logged("is not used any more");
  drive(post_send(&pair, BYTES, 0), requests[1], results);
  ck_assert_msg(results[0] + results[1] == 0, "results %d %d: %s", results[0], results[1], log_text);
  ck_assert_int_eq(memcmp(pair.in, pair.out, BYTES), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* The last port's failure is the connection's. */
START_TEST(none_left)
{
  struct pair pair;
  ncclResult_t results[2];
  open_fused(&pair);
  stream(&pair, "mute fake0", 50);
  fake("mute fake1");
  void *recv = post_recv(&pair, BYTES, 0);
  drive(post_send(&pair, BYTES, 0), recv, results);
  ck_assert_msg(results[0] != ncclSuccess && results[1] != ncclSuccess, "results %d %d", results[0], results[1]);
  ck_assert_ptr_nonnull(logged("transport retry counter exceeded"));
  pair_close(&pair);
  stop();
}
END_TEST

/* Clear-to-sends stay on a way, which the receiver gives up, so that it tells of its receives another way. The first
 * come at last when one of those receives is done, and another has its slot. */
START_TEST(entries_come_late)
{
  enum { ALL = NCCL_NET_MAX_REQUESTS, EACH = 8 };
  struct pair pair;
  void *requests[2 * (ALL + 1)], **recvs = requests, **sends = requests + ALL + 1;
  size_t bytes = EACH;
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  open_apart(&pair, (ALL + 1) * EACH);
  exchange(&pair, EACH);
  all_sent();
  fake("mute fake0");
  for (int i = 0; i <= ALL; i++) {
    void *data = pair.in + i * EACH;
    int tag = i == ALL; /* told at once, since it is unlike the others */
    if (i == ALL) {
      /* The way of the first message is the other one, and it needs no call that hears of the failure. */
      memset(pair.out, 1, EACH);
      ck_assert_int_eq(net->isend(pair.send, pair.out, EACH, 0, pair.out_memory, NULL, &sends[0]), ncclSuccess);
      finish(recvs[0]);
      recvs[0] = NULL;
    }
    ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &pair.in_memory, NULL, &recvs[i]), ncclSuccess);
    ck_assert_ptr_nonnull(recvs[i]);
    for (uint64_t end = now_ms() + LONG_MS; i == ALL - 1 && !logged("is not used any more");) {
      int done = 0;
      if (net->test(recvs[0], &done, NULL) != ncclSuccess || done || now_ms() >= end)
        ck_abort_msg("done %d: %s", done, log_text);
    }
    if (i >= ALL - 1) answered(3);
  }
  uint64_t stored = fake_count("stored");
  fake("up fake0");
  for (uint64_t end = now_ms() + LONG_MS; fake_count("stored") == stored; usleep(1000))
    if (now_ms() >= end) ck_abort_msg("nothing comes late");
  finish(sends[0]);
  sends[0] = NULL;
  for (int i = 1; i <= ALL; i++) {
    memset(pair.out + i * EACH, i + 1, EACH);
    ck_assert_int_eq(net->isend(pair.send, pair.out + i * EACH, EACH, i == ALL, pair.out_memory, NULL, &sends[i]),
                     ncclSuccess);
    ck_assert_ptr_nonnull(sends[i]);
  }
  drive_all(requests, 2 * (ALL + 1));
  ck_assert_int_eq(memcmp(pair.in, pair.out, (ALL + 1) * EACH), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* Whichever write fails: of the last receives, in a row that wraps, the first is told again though it may be the only
 * one that the sender does not know. */
START_TEST(any_write_fails)
{
  enum { AHEAD = 10, BEFORE = 5, LAST = 36, EACH = 20 };
  struct pair pair;
  char action[32];
  int index = open_fused(&pair);
  pair_close(&pair);
  for (int n = 1; n <= EACH; n++) {
    pair_open(&pair, index, index, 8 * NCCL_NET_MAX_REQUESTS);
    for (int i = 0; i < BEFORE; i++) exchange(&pair, 8);
    snprintf(action, sizeof action, "fail post_send %d 5", EACH * _i + n);
    fake(action);
    clears_of(&pair, AHEAD, LAST - BEFORE, 1);
    pair_close(&pair);
  }
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("failover");
  tcase_add_loop_test(tcase, others_take_over, 0, 2 * ACTIONS);
  tcase_add_loop_test(tcase, seen_late, 0, 3);
  tcase_add_test(tcase, removed_with_much_unseen);
  tcase_add_test(tcase, held_up_when_a_nic_fails);
  tcase_add_loop_test(tcase, any_write_fails, 0, 4);
  tcase_add_test(tcase, entries_come_late);
  tcase_add_loop_test(tcase, receiver_calls_no_more, 0, 4);
  tcase_add_loop_test(tcase, receiver_closes, 0, 2);
  tcase_add_loop_test(tcase, registered_after_a_failure, 0, 2);
  tcase_add_loop_test(tcase, connects_without_a_nic, 0, 6);
  tcase_add_loop_test(tcase, removed_while_it_connects, 0, 2 * STEPS / TOGETHER);
  tcase_add_loop_test(tcase, no_link_while_it_connects, 0, 6);
  tcase_add_test(tcase, connects_with_all_or_not);
  tcase_add_loop_test(tcase, flush_fails, 0, 2);
  tcase_add_loop_test(tcase, flush_without_a_nic, 0, 4);
  tcase_add_loop_test(tcase, flush_without_a_link, 0, 4);
  tcase_add_test(tcase, flush_of_nothing_without_a_link);
  tcase_add_test(tcase, flush_over_the_other_port);
  tcase_add_test(tcase, not_wanted);
  tcase_add_test(tcase, all_ports_come_back);
  tcase_add_test(tcase, one_port_comes_back);
  tcase_add_test(tcase, none_left);
  return run_ib_suite(argc, argv, tcase);
}
