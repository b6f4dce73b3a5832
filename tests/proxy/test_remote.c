/* A connection that another rank's proxy serves: the sender's engine and the relay's, with a desk between them, in one
 * process. What either writes there may be wrong, and harms neither. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/log.h"
#include "device.h"
#include "proxy/remote.h"

#define OPERATIONS 300   /* more than a desk has room for */
#define DESK_BYTES 65536 /* whole pages */
_Static_assert(sizeof(struct tt_proxy_desk) <= DESK_BYTES, "a desk has room");

static const struct fake_mood calm = {.in_order = true};

/* ends[0] is the relay's engine, on the slots that the sender's device fills. */
struct relayed {
  struct end ends[2];
  struct tt_proxy_desk *desk;
  struct tt_desk_reader reader;
  struct tt_doorbell bell;
  struct tt_proxy *proxy; /* the sender's */
  struct tt_proxy_conn *proxied;
};

static void open_relayed(struct relayed *r, const struct fake_mood *mood, uint64_t first)
{
  ends_use_pool(0);
  ends_open(r->ends, mood, first, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  r->desk = aligned_alloc(DESK_BYTES, DESK_BYTES);
  memset(r->desk, 0, sizeof(*r->desk));
  r->reader = (struct tt_desk_reader){.expected = first};
  memset(&r->bell, 0, sizeof(r->bell));
  struct tt_proxy_remote_config config = {
      .conn = &r->ends[0].conn, .desk = r->desk, .bell = &r->bell, .peer = 7, .relay = 2, .label = "NET/Fake/0(2)"};
  ck_assert_int_eq(tt_proxy_create(fake_net(), 3, &r->proxy), ncclSuccess);
  ck_assert_int_eq(tt_proxy_remote_create(r->proxy, &config, &r->proxied), ncclSuccess);
}

static void close_relayed(struct relayed *r)
{
  tt_proxy_destroy(r->proxy);
  ends_close(r->ends);
  free(r->desk);
}

static int protocol_of(int operation)
{
  return operation % 2 ? TT_PROTO_LL : TT_PROTO_SIMPLE;
}

static uint64_t steps_of(int operation)
{
  return (uint64_t)(operation % 5 + 1);
}

/* Which operation a device is at. */
static int protocol_at(uint64_t steps)
{
  int operation = 0;
  for (; steps >= steps_of(operation); operation++) steps -= steps_of(operation);
  return protocol_of(operation);
}

static void run(const struct fake_mood *mood, uint64_t first)
{
  struct relayed r;
  open_relayed(&r, mood, first);
  uint64_t total = 0;
  for (int i = 0; i < OPERATIONS; i++) {
    ck_assert_int_eq(tt_proxy_expect(r.proxied, protocol_of(i), steps_of(i)), ncclSuccess);
    ck_assert_int_eq(tt_proxy_expect(r.ends[1].proxied, protocol_of(i), steps_of(i)), ncclSuccess);
    total += steps_of(i);
  }
  unsigned seed = mood->seed;
  bool moved, idle = false, more;
  for (long turns = 0; !idle || r.ends[1].conn.step != first + total; turns++) {
    ck_assert_int_lt(turns, 2000000);
    switch (rand_r(&seed) % 5) {
    case 0:
      for (int e = 0; e < 2; e++) {
        struct end *end = &r.ends[e];
        if (end->conn.step == first + total) continue;
        int protocol = protocol_at(end->conn.step - first);
        if (end->send)
          device_send(end, protocol);
        else
          device_recv(end, protocol);
      }
      break;
    case 1:
      ck_assert_int_eq(tt_proxy_desk_take(r.desk, &r.reader, r.ends[0].proxied, &more), ncclSuccess);
      break;
    case 2:
      ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
      break;
    default:
      ck_assert_int_eq(tt_proxy_progress(r.ends[rand_r(&seed) % 2].proxy, &moved, &more), ncclSuccess);
    }
  }
  ck_assert(!r.ends[1].wrong_data);
  ck_assert_uint_eq(r.ends[0].head, first + total);
  struct tt_proxy_state state;
  ck_assert(tt_proxy_look(r.proxy, r.proxied, &state));
  ck_assert_uint_eq(state.done, first + total);
  ck_assert_uint_eq(state.expected, first + total);
  ck_assert_int_eq(state.active, 0);
  close_relayed(&r);
}

START_TEST(flow)
{
  run(&calm, 0);
  for (unsigned seed = 0; seed < 3; seed++)
    run(&(struct fake_mood){.null_percent = 40, .slow_percent = 60, .seed = seed}, UINT64_MAX - 20);
}
END_TEST

/* The sender is not through before the relay says that all was sent. */
START_TEST(waits_for_the_relay)
{
  struct relayed r;
  bool moved, idle;
  open_relayed(&r, &calm, 0);
  ck_assert_int_eq(tt_proxy_expect(r.proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ck_assert(device_send(&r.ends[0], TT_PROTO_SIMPLE));
  atomic_store(&r.bell.sleeping, 1);
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && !idle);
  ck_assert_uint_eq(atomic_load(&r.bell.sleeping), 0); /* it was rung */
  atomic_store(&r.bell.sleeping, 1);
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
  ck_assert(!moved && !idle);
  ck_assert_uint_eq(atomic_load(&r.bell.sleeping), 1); /* not without need */
  r.ends[0].head = 1;
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && idle);
  close_relayed(&r);
}
END_TEST

static void says(const char *a, const char *b, const char *c)
{
  const char *text = tt_log_thread_error();
  ck_assert_msg(strstr(text, a) && strstr(text, b) && strstr(text, c), "it says: %s", text);
}

START_TEST(the_relay_fails)
{
  struct relayed r;
  bool moved, idle;
  open_relayed(&r, &calm, 0);
  tt_proxy_desk_fail(r.desk, ncclSystemError, "the cable is out");
  tt_proxy_desk_fail(r.desk, ncclInternalError, "something else");          /* the first counts */
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess); /* nothing is asked of it */
  ck_assert_int_eq(tt_proxy_expect(r.proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSystemError);
  says("rank 3: sending to rank 7", "NET/Fake/0(2), through rank 2", "the cable is out");
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSystemError); /* kept */
  close_relayed(&r);
  /* A result that does not exist, and a text without an end. */
  open_relayed(&r, &calm, 0);
  tt_proxy_desk_fail(r.desk, (ncclResult_t)77, "");
  memset(r.desk->why, 'x', sizeof(r.desk->why));
  ck_assert_int_eq(tt_proxy_desk_failure(r.desk, 3, 2, 7, "NET/Fake/0(2)"), ncclRemoteError);
  says("rank 7", "rank 2", "xxxx");
  close_relayed(&r);
}
END_TEST

static struct relayed *between; /* the relay of which acts between two looks of the sender */

static void send_and_fail(int number)
{
  (void)number;
  if (mprotect(between->desk, DESK_BYTES, PROT_READ | PROT_WRITE) != 0) abort();
  atomic_store(&between->ends[0].head, 1);
  tt_proxy_desk_fail(between->desk, ncclRemoteError, "it was aborted");
}

/* It has sent all before, which the sender, that has looked at the slots already, sees when it looks again. */
START_TEST(the_relay_fails_afterwards)
{
  struct sigaction action = {.sa_handler = send_and_fail}, before;
  struct relayed r;
  bool moved, idle;
  open_relayed(&r, &calm, 0);
  ck_assert_int_eq(tt_proxy_expect(r.proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ck_assert(device_send(&r.ends[0], TT_PROTO_SIMPLE));
  ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
  between = &r;
  sigaction(SIGSEGV, &action, &before);
  mprotect(r.desk, DESK_BYTES, PROT_NONE);
  ck_assert_msg(tt_proxy_progress(r.proxy, &moved, &idle) == ncclSuccess, "%s", tt_log_thread_error());
  sigaction(SIGSEGV, &before, NULL);
  ck_assert(r.desk->state & TT_DESK_FAILED);
  if (!idle) ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclSuccess);
  ck_assert(moved && idle);
  close_relayed(&r);
}
END_TEST

/* A head that is not between what was sent and what was filled. */
START_TEST(the_relay_lies)
{
  static const uint64_t heads[] = {99, 102, 50, 1000000};
  for (unsigned i = 0; i < 4; i++) {
    struct relayed r;
    bool moved, idle;
    open_relayed(&r, &calm, 100);
    ck_assert_int_eq(tt_proxy_expect(r.proxied, TT_PROTO_SIMPLE, 4), ncclSuccess);
    ck_assert(device_send(&r.ends[0], TT_PROTO_SIMPLE));
    r.ends[0].head = heads[i];
    ck_assert_int_eq(tt_proxy_progress(r.proxy, &moved, &idle), ncclRemoteError);
    says("rank 2", "rank 3 sends to rank 7", "claims");
    close_relayed(&r);
  }
}
END_TEST

START_TEST(the_sender_lies)
{
  struct tt_desk_operation wrong[] = {{.end = 100, .protocol = TT_PROTO_SIMPLE}, /* of no steps */
                                      {.end = 99, .protocol = TT_PROTO_SIMPLE},  /* backwards */
                                      {.end = 101, .protocol = TT_PROTO_LL128},  /* no such slots */
                                      {.end = 101, .protocol = TT_NUM_PROTOCOLS},
                                      {.end = 101, .protocol = -1}};
  for (unsigned i = 0; i < 6; i++) {
    struct relayed r;
    bool more;
    open_relayed(&r, &calm, 100);
    r.desk->operations[0] = wrong[i % 5];
    r.desk->announced = i < 5 ? 1 : TT_DESK_OPERATIONS + 1;
    ck_assert_int_ne(tt_proxy_desk_take(r.desk, &r.reader, r.ends[0].proxied, &more), ncclSuccess);
    ck_assert_uint_eq(r.desk->taken, 0);
    close_relayed(&r);
  }
}
END_TEST

/* Its pointers are of another process. */
START_TEST(pointers_are_refused)
{
  void *comms[2];
  bool moved, idle;
  struct end ends[2];
  ends_open(ends, &calm, 0, TT_FIFO_NORMAL, TT_FIFO_NORMAL);
  tt_proxy_conn_destroy(ends[0].proxied);
  tt_proxy_conn_destroy(ends[1].proxied);
  fake_open(&calm, &comms[0], &comms[1]);
  for (int e = 0; e < 2; e++) {
    struct tt_proxy_conn_config config = end_config(&ends[e], comms[e]);
    config.foreign = e == 0;
    ck_assert_int_eq(tt_proxy_conn_create(ends[e].proxy, &config, &ends[e].proxied), ncclSuccess);
  }
  ck_assert_int_eq(tt_proxy_expect(ends[0].proxied, TT_PROTO_SIMPLE, 1), ncclSuccess);
  ends[0].fifo[0] = (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .pointer = ends[0].elsewhere, .size = 64};
  ends[0].tail = 1;
  ck_assert_int_eq(tt_proxy_progress(ends[0].proxy, &moved, &idle), ncclInternalError);
  says("rank 7", "NET/Fake/0", "mode");
  ck_assert_int_eq(fake_counts().sends, 0);
  ends_close(ends);
}
END_TEST

void add_remote(Suite *suite)
{
  TCase *tc = tcase_create("remote");
  tcase_set_timeout(tc, 120);
  tcase_add_test(tc, flow);
  tcase_add_test(tc, waits_for_the_relay);
  tcase_add_test(tc, the_relay_fails);
  tcase_add_test(tc, the_relay_fails_afterwards);
  tcase_add_test(tc, the_relay_lies);
  tcase_add_test(tc, the_sender_lies);
  tcase_add_test(tc, pointers_are_refused);
  suite_add_tcase(suite, tc);
}
