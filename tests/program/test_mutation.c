/* The validator under test: one thing is changed in one rank's program, and the whole must be rejected, unless a rule
 * of mutant.h says that the program is still right; then it must be proved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mutant.h"
#include "program_set.h"

struct trial {
  const struct operation *operation;
  struct program_set *set;
  int rank;
  const struct tt_program *original;
  unsigned rejected, equivalent;
};

static const struct way ways[] = {{.loops = 2, .slots = 8, .in_place = false, .seed = 1},
                                  {.loops = 2, .slots = 8, .in_place = true, .seed = 2},
                                  {.loops = 1, .slots = 2, .in_place = true, .seed = 3},
                                  {.loops = 3, .slots = 2, .in_place = false, .seed = 4}};

/* Whether all ways are proved with the mutant in the rank's place. */
static bool survives(const struct trial *trial, struct mutant *mutant, char *why, size_t why_size)
{
  bool proved = true;
  trial->set->programs[trial->rank] = &mutant->program;
  for (size_t i = 0; proved && i < sizeof(ways) / sizeof(ways[0]); i++)
    proved = is_proved(trial->set, &ways[i], why, why_size);
  trial->set->programs[trial->rank] = (struct tt_program *)trial->original;
  return proved;
}

/* Judges the mutant and frees it. `allowed`: a rule other than same_meaning makes it right. */
static void judge(struct trial *trial, struct mutant *mutant, bool allowed, const char *what, uint32_t at, int64_t to)
{
  static unsigned judged;
  char why[256] = "";
  if (judged++ % ONE_OF_MANY != 0) {
    mutant_free(mutant);
    return;
  }
  /* Of the all-reduces only one-shot reduces a chunk on more ranks than one. */
  bool order_matters = trial->operation->algorithm == TT_ALGO_ONE_SHOT;
  bool equivalent = allowed || same_meaning(trial->original, &mutant->program, order_matters);
  bool proved = survives(trial, mutant, why, sizeof(why));
  ck_assert_msg(proved == equivalent, "%s, rank %d of %d: %s %u, %lld: %s %s", operation_name(trial->operation),
                trial->rank, trial->set->n, what, at, (long long)to,
                proved ? "was not found out" : "was rejected though equivalent:", why);
  ck_assert_msg(proved || why[0], "rejected without a reason");
  trial->rejected += !proved;
  trial->equivalent += proved;
  mutant_free(mutant);
}

static void change_instructions(struct trial *trial)
{
  const struct tt_program *original = trial->original;
  for (uint32_t i = 0; i < original->ninstructions; i++) {
    struct mutant *mutant = mutant_new(original);
    mutant_drop_instruction(mutant, i);
    judge(trial, mutant, false, "drop instruction", i, 0);
    mutant = mutant_new(original);
    mutant_double_instruction(mutant, i);
    judge(trial, mutant, may_repeat(original, i), "double instruction", i, 0);
    mutant = mutant_new(original);
    if (mutant_swap_instructions(mutant, i))
      judge(trial, mutant, may_swap(original, i), "swap instruction with next", i, 0);
    else
      mutant_free(mutant);
    mutant = mutant_new(original);
    mutant->instructions[i].repeat++;
    judge(trial, mutant, may_repeat(original, i), "repeat once more", i, 0);
    mutant = mutant_new(original);
    mutant->instructions[i].repeat--;
    judge(trial, mutant, false, "repeat once less", i, 0);
    mutant = mutant_new(original);
    mutant->instructions[i].flags ^= TT_FLAG_FINAL;
    judge(trial, mutant, false, "change whether final", i, 0);
    if (original->instructions[i].opcode == TT_OP_DATA) continue;
    mutant = mutant_new(original);
    mutant->program.nsemaphores++;
    mutant->instructions[i].semaphore = (uint16_t)original->nsemaphores;
    judge(trial, mutant, false, "use another semaphore", i, 0);
    mutant = mutant_new(original);
    mutant->instructions[i].opcode = original->instructions[i].opcode == TT_OP_WAIT ? TT_OP_SIGNAL : TT_OP_WAIT;
    judge(trial, mutant, false, "exchange signal and wait", i, 0);
  }
}

static void split_strands(struct trial *trial)
{
  const struct tt_program *original = trial->original;
  for (uint32_t strand = 0; strand < original->nstrands; strand++) {
    uint32_t first = original->strands[strand].first_instruction;
    uint32_t end = first + original->strands[strand].ninstructions;
    for (uint32_t split = first + 1; split < end; split++) {
      struct mutant *mutant = mutant_new(original);
      ck_assert(mutant_split_strand(mutant, split));
      judge(trial, mutant, may_split(original, strand, split), "split strand at", split, 0);
    }
  }
}

static struct mutant *with_operand(const struct trial *trial, uint32_t operand, struct tt_operand **changed)
{
  struct mutant *mutant = mutant_new(trial->original);
  *changed = &mutant->operands[operand];
  return mutant;
}

static void retarget(struct trial *trial, uint32_t at)
{
  const struct tt_operand *original = &trial->original->operands[at];
  struct tt_operand *operand;
  struct mutant *mutant;
  for (int32_t start = -original->modulo; start < original->modulo; start++) {
    if (start == original->start) continue;
    mutant = with_operand(trial, at, &operand);
    operand->start = start;
    judge(trial, mutant, false, "start of operand", at, start);
  }
  for (int32_t stride = -2; stride <= 2; stride++) {
    if (stride == original->stride) continue;
    mutant = with_operand(trial, at, &operand);
    operand->stride = stride;
    judge(trial, mutant, false, "stride of operand", at, stride);
  }
  for (int32_t step = -2; step <= 2; step++) {
    if (step == original->step) continue;
    mutant = with_operand(trial, at, &operand);
    operand->step = step;
    judge(trial, mutant, false, "step of operand", at, step);
  }
  for (int32_t count = original->count - 1; count <= original->count + 1; count += 2) {
    mutant = with_operand(trial, at, &operand);
    operand->count = count;
    judge(trial, mutant, false, "count of operand", at, count);
  }
  if (original->modulo > 1) {
    mutant = with_operand(trial, at, &operand);
    operand->modulo--;
    judge(trial, mutant, false, "modulo of operand", at, operand->modulo);
  }
  const uint8_t buffers[] = {TT_INPUT,         TT_OUTPUT, TT_SCRATCH,   TT_MEMBER_INPUT,
                             TT_MEMBER_OUTPUT, TT_SHARED, TT_MULTICAST, TT_RESULT};
  for (size_t i = 0; i < sizeof(buffers); i++) {
    if (buffers[i] == original->buffer) continue;
    mutant = with_operand(trial, at, &operand);
    operand->buffer = buffers[i];
    if (is_of_member(trial->original, original) && !is_of_member(trial->original, operand)) operand->peer = 0;
    mutant->program.nscratch = 1;
    mutant->program.scratch_blocks = (uint32_t)trial->set->n;
    judge(trial, mutant, holds_the_same(trial->original, original, buffers[i]), "buffer of operand", at, buffers[i]);
  }
  bool local = original->kind == TT_SRC || original->kind == TT_DST;
  for (uint32_t peer = 0; !local && peer < trial->original->npeers; peer++) {
    if (peer == original->peer) continue;
    mutant = with_operand(trial, at, &operand);
    operand->peer = (uint16_t)peer;
    judge(trial, mutant, false, "peer of operand", at, peer);
  }
  for (uint32_t member = 0; is_of_member(trial->original, original) && member < trial->original->nmembers; member++) {
    if (member == original->peer) continue;
    mutant = with_operand(trial, at, &operand);
    operand->peer = (uint16_t)member;
    judge(trial, mutant, false, "member of operand", at, member);
  }
  for (uint8_t kind = TT_SRC; kind <= TT_SEND; kind++) {
    if (kind == original->kind) continue;
    mutant = with_operand(trial, at, &operand);
    operand->kind = kind;
    judge(trial, mutant, false, "kind of operand", at, kind);
  }
}

static void change_operands(struct trial *trial)
{
  const struct tt_program *original = trial->original;
  for (uint32_t i = 0; i < original->ninstructions; i++) {
    const struct tt_instruction *instruction = &original->instructions[i];
    for (uint32_t j = 0; j < instruction->noperands; j++) {
      struct mutant *mutant = mutant_new(original);
      mutant_drop_operand(mutant, i, j);
      judge(trial, mutant, false, "drop operand of instruction", i, j);
      mutant = mutant_new(original);
      mutant_double_operand(mutant, i, j);
      judge(trial, mutant, false, "double operand of instruction", i, j);
      retarget(trial, instruction->first_operand + j);
      for (uint32_t k = 0; k < j; k++) {
        mutant = mutant_new(original);
        struct tt_operand *operands = &mutant->operands[instruction->first_operand], swapped = operands[j];
        operands[j] = operands[k];
        operands[k] = swapped;
        judge(trial, mutant, false, "swap operands of instruction", i, j);
      }
    }
  }
}

/* Whether no other rank's program names the network: then its number means nothing to anyone. */
static bool is_alone(const struct trial *trial, int32_t peer)
{
  for (int rank = 0; rank < trial->set->n; rank++) {
    const struct tt_program *program = trial->set->programs[rank];
    for (uint32_t i = 0; program && rank != trial->rank && i < program->npeers; i++)
      if (program->peers[i] == peer) return false;
  }
  return peer < 0;
}

/* The meaning is the same but for block counts and so on: nothing but rejection will do. */
static void judge_head(struct trial *trial, struct mutant *mutant, const char *what, int to)
{
  char why[256] = "";
  ck_assert_msg(!survives(trial, mutant, why, sizeof(why)), "%s, rank %d of %d: %s %d was not found out",
                operation_name(trial->operation), trial->rank, trial->set->n, what, to);
  trial->rejected++;
  mutant_free(mutant);
}

static void change_head(struct trial *trial)
{
  const struct tt_program *original = trial->original;
  for (uint32_t i = 0; i < original->npeers; i++) {
    for (int32_t rank = 0; rank < trial->set->n; rank++) {
      if (rank == original->peers[i]) continue;
      struct mutant *mutant = mutant_new(original);
      mutant->peers[i] = rank;
      judge(trial, mutant, false, "rank of peer", i, rank);
    }
  }
  for (uint32_t i = 0; i < original->npeers; i++) {
    for (int32_t network = 0; network < 3; network++) {
      if (TT_PEER_NETWORK - network == original->peers[i]) continue;
      struct mutant *mutant = mutant_new(original);
      mutant->peers[i] = TT_PEER_NETWORK - network;
      bool allowed =
          is_alone(trial, original->peers[i]) && is_alone(trial, mutant->peers[i]) && network < trial->set->n;
      judge(trial, mutant, allowed, "network as peer", i, network);
    }
  }
  for (uint32_t i = 0; i < original->nmembers; i++) {
    for (int32_t rank = -1; rank <= trial->set->n; rank++) {
      if (rank == original->members[i]) continue;
      struct mutant *mutant = mutant_new(original);
      mutant->members[i] = rank;
      judge(trial, mutant, false, "rank of member", i, rank);
    }
  }
  for (int more = -1; more <= 1 && original->nmembers; more += 2) {
    struct mutant *mutant = mutant_new(original);
    mutant->program.nmembers += (uint32_t)more;
    judge_head(trial, mutant, "number of members", more);
    mutant = mutant_new(original);
    mutant->program.shared_blocks += (uint32_t)more;
    judge_head(trial, mutant, "shared blocks", more);
  }
  for (int which = 0; which < 6; which++) {
    struct mutant *mutant = mutant_new(original);
    struct tt_program *program = &mutant->program;
    uint32_t *counts[] = {&program->parts, &program->input_blocks, &program->output_blocks};
    int32_t *numbers[] = {&program->nranks, &program->rank, &program->collective};
    /* Without a peer there is the same to do for several collectives. */
    if (which == 5 && !original->npeers) {
      mutant_free(mutant);
      continue;
    }
    if (which < 3)
      ++*counts[which];
    else
      ++*numbers[which - 3];
    judge_head(trial, mutant, "head", which);
  }
}

static void mutate_set(const struct operation *operation, struct program_set *set, unsigned *rejected,
                       unsigned *equivalent)
{
  for (int rank = 0; rank < set->n; rank++) {
    struct trial trial = {.operation = operation, .set = set, .rank = rank, .original = set->programs[rank]};
    if (!trial.original) continue;
    change_instructions(&trial);
    split_strands(&trial);
    change_operands(&trial);
    change_head(&trial);
    *rejected += trial.rejected;
    *equivalent += trial.equivalent;
  }
}

/* With shared memory, members are alike and mutants many: a few will do, on nodes enough for all places in a tree. */
static bool is_worth_it(const struct operation *operation, int n)
{
  if (operation->algorithm == TT_ALGO_NVLS || operation->algorithm == TT_ALGO_MAPPED) return n <= 4;
  if (operation->algorithm == TT_ALGO_NVLS_TREE)
    return n == 1 || n == 2 || n == 4 || n == 6 || (n == 8 && operation->variant == 2);
  return n != 6 && (n <= 8 || !is_dense(operation));
}

/* Sizes at which every kind of instruction occurs, and a shuffled ring at every other. */
START_TEST(every_mutant)
{
  const int sizes[] = {1, 2, 3, 4, 5, 6, 8, 11};
  unsigned rejected = 0, equivalent = 0;
  int count;
  const struct operation *operation = &all_operations(&count)[_i];
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    if (!is_worth_it(operation, sizes[i])) continue;
    int32_t *ring = i % 2 ? shuffled_ring(sizes[i], i) : NULL;
    struct program_set set = emit_set(operation, sizes[i], sizes[i] / 2, ring);
    mutate_set(operation, &set, &rejected, &equivalent);
    free_set(&set);
    free(ring);
  }
  ck_assert_uint_gt(rejected, 500 / ONE_OF_MANY);
  ck_assert_uint_gt(equivalent, 0);
}
END_TEST

START_TEST(every_mutant_of_pairs)
{
  const struct operation operation = {TT_FUNC_SEND, TT_ALGO_POINT_TO_POINT, 0};
  unsigned rejected = 0, equivalent = 0;
  struct program_set sets[] = {emit_pair(2, 0, 1), emit_pair(3, 2, 0), emit_pair(2, 1, 1)};
  for (int i = 0; i < 3; i++) {
    mutate_set(&operation, &sets[i], &rejected, &equivalent);
    free_set(&sets[i]);
  }
  ck_assert_uint_gt(rejected, 50 / ONE_OF_MANY);
}
END_TEST

/* Ranks 0 and 1 exchange, or 0 sends to 1. */
START_TEST(every_mutant_of_mapped_pairs)
{
  const struct operation operation = {TT_FUNC_SEND, TT_ALGO_MAPPED, 0};
  unsigned rejected = 0, equivalent = 0;
  for (int exchange = 0; exchange < 2; exchange++) {
    struct program_set set = {.n = 2, .programs = calloc(2, sizeof(*set.programs))};
    ck_assert_ptr_nonnull(set.programs);
    for (int32_t rank = 0; rank < 2; rank++) {
      struct tt_emit_request request = {.collective = exchange    ? TT_FUNC_SEND_RECV
                                                      : rank == 0 ? TT_FUNC_SEND
                                                                  : TT_FUNC_RECV,
                                        .algorithm = TT_ALGO_MAPPED,
                                        .nranks = 2,
                                        .rank = rank,
                                        .peer = 1 - rank,
                                        .root = exchange ? 1 - rank : 0};
      ck_assert_int_eq(tt_program_emit(&request, &set.programs[rank]), ncclSuccess);
    }
    mutate_set(&operation, &set, &rejected, &equivalent);
    free_set(&set);
  }
  ck_assert_uint_gt(rejected, 50 / ONE_OF_MANY);
}
END_TEST

static void must_fail_with(const struct program_set *set, const struct way *way, const char *reason)
{
  char why[256];
  ck_assert_msg(!is_proved(set, way, why, sizeof(why)), "proved, but should fail with: %s", reason);
  ck_assert_msg(strstr(why, reason) != NULL, "expected \"%s\": %s", reason, why);
}

/* Each rank sums its own value first: right sums, but other bits on each rank. */
START_TEST(own_value_first)
{
  const struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set set = emit_set(&one_shot, 3, 0, NULL);
  struct program_set changed = {.n = 3, .programs = (struct tt_program *[3]){NULL}};
  struct mutant *mutants[3];
  for (int rank = 0; rank < 3; rank++) {
    mutants[rank] = mutant_new(set.programs[rank]);
    struct tt_operand *inputs = &mutants[rank]->operands[mutants[rank]->instructions[1].first_operand];
    struct tt_operand own = inputs[rank];
    inputs[rank] = inputs[0];
    inputs[0] = own;
    changed.programs[rank] = &mutants[rank]->program;
  }
  struct way way = {.loops = 1};
  must_fail_with(&changed, &way, "in another order");
  struct tt_validate_step step = {.programs = (const struct tt_program *const *)changed.programs, .loops = 1};
  struct tt_validate_options options = {.same_everywhere = false};
  char why[256];
  ck_assert_int_eq(tt_program_validate(3, &step, 1, &options, why, sizeof(why)), ncclSuccess);
  for (int rank = 0; rank < 3; rank++) mutant_free(mutants[rank]);
  free_set(&set);
}
END_TEST

/* One rank may receive before it sends; if all do, nobody begins. */
START_TEST(all_receive_first)
{
  const struct operation scatter = {TT_FUNC_REDUCE_SCATTER, TT_ALGO_RING, 0};
  struct program_set set = emit_set(&scatter, 2, 0, NULL);
  struct mutant *mutants[2];
  struct tt_program *programs[2];
  struct program_set changed = {.n = 2, .programs = programs};
  for (int rank = 0; rank < 2; rank++) {
    mutants[rank] = mutant_new(set.programs[rank]);
    ck_assert(mutant_swap_instructions(mutants[rank], 0));
    programs[rank] = &mutants[rank]->program;
  }
  struct way way = {.loops = 1, .slots = 8};
  must_fail_with(&changed, &way, "deadlock");
  mutant_free(mutants[1]);
  programs[1] = set.programs[1];
  must_prove(&scatter, &changed, &way);
  mutant_free(mutants[0]);
  free_set(&set);
}
END_TEST

/* Sending the input and writing the output at once is fine out of place only. */
START_TEST(race_in_place)
{
  const struct operation one_shot = {TT_FUNC_ALL_REDUCE, TT_ALGO_ONE_SHOT, 0};
  struct program_set set = emit_set(&one_shot, 3, 0, NULL);
  struct tt_program *original = set.programs[1];
  struct mutant *mutant = mutant_new(original);
  ck_assert(mutant_split_strand(mutant, 1));
  set.programs[1] = &mutant->program;
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct way way = {.loops = 1, .seed = seed};
    must_prove(&one_shot, &set, &way);
    way.in_place = true;
    char why[256];
    ck_assert(!is_proved(&set, &way, why, sizeof(why)));
    ck_assert_msg(strstr(why, "may be writing") || strstr(why, "may still have to read"), "%s", why);
  }
  set.programs[1] = original;
  mutant_free(mutant);
  free_set(&set);
}
END_TEST

/* All-to-all without an order between sends and receives, likewise. */
START_TEST(exchange_in_place)
{
  const struct operation apart = {TT_FUNC_ALL_TO_ALL, TT_ALGO_DIRECT, 1};
  struct program_set set = emit_set(&apart, 3, 0, NULL);
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct tt_validate_step step = {.programs = (const struct tt_program *const *)set.programs, .loops = 2};
    const struct tt_validate_options options = {.seed = seed, .same_everywhere = true};
    char why[256];
    ck_assert_int_eq(tt_program_validate(set.n, &step, 1, &options, why, sizeof(why)), ncclSuccess);
    step.in_place = true;
    ck_assert_int_ne(tt_program_validate(set.n, &step, 1, &options, why, sizeof(why)), ncclSuccess);
    ck_assert_msg(strstr(why, "may be writing") || strstr(why, "may still have to read"), "%s", why);
  }
  free_set(&set);
}
END_TEST

/* Without the semaphore the root's strands race whatever the order in which they happen to run. */
START_TEST(race_at_the_root)
{
  const struct operation tree = {TT_FUNC_ALL_REDUCE, TT_ALGO_TREE, 0};
  struct program_set set = emit_set(&tree, 8, 0, NULL);
  struct tt_program *original = set.programs[0];
  struct mutant *mutant = mutant_new(original);
  mutant_drop_instruction(mutant, 2);
  mutant_drop_instruction(mutant, 1);
  set.programs[0] = &mutant->program;
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct way way = {.loops = 2, .seed = seed};
    ck_assert(!is_proved(&set, &way, NULL, 0));
  }
  set.programs[0] = original;
  mutant_free(mutant);
  free_set(&set);
}
END_TEST

Suite *mutation_suite(void)
{
  int count;
  all_operations(&count);
  Suite *suite = suite_create("mutation");
  TCase *tests = add_case(suite, "mutation");
  tcase_add_loop_test(tests, every_mutant, 0, count);
  tcase_add_test(tests, every_mutant_of_pairs);
  tcase_add_test(tests, every_mutant_of_mapped_pairs);
  tcase_add_test(tests, own_value_first);
  tcase_add_test(tests, all_receive_first);
  tcase_add_test(tests, race_in_place);
  tcase_add_test(tests, exchange_in_place);
  tcase_add_test(tests, race_at_the_root);
  return suite;
}
