/* Programs in the CUDA backend's packed form mean what they meant: for every algorithm that it runs, on 1 to 16 ranks.
 * What it cannot run is refused, with the reason. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/traits.h"
#include "tests/program/program_set.h"
#include "walk.h"

enum { MOST_RANKS = 16 };

/* ---- The same meaning ---- */

struct reading {
  const struct tt_program *program;
  const struct tt_cuda_program *packed;
  uint32_t steps;
};

static const struct tt_cuda_strand *strands_of(const struct tt_cuda_program *packed)
{
  return (const struct tt_cuda_strand *)(packed + 1);
}

static const void *at(const struct tt_cuda_program *packed, uint32_t offset)
{
  ck_assert_uint_eq(offset % 16, 0);
  ck_assert_uint_lt(offset, packed->bytes);
  return (const char *)packed + offset;
}

static int role_of(const struct walk_operand *operand)
{
  switch (operand->kind) {
  case WALK_SEND:
    return TT_CUDA_MOVE_SEND;
  case WALK_INPUT:
    return operand->message ? TT_CUDA_IN_RECV : TT_CUDA_IN_LOCAL;
  case WALK_OUTPUT:
    return operand->message ? TT_CUDA_OUT_SEND : TT_CUDA_OUT_LOCAL;
  default:
    return TT_CUDA_MOVE_RECV;
  }
}

/* Shared memory has a place of its own, the multicast address a mark, and a member's buffer its number. */
static void read_buffer(const struct tt_operand *want, const struct tt_cuda_operand *got)
{
  const bool shared = want->buffer == TT_SHARED, multicast = want->buffer == TT_MULTICAST;
  ck_assert_int_eq(got->buffer, shared ? TT_CUDA_SHARED : multicast ? TT_CUDA_MULTICAST : want->buffer);
  const bool member = want->buffer == TT_MEMBER_INPUT || want->buffer == TT_MEMBER_OUTPUT;
  if (want->kind == TT_SRC || want->kind == TT_DST)
    ck_assert_int_eq(got->conn, multicast ? TT_CUDA_OF_MULTICAST : member ? want->peer : 0);
}

static void read_operand(const struct walk_operand *want, uint32_t repetition, const struct tt_cuda_operand *got)
{
  ck_assert_int_eq(got->role, role_of(want));
  ck_assert_uint_eq(got->modulo, want->source->count == 0 ? 0 : (uint32_t)want->source->modulo);
  if (got->modulo > 0) {
    ck_assert_uint_lt(got->start, got->modulo);
    ck_assert_uint_lt(got->stride, got->modulo);
    ck_assert_uint_eq((got->start + repetition * got->stride) % got->modulo, want->chunk);
  }
  if (want->local) read_buffer(want->source, got);
  if (!want->message) return;
  ck_assert_uint_eq(got->conn, want->conn);
  ck_assert_uint_eq(got->uses_before + repetition, want->use);
  ck_assert_uint_eq(got->uses_a_loop, want->uses);
}

static void read_step(void *context, const struct walk_step *step)
{
  struct reading *reading = context;
  const struct tt_cuda_program *packed = reading->packed;
  const struct tt_cuda_instruction *got =
      (const struct tt_cuda_instruction *)at(packed, packed->instructions) + step->index;
  const struct tt_cuda_operand *operands =
      (const struct tt_cuda_operand *)at(packed, packed->operands) + got->first_operand;
  reading->steps++;
  ck_assert_int_eq(got->opcode, step->instruction->opcode);
  ck_assert_int_eq(got->flags, step->instruction->flags);
  ck_assert_uint_eq(got->repeat, step->instruction->repeat);
  ck_assert_uint_eq(got->first_repetition + step->repetition, step->number);
  ck_assert_uint_eq(got->nsends, step->counts[WALK_SEND]);
  ck_assert_uint_eq(got->ninputs, step->counts[WALK_INPUT]);
  ck_assert_uint_eq(got->noutputs, step->counts[WALK_OUTPUT]);
  ck_assert_uint_eq(got->nreceives, step->counts[WALK_RECEIVE]);
  if (got->opcode != TT_OP_DATA) ck_assert_uint_eq(got->semaphore, step->instruction->semaphore);
  for (uint32_t k = 0; k < step->noperands; k++) read_operand(&step->operands[k], step->repetition, &operands[k]);
}

static void read_head(const struct tt_program *program, const struct tt_cuda_program *packed)
{
  ck_assert_uint_eq(packed->bytes % 16, 0);
  ck_assert_uint_le(packed->bytes, TT_CUDA_PROGRAM_BYTES);
  ck_assert_uint_eq(packed->parts, program->parts);
  ck_assert_uint_eq(packed->nstrands, program->nstrands);
  ck_assert_uint_eq(packed->npeers, program->npeers);
  ck_assert_uint_eq(packed->nsemaphores, program->nsemaphores);
  size_t strands = sizeof(*packed) + program->nstrands * sizeof(struct tt_cuda_strand);
  size_t instructions = packed->instructions + program->ninstructions * sizeof(struct tt_cuda_instruction);
  size_t operands = packed->operands + program->noperands * sizeof(struct tt_cuda_operand);
  ck_assert_uint_le(strands, packed->instructions);
  ck_assert_uint_le(instructions, packed->operands);
  ck_assert_uint_le(operands, packed->bytes);
}

/* What of a strand the walk does not show. */
static void read_strands(const struct tt_program *program, const struct tt_cuda_program *packed)
{
  for (uint32_t s = 0; s < program->nstrands; s++) {
    const struct tt_strand *want = &program->strands[s];
    const struct tt_cuda_strand *got = &strands_of(packed)[s];
    uint32_t repetitions = 0, most = 0;
    for (uint32_t i = want->first_instruction; i < want->first_instruction + want->ninstructions; i++) {
      const struct tt_instruction *instruction = &program->instructions[i];
      repetitions += instruction->repeat;
      if (instruction->opcode == TT_OP_DATA && instruction->noperands > most) most = instruction->noperands;
    }
    ck_assert_uint_eq(got->first_instruction, want->first_instruction);
    ck_assert_uint_eq(got->ninstructions, want->ninstructions);
    ck_assert_uint_eq(got->repetitions, repetitions);
    ck_assert_uint_eq(got->most_operands, most);
  }
}

/* The program with as many repetitions as local lists have pieces, in place of these. */
static struct tt_program *unfold(const struct tt_program *program)
{
  struct tt_program *unfolded = malloc(sizeof(*unfolded) + program->ninstructions * sizeof(struct tt_instruction) +
                                       program->noperands * sizeof(struct tt_operand));
  ck_assert_ptr_nonnull(unfolded);
  struct tt_instruction *instructions = (struct tt_instruction *)(unfolded + 1);
  struct tt_operand *operands = (struct tt_operand *)(instructions + program->ninstructions);
  *unfolded = *program;
  memcpy(instructions, program->instructions, program->ninstructions * sizeof(*instructions));
  memcpy(operands, program->operands, program->noperands * sizeof(*operands));
  unfolded->instructions = instructions;
  unfolded->operands = operands;
  for (uint32_t i = 0; i < program->ninstructions; i++)
    for (uint32_t k = 0; instructions[i].opcode == TT_OP_DATA && k < instructions[i].noperands; k++) {
      struct tt_operand *operand = &operands[instructions[i].first_operand + k];
      if (operand->count < 2) continue;
      for (uint32_t piece = 0; piece < (uint32_t)operand->count; piece++)
        ck_assert_uint_eq(tt_operand_piece(operand, 0, piece),
                          ((uint64_t)operand->start + piece * (uint64_t)operand->step) % (uint32_t)operand->modulo);
      instructions[i].repeat = (uint32_t)operand->count;
      operand->stride = operand->step;
      operand->count = 1;
    }
  return unfolded;
}

static void read_program(const struct tt_program *original)
{
  struct tt_cuda_program *packed;
  struct tt_program *unfolded = unfold(original);
  const struct tt_program *program = unfolded;
  ck_assert_msg(tt_cuda_pack(original, &packed) == ncclSuccess, "%s of %d: %s", tt_collective_name(program->collective),
                program->nranks, tt_log_thread_error());
  struct reading reading = {.program = program, .packed = packed};
  read_head(program, packed);
  read_strands(program, packed);
  walk(program, read_step, &reading);
  ck_assert_uint_ge(reading.steps, program->ninstructions);
  free(packed);
  free(unfolded);
}

static void read_set(struct program_set *set)
{
  for (int rank = 0; rank < set->n; rank++)
    if (set->programs[rank]) read_program(set->programs[rank]);
  free_set(set);
}

static bool runs_here(const struct operation *operation)
{
  return operation->algorithm == TT_ALGO_RING || operation->algorithm == TT_ALGO_TREE ||
         operation->algorithm == TT_ALGO_ONE_SHOT || operation->algorithm == TT_ALGO_TWO_SHOT ||
         operation->algorithm == TT_ALGO_DIRECT || shares_memory(operation);
}

START_TEST(every_algorithm)
{
  int n = _i, count, run = 0;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    if (!runs_here(&operations[o])) continue;
    run++;
    for (int root = 0; root < (has_root(&operations[o]) ? n : 1); root++) {
      struct program_set set = emit_set(&operations[o], n, root, NULL);
      read_set(&set);
    }
  }
  ck_assert_int_eq(run, 31);
}
END_TEST

/* The order of a ring's ranks is any. */
START_TEST(shuffled_rings)
{
  static const int32_t ring[] = {3, 0, 4, 1, 2};
  int count;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    if (operations[o].algorithm != TT_ALGO_RING) continue;
    struct program_set set = emit_set(&operations[o], 5, has_root(&operations[o]) ? 4 : 0, ring);
    read_set(&set);
  }
}
END_TEST

START_TEST(pairs)
{
  int n = _i;
  for (int from = 0; from < n; from++) {
    struct program_set pair = emit_pair(n, from, (from + 1) % n), copy = emit_pair(n, from, from);
    read_set(&pair);
    read_set(&copy);
  }
}
END_TEST

/* ---- What cannot be run ---- */

/* A program of one strand whose parts are made by hand: it copies, as often as it has operands for. */
struct made {
  struct tt_program program;
  struct tt_strand strands[TT_CUDA_MAX_STRANDS];
  struct tt_instruction instructions[1024];
  struct tt_operand operands[1024];
  int32_t peers[TT_CUDA_MAX_CONNS];
};
static struct made made;

static void make(uint32_t instructions, uint32_t operands_each)
{
  memset(&made, 0, sizeof(made));
  made.program = (struct tt_program){.size = sizeof(made.program),
                                     .version = TT_PROGRAM_VERSION,
                                     .nranks = 4,
                                     .parts = 1,
                                     .input_blocks = 1,
                                     .output_blocks = 1,
                                     .nscratch = 1,
                                     .npeers = 2,
                                     .nstrands = 1,
                                     .ninstructions = instructions,
                                     .noperands = instructions * operands_each,
                                     .peers = made.peers,
                                     .strands = made.strands,
                                     .instructions = made.instructions,
                                     .operands = made.operands};
  made.strands[0].ninstructions = instructions;
  for (uint32_t i = 0; i < instructions; i++)
    made.instructions[i] = (struct tt_instruction){
        .opcode = TT_OP_DATA, .repeat = 1, .first_operand = i * operands_each, .noperands = operands_each};
  for (uint32_t k = 0; k < made.program.noperands; k++)
    made.operands[k] =
        (struct tt_operand){.kind = k % operands_each ? TT_DST : TT_SRC, .buffer = TT_OUTPUT, .modulo = 1, .count = 1};
}

static void accepted(void)
{
  struct tt_cuda_program *packed;
  ck_assert_msg(tt_cuda_pack(&made.program, &packed) == ncclSuccess, "%s", tt_log_thread_error());
  ck_assert_ptr_nonnull(packed);
  free(packed);
}

static void refused(ncclResult_t result, const char *part)
{
  struct tt_cuda_program *packed = (void *)&made;
  ck_assert_int_eq(tt_cuda_pack(&made.program, &packed), result);
  ck_assert_ptr_null(packed);
  ck_assert_msg(strstr(tt_log_thread_error(), part) != NULL, "no \"%s\" in: %s", part, tt_log_thread_error());
}

START_TEST(pieces)
{
  make(1, 2);
  accepted();
  made.operands[1].count = made.operands[1].modulo = 3;
  refused(ncclInvalidUsage, "an operand of 3 pieces");
  made.operands[1].kind = TT_SEND;
  refused(ncclInvalidUsage, "a message of 3 pieces");
  made.operands[1].count = 0;
  refused(ncclInvalidUsage, "a message of 0 pieces");
}
END_TEST

START_TEST(buffers)
{
  make(1, 2);
  made.operands[1].buffer = TT_SCRATCH;
  accepted();
  made.operands[1].buffer = TT_SCRATCH + 1;
  refused(ncclInternalError, "uses buffer 3");
  made.operands[1].buffer = TT_SHARED;
  refused(ncclInternalError, "no blocks of it");
  made.program.shared_blocks = 1;
  refused(ncclInvalidUsage, "shared and scratch memory");
  made.program.nscratch = 0;
  accepted();
  made.operands[1].buffer = TT_MULTICAST;
  accepted();
}
END_TEST

/* Each limit is reached, and then passed by one. */
#define LIMIT(member, most, what)                                                                                      \
  do {                                                                                                                 \
    make(1, 2);                                                                                                        \
    made.program.member = (most);                                                                                      \
    accepted();                                                                                                        \
    made.program.member++;                                                                                             \
    refused(ncclInvalidUsage, what);                                                                                   \
  } while (0)

/* Members' buffers: no data in messages, and a single strand. */
START_TEST(members)
{
  const struct operation mapped = {TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED, 0};
  struct program_set set = emit_set(&mapped, 3, 0, NULL);
  made.program = *set.programs[0];
  accepted();
  made.program.nstrands = 2;
  refused(ncclInvalidUsage, "2 strands");
  made.program.nstrands = 1;
  made.program.nmembers = 0;
  refused(ncclInvalidUsage, "a message of 0 pieces");
  made.program = *set.programs[0];
  struct tt_operand *operands = (struct tt_operand *)(uintptr_t)made.program.operands;
  operands[0].count = 1;
  refused(ncclInvalidUsage, "has messages with data");
  operands[0].count = 0;
  free_set(&set);
  make(1, 2);
  made.operands[1].buffer = TT_MEMBER_OUTPUT;
  refused(ncclInternalError, "has no members");
}
END_TEST

START_TEST(numbers)
{
  LIMIT(nstrands, TT_CUDA_MAX_STRANDS / 2, " strands; the CUDA device can run ");
  LIMIT(npeers, TT_CUDA_MAX_CONNS / 2, " connections; ");
  LIMIT(nsemaphores, TT_CUDA_MAX_SEMAPHORES, " semaphores; ");
  LIMIT(nscratch, TT_CUDA_MAX_SCRATCH, " scratch buffers; ");
  make(1, 2);
  made.instructions[0].repeat = 65535;
  made.operands[0].modulo = 65535;
  accepted();
  made.operands[0].modulo++;
  refused(ncclInvalidUsage, "65536 chunks; ");
  made.operands[0].modulo--;
  made.instructions[0].repeat++;
  refused(ncclInvalidUsage, "65536 repetitions; ");
}
END_TEST

START_TEST(operands)
{
  make(1, 255);
  accepted();
  make(1, 256);
  refused(ncclInvalidUsage, "256 operands in an instruction; ");
  /* What is resolved at once is shared by the strands. */
  uint32_t room = TT_CUDA_ENTRIES / 4;
  make(1, room);
  made.program.nstrands = 4;
  accepted();
  make(1, room + 1);
  made.program.nstrands = 4;
  refused(ncclInvalidUsage, " operands in an instruction; ");
  make(512, 2);
  refused(ncclInvalidUsage, " bytes in its packed form; ");
}
END_TEST

/* What the device lacks is refused for whole algorithms too. */
START_TEST(algorithms)
{
  int count, tried = 0;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++) {
    bool lists = operations[o].algorithm == TT_ALGO_PAT && operations[o].variant == 0;
    if (!lists) continue;
    struct program_set set = emit_set(&operations[o], 8, 0, NULL);
    made.program = *set.programs[0];
    refused(ncclInvalidUsage, "the CUDA device can");
    free_set(&set);
    tried++;
  }
  ck_assert_int_ge(tried, 2);
}
END_TEST

static void all_packed(const struct operation *operation, int n)
{
  struct program_set set = emit_set(operation, n, 0, NULL);
  for (int r = 0; r < n && set.programs[0] != NULL; r++) {
    struct tt_cuda_program *packed = NULL;
    ck_assert_msg(tt_cuda_pack(set.programs[r], &packed) == ncclSuccess, "%d ranks, %s, %s, rank %d: %s", n,
                  tt_collective_name(operation->collective), tt_algorithm_name(operation->algorithm), r,
                  tt_log_thread_error());
    free(packed);
  }
  free_set(&set);
}

/* _i: ranks. As many as the core is told of, all of them peers: whatever it may choose can be run. */
START_TEST(many_ranks)
{
  int count;
  const struct operation *operations = all_operations(&count);
  for (int o = 0; o < count; o++)
    if ((runs_here(&operations[o]) || operations[o].algorithm == TT_ALGO_MAPPED) &&
        operations[o].algorithm != TT_ALGO_NVLS_TREE)
      all_packed(&operations[o], _i);
}
END_TEST

/* Of NVLSTree, whose programs are larger, fewer than half of them on each of several nodes: its variant. */
START_TEST(many_ranks_of_nodes)
{
  enum { OF_A_NODE = TT_CUDA_PEERS / 2 - 1 };
  for (int nodes = 1; nodes <= 5; nodes++)
    all_packed(&(struct operation){TT_FUNC_ALL_REDUCE, TT_ALGO_NVLS_TREE, OF_A_NODE}, nodes * OF_A_NODE);
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("kernels_cuda_pack");
  TCase *meaning = tcase_create("meaning"), *refusals = tcase_create("refusals");
  tcase_set_timeout(meaning, 120);
  tcase_add_loop_test(meaning, every_algorithm, 1, MOST_RANKS + 1);
  tcase_add_loop_test(meaning, pairs, 1, MOST_RANKS + 1);
  tcase_add_test(meaning, shuffled_rings);
  tcase_add_loop_test(meaning, many_ranks, TT_CUDA_PEERS - 1, TT_CUDA_PEERS + 2);
  tcase_add_test(meaning, many_ranks_of_nodes);
  tcase_add_test(refusals, pieces);
  tcase_add_test(refusals, buffers);
  tcase_add_test(refusals, members);
  tcase_add_test(refusals, numbers);
  tcase_add_test(refusals, operands);
  tcase_add_test(refusals, algorithms);
  suite_add_tcase(suite, meaning);
  suite_add_tcase(suite, refusals);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
