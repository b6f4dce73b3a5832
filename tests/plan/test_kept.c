/* Works that are kept: found by what their signature says, pointed at new buffers, and replaced when there are many. */
#include <check.h>
#include <stdlib.h>
#include "base/param.h"
#include "plan/kept.h"

static const struct tt_device streams = {.size = sizeof streams, .features = TT_DEVICE_STREAMS};
static const struct tt_device host = {.size = sizeof host};
static struct ncclComm comm;

static struct tt_work *new_work(const struct tt_program *program, const struct tt_task *task)
{
  struct tt_work *work = tt_pool_take_zeroed(NULL, sizeof *work + sizeof *work->channels);
  work->channels = (struct tt_work_channel *)(work + 1);
  work->channels[0].program = program;
  work->nchannels = 1;
  work->signature = (struct tt_signature){.collective = (uint8_t)task->collective,
                                          .count = task->count,
                                          .datatype = (uint8_t)task->datatype,
                                          .op = (uint8_t)task->op,
                                          .root = task->root};
  return work;
}

static const struct tt_task sum = {
    .collective = TT_FUNC_ALL_REDUCE, .count = 100, .datatype = ncclFloat32, .op = ncclSum};

START_TEST(found)
{
  struct tt_program program = {.npeers = 1};
  char in, out;
  struct tt_work *work = new_work(&program, &sum);
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 0));
  tt_kept_give(&comm, work);
  struct tt_task other[4] = {sum, sum, sum, sum};
  other[0].count = 101;
  other[1].datatype = ncclFloat16;
  other[2].op = ncclMax;
  other[3].root = 1;
  for (int i = 0; i < 4; i++) ck_assert_ptr_null(tt_kept_take(&comm, &other[i], false, 0));
  struct tt_task same = sum;
  same.input = &in;
  same.output = &out;
  ck_assert_ptr_eq(tt_kept_take(&comm, &same, false, 0), work);
  ck_assert_ptr_eq(work->input, &in);
  ck_assert_ptr_eq(work->output, &out);
  ck_assert_ptr_null(tt_kept_take(&comm, &same, false, 0)); /* it is in use */
  tt_kept_give(&comm, work);
  tt_kept_free(&comm);
}
END_TEST

/* A tuner that was asked again wants something else. */
START_TEST(other_answer)
{
  struct tt_program program = {.npeers = 1};
  struct tt_work *first = new_work(&program, &sum), *second = new_work(&program, &sum);
  first->answer = 1;
  second->answer = 2;
  tt_kept_give(&comm, first);
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 0));
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 2));
  tt_kept_give(&comm, second);
  ck_assert_ptr_eq(tt_kept_take(&comm, &sum, false, 1), first);
  ck_assert_ptr_eq(tt_kept_take(&comm, &sum, false, 2), second);
  tt_kept_give(&comm, first);
  tt_kept_give(&comm, second);
  tt_kept_free(&comm);
}
END_TEST

/* A call whose buffers all ranks have mapped is another one than a call whose buffers they have not. */
START_TEST(mapped)
{
  struct tt_program program = {.npeers = 1};
  const void *inputs[1];
  struct tt_work *plain = new_work(&program, &sum), *mapped = new_work(&program, &sum);
  mapped->member_inputs = inputs;
  tt_kept_give(&comm, plain);
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, true, 0));
  tt_kept_give(&comm, mapped);
  ck_assert_ptr_eq(tt_kept_take(&comm, &sum, true, 0), mapped);
  ck_assert_ptr_eq(tt_kept_take(&comm, &sum, false, 0), plain);
  tt_pool_give(plain);
  tt_pool_give(mapped);
  tt_kept_free(&comm);
}
END_TEST

/* A sum whose inputs are scaled by another number is another call. */
START_TEST(scaled)
{
  struct tt_program program = {.npeers = 1};
  struct tt_task twice = sum, thrice = sum;
  twice.scaled = thrice.scaled = true;
  twice.scale = 2;
  thrice.scale = 3;
  struct tt_work *work = new_work(&program, &twice);
  work->signature.op = (uint8_t)tt_plan_op(&twice);
  work->reduction.scale.bits = 2;
  tt_kept_give(&comm, work);
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 0));
  ck_assert_ptr_null(tt_kept_take(&comm, &thrice, false, 0));
  ck_assert_ptr_eq(tt_kept_take(&comm, &twice, false, 0), work);
  tt_pool_give(work);
  tt_kept_free(&comm);
}
END_TEST

/* An all-to-all in place needs an order that one between different buffers has not. */
START_TEST(apart)
{
  struct tt_program ordered = {.npeers = 1, .nsemaphores = 1}, free_of_order = {.npeers = 1};
  struct ncclComm two = {.nranks = 2};
  char memory[40];
  struct tt_task in_place = {.collective = TT_FUNC_ALL_TO_ALL, .count = 10, .datatype = ncclInt8}, between = in_place;
  in_place.input = between.input = memory;
  in_place.output = memory;
  between.output = memory + 20;
  struct tt_task over = between;
  over.output = memory + 19;
  struct tt_work *with = new_work(&ordered, &in_place), *without = new_work(&free_of_order, &between);
  two.device = &streams;
  tt_kept_give(&two, with);
  ck_assert_ptr_null(tt_kept_take(&two, &between, false, 0));
  tt_kept_give(&two, without);
  ck_assert_ptr_eq(tt_kept_take(&two, &over, false, 0), with);
  ck_assert_ptr_null(tt_kept_take(&two, &in_place, false, 0));
  ck_assert_ptr_eq(tt_kept_take(&two, &between, false, 0), without);
  tt_pool_give(with);
  tt_pool_give(without);
  tt_kept_free(&two);
}
END_TEST

/* The operation of what does not reduce is not part of it. */
START_TEST(moves_have_no_operation)
{
  struct tt_program program = {.npeers = 1};
  struct tt_task gather = {.collective = TT_FUNC_ALL_GATHER, .count = 7, .datatype = ncclInt8, .op = ncclSum};
  tt_kept_give(&comm, new_work(&program, &gather));
  gather.op = ncclMax;
  struct tt_work *work = tt_kept_take(&comm, &gather, false, 0);
  ck_assert_ptr_nonnull(work);
  tt_kept_give(&comm, work);
  tt_kept_free(&comm);
}
END_TEST

/* Sends and receives are known by the peer and their bytes, whatever their type. */
START_TEST(messages)
{
  int32_t peers[] = {3};
  struct tt_program send = {.collective = TT_FUNC_SEND, .npeers = 1, .peers = peers},
                    receive = {.collective = TT_FUNC_RECV, .npeers = 1, .peers = peers};
  const struct tt_task task = {.collective = TT_FUNC_SEND, .count = 8, .datatype = ncclFloat32, .root = 3};
  struct tt_task other[4] = {task, task, task, task};
  other[0].collective = TT_FUNC_RECV;
  other[1].root = 2;
  other[2].count = 9;
  other[3].datatype = ncclFloat64;
  struct tt_work *work = new_work(&send, &task);
  work->signature = (struct tt_signature){.collective = TT_FUNC_SEND_RECV, .count = 32, .root = 7};
  tt_kept_give(&comm, work);
  for (int i = 0; i < 4; i++) ck_assert_ptr_null(tt_kept_take(&comm, &other[i], false, 0));
  struct tt_task same = {.collective = TT_FUNC_SEND, .count = 4, .datatype = ncclFloat64, .root = 3, .op_count = 9};
  ck_assert_ptr_eq(tt_kept_take(&comm, &same, false, 0), work);
  ck_assert_uint_eq(work->op_count, 9);
  work->channels[0].program = &receive;
  tt_kept_give(&comm, work);
  ck_assert_ptr_null(tt_kept_take(&comm, &task, false, 0));
  ck_assert_ptr_eq(tt_kept_take(&comm, &other[0], false, 0), work);
  tt_kept_give(&comm, work);
  tt_kept_free(&comm);
}
END_TEST

/* A message to oneself is a copy, without a peer. */
START_TEST(own_messages)
{
  int32_t peers[] = {3};
  struct tt_program copy = {.collective = TT_FUNC_SEND}, send = {.collective = TT_FUNC_SEND, .npeers = 1};
  const struct tt_task own = {.collective = TT_FUNC_SEND, .count = 8, .datatype = ncclFloat32, .root = 2};
  struct tt_task other = own, less = own;
  other.root = 3;
  less.count = 7;
  send.peers = peers;
  struct tt_work *work = new_work(&copy, &own), *sent = new_work(&send, &other);
  work->signature = sent->signature = (struct tt_signature){.collective = TT_FUNC_SEND_RECV, .count = 32};
  work->rank = sent->rank = 2;
  tt_kept_give(&comm, work);
  ck_assert_ptr_null(tt_kept_take(&comm, &other, false, 0));
  ck_assert_ptr_null(tt_kept_take(&comm, &less, false, 0));
  tt_kept_give(&comm, sent);
  ck_assert_ptr_eq(tt_kept_take(&comm, &own, false, 0), work);
  ck_assert_ptr_null(tt_kept_take(&comm, &own, false, 0));
  tt_pool_give(work);
  tt_kept_free(&comm);
}
END_TEST

/* A work has its number from the first time that it is kept, and no other has it. */
START_TEST(numbers)
{
  struct tt_program program = {.npeers = 1};
  struct tt_work *first = new_work(&program, &sum), *second = new_work(&program, &sum);
  tt_kept_give(&comm, first);
  tt_kept_give(&comm, second);
  uint64_t number = first->repeat;
  ck_assert(number != 0 && second->repeat != 0 && number != second->repeat);
  ck_assert_ptr_nonnull(tt_kept_take(&comm, &sum, false, 0));
  ck_assert_ptr_nonnull(tt_kept_take(&comm, &sum, false, 0));
  tt_kept_give(&comm, first);
  ck_assert_uint_eq(first->repeat, number);
  tt_pool_give(second);
  tt_kept_free(&comm);
}
END_TEST

START_TEST(not_kept)
{
  struct tt_program program = {.npeers = 1}, scratch = {.npeers = 1, .nscratch = 1},
                    shared = {.npeers = 1, .shared_blocks = 1}, copy = {0};
  tt_kept_give(&comm, new_work(&scratch, &sum));
  tt_kept_give(&comm, new_work(&shared, &sum));
  tt_kept_give(&comm, new_work(&copy, &sum));
  comm.device = &host;
  tt_kept_give(&comm, new_work(&program, &sum));
  comm.device = &streams;
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 0));
}
END_TEST

/* Many different calls: the last ones are kept, and nothing leaks (as the sanitizers see). */
START_TEST(replaced)
{
  struct tt_program program = {.npeers = 1};
  struct tt_task task = sum;
  for (task.count = 1; task.count <= 1000; task.count++) tt_kept_give(&comm, new_work(&program, &task));
  for (task.count = 1; task.count <= 1000; task.count++) {
    struct tt_work *work = tt_kept_take(&comm, &task, false, 0);
    ck_assert_int_eq(work != NULL, task.count > 1000 - 256);
    tt_pool_give(work);
  }
  tt_kept_free(&comm);
}
END_TEST

/* What is used stays, however much else comes. */
START_TEST(used)
{
  struct tt_program program = {.npeers = 1};
  struct tt_task task = sum;
  tt_kept_give(&comm, new_work(&program, &sum));
  for (task.count = 1001; task.count <= 2000; task.count++) {
    tt_kept_give(&comm, new_work(&program, &task));
    struct tt_work *work = tt_kept_take(&comm, &sum, false, 0);
    ck_assert_ptr_nonnull(work);
    tt_kept_give(&comm, work);
  }
  tt_kept_free(&comm);
}
END_TEST

/* A group may have the same call many times. */
START_TEST(equal)
{
  struct tt_program program = {.npeers = 1};
  struct tt_work *works[100];
  for (int w = 0; w < 100; w++) tt_kept_give(&comm, new_work(&program, &sum));
  for (int w = 0; w < 100; w++) {
    works[w] = tt_kept_take(&comm, &sum, false, 0);
    ck_assert_ptr_nonnull(works[w]);
    for (int other = 0; other < w; other++) ck_assert_ptr_ne(works[other], works[w]);
  }
  ck_assert_ptr_null(tt_kept_take(&comm, &sum, false, 0));
  for (int w = 0; w < 100; w++) tt_pool_give(works[w]);
  tt_kept_free(&comm);
}
END_TEST

static void setup(void)
{
  comm = (struct ncclComm){.device = &streams};
}

int main(void)
{
  Suite *suite = suite_create("kept works");
  TCase *tests = tcase_create("kept");
  tcase_set_timeout(tests, 0);
  tcase_add_checked_fixture(tests, setup, NULL);
  tcase_add_test(tests, found);
  tcase_add_test(tests, other_answer);
  tcase_add_test(tests, mapped);
  tcase_add_test(tests, scaled);
  tcase_add_test(tests, apart);
  tcase_add_test(tests, moves_have_no_operation);
  tcase_add_test(tests, messages);
  tcase_add_test(tests, own_messages);
  tcase_add_test(tests, numbers);
  tcase_add_test(tests, not_kept);
  tcase_add_test(tests, replaced);
  tcase_add_test(tests, used);
  tcase_add_test(tests, equal);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
