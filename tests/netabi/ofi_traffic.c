/* net-ofi's ways to move data, where one side alone can see them: places that are told in groups, and small messages
 * that run ahead of their receives. */
#include <stdio.h>
#include <string.h>
#include "../../plugins/net-ofi/wire.h"
#include "ofi_fixture.h"

enum { LARGE = 100000, AHEAD = 200 };

/* Tests all until all are done. */
static void wait_all(void **sends, int send_count, void **recvs, int recv_count)
{
  int done[16] = {0}, count = send_count + recv_count, left = 1;
  for (uint64_t end = now_ms() + LONG_MS; left;) {
    if (now_ms() >= end) ck_abort_msg("%d messages do not arrive", send_count);
    left = 0;
    for (int i = 0; i < count; i++) {
      void *request = i < send_count ? sends[i] : recvs[i - send_count];
      if (!done[i] && net->test(request, &done[i], NULL) != ncclSuccess) ck_abort_msg("%s", log_text);
      left += !done[i];
    }
  }
}

static void *post_send(void *send, char *data, size_t bytes)
{
  void *request = NULL;
  ck_assert_int_eq(net->isend(send, data, bytes, 3, NULL, NULL, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

/* Of buffers that are posted at once the first one's place is told; others wait for company, and when there is none for
 * the next test. A sender that was promised places does not ask for them. */
START_TEST(places_that_wait)
{
  static char out[LARGE], in[3][LARGE];
  void *send, *recv, *memory, *sends[3], *recvs[3];
  start_tcp("local");
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, sizeof in, NCCL_PTR_HOST, &memory), ncclSuccess);
  memset(out, 'x', sizeof out);
  for (int count = 1; count <= 3; count++) {
    ck_assert_int_eq(transfer(send, recv, out, in[0], LARGE, NULL, memory), ncclSuccess);
    memset(in, 0, sizeof in);
    for (int i = 0; i < count; i++) {
      void *data = in[i], *none = NULL;
      size_t bytes = LARGE;
      int tag = 3;
      ck_assert_int_eq(net->irecv(recv, 1, &data, &bytes, &tag, &memory, &none, &recvs[i]), ncclSuccess);
      ck_assert_int_eq(net->isend(send, out, LARGE, tag, NULL, NULL, &sends[i]), ncclSuccess);
    }
    wait_all(sends, count, recvs, count);
    for (int i = 0; i < count; i++) ck_assert_mem_eq(in[i], out, LARGE);
  }
  ck_assert_int_eq(net->deregMr(recv, memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* Of messages that were promised their places no packet tells where immediate data tells their sizes, or they fill
 * their places: the libfabric between spoils the second one. _i: immediate data has 64 bits; the messages fill their
 * places. */
START_TEST(messages_without_packets)
{
  static char out[LARGE], in[LARGE];
  const bool wide = _i & 1, whole = _i & 2;
  const size_t bytes = LARGE - (whole ? 0 : 7);
  char words[64];
  void *send, *recv, *out_memory, *in_memory;
  ncclResult_t result = ncclSuccess;
  snprintf(words, sizeof words, "%sspoil=%u/2/0/0", wide ? "wide," : "", (unsigned)TT_OFI_RTS);
  start_tcp(words);
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(send, out, LARGE, NCCL_PTR_HOST, &out_memory), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, LARGE, NCCL_PTR_HOST, &in_memory), ncclSuccess);
  for (int i = 0; i < 8 && result == ncclSuccess; i++) {
    memset(out, 'a' + i, bytes);
    memset(in, 0, LARGE);
    result = transfer_into(send, recv, out, bytes, in, LARGE, out_memory, in_memory);
    if (result == ncclSuccess) ck_assert_mem_eq(in, out, bytes);
  }
  ck_assert_int_eq(result == ncclSuccess, wide || whole);
  ck_assert_int_eq(net->deregMr(send, out_memory), ncclSuccess);
  ck_assert_int_eq(net->deregMr(recv, in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* A side may have a NIC with less immediate data than the others, and the other side none to meet it: both still think
 * the same of what is left. */
START_TEST(rails_that_differ)
{
  static char out[LARGE], in[LARGE];
  ncclNetVDeviceProps_v12_t two = {.ndevs = 2};
  void *send, *recv, *memory;
  int count, fused;
  start_tcp("uneven,nics=2");
  ck_assert_int_eq(net->devices(&count), ncclSuccess);
  two.devs[1] = count / 2; /* the second NICs come behind the first ones */
  ck_assert_int_eq(net->makeVDevice(&fused, &two), ncclSuccess);
  ck_assert_int_eq(net_meet(fused, handle, listener, &send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, LARGE, NCCL_PTR_HOST, &memory), ncclSuccess);
  for (int i = 0; i < 8; i++) {
    void *data = in, *none = NULL, *request;
    size_t room = LARGE;
    int tag = 3, size = -1, sent = 0, done = 0;
    ck_assert_int_eq(net->irecv(recv, 1, &data, &room, &tag, &memory, &none, &request), ncclSuccess);
    void *sending = post_send(send, out, LARGE - 7);
    for (uint64_t end = now_ms() + LONG_MS; !sent || !done;) {
      if (now_ms() >= end) ck_abort_msg("message %d does not arrive", i);
      if (!sent && net->test(sending, &sent, NULL) != ncclSuccess) ck_abort_msg("%s", log_text);
      if (!done && net->test(request, &done, &size) != ncclSuccess) ck_abort_msg("%s", log_text);
    }
    ck_assert_int_eq(size, LARGE - 7);
  }
  ck_assert_int_eq(net->deregMr(recv, memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* Memory that nobody registered is, for a message's time. The fake looks at the end whether something is left. */
START_TEST(memory_without_registration)
{
  static char out[LARGE], in[LARGE];
  void *send, *recv;
  start_tcp("local");
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  for (int i = 0; i < 5; i++) {
    memset(out, 'a' + i, LARGE);
    ck_assert_int_eq(transfer(send, recv, out, in, LARGE, NULL, NULL), ncclSuccess);
    ck_assert_mem_eq(in, out, LARGE);
  }
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

/* What the receiver keeps of a tag that nobody receives is bounded: the sender stops. */
START_TEST(small_messages_ahead)
{
  static char data[AHEAD], in[AHEAD], other;
  void *send, *recv, *waiting, *none = NULL, *request = NULL;
  void *buffer = &other;
  size_t one = 1;
  int tag = 9, done = 0, sent = 0;
  start_tcp(NULL);
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->irecv(recv, 1, &buffer, &one, &tag, &none, &none, &waiting), ncclSuccess);
  for (int i = 0; i < AHEAD; i++) data[i] = (char)i;
  /* As many as it takes, one after the other, until one does not leave though both sides move. */
  for (int idle = 0; sent < AHEAD && idle < 20000;) {
    if (!request) ck_assert_int_eq(net->isend(send, &data[sent], 1, 8, NULL, NULL, &request), ncclSuccess);
    ck_assert_int_eq(net->test(waiting, &done, NULL), ncclSuccess);
    ck_assert_int_eq(done, 0);
    ck_assert_int_eq(net->test(request, &done, NULL), ncclSuccess);
    idle = done ? 0 : idle + 1;
    sent += done;
    if (done) request = NULL;
  }
  ck_assert_int_eq(sent, 64);
  /* And goes on as they are received. */
  for (int i = 0; i < AHEAD; i++) {
    void *receive, *data_in = &in[i];
    int eight = 8, got = 0;
    ck_assert_int_eq(net->irecv(recv, 1, &data_in, &one, &eight, &none, &none, &receive), ncclSuccess);
    for (uint64_t end = now_ms() + LONG_MS; !got;) {
      ck_assert_msg(now_ms() < end, "message %d does not come", i);
      ck_assert_int_eq(net->test(receive, &got, NULL), ncclSuccess);
      if (!request && sent < AHEAD)
        ck_assert_int_eq(net->isend(send, &data[sent], 1, 8, NULL, NULL, &request), ncclSuccess);
      if (!request) continue;
      ck_assert_int_eq(net->test(request, &done, NULL), ncclSuccess);
      sent += done;
      if (done) request = NULL;
    }
  }
  ck_assert_mem_eq(in, data, AHEAD);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

static void *post(void *recv, int n, char *data[], size_t *rooms, void *memory)
{
  int tags[2] = {3, 3};
  void *memories[2] = {memory, memory}, *none[2] = {NULL}, *request = NULL;
  ck_assert_int_eq(net->irecv(recv, n, (void **)data, rooms, tags, memories, none, &request), ncclSuccess);
  ck_assert_ptr_nonnull(request);
  return request;
}

/* Of a receive of two buffers the second one's message often comes before the first one's. Its place must not promise
 * the next one's, when then the first buffer has none: the sender may hear of these two in any order as well. */
START_TEST(second_comes_first)
{
  static char out[LARGE], in[2][LARGE];
  char *data[] = {in[0], in[1]};
  size_t one = 1, large = LARGE, both[] = {1, LARGE};
  void *send, *recv, *memory;
  start_tcp("wide,shuffle");
  ck_assert_int_eq(try_connect(&send, &recv), ncclSuccess);
  ck_assert_int_eq(net->regMr(recv, in, sizeof in, NCCL_PTR_HOST, &memory), ncclSuccess);
  for (int round = 0; round < 200; round++) {
    void *recvs[2] = {post(recv, 1, data, &one, memory)};
    void *sends[4] = {post_send(send, out, 1)};
    wait_all(sends, 1, recvs, 1);
    for (int i = 0; i < 3; i++) sends[i] = post_send(send, out, i == 1 ? 1 : LARGE);
    recvs[0] = post(recv, 1, data, &large, memory);
    wait_all(sends, 1, recvs, 1);
    recvs[0] = post(recv, 2, data, both, memory);
    wait_all(sends + 1, 2, recvs, 1);
    sends[0] = post_send(send, out, LARGE);
    recvs[0] = post(recv, 1, data, &large, memory);
    wait_all(sends, 1, recvs, 1);
  }
  ck_assert_int_eq(net->deregMr(recv, memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(recv), ncclSuccess);
  finish();
}
END_TEST

int main(int argc, char **argv)
{
  TCase *tcase = tcase_create("traffic");
  tcase_add_test(tcase, places_that_wait);
  tcase_add_loop_test(tcase, messages_without_packets, 0, 4);
  tcase_add_test(tcase, rails_that_differ);
  tcase_add_test(tcase, memory_without_registration);
  tcase_add_test(tcase, small_messages_ahead);
  tcase_add_test(tcase, second_comes_first);
  return run(argc, argv, tcase);
}
