/* Cutting: every element belongs to one channel, loop and part; large data fills slots; chains are cut for overlap, but
 * not below what a step costs. */
#include <check.h>
#include <stdlib.h>
#include "plan/geometry.h"
#include "plan/mapped.h"

static size_t covered(const struct tt_geometry_cut *cut, size_t *largest)
{
  size_t next = 0;
  *largest = 0;
  for (int c = 0; c < cut->nchannels; c++) {
    struct tt_geometry geometry;
    tt_geometry_cut(cut, c, &geometry);
    ck_assert_uint_eq(geometry.lo, next);
    for (uint64_t loop = 0; loop < geometry.loops; loop++)
      for (uint32_t part = 0; part < cut->parts; part++) {
        size_t offset, length = tt_geometry_part(&geometry, cut->parts, loop, part, &offset);
        if (length > 0 && offset != next) ck_abort_msg("channel %d, part %u: %zu, not %zu", c, part, offset, next);
        if (length * cut->element_bytes > cut->capacity) ck_abort_msg("%zu elements do not fit", length);
        next += length;
        *largest = length > *largest ? length : *largest;
      }
    ck_assert_uint_eq(next, geometry.hi);
  }
  return next;
}

START_TEST(covers)
{
  static const size_t counts[] = {0, 1, 7, 100, 4096, 100001, 3000000};
  static const size_t elements[] = {1, 2, 4, 8};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
    for (size_t e = 0; e < 4; e++)
      for (uint32_t parts = 1; parts <= 8; parts++)
        for (int channels = 1; channels <= 64; channels *= 4) {
          struct tt_geometry_cut cut = {counts[k], elements[e], parts, channels, parts * 5000, 4096, 8};
          size_t largest;
          ck_assert_uint_eq(covered(&cut, &largest), counts[k]);
        }
}
END_TEST

START_TEST(fills_slots)
{
  struct tt_geometry_cut cut = {.count = (size_t)128 << 20,
                                .element_bytes = 4,
                                .parts = 4,
                                .nchannels = 32,
                                .capacity = 524288,
                                .smallest = 32768,
                                .chunks = 8};
  struct tt_geometry geometry;
  tt_geometry_cut(&cut, 5, &geometry); /* a ring's 512 MiB: 16 MiB a channel */
  ck_assert_uint_eq(geometry.chunk * 4, 524288);
  ck_assert_uint_eq(geometry.loops, 8);
  cut.parts = 1;
  tt_geometry_cut(&cut, 5, &geometry); /* a chain's */
  ck_assert_uint_eq(geometry.chunk * 4, 524288);
  ck_assert_uint_eq(geometry.loops, 32);
  cut.count = (size_t)8 << 20;
  tt_geometry_cut(&cut, 5, &geometry); /* 1 MiB a channel: eight cuts */
  ck_assert_uint_eq(geometry.chunk * 4, 131072);
  cut.chunks = 4;
  tt_geometry_cut(&cut, 5, &geometry);
  ck_assert_uint_eq(geometry.chunk * 4, 262144);
  ck_assert_uint_eq(geometry.loops, 4);
  cut.chunks = 8;
  cut.count = (size_t)1 << 20;
  tt_geometry_cut(&cut, 5, &geometry); /* 128 KiB a channel: not below the smallest */
  ck_assert_uint_eq(geometry.chunk * 4, 32768);
  ck_assert_uint_eq(geometry.loops, 4);
}
END_TEST

/* A part in one chunk: threads count its bytes in 32 bits, and step beyond its end. */
START_TEST(fits_counters)
{
  enum { STEP = 512 * 16 }; /* of a block of 512 threads, 16 bytes each */
  char users;
  struct tt_transport_env env = {.users = (struct tt_user_buffers *)&users};
  struct ncclComm comm = {.nranks = 2, .nnodes = 1, .env = &env};
  struct tt_task task = {.collective = TT_FUNC_ALL_GATHER, .datatype = ncclInt8};
  for (uint64_t beyond = 0; beyond <= STEP; beyond += STEP / 16) {
    task.count = (UINT64_C(1) << 32) - beyond;
    ck_assert(!tt_mapped_possible(&comm, &task));
  }
  task.count = (UINT64_C(1) << 32) - (1 << 20);
  ck_assert(tt_mapped_possible(&comm, &task));
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("geometry");
  TCase *tests = tcase_create("geometry");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, covers);
  tcase_add_test(tests, fills_slots);
  tcase_add_test(tests, fits_counters);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
