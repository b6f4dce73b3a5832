/* Data on their way where NICs do what they may: completions late and in any order, entries seen line by line, queues
 * that are short. */
#include "ib_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

START_TEST(late_and_reordered)
{
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", "4", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  start();
  fake("reorder");
  fake("late 2");
  pair_open(&pair, 0, 0, 3000000);
  for (size_t bytes = 1; bytes < 3000000; bytes *= 5) exchange(&pair, bytes);
  pair_close(&pair);
  stop();
}
END_TEST

/* Clear-to-send entries of a receive of several buffers are several lines, which a sender that looks meanwhile sees one
 * after the other. What lies behind them is of an earlier receive, with other tags. */
START_TEST(entries_come_line_by_line)
{
  enum { ROUNDS = 3 * NCCL_NET_MAX_REQUESTS, MANY = 8, BYTES = 64 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, MANY * BYTES);
  fake("torn 50");
  for (int round = 0; round < ROUNDS; round++) {
    void *data[MANY], *memory[MANY], *sends[MANY], *recv = NULL;
    size_t sizes[MANY];
    int tags[MANY];
    ncclResult_t results[2];
    for (int i = 0; i < MANY; i++) {
      tags[i] = (i + round) % MANY;
      data[i] = pair.in + BYTES * tags[i];
      sizes[i] = BYTES;
      memory[i] = pair.in_memory;
    }
    memset(pair.in, 0, MANY * BYTES);
    for (int i = 0; i < MANY * BYTES; i++) pair.out[i] = (char)(i + round);
    ck_assert_int_eq(net->irecv(pair.recv, MANY, data, sizes, tags, memory, NULL, &recv), ncclSuccess);
    ck_assert_ptr_nonnull(recv);
    for (int i = 0; i < MANY; i++) {
      ck_assert_int_eq(net->isend(pair.send, pair.out + BYTES * i, BYTES, i, pair.out_memory, NULL, &sends[i]),
                       ncclSuccess);
      usleep(50);
    }
    drive(sends[0], recv, results);
    ck_assert_msg(results[0] + results[1] == 0, "round %d: results %d %d: %s", round, results[0], results[1], log_text);
    for (int i = 1; i < MANY; i++) drive(sends[i], NULL, results);
    ck_assert_int_eq(memcmp(pair.in, pair.out, MANY * BYTES), 0);
  }
  pair_close(&pair);
  stop();
}
END_TEST

/* While the sender knows of enough receives it is told of several more at once; never if it might wait for just the one
 * that it was not told of. */
START_TEST(told_of_several_at_once)
{
  enum { MESSAGES = 200 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 8 * NCCL_NET_MAX_REQUESTS);
  int alike = clears_of(&pair, 8, MESSAGES, 1);
  ck_assert_msg(alike <= MESSAGES / 3 && alike >= MESSAGES / 4, "%d clear-to-sends", alike); /* half remain */
  ck_assert_int_ge(clears_of(&pair, 2, MESSAGES, 1), MESSAGES - 2);                          /* too few to wait */
  ck_assert_int_ge(clears_of(&pair, 3, MESSAGES, 1), MESSAGES - 4);
  ck_assert_int_eq(clears_of(&pair, 8, MESSAGES, 2), MESSAGES - 8);
  alike = clears_of(&pair, 16, MESSAGES, 1);
  ck_assert_msg(alike <= MESSAGES / 6, "%d clear-to-sends", alike);
  pair_close(&pair);
  stop();
}
END_TEST

/* Who posts receives and then looks at none of them has all of them posted, also after others. */
START_TEST(told_without_a_test)
{
  enum { MANY = 16, ROUNDS = 5 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 8 * MANY);
  for (int round = 0; round < ROUNDS; round++) {
    void *recvs[MANY], *sends[MANY];
    for (int i = 0; i < MANY; i++) recvs[i] = post_recv(&pair, 8, 0);
    for (int i = 0; i < MANY; i++) sends[i] = post_send(&pair, 8, 0);
    for (int i = 0; i < MANY; i++) finish(sends[i]);
    for (int i = 0; i < MANY; i++) finish(recvs[i]);
  }
  pair_close(&pair);
  stop();
}
END_TEST

/* More receives than there were before are all posted, too, while those that take the place of others may wait. */
START_TEST(told_of_more_without_a_test)
{
  enum { FEW = 8, MANY = 16 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 8 * NCCL_NET_MAX_REQUESTS);
  for (int replaced = 0; replaced < 40; replaced++) {
    void *recvs[MANY], *sends[MANY];
    for (int i = 0; i < FEW; i++) recvs[i] = post_recv(&pair, 8, 0);
    for (int i = 0; i < replaced; i++) {
      finish(post_send(&pair, 8, 0));
      finish(recvs[i % FEW]);
      recvs[i % FEW] = post_recv(&pair, 8, 0);
    }
    for (int i = FEW; i < MANY; i++) recvs[i] = post_recv(&pair, 8, 0);
    for (int i = 0; i < MANY; i++) sends[i] = post_send(&pair, 8, 0);
    for (int i = 0; i < MANY; i++) finish(sends[i]);
    for (int i = 0; i < MANY; i++) finish(recvs[i]);
  }
  pair_close(&pair);
  stop();
}
END_TEST

/* Receives of several buffers do not wait, since their other tags are not looked at. */
START_TEST(told_of_several_buffers)
{
  enum { AHEAD = 8, ROUNDS = 60 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 4096);
  void *recvs[AHEAD], *sends[2];
  uint64_t before = fake_count("write");
  for (int i = 0; i < ROUNDS + AHEAD; i++) {
    void *data[2] = {pair.in, pair.in + 64}, *memory[2] = {pair.in_memory, pair.in_memory};
    size_t sizes[2] = {8, 8};
    int tags[2] = {0, 1};
    if (i >= AHEAD) {
      for (int tag = 0; tag < 2; tag++) sends[tag] = post_send(&pair, 8, tag);
      for (int tag = 0; tag < 2; tag++) finish(sends[tag]);
      finish(recvs[i % AHEAD]);
    }
    if (i < ROUNDS)
      ck_assert_int_eq(net->irecv(pair.recv, 2, data, sizes, tags, memory, NULL, &recvs[i % AHEAD]), ncclSuccess);
  }
  /* And of each receive its first message, and the sizes of both. */
  ck_assert_uint_ge(fake_count("write") - before, 3 * ROUNDS);
  pair_close(&pair);
  stop();
}
END_TEST

/* A tag that nobody sends any more leaves receives behind, for which those of another do not wait. */
START_TEST(told_though_others_stay)
{
  enum { MANY = 8 };
  struct pair pair;
  start();
  pair_open(&pair, 0, 0, 4096);
  void *idle[MANY];
  for (int i = 0; i < MANY; i++) idle[i] = post_recv(&pair, 8, 7);
  for (int round = 0; round < 20; round++) {
    void *recv = post_recv(&pair, 8, 1);
    ncclResult_t results[2];
    drive(post_send(&pair, 8, 1), recv, results);
    ck_assert_msg(results[0] + results[1] == 0, "round %d: %s", round, log_text);
  }
  for (int i = 0; i < MANY; i++) {
    ncclResult_t results[2];
    drive(post_send(&pair, 8, 7), idle[i], results);
    ck_assert_int_eq(results[0] + results[1], 0);
  }
  pair_close(&pair);
  stop();
}
END_TEST

/* A NIC with a queue that is just long enough: what has no room waits for completions, and is not forgotten. */
START_TEST(queue_is_short)
{
  enum { MANY = NCCL_NET_MAX_REQUESTS, BYTES = 100 };
  struct pair pair;
  setenv("FAKE_VERBS_LIMITS", "wr=32", 1);
  start();
  pair_open(&pair, 0, 0, MANY * BYTES);
  for (int i = 0; i < 5; i++) exchange(&pair, 10);
  void *sends[MANY], *recvs[MANY];
  for (int i = 0; i < MANY * BYTES; i++) pair.out[i] = (char)(i * 7 + (i >> 8));
  memset(pair.in, 0, MANY * BYTES);
  for (int i = 0; i < MANY; i++) {
    void *data = pair.in + BYTES * i;
    size_t bytes = BYTES;
    int tag = 0;
    ck_assert_int_eq(net->irecv(pair.recv, 1, &data, &bytes, &tag, &pair.in_memory, NULL, &recvs[i]), ncclSuccess);
    ck_assert_int_eq(net->isend(pair.send, pair.out + BYTES * i, BYTES, 0, pair.out_memory, NULL, &sends[i]),
                     ncclSuccess);
    ck_assert(recvs[i] && sends[i]);
  }
  for (int i = 0; i < MANY; i++) {
    ncclResult_t results[2];
    drive(sends[i], recvs[i], results);
    ck_assert_msg(results[0] + results[1] == 0, "message %d: results %d %d: %s", i, results[0], results[1], log_text);
  }
  ck_assert_int_eq(memcmp(pair.in, pair.out, MANY * BYTES), 0);
  pair_close(&pair);
  stop();
}
END_TEST

/* Pieces of messages begin where lines of 128 bytes do, which then are written by one queue pair each. */
START_TEST(pieces_are_whole_lines)
{
  enum { MOST = 300000 };
  struct pair pair;
  setenv("NCCL_IB_QPS_PER_CONNECTION", "4", 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  start();
  pair_open(&pair, 0, 0, MOST);
  void *memory, *in = aligned_alloc(4096, 75 * 4096);
  size_t room = MOST;
  int tag = 0;
  ck_assert_int_eq(net->regMr(pair.recv, in, room, NCCL_PTR_HOST, &memory), ncclSuccess);
  for (size_t bytes = 8191; bytes < MOST; bytes += 29989) {
    void *recv = NULL;
    ncclResult_t results[2];
    uint64_t before = fake_count("write_imm");
    ck_assert_int_eq(net->irecv(pair.recv, 1, &in, &room, &tag, &memory, NULL, &recv), ncclSuccess);
    drive(post_send(&pair, bytes, 0), recv, results);
    ck_assert_int_eq(results[0] + results[1], 0);
    ck_assert_int_eq(memcmp(in, pair.out, bytes), 0);
    ck_assert_uint_eq(fake_count("write_imm") - before, bytes > 8192 ? 4 : 1);
  }
  ck_assert_uint_eq(fake_count("inside_a_line"), 0);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  free(in);
  pair_close(&pair);
  stop();
}
END_TEST

/* Each port of several that work as one may have written some of a message, so a flush reads through all. */
START_TEST(flush_through_all_ports)
{
  enum { BYTES = 4096 };
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2, .devs = {0, 1}};
  struct pair pair;
  int fd = memfd_create("gpu", 0), index = -1, size = BYTES;
  ck_assert_int_eq(ftruncate(fd, BYTES), 0);
  void *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *memory, *request;
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  start();
  ck_assert_int_eq(net->makeVDevice(&index, &two), ncclSuccess);
  pair_open(&pair, index, index, BYTES);
  ck_assert_int_eq(net->regMrDmaBuf(pair.recv, data, BYTES, NCCL_PTR_CUDA, 0, fd, &memory), ncclSuccess);
  close(fd);
  uint64_t reads = fake_count("read");
  ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  finish(request);
  ck_assert_uint_eq(fake_count("read") - reads, 2);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

/* Far more flushes than a queue has room for: those that do not fit wait. */
START_TEST(many_flushes)
{
  enum { BYTES = 4096, MANY = 200 };
  struct pair pair;
  void *requests[MANY];
  int fd = memfd_create("gpu", 0), size = BYTES;
  ck_assert_int_eq(ftruncate(fd, BYTES), 0);
  void *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *memory;
  start();
  fake("late 5");
  pair_open(&pair, 0, 0, BYTES);
  ck_assert_int_eq(net->regMrDmaBuf(pair.recv, data, BYTES, NCCL_PTR_CUDA, 0, fd, &memory), ncclSuccess);
  close(fd);
  uint64_t reads = fake_count("read");
  for (int i = 0; i < MANY; i++) {
    ck_assert_int_eq(net->iflush(pair.recv, 1, &data, &size, &memory, &requests[i]), ncclSuccess);
    ck_assert_ptr_nonnull(requests[i]);
  }
  ck_assert_uint_lt(fake_count("read") - reads, MANY);
  int done = 0;
  ck_assert_int_eq(net->test(requests[MANY - 1], &done, NULL), ncclSuccess);
  ck_assert_int_eq(done, 0); /* not even posted */
  for (int i = 0; i < MANY; i++) finish(requests[i]);
  ck_assert_uint_eq(fake_count("read") - reads, MANY);
  ck_assert_int_eq(net->deregMr(pair.recv, memory), ncclSuccess);
  pair_close(&pair);
  munmap(data, BYTES);
  stop();
}
END_TEST

/* Each tag has its own number of sends, so that none keeps another from being posted. */
START_TEST(sends_of_a_tag)
{
  enum { BYTES = 16 };
  struct pair pair;
  void *sends[2 * NCCL_NET_MAX_REQUESTS + 1], *request = &pair;
  ncclResult_t results[2];
  int posted = 0;
  start();
  pair_open(&pair, 0, 0, BYTES);
  for (int tag = 1; tag <= 2; tag++) {
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++) sends[posted++] = post_send(&pair, BYTES, tag);
    ck_assert_int_eq(net->isend(pair.send, pair.out, BYTES, tag, pair.out_memory, NULL, &request), ncclSuccess);
    ck_assert_ptr_null(request);
  }
  drive(sends[0], post_recv(&pair, BYTES, 1), results);
  ck_assert_int_eq(results[0] + results[1], 0);
  sends[0] = post_send(&pair, BYTES, 1); /* room again */
  for (int i = 1; i <= posted; i++) {
    drive(sends[i % posted], post_recv(&pair, BYTES, i % posted < NCCL_NET_MAX_REQUESTS ? 1 : 2), results);
    ck_assert_int_eq(results[0] + results[1], 0);
  }
  pair_close(&pair);
  stop();
}
END_TEST

/* The end of the peer's socket may be seen before the completion of what it sent last. */
START_TEST(seen_after_the_end)
{
  struct pair pair;
  ncclResult_t results[2];
  start();
  pair_open(&pair, 0, 0, 1000);
  exchange(&pair, 1000);
  fake("late 40");
  void *recv = post_recv(&pair, 1000, 0);
  uint64_t before = fake_count("write_imm"), end = now_ms() + LONG_MS;
  void *send = post_send(&pair, 1000, 0);
  for (int done = 0; fake_count("write_imm") == before && now_ms() < end;) net->test(send, &done, NULL);
  while (fake_count("sent") != fake_count("write") + fake_count("write_imm") && now_ms() < end) usleep(100);
  usleep(5000); /* the peer has it, and does not know yet */
  ck_assert_int_eq(net->deregMr(pair.send, pair.out_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(pair.send), ncclSuccess);
  drive(NULL, recv, results);
  ck_assert_msg(results[1] == ncclSuccess, "result %d: %s", results[1], log_text);
  ck_assert_int_eq(net->deregMr(pair.recv, pair.in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(pair.recv), ncclSuccess);
  free(pair.out);
  free(pair.in);
  stop();
}
END_TEST

/* The thread of the receiver is held up just when that is so, for longer than what is late is waited for. */
START_TEST(held_up_at_the_end)
{
  struct pair pair;
  ncclResult_t results[2];
  start();
  clock_stop();
  fake("late 1000");
  pair_open(&pair, 0, 0, 1000);
  void *recv = post_recv(&pair, 1000, 0);
  void *send = post_send(&pair, 1000, 0);
  for (int done = 0; fake_count("write_imm") == 0;) net->test(send, &done, NULL);
  all_sent();
  pair_close_send(&pair);
  clock_step(250);
  drive(NULL, recv, results);
  ck_assert_msg(results[1] == ncclSuccess, "result %d: %s", results[1], log_text);
  pair_close_recv(&pair);
  stop();
}
END_TEST

/* An attempt takes queue pairs before the peer is met; who gives it up and finalizes leaves none to those that stay. */
START_TEST(given_up)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE], same[NCCL_NET_HANDLE_MAXSIZE];
  void *other, *listener, *send = NULL, *recv = NULL;
  start();
  ck_assert_int_eq(net->init(&other, 2, NULL, NULL, NULL), ncclSuccess);
  ck_assert_int_eq(net->listen(context, 0, handle, &listener), ncclSuccess);
  memcpy(same, handle, sizeof same);
  ck_assert_int_eq(net->connect(context, 0, handle, &send, NULL), ncclSuccess);
  int before = fake_live("qp");
  ck_assert_int_eq(net->connect(other, 0, same, &send, NULL), ncclSuccess);
  ck_assert_ptr_null(send);
  ck_assert_int_gt(fake_live("qp"), before);
  ck_assert_int_eq(net->finalize(other), ncclSuccess);
  ck_assert_int_eq(fake_live("qp"), before);
  ck_assert_int_eq(net_meet(0, handle, listener, &send, &recv), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  stop();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("flow");
  tcase_add_test(tcase, late_and_reordered);
  tcase_add_test(tcase, entries_come_line_by_line);
  tcase_add_test(tcase, told_of_several_at_once);
  tcase_add_test(tcase, told_without_a_test);
  tcase_add_test(tcase, told_of_more_without_a_test);
  tcase_add_test(tcase, told_of_several_buffers);
  tcase_add_test(tcase, told_though_others_stay);
  tcase_add_test(tcase, queue_is_short);
  tcase_add_test(tcase, pieces_are_whole_lines);
  tcase_add_test(tcase, flush_through_all_ports);
  tcase_add_test(tcase, many_flushes);
  tcase_add_test(tcase, sends_of_a_tag);
  tcase_add_test(tcase, seen_after_the_end);
  tcase_add_test(tcase, held_up_at_the_end);
  tcase_add_test(tcase, given_up);
  return run_ib_suite(argc, argv, tcase);
}
