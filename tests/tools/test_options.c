/* The command line: every flag arrives, wrong values and contradictions are refused with a sentence that names them. */
#include <stdlib.h>
#include <string.h>
#include "options.h"
#include "suites.h"

static struct perf_options options;
static char error[512];

/* Parses a line of words. */
static enum perf_parse parse(const char *line)
{
  static char copy[512];
  char *argv[64], *rest = copy;
  int argc = 0;
  snprintf(copy, sizeof(copy), "%s", line);
  for (char *word; (word = strtok_r(rest, " ", &rest));) argv[argc++] = word;
  argv[argc] = NULL;
  error[0] = 0;
  return perf_options_parse(&options, argc, argv, error, sizeof(error));
}

START_TEST(sizes)
{
  static const struct {
    const char *text;
    uint64_t bytes;
  } good[] = {{"0", 0},
              {"8", 8},
              {"1K", 1024},
              {"1k", 1024},
              {"64KiB", 65536},
              {"1.5M", 1572864},
              {"32MB", 32u << 20},
              {"4G", 4ull << 30},
              {"2T", 2ull << 40},
              {"0.5K", 512},
              {"7B", 7}};
  static const char *const bad[] = {"",    "-1",   "K",  "1X", "1KK", "1.3", "0x10", "nan",
                                    "inf", "1e30", " 8", "8 ", "1 K", "+5",  "1Kb2", "99999999T"};
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    uint64_t bytes = 1;
    ck_assert_msg(perf_size_parse(good[i].text, &bytes), "%s", good[i].text);
    ck_assert_uint_eq(bytes, good[i].bytes);
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    uint64_t bytes;
    ck_assert_msg(!perf_size_parse(bad[i], &bytes), "\"%s\" was taken for %llu", bad[i], (unsigned long long)bytes);
  }
}
END_TEST

START_TEST(every_flag_arrives)
{
  ck_assert_int_eq(parse("tutti-perf all_gather -n 4 -t 2 -g 3 -b 8 -e 1M -i 4K -f 2.5 --iters 7 -w 9 -m 5 -N 6 -c 11 "
                         "-d bf16 -z 3 -p 1 -C 1 -S 1 -a 2 -T 60 -u 3 -J out.json --join-timeout 12"),
                   PERF_PARSE_RUN);
  ck_assert_str_eq(options.collective->name, "all_gather");
  ck_assert_int_eq(options.processes, 4);
  ck_assert_int_eq(options.threads, 2);
  ck_assert_int_eq(options.comms, 3);
  ck_assert_uint_eq(options.min_bytes, 8);
  ck_assert_uint_eq(options.max_bytes, 1 << 20);
  ck_assert_uint_eq(options.step_bytes, 4096);
  ck_assert_double_eq(options.step_factor, 2.5);
  ck_assert_int_eq(options.iterations, 7);
  ck_assert_int_eq(options.warmup, 9);
  ck_assert_int_eq(options.aggregated, 5);
  ck_assert_int_eq(options.cycles, 6);
  ck_assert_int_eq(options.check, 11);
  ck_assert_str_eq(options.type->name, "bfloat16");
  ck_assert_int_eq(options.blocking, 3);
  ck_assert(options.parallel_init && options.cpu_time && options.timestamps);
  ck_assert_int_eq(options.average, PERF_MIN);
  ck_assert_int_eq(options.timeout, 60);
  ck_assert_uint_eq(options.unalign, 3);
  ck_assert_str_eq(options.json, "out.json");
  ck_assert_int_eq(options.join_timeout, 12);
  ck_assert_int_eq(parse("tutti-perf reduce -o max -r 2 --rank 1 --nranks 3 --root-addr h:5"), PERF_PARSE_RUN);
  ck_assert_str_eq(options.op->name, "max");
  ck_assert_int_eq(options.root, 2);
  ck_assert_int_eq(options.rank, 1);
  ck_assert_int_eq(options.ranks_started, 3);
  ck_assert_str_eq(options.root_address, "h:5");
  ck_assert_int_eq(parse("tutti-perf reduce -o all -r all -d all"), PERF_PARSE_RUN);
  ck_assert(options.all_ops && options.all_roots && options.all_types);
}
END_TEST

START_TEST(addresses_without_a_sound_port)
{
  static const char *const wrong[] = {"h",    "h:",   ":5",   "h:0",    "h:65536", "h:99999",
                                      "h:-1", "h:+5", "h:5x", "h:http", "[]:5",    "h:4294967301"};
  static const char *const right[] = {"h:1", "127.0.0.1:65535", "[::1]:80"};
  char line[128];
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    snprintf(line, sizeof(line), "tutti-perf reduce --rank 1 --nranks 3 --root-addr %s", wrong[i]);
    ck_assert_msg(parse(line) == PERF_PARSE_WRONG, "%s", wrong[i]);
    ck_assert_ptr_nonnull(strstr(error, "--root-addr"));
    ck_assert_ptr_nonnull(strstr(error, "a port from 1 to 65535"));
  }
  for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
    snprintf(line, sizeof(line), "tutti-perf reduce --rank 1 --nranks 3 --root-addr %s", right[i]);
    ck_assert_msg(parse(line) == PERF_PARSE_RUN, "%s: %s", right[i], error);
  }
}
END_TEST

START_TEST(long_names_of_nccl_tests)
{
  ck_assert_int_eq(parse("tutti-perf all_reduce --nthreads 2 --ngpus 3 --minbytes 1K --maxbytes 2K --stepbytes 512 "
                         "--stepfactor 2 --iters 5 --agg_iters 4 --warmup_iters 6 --op prod --datatype int8 --check 0 "
                         "--blocking 1 --run_cycles 2 --parallel_init 1 --timeout 3 --report_cputime 1 --average 0 "
                         "--report_timestamps 1 --unalign 1 --output_file x.json --cudagraph 0 --local_register 0"),
                   PERF_PARSE_RUN);
  ck_assert_int_eq(options.threads, 2);
  ck_assert_int_eq(options.comms, 3);
  ck_assert_uint_eq(options.min_bytes, 1024);
  ck_assert_uint_eq(options.max_bytes, 2048);
  ck_assert_int_eq(options.iterations, 5);
  ck_assert_int_eq(options.aggregated, 4);
  ck_assert_int_eq(options.warmup, 6);
  ck_assert_str_eq(options.op->name, "prod");
  ck_assert_str_eq(options.type->name, "int8");
  ck_assert_int_eq(options.check, 0);
  ck_assert_int_eq(options.average, PERF_RANK0);
  ck_assert_str_eq(options.json, "x.json");
}
END_TEST

START_TEST(flags_of_devices)
{
  ck_assert_int_eq(parse("tutti-perf all_reduce"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.device, PERF_DEVICE_AUTO);
  ck_assert(options.out_of_place && options.in_place && options.memory == PERF_MEMORY_PLAIN);
  ck_assert_int_eq(options.graph, 0);
  ck_assert_int_eq(options.repeats, 1);
  ck_assert_int_eq(options.stream_null, -1);
  ck_assert_int_eq(options.cta_policy, -1);
  ck_assert_int_eq(parse("tutti-perf all_reduce --device CUDA --alloc nccl -G 7 --repeats 5 --form out -y 0 -x 2"),
                   PERF_PARSE_RUN);
  ck_assert_int_eq(options.cta_policy, NCCL_CTA_POLICY_ZERO);
  ck_assert_int_eq(options.device, PERF_DEVICE_CUDA);
  ck_assert(options.out_of_place && !options.in_place && options.memory == PERF_MEMORY_NCCL);
  ck_assert_int_eq(options.graph, 7);
  ck_assert_int_eq(options.repeats, 5);
  ck_assert_int_eq(options.stream_null, 0);
  ck_assert_int_eq(parse("all_reduce_perf --cudagraph 3 -d half --device host --graph 0 --form in --alloc plain"),
                   PERF_PARSE_RUN);
  ck_assert_int_eq(options.device, PERF_DEVICE_HOST);
  ck_assert_int_eq(options.graph, 0);
  ck_assert(!options.out_of_place && options.in_place);
  ck_assert_str_eq(options.type->name, "half");
  static const enum perf_memory memories[] = {PERF_MEMORY_PLAIN, PERF_MEMORY_REGISTERED, PERF_MEMORY_WINDOW};
  for (int i = 0; i < 3; i++) {
    char line[64];
    snprintf(line, sizeof(line), "all_reduce_perf -R %d", i);
    ck_assert_int_eq(parse(line), PERF_PARSE_RUN);
    ck_assert_int_eq(options.memory, memories[i]);
  }
  ck_assert_int_eq(parse("tutti-perf all_reduce --alloc registered"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.memory, PERF_MEMORY_REGISTERED);
  ck_assert_int_eq(parse("tutti-perf all_reduce --alloc window"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.memory, PERF_MEMORY_WINDOW);
}
END_TEST

START_TEST(pairs)
{
  ck_assert_int_eq(parse("tutti-perf pairs -n 2 -t 2 -e 1M -G 3 -R 2 --settings LL128,p2p -c 0"), PERF_PARSE_RUN);
  ck_assert(options.of_pairs && options.settings_given && options.pairs == NULL);
  ck_assert_uint_eq(options.settings, 1 | 1 << 3);
  ck_assert_uint_eq(options.max_bytes, 1 << 20);
  ck_assert_int_eq(parse("tutti-perf pairs -t 2"), PERF_PARSE_RUN);
  ck_assert(!options.settings_given && options.settings == 31);
  ck_assert_int_eq(parse("tutti-perf all_reduce"), PERF_PARSE_RUN);
  ck_assert(!options.of_pairs);
}
END_TEST

START_TEST(how_iterations_follow)
{
  ck_assert_int_eq(parse("tutti-perf all_reduce --sizes 8,1000"), PERF_PARSE_RUN);
  ck_assert(options.rotate == 0 && !options.dependent && !options.load);
  ck_assert_uint_eq(perf_options_room(&options), 1000);
  ck_assert_int_eq(parse("tutti-perf all_reduce --sizes 8,1000 --rotate 64 --load 1"), PERF_PARSE_RUN);
  ck_assert(options.rotate == 64 && !options.dependent && options.load);
  ck_assert_uint_eq(perf_options_room(&options), 64 * 1024);
  ck_assert_int_eq(parse("tutti-perf all_reduce --dependent 1"), PERF_PARSE_RUN);
  ck_assert(options.dependent && !options.stats);
  ck_assert_int_eq(parse("tutti-perf all_reduce --stats"), PERF_PARSE_RUN);
  ck_assert(options.stats);
  ck_assert(perf_options_stride(0) == 0 && perf_options_stride(512) == 512 && perf_options_stride(513) == 1024);
}
END_TEST

START_TEST(lists_of_sizes)
{
  ck_assert_int_eq(parse("tutti-perf all_reduce --sizes 2M,32,0,64KiB"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.size_count, 4);
  ck_assert_uint_eq(options.sizes[0], 2 << 20);
  ck_assert_uint_eq(options.sizes[1], 32);
  ck_assert_uint_eq(options.sizes[2], 0);
  ck_assert_uint_eq(options.sizes[3], 65536);
  ck_assert_uint_eq(options.max_bytes, 2 << 20);
  char line[400] = "tutti-perf all_reduce --sizes 1";
  for (int i = 1; i < PERF_MOST_SIZES; i++) strcat(line, ",1");
  ck_assert_int_eq(parse(line), PERF_PARSE_RUN);
  ck_assert_int_eq(options.size_count, PERF_MOST_SIZES);
  ck_assert_int_eq(parse(strcat(line, ",1")), PERF_PARSE_WRONG);
}
END_TEST

/* What a device without streams cannot do is found out for --device auto too, when the device is known. */
START_TEST(what_fits_a_device)
{
  static const char *const lines[] = {"tutti-perf all_reduce -G 1", "tutti-perf all_reduce --alloc nccl"};
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(parse(lines[i]), PERF_PARSE_RUN);
    ck_assert(perf_options_fit(&options, true, error, sizeof(error)));
    ck_assert(!perf_options_fit(&options, false, error, sizeof(error)));
    ck_assert(strstr(error, "not supported") != NULL);
  }
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(parse(i == 0 ? "tutti-perf all_reduce -y 0" : "tutti-perf all_reduce -y 1"), PERF_PARSE_RUN);
    ck_assert(perf_options_fit(&options, false, error, sizeof(error)));
  }
}
END_TEST

START_TEST(meaning_of_n)
{
  ck_assert_int_eq(parse("/usr/bin/tutti-perf all_reduce -n 4"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.processes, 4);
  ck_assert_int_eq(options.iterations, 20);
  ck_assert_int_eq(parse("./bin/all_reduce_perf -n 4"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.processes, 0);
  ck_assert_int_eq(options.iterations, 4);
  ck_assert_int_eq(parse("all_reduce_perf --np 3 -n 5"), PERF_PARSE_RUN);
  ck_assert_int_eq(options.processes, 3);
  ck_assert_int_eq(options.iterations, 5);
  ck_assert_int_eq(parse("sendrecv_perf_mpi -n 5"), PERF_PARSE_RUN);
  ck_assert_str_eq(options.collective->name, "sendrecv");
  /* Scripts pass -o and -r to all of nccl-tests' programs. */
  ck_assert_int_eq(parse("broadcast_perf -o sum -r 0"), PERF_PARSE_RUN);
}
END_TEST

START_TEST(refusals_name_their_cause)
{
  static const struct {
    const char *line, *word;
  } wrong[] = {
      {"tutti-perf", "no collective"},
      {"tutti-perf all_redoce", "all_redoce"},
      {"tutti-perf all_reduce broadcast", "one collective"},
      {"all_reduce_perf broadcast", "one collective"},
      {"tutti-perf all_reduce -b 1X", "-b 1X"},
      {"tutti-perf all_reduce -b 2M -e 1M", "larger"},
      {"tutti-perf all_reduce -b 1M -e 2M -i 0", "-i 0"},
      {"tutti-perf all_reduce -b 0 -e 2M -f 2", "-b 0"},
      {"tutti-perf all_reduce -f 1", "-f 1"},
      {"tutti-perf all_reduce -f x", "-f x"},
      {"tutti-perf all_reduce -n 0", "-n 0"},
      {"tutti-perf all_reduce -n 4x", "-n 4x"},
      {"tutti-perf all_reduce -t 0", "-t 0"},
      {"tutti-perf all_reduce --iters 0", "--iters 0"},
      {"all_reduce_perf -n 0", "-n 0"},
      {"tutti-perf all_reduce -c -1", "-c -1"},
      {"tutti-perf all_reduce -d fp3", "fp3"},
      {"tutti-perf all_reduce -o mean", "mean"},
      {"tutti-perf all_gather -o sum", "no reduction"},
      {"tutti-perf all_reduce -r 0", "no root"},
      {"tutti-perf all_reduce -z 4", "-z 4"},
      {"tutti-perf all_reduce -a 4", "-a 4"},
      {"tutti-perf all_reduce -G 1 --device host", "-G"},
      {"tutti-perf all_reduce -G 1 -z 1", "-z 1"},
      {"tutti-perf all_reduce -G 1 -z 3", "-z 3"},
      {"tutti-perf all_reduce -G 1 -y 1", "-y 1"},
      {"tutti-perf all_reduce -G -1", "-G -1"},
      {"tutti-perf all_reduce --device gpu", "--device gpu"},
      {"tutti-perf all_reduce --device", "--device"},
      {"tutti-perf all_reduce --alloc heap", "plain nccl registered window"},
      {"tutti-perf all_reduce --alloc nccl --device host", "host device, for which all memory is alike"},
      {"tutti-perf all_reduce --form side", "out in both"},
      {"tutti-perf sendrecv --form in", "no in-place form"},
      {"tutti-perf all_reduce --repeats 0", "--repeats 0"},
      {"tutti-perf all_reduce --sizes 1,x", "--sizes 1,x"},
      {"tutti-perf all_reduce --sizes 1,,2", "--sizes 1,,2"},
      {"tutti-perf all_reduce --sizes 1,2,", "--sizes 1,2,"},
      {"tutti-perf all_reduce --sizes 8 -e 16", "--sizes with -b"},
      {"tutti-perf all_reduce -f 2 --sizes 8", "--sizes with -b"},
      {"tutti-perf all_reduce -R 3", "-R 3"},
      {"tutti-perf all_reduce -R 2 --device host", "-R"},
      {"tutti-perf all_reduce --alloc window --device host", "window"},
      {"tutti-perf all_reduce --rotate 0", "--rotate 0"},
      {"tutti-perf all_reduce --dependent 1 --rotate 2", "--dependent with --rotate"},
      {"tutti-perf pairs", "one rank"},
      {"tutti-perf pairs -t 2 --sizes 8", "--sizes"},
      {"tutti-perf pairs -t 2 -g 2", "--ngpus"},
      {"tutti-perf pairs -t 2 -z 1", "--blocking"},
      {"tutti-perf pairs -t 2 -e 4", "-e"},
      {"tutti-perf pairs -t 2 --settings p2p,", "p2p nop2p ll ll128 simple"},
      {"tutti-perf pairs all_reduce", "one collective"},
      {"tutti-perf all_reduce pairs", "one collective"},
      {"tutti-perf all_reduce --settings p2p", "--settings"},
      {"tutti-perf pairs -t 2 --rank 0 --nranks 2", "--rank"},
      {"tutti-perf all_reduce --dependent 2", "--dependent 2"},
      {"tutti-perf all_reduce --load x", "--load x"},
      {"tutti-perf all_reduce -D 1", "-D"},
      {"tutti-perf all_reduce -x 3", "-x 3"},
      {"tutti-perf all_reduce --cta_policy -2", "-x -2"},
      {"tutti-perf all_reduce -M 1", "-M"},
      {"tutti-perf all_reduce -I 1", "-I"},
      {"tutti-perf all_reduce -y 2", "-y 2"},
      {"tutti-perf all_reduce -q", "-q"},
      {"tutti-perf all_reduce --nope", "--nope"},
      {"tutti-perf all_reduce -b", "-b"},
      {"tutti-perf all_reduce --rank 1", "--nranks"},
      {"tutti-perf all_reduce --nranks 2", "--rank"},
      {"tutti-perf all_reduce --rank 2 --nranks 2", "--rank 2"},
      {"tutti-perf all_reduce --rank 0 --nranks 2 -n 2", "-n"},
  };
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    ck_assert_msg(parse(wrong[i].line) == PERF_PARSE_WRONG, "accepted: %s", wrong[i].line);
    ck_assert_msg(strstr(error, wrong[i].word) != NULL, "%s: \"%s\" lacks \"%s\"", wrong[i].line, error, wrong[i].word);
  }
}
END_TEST

START_TEST(help_names_every_short_flag)
{
  char *text = NULL;
  size_t size = 0;
  ck_assert_int_eq(parse("tutti-perf --help"), PERF_PARSE_HELP);
  FILE *file = open_memstream(&text, &size);
  perf_options_help(&options, file);
  fclose(file);
  for (const char *flag = "ntgpbeifdorwmNuzcaCSJTGRDVxMIK"; *flag; flag++) {
    char word[3] = {'-', *flag, 0};
    ck_assert_msg(strstr(text, word) != NULL, "--help lacks %s", word);
  }
  static const char *const words[] = {"--device",  "--alloc",  "--graph",     "--sizes", "--form",
                                      "--repeats", "--rotate", "--dependent", "--load",  "--settings"};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
    ck_assert_msg(strstr(text, words[i]) != NULL, "--help lacks %s", words[i]);
  ck_assert(strstr(text, "Differences from nccl-tests") != NULL);
  /* Of those that it calls refused, none is taken. */
  const char *refused = strstr(text, "  -D -V");
  ck_assert(refused != NULL);
  for (refused += 3; refused[-1] == '-'; refused += 3) {
    char line[64];
    snprintf(line, sizeof(line), "tutti-perf all_reduce -%c 1", *refused);
    ck_assert_msg(parse(line) == PERF_PARSE_WRONG, "%s is accepted", line);
  }
  free(text);
}
END_TEST

Suite *suite_options(void)
{
  Suite *suite = suite_create("options");
  TCase *tests = tcase_create("options");
  tcase_add_test(tests, sizes);
  tcase_add_test(tests, every_flag_arrives);
  tcase_add_test(tests, addresses_without_a_sound_port);
  tcase_add_test(tests, long_names_of_nccl_tests);
  tcase_add_test(tests, flags_of_devices);
  tcase_add_test(tests, pairs);
  tcase_add_test(tests, how_iterations_follow);
  tcase_add_test(tests, lists_of_sizes);
  tcase_add_test(tests, what_fits_a_device);
  tcase_add_test(tests, meaning_of_n);
  tcase_add_test(tests, refusals_name_their_cause);
  tcase_add_test(tests, help_names_every_short_flag);
  suite_add_tcase(suite, tests);
  return suite;
}
