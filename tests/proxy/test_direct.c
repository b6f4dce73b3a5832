/* Slots in a device's memory: they are registered as that, by dma-buf where that can be had, and what came is flushed
 * before the device hears of it. The network keeps it back until then. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/check.h"
#include "device.h"

#define STEPS 60
#define LONG_TURNS 2000000

static int exported = -1; /* the last descriptor */
static bool exports_fail;

static ncclResult_t export_dmabuf(struct tt_device_context *context, const void *ptr, size_t bytes, int pci, int *fd)
{
  const struct fake_dmabuf shown = {.memory = ptr, .bytes = bytes};
  ck_assert_ptr_eq(context, (void *)&exported);
  ck_assert_int_eq(pci, 1);
  *fd = -1;
  if (exports_fail) return ncclSystemError;
  *fd = exported = memfd_create("dmabuf", MFD_CLOEXEC);
  ck_assert_int_eq(pwrite(*fd, &shown, sizeof(shown), 0), sizeof(shown));
  return ncclSuccess;
}

static bool flush_fails;

static ncclResult_t flush(struct tt_device_context *context)
{
  ck_assert_ptr_eq(context, (void *)&exported);
  if (flush_fails) return TT_FAIL(ncclSystemError, "the device has fallen off the bus");
  fake_device_flush();
  return ncclSuccess;
}

static const struct tt_device device = {.export_dmabuf = export_dmabuf, .flush = flush};

static struct tt_proxy_direct how(bool cuda, bool dmabuf, bool flush)
{
  return (struct tt_proxy_direct){.device = &device,
                                  .context = (struct tt_device_context *)(void *)&exported,
                                  .cuda = cuda,
                                  .dmabuf = dmabuf,
                                  .pci = true,
                                  .flush = flush};
}

static void progress(struct end *end)
{
  bool moved, idle;
  ck_assert_int_eq(tt_proxy_progress(end->proxy, &moved, &idle), ncclSuccess);
}

/* All steps arrive, whatever the order in which the two sides and the network act. False: not all of the data. */
static bool run_steps(const struct fake_mood *mood, const struct tt_proxy_direct *direct, uint64_t first)
{
  struct end ends[2];
  unsigned seed = mood->seed;
  ends_use_direct(direct);
  ends_open(ends, mood, first, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (long turns = 0; ends[1].conn.step != first + STEPS; turns++) {
    ck_assert_int_lt(turns, LONG_TURNS);
    struct end *end = &ends[rand_r(&seed) % 2];
    if (rand_r(&seed) % 2)
      progress(end);
    else if (!end->send)
      device_recv(end, TT_PROTO_SIMPLE);
    else if (end->conn.step != first + STEPS)
      device_send(end, TT_PROTO_SIMPLE);
  }
  struct fake_count count = fake_counts();
  ck_assert_int_eq(count.of_device, 2);
  ck_assert_int_eq(count.dmabufs, direct->dmabuf && !exports_fail ? 2 : 0);
  ck_assert_int_eq(count.flushes, direct->flush ? STEPS : 0);
  ends_close(ends);
  count = fake_counts();
  ck_assert_int_eq(count.faults, 0);
  ck_assert_int_eq(count.registered, 0);
  ck_assert_int_eq(count.closed, 2);
  ends_use_direct(NULL);
  return !ends[1].wrong_data;
}

START_TEST(all_moods)
{
  for (unsigned seed = 0; seed < 12; seed++) {
    struct fake_mood mood = {.null_percent = 40, .slow_percent = 50, .in_order = seed % 2, .late = true, .seed = seed};
    struct tt_proxy_direct direct = how(seed % 3 != 0, seed % 3 != 1, true);
    ck_assert(run_steps(&mood, &direct, 0));
    ck_assert(run_steps(&mood, &direct, UINT64_MAX - 7 - seed * 11));
    direct.own = true;
    ck_assert(run_steps(&mood, &direct, 11));
    mood.late = direct.flush = direct.own = false;
    ck_assert(run_steps(&mood, &direct, 5));
  }
}
END_TEST

/* That the network of these tests notices. */
START_TEST(what_is_not_flushed_is_missing)
{
  struct fake_mood mood = {.in_order = true, .late = true};
  struct tt_proxy_direct direct = how(true, false, false);
  ck_assert(!run_steps(&mood, &direct, 0));
}
END_TEST

static void create_fails(const struct tt_proxy_direct *direct, enum fake_call failing)
{
  struct end ends[2];
  void *comms[2];
  struct tt_proxy_conn *conn;
  const struct tt_proxy_direct good = how(true, false, false);
  ends_use_direct(&good);
  ends_open(ends, &(struct fake_mood){.in_order = true}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) tt_proxy_conn_destroy(ends[e].proxied);
  fake_open(&(struct fake_mood){.failing = failing}, &comms[0], &comms[1]);
  fake_device_memory(ends[0].direct.memory, ends[0].direct.bytes);
  struct tt_proxy_conn_config config = end_config(&ends[0], comms[0]);
  void *memory = config.direct.memory;
  size_t bytes = config.direct.bytes;
  config.direct = *direct;
  config.direct.memory = memory;
  config.direct.bytes = bytes;
  ck_assert_int_ne(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclSuccess);
  ck_assert_int_eq(fake_counts().registered, 0);
  ck_assert_int_eq(fake_counts().faults, 0);
  ck_assert_int_eq(fcntl(exported, F_GETFD), -1); /* closed */
  /* The comm is still the caller's: the same connection is made with the host's memory. */
  fake_set_mood(&(struct fake_mood){.in_order = true});
  unsigned char *host = malloc(TT_SLOTS * SIMPLE_SLOT), *device_slots = ends[0].conn.slots[TT_PROTO_SIMPLE];
  config.direct = (struct tt_proxy_direct){0};
  ends[0].conn.slots[TT_PROTO_SIMPLE] = host;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclSuccess);
  tt_proxy_conn_destroy(conn);
  ends[0].conn.slots[TT_PROTO_SIMPLE] = device_slots;
  tt_net_close_recv(fake_net(), comms[1]);
  free(host);
  ends_close(ends);
  ck_assert_int_eq(fake_counts().faults, 0);
  ends_use_direct(NULL);
}

/* A dma-buf that cannot be had, or is not taken, leaves addresses, if the network takes these. */
START_TEST(registrations_that_fail)
{
  struct fake_mood mood = {.in_order = true, .failing = FAKE_DMABUF};
  struct tt_proxy_direct both = how(true, true, false), only = how(false, true, false), none = how(true, false, false);
  create_fails(&none, FAKE_REG);
  create_fails(&only, FAKE_DMABUF);
  create_fails(&only, FAKE_REG);
  create_fails(&both, FAKE_REG);
  exports_fail = true;
  create_fails(&only, FAKE_NONE);
  mood.failing = FAKE_NONE;
  ck_assert(run_steps(&mood, &both, 0));
  exports_fail = false;
}
END_TEST

static bool own_flushes;

/* Five messages that have left, for a network that then fails. Returns how many the device was shown. */
static uint64_t shown_until(enum fake_call failing, int after, unsigned seed)
{
  struct end ends[2];
  struct tt_proxy_direct direct = how(true, false, true);
  direct.own = own_flushes;
  struct fake_mood mood = {.in_order = true, .late = true, .seed = seed};
  ends_use_direct(&direct);
  ends_open(ends, &mood, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int i = 0; i < 5; i++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
  mood.failing = failing;
  mood.fail_after = after;
  mood.slow_percent = 60;
  fake_set_mood(&mood);
  for (int i = 0; i < 100; i++) progress(&ends[1]);
  ck_assert_int_ne(tt_proxy_lost(ends[1].proxy, 3), ncclSuccess);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "receiving from rank 3 via NET/Fake/0"));
  uint64_t tail = ends[1].tail;
  if (failing == FAKE_TEST) ck_assert_int_eq(fake_counts().flushes, (int)tail);
  for (uint64_t i = 0; i < tail; i++) ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE));
  ck_assert(!ends[1].wrong_data);
  ends_close(ends);
  ck_assert_int_eq(fake_counts().faults, 0);
  ends_use_direct(NULL);
  return tail;
}

/* A flush that fails is what the network failing is: whoever waits for the message hears of it, and no message comes.
 */
START_TEST(flushes_that_fail)
{
  flush_fails = own_flushes = true;
  ck_assert_uint_eq(shown_until(FAKE_NONE, 0, 1), 0);
  flush_fails = own_flushes = false;
  ck_assert_uint_eq(shown_until(FAKE_FLUSH, 0, 1), 0);
  for (unsigned seed = 0; seed < 10; seed++) {
    ck_assert_uint_eq(shown_until(FAKE_FLUSH, 2, seed), 2);
    ck_assert_uint_lt(shown_until(FAKE_TEST_FLUSH, 0, seed), 5);
  }
}
END_TEST

/* A sender may leave after its last message: those that came before the network noticed are not lost. */
START_TEST(messages_before_a_failure)
{
  uint64_t most = 0;
  for (unsigned seed = 0; seed < 40; seed++) {
    uint64_t shown = shown_until(FAKE_TEST, (int)seed % 10, seed);
    if (shown > most) most = shown;
  }
  ck_assert_uint_gt(most, 2);
}
END_TEST

/* The network may notice that the sender has left while a flush is tested: the last message is there then, and another
 * receive is refused before anybody has asked for it. */
START_TEST(message_before_a_refused_receive)
{
  struct end ends[2];
  struct tt_proxy_direct direct = how(true, false, true);
  struct fake_mood mood = {.in_order = true, .late = true};
  ends_use_direct(&direct);
  ends_open(ends, &mood, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
  for (int i = 0; i < 100 && ends[1].tail == 0; i++) progress(&ends[1]);
  ck_assert_uint_eq(ends[1].tail, 1);
  ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE)); /* a slot is free */
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
  mood.failing = FAKE_IRECV;
  fake_set_mood(&mood);
  for (int i = 0; i < 100; i++) progress(&ends[1]);
  ck_assert_uint_eq(ends[1].tail, 2);
  ends_close(ends);
  ends_use_direct(NULL);
}
END_TEST

/* So it may while messages are on their way, and others are flushed. */
START_TEST(messages_under_way_at_a_refused_receive)
{
  for (unsigned seed = 0; seed < 40; seed++) {
    struct end ends[2];
    struct tt_proxy_direct direct = how(true, false, true);
    struct fake_mood mood = {.in_order = true, .late = true, .seed = seed};
    ends_use_direct(&direct);
    ends_open(ends, &mood, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
    ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
    while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
    while (ends[1].tail == 0) progress(&ends[1]);
    for (int i = 0; i < 5; i++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
    while (!tt_proxy_quiet(ends[0].proxy)) progress(&ends[0]);
    mood.slow_percent = 70;
    fake_set_mood(&mood);
    for (unsigned i = 0; i < seed % 8; i++) progress(&ends[1]);
    ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE)); /* a slot is free */
    mood.failing = FAKE_IRECV;
    fake_set_mood(&mood);
    for (int i = 0; i < 300; i++) progress(&ends[1]);
    ck_assert_uint_eq(ends[1].tail, 6);
    for (int i = 0; i < 5; i++) ck_assert(device_recv(&ends[1], TT_PROTO_SIMPLE));
    ck_assert(!ends[1].wrong_data);
    ends_close(ends);
    ck_assert_int_eq(fake_counts().faults, 0);
    ends_use_direct(NULL);
  }
}
END_TEST

/* What a device's own pointers are to the network nobody said. */
START_TEST(no_pointers)
{
  struct end ends[2];
  bool moved, idle;
  struct tt_proxy_direct direct = how(true, false, false);
  ends_use_direct(&direct);
  ends_open(ends, &(struct fake_mood){.in_order = true}, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ends[0].fifo[0] = (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .pointer = ends[0].elsewhere, .size = 100};
  ends[0].tail = 1;
  ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "mode"));
  ends_close(ends);
  ends_use_direct(NULL);
}
END_TEST

void add_direct(Suite *suite);
void add_direct(Suite *suite)
{
  TCase *tcase = tcase_create("direct");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, all_moods);
  tcase_add_test(tcase, what_is_not_flushed_is_missing);
  tcase_add_test(tcase, registrations_that_fail);
  tcase_add_test(tcase, flushes_that_fail);
  tcase_add_test(tcase, messages_before_a_failure);
  tcase_add_test(tcase, message_before_a_refused_receive);
  tcase_add_test(tcase, messages_under_way_at_a_refused_receive);
  tcase_add_test(tcase, no_pointers);
  suite_add_tcase(suite, tcase);
}
