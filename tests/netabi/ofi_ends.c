/* net-ofi: what is counted while messages wait and move, the window of a tag, memory that does not hold what is named,
 * and how a connection ends. Both ends in the test's process. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "ofi_fixture.h"
#include "tutti/counters.h"

enum { LARGE = 100000, TAG = 3, OTHER = 4 };

static void *send_comm, *recv_comm;
static char out[2 * LARGE], in[2 * LARGE];
static void *out_memory, *in_memory;

static void open_both(const char *words)
{
  start_tcp(words);
  ck_assert_int_eq(try_connect(&send_comm, &recv_comm), ncclSuccess);
  ck_assert_int_eq(net->regMr(send_comm, out, sizeof out, NCCL_PTR_HOST, &out_memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv_comm, in, sizeof in, NCCL_PTR_HOST, &in_memory), ncclSuccess);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (char)(i * 7 + (i >> 9));
  memset(in, 0, sizeof in);
}

static void close_sender(void)
{
  ck_assert_int_eq(net->deregMr(send_comm, out_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send_comm), ncclSuccess);
}

static void close_receiver(void)
{
  ck_assert_int_eq(net->deregMr(recv_comm, in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv_comm), ncclSuccess);
}

static void close_both(void)
{
  close_sender();
  close_receiver();
  finish();
}

static void *receive(void *data, size_t bytes, int tag, void *memory)
{
  void *request = NULL, *none = NULL;
  ck_assert_int_eq(net->irecv(recv_comm, 1, &data, &bytes, &tag, &memory, &none, &request), ncclSuccess);
  return request;
}

static void *send_it(void *data, size_t bytes, int tag, void *memory)
{
  void *request = NULL;
  ck_assert_int_eq(net->isend(send_comm, data, bytes, tag, memory, NULL, &request), ncclSuccess);
  return request;
}

/* Tests both, of which either may be NULL, until both are done; the first error. */
static ncclResult_t finish_both(void *sends, void *receives)
{
  void *requests[2] = {sends, receives};
  ncclResult_t result = ncclSuccess;
  for (uint64_t end = now_ms() + LONG_MS; (requests[0] || requests[1]) && result == ncclSuccess;) {
    if (now_ms() >= end) ck_abort_msg("neither done nor failed:\n%s", log_text);
    for (int i = 0; i < 2 && result == ncclSuccess; i++) {
      int done = 0;
      if (requests[i]) result = net->test(requests[i], &done, NULL);
      if (done) requests[i] = NULL;
    }
  }
  return result;
}

static void expect_message(size_t bytes, int tag)
{
  void *receives = receive(in, bytes, tag, in_memory);
  ck_assert_int_eq(finish_both(send_it(out, bytes, tag, out_memory), receives), ncclSuccess);
}

/* ---- Counters ---- */

struct look {
  const void *comm;
  struct tt_counters counters;
};

static void visit(void *context, const struct tt_counters *counters)
{
  struct look *look = context;
  if (counters->comm == look->comm) look->counters = *counters;
}

static struct tt_counters look_at(const void *comm)
{
  static const struct tt_net_counters *table;
  struct look look = {.comm = comm};
  if (!table) table = net_symbol(TT_NET_COUNTERS_SYMBOL);
  ck_assert_int_eq(table->read(visit, &look), ncclSuccess);
  return look.counters;
}

/* Small messages with another tag, until the sender has heard of so many places. */
static void hear_of_places(uint64_t wanted)
{
  for (uint64_t end = now_ms() + LONG_MS; look_at(send_comm).clear_to_sends < wanted;) {
    if (now_ms() >= end) ck_abort_msg("the sender does not hear of a place");
    expect_message(1, OTHER);
  }
}

static void expect_counts(const void *comm, uint64_t clears, uint64_t waits, uint64_t depth, uint64_t most)
{
  struct tt_counters is = look_at(comm);
  bool sends = comm == send_comm;
  ck_assert_uint_eq(is.counts & TT_COUNTS_CLEAR_TO_SEND_WAITS, sends ? TT_COUNTS_CLEAR_TO_SEND_WAITS : 0);
  ck_assert_uint_eq(is.counts & TT_COUNTS_CLEAR_TO_SENDS, TT_COUNTS_CLEAR_TO_SENDS);
  ck_assert_uint_eq(is.counts & TT_COUNTS_REFUSED, TT_COUNTS_REFUSED);
  ck_assert_uint_eq(is.counts & TT_COUNTS_QUEUE_DEPTH, TT_COUNTS_QUEUE_DEPTH);
  ck_assert_msg(is.clear_to_sends == clears && is.clear_to_send_waits == waits && is.queue_depth == depth &&
                    is.queue_depth_most == most,
                "%s: %llu places, %llu waited, depth %llu, %llu at most; not %llu, %llu, %llu, %llu",
                sends ? "sending" : "receiving", (unsigned long long)is.clear_to_sends,
                (unsigned long long)is.clear_to_send_waits, (unsigned long long)is.queue_depth,
                (unsigned long long)is.queue_depth_most, (unsigned long long)clears, (unsigned long long)waits,
                (unsigned long long)depth, (unsigned long long)most);
}

START_TEST(places_are_counted)
{
  open_both("local");
  expect_counts(send_comm, 0, 0, 0, 0);
  /* The place is known before the message, which therefore does not wait. */
  void *receives = receive(in, LARGE, TAG, in_memory);
  hear_of_places(1);
  expect_counts(recv_comm, 1, 0, 1, 2); /* the small ones beside it */
  void *sends = send_it(out, LARGE, TAG, out_memory);
  expect_counts(send_comm, 1, 0, 1, 1);
  ck_assert_int_eq(finish_both(sends, receives), ncclSuccess);
  ck_assert_mem_eq(in, out, LARGE);
  expect_counts(send_comm, 1, 0, 0, 1);
  expect_counts(recv_comm, 1, 0, 0, 2);
  /* The message is there before its place: two of them. */
  void *two = send_it(out, LARGE, 7, out_memory), *three = send_it(out, LARGE, 8, out_memory);
  expect_counts(send_comm, 1, 2, 2, 2);
  ck_assert_int_eq(finish_both(two, receive(in, LARGE, 7, in_memory)), ncclSuccess);
  ck_assert_int_eq(finish_both(three, receive(in, LARGE, 8, in_memory)), ncclSuccess);
  expect_counts(send_comm, 3, 2, 0, 2);
  expect_counts(recv_comm, 3, 0, 0, 2);
  close_both();
}
END_TEST

/* What is not taken is counted as refused, and is not pending. */
START_TEST(refusals_are_counted)
{
  void *requests[1000];
  uint64_t count = 0;
  open_both("local");
  uint64_t before = 0; /* packets may be refused too */
  for (; count < 1000; count++) {
    before = look_at(send_comm).refused;
    if (!(requests[count] = send_it(out, LARGE, TAG, out_memory))) break;
  }
  ck_assert_uint_lt(count, 1000);
  struct tt_counters is = look_at(send_comm);
  ck_assert_uint_eq(is.refused, before + 1);
  ck_assert_uint_eq(is.queue_depth, count);
  for (uint64_t i = 0; i < count; i++)
    ck_assert_int_eq(finish_both(requests[i], receive(in, LARGE, TAG, in_memory)), ncclSuccess);
  ck_assert_uint_eq(look_at(send_comm).queue_depth, 0);
  for (count = 0; count < 1000; count++) {
    before = look_at(recv_comm).refused;
    if (!receive(in, 1, OTHER, in_memory)) break;
  }
  ck_assert_uint_lt(count, 1000);
  is = look_at(recv_comm);
  ck_assert_uint_eq(is.refused, before + 1);
  ck_assert_uint_eq(is.queue_depth, count);
  close_both();
}
END_TEST

/* So are packets and writes for which the NIC has no room. */
START_TEST(busy_nics_are_counted)
{
  open_both("busy=3");
  uint64_t before = look_at(send_comm).refused;
  for (int i = 0; i < 20; i++) expect_message(100, OTHER);
  ck_assert_uint_gt(look_at(send_comm).refused, before);
  /* A message that fills a place that is known needs no packet: only writes. */
  for (int i = 0; i < 20; i++) {
    void *receives = receive(in, LARGE, TAG, in_memory);
    hear_of_places((uint64_t)i + 1);
    before = look_at(send_comm).refused;
    ck_assert_int_eq(finish_both(send_it(out, LARGE, TAG, out_memory), receives), ncclSuccess);
    if (look_at(send_comm).refused > before) break;
    ck_assert_int_lt(i, 19);
  }
  close_both();
}
END_TEST

/* ---- The window ---- */

/* A sender runs ahead of the receives of a tag by a window, and no further if the tag has no request under way for a
 * while and others are used. */
START_TEST(idle_tags_keep_their_window)
{
  enum { WINDOW = 64 };
  int done = 1;
  open_both("local");
  for (int i = 0; i < WINDOW; i++) {
    ck_assert_int_eq(finish_both(send_it(out, 1, TAG, out_memory), NULL), ncclSuccess);
    expect_message(1, OTHER);
  }
  void *beyond = send_it(out, 1, TAG, out_memory);
  expect_message(1, OTHER); /* packets keep their order here: it would have left by now */
  ck_assert_int_eq(net->test(beyond, &done, NULL), ncclSuccess);
  ck_assert_int_eq(done, 0);
  for (int i = 0; i < WINDOW; i++) ck_assert_int_eq(finish_both(NULL, receive(in, 1, TAG, in_memory)), ncclSuccess);
  ck_assert_int_eq(finish_both(beyond, receive(in, 1, TAG, in_memory)), ncclSuccess);
  close_both();
}
END_TEST

/* ---- Memory ---- */

/* A message that is larger than the place that was told ahead is not written at all. */
START_TEST(larger_than_its_place)
{
  open_both("local");
  void *receives = receive(in, LARGE, TAG, in_memory);
  hear_of_places(1);
  void *sends = send_it(out, 2 * LARGE, TAG, out_memory);
  ck_assert_int_eq(finish_both(sends, receives), ncclInvalidUsage);
  expect_logged("is larger than its receive buffer of 100000 bytes");
  int written = 0;
  for (int i = 1; i < 2 * LARGE; i++) written += in[i] != 0; /* the first is of the small messages */
  ck_assert_int_eq(written, 0);
  close_both();
}
END_TEST

/* What lies outside of the registration that is named is told to who named it: to a send; to a receive whose place is
 * told ahead, and to one whose message is there already. */
START_TEST(outside_of_the_registration)
{
  void *small, *request = NULL;
  open_both("local");
  ck_assert_int_eq(net->regMr(_i ? recv_comm : send_comm, _i ? in : out, 1000, NCCL_PTR_HOST, &small), ncclSuccess);
  if (_i == 0) {
    ck_assert_int_eq(net->isend(send_comm, out, LARGE, TAG, small, NULL, &request), ncclInternalError);
    ck_assert_ptr_null(request);
    expect_logged("isend of 100000 bytes");
  } else {
    void *sends = _i == 2 ? send_it(out, LARGE, TAG, out_memory) : NULL;
    for (int i = 0; i < 3; i++) expect_message(1, OTHER); /* packets keep their order here */
    ck_assert_int_eq(finish_both(NULL, receive(in, LARGE, TAG, small)), ncclInternalError);
    expect_logged("irecv of 100000 bytes");
    (void)sends;
  }
  expect_logged("do not lie inside of their registration");
  ck_assert_int_eq(net->deregMr(_i ? recv_comm : send_comm, small), ncclSuccess);
  close_both();
}
END_TEST

/* ---- Ends ---- */

/* The sender goes as soon as it has written all, and its goodbye is heard before much of the message is seen: what is
 * still on its way is waited for, and only the receive behind it fails. */
START_TEST(goodbye_before_the_message)
{
  setenv("TUTTI_OFI_EAGER", "100", 1);
  open_both("late=60,piece=1000");
  void *receives = receive(in, LARGE, TAG, in_memory);
  hear_of_places(1);
  void *behind = receive(in + LARGE, 1, 9, in_memory), *sends = send_it(out, LARGE, TAG, out_memory);
  int done = 0;
  for (uint64_t end = now_ms() + LONG_MS; !done && now_ms() < end;)
    ck_assert_int_eq(net->test(sends, &done, NULL), ncclSuccess);
  ck_assert_int_eq(done, 1);
  close_sender();
  ck_assert_msg(finish_both(NULL, receives) == ncclSuccess, "the message was lost: %s", last_warning);
  ck_assert_mem_eq(in, out, LARGE);
  ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
  close_receiver();
  finish();
}
END_TEST

/* Who has said goodbye and of whom all is here is not waited for: the loss is told at once, and not when what could be
 * on its way has had its time (200 ms). Acknowledgements that the sender has not read do not cost the goodbye. */
START_TEST(goodbye_ends_the_wait)
{
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 50 && least >= 150; i++) { /* a machine with other work may need some */
    if (i == 0)
      open_both(NULL);
    else
      ck_assert_int_eq(try_connect(&send_comm, &recv_comm), ncclSuccess);
    if (i) ck_assert_int_eq(net->regMr(send_comm, out, sizeof out, NCCL_PTR_HOST, &out_memory), ncclSuccess);
    if (i) ck_assert_int_eq(net->regMr(recv_comm, in, sizeof in, NCCL_PTR_HOST, &in_memory), ncclSuccess);
    expect_message(LARGE, TAG);
    for (int k = 0; k < 32; k++) expect_message(1, OTHER);
    void *behind = receive(in, 1, 9, in_memory);
    close_sender();
    uint64_t begin = now_ms();
    ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
    ck_assert_msg(strstr(last_warning, "it closed the connection"), "%s", last_warning);
    if (now_ms() - begin < least) least = now_ms() - begin;
    close_receiver();
  }
  ck_assert_msg(least < 150, "the fastest took %llu ms", (unsigned long long)least);
  finish();
}
END_TEST

/* What came into a GPU's memory is flushed though its sender has gone, and though a receive behind it has failed for
 * that before (0), or fails while the flush is tested (1): a receiver that waits for more gets what there was. */
START_TEST(flush_after_the_goodbye)
{
  void *gpu_out, *gpu_in, *flush = NULL, *data = in;
  int size = LARGE;
  open_both("hmem,local");
  ck_assert_int_eq(net->regMr(send_comm, out, sizeof out, NCCL_PTR_CUDA, &gpu_out), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv_comm, in, sizeof in, NCCL_PTR_CUDA, &gpu_in), ncclSuccess);
  void *receives = receive(in, LARGE, TAG, gpu_in), *behind = receive(in + LARGE, 1, 9, gpu_in);
  ck_assert_int_eq(finish_both(send_it(out, LARGE, TAG, gpu_out), receives), ncclSuccess);
  ck_assert_int_eq(net->deregMr(send_comm, gpu_out), ncclSuccess);
  close_sender();
  if (_i == 0) ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
  ck_assert_msg(net->iflush(recv_comm, 1, &data, &size, &gpu_in, &flush) == ncclSuccess, "iflush: %s", last_warning);
  ck_assert_ptr_nonnull(flush);
  ck_assert_msg(finish_both(NULL, flush) == ncclSuccess, "flush: %s", last_warning);
  if (_i == 1) ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
  ck_assert_int_eq(net->deregMr(recv_comm, gpu_in), ncclSuccess);
  close_receiver();
  finish();
}
END_TEST

/* So is what is being flushed on one of two NICs when the sender goes. */
START_TEST(goodbye_during_a_flush)
{
  void *gpu_out, *gpu_in, *flush = NULL, *data = in;
  int size = LARGE, dev = -1;
  ncclNetVDeviceProps_v12_t both = {2, {0, 1}};
  setenv("FI_PROVIDER", "tcp", 1);
  ck_assert_int_ge(start("hmem,local,nics=2,lag=50"), 2);
  ck_assert_int_eq(net->makeVDevice(&dev, &both), ncclSuccess);
  ck_assert_int_eq(net->listen(context, dev, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(dev, handle, listener, &send_comm, &recv_comm), ncclSuccess);
  ck_assert_int_eq(net->regMr(send_comm, out, sizeof out, NCCL_PTR_CUDA, &gpu_out), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv_comm, in, sizeof in, NCCL_PTR_CUDA, &gpu_in), ncclSuccess);
  void *receives = receive(in, LARGE, TAG, gpu_in), *behind = receive(in + LARGE, 1, 9, gpu_in);
  ck_assert_int_eq(finish_both(send_it(out, LARGE, TAG, gpu_out), receives), ncclSuccess);
  ck_assert_int_eq(net->iflush(recv_comm, 1, &data, &size, &gpu_in, &flush), ncclSuccess);
  ck_assert_ptr_nonnull(flush);
  ck_assert_int_eq(net->deregMr(send_comm, gpu_out), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send_comm), ncclSuccess);
  if (_i == 0) ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
  ck_assert_msg(finish_both(NULL, flush) == ncclSuccess, "flush: %s", last_warning);
  if (_i == 1) ck_assert_int_eq(finish_both(NULL, behind), ncclRemoteError);
  ck_assert_int_eq(net->deregMr(recv_comm, gpu_in), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv_comm), ncclSuccess);
  finish();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("ends");
  tcase_add_test(tcase, places_are_counted);
  tcase_add_test(tcase, refusals_are_counted);
  tcase_add_test(tcase, busy_nics_are_counted);
  tcase_add_test(tcase, idle_tags_keep_their_window);
  tcase_add_test(tcase, larger_than_its_place);
  tcase_add_loop_test(tcase, outside_of_the_registration, 0, 3);
  tcase_add_test(tcase, goodbye_before_the_message);
  tcase_add_test(tcase, goodbye_ends_the_wait);
  tcase_add_loop_test(tcase, flush_after_the_goodbye, 0, 2);
  tcase_add_loop_test(tcase, goodbye_during_a_flush, 0, 2);
  return run(argc, argv, tcase);
}
