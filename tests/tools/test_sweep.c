/* The order of measurements, shapes and bandwidth factors of the collectives, and the numbers of the table. */
#include <string.h>
#include "collective.h"
#include "report.h"
#include "suites.h"
#include "sweep.h"

static struct perf_options base(const char *collective)
{
  return (struct perf_options){.collective = perf_collective_find(collective),
                               .min_bytes = 8,
                               .max_bytes = 8,
                               .step_bytes = 8,
                               .cycles = 1,
                               .type = perf_type_find("float"),
                               .op = perf_op_find("sum")};
}

static void expect_sizes(const struct perf_options *options, const uint64_t *sizes, size_t count)
{
  struct perf_sweep sweep;
  perf_sweep_begin(&sweep, options, 4, false);
  for (size_t i = 0; i < count; i++) {
    ck_assert(perf_sweep_next(&sweep));
    ck_assert_uint_eq(sweep.bytes, sizes[i]);
  }
  ck_assert(!perf_sweep_next(&sweep));
  ck_assert_uint_eq(perf_sweep_count(options, 4, false), count);
}

START_TEST(size_sweeps)
{
  struct perf_options o = base("all_reduce");
  expect_sizes(&o, (uint64_t[]){8}, 1);
  o.max_bytes = 70;
  o.step_factor = 2;
  expect_sizes(&o, (uint64_t[]){8, 16, 32, 64}, 4);
  o.max_bytes = 64;
  expect_sizes(&o, (uint64_t[]){8, 16, 32, 64}, 4);
  o.step_factor = 1.05; /* rounds down to the same size, yet must move on */
  o.max_bytes = 11;
  expect_sizes(&o, (uint64_t[]){8, 9, 10, 11}, 4);
  o.step_factor = 0;
  o.min_bytes = 0;
  o.max_bytes = 20;
  expect_sizes(&o, (uint64_t[]){0, 8, 16}, 3);
}
END_TEST

START_TEST(cycles_repeat_rows)
{
  struct perf_options o = base("all_reduce");
  o.max_bytes = 16;
  o.cycles = 2;
  expect_sizes(&o, (uint64_t[]){8, 8, 16, 16}, 4);
  o.cycles = 0;
  struct perf_sweep sweep;
  ck_assert_uint_eq(perf_sweep_count(&o, 4, false), 0);
  perf_sweep_begin(&sweep, &o, 4, false);
  for (int i = 0; i < 1000; i++) {
    ck_assert(perf_sweep_next(&sweep));
    ck_assert_uint_eq(sweep.bytes, i % 2 ? 16 : 8);
  }
}
END_TEST

START_TEST(lists_of_sizes_keep_their_order)
{
  struct perf_options o = base("all_reduce");
  o.sizes[0] = o.min_bytes = 64;
  o.sizes[1] = 8;
  o.sizes[2] = o.max_bytes = 4096;
  o.size_count = 3;
  expect_sizes(&o, (uint64_t[]){64, 8, 4096}, 3);
  o.all_ops = true; /* each operation has all of them */
  expect_sizes(&o, (uint64_t[]){64, 8, 4096, 64, 8, 4096, 64, 8, 4096, 64, 8, 4096, 64, 8, 4096}, 15);
  o.cycles = 0;
  struct perf_sweep sweep;
  perf_sweep_begin(&sweep, &o, 4, false);
  for (int i = 0; i < 100; i++) {
    ck_assert(perf_sweep_next(&sweep));
    ck_assert_uint_eq(sweep.bytes, o.sizes[i % 3]);
  }
}
END_TEST

START_TEST(all_types_ops_roots)
{
  struct perf_options o = base("reduce");
  o.all_types = o.all_ops = o.all_roots = true;
  ck_assert_uint_eq(perf_sweep_count(&o, 3, true), 12 * 5 * 3);
  o.collective = perf_collective_find("all_gather"); /* no op and no root: these flags are nothing to it */
  ck_assert_uint_eq(perf_sweep_count(&o, 3, true), 12);
  o.collective = perf_collective_find("broadcast");
  ck_assert_uint_eq(perf_sweep_count(&o, 3, true), 36);
  struct perf_sweep sweep;
  bool seen[12][3] = {{false}};
  perf_sweep_begin(&sweep, &o, 3, true);
  while (perf_sweep_next(&sweep)) {
    ck_assert_ptr_null(sweep.op);
    ck_assert(!seen[sweep.type - perf_type_at(0)][sweep.root]);
    seen[sweep.type - perf_type_at(0)][sweep.root] = true;
  }
}
END_TEST

/* Of fp8, "all" has what there is; a type or an operation that was named is tried. */
START_TEST(fp8_where_it_is)
{
  struct perf_options o = base("all_reduce");
  o.all_types = o.all_ops = true;
  ck_assert_uint_eq(perf_sweep_count(&o, 3, false), 10 * 5); /* the device reduces none */
  o.all_ops = false;
  ck_assert_uint_eq(perf_sweep_count(&o, 3, true), 12);
  struct perf_sweep sweep;
  perf_sweep_begin(&sweep, &o, 3, false);
  while (perf_sweep_next(&sweep)) ck_assert(!perf_type_is_fp8(sweep.type));
  o.all_types = false;
  o.type = perf_type_find("e5m2");
  ck_assert_str_eq(o.type->name, "f8e5m2");
  ck_assert_uint_eq(perf_sweep_count(&o, 3, false), 1);
  o.all_ops = true;
  ck_assert_uint_eq(perf_sweep_count(&o, 3, false), 5);
}
END_TEST

START_TEST(bandwidth_factors)
{
  static const struct {
    const char *name;
    double two, four, eight;
  } table[] = {{"all_reduce", 1, 1.5, 1.75},   {"all_gather", 0.5, 0.75, 0.875}, {"reduce_scatter", 0.5, 0.75, 0.875},
               {"alltoall", 0.5, 0.75, 0.875}, {"broadcast", 1, 1, 1},           {"reduce", 1, 1, 1},
               {"gather", 0.5, 0.75, 0.875},   {"scatter", 0.5, 0.75, 0.875},    {"sendrecv", 1, 1, 1}};
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    const struct perf_collective *c = perf_collective_find(table[i].name);
    ck_assert_double_eq(c->bus_factor(2), table[i].two);
    ck_assert_double_eq(c->bus_factor(4), table[i].four);
    ck_assert_double_eq(c->bus_factor(8), table[i].eight);
  }
}
END_TEST

START_TEST(shapes)
{
  struct perf_shape s;
  perf_collective_find("all_reduce")->shape(&s, 10, 1, 4);
  ck_assert(s.count == 10 && s.send == 10 && s.recv == 10 && s.send_offset == 0 && s.recv_offset == 0);
  perf_collective_find("all_gather")->shape(&s, 11, 3, 4);
  ck_assert(s.count == 2 && s.send == 2 && s.recv == 8 && s.send_offset == 6 && s.recv_offset == 0);
  perf_collective_find("reduce_scatter")->shape(&s, 11, 3, 4);
  ck_assert(s.count == 2 && s.send == 8 && s.recv == 2 && s.send_offset == 0 && s.recv_offset == 6);
  perf_collective_find("gather")->shape(&s, 11, 3, 4);
  ck_assert(s.count == 2 && s.send == 2 && s.recv == 8);
  perf_collective_find("scatter")->shape(&s, 11, 3, 4);
  ck_assert(s.count == 2 && s.send == 8 && s.recv == 2);
  perf_collective_find("alltoall")->shape(&s, 11, 3, 4);
  ck_assert(s.count == 2 && s.send == 8 && s.recv == 8);
}
END_TEST

START_TEST(collective_names)
{
  static const char *const names[] = {"all_reduce", "all-reduce",      "allreduce",
                                      "AllReduce",  "all_reduce_perf", "all_reduce_perf_mpi"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    ck_assert_ptr_eq(perf_collective_find(names[i]), perf_collective_at(0));
  ck_assert_ptr_null(perf_collective_find("perf"));
  ck_assert_ptr_null(perf_collective_find(""));
  ck_assert_ptr_null(perf_collective_find("reduce_all"));
}
END_TEST

START_TEST(numbers_keep_their_width)
{
  static const struct {
    double value;
    int width;
    const char *text;
  } table[] = {{1.234, 7, "   1.23"},     {12345.678, 7, "12345.7"}, {1234567.8, 7, "1234568"},
               {123456789, 7, "1.2e+08"}, {0, 6, "  0.00"},          {1234567, 6, " 1e+06"}};
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    char text[32];
    perf_report_number(text, table[i].width, table[i].value);
    ck_assert_str_eq(text, table[i].text);
  }
}
END_TEST

Suite *suite_sweep(void)
{
  Suite *suite = suite_create("sweep");
  TCase *tests = tcase_create("sweep");
  tcase_add_test(tests, size_sweeps);
  tcase_add_test(tests, cycles_repeat_rows);
  tcase_add_test(tests, lists_of_sizes_keep_their_order);
  tcase_add_test(tests, all_types_ops_roots);
  tcase_add_test(tests, fp8_where_it_is);
  tcase_add_test(tests, bandwidth_factors);
  tcase_add_test(tests, shapes);
  tcase_add_test(tests, collective_names);
  tcase_add_test(tests, numbers_keep_their_width);
  suite_add_tcase(suite, tests);
  return suite;
}
