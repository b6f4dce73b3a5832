/* Collectives whose buffers have a block for each rank, by every algorithm that they have: all-to-all, gather and
 * scatter by their calls, all-gather and reduce-scatter under NCCL_ALGO. All ranks are driven by one thread. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "nccl.h"
#include "tests/common/effort.h"

#define MAX_RANKS 6
#define GUARD 0x5eadbeef

enum kind { ALL_TO_ALL, GATHER, SCATTER, ALL_GATHER, REDUCE_SCATTER, KINDS };

struct run {
  enum kind kind;
  int n, root;
  size_t count;
  bool in_place;
};

/* Buffers of a rank; where it has none they stay NULL. */
struct buffers {
  uint32_t *memory[2]; /* what to free */
  uint32_t *in, *out;
};

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, ncclGetLastError(NULL));
}

static uint32_t value(int rank, size_t block, size_t i)
{
  return (uint32_t)rank * 2654435761u + (uint32_t)block * 40503u + (uint32_t)i * 97u + 1u;
}

static size_t in_blocks(const struct run *run, int rank)
{
  if (run->kind == SCATTER) return rank == run->root ? (size_t)run->n : 0;
  return run->kind == ALL_TO_ALL || run->kind == REDUCE_SCATTER ? (size_t)run->n : 1;
}

static size_t out_blocks(const struct run *run, int rank)
{
  if (run->kind == GATHER) return rank == run->root ? (size_t)run->n : 0;
  return run->kind == ALL_TO_ALL || run->kind == ALL_GATHER ? (size_t)run->n : 1;
}

static uint32_t *allocate(size_t blocks, size_t count)
{
  if (blocks == 0) return NULL;
  uint32_t *memory = malloc((blocks * count + 1) * sizeof *memory);
  ck_assert_ptr_nonnull(memory);
  memset(memory, 0x33, blocks * count * sizeof *memory);
  memory[blocks * count] = GUARD;
  return memory;
}

static void make(const struct run *run, int rank, struct buffers *buffers)
{
  size_t in = in_blocks(run, rank), out = out_blocks(run, rank), own = (size_t)rank * run->count;
  memset(buffers, 0, sizeof *buffers);
  if (run->in_place && in > 0 && out > 0) {
    uint32_t *memory = buffers->memory[0] = allocate(in > out ? in : out, run->count);
    buffers->in = memory + (out > in ? own : 0);
    buffers->out = memory + (in > out ? own : 0);
  } else {
    buffers->in = buffers->memory[0] = allocate(in, run->count);
    buffers->out = buffers->memory[1] = allocate(out, run->count);
  }
  for (size_t b = 0; b < in; b++)
    for (size_t i = 0; i < run->count; i++) buffers->in[b * run->count + i] = value(rank, b, i);
}

static uint32_t expected(const struct run *run, int rank, size_t block, size_t i)
{
  uint32_t sum = 0;
  switch (run->kind) {
  case ALL_TO_ALL:
    return value((int)block, (size_t)rank, i);
  case SCATTER:
    return value(run->root, (size_t)rank, i);
  case REDUCE_SCATTER:
    for (int r = 0; r < run->n; r++) sum += value(r, (size_t)rank, i);
    return sum;
  default:
    return value((int)block, 0, i);
  }
}

/* Plain comparisons: check notes each of its own in a file. */
static void check(const struct run *run, int rank, const struct buffers *buffers)
{
  size_t in = in_blocks(run, rank), out = out_blocks(run, rank);
  for (size_t b = 0; b < out; b++)
    for (size_t i = 0; i < run->count; i++)
      if (buffers->out[b * run->count + i] != expected(run, rank, b, i))
        ck_abort_msg("kind %d, rank %d of %d, root %d, count %zu, %s: block %zu, element %zu", run->kind, rank, run->n,
                     run->root, run->count, run->in_place ? "in place" : "out of place", b, i);
  if (buffers->memory[1] != NULL) ck_assert_uint_eq(buffers->out[out * run->count], GUARD);
  for (size_t b = 0; !run->in_place && b < in; b++)
    for (size_t i = 0; i < run->count; i++)
      if (buffers->in[b * run->count + i] != value(rank, b, i))
        ck_abort_msg("kind %d, rank %d of %d: the input was changed", run->kind, rank, run->n);
  free(buffers->memory[0]);
  free(buffers->memory[1]);
}

static ncclResult_t call(const struct run *run, const struct buffers *b, ncclComm_t comm)
{
  switch (run->kind) {
  case ALL_TO_ALL:
    return ncclAlltoAll(b->in, b->out, run->count, ncclUint32, comm, NULL);
  case GATHER:
    return ncclGather(b->in, b->out, run->count, ncclUint32, run->root, comm, NULL);
  case SCATTER:
    return ncclScatter(b->in, b->out, run->count, ncclUint32, run->root, comm, NULL);
  case ALL_GATHER:
    return ncclAllGather(b->in, b->out, run->count, ncclUint32, comm, NULL);
  default:
    return ncclReduceScatter(b->in, b->out, run->count, ncclUint32, ncclSum, comm, NULL);
  }
}

/* A group of the collective with all counts, in and out of place: so works follow each other at once, and those that
 * use scratch memory share it. */
static void run_group(enum kind kind, int n, int root, ncclComm_t *comms)
{
  static const size_t counts[] = {1, 0, 777, 3, EFFORT(40000, 8000)};
  enum { COUNTS = sizeof counts / sizeof counts[0] };
  struct buffers buffers[2 * COUNTS][MAX_RANKS];
  struct run runs[2 * COUNTS];
  ok(ncclGroupStart());
  for (int k = 0; k < 2 * COUNTS; k++) {
    runs[k] = (struct run){.kind = kind, .n = n, .root = root, .count = counts[k / 2], .in_place = k % 2};
    for (int r = 0; r < n; r++) {
      make(&runs[k], r, &buffers[k][r]);
      ok(call(&runs[k], &buffers[k][r], comms[r]));
    }
  }
  ok(ncclGroupEnd());
  for (int k = 0; k < 2 * COUNTS; k++)
    for (int r = 0; r < n; r++) check(&runs[k], r, &buffers[k][r]);
}

static void set(const char *name, const char *text)
{
  if (text)
    setenv(name, text, 1);
  else
    unsetenv(name);
}

/* _i: number of ranks - 1 + MAX_RANKS * setting. */
START_TEST(every_algorithm)
{
  static const char *const settings[][3] = {
      {NULL, NULL, NULL},      {"Direct", "LL", NULL}, {"Direct", "Simple", "3"}, {"PAT", "LL", NULL},
      {"PAT", "Simple", NULL}, {"PAT", "Simple", "4"}, {"Ring", NULL, NULL},
  };
  int n = _i % MAX_RANKS + 1, setting = _i / MAX_RANKS;
  ncclComm_t comms[MAX_RANKS];
  set("NCCL_ALGO", settings[setting][0]);
  set("NCCL_PROTO", settings[setting][1]);
  set("NCCL_MIN_NCHANNELS", settings[setting][2]);
  tt_param_reset();
  ok(ncclCommInitAll(comms, n, NULL));
  for (int kind = 0; kind < KINDS; kind++)
    for (int root = 0; root < n; root += kind == GATHER || kind == SCATTER ? 1 : n)
      run_group((enum kind)kind, n, root, comms);
  for (int r = 0; r < n; r++) ok(ncclCommDestroy(comms[r]));
}
END_TEST

static void refuse(ncclResult_t got, const char *words)
{
  ck_assert_int_eq(got, ncclInvalidArgument);
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

START_TEST(arguments)
{
  ncclComm_t comm;
  float data[4] = {1, 2, 3, 4}, out[4] = {0};
  ok(ncclCommInitAll(&comm, 1, NULL));
  refuse(ncclAlltoAll(data, out, 4, ncclFloat, NULL, NULL), "ncclAlltoAll: argument comm");
  refuse(ncclAlltoAll(NULL, out, 4, ncclFloat, comm, NULL), "ncclAlltoAll: argument sendbuff");
  refuse(ncclAlltoAll(data, NULL, 4, ncclFloat, comm, NULL), "recvbuff");
  refuse(ncclAlltoAll(data, out, 4, (ncclDataType_t)12, comm, NULL), "datatype");
  refuse(ncclAlltoAll(data, out, SIZE_MAX / 2, ncclFloat, comm, NULL), "count");
  refuse(ncclGather(data, out, 4, ncclFloat, 1, comm, NULL), "ncclGather: root is 1");
  refuse(ncclGather(data, NULL, 4, ncclFloat, 0, comm, NULL), "recvbuff");
  refuse(ncclScatter(data, out, 4, ncclFloat, -1, comm, NULL), "ncclScatter: root is -1");
  refuse(ncclScatter(NULL, out, 4, ncclFloat, 0, comm, NULL), "sendbuff");
  refuse(ncclScatter(data, out, 4, ncclFloat, 0, comm, (cudaStream_t)data), "stream");
  ok(ncclAlltoAll(NULL, NULL, 0, ncclFloat, comm, NULL));
  ok(ncclAlltoAll(data, out, 4, ncclFloat8e4m3, comm, NULL)); /* nothing is reduced */
  ck_assert_mem_eq(out, data, 4);
  ok(ncclGather(data, out, 4, ncclFloat, 0, comm, NULL));
  ck_assert_mem_eq(out, data, sizeof data);
  ok(ncclCommDestroy(comm));
}
END_TEST

/* Ranks that each take themselves for the root wait for each other, and are told so. */
START_TEST(roots_differ)
{
  ncclComm_t comms[2];
  float in[2][8] = {{0}}, out[2][8];
  ok(ncclCommInitAll(comms, 2, NULL));
  ok(ncclGroupStart());
  for (int r = 0; r < 2; r++) ok(ncclGather(in[r], out[r], 4, ncclFloat, r, comms[r], NULL));
  ck_assert_int_ne(ncclGroupEnd(), ncclSuccess);
  ck_assert_msg(strstr(tt_log_thread_error(), "root") != NULL, "%s", tt_log_thread_error());
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

Suite *blocks_suite(void)
{
  Suite *suite = suite_create("blocks");
  TCase *tests = tcase_create("blocks");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, every_algorithm, 0, 7 * MAX_RANKS);
  tcase_add_test(tests, arguments);
  tcase_add_test(tests, roots_differ);
  suite_add_tcase(suite, tests);
  return suite;
}
