/* See traffic.h. */
#include "traffic.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "net_plugin.h"

enum { BUFFERS = 8, ROOM = 60000, TAGS = 4, WINDOW = NCCL_NET_MAX_REQUESTS, SENDS = TAGS * WINDOW };
enum { RUN = 60 };   /* messages of the same tag in a row, at most */
enum { WHEN = 300 }; /* turns before the trouble, at most */
enum { SPOILT = 0x5a };

struct message {
  int tag;
  size_t bytes;
  unsigned seed;
};

/* What is sent and received: receive r has the messages first[r] to first[r + 1]. */
struct plan {
  int receives, messages;
  int *first;
  struct message *message;
  int *queue[TAGS], queued[TAGS]; /* messages of each tag */
};

struct traffic {
  void *send, *recv;
  char *out, *in;
  void *out_memory, *in_memory;
  struct plan plan;
  int window; /* receives at a time */
  void *recvs[WINDOW], *sends[SENDS];
  int receive[WINDOW], message[SENDS]; /* whose they are */
  int next, sent[TAGS], done_recvs, done_sends;
};

static unsigned state;

void traffic_seed(unsigned seed)
{
  state = seed;
}

static int draw(int below)
{
  state = state * 1664525u + 1013904223u;
  return (int)((uint64_t)(state >> 4) * (unsigned)below >> 28);
}

/* ---- The plan ---- */

static size_t some_bytes(int kind)
{
  static const int most[] = {1, 300, 9000, ROOM};
  if (kind == 1) return (size_t)(ROOM - draw(2) * draw(ROOM / 2));
  return (size_t)draw(most[draw(4)] + 1);
}

static void plan_make(struct plan *plan, int receives)
{
  int tags = 1 + draw(TAGS), grouped = draw(3) ? 0 : draw(60), kind = draw(2), tag = 0, run = 0;
  plan->receives = receives;
  plan->first = calloc((size_t)receives + 1, sizeof *plan->first);
  plan->message = calloc((size_t)receives * BUFFERS, sizeof *plan->message);
  for (int t = 0; t < TAGS; t++) plan->queue[t] = calloc((size_t)receives * BUFFERS, sizeof *plan->queue[t]);
  for (int r = 0; r < receives; r++) {
    int n = draw(100) < grouped ? 1 + draw(BUFFERS) : 1;
    for (int i = 0; i < n; i++) {
      if (run-- == 0) {
        tag = draw(tags);
        run = draw(draw(2) ? RUN : 3);
      }
      plan->queue[tag][plan->queued[tag]++] = plan->messages;
      plan->message[plan->messages++] =
          (struct message){.tag = tag, .bytes = some_bytes(kind), .seed = (unsigned)draw(1 << 20)};
    }
    plan->first[r + 1] = plan->messages;
  }
}

static void plan_free(struct plan *plan)
{
  for (int t = 0; t < TAGS; t++) free(plan->queue[t]);
  free(plan->message);
  free(plan->first);
}

static void fill(char *data, const struct message *message)
{
  for (size_t i = 0; i < message->bytes; i++) data[i] = (char)((message->seed + i) * 2654435761u >> 13);
}

/* ---- Calls ---- */

static char *buffer(const struct traffic *traffic, int at, int i)
{
  return traffic->in + ((size_t)at * BUFFERS + (size_t)i) * ROOM;
}

static void post_receive(struct traffic *traffic)
{
  const struct plan *plan = &traffic->plan;
  void *data[BUFFERS], *memory[BUFFERS], *none[BUFFERS] = {NULL};
  size_t sizes[BUFFERS];
  int tags[BUFFERS], at = 0;
  while (at < traffic->window && traffic->recvs[at]) at++;
  if (at == traffic->window || traffic->next == plan->receives) return;
  int first = plan->first[traffic->next], n = plan->first[traffic->next + 1] - first;
  for (int i = 0; i < n; i++) {
    const struct message *message = &plan->message[first + i];
    data[i] = buffer(traffic, at, i);
    memory[i] = traffic->in_memory;
    sizes[i] = draw(2) ? message->bytes : ROOM;
    tags[i] = message->tag;
    memset(data[i], SPOILT, ROOM);
  }
  if (net->irecv(traffic->recv, n, data, sizes, tags, memory, none, &traffic->recvs[at]) != ncclSuccess)
    ck_abort_msg("receive %d: %s", traffic->next, log_text);
  if (traffic->recvs[at]) traffic->receive[at] = traffic->next++;
}

static void post_send(struct traffic *traffic)
{
  int tag = draw(TAGS), at = draw(SENDS);
  if (traffic->sends[at] || traffic->sent[tag] == traffic->plan.queued[tag]) return;
  int number = traffic->plan.queue[tag][traffic->sent[tag]];
  const struct message *message = &traffic->plan.message[number];
  char *data = traffic->out + (size_t)at * ROOM;
  fill(data, message);
  if (net->isend(traffic->send, data, message->bytes, tag, traffic->out_memory, NULL, &traffic->sends[at]) !=
      ncclSuccess)
    ck_abort_msg("send %d: %s", number, log_text);
  if (!traffic->sends[at]) return;
  traffic->message[at] = number;
  traffic->sent[tag]++;
}

static void test_send(struct traffic *traffic, int at)
{
  int done = 0, size = -1;
  if (!traffic->sends[at]) return;
  if (net->test(traffic->sends[at], &done, &size) != ncclSuccess)
    ck_abort_msg("send %d: %s", traffic->message[at], log_text);
  if (!done) return;
  ck_assert_int_eq(size, (int)traffic->plan.message[traffic->message[at]].bytes);
  memset(traffic->out + (size_t)at * ROOM, SPOILT, ROOM);
  traffic->sends[at] = NULL;
  traffic->done_sends++;
}

static void check_receive(const struct traffic *traffic, int at, const int *sizes)
{
  static char wanted[ROOM];
  int number = traffic->receive[at], first = traffic->plan.first[number];
  for (int i = 0; first + i < traffic->plan.first[number + 1]; i++) {
    const struct message *message = &traffic->plan.message[first + i];
    memset(wanted, SPOILT, ROOM);
    fill(wanted, message);
    ck_assert_msg(sizes[i] == (int)message->bytes, "buffer %d of receive %d: %d bytes, not %zu", i, number, sizes[i],
                  message->bytes);
    ck_assert_msg(memcmp(wanted, buffer(traffic, at, i), ROOM) == 0, "buffer %d of receive %d is wrong", i, number);
  }
}

static void test_receive(struct traffic *traffic, int at)
{
  int done = 0, sizes[BUFFERS];
  if (!traffic->recvs[at]) return;
  if (net->test(traffic->recvs[at], &done, sizes) != ncclSuccess)
    ck_abort_msg("receive %d: %s", traffic->receive[at], log_text);
  if (!done) return;
  check_receive(traffic, at, sizes);
  traffic->recvs[at] = NULL;
  traffic->done_recvs++;
}

/* Some calls of a kind, one after the other. Often only one of the requests is tested. */
static void take_turn(struct traffic *traffic)
{
  int kind = draw(4), at = draw(WINDOW);
  bool one = draw(2);
  for (int left = 1 + draw(draw(4) ? 8 : 80); left > 0; left--) {
    if (kind == 0) post_receive(traffic);
    if (kind == 1) post_send(traffic);
    if (kind == 2) test_send(traffic, draw(SENDS));
    if (kind == 3) test_receive(traffic, one ? at : draw(WINDOW));
  }
}

/* ---- The connection ---- */

static void open_both(struct traffic *traffic, int device)
{
  char handle[NCCL_NET_HANDLE_MAXSIZE];
  void *listener;
  size_t out_bytes = (size_t)SENDS * ROOM, in_bytes = (size_t)WINDOW * BUFFERS * ROOM;
  ck_assert_int_eq(net->listen(context, device, handle, &listener), ncclSuccess);
  ck_assert_int_eq(net_meet(device, handle, listener, &traffic->send, &traffic->recv), ncclSuccess);
  ck_assert_int_eq(net->closeListen(listener), ncclSuccess);
  traffic->out = malloc(out_bytes);
  traffic->in = malloc(in_bytes);
  ck_assert_int_eq(net->regMr(traffic->send, traffic->out, out_bytes, NCCL_PTR_HOST, &traffic->out_memory),
                   ncclSuccess);
  ck_assert_int_eq(net->regMr(traffic->recv, traffic->in, in_bytes, NCCL_PTR_HOST, &traffic->in_memory), ncclSuccess);
}

static void close_both(struct traffic *traffic)
{
  ck_assert_int_eq(net->deregMr(traffic->send, traffic->out_memory), ncclSuccess);
  ck_assert_int_eq(net->deregMr(traffic->recv, traffic->in_memory), ncclSuccess);
  ck_assert_int_eq(net->closeSend(traffic->send), ncclSuccess);
  ck_assert_int_eq(net->closeRecv(traffic->recv), ncclSuccess);
  free(traffic->out);
  free(traffic->in);
}

void random_traffic(int device, int receives, void (*trouble)(void))
{
  static struct traffic traffic;
  traffic = (struct traffic){.window = 1 + draw(WINDOW)};
  plan_make(&traffic.plan, receives);
  open_both(&traffic, device);
  int turns = 0, when = draw(WHEN);
  uint64_t end = now_ms() + LONG_MS;
  while (traffic.done_recvs < receives || traffic.done_sends < traffic.plan.messages) {
    if (trouble && turns++ == when) trouble();
    take_turn(&traffic);
    if (now_ms() >= end)
      ck_abort_msg("%d of %d receives and %d of %d sends are done: %s", traffic.done_recvs, receives,
                   traffic.done_sends, traffic.plan.messages, log_text);
  }
  close_both(&traffic);
  plan_free(&traffic.plan);
}
