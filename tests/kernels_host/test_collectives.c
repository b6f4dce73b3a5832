/* The executor under programs of all emitters: every result against the collective's definition. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "kernels/host/host.h"
#include "world.h"

#define MAX_RANKS 8

struct operation {
  int collective, algorithm, protocol, nchannels;
  int most_pieces; /* PAT */
  int nranks, root;
  size_t count, chunk; /* elements of a block and of a chunk at most */
  bool in_place, average;
};

/* Element i of block b of a rank's input. */
static uint32_t value(int rank, int block, size_t i)
{
  return (uint32_t)rank * 2654435761u + (uint32_t)block * 40503u + (uint32_t)i * 97u + 1u;
}

struct rank_state {
  struct tt_program *programs[WORLD_CHANNELS];
  struct tt_work *work;
  uint32_t *input, *output; /* with a guard element behind each */
  uint32_t *scratch;
  void *scratches[1];
  const void *inputs[MAX_RANKS]; /* all ranks', for who uses them */
  void *outputs[MAX_RANKS];
};

#define GUARD 0xdeadbeefu

static bool has_output(const struct operation *o, int rank)
{
  return (o->collective != TT_FUNC_REDUCE && o->collective != TT_FUNC_GATHER) || rank == o->root;
}

static bool has_input(const struct operation *o, int rank)
{
  return (o->collective != TT_FUNC_BROADCAST && o->collective != TT_FUNC_SCATTER) || rank == o->root;
}

/* Blocks of the larger input and output that any rank has. */
static size_t input_blocks(const struct operation *o)
{
  bool blocks = o->collective == TT_FUNC_REDUCE_SCATTER || o->collective == TT_FUNC_SCATTER ||
                o->collective == TT_FUNC_ALL_TO_ALL;
  return blocks ? (size_t)o->nranks : 1;
}

static size_t output_blocks(const struct operation *o)
{
  bool blocks =
      o->collective == TT_FUNC_ALL_GATHER || o->collective == TT_FUNC_GATHER || o->collective == TT_FUNC_ALL_TO_ALL;
  return blocks ? (size_t)o->nranks : 1;
}

static uint32_t expected(const struct operation *o, int rank, int block, size_t i)
{
  if (o->collective == TT_FUNC_BROADCAST) return value(o->root, 0, i);
  if (o->collective == TT_FUNC_ALL_GATHER || o->collective == TT_FUNC_GATHER) return value(block, 0, i);
  if (o->collective == TT_FUNC_ALL_TO_ALL) return value(block, rank, i);
  if (o->collective == TT_FUNC_SCATTER) return value(o->root, rank, i);
  uint32_t sum = 0;
  for (int r = 0; r < o->nranks; r++) sum += value(r, o->collective == TT_FUNC_REDUCE_SCATTER ? rank : 0, i);
  return o->average ? sum / (uint32_t)o->nranks : sum;
}

/* Buffers at odd addresses' nearest, 4-byte aligned, each in its own allocation. */
static void make_buffers(const struct operation *o, int rank, struct rank_state *state)
{
  size_t in_blocks = input_blocks(o), out_blocks = output_blocks(o);
  uint32_t *memory = NULL;
  if (o->in_place) {
    size_t all = o->count * TT_MAX(in_blocks, out_blocks);
    memory = malloc((all + 1) * sizeof(uint32_t));
    memory[all] = GUARD;
    state->input = memory + (out_blocks > in_blocks ? (size_t)rank * o->count : 0);
    state->output = memory + (in_blocks > out_blocks ? (size_t)rank * o->count : 0);
  } else {
    state->input = malloc((in_blocks * o->count + 1) * sizeof(uint32_t));
    state->output = malloc((out_blocks * o->count + 1) * sizeof(uint32_t));
    state->input[in_blocks * o->count] = state->output[out_blocks * o->count] = GUARD;
    memset(state->output, 0x5a, out_blocks * o->count * sizeof(uint32_t));
  }
  for (size_t b = 0; b < in_blocks; b++)
    for (size_t i = 0; i < o->count; i++) state->input[b * o->count + i] = value(rank, (int)b, i);
}

static void free_buffers(const struct operation *o, int rank, struct rank_state *state)
{
  bool inside_input = o->in_place && input_blocks(o) > output_blocks(o);
  free(state->scratch);
  if (!o->in_place) free(state->input);
  free(state->output - (inside_input ? (size_t)rank * o->count : 0));
}

/* Nodes of two ranks or three, or one node. */
static int node_of(int nranks, int rank)
{
  return rank / (nranks % 2 == 0 ? 2 : nranks % 3 == 0 ? 3 : nranks);
}

static bool is_shared(int algorithm)
{
  return algorithm == TT_ALGO_NVLS || algorithm == TT_ALGO_NVLS_TREE || algorithm == TT_ALGO_MAPPED;
}

static void make_rank(struct world *world, const struct operation *o, int rank, uint64_t sequence,
                      struct rank_state *state)
{
  int32_t node[MAX_RANKS];
  for (int r = 0; r < o->nranks; r++) node[r] = node_of(o->nranks, r);
  for (int c = 0; c < o->nchannels; c++) {
    struct tt_emit_request request = {.collective = o->collective,
                                      .algorithm = o->algorithm,
                                      .nranks = o->nranks,
                                      .rank = rank,
                                      .root = o->root,
                                      .tree_index = c % 2,
                                      .node = o->algorithm == TT_ALGO_NVLS_TREE ? node : NULL,
                                      .most_pieces = o->most_pieces};
    ck_assert_int_eq(tt_program_emit(&request, &state->programs[c]), ncclSuccess);
  }
  make_buffers(o, rank, state);
  state->work = world_work(world, rank, (const struct tt_program *const *)state->programs, o->nchannels, o->protocol);
  state->work->input = has_input(o, rank) ? state->input : NULL;
  state->work->output = has_output(o, rank) ? state->output : NULL;
  state->work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclUint32};
  state->work->reduction.divide_result = o->average;
  state->work->reduction.divisor = o->nranks;
  state->work->signature.sequence = sequence;
  state->work->signature.collective = (uint8_t)o->collective;
  state->work->signature.count = o->count;
  world_cut(state->work, o->count, o->chunk);
  const struct tt_program *program = state->programs[0];
  if (program->nscratch == 0) return;
  ck_assert_uint_eq(program->nscratch, 1);
  size_t scratch = (size_t)o->nchannels * program->scratch_blocks * program->parts * o->chunk;
  state->scratch = malloc(scratch * sizeof(uint32_t));
  state->scratches[0] = state->scratch;
  state->work->scratch = state->scratches;
}

static void check_rank(const struct operation *o, int rank, struct rank_state *state)
{
  int blocks = (int)output_blocks(o);
  if (has_output(o, rank)) {
    for (int b = 0; b < blocks; b++) {
      for (size_t i = 0; i < o->count; i++) {
        uint32_t got = state->output[(size_t)b * o->count + i], wanted = expected(o, rank, b, i);
        if (got != wanted)
          ck_abort_msg("%s %s protocol %d, %d ranks, count %zu, chunk %zu: rank %d, block %d, element %zu: %x, not %x",
                       tt_collective_name(o->collective), tt_algorithm_name(o->algorithm), o->protocol, o->nranks,
                       o->count, o->chunk, rank, b, i, got, wanted);
      }
    }
  }
  if (!o->in_place) ck_assert_uint_eq(state->output[(size_t)blocks * o->count], GUARD);
  free_buffers(o, rank, state);
  for (int c = 0; c < o->nchannels; c++) tt_program_free(state->programs[c]);
  world_free_work(state->work);
}

/* Lets all ranks use each other's buffers. */
static void map_buffers(const struct operation *o, struct rank_state *states[])
{
  for (int r = 0; o->algorithm == TT_ALGO_MAPPED && r < o->nranks; r++) {
    for (int m = 0; m < o->nranks; m++) {
      states[r]->inputs[m] = states[m]->work->input;
      states[r]->outputs[m] = states[m]->work->output;
    }
    states[r]->work->member_inputs = states[r]->inputs;
    states[r]->work->member_outputs = states[r]->outputs;
  }
}

/* Runs `times` operations in one launch. */
static void run(struct world *world, const struct operation *o, int times)
{
  struct rank_state states[MAX_RANKS][4];
  struct tt_work *works[MAX_RANKS][4], **rows[MAX_RANKS];
  memset(states, 0, sizeof(states));
  for (int r = 0; r < o->nranks; r++) {
    rows[r] = works[r];
    for (int t = 0; t < times; t++) {
      make_rank(world, o, r, (uint64_t)t, &states[r][t]);
      works[r][t] = states[r][t].work;
    }
  }
  for (int t = 0; t < times; t++) {
    struct rank_state *of_time[MAX_RANKS];
    for (int r = 0; r < o->nranks; r++) of_time[r] = &states[r][t];
    map_buffers(o, of_time);
  }
  ck_assert_int_eq(world_run(world, rows, times), ncclSuccess);
  for (int r = 0; r < o->nranks; r++)
    for (int t = 0; t < times; t++) check_rank(o, r, &states[r][t]);
}

static const size_t counts[] = {0, 1, 7, 64, 333, 5000};

static void run_all_sizes(struct world *world, struct operation o)
{
  for (size_t k = 0; k < TT_COUNT(counts); k++) {
    o.count = counts[k];
    for (o.nchannels = 1; o.nchannels <= WORLD_CHANNELS; o.nchannels += 2) {
      const size_t slot = tt_conn_capacity(world->options.slot_bytes[o.protocol], o.protocol) / sizeof(uint32_t);
      const size_t chunks[] = {slot, 100, 13};
      for (size_t c = 0; c < TT_COUNT(chunks); c++) {
        size_t room = slot;
        o.most_pieces = o.algorithm == TT_ALGO_PAT ? 1 + (int)((k + c) % 3) : 0;
        if (o.most_pieces > 1) room = room / (size_t)o.most_pieces / 4 * 4; /* pieces begin at multiples of 16 bytes */
        o.chunk = TT_MIN(chunks[c], room);
        if (o.count / o.chunk > 100) continue;
        o.in_place = (k + c) % 2 && (o.algorithm != TT_ALGO_MAPPED || o.collective != TT_FUNC_ALL_TO_ALL);
        o.average = (k + c) / 2 % 2 && (o.collective == TT_FUNC_ALL_REDUCE || o.collective == TT_FUNC_REDUCE ||
                                        o.collective == TT_FUNC_REDUCE_SCATTER);
        o.root = (int)((k + c) % (size_t)o.nranks);
        run(world, &o, 1 + (int)(c % 3));
      }
    }
  }
}

static const int algorithms[] = {TT_ALGO_RING, TT_ALGO_TREE, TT_ALGO_ONE_SHOT,  TT_ALGO_TWO_SHOT, TT_ALGO_DIRECT,
                                 TT_ALGO_PAT,  TT_ALGO_NVLS, TT_ALGO_NVLS_TREE, TT_ALGO_MAPPED};

static struct world_options options_for(int nranks, int protocol, bool proxied)
{
  return (struct world_options){
      .nranks = nranks,
      .slot_bytes = {[TT_PROTO_LL] = 2048, [TT_PROTO_SIMPLE] = 2048},
      .stale = 0xcd,
      .shared_bytes = (size_t)WORLD_CHANNELS * (size_t)nranks * 4 * 2048,
      .proxied = proxied,
      .proxy_protocol = protocol,
      .seed = (uint64_t)nranks,
  };
}

/* _i: number of ranks - 1 + MAX_RANKS * (LL or Simple + 2 * proxied). */
START_TEST(test_every_emitter)
{
  int nranks = _i % MAX_RANKS + 1, kind = _i / MAX_RANKS;
  int protocol = kind % 2 ? TT_PROTO_SIMPLE : TT_PROTO_LL;
  struct world_options options = options_for(nranks, protocol, kind / 2);
  struct world world;
  int ran = 0;
  world_open(&world, &options);
  for (size_t a = 0; a < TT_COUNT(algorithms); a++) {
    for (int collective = 0; collective < TT_NUM_FUNCS; collective++) {
      if (!tt_program_supports(collective, algorithms[a]) || tt_collective_is_message(collective)) continue;
      if (is_shared(algorithms[a]) && protocol != TT_PROTO_SIMPLE) continue;
      if (algorithms[a] == TT_ALGO_MAPPED && options.proxied) continue; /* who has mapped buffers needs no proxy */
      run_all_sizes(&world,
                    (struct operation){
                        .collective = collective, .algorithm = algorithms[a], .protocol = protocol, .nranks = nranks});
      ran++;
    }
  }
  ck_assert_int_ge(ran, protocol != TT_PROTO_SIMPLE ? 17 : options.proxied ? 21 : 29);
  world_close(&world);
}
END_TEST

/* Counters that start just before the flags wrap, just before slots are cleaned, and just before 32 bits end; slots
 * full of what is left of earlier times, zeros too. LL and Simple take turns on the same connections. */
START_TEST(test_wrap)
{
  static const uint64_t starts[] = {UINT64_C(0x7ffffff0), UINT64_C(0xffffffe8), UINT64_C(0xfffffff5),
                                    UINT64_C(0xfffffffff0), UINT64_C(0x17fffffee)};
  static const unsigned char stale[] = {0, 0xff, 0x80, 1};
  struct world_options options = options_for(3, TT_PROTO_LL, false);
  options.first_step = starts[_i % 5];
  options.stale = stale[_i / 5];
  struct world world;
  world_open(&world, &options);
  for (int turn = 0; turn < 12; turn++) {
    struct operation o = {.collective = TT_FUNC_ALL_REDUCE,
                          .algorithm = algorithms[turn % 4],
                          .protocol = turn % 3 == 2 ? TT_PROTO_SIMPLE : TT_PROTO_LL,
                          .nchannels = 2,
                          .nranks = 3,
                          .count = turn % 2 ? 901 : 3,
                          .chunk = 90};
    run(&world, &o, 3);
  }
  world_close(&world);
}
END_TEST

/* Average of floats: inputs are scaled where they are read, sent or not, so all ranks get the same bits. */
START_TEST(test_scaled_inputs)
{
  static const int reductions[][2] = {{TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT}, {TT_FUNC_ALL_REDUCE, TT_ALGO_TWO_SHOT},
                                      {TT_FUNC_ALL_REDUCE, TT_ALGO_RING},     {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE},
                                      {TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS},     {TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED}};
  enum { RANKS = 3, COUNT = 500 };
  for (int which = 0; which < 6 * 2; which++) {
    int protocol = which % 2 && !is_shared(reductions[which / 2][1]) ? TT_PROTO_LL : TT_PROTO_SIMPLE;
    struct world_options options = options_for(RANKS, protocol, false);
    struct operation o = {.collective = reductions[which / 2][0],
                          .algorithm = reductions[which / 2][1],
                          .protocol = protocol,
                          .nchannels = 1,
                          .nranks = RANKS,
                          .count = COUNT,
                          .chunk = 100};
    struct rank_state states[RANKS];
    struct tt_work *works[RANKS], **rows[RANKS];
    struct world world;
    memset(states, 0, sizeof(states));
    world_open(&world, &options);
    for (int r = 0; r < RANKS; r++) {
      make_rank(&world, &o, r, 0, &states[r]);
      works[r] = states[r].work;
      rows[r] = &works[r];
      works[r]->reduction =
          (struct tt_reduction){.op = ncclSum, .datatype = ncclFloat32, .scale_inputs = 1, .scale.f32 = 1.0f / RANKS};
      for (int i = 0; i < COUNT; i++) ((float *)(void *)states[r].input)[i] = (float)(r * 1000 + i) * 0.37f;
    }
    map_buffers(&o, (struct rank_state *[]){&states[0], &states[1], &states[2]});
    ck_assert_int_eq(world_run(&world, rows, 1), ncclSuccess);
    for (int r = 0; r < RANKS; r++) ck_assert_mem_eq(states[r].output, states[0].output, COUNT * sizeof(float));
    for (int i = 0; i < COUNT; i++) {
      float got = ((float *)(void *)states[0].output)[i], wanted = (float)(1000 + i) * 0.37f;
      if (got < wanted * 0.99999f || got > wanted * 1.00001f) ck_abort_msg("element %d: %g, not %g", i, got, wanted);
      if (o.algorithm == TT_ALGO_ONE_SHOT || o.algorithm == TT_ALGO_MAPPED) { /* in rank order: known to the bit */
        float sum = 0;
        for (int r = 0; r < RANKS; r++) {
          volatile float scaled = ((float *)(void *)states[r].input)[i] * (1.0f / RANKS);
          sum = r == 0 ? scaled : sum + scaled;
        }
        ck_assert(sum == got);
      }
    }
    for (int r = 0; r < RANKS; r++) {
      free(states[r].input);
      free(states[r].output);
      tt_program_free(states[r].programs[0]);
      world_free_work(works[r]);
    }
    world_close(&world);
  }
}
END_TEST

/* What shared memory needs: the memory, and the protocol that orders it. */
START_TEST(test_sharing_is_refused)
{
  struct world_options options = options_for(2, TT_PROTO_SIMPLE, false);
  struct operation o = {.collective = TT_FUNC_ALL_REDUCE,
                        .algorithm = TT_ALGO_NVLS,
                        .protocol = TT_PROTO_SIMPLE,
                        .nchannels = 1,
                        .nranks = 2,
                        .count = 100,
                        .chunk = 10};
  struct rank_state state = {0};
  struct tt_launch *launch;
  struct world world;
  int moved, done;
  world_open(&world, &options);
  make_rank(&world, &o, 0, 0, &state);
  void **copies = state.work->copies;
  state.work->protocol = TT_PROTO_LL;
  ck_assert_int_eq(tt_host_device()->launch(&state.work, 1, NULL, &launch), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "does not order memory that ranks share: use SIMPLE"));
  state.work->protocol = TT_PROTO_SIMPLE;
  state.work->copies = NULL;
  ck_assert_int_eq(tt_host_device()->launch(&state.work, 1, NULL, &launch), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "needs shared memory, and there is none"));
  state.work->copies = copies;
  state.programs[0]->shared_blocks = 0;
  ck_assert_int_eq(tt_host_device()->launch(&state.work, 1, NULL, &launch), ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "needs members' buffers, and there are none"));
  /* Without shared memory the message alone is refused. */
  state.programs[0]->nmembers = 0;
  state.work->protocol = TT_PROTO_LL;
  ck_assert_int_eq(tt_host_device()->launch(&state.work, 1, NULL, &launch), ncclSuccess);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 100 && result == ncclSuccess; i++) result = tt_host_device()->progress(launch, &moved, &done);
  ck_assert_int_eq(result, ncclInternalError);
  ck_assert_ptr_nonnull(strstr(tt_log_thread_error(), "a message without data needs the protocol SIMPLE"));
  tt_host_device()->finish(launch);
  free_buffers(&o, 0, &state);
  tt_program_free(state.programs[0]);
  world_free_work(state.work);
  world_close(&world);
}
END_TEST

/* Sends and receives of one pair in both directions run at once: each direction has its own order key. */
START_TEST(test_point_to_point)
{
  enum { PAIRS = 2, MESSAGES = 3, COUNT = 4000 };
  int protocol = _i % 2 ? TT_PROTO_LL : TT_PROTO_SIMPLE;
  struct world_options options = options_for(2, protocol, _i / 2);
  static uint8_t in[2][MESSAGES][COUNT], out[2][MESSAGES][COUNT];
  struct tt_program *programs[2][2];
  struct tt_work *works[2][2 * MESSAGES], **rows[2] = {works[0], works[1]};
  struct world world;
  world_open(&world, &options);
  memset(out, 0, sizeof(out));
  for (int r = 0; r < 2; r++) {
    for (int receives = 0; receives < 2; receives++) {
      struct tt_emit_request request = {.collective = receives ? TT_FUNC_RECV : TT_FUNC_SEND,
                                        .algorithm = TT_ALGO_POINT_TO_POINT,
                                        .nranks = 2,
                                        .rank = r,
                                        .peer = 1 - r};
      ck_assert_int_eq(tt_program_emit(&request, &programs[r][receives]), ncclSuccess);
      for (int m = 0; m < MESSAGES; m++) {
        for (int i = 0; i < COUNT; i++) in[r][m][i] = (uint8_t)(r * 31 + m * 7 + i * 3);
        const struct tt_program *program = programs[r][receives];
        struct tt_work *work = world_work(&world, r, &program, 1, protocol);
        work->input = in[r][m];
        work->output = out[r][m];
        work->order = 1 + (uint64_t)receives;
        work->reduction.datatype = ncclUint8;
        work->signature.sequence = (uint64_t)m;
        work->signature.collective = TT_FUNC_SEND_RECV;
        world_cut(work, COUNT, 600);
        /* One rank launches all its receives first: with one order for all, both would wait for each other. */
        works[r][receives ? m : MESSAGES + m] = work;
      }
    }
  }
  ck_assert_int_eq(world_run(&world, rows, 2 * MESSAGES), ncclSuccess);
  for (int r = 0; r < 2; r++) {
    ck_assert_mem_eq(out[r], in[1 - r], sizeof(out[r]));
    for (int w = 0; w < 2 * MESSAGES; w++) world_free_work(works[r][w]);
    for (int k = 0; k < 2; k++) tt_program_free(programs[r][k]);
  }
  world_close(&world);
}
END_TEST

/* Messages in place round a ring, the other way round next: one work a rank each time. _i: ranks - 2. */
START_TEST(test_messages_in_place)
{
  enum { TIMES = 4, COUNT = 5000 };
  int n = _i + 2;
  struct world_options options = options_for(n, TT_PROTO_SIMPLE, false);
  static uint8_t in[TIMES][MAX_RANKS][COUNT], out[TIMES][MAX_RANKS][COUNT];
  static void *outputs[TIMES][MAX_RANKS][3];
  static const void *inputs[3];
  struct tt_program *programs[TIMES][MAX_RANKS];
  struct tt_work *works[MAX_RANKS][TIMES], **rows[MAX_RANKS];
  struct world world;
  world_open(&world, &options);
  memset(out, 0, sizeof(out));
  for (int r = 0; r < n; r++) {
    rows[r] = works[r];
    for (int t = 0; t < TIMES; t++) {
      int ahead = (r + 1) % n, behind = (r + n - 1) % n, to = t % 2 ? behind : ahead;
      struct tt_emit_request request = {.collective = TT_FUNC_SEND_RECV,
                                        .algorithm = TT_ALGO_MAPPED,
                                        .nranks = n,
                                        .rank = r,
                                        .peer = to,
                                        .root = t % 2 ? ahead : behind};
      ck_assert_int_eq(tt_program_emit(&request, &programs[t][r]), ncclSuccess);
      const struct tt_program *program = programs[t][r], *channels[WORLD_CHANNELS] = {program, program, program};
      for (int i = 0; i < COUNT; i++) in[t][r][i] = (uint8_t)(r * 31 + t * 7 + i * 3);
      for (uint32_t m = 0; m < program->nmembers; m++) outputs[t][r][m] = program->members[m] == to ? out[t][to] : NULL;
      struct tt_work *work = world_work(&world, r, channels, WORLD_CHANNELS, TT_PROTO_SIMPLE);
      work->input = in[t][r];
      work->output = out[t][r];
      work->member_inputs = inputs;
      work->member_outputs = outputs[t][r];
      work->reduction = (struct tt_reduction){.op = ncclSum, .datatype = ncclUint8};
      work->signature.sequence = (uint64_t)t;
      work->signature.collective = TT_FUNC_SEND_RECV;
      world_cut(work, COUNT, 600);
      works[r][t] = work;
    }
  }
  ck_assert_int_eq(world_run(&world, rows, TIMES), ncclSuccess);
  for (int t = 0; t < TIMES; t++)
    for (int r = 0; r < n; r++) {
      ck_assert_mem_eq(out[t][r], in[t][t % 2 ? (r + 1) % n : (r + n - 1) % n], COUNT);
      world_free_work(works[r][t]);
      tt_program_free(programs[t][r]);
    }
  world_close(&world);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("collectives");
  TCase *tcase = tcase_create("collectives");
  tcase_set_timeout(tcase, 0);
  tcase_add_loop_test(tcase, test_every_emitter, 0, MAX_RANKS * 4);
  tcase_add_loop_test(tcase, test_wrap, 0, 20);
  tcase_add_test(tcase, test_scaled_inputs);
  tcase_add_test(tcase, test_sharing_is_refused);
  tcase_add_loop_test(tcase, test_point_to_point, 0, 4);
  tcase_add_loop_test(tcase, test_messages_in_place, 0, MAX_RANKS - 1);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
