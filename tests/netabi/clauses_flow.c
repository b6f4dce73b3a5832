/* Clauses about many requests: limits, order, progress, threads. */
#include "netabi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t odd_size(int i)
{
  static const size_t some[] = {1, 0, 33, 4096, 100000, 8, 65537, 512};
  return some[(size_t)i % (sizeof some / sizeof some[0])];
}

/* 32 receives must fit (v6: 8), more need not; then the pool is empty, and nothing that was accepted is lost. */
static void exhaust_recvs(void)
{
  enum { MOST = 4096, ROOM = 100000 };
  static void *requests[MOST];
  struct connection c;
  connect_all(&c, 1);
  if (side == 1) {
    char *data = buffer_new(ROOM * 40), *spare = buffer_new(ROOM);
    int posted = 0;
    while (posted < MOST) {
      char *where = posted < 40 ? data + ROOM * (size_t)posted : spare;
      requests[posted] = post_recv1(c.recv, where, ROOM, 0);
      if (!requests[posted]) break;
      posted++;
    }
    if (posted < promised_requests())
      fail("only %d receives in flight; %d must be possible", posted, promised_requests());
    tell(&posted, sizeof posted);
    for (int i = 0; i < posted; i++) {
      int size = -1;
      wait_done(requests[i], &size, "receives that emptied the pool");
      if (size != (int)odd_size(i)) fail("receive %d of %d got %d bytes, not %zu", i, posted, size, odd_size(i));
      if (i < 40) pattern_check(data + ROOM * (size_t)i, odd_size(i), (uint64_t)i, "receives that emptied the pool");
    }
    /* Room again. */
    int size = -1;
    wait_done(must_recv1(c.recv, data, ROOM, 0), &size, "a receive after the pool was empty");
    if (size != (int)odd_size(posted)) fail("after the pool was empty a receive got %d bytes", size);
    buffer_free(data);
    buffer_free(spare);
  } else {
    int posted;
    char *data = buffer_new(ROOM);
    hear(&posted, sizeof posted);
    for (int i = 0; i <= posted; i++) {
      pattern_fill(data, odd_size(i), (uint64_t)i);
      wait_done(must_send(c.send, data, odd_size(i), 0), NULL, "sends to receives that emptied the pool");
    }
    buffer_free(data);
  }
  meet();
  close_all(&c, 1);
}

/* Sends until the plugin takes no more, with nobody receiving; then all of it arrives, once, in order. */
static void exhaust_sends(void)
{
  enum { MOST = 2000, BYTES = 30000 };
  static void *requests[MOST];
  struct connection c;
  char *data = buffer_new(BYTES);
  int posted = 0;
  connect_all(&c, 1);
  if (side == 0) {
    char *all = buffer_new((size_t)MOST * BYTES / 8);
    for (posted = 0; posted < MOST; posted++) {
      char *where = all + (size_t)(posted % (MOST / 8)) * BYTES;
      if (posted >= MOST / 8) break;
      pattern_fill(where, BYTES, (uint64_t)posted);
      requests[posted] = post_send(c.send, where, BYTES, 0);
      if (!requests[posted]) break;
    }
    tell(&posted, sizeof posted);
    struct patience patience = patience_start();
    for (int left = posted; left; patience_spend(&patience, "sends that emptied the pool")) {
      left = 0;
      for (int i = 0; i < posted; i++) {
        if (requests[i] && test_done(requests[i], NULL)) requests[i] = NULL;
        left += requests[i] != NULL;
      }
    }
    pattern_fill(data, BYTES, (uint64_t)posted);
    wait_done(must_send(c.send, data, BYTES, 0), NULL, "a send after the pool was empty");
    buffer_free(all);
  } else {
    hear(&posted, sizeof posted);
    for (int i = 0; i <= posted; i++) {
      wait_done(must_recv1(c.recv, data, BYTES, 0), NULL, "sends that emptied the pool");
      pattern_check(data, BYTES, (uint64_t)i, "sends that emptied the pool: order or loss");
    }
  }
  meet();
  close_all(&c, 1);
  buffer_free(data);
}

/* 32 in flight on both sides, 1200 messages, tested newest first on one side. */
static void ordering(void)
{
  enum { WINDOW = NCCL_NET_MAX_REQUESTS, MESSAGES = 1200, ROOM = 100000 };
  struct connection c;
  void *requests[WINDOW] = {NULL};
  int message[WINDOW], next = 0, done = 0;
  char *data[WINDOW];
  for (int i = 0; i < WINDOW; i++) data[i] = buffer_new(ROOM);
  connect_all(&c, 1);
  struct patience patience = patience_start();
  while (done < MESSAGES) {
    for (int i = WINDOW - 1; i >= 0; i--) {
      int size = -1;
      if (!requests[i] || !test_done(requests[i], &size)) continue;
      requests[i] = NULL;
      done++;
      if (side == 0) continue;
      if (size != (int)odd_size(message[i])) fail("message %d has %d bytes: out of order", message[i], size);
      pattern_check(data[i], odd_size(message[i]), (uint64_t)message[i], "32 requests in flight: order");
    }
    for (int i = 0; i < WINDOW && next < MESSAGES; i++) {
      if (requests[i]) continue;
      if (side == 0) pattern_fill(data[i], odd_size(next), (uint64_t)next);
      requests[i] = side == 0 ? post_send(c.send, data[i], odd_size(next), 0) : post_recv1(c.recv, data[i], ROOM, 0);
      if (!requests[i]) break;
      message[i] = next++;
    }
    patience_spend(&patience, "1200 messages with 32 in flight");
  }
  meet();
  close_all(&c, 1);
  for (int i = 0; i < WINDOW; i++) buffer_free(data[i]);
}

/* Testing only the newest request completes it: the plugin moves what stands before it too. */
static void newest_only(void)
{
  enum { COUNT = 8, BYTES = 1 << 20 };
  struct connection c;
  void *requests[COUNT];
  char *data[COUNT];
  connect_all(&c, 1);
  for (int i = 0; i < COUNT; i++) {
    data[i] = buffer_new(BYTES);
    if (side == 0) pattern_fill(data[i], BYTES, (uint64_t)i);
    requests[i] = side == 0 ? must_send(c.send, data[i], BYTES, 0) : must_recv1(c.recv, data[i], BYTES, 0);
  }
  for (int i = COUNT - 1; i >= 0; i--) wait_done(requests[i], NULL, "the newest of 8 requests, tested alone");
  for (int i = 0; i < COUNT && side == 1; i++)
    pattern_check(data[i], BYTES, (uint64_t)i, "8 requests tested backwards");
  meet();
  close_all(&c, 1);
  for (int i = 0; i < COUNT; i++) buffer_free(data[i]);
}

/* ---- Threads ---- */

struct work {
  struct connection *connection;
  uint64_t seed;
};

static void *traffic(void *arg)
{
  enum { ROUNDS = 60, BYTES = 150000 };
  struct work *work = arg;
  char *out = buffer_new(BYTES), *in = buffer_new(BYTES);
  for (int round = 0; round < ROUNDS; round++) {
    size_t bytes = round % 3 ? (size_t)round * 11 : BYTES;
    uint64_t seed = work->seed * 1000 + (uint64_t)round;
    struct patience patience = patience_start();
    pattern_fill(out, bytes, seed);
    void *recv = must_recv1(work->connection->recv, in, BYTES, 0);
    void *send = must_send(work->connection->send, out, bytes, 0);
    while (recv || send) {
      if (recv && test_done(recv, NULL)) recv = NULL;
      if (send && test_done(send, NULL)) send = NULL;
      patience_spend(&patience, "traffic in several threads");
    }
    pattern_check(in, bytes, seed, "traffic in several threads");
  }
  buffer_free(in);
  buffer_free(out);
  return NULL;
}

static void threads(void)
{
  enum { COUNT = 3 };
  struct connection c[COUNT];
  struct work work[COUNT];
  pthread_t thread[COUNT];
  connect_all(c, COUNT);
  for (int i = 0; i < COUNT; i++) {
    work[i] = (struct work){&c[i], (uint64_t)i};
    if (pthread_create(&thread[i], NULL, traffic, &work[i])) fail("no thread");
  }
  for (int i = 0; i < COUNT; i++) pthread_join(thread[i], NULL);
  meet();
  close_all(c, COUNT);
}

/* A service thread registers memory on comms whose data path another thread drives. */
static volatile int registering;

static void *register_loop(void *arg)
{
  struct connection *c = arg;
  char *memory = malloc(1 << 20);
  while (__atomic_load_n(&registering, __ATOMIC_ACQUIRE)) {
    void *comms[2] = {c->send, c->recv};
    for (int i = 0; i < 2; i++) {
      void *mhandle = NULL;
      if (net.reg(comms[i], memory, 1 << 20, NCCL_PTR_HOST, &mhandle) != ncclSuccess) fail("regMr beside isend failed");
      if (net.dereg(comms[i], mhandle) != ncclSuccess) fail("deregMr beside isend failed");
    }
  }
  free(memory);
  return NULL;
}

static void registration(void)
{
  struct connection c;
  struct work work = {&c, 5};
  pthread_t thread;
  connect_all(&c, 1);
  __atomic_store_n(&registering, 1, __ATOMIC_RELEASE);
  if (pthread_create(&thread, NULL, register_loop, &c)) fail("no thread");
  traffic(&work);
  __atomic_store_n(&registering, 0, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  meet();
  close_all(&c, 1);
}

const struct clause flow_clauses[] = {
    {"exhaust-recvs", exhaust_recvs, false, "at least 32 receives in flight (v6: 8); a NULL request loses nothing"},
    {"exhaust-sends", exhaust_sends, false, "sends ahead of receives all arrive; a NULL request loses nothing"},
    {"ordering", ordering, false, "messages keep their order with 32 in flight"},
    {"newest-only", newest_only, false, "testing one request moves those before it"},
    {"threads", threads, false, "several comms in several threads"},
    {"registration", registration, false, "memory is registered while the comm is in use"},
    {0}};
