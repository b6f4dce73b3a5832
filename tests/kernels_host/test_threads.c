/* Two threads drive the two ends of connections: what a thread finds in a slot was written before it was published. Of
 * most use under ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/host/host.h"
#include "world.h"

#define RANKS 2
#define COUNT 3000
#define TIMES 40
/* Progress calls that move nothing before a thread gives up; each of them yields the processor. */
#define PATIENCE 20000000L

struct rank {
  struct tt_work **works;
  ncclResult_t result;
};

static void *drive(void *arg)
{
  struct rank *rank = arg;
  const struct tt_device *device = tt_host_device();
  struct tt_launch *launch;
  int moved, done = 0;
  rank->result = device->launch(rank->works, TIMES, NULL, &launch);
  for (long idle = 0; rank->result == ncclSuccess && !done && idle < PATIENCE; idle++) {
    rank->result = device->progress(launch, &moved, &done);
    if (moved)
      idle = 0;
    else
      sched_yield();
  }
  if (rank->result == ncclSuccess && !done) rank->result = ncclSystemError;
  device->finish(launch);
  return NULL;
}

/* All-reduces of changing protocol and size, back to back, so that slots are used again and again. */
START_TEST(test_two_threads)
{
  static const int algorithms[] = {TT_ALGO_RING, TT_ALGO_TREE, TT_ALGO_ONE_SHOT, TT_ALGO_TWO_SHOT};
  struct world_options options = {.nranks = RANKS,
                                  .slot_bytes = {[TT_PROTO_LL] = 2048, [TT_PROTO_SIMPLE] = 2048},
                                  .first_step = _i % 2 ? UINT64_C(0xffffffe0) : 0,
                                  .stale = 0x80,
                                  .seed = 9};
  struct world world;
  struct tt_program *programs[RANKS];
  struct tt_work *works[RANKS][TIMES];
  struct rank ranks[RANKS];
  static float input[RANKS][COUNT], output[RANKS][TIMES][COUNT];
  pthread_t threads[RANKS];
  world_open(&world, &options);
  for (int r = 0; r < RANKS; r++) {
    struct tt_emit_request request = {
        .collective = TT_FUNC_ALL_REDUCE, .algorithm = algorithms[_i / 2], .nranks = RANKS, .rank = r};
    ck_assert_int_eq(tt_program_emit(&request, &programs[r]), ncclSuccess);
    const struct tt_program *both[] = {programs[r], programs[r]};
    for (int i = 0; i < COUNT; i++) input[r][i] = (float)(i + r * 5);
    for (int t = 0; t < TIMES; t++) {
      struct tt_work *work = works[r][t] = world_work(&world, r, both, 2, t % 3 ? TT_PROTO_LL : TT_PROTO_SIMPLE);
      work->input = input[r];
      work->output = output[r][t];
      work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclFloat32};
      work->signature.sequence = (uint64_t)t;
      work->signature.collective = TT_FUNC_ALL_REDUCE;
      world_cut(work, t % 2 ? COUNT : 5, 200);
    }
    ranks[r] = (struct rank){.works = works[r]};
  }
  for (int r = 0; r < RANKS; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, drive, &ranks[r]), 0);
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < RANKS; r++) {
    ck_assert_int_eq(ranks[r].result, ncclSuccess);
    for (int t = 0; t < TIMES; t++) {
      for (int i = 0; i < (t % 2 ? COUNT : 5); i++) {
        if (output[r][t][i] != (float)(2 * i + 5))
          ck_abort_msg("rank %d, operation %d, element %d: %g", r, t, i, (double)output[r][t][i]);
      }
      world_free_work(works[r][t]);
    }
    tt_program_free(programs[r]);
  }
  world_close(&world);
}
END_TEST

/* Four threads on two nodes, whose memory is shared in pairs; between the operations a ring that shares nothing. */
START_TEST(test_nodes)
{
  enum { N = 4 };
  static const int kinds[] = {TT_ALGO_NVLS_TREE, TT_ALGO_NVLS};
  static const int32_t node[N] = {0, 0, 1, 1};
  struct world_options options = {.nranks = N,
                                  .slot_bytes = {[TT_PROTO_LL] = 2048, [TT_PROTO_SIMPLE] = 2048},
                                  .stale = 0x80,
                                  .shared_bytes = (size_t)2 * 8 * 200 * sizeof(float),
                                  .seed = 9};
  struct world world;
  struct tt_program *programs[N][2];
  struct tt_work *works[N][TIMES];
  struct rank ranks[N];
  static float input[N][COUNT], output[N][TIMES][COUNT];
  pthread_t threads[N];
  world_open(&world, &options);
  for (int r = 0; r < N; r++) {
    const int algorithms[] = {kinds[_i], TT_ALGO_RING};
    for (int k = 0; k < 2; k++) {
      struct tt_emit_request request = {.collective = TT_FUNC_ALL_REDUCE,
                                        .algorithm = algorithms[k],
                                        .nranks = N,
                                        .rank = r,
                                        .node = kinds[_i] == TT_ALGO_NVLS_TREE ? node : NULL};
      ck_assert_int_eq(tt_program_emit(&request, &programs[r][k]), ncclSuccess);
    }
    for (int i = 0; i < COUNT; i++) input[r][i] = (float)(i + r * 5);
    for (int t = 0; t < TIMES; t++) {
      const struct tt_program *program = programs[r][t % 5 == 4], *both[] = {program, program};
      struct tt_work *work = works[r][t] = world_work(&world, r, both, 1 + t % 2, TT_PROTO_SIMPLE);
      work->input = input[r];
      work->output = output[r][t];
      work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclFloat32};
      work->signature.sequence = (uint64_t)t;
      work->signature.collective = TT_FUNC_ALL_REDUCE;
      world_cut(work, t % 3 ? COUNT : 5, t % 4 ? 200 : 30);
    }
    ranks[r] = (struct rank){.works = works[r]};
  }
  for (int r = 0; r < N; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, drive, &ranks[r]), 0);
  for (int r = 0; r < N; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(ranks[r].result, ncclSuccess);
    for (int t = 0; t < TIMES; t++) {
      for (int i = 0; i < (t % 3 ? COUNT : 5); i++) {
        if (output[r][t][i] != (float)(N * i + 30))
          ck_abort_msg("rank %d, operation %d, element %d: %g", r, t, i, (double)output[r][t][i]);
      }
      world_free_work(works[r][t]);
    }
    for (int k = 0; k < 2; k++) tt_program_free(programs[r][k]);
  }
  world_close(&world);
}
END_TEST

/* Four threads, with the algorithms whose strands meet at semaphores and in scratch memory, or whose ranks in
 * memory of each other. */
START_TEST(test_four_threads)
{
  enum { N = 4, BLOCK = 700 };
  static const int kinds[][2] = {{TT_FUNC_ALL_GATHER, TT_ALGO_DIRECT}, {TT_FUNC_REDUCE_SCATTER, TT_ALGO_DIRECT},
                                 {TT_FUNC_ALL_GATHER, TT_ALGO_PAT},    {TT_FUNC_REDUCE_SCATTER, TT_ALGO_PAT},
                                 {TT_FUNC_ALL_GATHER, TT_ALGO_NVLS},   {TT_FUNC_REDUCE_SCATTER, TT_ALGO_NVLS},
                                 {TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED}, {TT_FUNC_REDUCE_SCATTER, TT_ALGO_MAPPED}};
  struct world_options options = {.nranks = N,
                                  .slot_bytes = {[TT_PROTO_LL] = 2048, [TT_PROTO_SIMPLE] = 2048},
                                  .stale = 0x80,
                                  .shared_bytes = (size_t)2 * N * 2 * 100 * sizeof(float),
                                  .seed = 9};
  bool shared = kinds[_i][1] == TT_ALGO_NVLS || kinds[_i][1] == TT_ALGO_MAPPED;
  bool gathers = kinds[_i][0] == TT_FUNC_ALL_GATHER;
  struct world world;
  struct tt_program *programs[N];
  struct tt_work *works[N][TIMES];
  struct rank ranks[N];
  static float input[N][N * BLOCK], output[N][TIMES][N * BLOCK], scratch[N][2 * 2 * 100];
  void *scratches[N][1];
  const void *inputs[N];
  void *outputs[TIMES][N];
  pthread_t threads[N];
  world_open(&world, &options);
  for (int r = 0; r < N; r++) {
    inputs[r] = input[r];
    for (int t = 0; t < TIMES; t++) outputs[t][r] = output[r][t];
    struct tt_emit_request request = {
        .collective = kinds[_i][0], .algorithm = kinds[_i][1], .nranks = N, .rank = r, .most_pieces = 2};
    ck_assert_int_eq(tt_program_emit(&request, &programs[r]), ncclSuccess);
    const struct tt_program *both[] = {programs[r], programs[r]};
    ck_assert_uint_le(programs[r]->scratch_blocks, 2);
    scratches[r][0] = scratch[r];
    for (int i = 0; i < N * BLOCK; i++) input[r][i] = (float)(i + r * 5);
    for (int t = 0; t < TIMES; t++) {
      int protocol = t % 3 && !shared ? TT_PROTO_LL : TT_PROTO_SIMPLE;
      struct tt_work *work = works[r][t] = world_work(&world, r, both, 2, protocol);
      work->input = input[r];
      work->output = output[r][t];
      work->scratch = scratches[r];
      work->member_inputs = inputs;
      work->member_outputs = outputs[t];
      work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclFloat32};
      work->signature.sequence = (uint64_t)t;
      work->signature.collective = (uint8_t)kinds[_i][0];
      world_cut(work, BLOCK, 100);
    }
    ranks[r] = (struct rank){.works = works[r]};
  }
  for (int r = 0; r < N; r++) ck_assert_int_eq(pthread_create(&threads[r], NULL, drive, &ranks[r]), 0);
  for (int r = 0; r < N; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < N; r++) {
    ck_assert_int_eq(ranks[r].result, ncclSuccess);
    for (int t = 0; t < TIMES; t++) {
      for (int i = 0; i < (gathers ? N * BLOCK : BLOCK); i++) {
        int wanted = gathers ? i % BLOCK + i / BLOCK * 5 : N * (i + r * BLOCK) + 5 * (0 + 1 + 2 + 3);
        if (output[r][t][i] != (float)wanted)
          ck_abort_msg("rank %d, operation %d, element %d: %g, not %d", r, t, i, (double)output[r][t][i], wanted);
      }
      world_free_work(works[r][t]);
    }
    tt_program_free(programs[r]);
  }
  world_close(&world);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("threads");
  TCase *tcase = tcase_create("threads");
  tcase_set_timeout(tcase, 0);
  tcase_add_loop_test(tcase, test_two_threads, 0, 8);
  tcase_add_loop_test(tcase, test_nodes, 0, 2);
  tcase_add_loop_test(tcase, test_four_threads, 0, 8);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
