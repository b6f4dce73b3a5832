/* The grammar of NCCL_ALGO and NCCL_PROTO as a table; choices for all sizes and many settings. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "program/emit.h"
#include "tuning/env.h"
#include "tuning/tuning.h"

#define BIT(n) (1u << (n))
#define RING BIT(TT_ALGO_RING)
#define TREE BIT(TT_ALGO_TREE)
#define ONE BIT(TT_ALGO_ONE_SHOT)
#define TWO BIT(TT_ALGO_TWO_SHOT)
#define ANY UINT32_MAX

static const struct grammar_row {
  const char *value;
  uint32_t all_reduce, broadcast, all_gather;
} good[] = {
    {NULL, ANY, ANY, ANY},
    {"", ANY, ANY, ANY},
    {"Ring", RING, RING, RING},
    {"ring", RING, RING, RING},
    {"TREE,rInG", TREE | RING, TREE | RING, TREE | RING},
    {" Tree , Ring ", TREE | RING, TREE | RING, TREE | RING},
    {"Ring,", RING, RING, RING},
    {"^Tree", ~TREE, ~TREE, ~TREE},
    {"^Tree,Ring", ~(TREE | RING), ~(TREE | RING), ~(TREE | RING)},
    {"Ring;AllReduce:Tree", TREE, RING, RING},
    {"ring;allreduce:tree,ring;broadcast:ring", TREE | RING, RING, RING},
    {"AllReduce:OneShot", ONE, ANY, ANY},
    {"AllReduce:ONE_SHOT", ONE, ANY, ANY}, /* as logs write it */
    {"AllReduce:^TwoShot;Broadcast:Ring", ~TWO, RING, ANY},
    {"AllReduce:Ring;AllReduce:Tree", TREE, ANY, ANY},
    {" allgather : NVLS ", ANY, ANY, BIT(TT_ALGO_NVLS)},
    {"CollNetDirect,CollNetChain,NVLSTree,PAT",
     BIT(TT_ALGO_COLLNET_DIRECT) | BIT(TT_ALGO_COLLNET_CHAIN) | BIT(TT_ALGO_NVLS_TREE) | BIT(TT_ALGO_PAT),
     BIT(TT_ALGO_COLLNET_DIRECT) | BIT(TT_ALGO_COLLNET_CHAIN) | BIT(TT_ALGO_NVLS_TREE) | BIT(TT_ALGO_PAT),
     BIT(TT_ALGO_COLLNET_DIRECT) | BIT(TT_ALGO_COLLNET_CHAIN) | BIT(TT_ALGO_NVLS_TREE) | BIT(TT_ALGO_PAT)},
    {"Tree;", TREE, TREE, TREE},
    {"direct", BIT(TT_ALGO_DIRECT), BIT(TT_ALGO_DIRECT), BIT(TT_ALGO_DIRECT)},
    {"Ring;AllGather:PAT,Direct", RING, RING, BIT(TT_ALGO_PAT) | BIT(TT_ALGO_DIRECT)},
};

START_TEST(grammar_good)
{
  const struct grammar_row *row = &good[_i];
  struct tt_env_list list;
  ck_assert_int_eq(tt_env_parse("NCCL_ALGO", row->value, &tt_env_algorithms, &list), ncclSuccess);
  ck_assert_uint_eq(list.allowed[TT_FUNC_ALL_REDUCE], row->all_reduce);
  ck_assert_uint_eq(list.allowed[TT_FUNC_BROADCAST], row->broadcast);
  ck_assert_uint_eq(list.allowed[TT_FUNC_ALL_GATHER], row->all_gather);
}
END_TEST

/* The value, and what the message must name besides the variable and the value. */
static const char *const bad[][2] = {
    {"Rink", "\"Rink\" is not one of Tree, Ring"},
    {"Ring,Simple", "\"Simple\" is not one of"},
    {"^", "names nothing"},
    {",", "names nothing"},
    {"AllReduce:", "names nothing"},
    {"AllReduce:^", "names nothing"},
    {"Reduction:Ring", "\"Reduction\" before the colon is not one of Broadcast"},
    {":Ring", "before the colon"},
    {"AllReduce:Ring;Tree", "only the first entry may lack a function"},
    {"Ring;Tree", "only the first entry may lack a function"},
    {"AllReduce:Ring:Tree", "is not one of"},
    {"Ring,^Tree", "\"^Tree\" is not one of"},
    {"Point", "OneShot, TwoShot"},
    {"0", "is not one of"},
};

START_TEST(grammar_bad)
{
  struct tt_env_list list;
  ck_assert_int_eq(tt_env_parse("NCCL_ALGO", bad[_i][0], &tt_env_algorithms, &list), ncclInvalidUsage);
  const char *error = tt_log_thread_error();
  ck_assert_ptr_nonnull(strstr(error, "NCCL_ALGO"));
  ck_assert_msg(strstr(error, bad[_i][0]) != NULL, "%s", error);
  ck_assert_msg(strstr(error, bad[_i][1]) != NULL, "%s", error);
}
END_TEST

START_TEST(grammar_protocols)
{
  struct tt_env_list list;
  ck_assert_int_eq(tt_env_parse("NCCL_PROTO", "^ll128;AllReduce:LL", &tt_env_protocols, &list), ncclSuccess);
  ck_assert_uint_eq(list.allowed[TT_FUNC_REDUCE], ~BIT(TT_PROTO_LL128));
  ck_assert_uint_eq(list.allowed[TT_FUNC_ALL_REDUCE], BIT(TT_PROTO_LL));
  ck_assert_int_eq(tt_env_parse("NCCL_PROTO", "LL12", &tt_env_protocols, &list), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "LL, LL128, Simple"));
}
END_TEST

static void set(const char *algorithm, const char *protocol)
{
  if (algorithm)
    setenv("NCCL_ALGO", algorithm, 1);
  else
    unsetenv("NCCL_ALGO");
  if (protocol)
    setenv("NCCL_PROTO", protocol, 1);
  else
    unsetenv("NCCL_PROTO");
  tt_param_reset();
}

static struct tt_tuning_input host_input(int nranks, bool mapped)
{
  return (struct tt_tuning_input){.nranks = nranks,
                                  .nnodes = mapped ? 1 : 2,
                                  .max_ranks_per_node = mapped ? nranks : (nranks + 1) / 2,
                                  .all_mapped = mapped,
                                  .protocols = BIT(TT_PROTO_LL) | BIT(TT_PROTO_SIMPLE),
                                  .min_channels = 1,
                                  .max_channels = 8,
                                  .buffer_bytes = {[TT_PROTO_LL] = 65536, [TT_PROTO_SIMPLE] = 1 << 20}};
}

static struct tt_tuning *create(const struct tt_tuning_input *input)
{
  struct tt_tuning *tuning;
  ck_assert_int_eq(tt_tuning_create(input, &tuning), ncclSuccess);
  return tuning;
}

static struct tt_choice choose(const struct tt_tuning *tuning, int collective, size_t bytes)
{
  struct tt_choice choice;
  ck_assert_int_eq(tt_tuning_choose(tuning, collective, bytes, &choice), ncclSuccess);
  return choice;
}

static const char *const algorithm_settings[] = {NULL,
                                                 "Ring",
                                                 "Tree",
                                                 "OneShot",
                                                 "TwoShot",
                                                 "^Ring",
                                                 "^Tree",
                                                 "NVLS",
                                                 "Ring,Tree",
                                                 "^OneShot,TwoShot",
                                                 "Ring;AllReduce:Tree",
                                                 "AllReduce:TwoShot",
                                                 "Broadcast:Tree",
                                                 "CollNetDirect,PAT",
                                                 "Direct",
                                                 "^Direct",
                                                 "PAT,Ring",
                                                 "Ring;AllGather:PAT;Broadcast:Direct",
                                                 "^NVLS"};
static const char *const protocol_settings[] = {
    NULL, "LL", "Simple", "LL128", "^LL", "^Simple", "LL,Simple", "AllReduce:LL", "Simple;AllReduce:LL"};

/* Every choice obeys both requests; if it does not obey NCCL_ALGO, nothing could, and the reason says so. */
static void check_choice(const struct tt_tuning_input *input, int collective, size_t bytes, const char *algorithm,
                         const char *protocol)
{
  struct tt_env_list algorithms, protocols;
  struct tt_choice choice, again;
  ck_assert_int_eq(tt_env_parse("NCCL_ALGO", algorithm, &tt_env_algorithms, &algorithms), ncclSuccess);
  ck_assert_int_eq(tt_env_parse("NCCL_PROTO", protocol, &tt_env_protocols, &protocols), ncclSuccess);
  struct tt_tuning *tuning = create(input), *other = create(input);
  ncclResult_t result = tt_tuning_choose(tuning, collective, bytes, &choice);
  uint32_t usable = protocols.allowed[collective] & input->protocols;
  if (usable == 0) {
    ck_assert_int_eq(result, ncclInvalidUsage);
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_PROTO"));
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), protocol));
    ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), collective > TT_FUNC_ALL_REDUCE ? "Direct" : "Ring"));
  } else {
    ck_assert_int_eq(result, ncclSuccess);
    ck_assert(usable & BIT(choice.protocol));
    ck_assert(tt_program_supports(collective, choice.algorithm));
    bool possible = false;
    for (int a = 0; a < TT_NUM_ALGORITHMS; a++) {
      /* "^Ring" across hosts leaves the tree and PAT; the direct ones only when named, or where nothing else is. */
      bool direct = a == TT_ALGO_ONE_SHOT || a == TT_ALGO_TWO_SHOT || a == TT_ALGO_DIRECT;
      bool named = algorithms.set[collective] && !algorithms.inverted[collective];
      bool usual = input->all_mapped || !direct || named || !tt_program_supports(collective, TT_ALGO_RING);
      bool collnet = a == TT_ALGO_COLLNET_DIRECT || a == TT_ALGO_COLLNET_CHAIN;
      if (collnet && !input->collnet_networks) continue;
      if (a == TT_ALGO_MAPPED) continue;                         /* no buffers are said to be mapped */
      if (a == TT_ALGO_NVLS || a == TT_ALGO_NVLS_TREE) continue; /* there is no multicast memory */
      if (algorithms.allowed[collective] & BIT(a) && tt_program_supports(collective, a) && usual) possible = true;
    }
    if (possible)
      ck_assert_msg(algorithms.allowed[collective] & BIT(choice.algorithm), "%s", choice.reason);
    else
      ck_assert_msg(strstr(choice.reason, "has nothing for"), "%s", choice.reason);
    ck_assert_int_ge(choice.nchannels, input->min_channels);
    ck_assert_int_le(choice.nchannels, input->max_channels);
    if (choice.algorithm == TT_ALGO_TREE) ck_assert_int_eq(choice.nchannels % 2, 0);
    ck_assert_int_eq(tt_tuning_choose(other, collective, bytes, &again), ncclSuccess);
    ck_assert_mem_eq(&choice, &again, sizeof(choice));
  }
  tt_tuning_destroy(tuning);
  tt_tuning_destroy(other);
}

START_TEST(every_choice_obeys)
{
  static const int ranks[] = {1, 2, 3, 8, 64};
  const char *algorithm = algorithm_settings[_i];
  for (size_t p = 0; p < sizeof(protocol_settings) / sizeof(protocol_settings[0]); p++) {
    set(algorithm, protocol_settings[p]);
    for (int n = 0; n < 10; n++) {
      struct tt_tuning_input input = host_input(ranks[n / 2], n % 2);
      for (int c = 0; c < TT_NUM_FUNCS; c++)
        for (size_t bytes = 0;
             c != TT_FUNC_SEND_RECV && c != TT_FUNC_SEND && c != TT_FUNC_RECV && bytes <= (size_t)1 << 30;
             bytes = bytes ? bytes * 8 : 1)
          check_choice(&input, c, bytes, algorithm, protocol_settings[p]);
    }
  }
}
END_TEST

START_TEST(defaults)
{
  set(NULL, NULL);
  struct tt_tuning_input mapped = host_input(4, true), far = host_input(4, false);
  struct tt_tuning *near_tuning = create(&mapped), *far_tuning = create(&far);
  struct tt_choice c = choose(near_tuning, TT_FUNC_ALL_REDUCE, 8);
  ck_assert_int_eq(c.algorithm, TT_ALGO_ONE_SHOT);
  ck_assert_int_eq(c.protocol, TT_PROTO_LL);
  ck_assert_int_eq(c.nchannels, 1);
  c = choose(near_tuning, TT_FUNC_ALL_REDUCE, 64 << 20);
  ck_assert_int_eq(c.algorithm, TT_ALGO_TWO_SHOT);
  ck_assert_int_eq(c.protocol, TT_PROTO_SIMPLE);
  ck_assert_int_eq(c.nchannels, 1); /* one thread executes them all */
  c = choose(far_tuning, TT_FUNC_ALL_REDUCE, 64 << 20);
  ck_assert_int_eq(c.nchannels, 4); /* spread over interfaces */
  ck_assert_int_eq(c.algorithm, TT_ALGO_RING);
  c = choose(far_tuning, TT_FUNC_ALL_REDUCE, 8);
  ck_assert(c.algorithm == TT_ALGO_RING || c.algorithm == TT_ALGO_TREE);
  for (int f = TT_FUNC_BROADCAST; f <= TT_FUNC_REDUCE; f++)
    for (size_t bytes = 1; bytes <= 1 << 30; bytes *= 32)
      ck_assert_int_eq(choose(near_tuning, f, bytes).algorithm, TT_ALGO_RING);
  for (int f = TT_FUNC_ALL_TO_ALL; f <= TT_FUNC_GATHER; f++) { /* there is no other way */
    ck_assert_int_eq(choose(near_tuning, f, 4096).algorithm, TT_ALGO_DIRECT);
    ck_assert_int_eq(choose(far_tuning, f, 4096).algorithm, TT_ALGO_DIRECT);
  }
  for (int f = TT_FUNC_SEND_RECV; f <= TT_FUNC_RECV; f++)
    ck_assert_int_eq(choose(near_tuning, f, 4096).algorithm, TT_ALGO_POINT_TO_POINT);
  tt_tuning_destroy(near_tuning);
  tt_tuning_destroy(far_tuning);
}
END_TEST

/* As measured; see cost.c. */
START_TEST(gathers_and_scatters)
{
  set(NULL, NULL);
  struct tt_tuning_input two = host_input(2, true), four = host_input(4, true), many = host_input(64, true);
  struct tt_tuning_input far = host_input(64, false);
  struct tt_tuning *tunings[] = {create(&two), create(&four), create(&many), create(&far)};
  for (int f = TT_FUNC_ALL_GATHER; f <= TT_FUNC_REDUCE_SCATTER; f++) {
    const struct tt_choice small = choose(tunings[1], f, 64), large = choose(tunings[1], f, 8 << 20);
    ck_assert_int_eq(small.algorithm, TT_ALGO_DIRECT);
    ck_assert_int_eq(small.protocol, TT_PROTO_LL);
    ck_assert_int_eq(choose(tunings[1], f, 128 << 10).algorithm, TT_ALGO_DIRECT);
    ck_assert_int_eq(large.algorithm, TT_ALGO_RING);
    ck_assert_int_eq(large.protocol, TT_PROTO_SIMPLE);
    ck_assert_int_eq(choose(tunings[0], f, 8 << 20).algorithm, TT_ALGO_DIRECT);
    ck_assert_int_eq(choose(tunings[2], f, 64).algorithm, TT_ALGO_PAT);
    ck_assert_int_eq(choose(tunings[3], f, 64).algorithm, TT_ALGO_PAT);
    ck_assert_int_eq(choose(tunings[3], f, 1 << 30).algorithm, TT_ALGO_RING);
  }
  for (int i = 0; i < 4; i++) tt_tuning_destroy(tunings[i]);
}
END_TEST

/* A message of PAT holds eight chunks of at least 16 bytes. */
START_TEST(pat_needs_room)
{
  struct tt_tuning_input input = host_input(4, true);
  set("PAT", NULL);
  input.buffer_bytes[TT_PROTO_LL] = 0;
  input.buffer_bytes[TT_PROTO_SIMPLE] = TT_SLOTS * (TT_SLOT_HEADER + 128);
  struct tt_tuning *tuning = create(&input);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_GATHER, 64).algorithm, TT_ALGO_PAT);
  tt_tuning_destroy(tuning);
  input.buffer_bytes[TT_PROTO_SIMPLE] -= TT_SLOTS * 16;
  tuning = create(&input);
  ck_assert_int_ne(choose(tuning, TT_FUNC_ALL_GATHER, 64).algorithm, TT_ALGO_PAT);
  tt_tuning_destroy(tuning);
}
END_TEST

/* More bytes never take less time, and never switch back: LL before Simple, one-shot before two-shot. */
START_TEST(monotonic)
{
  set(NULL, NULL);
  for (int n = 2; n <= 64; n *= 2) {
    struct tt_tuning_input input = host_input(n, true);
    struct tt_tuning *tuning = create(&input);
    float before = 0;
    bool simple = false;
    for (size_t bytes = 1; bytes <= (size_t)1 << 40; bytes *= 2) {
      struct tt_choice c = choose(tuning, TT_FUNC_ALL_REDUCE, bytes);
      ck_assert(c.microseconds >= before);
      ck_assert(!simple || c.protocol == TT_PROTO_SIMPLE);
      simple = c.protocol == TT_PROTO_SIMPLE;
      before = c.microseconds;
    }
    ck_assert(simple);
    tt_tuning_destroy(tuning);
  }
}
END_TEST

START_TEST(direct_over_a_network_only_by_name)
{
  struct tt_tuning_input far = host_input(4, false);
  set("OneShot", NULL);
  struct tt_tuning *tuning = create(&far);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).algorithm, TT_ALGO_ONE_SHOT);
  tt_tuning_destroy(tuning);
  set("^Ring,Tree", NULL); /* leaves the direct ones, unnamed: the fallback must say so */
  tuning = create(&far);
  struct tt_choice c = choose(tuning, TT_FUNC_ALL_REDUCE, 8);
  ck_assert(c.algorithm == TT_ALGO_RING || c.algorithm == TT_ALGO_TREE);
  ck_assert_msg(strstr(c.reason, "has nothing for AllReduce"), "%s", c.reason);
  tt_tuning_destroy(tuning);
}
END_TEST

/* The fallback of one constraint keeps the other. */
START_TEST(fallback_keeps_the_protocol)
{
  struct tt_tuning_input input = host_input(4, true);
  set("Tree", "Simple");
  struct tt_tuning *tuning = create(&input);
  struct tt_choice c = choose(tuning, TT_FUNC_BROADCAST, 8);
  ck_assert_int_eq(c.algorithm, TT_ALGO_RING);
  ck_assert_int_eq(c.protocol, TT_PROTO_SIMPLE);
  ck_assert_msg(strstr(c.reason, "NCCL_ALGO=Tree has nothing for Broadcast"), "%s", c.reason);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).algorithm, TT_ALGO_TREE);
  tt_tuning_destroy(tuning);
}
END_TEST

START_TEST(what_the_device_lacks)
{
  struct tt_tuning_input input = host_input(4, true);
  struct tt_choice c;
  set(NULL, "LL128");
  struct tt_tuning *tuning = create(&input);
  ck_assert_int_eq(tt_tuning_choose(tuning, TT_FUNC_ALL_REDUCE, 8, &c), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "protocols LL, Simple"));
  ck_assert_int_eq(tt_tuning_choose(tuning, TT_FUNC_SEND, 8, &c), ncclInvalidUsage);
  tt_tuning_destroy(tuning);
  set(NULL, NULL);
  input.buffer_bytes[TT_PROTO_LL] = 0; /* and what has no buffers */
  tuning = create(&input);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).protocol, TT_PROTO_SIMPLE);
  tt_tuning_destroy(tuning);
}
END_TEST

/* Channels of a collective over a network spread over the ways that there are, and no further. */
START_TEST(channels_follow_paths)
{
  const int channels[] = {4, 1, 2, 3, 4, 4}; /* 0: unknown */
  set(NULL, NULL);
  struct tt_tuning_input input = host_input(4, false);
  for (int paths = 0; paths < (int)TT_COUNT(channels); paths++) {
    input.network_paths = paths;
    struct tt_tuning *tuning = create(&input);
    ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_GATHER, 64 << 20).nchannels, channels[paths]);
    /* Nor does a channel get less than 64 KiB, but for the first. */
    ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_GATHER, 8).nchannels, 1);
    ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_GATHER, (128 << 10) - 1).nchannels, 1);
    ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_GATHER, 128 << 10).nchannels, TT_MIN(channels[paths], 2));
    tt_tuning_destroy(tuning);
  }
}
END_TEST

START_TEST(channels_have_limits)
{
  set("Tree", NULL);
  struct tt_tuning_input input = host_input(4, true);
  struct tt_tuning *tuning = create(&input);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).nchannels, 2);
  tt_tuning_destroy(tuning);
  input.max_channels = 1;
  tuning = create(&input);
  struct tt_choice c = choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 30);
  ck_assert_int_eq(c.nchannels, 1);
  ck_assert_msg(strstr(c.reason, "one tree"), "%s", c.reason);
  tt_tuning_destroy(tuning);
  set("Ring", NULL);
  input.min_channels = input.max_channels = 5;
  tuning = create(&input);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).nchannels, 5);
  tt_tuning_destroy(tuning);
}
END_TEST

START_TEST(create_refuses_bad_values)
{
  struct tt_tuning_input input = host_input(2, true);
  struct tt_tuning *tuning;
  set("Rings", NULL);
  ck_assert_int_eq(tt_tuning_create(&input, &tuning), ncclInvalidUsage);
  ck_assert_ptr_null(tuning);
  set(NULL, "AllReduce:LL;Simple");
  ck_assert_int_eq(tt_tuning_create(&input, &tuning), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "NCCL_PROTO"));
}
END_TEST

/* CollNet only where a network reduces, with plain data, on channels that are connected with it. */
START_TEST(networks_that_reduce)
{
  struct tt_tuning_input input = host_input(4, false);
  set("CollNetChain", NULL);
  struct tt_tuning *tuning = create(&input);
  ck_assert_ptr_nonnull(strstr(choose(tuning, TT_FUNC_ALL_REDUCE, 4096).reason, "has nothing for AllReduce"));
  tt_tuning_destroy(tuning);
  input.collnet_networks = input.collnet_channels = 2;
  tuning = create(&input);
  struct tt_choice choice = choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 26);
  ck_assert_int_eq(choice.algorithm, TT_ALGO_COLLNET_CHAIN);
  ck_assert_int_eq(choice.protocol, TT_PROTO_SIMPLE);
  ck_assert_int_eq(choice.nchannels, 2);
  ck_assert_int_eq(tt_tuning_choose_without(tuning, TT_FUNC_ALL_REDUCE, 1 << 26, TT_WITHOUT_COLLNET, &choice),
                   ncclSuccess);
  ck_assert_int_ne(choice.algorithm, TT_ALGO_COLLNET_CHAIN);
  ck_assert_ptr_nonnull(strstr(choice.reason, "NCCL_ALGO=CollNetChain has nothing for AllReduce"));
  ck_assert_int_ne(choose(tuning, TT_FUNC_ALL_GATHER, 4096).algorithm, TT_ALGO_COLLNET_CHAIN);
  tt_tuning_destroy(tuning);
  set(NULL, NULL);
  tuning = create(&input);
  ck_assert_int_eq(tt_tuning_choose_without(tuning, TT_FUNC_ALL_REDUCE, 1 << 26, TT_WITHOUT_COLLNET, &choice),
                   ncclSuccess);
  ck_assert(choice.algorithm != TT_ALGO_COLLNET_CHAIN && choice.algorithm != TT_ALGO_COLLNET_DIRECT);
  choice = choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 26);
  ck_assert(choice.algorithm == TT_ALGO_COLLNET_CHAIN || choice.algorithm == TT_ALGO_COLLNET_DIRECT);
  tt_tuning_destroy(tuning);
  input.network_paths = 1; /* of the rings; such networks have NICs of their own */
  tuning = create(&input);
  choice = choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 26);
  ck_assert(choice.algorithm == TT_ALGO_COLLNET_CHAIN || choice.algorithm == TT_ALGO_COLLNET_DIRECT);
  ck_assert_int_eq(choice.nchannels, 2);
  tt_tuning_destroy(tuning);
}
END_TEST

/* Multicast memory of the host device is emulated, and used by name only. */
START_TEST(multicast)
{
  struct tt_tuning_input input = host_input(4, true);
  input.nodes_mapped = true;
  set(NULL, NULL);
  struct tt_tuning *tuning = create(&input);
  ck_assert_int_eq(tt_tuning_shared_channels(tuning), 0);
  tt_tuning_destroy(tuning);
  set("^Ring", NULL);
  tuning = create(&input);
  ck_assert_int_eq(tt_tuning_shared_channels(tuning), 0);
  ck_assert_int_ne(choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 20).algorithm, TT_ALGO_NVLS);
  tt_tuning_destroy(tuning);
  set("NVLS", NULL);
  tuning = create(&input);
  struct tt_choice choice = choose(tuning, TT_FUNC_ALL_GATHER, 1 << 20);
  ck_assert_int_eq(choice.algorithm, TT_ALGO_NVLS);
  ck_assert_int_eq(choice.protocol, TT_PROTO_SIMPLE);
  ck_assert_int_ge(tt_tuning_shared_channels(tuning), choice.nchannels);
  ck_assert_ptr_nonnull(strstr(choose(tuning, TT_FUNC_BROADCAST, 8).reason, "has nothing for Broadcast"));
  tt_tuning_destroy(tuning);
  input.min_channels = 9;
  input.max_channels = 16;
  tuning = create(&input);
  ck_assert_int_eq(choose(tuning, TT_FUNC_ALL_REDUCE, 8).nchannels, 9);
  ck_assert_int_eq(tt_tuning_shared_channels(tuning), 9);
  tt_tuning_destroy(tuning);
  input.min_channels = 1;
  input.nodes_mapped = false;
  tuning = create(&input);
  ck_assert_int_ne(choose(tuning, TT_FUNC_ALL_REDUCE, 8).algorithm, TT_ALGO_NVLS);
  ck_assert_int_eq(tt_tuning_shared_channels(tuning), 0);
  tt_tuning_destroy(tuning);
}
END_TEST

/* Which numbers of nodes and ranks on the fullest suit which. */
START_TEST(multicast_on_nodes)
{
  static const struct {
    int nnodes, most;
    bool nvls, tree;
  } rows[] = {{1, 8, true, true}, {2, 4, false, true}, {4, 2, false, true}, {8, 1, false, false}, {2, 5, false, false}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    struct tt_tuning_input input = host_input(8, rows[i].nnodes == 1);
    input.nodes_mapped = true;
    input.nnodes = rows[i].nnodes;
    input.max_ranks_per_node = rows[i].most;
    for (int tree = 0; tree < 2; tree++) {
      set(tree ? "NVLSTree" : "NVLS", NULL);
      struct tt_tuning *tuning = create(&input);
      bool chosen = choose(tuning, TT_FUNC_ALL_REDUCE, 1 << 20).algorithm == (tree ? TT_ALGO_NVLS_TREE : TT_ALGO_NVLS);
      ck_assert_int_eq(chosen, tree ? rows[i].tree : rows[i].nvls);
      ck_assert_int_eq(tt_tuning_shared_channels(tuning) > 0, chosen);
      tt_tuning_destroy(tuning);
    }
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("tuning");
  TCase *tests = tcase_create("tuning");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, grammar_good, 0, sizeof(good) / sizeof(good[0]));
  tcase_add_loop_test(tests, grammar_bad, 0, sizeof(bad) / sizeof(bad[0]));
  tcase_add_test(tests, grammar_protocols);
  tcase_add_loop_test(tests, every_choice_obeys, 0, sizeof(algorithm_settings) / sizeof(algorithm_settings[0]));
  tcase_add_test(tests, defaults);
  tcase_add_test(tests, gathers_and_scatters);
  tcase_add_test(tests, pat_needs_room);
  tcase_add_test(tests, multicast);
  tcase_add_test(tests, multicast_on_nodes);
  tcase_add_test(tests, monotonic);
  tcase_add_test(tests, direct_over_a_network_only_by_name);
  tcase_add_test(tests, fallback_keeps_the_protocol);
  tcase_add_test(tests, what_the_device_lacks);
  tcase_add_test(tests, channels_follow_paths);
  tcase_add_test(tests, channels_have_limits);
  tcase_add_test(tests, networks_that_reduce);
  tcase_add_test(tests, create_refuses_bad_values);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
