/* See ib_ports.h. */
#include "ib_ports.h"

#include <stdlib.h>
#include <string.h>

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

void stream(struct pair *pair, const char *action, int when)
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

int open_fused(struct pair *pair)
{
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1", 1);
  setenv("NCCL_IB_TIMEOUT", "12", 1);
  setenv("NCCL_IB_RETRY_CNT", "1", 1);
  start();
  int index = fuse(0, 1);
  pair_open(pair, index, index, (size_t)WINDOW * BYTES);
  return index;
}

void open_apart(struct pair *pair, size_t bytes)
{
  setenv("FAKE_VERBS_DEVICES", "fake0,fake1,fake2,fake3", 1);
  start();
  int from = fuse(0, 1), to = fuse(2, 3);
  pair_open(pair, from, to, bytes);
}
