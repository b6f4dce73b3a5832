/* The emulated GPU's threads: what the scheduler does with meetings, barriers, lanes that part, shared memory, blocks
 * that wait for each other; and that it ends the process where hardware would hang or give wrong data. */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "grid.h"
#include "threads.h"

enum { LANES = 32, MOST = 128 };

/* What a test's kernel works on. */
struct work {
  uint32_t out[4 * MOST];
  volatile uint32_t flags[8];
  _Alignas(16) uint64_t words[2 * LANES];
  uint64_t lines[16]; /* 128 bytes, of eight lanes with 16 each */
  int torn, seen;
};
struct argument {
  struct work *work;
};

static uint32_t shared[MOST];

static void call(const void *kernel, const void *arguments)
{
  ((void (*)(struct work *))kernel)(((const struct argument *)arguments)->work);
}

static void enlist(void (*kernel)(struct work *))
{
  const struct emu_kernel made = {(const void *)kernel, call, sizeof(struct argument), shared, sizeof(shared), MOST};
  if (!emu_kernel_find(made.address)) emu_kernel_register(&made);
}

static void run(void (*kernel)(struct work *), unsigned blocks, unsigned threads, struct work *work)
{
  const struct argument argument = {work};
  enlist(kernel);
  struct emu_grid *grid = emu_grid_start(emu_kernel_find((const void *)kernel), blocks, threads, &argument);
  while (!emu_grid_is_done(grid)) ck_assert(emu_grids_run() || emu_grid_is_done(grid));
  emu_grid_free(grid);
}

static uint32_t thread(void)
{
  return emu_place->thread.x;
}

/* ---- Meetings and barriers ---- */

static void vote(struct work *work)
{
  uint32_t lane = thread() % LANES, warp = thread() / LANES;
  for (uint32_t round = 0; round < 20; round++) {
    emu_may_part();
    bool any = emu_meet(EMU_ANY, lane == round), none = emu_meet(EMU_ANY, lane == 40);
    bool all = emu_meet(EMU_ALL, lane < 32), most = emu_meet(EMU_ALL, lane != 7);
    uint64_t first = emu_meet(EMU_FROM_FIRST, 1000 * warp + lane + round);
    work->out[thread()] += any && !none && all && !most && first == 1000 * warp + round;
  }
}

START_TEST(meetings)
{
  struct work work = {0};
  run(vote, 1, 96, &work);
  for (int t = 0; t < 96; t++) ck_assert_uint_eq(work.out[t], 20);
}
END_TEST

/* Each block sums what its threads left in shared memory, which begins with nobody's zeros. */
static void sum(struct work *work)
{
  uint32_t threads = emu_place->block_size.x, block = emu_place->block.x;
  if (thread() == 0) memset(shared, 0, sizeof(shared));
  emu_barrier(0, 0, false);
  emu_may_part();
  shared[thread()] = thread() + block;
  emu_may_part();
  bool any = emu_barrier(0, 0, thread() == 17), none = emu_barrier(0, 0, false);
  for (uint32_t t = 0; t < threads; t++) work->out[block * MOST + thread()] += shared[t];
  work->out[block * MOST + thread()] += !any + none;
}

START_TEST(blocks)
{
  struct work work = {0};
  run(sum, 4, MOST, &work);
  for (uint32_t b = 0; b < 4; b++)
    for (uint32_t t = 0; t < MOST; t++) ck_assert_uint_eq(work.out[b * MOST + t], MOST * (MOST - 1) / 2 + MOST * b);
}
END_TEST

/* Two of three warps have a barrier of theirs, while the third waits for them. */
static void groups(struct work *work)
{
  uint32_t warp = thread() / LANES;
  if (warp < 2) {
    emu_meet(EMU_SYNC, 0);
    emu_barrier(3, 2 * LANES, false);
    if (thread() == 0) work->flags[0] = 1;
    return; /* nobody waits for who is over */
  }
  while (work->flags[0] == 0) emu_may_part();
  emu_barrier(0, 0, false);
  work->out[thread()] = 1;
}

START_TEST(named_barriers)
{
  struct work work = {0};
  run(groups, 1, 96, &work);
  for (int t = 64; t < 96; t++) ck_assert_uint_eq(work.out[t], 1);
}
END_TEST

/* ---- Lines of eight lanes ---- */

static bool together;

/* Warp 0 stores lines, warp 1 looks at them; both in one instruction each if they meet before. */
static void lines(struct work *work)
{
  uint32_t lane = thread() % LANES, part = lane % 8;
  for (uint64_t turn = 1; turn <= 300; turn++) {
    emu_may_part();
    if (thread() < LANES) {
      if (together) emu_meet(EMU_SYNC, 0);
      if (lane < 8) work->lines[2 * part] = work->lines[2 * part + 1] = turn;
      continue;
    }
    emu_meet(EMU_SYNC, 0);
    if (lane >= 8) continue;
    shared[part] = (uint32_t)work->lines[2 * part];
    if (part < 7) continue;
    for (uint32_t p = 0; p < 7; p++) work->torn += shared[p] < shared[7];
    work->seen |= shared[7] > 1 && shared[7] < 300;
  }
}

START_TEST(lines_come_whole)
{
  struct work work = {0};
  together = _i == 0;
  run(lines, 1, 2 * LANES, &work);
  ck_assert(work.seen);
  ck_assert((work.torn == 0) == together);
}
END_TEST

/* ---- Stores ---- */

static bool fences;

/* Block 0 stores words behind a barrier, and one of its threads says so; block 1 reads them then. */
static void pass(struct work *work)
{
  uint32_t v = 1 + thread(), seen[4];
  if (emu_place->block.x == 0) {
    uint64_t word = v | (uint64_t)v << 32;
    emu_store(&work->words[thread()], &word, 8);
    emu_load(&work->words[thread()], seen, 8);
    work->out[thread()] += seen[0] == v; /* its own */
    emu_barrier(0, 0, false);
    emu_load(&work->words[(thread() + 1) % LANES], seen, 8);
    work->out[thread()] += seen[0] == 1 + (thread() + 1) % LANES; /* those of the block */
    if (thread() != 0) return;
    if (fences) emu_fence();
    work->flags[0] = 1;
    while (work->flags[1] < LANES) emu_may_part(); /* what a kernel stored has arrived when it is over */
    return;
  }
  while (work->flags[0] == 0) emu_may_part();
  emu_load(&work->words[thread()], seen, 8);
  work->torn += seen[0] != v || seen[1] != v;
  work->flags[1]++;
}

START_TEST(a_fence_too_few_shows)
{
  int torn = 0;
  fences = _i == 0;
  for (int i = 0; i < 20; i++) {
    struct work work = {0};
    run(pass, 2, LANES, &work);
    torn += work.torn;
    for (int t = 0; t < LANES; t++) ck_assert_uint_eq(work.out[t], 2);
    for (uint32_t t = 0; t < LANES; t++) ck_assert_uint_eq(work.words[t], (1 + t) * 0x100000001ull); /* in the end */
  }
  ck_assert((torn == 0) == fences);
}
END_TEST

/* Stores of a thread to one place, in pieces of all sizes, arrive in their order. */
static void rewrite(struct work *work)
{
  unsigned char *at = (unsigned char *)&work->words[2 * thread()], all[16], seen[16];
  for (uint32_t turn = 0; turn < 50; turn++) {
    uint32_t bytes = turn % 3 == 0 ? 16 : turn % 3 == 1 ? 8 : 1, place = bytes * (turn * 7 % (16 / bytes));
    memset(all, (int)turn, 16);
    emu_store(at + place, all, bytes);
    emu_load(at + place, seen, bytes);
    work->out[thread()] += memcmp(seen, all, bytes) == 0;
    emu_may_part();
  }
}

START_TEST(one_place_keeps_its_order)
{
  struct work work = {0};
  unsigned char expected[16] = {0};
  for (uint32_t turn = 0; turn < 50; turn++) {
    uint32_t bytes = turn % 3 == 0 ? 16 : turn % 3 == 1 ? 8 : 1, place = bytes * (turn * 7 % (16 / bytes));
    memset(expected + place, (int)turn, bytes);
  }
  run(rewrite, 1, LANES, &work);
  for (uint32_t t = 0; t < LANES; t++) {
    ck_assert_uint_eq(work.out[t], 50);
    ck_assert_mem_eq(&work.words[2 * t], expected, 16);
  }
}
END_TEST

/* ---- Grids that overlap ---- */

/* The first lets the second begin and goes on; `flags`: what came so far, 0 the first's end, 1 the second's beginning,
 * 2 what follows its wait. */
static void goes_first(struct work *work)
{
  emu_await_grid();
  emu_let_grid_begin();
  while (work->flags[1] == 0) emu_may_part();
  for (int i = 0; i < 100; i++) emu_may_part();
  ck_assert_uint_eq(work->flags[2], 0);
  work->flags[0] = 1;
}
static void goes_second(struct work *work)
{
  work->flags[1] = 1;
  emu_await_grid();
  work->out[thread()] = work->flags[0];
  work->flags[2] = 1;
}

START_TEST(overlapping_grids)
{
  struct work work = {0};
  const struct argument argument = {&work};
  struct emu_grid *first, *second = NULL;
  enlist(goes_first);
  enlist(goes_second);
  first = emu_grid_start(emu_kernel_find((const void *)goes_first), 2, LANES, &argument);
  ck_assert(!emu_grid_lets_next(first));
  while (!emu_grid_is_done(first)) {
    if (second == NULL && emu_grid_lets_next(first)) {
      second = emu_grid_start(emu_kernel_find((const void *)goes_second), 1, LANES, &argument);
      emu_grid_hold(second, true);
    }
    ck_assert(emu_grids_run());
  }
  ck_assert(emu_grid_lets_next(first) && !emu_grid_is_done(second));
  emu_grid_hold(second, false);
  while (!emu_grid_is_done(second)) ck_assert(emu_grids_run() || emu_grid_is_done(second));
  for (uint32_t t = 0; t < LANES; t++) ck_assert_uint_eq(work.out[t], 1);
  emu_grid_free(first);
  emu_grid_free(second);
}
END_TEST

/* ---- What must not be ---- */

static void alone(struct work *work)
{
  (void)work;
  if (thread() == 3) emu_meet(EMU_SYNC, 0);
}
static void different(struct work *work)
{
  (void)work;
  emu_meet(thread() == 3 ? EMU_ANY : EMU_SYNC, 0);
}
static void for_ever(struct work *work)
{
  (void)work;
  emu_meet(EMU_SYNC, 0);
  emu_barrier(1, 3 * LANES, false);
}
static void parted(struct work *work)
{
  (void)work;
  for (int i = 0; i < 20; i++) emu_may_part();
  emu_barrier(1, 2 * LANES, false);
}
static void sizes(struct work *work)
{
  (void)work;
  emu_meet(EMU_SYNC, 0);
  emu_barrier(1, thread() < LANES ? LANES * 2 : LANES * 3, false);
}

static void lets_too_soon(struct work *work)
{
  (void)work;
  emu_let_grid_begin();
}

static void (*const wrong[])(struct work *) = {alone, different, for_ever, parted, sizes, lets_too_soon};
enum { WRONGS = sizeof(wrong) / sizeof(wrong[0]) };

START_TEST(ends_the_process)
{
  struct work work = {0};
  run(wrong[_i], 1, 2 * LANES, &work);
}
END_TEST

static void looks_too_soon(struct work *work)
{
  emu_load(work->words, &work->words[1], 8);
}
START_TEST(memory_too_soon)
{
  struct work work = {0};
  const struct argument argument = {&work};
  enlist(looks_too_soon);
  emu_grid_hold(emu_grid_start(emu_kernel_find((const void *)looks_too_soon), 1, LANES, &argument), true);
  emu_grids_run();
}
END_TEST

static void nothing(struct work *work)
{
  (void)work;
}
START_TEST(too_many_threads)
{
  run(nothing, 1, MOST + LANES, NULL);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("emulated GPU");
  TCase *tests = tcase_create("threads");
  TCase *ends = tcase_create("what must not be");
  tcase_add_test(tests, meetings);
  tcase_add_test(tests, blocks);
  tcase_add_test(tests, named_barriers);
  tcase_add_loop_test(tests, lines_come_whole, 0, 2);
  tcase_add_loop_test(tests, a_fence_too_few_shows, 0, 2);
  tcase_add_test(tests, one_place_keeps_its_order);
  tcase_add_test(tests, overlapping_grids);
  tcase_add_loop_test_raise_signal(ends, ends_the_process, SIGABRT, 0, WRONGS);
  tcase_add_test_raise_signal(ends, memory_too_soon, SIGABRT);
  tcase_add_test_raise_signal(ends, too_many_threads, SIGABRT);
  suite_add_tcase(suite, tests);
  suite_add_tcase(suite, ends);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
