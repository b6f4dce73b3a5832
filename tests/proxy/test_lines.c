/* LL for devices that look at lines alone: whatever comes first, header or lines, a message leaves when all of it is
 * there, and arrives in whole words. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "fake_net.h"
#include "proxy/proxy.h"

#define SLOT 384
#define CAPACITY ((SLOT - TT_SLOT_HEADER - 16) / 2)
#define MOST_LINES (1 + (CAPACITY + 7) / 8)
#define ALL_LINES ((SLOT - TT_SLOT_HEADER) / 16)
#define STEPS 60
#define LONG_TURNS 2000000
#define PERIOD UINT64_C(0xfffffff8)

struct end {
  bool send;
  struct tt_conn conn;
  _Atomic uint64_t head, tail;
  _Alignas(64) unsigned char slots[TT_SLOTS * SLOT];
  struct tt_proxy *proxy;
  struct tt_proxy_conn *proxied;
  /* Sending: what of the next message is written. */
  bool header;
  bool lines[MOST_LINES];
};

static uint32_t flag_of(uint64_t step)
{
  return (uint32_t)(step % PERIOD) + 1;
}

static size_t payload(uint64_t step)
{
  return step * 29 % (CAPACITY + 1);
}

static size_t lines_of(uint64_t step)
{
  return 1 + (payload(step) + 7) / 8;
}

static uint32_t word_of(uint64_t step, size_t line, int half)
{
  return (uint32_t)(step * 2654435761u + 2 * line + (size_t)half);
}

static _Atomic uint64_t *line_at(struct end *end, uint64_t step, size_t line)
{
  return (_Atomic uint64_t *)(void *)(end->slots + step % TT_SLOTS * SLOT + TT_SLOT_HEADER + 16 * line);
}

static void store_line(struct end *end, uint64_t step, size_t line)
{
  for (int half = 0; half < 2; half++)
    atomic_store(&line_at(end, step, line)[half], (uint64_t)flag_of(step) << 32 | word_of(step, line, half));
}

static void store_header(struct end *end, uint64_t step, uint64_t names, uint64_t bytes)
{
  struct tt_slot_header *header = (void *)(end->slots + step % TT_SLOTS * SLOT);
  header->bytes = bytes;
  header->signature.count = step;
  atomic_store((_Atomic uint64_t *)&header->step, names);
}

/* Writes one thing of the next message, by chance the header or a line; moves on when all is there. */
static void device_write(struct end *end, unsigned *seed)
{
  uint64_t step = end->conn.step;
  if ((int64_t)(step - atomic_load(&end->head)) >= TT_SLOTS) return;
  size_t count = lines_of(step), pick = (size_t)rand_r(seed) % (count + 1), left = !end->header;
  if (pick == count) {
    store_header(end, step, step, payload(step));
    end->header = true;
  } else {
    store_line(end, step, pick);
    end->lines[pick] = true;
  }
  left = !end->header;
  for (size_t line = 0; line < count; line++) left += !end->lines[line];
  if (left > 0) return;
  end->header = false;
  memset(end->lines, 0, sizeof end->lines);
  end->conn.step++;
}

/* Takes the next message if all its lines are there. */
static bool device_read(struct end *end)
{
  uint64_t step = end->conn.step;
  const struct tt_slot_header *header = (const void *)(end->slots + step % TT_SLOTS * SLOT);
  for (size_t line = 0; line < lines_of(step); line++)
    for (int half = 0; half < 2; half++)
      if (atomic_load(&line_at(end, step, line)[half]) >> 32 != flag_of(step)) return false;
  for (size_t line = 0; line < lines_of(step); line++)
    for (int half = 0; half < 2; half++)
      ck_assert_uint_eq((uint32_t)atomic_load(&line_at(end, step, line)[half]), word_of(step, line, half));
  ck_assert_uint_eq(header->step, step);
  ck_assert_uint_eq(header->bytes, payload(step));
  ck_assert_uint_eq(header->signature.count, step);
  atomic_store(&end->head, ++end->conn.step);
  return true;
}

static struct end *open_ends(const struct fake_mood *mood, uint64_t first, int ahead)
{
  struct end *ends = aligned_alloc(64, 2 * sizeof *ends);
  void *comms[2];
  fake_open(mood, &comms[0], &comms[1]);
  memset(ends, 0, 2 * sizeof *ends);
  for (int e = 0; e < 2; e++) {
    struct end *end = &ends[e];
    end->send = e == 0;
    end->conn = (struct tt_conn){.head = &end->head, .tail = &end->tail, .step = first, .flags = TT_CONN_LINES};
    end->conn.slots[TT_PROTO_LL] = end->slots;
    end->conn.slot_bytes[TT_PROTO_LL] = SLOT;
    end->head = end->tail = first;
    struct tt_proxy_conn_config config = {.send = end->send,
                                          .comm = comms[e],
                                          .conn = &end->conn,
                                          .peer = end->send ? 7 : 3,
                                          .tag = 3,
                                          .max_bytes = 1 << 20,
                                          .free_running = true,
                                          .ahead = ahead,
                                          .label = "NET/Fake/0"};
    ck_assert_int_eq(tt_proxy_create(fake_net(), end->send ? 3 : 7, &end->proxy), ncclSuccess);
    ck_assert_int_eq(tt_proxy_conn_create(end->proxy, &config, &end->proxied), ncclSuccess);
  }
  return ends;
}

static void close_ends(struct end *ends)
{
  for (int e = 0; e < 2; e++) tt_proxy_destroy(ends[e].proxy);
  free(ends);
}

static ncclResult_t progress(struct end *end)
{
  bool moved, idle;
  return tt_proxy_progress(end->proxy, &moved, &idle);
}

static void run_steps(const struct fake_mood *mood, uint64_t first, int ahead)
{
  struct end *ends = open_ends(mood, first, ahead);
  unsigned seed = mood->seed;
  for (long turns = 0; ends[1].conn.step != first + STEPS; turns++) {
    ck_assert_int_lt(turns, LONG_TURNS);
    int e = rand_r(&seed) % 2;
    if (rand_r(&seed) % 4 == 0)
      ck_assert_int_eq(progress(&ends[e]), ncclSuccess);
    else if (e == 1)
      device_read(&ends[1]);
    else if (ends[0].conn.step != first + STEPS)
      device_write(&ends[0], &seed);
  }
  for (long turns = 0; !tt_proxy_quiet(ends[0].proxy); turns++) {
    ck_assert_int_lt(turns, LONG_TURNS);
    ck_assert_int_eq(progress(&ends[0]), ncclSuccess);
  }
  for (int i = 0; i < 1000; i++) ck_assert_int_eq(progress(&ends[1]), ncclSuccess);
  struct fake_count count = fake_counts();
  ck_assert_int_eq(count.faults, 0);
  ck_assert_int_eq(count.sends, STEPS);
  ck_assert_int_eq(count.recvs, STEPS + ahead);
  ck_assert_uint_eq(ends[0].head, first + STEPS);
  close_ends(ends);
  count = fake_counts();
  ck_assert_int_eq(count.registered, 0);
  ck_assert_int_eq(count.closed, 2);
}

START_TEST(all_moods)
{
  for (unsigned seed = 0; seed < 5; seed++) {
    struct fake_mood mood = {.null_percent = 30, .slow_percent = 30, .seed = seed};
    run_steps(&mood, 0, TT_SLOTS);
    run_steps(&mood, PERIOD - 7 - seed * 3, 2);
    run_steps(&mood, (UINT64_C(1) << 31) - 9 - seed, 1);
  }
}
END_TEST

/* Without its header, or without one of its lines, a message stays where it is, and a sender that has begun is not
 * quiet. */
START_TEST(incomplete)
{
  const uint64_t step = 5;
  const size_t count = lines_of(step);
  for (size_t missing = 0; missing <= count; missing++) {
    struct end *ends = open_ends(&(struct fake_mood){.in_order = true}, step, 2);
    for (int half = 0; half < 2; half++) {
      for (size_t line = 0; line < count; line++)
        if ((line == missing) == half) store_line(&ends[0], step, line);
      if ((missing == count) == half) store_header(&ends[0], step, step, payload(step));
      for (int i = 0; i < 5; i++) ck_assert_int_eq(progress(&ends[0]), ncclSuccess);
      ck_assert_int_eq(fake_counts().sends, half);
      ck_assert(tt_proxy_quiet(ends[0].proxy) == (half == 1 || missing == count));
    }
    close_ends(ends);
  }
}
END_TEST

/* In the last eight steps of each 2^31 no line keeps an older flag. */
START_TEST(cleaned)
{
  const uint64_t first = (UINT64_C(1) << 31) - 8;
  struct end *ends = open_ends(&(struct fake_mood){.in_order = true}, first, TT_SLOTS);
  unsigned seed = 1;
  for (int i = 0; i < TT_SLOTS; i++) /* lines of long ago, of a step to come */
    for (size_t line = 0; line < ALL_LINES; line++)
      for (int half = 0; half < 2; half++)
        atomic_store(&line_at(&ends[1], first + (uint64_t)i, line)[half], UINT64_MAX);
  while (ends[0].conn.step != first + TT_SLOTS) device_write(&ends[0], &seed);
  while (ends[1].conn.step != first + TT_SLOTS) {
    for (int e = 0; e < 2; e++) ck_assert_int_eq(progress(&ends[e]), ncclSuccess);
    device_read(&ends[1]);
  }
  for (uint64_t step = first; step != first + TT_SLOTS; step++)
    for (size_t line = 0; line < ALL_LINES; line++)
      for (int half = 0; half < 2; half++)
        ck_assert_uint_eq(atomic_load(&line_at(&ends[1], step, line)[half]) >> 32,
                          flag_of(line < lines_of(step) ? step : step - TT_SLOTS));
  close_ends(ends);
}
END_TEST

/* A sender that says of itself what its slot cannot hold. */
START_TEST(too_many_lines)
{
  struct end *ends = open_ends(&(struct fake_mood){.in_order = true}, 0, 2);
  store_line(&ends[0], 0, 0);
  store_header(&ends[0], 0, 0, CAPACITY + 1);
  ck_assert_int_eq(progress(&ends[0]), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(),
                               "rank 3 to rank 7 via NET/Fake/0: the lines of step 0 are more than its slot holds"));
  close_ends(ends);
}
END_TEST

/* What comes is no message of lines: nothing of it is shown, and who waits for it is told. _i: what is wrong with it;
 * the last one is right. */
START_TEST(wrong_messages)
{
  static const struct {
    uint64_t names, bytes;
    size_t size;
    uint64_t flagged;
    const char *said;
  } cases[] = {{4, 24, TT_SLOT_HEADER + 64, 4, "have a header of another message"},
               {3, 40, TT_SLOT_HEADER + 64, 3, "have a header of another message"},
               {3, CAPACITY + 1, SLOT, 3, "have a header of another message"},
               {3, 24, TT_SLOT_HEADER + 64, 4, "have flags of another one"},
               {3, 24, TT_SLOT_HEADER + 64, 3, NULL}};
  struct end *ends = open_ends(&(struct fake_mood){.in_order = true}, 3, 2), *sender = &ends[0];
  _Alignas(64) unsigned char message[SLOT] = {0};
  void *mhandle, *request;
  tt_proxy_conn_destroy(sender->proxied);
  void *comm = fake_send_comm();
  memcpy(message, &(struct tt_slot_header){.bytes = cases[_i].bytes, .step = cases[_i].names}, TT_SLOT_HEADER);
  for (size_t at = TT_SLOT_HEADER; at < SLOT; at += 8)
    memcpy(message + at, &(uint64_t){(uint64_t)flag_of(cases[_i].flagged) << 32}, 8);
  ck_assert_int_eq(tt_net_reg_mr(fake_net(), comm, message, SLOT, NCCL_PTR_HOST, &mhandle), ncclSuccess);
  ck_assert_int_eq(tt_net_isend(fake_net(), comm, message, cases[_i].size, 3, mhandle, NULL, &request), ncclSuccess);
  for (int done = 0, size, i = 0; i < 5; i++) {
    if (!done) ck_assert_int_eq(tt_net_test(fake_net(), request, &done, &size), ncclSuccess);
    ck_assert_int_eq(progress(&ends[1]), ncclSuccess);
  }
  ck_assert_uint_eq(ends[1].tail, cases[_i].said ? 3 : 4);
  ck_assert((tt_proxy_lost(ends[1].proxy, 3) == ncclSuccess) == (cases[_i].said == NULL));
  if (cases[_i].said) {
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "rank 7 from rank 3 via NET/Fake/0: the lines of step 3"));
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), cases[_i].said));
  }
  tt_net_dereg_mr(fake_net(), comm, mhandle);
  close_ends(ends);
}
END_TEST

void add_lines(Suite *suite);
void add_lines(Suite *suite)
{
  TCase *tcase = tcase_create("lines");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, all_moods);
  tcase_add_test(tcase, incomplete);
  tcase_add_test(tcase, cleaned);
  tcase_add_test(tcase, too_many_lines);
  tcase_add_loop_test(tcase, wrong_messages, 0, 5);
  suite_add_tcase(suite, tcase);
}
