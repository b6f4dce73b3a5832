/* Clauses about the optional tuttiNetCounters (tutti/counters.h). */
#include "netabi.h"

#include <pthread.h>
#include <string.h>
#include "tutti/counters.h"

static const struct tt_net_counters *table;

static void find_table(void)
{
  table = plugin_symbol(TT_NET_COUNTERS_SYMBOL);
  if (!table) skip("the plugin exports no " TT_NET_COUNTERS_SYMBOL);
  if (table->size < sizeof *table || !table->read)
    fail(TT_NET_COUNTERS_SYMBOL " has size %zu, and read at %p", table->size, (void *)table->read);
}

/* What one reading says of one comm, or with NULL of the device in use. */
struct look {
  const void *comm;
  int found;
  struct tt_counters counters;
};

static void visit(void *argument, const struct tt_counters *counters)
{
  struct look *look = argument;
  if (counters->size < sizeof *counters) fail("counters have size %zu, not %zu", counters->size, sizeof *counters);
  if (!counters->name || !counters->peer) fail("a name or a peer is NULL");
  if ((counters->what == TT_COUNTERS_DEVICE) != (counters->comm == NULL))
    fail("a device has a comm, or a comm has none");
  if (counters->comm != look->comm || (!look->comm && counters->dev != device)) return;
  look->found++;
  look->counters = *counters;
}

static struct look look_at(const void *comm)
{
  struct look look = {.comm = comm};
  ncclResult_t result = table->read(visit, &look);
  if (result != ncclSuccess) fail("read returned %d", (int)result);
  if (look.found > 1) fail("the same comm or device came %d times", look.found);
  return look;
}

static void check(const void *comm, int what, uint64_t bytes, uint64_t operations)
{
  static const char *const names[] = {"the device", "the sending comm", "the receiving comm"};
  const uint64_t always = TT_COUNTS_BYTES | TT_COUNTS_OPERATIONS;
  struct look look = look_at(comm);
  const struct tt_counters *is = &look.counters;
  if (!look.found) fail("%s is not there", names[what]);
  if (is->what != what || is->dev != device) fail("%s is shown as %d of device %d", names[what], is->what, is->dev);
  if ((is->counts & always) != always) fail("%s does not count bytes and operations", names[what]);
  if (is->bytes != bytes || is->operations != operations)
    fail("%s has %llu bytes in %llu messages, not %llu in %llu", names[what], (unsigned long long)is->bytes,
         (unsigned long long)is->operations, (unsigned long long)bytes, (unsigned long long)operations);
  if (is->queue_depth > is->queue_depth_most) fail("%s has a depth above its most", names[what]);
  if (is->queue_depth) fail("%s has %llu pending when nothing is", names[what], (unsigned long long)is->queue_depth);
  if (operations && is->counts & TT_COUNTS_QUEUE_DEPTH && !is->queue_depth_most)
    fail("%s never had anything pending", names[what]);
}

static void counted_messages(void)
{
  static const size_t sizes[] = {0, 1, 4096, 3 << 20};
  enum { COUNT = sizeof sizes / sizeof *sizes };
  char *in = buffer_new(3 << 20), *out = buffer_new(3 << 20);
  struct connection c, other;
  uint64_t bytes = 0;
  find_table();
  connect_all(&c, 1);
  check(c.send, TT_COUNTERS_SEND, 0, 0);
  for (uint64_t i = 0; i < COUNT; i++) {
    void *recv = must_recv1(c.recv, in, sizes[i], 0);
    struct look look = look_at(c.recv);
    if (look.counters.counts & TT_COUNTS_QUEUE_DEPTH && look.counters.queue_depth == 0)
      fail("a receive that waits is no part of the queue's depth");
    meet();
    void *send = must_send(c.send, out, sizes[i], 0);
    for (bool sent = false, received = false; !sent || !received;) {
      if (!sent) sent = test_done(send, NULL);
      if (!received) received = test_done(recv, NULL);
    }
    bytes += sizes[i];
    check(c.send, TT_COUNTERS_SEND, bytes, i + 1);
    check(c.recv, TT_COUNTERS_RECV, bytes, i + 1);
  }
  check(NULL, TT_COUNTERS_DEVICE, 2 * bytes, 2 * COUNT);
  meet();
  const void *closed = c.send;
  close_all(&c, 1);
  if (look_at(closed).found) fail("a comm that is closed is still shown");
  check(NULL, TT_COUNTERS_DEVICE, 2 * bytes, 2 * COUNT);
  connect_all(&other, 1);
  check(other.recv, TT_COUNTERS_RECV, 0, 0);
  meet();
  close_all(&other, 1);
  buffer_free(in);
  buffer_free(out);
}

static atomic_bool ended;

static void *read_on(void *argument)
{
  (void)argument;
  while (!atomic_load(&ended)) look_at(NULL);
  return NULL;
}

static void counted_meanwhile(void)
{
  enum { COUNT = 200, BYTES = 1000 };
  char *in = buffer_new(BYTES), *out = buffer_new(BYTES);
  pthread_t reader;
  struct connection c;
  find_table();
  if (pthread_create(&reader, NULL, read_on, NULL)) fail("no thread");
  for (int round = 0; round < 3; round++) {
    connect_all(&c, 1);
    for (int i = 0; i < COUNT; i++) {
      void *recv = must_recv1(c.recv, in, BYTES, 0), *send = must_send(c.send, out, BYTES, 0);
      wait_done(send, NULL, "a send while counters are read");
      wait_done(recv, NULL, "a receive while counters are read");
    }
    check(c.send, TT_COUNTERS_SEND, COUNT * BYTES, COUNT);
    meet();
    close_all(&c, 1);
  }
  atomic_store(&ended, true);
  pthread_join(reader, NULL);
  check(NULL, TT_COUNTERS_DEVICE, 6ull * COUNT * BYTES, 6 * COUNT);
  buffer_free(in);
  buffer_free(out);
}

const struct clause counters_clauses[] = {
    {"counted-messages", counted_messages, false, "counters agree with what was moved, for comms and devices"},
    {"counted-meanwhile", counted_meanwhile, false, "counters are read while comms are made, used and closed"},
    {0}};
