/* Clauses about peers that die and comms that are closed early. Side 1 is the one that dies. */
#include "netabi.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 64 << 20 };

/* Tests requests, oldest first, until one reports the loss of the peer; `most` may complete before that. */
static void expect_loss_of(void **requests, int count, int most, const char *what)
{
  struct patience patience = patience_start();
  int completed = 0;
  while (completed < count) {
    int done = 0;
    ncclResult_t result = TRY(test, requests[completed], &done, NULL);
    if (result == ncclRemoteError) return;
    if (result != ncclSuccess) fail("%s: result %d, not ncclRemoteError", what, (int)result);
    completed += done;
    if (completed > most) fail("%s: %d requests completed", what, completed);
    patience_spend(&patience, what);
  }
}

static void expect_loss(void *request, const char *what)
{
  expect_loss_of(&request, 1, 0, what);
}

static void die(void)
{
  meet();
  kill(getpid(), SIGKILL);
}

static void killed_recv(void)
{
  struct connection c;
  connect_all(&c, 1);
  if (side == 1) die();
  char *data = buffer_new(1000);
  void *request = must_recv1(c.recv, data, 1000, 0);
  meet();
  expect_loss(request, "a receive from a peer that was killed");
  close_all(&c, 1);
  buffer_free(data);
}

/* More than all buffers of the system between the two can hold, whatever the plugin does with connections: sends of one
 * buffer, receives into one, so that it costs no memory. Some of them may have got through before the end. */
enum { MANY = NCCL_NET_MAX_REQUESTS };

static void killed_middle(void)
{
  struct connection c;
  char *data = buffer_new(LARGE);
  void *requests[MANY];
  const int many = promised_requests();
  connect_all(&c, 1);
  for (int i = 0; i < many; i++)
    requests[i] = side == 1 ? must_send(c.send, data, LARGE, 0) : must_recv1(c.recv, data, LARGE, 0);
  if (side == 1) {
    for (int i = 0; i < 10; i++) test_done(requests[many - 1], NULL); /* nobody reads, so this can only begin */
    die();
  }
  meet();
  expect_loss_of(requests, many, many - 1, "receives whose sender was killed in the middle");
  close_all(&c, 1);
  buffer_free(data);
}

static void killed_send(void)
{
  struct connection c;
  char *data = buffer_new(LARGE);
  void *requests[MANY];
  const int many = promised_requests();
  connect_all(&c, 1);
  if (side == 1) die();
  for (int i = 0; i < many; i++) requests[i] = must_send(c.send, data, LARGE, 0);
  meet();
  expect_loss_of(requests, many, many - 1, "sends to a peer that was killed");
  close_all(&c, 1);
  buffer_free(data);
}

/* An orderly close is a loss too for whoever still waits. */
static void closed_peer(void)
{
  struct connection c;
  char *data = buffer_new(1000);
  connect_all(&c, 1);
  if (side == 1) {
    close_sender(c.send);
    meet();
    meet();
    close_receiver(c.recv);
  } else {
    void *request = must_recv1(c.recv, data, 1000, 0);
    meet();
    expect_loss(request, "a receive from a peer that closed");
    meet();
    close_all(&c, 1);
  }
  buffer_free(data);
}

/* What was sent before an orderly close arrives nevertheless. */
static void close_after_send(void)
{
  enum { COUNT = 20, BYTES = 50000 };
  struct connection c;
  char *data = buffer_new(BYTES);
  connect_all(&c, 1);
  if (side == 1) {
    for (int i = 0; i < COUNT; i++) {
      pattern_fill(data, BYTES, (uint64_t)i);
      wait_done(must_send(c.send, data, BYTES, i % 2), NULL, "sends before a close");
    }
    close_sender(c.send);
    meet();
    close_receiver(c.recv);
  } else {
    for (int i = 0; i < COUNT; i++) {
      wait_done(must_recv1(c.recv, data, BYTES, i % 2), NULL, "messages sent before their sender closed");
      pattern_check(data, BYTES, (uint64_t)i, "messages sent before their sender closed");
    }
    meet();
    close_all(&c, 1);
  }
  buffer_free(data);
}

/* Everything closed with requests in flight; then the plugin works as before. */
static void close_in_flight(void)
{
  struct connection c, good;
  char *in = buffer_new(LARGE), *out = buffer_new(LARGE);
  for (int round = 0; round < 3; round++) {
    connect_all(&c, 1);
    for (int i = 0; i < 8; i++) {
      must_recv1(c.recv, in, LARGE, 0);
      void *send = must_send(c.send, out, LARGE, 0);
      if (round) test_done(send, NULL);
    }
    meet();
    close_all(&c, 1);
  }
  connect_all(&good, 1);
  pattern_fill(out, 1000, 4);
  void *recv = must_recv1(good.recv, in, 1000, 0);
  void *send = must_send(good.send, out, 1000, 0);
  wait_done(send, NULL, "a send after comms were closed in flight");
  wait_done(recv, NULL, "a receive after comms were closed in flight");
  pattern_check(in, 1000, 4, "a message after comms were closed in flight");
  meet();
  close_all(&good, 1);
  buffer_free(in);
  buffer_free(out);
}

const struct clause failure_clauses[] = {
    {"killed-recv", killed_recv, false, "a killed peer is ncclRemoteError at its receiver"},
    {"killed-middle", killed_middle, false, "so it is in the middle of a message"},
    {"killed-send", killed_send, false, "so it is at its sender"},
    {"closed-peer", closed_peer, false, "a closed peer is ncclRemoteError for a receive that waits"},
    {"close-after-send", close_after_send, false, "what was sent before a close arrives"},
    {"close-in-flight", close_in_flight, false, "comms can be closed with requests in flight"},
    {0}};
