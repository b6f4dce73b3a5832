/* Connections whose data copy engines move: credit, order, sizes, what fails, and that nothing is touched too late. */
#include <check.h>
#include <string.h>
#include "base/check.h"
#include "proxy/copy.h"

#define FIRST UINT64_C(0xfffffffffffffffd)
#define SLOT_BYTES 256

/* An engine that copies when `finish` says so. */
static struct engine {
  struct {
    void *to;
    const void *from;
    size_t bytes;
  } copies[64];
  uint64_t begun, done;
  bool fails, in_time; /* in_time: whoever asks finds one more done */
} engine;

static void finish(uint64_t upto)
{
  for (; engine.done < upto; engine.done++)
    memcpy(engine.copies[engine.done % 64].to, engine.copies[engine.done % 64].from,
           engine.copies[engine.done % 64].bytes);
}

static ncclResult_t copy(struct tt_device_context *context, void *to, const void *from, size_t bytes, uint64_t *ticket)
{
  (void)context;
  if (engine.fails) return TT_FAIL(ncclUnhandledCudaError, "the engine is broken");
  engine.copies[engine.begun % 64].to = to;
  engine.copies[engine.begun % 64].from = from;
  engine.copies[engine.begun % 64].bytes = bytes;
  *ticket = ++engine.begun;
  return ncclSuccess;
}

static ncclResult_t copied(struct tt_device_context *context, uint64_t *ticket)
{
  (void)context;
  if (engine.in_time && engine.done < engine.begun) finish(engine.done + 1);
  *ticket = engine.done;
  return ncclSuccess;
}

static const struct tt_device device = {.size = sizeof device, .name = "copier", .copy = copy, .copied = copied};

static struct link_state {
  struct tt_proxy *proxy;
  struct tt_proxy_copy *copy;
  struct tt_conn from;
  unsigned char sent[TT_SLOTS * SLOT_BYTES], got[TT_SLOTS * SLOT_BYTES];
  _Atomic uint64_t from_tail, from_head, tail, head;
  struct tt_conn_fifo from_fifo[TT_SLOTS], fifo[TT_SLOTS];
} state;

static void start(void)
{
  memset(&engine, 0, sizeof engine);
  memset(&state, 0, sizeof state);
  state.from_tail = state.from_head = state.tail = state.head = FIRST;
  state.from =
      (struct tt_conn){.head = &state.from_head, .tail = &state.from_tail, .fifo = state.from_fifo, .step = FIRST};
  state.from.slots[TT_PROTO_SIMPLE] = state.sent;
  state.from.slot_bytes[TT_PROTO_SIMPLE] = SLOT_BYTES;
  ck_assert_int_eq(tt_proxy_create(NULL, 0, &state.proxy), ncclSuccess);
  struct tt_proxy_copy_config config = {.device = &device,
                                        .from = &state.from,
                                        .to = state.got,
                                        .tail = &state.tail,
                                        .head = &state.head,
                                        .fifo = state.fifo,
                                        .peer = 7,
                                        .label = "P2P/CUMEM/CE"};
  ck_assert_int_eq(tt_proxy_copy_create(state.proxy, &config, &state.copy), ncclSuccess);
  ck_assert(tt_proxy_runs(state.proxy));
}

static void end(void)
{
  tt_proxy_copy_destroy(state.copy);
  ck_assert(!tt_proxy_runs(state.proxy));
  tt_proxy_destroy(state.proxy);
}

/* The device fills a slot. */
static void send(size_t bytes)
{
  unsigned slot = (unsigned)(state.from.step % TT_SLOTS);
  memset(state.sent + slot * SLOT_BYTES, (int)(state.from.step % 251), SLOT_BYTES);
  state.from_fifo[slot].size = (int64_t)bytes;
  state.from_tail = ++state.from.step;
}

static ncclResult_t progress(bool *moved)
{
  bool idle;
  ncclResult_t result = tt_proxy_progress(state.proxy, moved, &idle);
  if (result == ncclSuccess) ck_assert(idle); /* nobody waits for it */
  return result;
}

START_TEST(slots_pass_in_order)
{
  struct tt_proxy_unsent unsent;
  bool moved;
  start();
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert(!moved && tt_proxy_quiet(state.proxy));
  for (int i = 0; i < TT_SLOTS; i++) send(64 + 8 * (size_t)i);
  ck_assert(!tt_proxy_quiet(state.proxy));
  ck_assert(tt_proxy_look_unsent(state.proxy, &unsent));
  ck_assert_int_eq(unsent.peer, 7);
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert(moved);
  ck_assert_uint_eq(engine.begun, TT_SLOTS);
  ck_assert_uint_eq(state.tail, FIRST); /* begun is not done */
  ck_assert_uint_eq(state.from_head, FIRST);
  finish(3);
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert_uint_eq(state.tail, FIRST + 3);
  ck_assert_uint_eq(state.from_head, FIRST + 3);
  for (uint64_t step = FIRST; step != FIRST + 3; step++) {
    unsigned slot = (unsigned)(step % TT_SLOTS);
    ck_assert_int_eq(state.fifo[slot].size, state.from_fifo[slot].size);
    ck_assert_uint_eq(state.got[slot * SLOT_BYTES], step % 251);
    ck_assert_uint_eq(state.got[slot * SLOT_BYTES + state.fifo[slot].size - 1], step % 251);
    ck_assert_uint_eq(state.got[slot * SLOT_BYTES + state.fifo[slot].size], 0); /* no more than the message */
  }
  /* The receiver has read none, so the three that the sender has free again have no place there. */
  for (int i = 0; i < 3; i++) send(SLOT_BYTES);
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert_uint_eq(engine.begun, TT_SLOTS);
  state.head = FIRST + 2;
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert_uint_eq(engine.begun, TT_SLOTS + 2);
  state.head = FIRST + 3;
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  finish(engine.begun);
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert(tt_proxy_quiet(state.proxy));
  ck_assert_uint_eq(state.tail, FIRST + TT_SLOTS + 3);
  end();
}
END_TEST

START_TEST(wrong_sizes_are_refused)
{
  static const int64_t wrong[] = {0, TT_SLOT_HEADER - 1, SLOT_BYTES + 1, -1};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    bool moved;
    start();
    send((size_t)wrong[i]);
    ck_assert_int_eq(progress(&moved), ncclInternalError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 0 to rank 7 via P2P/CUMEM/CE"));
    ck_assert_uint_eq(engine.begun, 0);
    ck_assert_int_eq(progress(&moved), ncclInternalError); /* for good */
    end();
  }
}
END_TEST

START_TEST(engines_that_fail)
{
  bool moved;
  start();
  engine.fails = true;
  send(100);
  ck_assert_int_eq(progress(&moved), ncclUnhandledCudaError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "the engine is broken"));
  end();
}
END_TEST

/* A copy on its way touches memory that its owner frees next. */
START_TEST(the_end_waits_for_copies)
{
  bool moved;
  start();
  for (int i = 0; i < 5; i++) send(100);
  ck_assert_int_eq(progress(&moved), ncclSuccess);
  ck_assert_uint_lt(engine.done, 5);
  engine.in_time = true;
  end();
  ck_assert_uint_eq(engine.done, 5);
}
END_TEST

void add_copy(Suite *suite)
{
  TCase *tc = tcase_create("copy");
  tcase_add_test(tc, slots_pass_in_order);
  tcase_add_test(tc, wrong_sizes_are_refused);
  tcase_add_test(tc, engines_that_fail);
  tcase_add_test(tc, the_end_waits_for_copies);
  suite_add_tcase(suite, tc);
}
