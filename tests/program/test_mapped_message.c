/* Sends and receives into each other's buffers: pairs, exchanges, rings, and ranks that send to one and receive from
 * another at random, in any order of their steps; and each rule broken once. */
#include <stdlib.h>
#include <string.h>
#include "mutant.h"
#include "program_set.h"

enum { MOST = 9 };

/* to[rank] and from[rank]: partners, or -1. Ranks without any have no program. */
static struct program_set emit_partners(int n, const int *to, const int *from)
{
  struct program_set set = {.n = n, .programs = calloc((size_t)n, sizeof(*set.programs))};
  ck_assert_ptr_nonnull(set.programs);
  for (int rank = 0; rank < n; rank++) {
    struct tt_emit_request request = {.algorithm = TT_ALGO_MAPPED, .nranks = n, .rank = rank};
    if (to[rank] < 0 && from[rank] < 0) continue;
    request.collective = from[rank] < 0 ? TT_FUNC_SEND : to[rank] < 0 ? TT_FUNC_RECV : TT_FUNC_SEND_RECV;
    request.peer = to[rank] < 0 ? from[rank] : to[rank];
    request.root = from[rank] < 0 ? 0 : from[rank];
    ck_assert_int_eq(tt_program_emit(&request, &set.programs[rank]), ncclSuccess);
  }
  return set;
}

static void prove(const struct program_set *set)
{
  char why[256];
  for (uint64_t seed = 0; seed < 8; seed++)
    for (uint32_t loops = 1; loops <= 3; loops += 2)
      for (uint32_t slots = 1; slots <= 8; slots *= 8) {
        struct way way = {.loops = loops, .slots = slots, .seed = seed};
        ck_assert_msg(is_proved(set, &way, why, sizeof(why)), "%d ranks: %s", set->n, why);
      }
}

static struct program_set emit_ring(int n, int distance)
{
  int to[MOST], from[MOST];
  for (int r = 0; r < n; r++) {
    to[r] = (r + distance) % n;
    from[r] = (r + n - distance) % n;
  }
  return emit_partners(n, to, from);
}

START_TEST(rings)
{
  for (int n = 2; n <= MOST; n++)
    for (int distance = 1; distance < n; distance++) {
      struct program_set set = emit_ring(n, distance);
      prove(&set);
      free_set(&set);
    }
}
END_TEST

/* Any partial permutation without fixed points: chains, rings, pairs, and ranks that are left out. */
static void draw(int n, uint64_t *random, int *to, int *from)
{
  for (int r = 0; r < n; r++) to[r] = from[r] = -1;
  for (int tries = 0; tries < 3 * n; tries++) {
    int a = (int)(next_random(random) % (uint64_t)n), b = (int)(next_random(random) % (uint64_t)n);
    if (a == b || to[a] >= 0 || from[b] >= 0) continue;
    to[a] = b;
    from[b] = a;
  }
}

START_TEST(at_random)
{
  uint64_t random = 7;
  for (int i = 0; i < 300 / ONE_OF_MANY; i++) {
    int n = 2 + (int)(next_random(&random) % (MOST - 1)), to[MOST], from[MOST];
    draw(n, &random, to, from);
    struct program_set set = emit_partners(n, to, from);
    prove(&set);
    free_set(&set);
  }
}
END_TEST

/* One after the other, other partners each time, and messages through connections between them. */
START_TEST(sequences)
{
  enum { STEPS = 8, N = 5 };
  uint64_t random = 3;
  struct program_set sets[STEPS];
  struct tt_validate_step steps[STEPS];
  char why[256] = "";
  for (int i = 0; i < 40 / ONE_OF_MANY + 1; i++) {
    for (int s = 0; s < STEPS; s++) {
      int to[N], from[N];
      draw(N, &random, to, from);
      sets[s] = s % 3 == 2 ? emit_pair(N, s % N, (s + 2) % N) : emit_partners(N, to, from);
      steps[s] = (struct tt_validate_step){.programs = (const struct tt_program *const *)sets[s].programs, .loops = 1};
    }
    struct tt_validate_options options = {.seed = (uint64_t)i};
    ck_assert_msg(tt_program_validate(N, steps, STEPS, &options, why, sizeof(why)) == ncclSuccess, "%s", why);
    for (int s = 0; s < STEPS; s++) free_set(&sets[s]);
  }
}
END_TEST

/* Without an instruction of each of two ranks; counted from the first. */
static void must_fail_without(struct program_set set, int ranks[2], const uint32_t drops[2], const char *reason)
{
  struct program_set changed = {.n = set.n, .programs = calloc((size_t)set.n, sizeof(*changed.programs))};
  struct mutant *mutants[2];
  char why[256] = "";
  bool proved = true;
  for (int r = 0; r < set.n; r++) changed.programs[r] = set.programs[r];
  for (int i = 0; i < 2; i++) {
    mutants[i] = mutant_new(changed.programs[ranks[i]]);
    mutant_drop_instruction(mutants[i], drops[i]);
    changed.programs[ranks[i]] = &mutants[i]->program;
  }
  for (uint64_t seed = 0; seed < 20 && proved; seed++)
    proved = is_proved(&changed, &(struct way){.loops = 1, .seed = seed}, why, sizeof(why));
  ck_assert_msg(!proved && strstr(why, reason) != NULL, "expected \"%s\": %s", reason, why);
  for (int i = 0; i < 2; i++) mutant_free(mutants[i]);
  free(changed.programs);
  free_set(&set);
}

START_TEST(ready_and_done)
{
  const int to[2] = {1, -1}, from[2] = {-1, 0};
  must_fail_without(emit_partners(2, to, from), (int[]){0, 1}, (const uint32_t[]){0, 0}, "step");
  must_fail_without(emit_partners(2, to, from), (int[]){0, 1}, (const uint32_t[]){2, 1}, "never written");
  must_fail_without(emit_ring(2, 1), (int[]){0, 1}, (const uint32_t[]){0, 1}, "step");
}
END_TEST

/* Who waits for "ready" before it tells its own is in a circle with the others. */
START_TEST(ready_comes_first)
{
  struct program_set set = emit_ring(3, 1), changed = {.n = 3, .programs = calloc(3, sizeof(*changed.programs))};
  struct mutant *mutants[3];
  char why[256];
  for (int r = 0; r < 3; r++) {
    mutants[r] = mutant_new(set.programs[r]);
    struct tt_instruction *list = mutants[r]->instructions, first = list[0];
    list[0] = list[1];
    list[1] = first;
    changed.programs[r] = &mutants[r]->program;
  }
  ck_assert(!is_proved(&changed, &(struct way){.loops = 1}, why, sizeof(why)));
  ck_assert_msg(strstr(why, "deadlock") != NULL, "%s", why);
  for (int r = 0; r < 3; r++) mutant_free(mutants[r]);
  free(changed.programs);
  free_set(&set);
}
END_TEST

/* Partners that do not know of each other, of two nodes, or the rank itself. */
START_TEST(partners_disagree)
{
  const int to[3] = {1, -1, -1}, from[3] = {-1, 2, -1};
  const int32_t node[2] = {0, 1};
  struct program_set set = emit_partners(3, to, from);
  struct tt_program *program;
  char why[256];
  ck_assert(!is_proved(&set, &(struct way){.loops = 1}, why, sizeof(why)));
  ck_assert_msg(strstr(why, "do not share") != NULL, "%s", why);
  free_set(&set);
  struct tt_emit_request request = {
      .collective = TT_FUNC_SEND, .algorithm = TT_ALGO_MAPPED, .nranks = 2, .peer = 1, .node = node};
  ck_assert_int_eq(tt_program_emit(&request, &program), ncclInvalidUsage);
  request = (struct tt_emit_request){
      .collective = TT_FUNC_SEND_RECV, .algorithm = TT_ALGO_MAPPED, .nranks = 2, .peer = 1, .root = 0};
  ck_assert_int_eq(tt_program_emit(&request, &program), ncclInvalidArgument);
  ck_assert_ptr_null(program);
}
END_TEST

Suite *mapped_message_suite(void)
{
  Suite *suite = suite_create("mapped messages");
  TCase *tests = add_case(suite, "mapped messages");
  tcase_add_test(tests, rings);
  tcase_add_test(tests, at_random);
  tcase_add_test(tests, sequences);
  tcase_add_test(tests, ready_and_done);
  tcase_add_test(tests, ready_comes_first);
  tcase_add_test(tests, partners_disagree);
  return suite;
}
