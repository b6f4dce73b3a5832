/* The checker, tested by corrupting correct results: correct ones pass for every collective, type and operation, and
 * each corruption is found. The correct results are computed here, from the buffers' contents, with arithmetic of this
 * file's own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "verify.h"
#include "suites.h"

enum { MOST_RANKS = 5 };

struct world {
  int ranks, elements;
  struct perf_buffer send[MOST_RANKS], recv[MOST_RANKS];
  struct perf_case cases[MOST_RANKS];
  char *inputs[MOST_RANKS]; /* copies made before the collective */
};

static void world_make(struct world *w, const char *collective, const struct perf_type *type, const struct perf_op *op,
                       int ranks, int elements, bool in_place, int root)
{
  *w = (struct world){.ranks = ranks, .elements = elements};
  for (int r = 0; r < ranks; r++) {
    ck_assert(perf_buffer_make(&w->send[r], &perf_backend_host, false, (size_t)elements * 8, 0));
    ck_assert(perf_buffer_make(&w->recv[r], &perf_backend_host, false, (size_t)elements * 8, 0));
    struct perf_case *c = &w->cases[r];
    *c = (struct perf_case){.collective = perf_collective_find(collective),
                            .type = type,
                            .root = root,
                            .rank = r,
                            .nranks = ranks,
                            .in_place = in_place,
                            .epoch = 7,
                            .send = &w->send[r],
                            .recv = &w->recv[r]};
    if (c->collective->reduces) c->op = op;
    c->collective->shape(&c->shape, (size_t)elements, r, ranks);
    w->inputs[r] = calloc((size_t)elements, 8);
  }
}

static void world_drop(struct world *w)
{
  for (int r = 0; r < w->ranks; r++) {
    perf_buffer_drop(&w->send[r]);
    perf_buffer_drop(&w->recv[r]);
    free(w->inputs[r]);
  }
}

static void prepare(struct world *w, uint64_t epoch)
{
  for (int r = 0; r < w->ranks; r++) {
    w->cases[r].epoch = epoch;
    ck_assert(perf_check_prepare(&w->cases[r]));
    memcpy(w->inputs[r], perf_case_send(&w->cases[r]), w->cases[r].shape.send * (size_t)w->cases[r].type->bytes);
  }
}

static long double load_float(const struct perf_type *type, const char *at)
{
  return perf_pattern_decode(type, at);
}

static int64_t load_integer(const struct perf_type *type, const char *at)
{
  switch (type->type) {
  case ncclInt8:
    return *(const int8_t *)at;
  case ncclUint8:
    return *(const uint8_t *)at;
  case ncclInt32:
    return *(const int32_t *)at;
  case ncclUint32:
    return *(const uint32_t *)at;
  default:
    return *(const int64_t *)at;
  }
}

static int64_t combine(const struct perf_type *type, ncclRedOp_t op, int64_t a, int64_t b)
{
  bool less = type->type == ncclUint64 ? (uint64_t)a < (uint64_t)b : a < b;
  if (op == ncclProd) return (int64_t)((uint64_t)a * (uint64_t)b);
  if (op == ncclMin) return less ? a : b;
  if (op == ncclMax) return less ? b : a;
  return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* Reduces element `index` of ranks with a set bit in `who`. */
static void reduce_element(const struct world *w, unsigned who, size_t index, char *out)
{
  const struct perf_type *type = w->cases[0].type;
  ncclRedOp_t op = w->cases[0].op->op;
  size_t at = index * (size_t)type->bytes;
  bool first = true;
  long double value = 0;
  int64_t integer = 0;
  for (int r = 0; r < w->ranks; r++) {
    if (!(who >> r & 1)) continue;
    if (type->kind == PERF_FLOATING) {
      long double x = load_float(type, w->inputs[r] + at);
      value = first            ? x
              : op == ncclProd ? value * x
              : op == ncclMin  ? fminl(value, x)
              : op == ncclMax  ? fmaxl(value, x)
                               : value + x;
    } else {
      int64_t x = load_integer(type, w->inputs[r] + at);
      integer = first ? x : combine(type, op, integer, x);
    }
    first = false;
  }
  if (op == ncclAvg) value /= w->ranks, integer /= w->ranks;
  if (type->kind == PERF_FLOATING)
    perf_pattern_encode(type, (double)value, out);
  else
    memcpy(out, &integer, (size_t)type->bytes);
}

/* The collective. `who` is normally all ranks. */
static void collect(struct world *w, unsigned who)
{
  const char *name = w->cases[0].collective->name;
  size_t bytes = (size_t)w->cases[0].type->bytes, count = w->cases[0].shape.count;
  int n = w->ranks, root = w->cases[0].root;
  for (int r = 0; r < n; r++) {
    char *out = perf_case_recv(&w->cases[r]);
    if (!strcmp(name, "all_reduce") || (!strcmp(name, "reduce") && r == root))
      for (size_t i = 0; i < count; i++) reduce_element(w, who, i, out + i * bytes);
    if (!strcmp(name, "reduce_scatter"))
      for (size_t i = 0; i < count; i++) reduce_element(w, who, (size_t)r * count + i, out + i * bytes);
    if (!strcmp(name, "scatter")) memcpy(out, w->inputs[root] + (size_t)r * count * bytes, count * bytes);
    if (!strcmp(name, "broadcast")) memcpy(out, w->inputs[root], count * bytes);
    if (!strcmp(name, "sendrecv")) memcpy(out, w->inputs[(r + n - 1) % n], count * bytes);
    for (int p = 0; p < n; p++) {
      bool gathers = !strcmp(name, "all_gather") || (!strcmp(name, "gather") && r == root);
      if (gathers) memcpy(out + (size_t)p * count * bytes, w->inputs[p], count * bytes);
      if (!strcmp(name, "alltoall"))
        memcpy(out + (size_t)p * count * bytes, w->inputs[p] + (size_t)r * count * bytes, count * bytes);
    }
  }
}

static uint64_t wrong_at(const struct world *w, int rank)
{
  struct perf_verdict verdict;
  ck_assert(perf_check_verify(&w->cases[rank], &verdict));
  if (verdict.wrong) ck_assert_msg(verdict.first[0] != 0, "wrong data without a sentence");
  return verdict.wrong;
}

static uint64_t wrong_anywhere(const struct world *w)
{
  uint64_t wrong = 0;
  for (int r = 0; r < w->ranks; r++) wrong += wrong_at(w, r);
  return wrong;
}

START_TEST(correct_results_pass)
{
  const struct perf_collective *c = perf_collective_at(_i);
  static const int ranks[] = {1, 2, 3, 5}, elements[] = {0, 1, 11, 519}; /* 519: more than one block of the checker */
  for (int t = 0; perf_type_at(t); t++)
    for (int o = 0; perf_op_at(o) && (o == 0 || c->reduces); o++)
      for (int form = 0; form < 32; form++) {
        struct world w;
        int n = ranks[form % 4], size = elements[form / 4 % 4];
        if (form / 16 > c->in_place) continue;
        world_make(&w, c->name, perf_type_at(t), perf_op_at(o), n, size, form / 16, n - 1);
        prepare(&w, 3);
        collect(&w, ~0u);
        ck_assert_msg(wrong_anywhere(&w) == 0, "%s %s %s of %d elements on %d ranks", c->name, perf_type_at(t)->name,
                      perf_op_at(o)->name, size, n);
        world_drop(&w);
      }
}
END_TEST

/* Flips one bit of each byte of every element in turn; each flip must be found at that rank, and undone is right. The
 * tolerance of inexact averages may hide the lowest bits of the mantissa, so only other operations are flipped. */
START_TEST(every_flipped_bit_is_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  for (int t = 0; perf_type_at(t); t++)
    for (int in_place = 0; in_place <= c->in_place; in_place++) {
      struct world w;
      world_make(&w, c->name, perf_type_at(t), perf_op_at(t % 4), 3, 24, in_place, 1);
      prepare(&w, 3);
      collect(&w, ~0u);
      for (int r = 0; r < 3; r++) {
        char *out = perf_case_recv(&w.cases[r]);
        for (size_t i = 0; i < w.cases[r].shape.recv * (size_t)w.cases[r].type->bytes; i++) {
          out[i] = (char)(out[i] ^ 1 << i % 8);
          ck_assert_uint_eq(wrong_at(&w, r), 1);
          out[i] = (char)(out[i] ^ 1 << i % 8);
        }
        ck_assert_uint_eq(wrong_at(&w, r), 0);
      }
      world_drop(&w);
    }
}
END_TEST

START_TEST(stale_results_are_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  for (int t = 0; perf_type_at(t); t++)
    for (int in_place = 0; in_place <= c->in_place; in_place++) {
      struct world w;
      char *old[3];
      world_make(&w, c->name, perf_type_at(t), perf_op_at(0), 3, 120, in_place, 1);
      prepare(&w, 3);
      collect(&w, ~0u);
      size_t bytes = w.cases[0].shape.recv * (size_t)w.cases[0].type->bytes;
      for (int r = 0; r < 3; r++) old[r] = memcpy(malloc(bytes), perf_case_recv(&w.cases[r]), bytes);
      prepare(&w, 4);
      collect(&w, ~0u);
      for (int r = 0; r < 3; r++) {
        memcpy(perf_case_recv(&w.cases[r]), old[r], bytes);
        /* Off the root of a reduction "what was before" of another epoch is just as wrong. */
        ck_assert_uint_ge(wrong_at(&w, r), w.cases[r].shape.recv / 2);
        free(old[r]);
      }
      world_drop(&w);
    }
}
END_TEST

START_TEST(results_never_written_are_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  for (int in_place = 0; in_place <= c->in_place; in_place++) {
    struct world w;
    world_make(&w, c->name, perf_type_find("float"), perf_op_find("sum"), 3, 120, in_place, 0);
    prepare(&w, 3);
    uint64_t wrong = wrong_at(&w, 1);
    if (!strcmp(c->name, "reduce") || !strcmp(c->name, "gather"))
      ck_assert_uint_eq(wrong, 0); /* rank 1 gets nothing */
    else
      ck_assert_uint_ge(wrong, w.cases[1].shape.count);
    world_drop(&w);
  }
}
END_TEST

START_TEST(a_missing_or_doubled_contribution_is_found)
{
  static const char *const names[] = {"all_reduce", "reduce", "reduce_scatter"};
  for (int i = 0; i < 3; i++)
    for (int t = 0; perf_type_at(t); t++)
      for (int o = 0; perf_op_at(o); o++)
        for (unsigned missing = 0; missing < 4; missing++) {
          struct world w;
          world_make(&w, names[i], perf_type_at(t), perf_op_at(o), 4, 400, false, 0);
          prepare(&w, 3);
          collect(&w, ~(1u << missing));
          ck_assert_msg(wrong_at(&w, 0) > 0, "%s %s %s without rank %u", names[i], perf_type_at(t)->name,
                        perf_op_at(o)->name, missing);
          world_drop(&w);
        }
}
END_TEST

START_TEST(results_shifted_by_one_element_are_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  for (int t = 0; perf_type_at(t); t++) {
    struct world w;
    world_make(&w, c->name, perf_type_at(t), perf_op_at(0), 3, 120, false, 0);
    prepare(&w, 3);
    collect(&w, ~0u);
    size_t bytes = (size_t)w.cases[0].type->bytes;
    char *out = perf_case_recv(&w.cases[0]);
    memmove(out + bytes, out, (w.cases[0].shape.recv - 1) * bytes);
    ck_assert_uint_ge(wrong_at(&w, 0), w.cases[0].shape.recv / 2);
    world_drop(&w);
  }
}
END_TEST

/* Gathers in another rank order, roots and neighbours mistaken, chunks of another rank. */
START_TEST(data_of_another_rank_is_found)
{
  static const char *const names[] = {"all_gather", "alltoall", "broadcast", "sendrecv", "reduce_scatter"};
  for (int i = 0; i < 5; i++) {
    struct world w;
    world_make(&w, names[i], perf_type_find("int32"), perf_op_find("sum"), 3, 120, false, 0);
    prepare(&w, 3);
    /* Rank 1 and 2 change places, for what they send and, in reduce_scatter, for what they get. */
    char *swap = w.inputs[1];
    w.inputs[1] = w.inputs[2];
    w.inputs[2] = swap;
    if (!strcmp(names[i], "broadcast")) {
      swap = w.inputs[0];
      w.inputs[0] = w.inputs[1];
      w.inputs[1] = swap;
    }
    collect(&w, ~0u);
    if (!strcmp(names[i], "reduce_scatter"))
      for (size_t b = 0; b < w.cases[1].shape.recv * 4; b++) {
        char byte = w.recv[1].data[b];
        w.recv[1].data[b] = w.recv[2].data[b];
        w.recv[2].data[b] = byte;
      }
    ck_assert_msg(wrong_anywhere(&w) >= w.cases[0].shape.count, "%s", names[i]);
    world_drop(&w);
  }
}
END_TEST

START_TEST(writes_outside_are_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  for (int in_place = 0; in_place <= c->in_place; in_place++) {
    struct world w;
    world_make(&w, c->name, perf_type_find("uint8"), perf_op_find("sum"), 3, 120, in_place, 0);
    prepare(&w, 3);
    collect(&w, ~0u);
    const struct perf_shape *s = &w.cases[1].shape;
    size_t end = in_place && s->send > s->recv ? s->send : s->recv;
    static const long distance[] = {1, 2, 64, PERF_GUARD};
    for (int d = 0; d < 4; d++) {
      char *before = w.recv[1].data - distance[d], *after = w.recv[1].data + end + distance[d] - 1;
      *before ^= 4;
      ck_assert_uint_eq(wrong_at(&w, 1), 1);
      *before ^= 4;
      *after ^= 4;
      ck_assert_uint_eq(wrong_at(&w, 1), 1);
      *after ^= 4;
    }
    if (!in_place) {
      w.send[1].data[s->send] ^= 1;
      ck_assert_uint_eq(wrong_at(&w, 1), 1);
      w.send[1].data[s->send] ^= 1;
    }
    ck_assert_uint_eq(wrong_at(&w, 1), 0);
    world_drop(&w);
  }
}
END_TEST

START_TEST(changed_inputs_are_found)
{
  const struct perf_collective *c = perf_collective_at(_i);
  struct world w;
  world_make(&w, c->name, perf_type_find("half"), perf_op_find("sum"), 3, 120, false, 0);
  prepare(&w, 3);
  collect(&w, ~0u);
  for (size_t i = 0; i < w.cases[1].shape.send * 2; i++) {
    w.send[1].data[i] ^= 1;
    ck_assert_uint_eq(wrong_at(&w, 1), 1);
    w.send[1].data[i] ^= 1;
  }
  world_drop(&w);
  /* In place, reduce_scatter leaves the chunks that are not its result alone. */
  world_make(&w, "reduce_scatter", perf_type_find("half"), perf_op_find("sum"), 3, 120, true, 0);
  prepare(&w, 3);
  collect(&w, ~0u);
  ck_assert_uint_eq(wrong_at(&w, 1), 0);
  w.recv[1].data[0] ^= 1;
  ck_assert_uint_eq(wrong_at(&w, 1), 1);
  w.recv[1].data[120 * 2 - 1] ^= 1;
  ck_assert_uint_eq(wrong_at(&w, 1), 2);
  world_drop(&w);
}
END_TEST

/* Averages over 3 ranks: an error of one unit in the last place passes where it must, a larger one does not. */
START_TEST(tolerance_is_tight)
{
  for (int t = 0; perf_type_at(t); t++) {
    const struct perf_type *type = perf_type_at(t);
    if (type->kind != PERF_FLOATING || perf_type_is_fp8(type)) continue;
    struct world w;
    world_make(&w, "all_reduce", type, perf_op_find("avg"), 3, 200, false, 0);
    prepare(&w, 3);
    collect(&w, ~0u);
    ck_assert_uint_eq(wrong_at(&w, 0), 0);
    size_t found = 0;
    for (size_t i = 0; i < 200; i++) {
      char *at = w.recv[0].data + i * (size_t)type->bytes;
      double value = perf_pattern_decode(type, at), magnitude = 0;
      for (int r = 0; r < 3; r++) magnitude += fabs(perf_pattern_decode(type, w.inputs[r] + i * (size_t)type->bytes));
      double off = value + 16 * ldexp(magnitude / 3, -type->digits);
      perf_pattern_encode(type, off, at);
      found += wrong_at(&w, 0) == 1;
      perf_pattern_encode(type, value, at);
    }
    ck_assert_msg(found >= 195, "%s: %zu of 200 errors of 16 u found", type->name, found);
    world_drop(&w);
  }
}
END_TEST

Suite *suite_mutations(void)
{
  Suite *suite = suite_create("mutations");
  TCase *tests = tcase_create("mutations");
  tcase_set_timeout(tests, 240);
  tcase_add_loop_test(tests, correct_results_pass, 0, 7);
  tcase_add_loop_test(tests, every_flipped_bit_is_found, 0, 7);
  tcase_add_loop_test(tests, stale_results_are_found, 0, 7);
  tcase_add_loop_test(tests, results_never_written_are_found, 0, 7);
  tcase_add_test(tests, a_missing_or_doubled_contribution_is_found);
  tcase_add_loop_test(tests, results_shifted_by_one_element_are_found, 0, 7);
  tcase_add_test(tests, data_of_another_rank_is_found);
  tcase_add_loop_test(tests, writes_outside_are_found, 0, 7);
  tcase_add_loop_test(tests, changed_inputs_are_found, 0, 7);
  tcase_add_test(tests, tolerance_is_tight);
  suite_add_tcase(suite, tests);
  return suite;
}
