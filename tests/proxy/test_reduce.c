/* A network that reduces: each step's result arrives once, in order, with the header that was sent. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "fake_collnet.h"
#include "proxy/reduce.h"

enum { SLOT = 256, PAYLOAD = SLOT - TT_SLOT_HEADER };

/* A rank by hand: it sends step after step, and checks what it receives. */
struct rank {
  int number;
  struct tt_conn conns[2]; /* receive, send */
  _Atomic uint64_t heads[2], tails[2];
  struct tt_conn_fifo fifos[2][TT_SLOTS];
  _Alignas(64) unsigned char slots[2][TT_SLOTS * SLOT];
  struct tt_proxy *proxy;
  struct tt_proxy_reduce *reduce;
};

static size_t elements(uint64_t step)
{
  return (size_t)(step * 7 % (PAYLOAD / 4 + 1)); /* some are none */
}

static int32_t value(uint64_t step, size_t i, int number)
{
  return (int32_t)(step * 1000 + i) * (number ? 3 : 1);
}

static ncclResult_t open_rank(struct rank *rank, int number, void *comm, uint64_t first)
{
  memset(rank, 0, sizeof(*rank));
  rank->number = number;
  for (int send = 0; send < 2; send++) {
    struct tt_conn *conn = &rank->conns[send];
    conn->slots[TT_PROTO_SIMPLE] = rank->slots[send];
    conn->slot_bytes[TT_PROTO_SIMPLE] = SLOT;
    rank->heads[send] = rank->tails[send] = conn->step = first;
    conn->head = &rank->heads[send];
    conn->tail = &rank->tails[send];
    conn->fifo = rank->fifos[send];
    conn->flags = TT_CONN_PROXIED;
  }
  ck_assert_int_eq(tt_proxy_create(NULL, number, &rank->proxy), ncclSuccess);
  const struct tt_proxy_reduce_config config = {.collnet = fake_collnet(),
                                                .comm = comm,
                                                .send = &rank->conns[1],
                                                .recv = &rank->conns[0],
                                                .label = "COLLNET/Fake/0"};
  return tt_proxy_reduce_create(rank->proxy, &config, &rank->reduce);
}

static void close_rank(struct rank *rank)
{
  tt_proxy_reduce_destroy(rank->reduce);
  tt_proxy_destroy(rank->proxy);
}

static unsigned char *slot_of(struct rank *rank, int send, uint64_t step)
{
  return rank->slots[send] + step % TT_SLOTS * SLOT;
}

static bool send_one(struct rank *rank)
{
  struct tt_conn *conn = &rank->conns[1];
  uint64_t step = conn->step;
  if (step - rank->heads[1] == TT_SLOTS) return false;
  unsigned char *slot = slot_of(rank, 1, step);
  struct tt_slot_header header = {.bytes = 4 * elements(step), .step = step, .signature = {.sequence = step + 9}};
  memcpy(slot, &header, sizeof(header));
  for (size_t i = 0; i < elements(step); i++) {
    int32_t number = value(step, i, rank->number);
    memcpy(slot + TT_SLOT_HEADER + 4 * i, &number, 4);
  }
  conn->fifo[step % TT_SLOTS] =
      (struct tt_conn_fifo){.mode = TT_FIFO_NORMAL, .size = (int64_t)(TT_SLOT_HEADER + header.bytes)};
  atomic_store(&rank->tails[1], ++conn->step);
  return true;
}

static bool receive_one(struct rank *rank)
{
  struct tt_conn *conn = &rank->conns[0];
  uint64_t step = conn->step;
  if (rank->tails[0] == step) return false;
  struct tt_slot_header header;
  const unsigned char *slot = slot_of(rank, 0, step);
  memcpy(&header, slot, sizeof(header));
  ck_assert_uint_eq(header.bytes, 4 * elements(step));
  ck_assert_uint_eq(header.step, step);
  ck_assert_uint_eq(header.signature.sequence, step + 9);
  ck_assert_int_eq(conn->fifo[step % TT_SLOTS].size, (int64_t)(TT_SLOT_HEADER + header.bytes));
  for (size_t i = 0; i < elements(step); i++) {
    int32_t number;
    memcpy(&number, slot + TT_SLOT_HEADER + 4 * i, 4);
    ck_assert_int_eq(number, value(step, i, 0) + value(step, i, 1));
  }
  atomic_store(&rank->heads[0], ++conn->step);
  return true;
}

static void run(const struct fake_mood *mood, uint64_t first, uint64_t steps)
{
  static struct rank ranks[2];
  void *comms[2];
  unsigned seed = mood->seed;
  uint64_t filled = 0;
  fake_collnet_open(mood, comms);
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(open_rank(&ranks[r], r, comms[r], first), ncclSuccess);
    ck_assert_int_eq(tt_proxy_reduce_expect(ranks[r].reduce, steps - 5, ncclInt32, ncclSum), ncclSuccess);
    ck_assert_int_eq(tt_proxy_reduce_expect(ranks[r].reduce, 5, ncclInt32, ncclSum), ncclSuccess);
  }
  for (long turn = 0; ranks[0].conns[0].step != first + steps || ranks[1].conns[0].step != first + steps; turn++) {
    ck_assert_int_lt(turn, 2000000);
    struct rank *rank = &ranks[rand_r(&seed) % 2];
    bool moved, idle;
    switch (rand_r(&seed) % 4) {
    case 0:
      if (rank->conns[1].step != first + steps) send_one(rank);
      break;
    case 1:
      receive_one(rank);
      break;
    default:
      ck_assert_int_eq(tt_proxy_progress(rank->proxy, &moved, &idle), ncclSuccess);
    }
  }
  for (uint64_t s = first; s != first + steps; s++) filled += elements(s) > 0;
  for (int r = 0; r < 2; r++) {
    bool moved, idle;
    ck_assert_int_eq(tt_proxy_progress(ranks[r].proxy, &moved, &idle), ncclSuccess);
    ck_assert(idle && !moved);
    ck_assert_uint_eq(ranks[r].heads[1], first + steps);
  }
  ck_assert_int_eq(fake_collnet_counts().sends, (int)(2 * filled));
  ck_assert_int_eq(fake_collnet_counts().registered, 4);
  for (int r = 0; r < 2; r++) close_rank(&ranks[r]);
  ck_assert_int_eq(fake_collnet_counts().registered, 0);
  ck_assert_int_eq(fake_collnet_counts().closed, 2);
  ck_assert_int_eq(fake_collnet_counts().closed_in_flight, 0);
}

START_TEST(reduces_all)
{
  for (unsigned seed = 0; seed < 20; seed++) {
    run(&(struct fake_mood){.seed = seed}, 0, 100);
    run(&(struct fake_mood){.null_percent = 80, .slow_percent = 20, .seed = seed}, 3, 200);
    run(&(struct fake_mood){.null_percent = 10, .slow_percent = 80, .seed = seed}, UINT64_MAX - 20, 200);
  }
}
END_TEST

/* The plugin's failure ends the engine with a sentence that names the network, and is kept. */
static void must_fail(const struct fake_mood *mood)
{
  static struct rank ranks[2];
  void *comms[2];
  fake_collnet_open(mood, comms);
  for (int r = 0; r < 2; r++) {
    ck_assert_int_eq(open_rank(&ranks[r], r, comms[r], 1), ncclSuccess);
    ck_assert_int_eq(tt_proxy_reduce_expect(ranks[r].reduce, 8, ncclInt32, ncclSum), ncclSuccess);
    for (int i = 0; i < 8; i++) ck_assert(send_one(&ranks[r]));
  }
  ncclResult_t result = ncclSuccess;
  bool moved, idle;
  for (int i = 0; i < 100 && result == ncclSuccess; i++) result = tt_proxy_progress(ranks[i % 2].proxy, &moved, &idle);
  ck_assert_int_eq(result, ncclSystemError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "COLLNET/Fake/0"));
  int failed = 0;
  for (int r = 0; r < 2; r++) failed += tt_proxy_progress(ranks[r].proxy, &moved, &idle) == ncclSystemError;
  ck_assert_int_ge(failed, 1);
  for (int r = 0; r < 2; r++) close_rank(&ranks[r]);
  ck_assert_int_eq(fake_collnet_counts().registered, 0);
}

START_TEST(plugin_fails)
{
  must_fail(&(struct fake_mood){.failing = FAKE_ISEND, .fail_after = 3});
  must_fail(&(struct fake_mood){.failing = FAKE_TEST, .fail_after = 3});
}
END_TEST

START_TEST(registration_fails)
{
  static struct rank rank;
  void *comms[2];
  for (int after = 0; after < 2; after++) {
    fake_collnet_open(&(struct fake_mood){.failing = FAKE_REG, .fail_after = after}, comms);
    ck_assert_int_eq(open_rank(&rank, 0, comms[0], 0), ncclSystemError);
    ck_assert_int_eq(fake_collnet_counts().registered, 0);
    close_rank(&rank);
  }
}
END_TEST

/* What a device must not hand over: other memory, another step, a size that does not fit the type. */
START_TEST(wrong_messages)
{
  for (int which = 0; which < 4; which++) {
    static struct rank rank;
    void *comms[2];
    bool moved, idle;
    fake_collnet_open(&(struct fake_mood){.seed = 1}, comms);
    ck_assert_int_eq(open_rank(&rank, 0, comms[0], 1), ncclSuccess);
    ck_assert_int_eq(tt_proxy_reduce_expect(rank.reduce, 1, ncclInt32, ncclSum), ncclSuccess);
    ck_assert(send_one(&rank));
    struct tt_slot_header *header = (struct tt_slot_header *)(void *)slot_of(&rank, 1, 1);
    if (which == 0) rank.fifos[1][1].mode = TT_FIFO_POINTER;
    if (which == 1) header->step++;
    if (which == 2) header->bytes++, rank.fifos[1][1].size++;
    if (which == 3) header->bytes = SLOT, rank.fifos[1][1].size = SLOT + TT_SLOT_HEADER;
    ck_assert_int_eq(tt_proxy_progress(rank.proxy, &moved, &idle), ncclInternalError);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "no message that can be reduced"));
    close_rank(&rank);
  }
}
END_TEST

void add_reduce(Suite *suite)
{
  TCase *tests = tcase_create("reduce");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, reduces_all);
  tcase_add_test(tests, plugin_fails);
  tcase_add_test(tests, registration_fails);
  tcase_add_test(tests, wrong_messages);
  suite_add_tcase(suite, tests);
}
