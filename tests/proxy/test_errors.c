/* What goes wrong is named, kept, and leaves nothing behind. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "device.h"

static const struct fake_mood calm = {.in_order = true};

/* Drives the end until it fails; the error must be kept. */
static ncclResult_t run_into_error(struct end *end)
{
  bool moved, idle;
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 100 && result == ncclSuccess; i++) result = tt_proxy_progress(end->proxy, &moved, &idle);
  ck_assert_int_eq(tt_proxy_progress(end->proxy, &moved, &idle), result);
  return result;
}

static void says(const char *a, const char *b, const char *c)
{
  const char *text = tt_log_thread_error();
  ck_assert_msg(strstr(text, a) && strstr(text, b) && strstr(text, c), "it says: %s", text);
}

/* A device that writes nonsense into the FIFO. */
static void bad_entry(struct tt_conn_fifo entry, const char *what)
{
  struct end ends[2];
  ends_open(ends, &calm, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ends[0].fifo[0] = entry;
  ends[0].tail = 1;
  ck_assert_int_eq(run_into_error(&ends[0]), ncclInternalError);
  says("rank 7", "NET/Fake/0", what);
  ck_assert_int_eq(fake_counts().sends, 0);
  ends_close(ends);
}

START_TEST(bad_entries)
{
  bad_entry((struct tt_conn_fifo){.size = TT_SLOT_HEADER - 1}, "does not fit");
  bad_entry((struct tt_conn_fifo){.size = SIMPLE_SLOT + 1}, "does not fit");
  bad_entry((struct tt_conn_fifo){.size = -1}, "does not fit");
  bad_entry((struct tt_conn_fifo){.mode = 3, .size = 64}, "mode");
  bad_entry((struct tt_conn_fifo){.mode = TT_FIFO_OFFSET, .offset = -1, .size = 64}, "outside");
  bad_entry((struct tt_conn_fifo){.mode = TT_FIFO_OFFSET, .offset = TT_SLOTS * SIMPLE_SLOT, .size = 64}, "outside");
  bad_entry((struct tt_conn_fifo){.mode = TT_FIFO_OFFSET, .offset = TT_SLOTS * SIMPLE_SLOT - 64, .size = 65},
            "does not fit");
}
END_TEST

START_TEST(largest_message_of_a_network)
{
  struct end ends[2];
  void *comms[2];
  ends_open(ends, &calm, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ck_assert_int_eq(fake_counts().registered, 4);
  for (int e = 0; e < 2; e++) tt_proxy_conn_destroy(ends[e].proxied);
  fake_open(&calm, &comms[0], &comms[1]);
  struct tt_proxy_conn_config config = end_config(&ends[0], comms[0]);
  struct tt_proxy_conn *conn;
  config.max_bytes = SIMPLE_SLOT - 1;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclInvalidUsage);
  ck_assert_ptr_null(conn);
  says("NCCL_BUFFSIZE", "1024", "1023");
  ck_assert_int_eq(fake_counts().registered, 0); /* the first protocol's was given back */
  config.max_bytes = SIMPLE_SLOT;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclSuccess);
  /* A message elsewhere obeys the limit too. */
  ck_assert_int_eq(tt_proxy_expect(conn, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ends[0].fifo[0] =
      (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .pointer = ends[0].elsewhere, .size = SIMPLE_SLOT + 1};
  ends[0].tail = 1;
  ck_assert_int_eq(run_into_error(&ends[0]), ncclInternalError);
  says("does not fit", "1025", "1024");
  ends_close(ends);
}
END_TEST

START_TEST(registration_fails)
{
  struct end ends[2];
  void *comms[2];
  ends_open(ends, &calm, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) tt_proxy_conn_destroy(ends[e].proxied);
  fake_open(&(struct fake_mood){.failing = FAKE_REG, .fail_after = 1}, &comms[0], &comms[1]);
  struct tt_proxy_conn_config config = end_config(&ends[0], comms[0]);
  struct tt_proxy_conn *conn;
  ck_assert_int_eq(tt_proxy_conn_create(ends[0].proxy, &config, &conn), ncclSystemError);
  says("NET/Fake/0", "8192", "ulimit -l");
  ck_assert_int_eq(fake_counts().registered, 0);
  ck_assert_int_eq(fake_counts().closed, 0); /* the comm stays the caller's */
  ends_close(ends);
}
END_TEST

static void plugin_fails(enum fake_call call, int end, const char *what)
{
  struct end ends[2];
  ends_open(ends, &(struct fake_mood){.in_order = true, .failing = call, .fail_after = 2}, 0, TT_FIFO_NORMAL,
            TT_FIFO_NORMAL);
  ck_assert_int_eq(tt_proxy_expect(ends[end].proxied, TT_PROTO_SIMPLE, 8), ncclSuccess);
  for (int i = 0; i < 8 && end == 0; i++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  ck_assert_int_eq(run_into_error(&ends[end]), ncclRemoteError);
  says(end == 0 ? "rank 7" : "rank 3", "NET/Fake/0", what);
  ends_close(ends);
  struct fake_count count = fake_counts();
  ck_assert_int_eq(count.registered, 0);
  ck_assert_int_eq(count.in_flight, 0);
  ck_assert_int_eq(count.faults, 0);
}

START_TEST(plugin_errors)
{
  plugin_fails(FAKE_ISEND, 0, "sending to");
  plugin_fails(FAKE_TEST, 0, "sending to");
  plugin_fails(FAKE_IRECV, 1, "receiving from");
  plugin_fails(FAKE_TEST, 1, "receiving from");
}
END_TEST

/* A network that reports another size than was sent. */
static void wrong_size(int change, const char *what)
{
  struct end ends[2];
  ends_open(ends, &(struct fake_mood){.in_order = true, .change_size = change}, 1, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  bool moved, idle = false;
  while (!idle) ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclSuccess);
  ck_assert_int_eq(run_into_error(&ends[1]), ncclInternalError);
  says("rank 3", "NET/Fake/0", what);
  ck_assert_uint_eq(ends[1].tail, 1); /* never published */
  ends_close(ends);
}

START_TEST(wrong_sizes)
{
  wrong_size(-1000, "wrong size");
  wrong_size(+1000000, "wrong size");
}
END_TEST

/* Whether a message is the right one is the executor's to say: it gets the size that came. */
START_TEST(size_is_handed_on)
{
  struct end ends[2];
  ends_open(ends, &(struct fake_mood){.in_order = true, .change_size = -1}, 1, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
  bool moved, idle = false;
  while (!idle) ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclSuccess);
  idle = false;
  while (!idle) ck_assert_int_eq(tt_proxy_progress(ends[1].proxy, &moved, &idle), ncclSuccess);
  ck_assert_uint_eq(ends[1].tail, 2);
  ck_assert_int_eq(ends[1].conn.fifo[1].size, ends[0].conn.fifo[1].size - 1);
  ends_close(ends);
}
END_TEST

START_TEST(expected_without_a_buffer)
{
  struct end ends[2];
  ends_open(ends, &calm, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_LL128, 1), ncclInternalError);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_NUM_PROTOCOLS, 1), ncclInternalError);
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, -1, 1), ncclInternalError);
  ends_close(ends);
}
END_TEST

/* Closed with work in flight, in the modes that hold registrations of their own. */
START_TEST(closed_in_flight)
{
  static const int modes[] = {TT_FIFO_NORMAL, TT_FIFO_OFFSET, TT_FIFO_POINTER};
  for (int m = 0; m < 3; m++) {
    struct end ends[2];
    bool moved, idle;
    ends_open(ends, &(struct fake_mood){.slow_percent = 100, .null_percent = 50, .seed = 9}, 0, modes[m], modes[m]);
    for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_expect(ends[e].proxied, TT_PROTO_SIMPLE, 50), ncclSuccess);
    for (int i = 0; i < 8; i++) ck_assert(device_send(&ends[0], TT_PROTO_SIMPLE));
    for (int i = 0; i < 8; i++)
      for (int e = 0; e < 2; e++) ck_assert_int_eq(tt_proxy_progress(ends[e].proxy, &moved, &idle), ncclSuccess);
    ck_assert_int_gt(fake_counts().in_flight, 2);
    tt_proxy_conn_destroy(ends[0].proxied); /* alone, and with its proxy */
    ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclSuccess);
    ck_assert(idle && !moved);
    ends_close(ends);
    struct fake_count count = fake_counts();
    ck_assert_int_gt(count.closed_in_flight, 2);
    ck_assert_int_eq(count.in_flight, 0);
    ck_assert_int_eq(count.closed, 2);
    ck_assert_int_eq(count.registered, 0);
    ck_assert_int_eq(count.faults, 0);
  }
  tt_proxy_conn_destroy(NULL);
  tt_proxy_destroy(NULL);
}
END_TEST

void add_errors(Suite *suite)
{
  TCase *tc = tcase_create("errors");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, bad_entries);
  tcase_add_test(tc, largest_message_of_a_network);
  tcase_add_test(tc, registration_fails);
  tcase_add_test(tc, plugin_errors);
  tcase_add_test(tc, wrong_sizes);
  tcase_add_test(tc, size_is_handed_on);
  tcase_add_test(tc, expected_without_a_buffer);
  tcase_add_test(tc, closed_in_flight);
  suite_add_tcase(suite, tc);
}
