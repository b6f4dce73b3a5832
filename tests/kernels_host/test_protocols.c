/* The protocols' rules one by one, by small programs written by hand: signatures, aborts, order, counters, proxies. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/check.h"
#include "base/log.h"
#include "kernels/host/host.h"
#include "pair.h"

/* Each field of the signature: the receiver names it, both sides' ideas of it, and delivers nothing. */
START_TEST(test_signature)
{
  struct tt_signature changed[9];
  static const char *const names[] = {
      "sequence", "count", "root", "collective", "type", "reduction", "algorithm", "number of channels", "protocol"};
  static const char *const theirs[] = {"operation 8", "of 601 x", "root 0",     "AllReduce", "int32",
                                       "max",         "TREE",     "2 channels", NULL};
  for (int kind = 0; kind < 4; kind++) {
    for (size_t field = 0; field < TT_COUNT(names); field++) {
      struct pair pair;
      open_pair(&pair, protocol_of(kind), kind / 2);
      struct tt_signature *signature = &changed[field];
      *signature = pair.works[0]->signature;
      if (field == 0) signature->sequence = 8;
      if (field == 1) signature->count = 601;
      if (field == 2) signature->root = 0;
      if (field == 3) signature->collective = TT_FUNC_ALL_REDUCE;
      if (field == 4) signature->datatype = ncclInt32;
      if (field == 5) signature->op = ncclMax;
      if (field == 6) signature->algorithm = TT_ALGO_TREE;
      if (field == 7) signature->nchannels = 2;
      if (field == 8) signature->protocol ^= 2;
      pair.works[0]->signature = *signature;
      ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclInvalidUsage);
      expect_error(names[field]);
      expect_error("Rank 0:");
      expect_error("Rank 1:");
      if (theirs[field] != NULL) expect_error(theirs[field]);
      expect_error("of 600 x uint8, sum, root 1");
      expect_untouched(&pair);
      close_pair(&pair);
    }
  }
}
END_TEST

/* The two ends really use different protocols: neither would ever see the other's slots. */
START_TEST(test_protocols_differ)
{
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), false);
    pair.works[0]->protocol = protocol_of(kind + 1);
    pair.works[0]->signature.protocol = (uint8_t)pair.works[0]->protocol;
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclInvalidUsage);
    expect_error("protocol");
    expect_untouched(&pair);
    close_pair(&pair);
  }
}
END_TEST

/* Equal signatures, but the chunks are cut differently: an error of the library, not of its user. */
START_TEST(test_bytes_differ)
{
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), kind / 2);
    world_cut(pair.works[0], COUNT, 50);
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclInternalError);
    expect_error("rank 1 expected payload bytes 100 from rank 0 and got 50");
    expect_untouched(&pair);
    close_pair(&pair);
  }
}
END_TEST

START_TEST(test_works)
{
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), kind / 2);
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclSuccess);
    ck_assert_mem_eq(pair.output, pair.input, COUNT);
    /* One step a chunk on both ends. */
    ck_assert_uint_eq(world_link(&pair.world, 0, 0, 1)->send.step, 6);
    ck_assert_uint_eq(world_link(&pair.world, 0, 0, 1)->recv.step, 6);
    close_pair(&pair);
  }
}
END_TEST

/* The sender runs ahead by as many slots as there are, and no further; the counters say what happened. */
START_TEST(test_sender_stops_at_full_fifo)
{
  const struct tt_device *device = tt_host_device();
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    struct tt_launch *launch;
    int moved, done;
    open_pair(&pair, protocol_of(kind), false);
    world_cut(pair.works[0], COUNT, 10);
    ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclSuccess);
    for (int i = 0; i < 20; i++) ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    ck_assert(!moved && !done);
    ck_assert_uint_eq(link->send.step, TT_SLOTS);
    ck_assert_uint_eq(atomic_load(link->send.tail), kind == 0 ? TT_SLOTS : 0); /* LL has no counter */
    atomic_store(link->send.head, 1);
    ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
    ck_assert(moved && !done);
    ck_assert_uint_eq(link->send.step, TT_SLOTS + 1);
    device->finish(launch);
    close_pair(&pair);
  }
}
END_TEST

/* An LL message is believed line by line: what has not come is not invented, wherever the sender stands, and whichever
 * half of a line comes first. */
START_TEST(test_ll_line_by_line)
{
  const struct tt_device *device = tt_host_device();
  struct pair pair;
  struct tt_launch *sender, *receiver;
  int moved, done;
  open_pair(&pair, TT_PROTO_LL, false);
  for (int r = 0; r < 2; r++) world_cut(pair.works[r], 96, 100);
  ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &sender), ncclSuccess);
  ck_assert_int_eq(device->launch(pair.rows[1], 1, NULL, &receiver), ncclSuccess);
  ck_assert_int_eq(device->progress(sender, &moved, &done), ncclSuccess);
  ck_assert(done);
  /* 13 lines were written. Take them away, and give them back in halves. */
  unsigned char *slot = world_link(&pair.world, 0, 0, 1)->send.slots[TT_PROTO_LL] + TT_SLOT_HEADER, lines[13 * 16];
  memcpy(lines, slot, sizeof(lines));
  memset(slot, 0, sizeof(lines));
  for (int half = 0; half < 26; half++) {
    int place = half ^ _i;
    memcpy(slot + place * 8, lines + place * 8, 8);
    ck_assert_int_eq(device->progress(receiver, &moved, &done), ncclSuccess);
    ck_assert_int_eq(moved, half % 2);
    ck_assert_int_eq(done, half == 25);
    size_t arrived = half < 3 ? 0 : (size_t)(half - 1) / 2 * 8;
    ck_assert_mem_eq(pair.output, pair.input, arrived);
    for (size_t i = arrived; i < COUNT; i++) ck_assert_uint_eq(pair.output[i], 0xaa);
  }
  device->finish(sender);
  device->finish(receiver);
  close_pair(&pair);
}
END_TEST

/* ---- What happens between two looks: the counter cannot be read until the sender has sent all that it has ---- */

static struct {
  void *page; /* the counter's */
  size_t bytes;
  struct tt_launch *sender;
  int times, done;
} between;

static void send_meanwhile(int number)
{
  int moved = 1;
  (void)number;
  if (mprotect(between.page, between.bytes, PROT_READ | PROT_WRITE) != 0) abort();
  between.times++;
  while (moved && !between.done)
    if (tt_host_device()->progress(between.sender, &moved, &between.done) != ncclSuccess) abort();
}

/* A message in LL and one in Simple come between the receiver's look for the first, which finds nothing, and its look
 * at the counter, which tells of the second: no reason to believe that the first is in Simple. */
START_TEST(test_ll_overtaken)
{
  const struct tt_device *device = tt_host_device();
  struct sigaction action = {.sa_handler = send_meanwhile, .sa_flags = SA_NODEFER}, before;
  struct pair pair;
  struct tt_work *works[2][2];
  struct tt_launch *receiver;
  int moved, done = 0;
  open_pair(&pair, TT_PROTO_LL, false);
  for (int r = 0; r < 2; r++) {
    const struct tt_program *program = &pair.programs[r].program;
    works[r][0] = pair.works[r];
    works[r][1] = world_work(&pair.world, r, &program, 1, TT_PROTO_SIMPLE);
    works[r][1]->input = pair.input;
    works[r][1]->output = pair.output;
    works[r][1]->reduction.datatype = ncclUint8;
    works[r][1]->signature = works[r][0]->signature;
    works[r][1]->signature.sequence++;
    works[r][1]->signature.protocol = TT_PROTO_SIMPLE;
    for (int w = 0; w < 2; w++) world_cut(works[r][w], 96, 100);
  }
  between.bytes = (size_t)sysconf(_SC_PAGESIZE);
  between.page = mmap(NULL, between.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert(between.page != MAP_FAILED);
  struct world_link *link = world_link(&pair.world, 0, 0, 1);
  link->send.tail = link->recv.tail = between.page;
  ck_assert_int_eq(device->launch(works[0], 2, NULL, &between.sender), ncclSuccess);
  ck_assert_int_eq(device->launch(works[1], 2, NULL, &receiver), ncclSuccess);
  sigaction(SIGSEGV, &action, &before);
  mprotect(between.page, between.bytes, PROT_NONE);
  ck_assert_msg(device->progress(receiver, &moved, &done) == ncclSuccess, "%s", tt_log_thread_error());
  sigaction(SIGSEGV, &before, NULL);
  ck_assert_int_eq(between.times, 1);
  ck_assert(between.done);
  for (int i = 0; i < 3 && !done; i++) ck_assert_int_eq(device->progress(receiver, &moved, &done), ncclSuccess);
  ck_assert(done);
  ck_assert_mem_eq(pair.output, pair.input, 96);
  device->finish(between.sender);
  device->finish(receiver);
  for (int r = 0; r < 2; r++) world_free_work(works[r][1]);
  close_pair(&pair);
  munmap(between.page, between.bytes);
}
END_TEST

/* Every line of a slot is rewritten in the steps in which slots are cleaned, also when those steps use Simple, and with
 * the flag of eight steps ago, so that nobody takes it for a line of the message. */
START_TEST(test_ll_cleaning)
{
  for (int kind = 0; kind < 2; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), false);
    struct world_link *link = world_link(&pair.world, 0, 0, 1);
    const uint64_t start = UINT64_C(0xffffffff0);
    ck_assert_uint_eq((start + 8) & UINT64_C(0x7ffffff8), UINT64_C(0x7ffffff8));
    link->send.step = link->recv.step = start;
    atomic_store(link->send.head, start);
    atomic_store(link->send.tail, start);
    memset(link->send.slots[TT_PROTO_LL], 0x77, TT_SLOTS * 1024);
    for (int r = 0; r < 2; r++) world_cut(pair.works[r], 16, 1);
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclSuccess);
    ck_assert_mem_eq(pair.output, pair.input, 16);
    for (int s = 0; s < TT_SLOTS; s++) {
      const uint32_t *words = (const void *)(link->send.slots[TT_PROTO_LL] + s * 1024 + TT_SLOT_HEADER);
      uint64_t step = start + TT_SLOTS + (uint64_t)s; /* that cleaned it, and then wrote two lines */
      for (int w = kind == 0 ? 1 : 9; w < (1024 - TT_SLOT_HEADER) / 4; w += 2)
        ck_assert_uint_eq(words[w], (step - TT_SLOTS) % UINT64_C(0xfffffff8) + 1);
    }
    close_pair(&pair);
  }
}
END_TEST

/* A stop is seen by a work that waits, and by one that has not begun. */
START_TEST(test_abort)
{
  const struct tt_device *device = tt_host_device();
  struct pair pair;
  struct tt_launch *launch;
  int moved, done;
  open_pair(&pair, TT_PROTO_SIMPLE, false);
  ck_assert_int_eq(device->launch(pair.rows[1], 1, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
  ck_assert(!moved && !done);
  atomic_store(&pair.world.abort, 1);
  for (int again = 0; again < 2; again++) {
    ck_assert_int_eq(device->progress(launch, &moved, &done), ncclInternalError);
    ck_assert(!done);
  }
  expect_error("rank 1: aborted");
  expect_error("Broadcast");
  device->finish(launch);
  expect_untouched(&pair);
  close_pair(&pair);
}
END_TEST

/* What a launch cannot execute is refused with its reason, and a program's faults do not become wild accesses. */
START_TEST(test_refused)
{
  const struct tt_device *device = tt_host_device();
  struct pair pair;
  struct tt_launch *launch;
  int moved, done;
  open_pair(&pair, TT_PROTO_SIMPLE, false);
  pair.works[0]->protocol = TT_PROTO_LL128;
  ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclInternalError);
  ck_assert_ptr_null(launch);
  pair.works[0]->protocol = TT_PROTO_SIMPLE;
  pair.works[0]->signature.collective = TT_FUNC_ALL_REDUCE;
  pair.works[0]->reduction.datatype = ncclNumTypes;
  ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclInvalidArgument);
  pair.works[0]->reduction.datatype = ncclUint8;
  for (int fault = 0; fault < 4; fault++) {
    static const char *const reasons[] = {"larger than a slot", "no connection", "NULL", "multiples of 16"};
    if (fault == 0) world_cut(pair.works[0], COUNT * 10, 2000);
    if (fault == 1) world_cut(pair.works[0], COUNT, 100);
    struct tt_conn *conn = pair.works[0]->channels[0].send[0];
    if (fault == 1) pair.works[0]->channels[0].send[0] = NULL;
    pair.works[0]->input = fault == 2 ? NULL : pair.input;
    if (fault == 3) conn->slot_bytes[TT_PROTO_SIMPLE] -= 8;
    ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclSuccess);
    ck_assert_int_eq(device->progress(launch, &moved, &done), ncclInternalError);
    expect_error(reasons[fault]);
    device->finish(launch);
    pair.works[0]->channels[0].send[0] = conn;
  }
  close_pair(&pair);
}
END_TEST

/* Very many works in one launch: done in order, and each call of progress looks only at those that can run. A launch
 * that looked at all in each call would need ten thousand million looks here and run into the test's time limit. */
START_TEST(test_many_works)
{
  enum { MANY = 100000 };
  struct pair pair;
  open_pair(&pair, TT_PROTO_LL, false);
  struct tt_work *all[2] = {calloc(MANY, sizeof(struct tt_work)), calloc(MANY, sizeof(struct tt_work))};
  struct tt_work **rows[2];
  uint32_t *values = calloc(2 * (size_t)MANY, sizeof(uint32_t));
  for (int r = 0; r < 2; r++) {
    pair.works[r]->reduction.datatype = ncclUint32;
    world_cut(pair.works[r], 1, 1);
    rows[r] = calloc(MANY, sizeof(*rows[r]));
    for (uint32_t w = 0; w < MANY; w++) {
      all[r][w] = *pair.works[r];
      all[r][w].signature.sequence = w;
      all[r][w].input = &values[w];
      all[r][w].output = &values[MANY + w];
      rows[r][w] = &all[r][w];
    }
  }
  for (uint32_t w = 0; w < MANY; w++) values[w] = w * 17 + 1;
  ck_assert_int_eq(world_run(&pair.world, rows, MANY), ncclSuccess);
  ck_assert_mem_eq(values, values + MANY, MANY * sizeof(uint32_t));
  for (int r = 0; r < 2; r++) {
    free(all[r]);
    free(rows[r]);
  }
  free(values);
  close_pair(&pair);
}
END_TEST

/* An empty launch, and a launch that is finished before it is complete. */
START_TEST(test_launch_ends)
{
  const struct tt_device *device = tt_host_device();
  struct pair pair;
  struct tt_launch *launch;
  int moved, done, devices = 0;
  ck_assert_int_eq(device->launch(NULL, 0, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(device->progress(launch, &moved, &done), ncclSuccess);
  ck_assert(done && !moved);
  device->finish(launch);
  for (int kind = 0; kind < 2; kind++) {
    open_pair(&pair, protocol_of(kind), false);
    ck_assert_int_eq(device->launch(pair.rows[0], 1, NULL, &launch), ncclSuccess);
    device->finish(launch);
    close_pair(&pair);
  }
  ck_assert_int_eq(device->count(&devices), ncclSuccess);
  ck_assert_int_ge(devices, 4096);
  for (int p = 0; p < TT_NUM_PROTOCOLS; p++)
    ck_assert((device->default_buffer[p] != 0) == (device->protocols >> p & 1));
}
END_TEST

/* Several uses of one connection in one instruction keep the operands' order: moves before, in and after a reduction.
 */
START_TEST(test_one_connection_many_operands)
{
  static const struct tt_operand sends[] = {
      {.kind = TT_SEND, .buffer = TT_INPUT, .start = 0, .modulo = 4, .count = 1},
      {.kind = TT_SRC, .buffer = TT_INPUT, .start = 4, .modulo = 8, .count = 1},
      {.kind = TT_SEND, .buffer = TT_RESULT, .start = 4, .modulo = 8, .count = 1},
      {.kind = TT_SEND, .buffer = TT_INPUT, .start = 8, .modulo = 12, .count = 1},
  };
  static const struct tt_operand receives[] = {
      {.kind = TT_RECV, .buffer = TT_OUTPUT, .start = 0, .modulo = 4, .count = 1},
      {.kind = TT_RECV, .buffer = TT_RESULT, .start = 4, .modulo = 8, .count = 1},
      {.kind = TT_DST, .buffer = TT_OUTPUT, .start = 4, .modulo = 8, .count = 1},
      {.kind = TT_RECV, .buffer = TT_OUTPUT, .start = 8, .modulo = 12, .count = 1},
  };
  for (int kind = 0; kind < 4; kind++) {
    struct pair pair;
    open_pair(&pair, protocol_of(kind), kind / 2);
    for (int r = 0; r < 2; r++) {
      struct small *small = &pair.programs[r];
      small->program.operands = r == 0 ? sends : receives;
      small->program.noperands = small->instruction.noperands = 4;
      world_cut(pair.works[r], 20, 4); /* blocks of 20, five loops, so more slots than there are */
    }
    ck_assert_int_eq(world_run(&pair.world, pair.rows, 1), ncclSuccess);
    for (int block = 0; block < 12; block++) {
      bool moved = block % 4 == 0;
      for (int i = 0; i < 20; i++)
        ck_assert_uint_eq(pair.output[block * 20 + i], moved ? pair.input[block * 20 + i] : 0xaa);
    }
    close_pair(&pair);
  }
}
END_TEST

/* A strand that waits goes on when another has signalled, as often as it did. */
START_TEST(test_semaphores)
{
  static const struct tt_strand strands[] = {{0, 2}, {2, 2}};
  static const struct tt_instruction instructions[] = {
      {.opcode = TT_OP_WAIT, .semaphore = 1, .repeat = 2},
      {.opcode = TT_OP_DATA, .repeat = 1, .first_operand = 2, .noperands = 2},
      {.opcode = TT_OP_DATA, .repeat = 2, .first_operand = 0, .noperands = 2},
      {.opcode = TT_OP_SIGNAL, .semaphore = 1, .repeat = 2},
  };
  static const struct tt_operand operands[] = {
      {.kind = TT_SRC, .buffer = TT_INPUT, .stride = 1, .modulo = 2, .count = 1},
      {.kind = TT_DST, .buffer = TT_SCRATCH, .stride = 1, .modulo = 2, .count = 1},
      {.kind = TT_SRC, .buffer = TT_SCRATCH, .start = 1, .modulo = 2, .count = 1},
      {.kind = TT_DST, .buffer = TT_OUTPUT, .start = 0, .modulo = 1, .count = 1},
  };
  struct tt_program program = {.size = sizeof(program),
                               .parts = 1,
                               .nranks = 1,
                               .nscratch = 1,
                               .scratch_blocks = 2,
                               .nsemaphores = 2,
                               .nstrands = 2,
                               .ninstructions = 4,
                               .noperands = 4,
                               .strands = strands,
                               .instructions = instructions,
                               .operands = operands};
  const struct tt_program *programs[] = {&program};
  struct world_options options = {.nranks = 1, .seed = 3};
  struct world world;
  uint8_t input[200], output[100], scratch[200] = {0};
  void *scratches[] = {scratch};
  world_open(&world, &options);
  for (int i = 0; i < 200; i++) input[i] = (uint8_t)(i + 1);
  struct tt_work *work = world_work(&world, 0, programs, 1, TT_PROTO_SIMPLE), **rows[] = {&work};
  work->input = input;
  work->output = output;
  work->scratch = scratches;
  work->reduction.datatype = ncclUint8;
  world_cut(work, 100, 100); /* one loop, since scratch is used again by the next */
  ck_assert_int_eq(world_run(&world, rows, 1), ncclSuccess);
  ck_assert_mem_eq(output, input + 100, 100);
  ck_assert_mem_eq(scratch, input, 200);
  world_free_work(work);
  world_close(&world);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("protocols");
  TCase *tcase = tcase_create("protocols");
  tcase_set_timeout(tcase, 0);
  tcase_add_test(tcase, test_works);
  tcase_add_test(tcase, test_signature);
  tcase_add_test(tcase, test_protocols_differ);
  tcase_add_test(tcase, test_bytes_differ);
  tcase_add_test(tcase, test_sender_stops_at_full_fifo);
  tcase_add_loop_test(tcase, test_ll_line_by_line, 0, 2);
  tcase_add_test(tcase, test_ll_overtaken);
  tcase_add_test(tcase, test_ll_cleaning);
  tcase_add_test(tcase, test_abort);
  tcase_add_test(tcase, test_refused);
  tcase_add_test(tcase, test_many_works);
  tcase_add_test(tcase, test_launch_ends);
  tcase_add_test(tcase, test_one_connection_many_operands);
  tcase_add_test(tcase, test_semaphores);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
