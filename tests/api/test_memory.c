/* What communicators allocate. This program's linker leads every call of the allocator through here, which counts those
 * of the thread that asks for it. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "nccl.h"

static _Thread_local bool counts;
static _Thread_local int allocations;

#define COUNTED(result, name, parameters, arguments)                                                                   \
  result __real_##name parameters;                                                                                     \
  result __wrap_##name parameters;                                                                                     \
  result __wrap_##name parameters                                                                                      \
  {                                                                                                                    \
    allocations += counts;                                                                                             \
    return __real_##name arguments;                                                                                    \
  }
COUNTED(void *, malloc, (size_t bytes), (bytes))
COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, (void *old, size_t bytes), (old, bytes))
COUNTED(void *, aligned_alloc, (size_t to, size_t bytes), (to, bytes))
COUNTED(char *, strdup, (const char *text), (text))

static void ok(ncclResult_t result) /* the checks of `check` allocate */
{
  if (result != ncclSuccess) ck_abort_msg("result %d: %s", result, tt_log_thread_error());
}

enum { N = 3, WARM = 4, ROUNDS = 50, LARGE = 300000 };

struct world {
  ncclComm_t comms[N];
  float *data[N], *result[N];
};

static void all_reduce(struct world *world, size_t count)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(world->data[r], world->result[r], count, ncclFloat, ncclSum, world->comms[r], NULL));
  ok(ncclGroupEnd());
}

/* Each rank sends to the next, and to itself. */
static void exchange(struct world *world, size_t count)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    ok(ncclSend(world->data[r], count, ncclFloat, (r + 1) % N, world->comms[r], NULL));
    ok(ncclRecv(world->result[r], count, ncclFloat, (r + N - 1) % N, world->comms[r], NULL));
    ok(ncclSend(world->data[r], 1, ncclFloat, r, world->comms[r], NULL));
    ok(ncclRecv(world->result[r] + count, 1, ncclFloat, r, world->comms[r], NULL));
  }
  ok(ncclGroupEnd());
}

static void all_of_it(struct world *world)
{
  all_reduce(world, 10);
  all_reduce(world, LARGE);
  exchange(world, 10);
  exchange(world, LARGE);
}

START_TEST(repeated_calls)
{
  struct world world;
  ok(ncclCommInitAll(world.comms, N, NULL));
  for (int r = 0; r < N; r++) {
    world.data[r] = calloc(LARGE + 1, sizeof(float));
    world.result[r] = calloc(LARGE + 1, sizeof(float));
    world.data[r][9] = 1.0f;
  }
  counts = true;
  for (int i = 0; i < WARM; i++) all_of_it(&world);
  ck_assert_int_gt(allocations, 0);
  allocations = 0;
  for (int i = 0; i < ROUNDS; i++) all_of_it(&world);
  int after = allocations;
  counts = false;
  ck_assert_int_eq(after, 0);
  all_reduce(&world, 10);
  for (int r = 0; r < N; r++) {
    ck_assert_float_eq(world.result[r][9], N);
    ok(ncclCommDestroy(world.comms[r]));
    free(world.data[r]);
    free(world.result[r]);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("memory");
  TCase *tests = tcase_create("memory");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, repeated_calls);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
