/* Clauses about single messages: what arrives, and what is said of it. */
#include "netabi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Side 0 sends `bytes` into a buffer of `room`; side 1 checks everything. */
static void one_message(struct connection *c, size_t bytes, size_t room, uint64_t seed)
{
  char what[80];
  int size = -1;
  snprintf(what, sizeof what, "a message of %zu bytes into %zu", bytes, room);
  char *data = buffer_new(side == 0 ? bytes : room);
  if (side == 0) {
    pattern_fill(data, bytes, seed);
    wait_done(must_send(c->send, data, bytes, 3), &size, what);
    if (size != (int)bytes) fail("%s: test of the send said %d", what, size);
  } else {
    wait_done(must_recv1(c->recv, data, room, 3), &size, what);
    if (size != (int)bytes) fail("%s: test of the receive said %d", what, size);
    pattern_check(data, bytes, seed, what);
    buffer_check(data, room, what);
  }
  buffer_free(data);
}

static void zero_bytes(void)
{
  struct connection c;
  connect_all(&c, 1);
  for (uint64_t i = 0; i < 10; i++) {
    one_message(&c, 0, 0, i);
    one_message(&c, 0, 100, i);
    one_message(&c, 7, 100, i);
  }
  meet();
  close_all(&c, 1);
}

static void sizes(void)
{
  static const size_t list[] = {1,      2,      3,      7,      8,       15,      16,      17,      63,      64,
                                65,     127,    128,    129,    255,     256,     1000,    4095,    4096,    4097,
                                8175,   8176,   8177,   8191,   8192,    8193,    16384,   65535,   65536,   65537,
                                131071, 131072, 131073, 524288, 1048575, 1048576, 1048577, 4194301, 12345678};
  struct connection c;
  connect_all(&c, 1);
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) one_message(&c, list[i], list[i], i);
  meet();
  close_all(&c, 1);
}

static void larger_buffer(void)
{
  static const size_t list[] = {0, 1, 100, 65536, 65537, 1000000};
  struct connection c;
  connect_all(&c, 1);
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    one_message(&c, list[i], list[i] + 1, i);
    one_message(&c, list[i], 2 * list[i] + 4096, i + 50);
  }
  meet();
  close_all(&c, 1);
}

/* An error at the receiver, not a cut message and not a write beyond the buffer. The sender may see anything; it goes
 * on until the receiver has seen it, since a plugin may send no sooner than it hears of a receive. */
static void too_large(size_t bytes, size_t room)
{
  struct connection c;
  connect_all(&c, 1);
  char *data = buffer_new(bytes);
  if (side == 0) {
    pattern_fill(data, bytes, 1);
    void *request = NULL, *mhandle = NULL;
    int done = 0;
    struct patience patience = patience_start();
    ncclResult_t result = TRY(reg, c.send, data, bytes, NCCL_PTR_HOST, &mhandle);
    while (result == ncclSuccess && !done && !heard()) {
      result = request ? TRY(test, request, &done, NULL) : TRY(isend, c.send, data, bytes, 0, mhandle, &request);
      patience_spend(&patience, "a message that is larger than its buffer");
    }
    CALL(dereg, c.send, mhandle);
    meet();
  } else {
    struct patience patience = patience_start();
    void *request = must_recv1(c.recv, data, room, 0);
    ncclResult_t result = ncclSuccess;
    for (int done = 0; result == ncclSuccess && !done;) {
      result = TRY(test, request, &done, NULL);
      if (done) fail("a message of %zu bytes was taken for a buffer of %zu", bytes, room);
      patience_spend(&patience, "the error for a message that is larger than its buffer");
    }
    if (result != ncclInvalidUsage)
      fail("a message larger than its buffer gave result %d, not ncclInvalidUsage", (int)result);
    for (size_t i = room; i < bytes; i++)
      if (data[i] != 0x5a) fail("a message of %zu bytes was written beyond its buffer of %zu", bytes, room);
    meet();
  }
  close_all(&c, 1);
  buffer_free(data);
}

static void too_large_messages(void)
{
  too_large(101, 100);
  too_large(1, 0);
  too_large(300000, 100000);
}

/* Both ways at once, large enough to fill all buffers between: nobody may wait for the other to read first. */
static void both_ways(void)
{
  enum { BYTES = 16 << 20 };
  struct connection c;
  char *out = buffer_new(BYTES), *in = buffer_new(BYTES);
  pattern_fill(out, BYTES, (uint64_t)side);
  connect_all(&c, 1);
  void *recv = must_recv1(c.recv, in, BYTES, 0), *send = must_send(c.send, out, BYTES, 0);
  struct patience patience = patience_start();
  while (recv || send) {
    if (send && test_done(send, NULL)) send = NULL;
    if (recv && test_done(recv, NULL)) recv = NULL;
    patience_spend(&patience, "16 MiB in both directions");
  }
  pattern_check(in, BYTES, (uint64_t)!side, "16 MiB in both directions");
  meet();
  close_all(&c, 1);
  buffer_free(in);
  buffer_free(out);
}

static void null_sizes(void)
{
  struct connection c;
  char *data = buffer_new(64);
  connect_all(&c, 1);
  void *request = side == 0 ? must_send(c.send, data, 64, 0) : must_recv1(c.recv, data, 64, 0);
  wait_done(request, NULL, "test with sizes NULL");
  meet();
  close_all(&c, 1);
  buffer_free(data);
}

/* ---- Whatever comes next ---- */

enum { MIXED = 1500, MIXED_WINDOW = 24 };

struct mixed {
  size_t bytes, room;
  int tag;
};

/* The k-th message, the same on both sides. Sizes stay for a while: short, long, or both in turn; most fill their
 * buffers. */
static struct mixed mixed_at(int k)
{
  static const size_t some[] = {0, 1, 64, 2000, 2049, 8191, 8192, 8193, 40000, 65536, 65537, 131072, 200001};
  enum { COUNT = sizeof some / sizeof some[0], SHORT = 6 };
  uint32_t random = (uint32_t)k * 2654435769u >> 8, phase = (uint32_t)(k / 100) % 4;
  uint32_t which = random % COUNT;
  if (phase == 0) which = SHORT + random % (COUNT - SHORT);
  if (phase == 1) which = random % SHORT;
  size_t more = random / 16 % 3 ? 0 : random / 64 % 5000;
  return (struct mixed){some[which], some[which] + more, 30 + (int)(random / 512 % 3)};
}

/* How many messages are under way at a time changes too, and so does who waits for whom. */
static int mixed_window(int k)
{
  static const int some[2][5] = {{1, MIXED_WINDOW, 3, 8, 2}, {MIXED_WINDOW, 2, 8, 1, 5}};
  return some[side][k / 60 % 5];
}

static void mixed(void)
{
  struct connection c;
  struct {
    char *data;
    void *request;
  } ring[MIXED_WINDOW];
  char what[80];
  int posted = 0, done = 0;
  connect_all(&c, 1);
  struct patience patience = patience_start();
  while (done < MIXED) {
    snprintf(what, sizeof what, "message %d of %d of mixed sizes", done, MIXED);
    if (posted < MIXED && posted - done < mixed_window(posted)) {
      struct mixed next = mixed_at(posted);
      char *data = ring[posted % MIXED_WINDOW].data = buffer_new(next.room);
      if (side == 0) pattern_fill(data, next.bytes, (uint64_t)posted);
      void *request =
          side == 0 ? post_send(c.send, data, next.bytes, next.tag) : post_recv1(c.recv, data, next.room, next.tag);
      ring[posted % MIXED_WINDOW].request = request;
      if (request)
        posted++;
      else
        buffer_free(data);
    }
    int got = -1, at = done % MIXED_WINDOW;
    struct mixed first = mixed_at(done);
    if (posted == done || !test_done(ring[at].request, &got)) {
      patience_spend(&patience, what);
      continue;
    }
    patience = patience_start();
    if (got != (int)first.bytes) fail("%s: size %d, not %zu", what, got, first.bytes);
    if (side == 1) pattern_check(ring[at].data, first.bytes, (uint64_t)done, what);
    buffer_check(ring[at].data, first.room, what);
    buffer_free(ring[at].data);
    done++;
  }
  meet();
  close_all(&c, 1);
}

const struct clause data_clauses[] = {
    {"zero-bytes", zero_bytes, false, "empty messages are messages"},
    {"sizes", sizes, false, "messages of all sizes arrive whole, and test says their size"},
    {"larger-buffer", larger_buffer, false, "a buffer may be larger than its message"},
    {"too-large", too_large_messages, false, "a message larger than its buffer is ncclInvalidUsage at the receiver"},
    {"both-ways", both_ways, false, "both directions move at once"},
    {"mixed", mixed, false, "sizes, tags and who is early may change from message to message"},
    {"null-sizes", null_sizes, false, "test takes NULL for sizes"},
    {0}};
