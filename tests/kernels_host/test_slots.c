/* Slots and their counters: what a message says of itself, where it lies, and who is woken for it. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/check.h"
#include "kernels/host/host.h"
#include "pair.h"

/* Also of a message that is not an operation's first. */
START_TEST(test_last_message_differs)
{
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), kind / 2);
    world_cut(pair.works[0], COUNT - 50, 100);
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclInternalError);
    expect_error("rank 1 expected payload bytes 100 from rank 0 and got 50");
    for (int i = COUNT - 100; i < COUNT; i++) ck_assert_uint_eq(pair.output[i], 0xaa);
    close_pair(&pair);
  }
}
END_TEST

/* The ends of a connection count differently, a whole round of slots apart. Of LL in shared memory nothing would come.
 */
START_TEST(test_steps_differ)
{
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    if (kind == 1) continue;
    open_pair(&pair, protocol_of(kind), kind / 2);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    link->send.step = TT_SLOTS;
    atomic_store(link->send.head, TT_SLOTS);
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclInternalError);
    expect_error("rank 1 expected slot number 0 from rank 0 and got 8");
    expect_untouched(&pair);
    close_pair(&pair);
  }
}
END_TEST

/* Fills the first slot of rank 1's side as a proxy does, from rank 0's. */
static void carry_first(struct pair *pair, int protocol, struct tt_launch **launch)
{
  const struct tt_device *device = tt_host_device();
  struct world_link *link = world_link(&pair->world, 0, 0, 1);
  int moved, done;
  ck_assert_int_eq(device->launch(pair->rows[0], 1, NULL, launch), ncclSuccess);
  ck_assert_int_eq(device->progress(*launch, &moved, &done), ncclSuccess);
  ck_assert_uint_ge(atomic_load(link->send.tail), 1);
  memcpy(link->recv.slots[protocol], link->send.slots[protocol], 1024);
  link->recv.fifo[0] = link->send.fifo[0];
}

/* A network that cuts a message is noticed by its size, before what it says is believed. */
START_TEST(test_cut_message)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    struct tt_launch *sender, *receiver;
    int moved, done;
    open_pair(&pair, protocol_of(kind), true);
    carry_first(&pair, protocol_of(kind), &sender);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    link->recv.fifo[0].size--;
    atomic_store(link->recv.tail, 1);
    ck_assert_int_eq(device->launch(pair.rows[1], 1, NULL, &receiver), ncclSuccess);
    ck_assert_int_eq(device->progress(receiver, &moved, &done), ncclInternalError);
    expect_error("expected message bytes ");
    expect_untouched(&pair);
    device->finish(sender);
    device->finish(receiver);
    close_pair(&pair);
  }
}
END_TEST

/* A proxy may leave a message elsewhere than in its slot, and says where. */
START_TEST(test_message_elsewhere)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 4; kind++) {
    int protocol = protocol_of(kind), moved, done;
    bool pointer = kind / 2;
    struct pair pair;
    struct tt_launch *sender, *receiver;
    _Alignas(64) unsigned char elsewhere[1024];
    open_pair(&pair, protocol, true);
    carry_first(&pair, protocol, &sender);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    unsigned char *slots = link->recv.slots[protocol], *place = pointer ? elsewhere : slots + 3 * 1024;
    memcpy(place, slots, 1024);
    memset(slots, 0xee, 1024);
    link->recv.fifo[0].mode = pointer ? TT_FIFO_POINTER : TT_FIFO_OFFSET;
    link->recv.fifo[0].offset = 3 * 1024;
    link->recv.fifo[0].pointer = pointer ? elsewhere : NULL;
    atomic_store(link->recv.tail, 1);
    ck_assert_int_eq(device->launch(pair.rows[1], 1, NULL, &receiver), ncclSuccess);
    ck_assert_int_eq(device->progress(receiver, &moved, &done), ncclSuccess);
    ck_assert(moved && !done);
    ck_assert_mem_eq(pair.output, pair.input, 100);
    device->finish(sender);
    device->finish(receiver);
    close_pair(&pair);
  }
}
END_TEST

/* A sender's own messages lie in their slots, whatever the entry said of the one before. */
START_TEST(test_entries_are_written)
{
  for (int kind = 2; kind < 4; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), true);
    for (int s = 0; s < TT_SLOTS; s++)
      world_link(&pair.world, 0, 0, 1)->send.fifo[s] = (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .size = 1};
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclSuccess);
    ck_assert_mem_eq(pair.output, pair.input, COUNT);
    close_pair(&pair);
  }
}
END_TEST

/* A connection whose slots come from a pool has none of its own: nothing is written where they would be, nor when other
 * connections' slots are cleaned; and its entries stay as the proxy wrote them. */
START_TEST(test_pooled)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    struct tt_launch *launch;
    int moved, done, protocol = protocol_of(kind);
    _Alignas(64) unsigned char pool[TT_SLOTS][1024];
    const uint64_t start = UINT64_C(0x7ffffff8); /* cleaned from here on */
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *nowhere = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(nowhere != MAP_FAILED);
    open_pair(&pair, protocol, true);
    struct tt_conn *conn = &world_link(&pair.world, 0, 0, 1)->send, before = *conn;
    for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
      if (conn->slots[p]) conn->slots[p] = nowhere;
    conn->flags |= TT_CONN_POOLED;
    conn->step = start;
    atomic_store(conn->head, start);
    atomic_store(conn->tail, start);
    for (int s = 0; s < TT_SLOTS; s++)
      conn->fifo[s] = (struct tt_conn_fifo){.mode = TT_FIFO_POINTER, .pointer = pool[TT_SLOTS - 1 - s]};
    ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclSuccess);
    ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
    ck_assert(done);
    for (int s = 0; s < COUNT / 100; s++) {
      const struct tt_slot_header *header = (const void *)pool[TT_SLOTS - 1 - s];
      ck_assert_uint_eq(header->bytes, 100);
      ck_assert_uint_eq(header->step, start + (uint64_t)s);
      ck_assert_int_eq(conn->fifo[s].mode, TT_FIFO_POINTER);
      ck_assert_ptr_eq(conn->fifo[s].pointer, pool[TT_SLOTS - 1 - s]);
      if (kind == 0) ck_assert_mem_eq(pool[TT_SLOTS - 1 - s] + TT_SLOT_HEADER, pair.input + 100 * s, 100);
    }
    device->finish(launch);
    *conn = before;
    munmap(nowhere, bytes);
    close_pair(&pair);
  }
}
END_TEST

/* Who sleeps is woken by a message, and by room. */
START_TEST(test_bells)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    struct tt_launch *launches[2];
    int moved, done;
    open_pair(&pair, protocol_of(kind), false);
    for (int r = 0; r < 2; r++) {
      ck_assert_int_eq(device->launch(pair.rows[r], 1, NULL, &launches[r]), ncclSuccess);
      atomic_store(&pair.world.bell.sleeping, 1);
      ck_assert_int_eq(device->progress(launches[r], &moved, &done), ncclSuccess);
      ck_assert(moved);
      ck_assert_uint_eq(atomic_load(&pair.world.bell.sleeping), 0);
      ck_assert_uint_eq(atomic_load(&pair.world.bell.word), (unsigned)r + 1);
    }
    for (int r = 0; r < 2; r++) device->finish(launches[r]);
    close_pair(&pair);
  }
}
END_TEST

/* What reports say of an end that waits: whether it could go on. */
START_TEST(test_ready)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    struct tt_launch *launch;
    int moved, done, protocol = protocol_of(kind);
    open_pair(&pair, protocol, kind / 2);
    for (int r = 0; r < 2; r++) world_cut(pair.works[r], COUNT, 10);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    ck_assert(tt_host_ready(&link->send, protocol, true, 0));
    ck_assert(!tt_host_ready(&link->recv, protocol, false, 0));
    ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclSuccess);
    for (int i = 0; i < 20; i++) ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
    ck_assert(!tt_host_ready(&link->send, protocol, true, TT_SLOTS));
    atomic_store(link->send.head, 1);
    ck_assert(tt_host_ready(&link->send, protocol, true, TT_SLOTS));
    if (kind / 2) {
      /* Lines alone are no message yet. */
      memcpy(link->recv.slots[protocol], link->send.slots[protocol], 1024);
      ck_assert(!tt_host_ready(&link->recv, protocol, false, 0));
      atomic_store(link->recv.tail, 1);
    }
    ck_assert(tt_host_ready(&link->recv, protocol, false, 0));
    ck_assert(!tt_host_ready(&link->recv, protocol, false, TT_SLOTS));
    device->finish(launch);
    close_pair(&pair);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("slots");
  TCase *tcase = tcase_create("slots");
  tcase_set_timeout(tcase, 0);
  tcase_add_test(tcase, test_last_message_differs);
  tcase_add_test(tcase, test_steps_differ);
  tcase_add_test(tcase, test_cut_message);
  tcase_add_test(tcase, test_message_elsewhere);
  tcase_add_test(tcase, test_entries_are_written);
  tcase_add_test(tcase, test_pooled);
  tcase_add_test(tcase, test_bells);
  tcase_add_test(tcase, test_ready);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
