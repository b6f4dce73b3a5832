/* net-socket with several tags on one connection: messages that come before their receive are kept, but the sender of a
 * flood is told to pause, so that memory stays bounded; other tags pass; and nothing is lost or reordered. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "socket_fixture.h"

enum { FLOOD = 300, BYTES = 1 << 20, FLOOD_TAG = 10, OTHER_TAG = 11 };

static char *flood, *got;

static void *post_recv(void *recv, void *data, size_t room, int tag)
{
  void *request = NULL, *mhandle = NULL, *phandle = NULL;
  ck_assert_int_eq(net->irecv(recv, 1, &data, &room, &tag, &mhandle, &phandle, &request), ncclSuccess);
  return request;
}

static bool done(void *request)
{
  int done = 0;
  ck_assert_int_eq(net->test(request, &done, NULL), ncclSuccess);
  return done;
}

/* Message i of the flood begins 64 bytes behind message i - 1 with its number, so they overlap but for their heads. */
struct sender {
  void *comm, *requests[FLOOD];
  int posted, completed;
};

static void pump(struct sender *sender)
{
  while (sender->posted < FLOOD) {
    char *data = flood + (size_t)sender->posted * 64;
    void *request = NULL;
    ck_assert_int_eq(net->isend(sender->comm, data, BYTES, FLOOD_TAG, NULL, NULL, &request), ncclSuccess);
    if (!request) break;
    sender->requests[sender->posted++] = request;
  }
  while (sender->completed < sender->posted && done(sender->requests[sender->completed])) sender->completed++;
}

START_TEST(flood_is_paused_and_another_tag_passes)
{
  struct sender sender = {0};
  void *recv, *out = NULL;
  connect_self(&sender.comm, &recv);
  char other[16] = "";
  void *in = post_recv(recv, other, sizeof other, OTHER_TAG);
  /* Both ends run until nothing has moved for a while; the plugin's threads may need some to begin. */
  uint64_t end = now_ms() + LONG_MS;
  for (int still = 0, before = -1; still < 3000; still = sender.completed == before ? still + 1 : 0) {
    before = sender.completed;
    if (before == 0 && now_ms() < end) still = 0;
    pump(&sender);
    ck_assert_msg(!done(in), "a receive completed without its message");
  }
  /* The pause comes after 1 MiB; what is on its way then is the socket buffers' affair, some megabytes on each side. */
  ck_assert_int_ge(sender.completed, 1);
  ck_assert_msg(sender.completed < 64, "%d MiB were sent though nobody wants them", sender.completed);

  ck_assert_int_eq(net->isend(sender.comm, "it passed", 10, OTHER_TAG, NULL, NULL, &out), ncclSuccess);
  ck_assert_ptr_nonnull(out);
  for (end = now_ms() + LONG_MS; now_ms() < end && !done(in);)
    if (out && done(out)) out = NULL;
  ck_assert_str_eq(other, "it passed");

  for (int i = 0; i < FLOOD; i++) {
    int number = -1;
    bool complete = false;
    in = post_recv(recv, got, BYTES, FLOOD_TAG);
    for (end = now_ms() + LONG_MS; now_ms() < end && !complete;) {
      complete = done(in);
      pump(&sender);
    }
    ck_assert_msg(complete, "message %d of the flood did not arrive after the pause", i);
    memcpy(&number, got, sizeof number);
    ck_assert_int_eq(number, i);
  }
  struct tt_counters sent = read_counters(sender.comm), received = read_counters(recv);
  ck_assert_uint_ge(sent.clear_to_sends, 1);
  ck_assert_uint_eq(sent.clear_to_sends, received.clear_to_sends);
  ck_assert_uint_ge(sent.clear_to_send_waits, 1);
  ck_assert_uint_ge(sent.refused, 1);
  net->closeSend(sender.comm);
  net->closeRecv(recv);
}
END_TEST

/* The sender closes while a part of its messages waits for receives: they arrive all the same, and in order. */
START_TEST(early_messages_survive_the_senders_close)
{
  enum { COUNT = 30 };
  void *send, *recv, *requests[2 * COUNT];
  int left = 2 * COUNT;
  connect_self(&send, &recv);
  static int numbers[COUNT];
  void *first = post_recv(recv, got, BYTES, OTHER_TAG); /* nothing of this tag before all of the other are sent */
  for (int i = 0; i < 2 * COUNT; i++) {
    int tag = i < COUNT ? FLOOD_TAG : OTHER_TAG;
    numbers[i % COUNT] = i % COUNT;
    ck_assert_int_eq(net->isend(send, &numbers[i % COUNT], sizeof numbers[0], tag, NULL, NULL, &requests[i]),
                     ncclSuccess);
    ck_assert_ptr_nonnull(requests[i]);
  }
  for (uint64_t end = now_ms() + LONG_MS; left && now_ms() < end;)
    for (int i = 0; i < 2 * COUNT; i++)
      if (requests[i] && done(requests[i])) requests[i] = NULL, left--;
  ck_assert_int_eq(left, 0);
  net->closeSend(send);
  for (int tag = OTHER_TAG; tag >= FLOOD_TAG; tag--)
    for (int i = 0; i < COUNT; i++) {
      int number = -1;
      void *in = first ? first : post_recv(recv, got, BYTES, tag);
      first = NULL;
      bool complete = false;
      for (uint64_t end = now_ms() + LONG_MS; now_ms() < end && !complete;) complete = done(in);
      ck_assert_msg(complete, "message %d of tag %d was lost", i, tag);
      memcpy(&number, got, sizeof number);
      ck_assert_int_eq(number, i);
    }
  net->closeRecv(recv);
}
END_TEST

int main(int argc, char **argv)
{
  flood = calloc(1, BYTES + 64 * FLOOD);
  got = malloc(BYTES);
  if (!flood || !got) return 2;
  for (int i = 0; i < FLOOD; i++) memcpy(flood + (size_t)i * 64, &i, sizeof i);
  TCase *tcase = tcase_create("tags");
  tcase_add_test(tcase, flood_is_paused_and_another_tag_passes);
  tcase_add_test(tcase, early_messages_survive_the_senders_close);
  int result = run_socket_suite(argc, argv, tcase);
  free(flood);
  free(got);
  return result;
}
