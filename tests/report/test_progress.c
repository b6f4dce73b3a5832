/* Where a program stands, told from how often its connections were used. Every program is run as an executor would run
 * it, one repetition of one strand at a time, and at each moment the search must find just the messages of the
 * repetitions at which the strands stand. */
#include "suites.h"

#include <stdlib.h>
#include "plan/progress.h"
#include "program/emit.h"

enum { LOOPS = 3, MOST_ENDS = 64, MOST_STRANDS = 64 };

/* A strand's place. */
struct place {
  uint64_t loop;
  uint32_t instruction, repetition;
};

struct model {
  const struct tt_program *program;
  struct place places[MOST_STRANDS];
  uint64_t done[MOST_ENDS];
};

static const struct tt_instruction *instruction_at(const struct model *model, uint32_t s)
{
  const struct tt_strand *strand = &model->program->strands[s];
  return &model->program->instructions[strand->first_instruction + model->places[s].instruction];
}

static int end_of(const struct model *model, const struct tt_operand *operand)
{
  if (operand->kind == TT_SEND) return operand->peer;
  if (operand->kind == TT_RECV) return (int)model->program->npeers + operand->peer;
  return -1;
}

static bool is_over(const struct model *model, uint32_t s)
{
  return model->places[s].loop == LOOPS || model->program->strands[s].ninstructions == 0;
}

static void step(struct model *model, uint32_t s)
{
  const struct tt_instruction *instruction = instruction_at(model, s);
  struct place *place = &model->places[s];
  for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++) {
    int end = end_of(model, &model->program->operands[instruction->first_operand + k]);
    if (end >= 0) model->done[end]++;
  }
  if (++place->repetition < instruction->repeat) return;
  place->repetition = 0;
  if (++place->instruction < model->program->strands[s].ninstructions) return;
  place->instruction = 0;
  place->loop++;
}

/* Goes on to the next repetition that has messages: an executor that waits stands at one. */
static void skip_local(struct model *model, uint32_t s)
{
  for (bool messages = false; !is_over(model, s) && !messages;) {
    const struct tt_instruction *instruction = instruction_at(model, s);
    for (uint32_t k = 0; instruction->opcode == TT_OP_DATA && k < instruction->noperands; k++)
      messages |= end_of(model, &model->program->operands[instruction->first_operand + k]) >= 0;
    if (!messages) step(model, s);
  }
}

static void compare(const struct model *model)
{
  const struct tt_program *program = model->program;
  struct tt_progress_end ends[MOST_ENDS];
  bool expected[MOST_ENDS] = {false};
  tt_progress_count(program, ends);
  for (uint32_t e = 0; e < 2 * program->npeers; e++) ends[e].done = model->done[e];
  tt_progress_find(program, LOOPS, ends);
  for (uint32_t s = 0; s < program->nstrands; s++) {
    if (is_over(model, s)) continue;
    const struct tt_instruction *instruction = instruction_at(model, s);
    for (uint32_t k = 0; k < instruction->noperands; k++) {
      int end = end_of(model, &program->operands[instruction->first_operand + k]);
      if (end >= 0) expected[end] = true;
    }
  }
  for (uint32_t e = 0; e < 2 * program->npeers; e++) {
    ck_assert_msg(ends[e].current == expected[e], "end %u of %u: %d", e, 2 * program->npeers, ends[e].current);
    ck_assert_uint_le(model->done[e], ends[e].per_loop * LOOPS);
  }
}

static void run_program(const struct tt_program *program)
{
  struct model model = {.program = program};
  ck_assert_uint_le(2 * program->npeers, MOST_ENDS);
  ck_assert_uint_le(program->nstrands, MOST_STRANDS);
  for (uint32_t s = 0; s < program->nstrands; s++) skip_local(&model, s);
  for (bool any = true; any;) {
    any = false;
    for (uint32_t s = 0; s < program->nstrands; s++) {
      compare(&model);
      if (is_over(&model, s) || rand() % 3 == 0) { /* strands go on at different speeds */
        any |= !is_over(&model, s);
        continue;
      }
      step(&model, s);
      skip_local(&model, s);
      any = true;
    }
  }
  compare(&model);
}

START_TEST(every_moment)
{
  static const int algorithms[] = {TT_ALGO_RING,     TT_ALGO_TREE,     TT_ALGO_PAT,
                                   TT_ALGO_ONE_SHOT, TT_ALGO_TWO_SHOT, TT_ALGO_DIRECT};
  static const int collectives[] = {TT_FUNC_ALL_REDUCE, TT_FUNC_ALL_GATHER, TT_FUNC_REDUCE_SCATTER, TT_FUNC_BROADCAST,
                                    TT_FUNC_REDUCE,     TT_FUNC_ALL_TO_ALL, TT_FUNC_GATHER,         TT_FUNC_SCATTER};
  int programs = 0;
  srand(7);
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
    for (size_t c = 0; c < sizeof collectives / sizeof *collectives; c++)
      for (int rank = 0; tt_program_supports(collectives[c], algorithms[a]) && rank < 6; rank++) {
        struct tt_emit_request request = {
            .collective = collectives[c], .algorithm = algorithms[a], .nranks = 6, .rank = rank, .root = 1};
        struct tt_program *program;
        ck_assert_int_eq(tt_program_emit(&request, &program), ncclSuccess);
        run_program(program);
        tt_program_free(program);
        programs++;
      }
  ck_assert_int_gt(programs, 60);
}
END_TEST

Suite *progress_suite(void)
{
  Suite *suite = suite_create("progress");
  TCase *tcase = tcase_create("find");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, every_moment);
  suite_add_tcase(suite, tcase);
  return suite;
}
