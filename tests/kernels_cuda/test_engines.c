/* Works that copy engines do: what they copy, on which stream and when, between which kernels. */
#include <check.h>
#include "base/check.h"
#include "fake_launch.h"
#include "short_work.h"
#include "tests/program/program_set.h"

static const struct tt_cuda_short_entry *entries_of(const struct tt_cuda_short *list)
{
  return (const struct tt_cuda_short_entry *)((const uint32_t *)list + 4 * list->entries);
}

/* What a kernel of a phase does: only messages, the first of each connection or the last. */
static void check_phase(enum tt_cuda_phase phase, int flag, int not_flag)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)words;
  struct tt_cuda_short_shape shape;
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, phase, words, &shape), ncclSuccess);
  ck_assert(shape.form == TT_CUDA_FORM_MAPPED && shape.threads == 64);
  ck_assert_int_eq(list->nentries, 2 * (int)made.channels[0].program->npeers);
  for (int e = 0; e < list->nentries; e++) {
    ck_assert(entries_of(list)[e].flags & TT_CUDA_SHORT_MESSAGE);
    ck_assert(entries_of(list)[e].flags & flag);
    ck_assert(!(entries_of(list)[e].flags & not_flag));
  }
}

/* Copy engines copy each block to where its collective is defined to want it, between two kernels with the messages.
 * _i: ranks. */
START_TEST(engines)
{
  static const struct operation operations[] = {{TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED, 0},
                                                {TT_FUNC_ALL_TO_ALL, TT_ALGO_MAPPED, 0}};
  enum { RANK = 1, BYTES = 4 * SHARE };
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  for (int o = 0; o < 2; o++) {
    struct program_set set = emit_set(&operations[o], _i, 0, NULL);
    make_work(set.programs[RANK], 1, TT_PROTO_SIMPLE, false);
    made.outputs[RANK] = made.work.output;
    made.work.engines = 1;
    launched.count = launched.ncopies = 0;
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    ck_assert_int_eq(launched.count, 2);
    ck_assert(launched.form == TT_CUDA_FORM_MAPPED && launched.protocol == TT_PROTO_SIMPLE);
    ck_assert(launched.grid.x == 1 && launched.block.x == 64);
    check_phase(TT_CUDA_BEFORE, TT_ENTRY_FIRST, TT_CUDA_SHORT_LAST);
    check_phase(TT_CUDA_AFTER, TT_CUDA_SHORT_LAST, TT_ENTRY_FIRST);
    ck_assert_int_eq(launched.ncopies, _i);
    bool done[MOST_RANKS] = {false};
    for (int k = 0; k < _i; k++) {
      const struct fake_copy *copy = &launched.copies[k];
      int member = (RANK + 1 + k) % _i;
      const char *input = made.work.input, *output = made.outputs[member];
      ck_assert_int_eq(copy->after, 1);
      ck_assert_uint_eq(copy->bytes, BYTES);
      ck_assert_ptr_eq(copy->to, output + RANK * BYTES);
      ck_assert_ptr_eq(copy->from, input + (o == 1 ? member * BYTES : 0));
      ck_assert(!done[member]);
      done[member] = true;
    }
    made.work.engines = 0; /* and by a kernel */
    launched.count = launched.ncopies = 0;
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    ck_assert(launched.count == 1 && launched.ncopies == 0 && launched.block.x > 64);
    made.work.engines = 1;
    made.work.size = offsetof(struct tt_work, engines); /* of a core that does not know of engines */
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    ck_assert(launched.count == 2 && launched.ncopies == 0);
    forget_programs();
    free_set(&set);
  }
}
END_TEST

/* Messages of a phase: whom each is of, sends before receives of one instruction. */
static void check_messages(enum tt_cuda_phase phase, int count)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)words;
  struct tt_cuda_short_shape shape;
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, phase, words, &shape), ncclSuccess);
  ck_assert(shape.form == TT_CUDA_FORM_MAPPED);
  ck_assert_int_eq(list->nentries, count);
  for (int e = 0; e < count; e++) ck_assert(entries_of(list)[e].flags & TT_CUDA_SHORT_MESSAGE);
}

/* A rank that sends to the next and receives from the one before, which may be the same; and one that only sends. One
 * that only receives has nothing for engines. _i: ranks. */
START_TEST(messages)
{
  enum { RANK = 1, BYTES = 4 * SHARE };
  static const int collectives[] = {TT_FUNC_SEND_RECV, TT_FUNC_SEND, TT_FUNC_RECV};
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  for (int k = 0; k < 3; k++) {
    bool both = k == 0, receives = k == 2;
    struct tt_emit_request request = {.collective = collectives[k],
                                      .algorithm = TT_ALGO_MAPPED,
                                      .nranks = _i,
                                      .rank = RANK,
                                      .peer = (RANK + 1) % _i,
                                      .root = both ? RANK - 1 : 0};
    struct tt_program *program;
    ck_assert_int_eq(tt_program_emit(&request, &program), ncclSuccess);
    make_work(program, 1, TT_PROTO_SIMPLE, false);
    made.work.engines = !receives;
    launched.count = launched.ncopies = 0;
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    ck_assert_int_eq(launched.count, receives ? 1 : 2);
    ck_assert_int_eq(launched.ncopies, receives ? 0 : 1);
    check_messages(receives ? TT_CUDA_WHOLE : TT_CUDA_BEFORE, both || receives ? 2 : 1);
    if (!receives) {
      uint32_t target = 0;
      while (program->members[target] != request.peer) target++;
      check_messages(TT_CUDA_AFTER, both ? 2 : 1);
      ck_assert_ptr_eq(launched.copies[0].from, made.work.input);
      ck_assert_ptr_eq(launched.copies[0].to, made.outputs[target]);
      ck_assert_uint_eq(launched.copies[0].bytes, BYTES);
      ck_assert_int_eq(launched.copies[0].after, 1);
    }
    made.work.engines = 0; /* and by a kernel */
    launched.count = launched.ncopies = 0;
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    ck_assert(launched.count == 1 && launched.ncopies == 0 && launched.form == TT_CUDA_FORM_MAPPED);
    int barriers;
    ck_assert(read_work(program, 2, TT_PROTO_SIMPLE, false, &barriers));
    forget_programs();
    tt_program_free(program);
  }
}
END_TEST

/* What a group's send to itself copies goes beside its messages that engines copy: these do not wait for it, and the
 * kernel that comes last does. If a kernel moves the message, a large copy goes beside that, and what comes next on the
 * user's stream waits for it; small ones come one after the other. */
START_TEST(copies_beside_messages)
{
  static struct made_work copy;
  static char from[8 * SHARE], to[8 * SHARE];
  const struct tt_emit_request request = {
      .collective = TT_FUNC_SEND_RECV, .algorithm = TT_ALGO_MAPPED, .nranks = 2, .rank = 1, .peer = 0, .root = 0};
  struct program_set own = emit_pair(1, 0, 0);
  struct tt_work *works[] = {&copy.work, &made.work};
  struct tt_launch *launch = NULL;
  struct tt_program *program;
  ck_assert_int_eq(tt_program_emit(&request, &program), ncclSuccess);
  make_work(own.programs[0], 2, TT_PROTO_SIMPLE, false);
  copy = made;
  copy.work.channels = copy.channels;
  copy.work.input = from;
  copy.work.output = to;
  copy.work.signature.collective = TT_FUNC_SEND_RECV;
  make_work(program, 1, TT_PROTO_SIMPLE, false);
  made.work.signature.collective = TT_FUNC_SEND_RECV;
  made.work.engines = 1;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.count, 2);
  ck_assert_int_eq(launched.form, TT_CUDA_FORM_MAPPED);
  ck_assert_int_eq(launched.ncopies, 2);
  ck_assert(launched.copies[0].second && launched.copies[0].from == from && launched.copies[0].to == to);
  ck_assert_uint_eq(launched.copies[0].bytes, 8 * SHARE); /* of both channels */
  ck_assert(!launched.copies[1].second && launched.copies[1].awaited == 0);
  ck_assert_int_eq(launched.copies[1].after, 1);
  ck_assert_int_eq(launched.awaited_by_kernel, 1);
  made.work.engines = 0;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
  ck_assert(launched.count == 2 && launched.ncopies == 0);
  copy.channels[1].geometry.hi = 1 << 18;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 2, NULL, &launch), ncclSuccess);
  ck_assert(launched.count == 1 && launched.ncopies == 1 && launched.form == TT_CUDA_FORM_MAPPED);
  ck_assert(launched.copies[0].second && launched.copies[0].from == from && launched.copies[0].to == to);
  ck_assert_uint_eq(launched.copies[0].bytes, 4 << 18);
  ck_assert(launched.copies[0].after == 0 && launched.awaited_by_kernel == 0 && launched.awaited == 1);
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess); /* alone it is a kernel */
  ck_assert(launched.count == 1 && launched.ncopies == 0);
  forget_programs();
  tt_program_free(program);
  free_set(&own);
}
END_TEST

/* Copies of the user's stream (0) and of the second (1). */
static int copies_on(bool second)
{
  int count = 0;
  for (int k = 0; k < launched.ncopies; k++) count += launched.copies[k].second == second;
  return count;
}

/* A large block that stays on this GPU is copied beside those that leave it, and all are there before the next kernel;
 * in place there is none. _i: ranks. */
START_TEST(engines_apart)
{
  static const struct operation operations[] = {{TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED, 0},
                                                {TT_FUNC_ALL_TO_ALL, TT_ALGO_MAPPED, 1}};
  enum { RANK = 1, ELEMENTS = 1 << 20 };
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  for (int o = 0; o < 4; o++) {
    bool in_place = o == 2, small = o == 3;
    struct program_set set = emit_set(&operations[o % 2], _i, 0, NULL);
    make_work(set.programs[RANK], 1, TT_PROTO_SIMPLE, in_place);
    struct tt_geometry *g = &made.channels[0].geometry;
    g->hi = g->lo + (small ? SHARE : ELEMENTS);
    g->chunk = g->last_chunk = g->input_stride = g->output_stride = g->hi - g->lo;
    made.outputs[RANK] = made.work.output;
    if (in_place) made.work.input = (char *)made.work.output + RANK * 4 * g->output_stride;
    made.work.engines = 1;
    forget_launches();
    ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
    bool apart = !in_place && !small;
    ck_assert_int_eq(launched.ncopies, in_place ? _i - 1 : _i);
    ck_assert_int_eq(copies_on(true), apart);
    ck_assert_int_eq(launched.awaited, apart);
    for (int k = 0; k < launched.ncopies; k++) {
      const struct fake_copy *copy = &launched.copies[k];
      const char *to = copy->to, *output = made.work.output;
      bool own = to == output + RANK * 4 * g->output_stride;
      ck_assert_int_eq(copy->after, 1);
      ck_assert_int_eq(copy->second, own && apart);
      if (apart) ck_assert_int_eq(copy->awaited, 0); /* none stands behind the other stream's */
    }
    forget_programs();
    free_set(&set);
  }
}
END_TEST

static void launch_broadcast(const struct tt_program *program, int rank, bool in_place, size_t share)
{
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  make_work(program, 1, TT_PROTO_SIMPLE, in_place);
  struct tt_geometry *g = &made.channels[0].geometry;
  g->lo = 0;
  g->hi = share;
  g->chunk = g->last_chunk = (share + program->parts - 1) / program->parts;
  made.outputs[rank] = made.work.output;
  made.work.engines = 1;
  forget_launches();
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
}

/* Steps of `made.work` as a kernel does it, without a factor. */
static int count_steps(void)
{
  static uint32_t words[TT_CUDA_PARAM_WORDS];
  const struct tt_cuda_short *list = (const struct tt_cuda_short *)words;
  struct tt_cuda_short_shape shape;
  made.work.reduction.scale_inputs = 0;
  ck_assert_int_eq(tt_cuda_put_short(&fake_context, &made.work, TT_CUDA_WHOLE, words, &shape), ncclSuccess);
  ck_assert_uint_eq(list->nsteps, shape.nsteps);
  return (int)shape.nsteps;
}

/* A broadcast's root copies to its own output, and tells and hears in a single kernel; in place it does no more. */
static void check_root(const struct tt_program *program, int root, size_t share)
{
  fake_context.executor->begins_early = true; /* right behind another launch; but copies come first */
  launch_broadcast(program, root, false, share);
  ck_assert_int_eq(launched.count, 1);
  ck_assert_int_eq(launched.ncopies, (int)program->parts);
  ck_assert(!launched.early);
  size_t copied = 0;
  for (int k = 0; k < launched.ncopies; k++) {
    ck_assert(launched.copies[k].after == 0 && !launched.copies[k].second);
    ck_assert_ptr_eq(launched.copies[k].from, (const char *)made.work.input + copied);
    ck_assert_ptr_eq(launched.copies[k].to, (char *)made.work.output + copied);
    copied += launched.copies[k].bytes;
  }
  ck_assert_uint_eq(copied, 4 * share);
  ck_assert_int_eq(count_steps(), (int)program->parts + 2);
  launch_broadcast(program, root, true, share);
  ck_assert(launched.count == 1 && launched.ncopies == 0);
  ck_assert_int_eq(count_steps(), 2);
}

/* Another rank gets its part of the root's output piece by piece, and each piece goes on to the others, but not back to
 * the root, after it has come and before the next kernel. */
static void check_worker(const struct tt_program *program, int rank, int root, size_t share)
{
  enum { PIECE = 4 << 20 };
  int n = program->nranks, place = rank - (rank > root), came = 0, went = 0;
  size_t part = (share + program->parts - 1) / program->parts * 4, at = part * (size_t)place;
  size_t bytes = TT_MIN(part, 4 * share - TT_MIN(at, 4 * share));
  launch_broadcast(program, rank, false, share);
  int pieces = n > 2 ? (int)((bytes + PIECE - 1) / PIECE) : 1; /* nobody is there to get more */
  ck_assert_int_eq(launched.count, 2);
  ck_assert_int_eq(copies_on(false), pieces);
  ck_assert_int_eq(copies_on(true), pieces * (n - 2));
  ck_assert_int_eq(launched.awaited, pieces * (n - 2));
  for (int k = 0; k < launched.ncopies; k++) {
    const struct fake_copy *copy = &launched.copies[k];
    ck_assert_int_eq(copy->after, 1);
    if (!copy->second) {
      ck_assert_ptr_eq(copy->from, (char *)made.outputs[root] + at + (size_t)came * PIECE);
      ck_assert_ptr_eq(copy->to, (char *)made.work.output + at + (size_t)came * PIECE);
      if (pieces > 1) ck_assert_uint_eq(copy->bytes, TT_MIN(bytes - (size_t)came * PIECE, (size_t)PIECE));
      came++;
      continue;
    }
    int piece = went / (n - 2), to = rank;
    for (int passed = 0; passed <= went % (n - 2); passed += to != root) to = (to + 1) % n; /* all but the root */
    ck_assert_int_eq(copy->awaited, piece + 1);
    ck_assert_ptr_eq(copy->from, (char *)made.work.output + at + (size_t)piece * PIECE);
    ck_assert_ptr_eq(copy->to, (char *)made.outputs[to] + at + (size_t)piece * PIECE);
    went++;
  }
}

/* _i: ranks. Parts of one piece, and of several, which are no whole number of them. */
START_TEST(engines_broadcast)
{
  static const struct operation broadcast = {TT_FUNC_BROADCAST, TT_ALGO_MAPPED, 0};
  const size_t shares[] = {4000, (size_t)(_i - 1) * 2500000 + 3};
  for (int root = 0; root < _i; root += _i - 1)
    for (int s = 0; s < 2; s++) {
      struct program_set set = emit_set(&broadcast, _i, root, NULL);
      for (int rank = 0; rank < _i; rank++)
        if (rank == root)
          check_root(set.programs[rank], root, shares[s]);
        else
          check_worker(set.programs[rank], rank, root, shares[s]);
      forget_programs();
      free_set(&set);
    }
}
END_TEST

/* A block that lies where it is wanted is not copied; of what is cut in parts only those that there are. */
START_TEST(engines_leave_out)
{
  static const struct operation gather = {TT_FUNC_ALL_GATHER, TT_ALGO_MAPPED, 0},
                                reduce = {TT_FUNC_ALL_REDUCE, TT_ALGO_MAPPED, 0};
  struct tt_work *works[] = {&made.work};
  struct tt_launch *launch = NULL;
  struct program_set set = emit_set(&gather, 3, 0, NULL);
  make_work(set.programs[0], 1, TT_PROTO_SIMPLE, true);
  made.outputs[0] = made.work.output;
  made.work.engines = 1;
  launched.ncopies = 0;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclSuccess);
  ck_assert_int_eq(launched.ncopies, 2);
  for (int k = 0; k < 2; k++) ck_assert_ptr_ne(launched.copies[k].from, launched.copies[k].to);
  forget_programs();
  free_set(&set);
  set = emit_set(&reduce, 3, 0, NULL);
  make_work(set.programs[0], 1, TT_PROTO_SIMPLE, false);
  made.work.engines = 1;
  ck_assert_int_eq(tt_cuda_launch(works, 1, NULL, &launch), ncclInternalError);
  forget_programs();
  free_set(&set);
}
END_TEST

void add_engines(TCase *tc)
{
  tcase_add_loop_test(tc, engines, 2, 9);
  tcase_add_loop_test(tc, messages, 2, 5);
  tcase_add_test(tc, copies_beside_messages);
  tcase_add_loop_test(tc, engines_apart, 2, 9);
  tcase_add_test(tc, engines_leave_out);
  tcase_add_loop_test(tc, engines_broadcast, 2, 7);
}
