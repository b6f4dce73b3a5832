/* Determinism: an all-reduce gives all ranks the same bits, and any reducing collective the same bits in every run,
 * whatever order ranks are driven in, in place or not, wherever the buffers begin, and over whatever connections.
 *
 * The inputs are such that the order of additions shows: exponents from the whole range of the type, and numbers that
 * nearly cancel. That they do show it is tested with a program that reduces in an order of each rank's own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "kernels/host/fp8.h"
#include "kernels/host/host.h"
#include "world.h"

#define MAX_RANKS 5
#define COUNT 301
#define CHUNK 40 /* elements, so that there are several loops */
#define ELEMENT 8

enum { SUM_OF_SCALED = 4 }; /* in place of an operation: an average, or a sum of PreMulSum */
static const int types[] = {ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64, ncclFloat8e4m3, ncclFloat8e5m2};
static const int algorithms[] = {TT_ALGO_RING,   TT_ALGO_TREE, TT_ALGO_ONE_SHOT, TT_ALGO_TWO_SHOT,
                                 TT_ALGO_DIRECT, TT_ALGO_PAT,  TT_ALGO_NVLS,     TT_ALGO_NVLS_TREE};
static const int collectives[] = {TT_FUNC_ALL_REDUCE, TT_FUNC_REDUCE_SCATTER, TT_FUNC_REDUCE};

/* What fixes the result. */
struct operation {
  int collective, algorithm, protocol, type, op, nranks;
  bool own_first; /* one-shot, spoilt */
};

/* What may not change it. */
struct variant {
  bool in_place, proxied;
  size_t shift; /* bytes from an aligned address to the buffers */
  uint64_t seed;
};

static const struct variant variants[] = {
    {false, false, 0, 1}, {false, false, 0, 77}, {true, false, 0, 2}, {false, true, 0, 3}, {true, false, 3, 4}};

/* The output of each rank. */
struct results {
  unsigned char bytes[MAX_RANKS][COUNT * ELEMENT];
};

struct rank_state {
  struct tt_program *programs[WORLD_CHANNELS];
  struct tt_work *work;
  unsigned char *memory[2], *scratch;
  void *scratches[1];
  unsigned char *output;
};

static uint64_t mix(uint64_t x)
{
  x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  return x ^ x >> 32;
}

/* Any exponent, and in half of the places the same large number with a sign of the rank's own. */
static double value(int type, int rank, int block, int i)
{
  static const int lowest[] = {[ncclFloat16] = -20,  [ncclBfloat16] = -60,  [ncclFloat32] = -60,
                               [ncclFloat64] = -500, [ncclFloat8e4m3] = -8, [ncclFloat8e5m2] = -15};
  static const int highest[] = {[ncclFloat16] = 10,  [ncclBfloat16] = 60,  [ncclFloat32] = 60,
                                [ncclFloat64] = 500, [ncclFloat8e4m3] = 5, [ncclFloat8e5m2] = 11};
  uint64_t place = mix((uint64_t)(block * COUNT + i) + 1), bits = mix(place + (uint64_t)rank * 1000003);
  bool shared = (place & 1) && (bits & 6);
  int exponent = shared ? highest[type] : lowest[type] + (int)((bits >> 8) % (uint64_t)(highest[type] - lowest[type]));
  double size = ldexp(1 + (shared ? 0 : (double)(bits >> 20 & 0xffff) / 0x10000), exponent);
  if (i % 97 == 5) size = rank == 1 ? NAN : INFINITY;
  if (i % 97 == 7) size = 0; /* of both signs, which are equal but not the same bits */
  return bits >> 50 & 1 ? -size : size;
}

static void put(int type, double value, void *at)
{
  float single = (float)value;
  uint16_t two = type == ncclFloat16 ? tt_float_to_half(single) : tt_float_to_bfloat(single);
  uint8_t one = type == ncclFloat8e4m3 ? tt_float_to_e4m3(single) : tt_float_to_e5m2(single);
  switch (tt_datatype_bytes(type)) {
  case 1:
    memcpy(at, &one, 1);
    break;
  case 2:
    memcpy(at, &two, 2);
    break;
  case 4:
    memcpy(at, &single, 4);
    break;
  default:
    memcpy(at, &value, 8);
  }
}

/* Two nodes of two ranks, or one. */
static int32_t node_of(int nranks, int rank)
{
  return nranks == 4 ? rank / 2 : 0;
}

static bool is_shared(int algorithm)
{
  return algorithm == TT_ALGO_NVLS || algorithm == TT_ALGO_NVLS_TREE;
}

/* Puts the rank's own input before what it receives: the mistake that this file is to find. */
static void take_own_first(struct tt_program *program)
{
  struct tt_instruction *instructions = (struct tt_instruction *)program->instructions;
  struct tt_operand *operands = (struct tt_operand *)program->operands;
  struct tt_operand *first = operands + instructions[program->ninstructions - 1].first_operand, *own = first;
  while (own->kind != TT_SRC) own++;
  struct tt_operand kept = *own;
  memmove(first + 1, first, (size_t)(own - first) * sizeof(*first));
  *first = kept;
}

static void make_programs(const struct operation *o, int rank, struct rank_state *state)
{
  int32_t node[MAX_RANKS];
  for (int r = 0; r < o->nranks; r++) node[r] = node_of(o->nranks, r);
  for (int c = 0; c < 2; c++) {
    struct tt_emit_request request = {.collective = o->collective,
                                      .algorithm = o->algorithm,
                                      .nranks = o->nranks,
                                      .rank = rank,
                                      .root = o->nranks - 1,
                                      .tree_index = c % 2,
                                      .node = o->algorithm == TT_ALGO_NVLS_TREE ? node : NULL,
                                      .most_pieces = o->algorithm == TT_ALGO_PAT ? 2 : 0};
    ck_assert_int_eq(tt_program_emit(&request, &state->programs[c]), ncclSuccess);
    if (o->own_first) take_own_first(state->programs[c]);
  }
}

static unsigned char *allocate(struct rank_state *state, int which, size_t bytes)
{
  state->memory[which] = calloc(1, bytes + 64);
  ck_assert_ptr_nonnull(state->memory[which]);
  return state->memory[which];
}

static void make_buffers(const struct operation *o, const struct variant *v, int rank, struct rank_state *state)
{
  size_t bytes = tt_datatype_bytes(o->type), block = COUNT * bytes;
  int blocks = o->collective == TT_FUNC_REDUCE_SCATTER ? o->nranks : 1;
  unsigned char *input = allocate(state, 0, block * (size_t)blocks) + v->shift;
  state->output = v->in_place ? input + (blocks > 1 ? (size_t)rank * block : 0) : allocate(state, 1, block) + v->shift;
  for (int b = 0; b < blocks; b++)
    for (int i = 0; i < COUNT; i++)
      put(o->type, value(o->type, rank, b, i), input + (size_t)b * block + (size_t)i * bytes);
  state->work->input = input;
  state->work->output = o->collective == TT_FUNC_REDUCE && rank != o->nranks - 1 ? NULL : state->output;
}

static void make_rank(struct world *world, const struct operation *o, const struct variant *v, int rank,
                      struct rank_state *state)
{
  memset(state, 0, sizeof(*state));
  make_programs(o, rank, state);
  struct tt_work *work = state->work =
      world_work(world, rank, (const struct tt_program *const *)state->programs, 2, o->protocol);
  make_buffers(o, v, rank, state);
  work->reduction = (struct tt_reduction){.op = (uint8_t)o->op, .datatype = (uint8_t)o->type};
  if (o->op == SUM_OF_SCALED) {
    work->reduction.op = ncclSum;
    work->reduction.scale_inputs = 1;
    if (o->type == ncclFloat64)
      work->reduction.scale.f64 = 1.0 / o->nranks;
    else
      work->reduction.scale.f32 = 1.0f / (float)o->nranks;
  }
  work->signature.collective = (uint8_t)o->collective;
  work->signature.count = COUNT;
  world_cut(work, COUNT, CHUNK);
  const struct tt_program *program = state->programs[0];
  if (program->nscratch == 0) return;
  state->scratch = calloc(2 * program->scratch_blocks * program->parts * CHUNK, ELEMENT);
  ck_assert_ptr_nonnull(state->scratch);
  state->scratches[0] = state->scratch;
  work->scratch = state->scratches;
}

static void run(const struct operation *o, const struct variant *v, struct results *results)
{
  struct world_options options = {.nranks = o->nranks,
                                  .stale = 0xcd,
                                  .shared_bytes = is_shared(o->algorithm) ? (size_t)2 * MAX_RANKS * 4 * 2048 : 0,
                                  .proxied = v->proxied,
                                  .proxy_protocol = o->protocol,
                                  .seed = v->seed};
  struct rank_state states[MAX_RANKS];
  struct tt_work **rows[MAX_RANKS];
  struct world world;
  options.slot_bytes[o->protocol] = 2048;
  world_open(&world, &options);
  for (int r = 0; r < o->nranks; r++) {
    make_rank(&world, o, v, r, &states[r]);
    rows[r] = &states[r].work;
  }
  ck_assert_int_eq(world_run(&world, rows, 1), ncclSuccess);
  memset(results, 0, sizeof(*results));
  for (int r = 0; r < o->nranks; r++) {
    if (states[r].work->output != NULL) memcpy(results->bytes[r], states[r].output, COUNT * tt_datatype_bytes(o->type));
    free(states[r].memory[0]);
    free(states[r].memory[1]);
    free(states[r].scratch);
    for (int c = 0; c < 2; c++) tt_program_free(states[r].programs[c]);
    world_free_work(states[r].work);
  }
  world_close(&world);
}

/* Whether all ranks have the same bits. */
static bool ranks_agree(const struct operation *o, const struct results *results)
{
  for (int r = 1; r < o->nranks; r++)
    if (memcmp(results->bytes[r], results->bytes[0], sizeof(results->bytes[0])) != 0) return false;
  return true;
}

static void check_operation(const struct operation *o)
{
  static struct results first, again;
  for (size_t v = 0; v < TT_COUNT(variants); v++) {
    struct results *results = v == 0 ? &first : &again;
    if (variants[v].proxied && is_shared(o->algorithm)) continue;
    run(o, &variants[v], results);
    if (o->collective == TT_FUNC_ALL_REDUCE && !ranks_agree(o, results))
      ck_abort_msg("ranks differ: %s protocol %d type %d op %d, %d ranks, variant %zu", tt_algorithm_name(o->algorithm),
                   o->protocol, o->type, o->op, o->nranks, v);
    if (v > 0 && memcmp(&again, &first, sizeof(first)) != 0)
      ck_abort_msg("variant %zu differs: %s %s protocol %d type %d op %d, %d ranks", v,
                   tt_collective_name(o->collective), tt_algorithm_name(o->algorithm), o->protocol, o->type, o->op,
                   o->nranks);
  }
}

/* Every reducing collective, algorithm, protocol and operation, for one type. */
START_TEST(test_same_bits)
{
  static const int protocols[] = {TT_PROTO_SIMPLE, TT_PROTO_LL};
  int checked = 0;
  for (size_t c = 0; c < TT_COUNT(collectives); c++) {
    for (size_t a = 0; a < TT_COUNT(algorithms); a++) {
      for (size_t p = 0; p < TT_COUNT(protocols); p++) {
        if (!tt_program_supports(collectives[c], algorithms[a])) continue;
        if (is_shared(algorithms[a]) && protocols[p] != TT_PROTO_SIMPLE) continue;
        for (int op = ncclSum; op <= SUM_OF_SCALED; op++)
          check_operation(&(struct operation){.collective = collectives[c],
                                              .algorithm = algorithms[a],
                                              .protocol = protocols[p],
                                              .type = types[_i],
                                              .op = op,
                                              .nranks = 3 + (int)(a + p + (size_t)op) % (MAX_RANKS - 2)});
        checked++;
      }
    }
  }
  ck_assert_int_ge(checked, 20);
}
END_TEST

/* Of a one-shot in which each rank begins with its own input the ranks differ, and are seen to. The values of e4m3 are
 * so few that fp32 holds all of their sums exactly, in any order. */
START_TEST(test_own_order_is_seen)
{
  struct operation o = {.collective = TT_FUNC_ALL_REDUCE,
                        .algorithm = TT_ALGO_ONE_SHOT,
                        .protocol = _i % 2 ? TT_PROTO_LL : TT_PROTO_SIMPLE,
                        .type = types[_i / 2],
                        .op = ncclSum,
                        .nranks = MAX_RANKS};
  static struct results results;
  for (int spoilt = 0; spoilt < 2; spoilt++) {
    o.own_first = spoilt;
    run(&o, &variants[0], &results);
    ck_assert_int_eq(ranks_agree(&o, &results), !spoilt || o.type == ncclFloat8e4m3);
  }
}
END_TEST

/* All inputs of an all-reduce in rank order: in one go, or two at a time. */
static void reduce_here(int type, int nranks, bool pairwise, unsigned char *out)
{
  static unsigned char in[MAX_RANKS][COUNT * ELEMENT];
  const void *src[MAX_RANKS];
  void *dst[] = {out};
  struct tt_reduction reduction = {.op = ncclSum, .datatype = (uint8_t)type};
  for (int r = 0; r < nranks; r++) {
    src[r] = in[r];
    for (int i = 0; i < COUNT; i++) put(type, value(type, r, 0, i), in[r] + (size_t)i * tt_datatype_bytes(type));
  }
  if (!pairwise) {
    tt_host_reduce(&reduction, dst, 1, src, nranks, NULL, 1, COUNT);
    return;
  }
  memcpy(out, in[0], sizeof(in[0]));
  for (int r = 1; r < nranks; r++) {
    const void *two[] = {out, in[r]};
    tt_host_reduce(&reduction, dst, 1, two, 2, NULL, 1, COUNT);
  }
}

/* Algorithms in which all inputs meet in one instruction round once. */
START_TEST(test_one_rounding)
{
  static const int kinds[][3] = {{TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, TT_PROTO_SIMPLE},
                                 {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, TT_PROTO_LL},
                                 {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, TT_PROTO_SIMPLE},
                                 {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT, TT_PROTO_LL},
                                 {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS, TT_PROTO_SIMPLE},
                                 {TT_FUNC_REDUCE, TT_ALGO_DIRECT, TT_PROTO_SIMPLE},
                                 {TT_FUNC_REDUCE, TT_ALGO_DIRECT, TT_PROTO_LL}};
  static struct results results;
  static unsigned char once[COUNT * ELEMENT], pairwise[COUNT * ELEMENT];
  int type = types[_i];
  size_t bytes = COUNT * tt_datatype_bytes(type);
  reduce_here(type, MAX_RANKS, false, once);
  reduce_here(type, MAX_RANKS, true, pairwise);
  if (tt_datatype_bytes(type) < 4) ck_assert_mem_ne(once, pairwise, bytes); /* the inputs tell the two apart */
  for (size_t k = 0; k < TT_COUNT(kinds); k++) {
    struct operation o = {.collective = kinds[k][0],
                          .algorithm = kinds[k][1],
                          .protocol = kinds[k][2],
                          .type = type,
                          .op = ncclSum,
                          .nranks = MAX_RANKS};
    run(&o, &variants[0], &results);
    ck_assert_mem_eq(results.bytes[MAX_RANKS - 1], once, bytes); /* the root's */
  }
}
END_TEST

/* Gives zeros one sign: which of two equal numbers an extreme is, the order decides. */
static void unsign_zeros(int type, int nranks, struct results *results)
{
  size_t bytes = tt_datatype_bytes(type);
  static const unsigned char zero[ELEMENT];
  for (int r = 0; r < nranks; r++)
    for (unsigned char *at = results->bytes[r]; at < results->bytes[r] + COUNT * bytes; at += bytes)
      if (memcmp(at, zero, bytes - 1) == 0 && at[bytes - 1] == 0x80) at[bytes - 1] = 0;
}

/* But for the sign of zeros, minimum and maximum do not depend on the order at all: not on the algorithm, nor on the
 * protocol, with NaNs too. */
START_TEST(test_extremes_of_all_algorithms)
{
  static struct results first, other;
  for (int op = ncclMax; op <= ncclMin; op++) {
    int ran = 0;
    for (size_t a = 0; a < TT_COUNT(algorithms); a++) {
      for (int protocol = TT_PROTO_LL; protocol < TT_NUM_PROTOCOLS; protocol += TT_PROTO_SIMPLE - TT_PROTO_LL) {
        struct operation o = {.collective = TT_FUNC_ALL_REDUCE,
                              .algorithm = algorithms[a],
                              .protocol = protocol,
                              .type = types[_i],
                              .op = op,
                              .nranks = 4};
        if (!tt_program_supports(o.collective, o.algorithm)) continue;
        if (is_shared(o.algorithm) && protocol != TT_PROTO_SIMPLE) continue;
        struct results *results = ran++ == 0 ? &first : &other;
        run(&o, &variants[0], results);
        unsign_zeros(o.type, o.nranks, results);
        if (ran > 1 && memcmp(&first, &other, sizeof(first)) != 0)
          ck_abort_msg("%s protocol %d type %d op %d differs", tt_algorithm_name(o.algorithm), protocol, o.type, op);
      }
    }
    ck_assert_int_ge(ran, 10);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("determinism");
  TCase *tcase = tcase_create("determinism");
  tcase_set_timeout(tcase, 0);
  tcase_add_loop_test(tcase, test_same_bits, 0, TT_COUNT(types));
  tcase_add_loop_test(tcase, test_own_order_is_seen, 0, 2 * TT_COUNT(types));
  tcase_add_loop_test(tcase, test_one_rounding, 0, TT_COUNT(types));
  tcase_add_loop_test(tcase, test_extremes_of_all_algorithms, 0, TT_COUNT(types));
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
