/* The order of launches on streams and in graphs, the pieces of memory that long launches use, and the user's streams.
 * Each test runs in a process of its own. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "base/log.h"
#include "base/param.h"
#include "fake_graph.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/state.h"

static struct fake_stream a = {.name = 'a', .device = 2}, b = {.name = 'b', .device = 2};

static bool begins_early; /* what the last launch was told */

static cudaStream_t handle(struct fake_stream *stream)
{
  return (cudaStream_t)(void *)stream;
}

/* A launch of one kernel; its node if it is captured. */
static struct fake_node *launch(struct fake_stream *stream)
{
  struct tt_cuda_graph *graph;
  ck_assert_int_eq(tt_cuda_order_begin(&fake_context, handle(stream), &graph), ncclSuccess);
  ck_assert((graph != NULL) == (stream->graph != NULL));
  begins_early = fake_context.executor->begins_early;
  fake_kernel(stream);
  struct fake_node *node = stream->tail;
  ck_assert_int_eq(tt_cuda_order_end(&fake_context, handle(stream), graph), ncclSuccess);
  ck_assert_ptr_eq(stream->tail, node); /* what is added lies beside the stream's line */
  return node;
}

static int count_nodes(const struct fake_cuda_graph *graph, char kind)
{
  int count = 0;
  for (int n = 0; n < graph->nnodes; n++) count += graph->nodes[n].kind == kind;
  return count;
}

static const struct fake_node *find_node(const struct fake_cuda_graph *graph, char kind)
{
  for (int n = 0; n < graph->nnodes; n++)
    if (graph->nodes[n].kind == kind) return &graph->nodes[n];
  ck_abort_msg("the graph has no node %c", kind);
}

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_int_eq(result, wanted);
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\"", tt_log_thread_error());
}

/* What the core has asked of a stream is not asked again, but once: the stream may be captured after that. */
START_TEST(asked)
{
  uint64_t id;
  ck_assert_int_eq(tt_cuda_capturing(&fake_context, &a, &id), ncclSuccess);
  ck_assert_uint_eq(id, 0);
  int before = fake_capture_infos;
  launch(&a);
  ck_assert_int_eq(fake_capture_infos, before);
  launch(&a);
  ck_assert_int_eq(fake_capture_infos, before + 1);
  ck_assert_int_eq(tt_cuda_capturing(&fake_context, &b, &id), ncclSuccess);
  launch(&a); /* another one */
  ck_assert_int_eq(fake_capture_infos, before + 2);
}
END_TEST

START_TEST(eager)
{
  launch(&a);
  launch(&a);
  launch(&b);
  launch(&b);
  launch(&a);
  ck_assert_str_eq(fake_log, "KaRaKaRaWbKbRbKbRbWaKaRa");
}
END_TEST

/* One wait before the first launch, one record behind the last, whatever their number. */
START_TEST(captured)
{
  static struct fake_cuda_graph graph;
  fake_capture(&a, &graph);
  struct fake_node *nodes[3];
  for (int n = 0; n < 3; n++) {
    nodes[n] = launch(&a);
    ck_assert(fake_is_behind(nodes[n], find_node(&graph, 'W')));
    ck_assert_int_eq(find_node(&graph, 'R')->nbefore, 1);
    ck_assert_ptr_eq(find_node(&graph, 'R')->before[0], nodes[n]);
    ck_assert(n == 0 || (nodes[n]->nbefore == 1 && nodes[n]->before[0] == nodes[n - 1]));
  }
  ck_assert_int_eq(count_nodes(&graph, 'W') + count_nodes(&graph, 'R'), 2);
  ck_assert_str_eq(fake_log, "");
}
END_TEST

/* A launch right behind another one of its graph begins while that ends, where that can be; not so the first, one
 * behind what a user put there, and one of a stream that only joined. _i: whether it can be. */
START_TEST(early)
{
  static struct fake_cuda_graph graph, other;
  fake_context.executor->can_begin_early = _i;
  launch(&a);
  ck_assert(!begins_early);
  fake_capture(&a, &graph);
  launch(&a);
  ck_assert(!begins_early);
  for (int n = 0; n < 2; n++) {
    launch(&a);
    ck_assert_int_eq(begins_early, _i);
  }
  fake_kernel(&a);
  launch(&a);
  ck_assert(!begins_early);
  fake_capture(&b, &graph);
  launch(&b); /* which comes behind the last launch, too */
  ck_assert(!begins_early);
  launch(&b);
  ck_assert_int_eq(begins_early, _i);
  fake_capture(&b, &other);
  launch(&b);
  ck_assert(!begins_early);
  fake_capture(&b, NULL);
  launch(&b);
  ck_assert(!begins_early);
}
END_TEST

/* A kernel with copies beside it is the launch: whatever follows comes behind both, also on another stream of the graph
 * and outside of it, and does not begin early. */
START_TEST(copies_beside)
{
  static struct fake_cuda_graph graph;
  struct tt_cuda_graph *captured;
  fake_context.executor->can_begin_early = true;
  fake_capture(&a, &graph);
  launch(&a);
  ck_assert_int_eq(tt_cuda_order_begin(&fake_context, handle(&a), &captured), ncclSuccess);
  fake_kernel(&a);
  fake_copy(&a);
  const struct fake_node *kernel = a.tail, *copy = a.beside;
  ck_assert_int_eq(tt_cuda_order_end(&fake_context, handle(&a), captured), ncclSuccess);
  const struct fake_node *record = find_node(&graph, 'R');
  ck_assert(record->nbefore == 2 && fake_is_behind(record, kernel) && fake_is_behind(record, copy));
  fake_capture(&b, &graph);
  const struct fake_node *elsewhere = launch(&b), *next = launch(&a);
  ck_assert(fake_is_behind(elsewhere, kernel) && fake_is_behind(elsewhere, copy));
  ck_assert(!begins_early && fake_is_behind(next, kernel) && fake_is_behind(next, copy));
  ck_assert(record->nbefore == 1 && record->before[0] == next);
  launch(&a);
  ck_assert(begins_early);
}
END_TEST

/* Two graphs that are captured by turns have their own nodes. */
START_TEST(two_graphs)
{
  static struct fake_cuda_graph graphs[2];
  fake_capture(&a, &graphs[0]);
  fake_capture(&b, &graphs[1]);
  for (int n = 0; n < 2; n++) {
    const struct fake_node *last[] = {launch(&a), launch(&b)};
    for (int g = 0; g < 2; g++) ck_assert_ptr_eq(find_node(&graphs[g], 'R')->before[0], last[g]);
  }
  for (int g = 0; g < 2; g++) ck_assert_int_eq(count_nodes(&graphs[g], 'W') + count_nodes(&graphs[g], 'R'), 2);
}
END_TEST

/* Streams of one graph. _i: NCCL_GRAPH_STREAM_ORDERING. */
START_TEST(two_captured)
{
  static struct fake_cuda_graph graph;
  setenv("NCCL_GRAPH_STREAM_ORDERING", _i ? "1" : "0", 1);
  tt_param_reset();
  fake_capture(&a, &graph);
  fake_capture(&b, &graph);
  const struct fake_node *first = launch(&a), *second = launch(&b), *third = launch(&a);
  ck_assert_int_eq(fake_is_behind(second, first), _i);
  ck_assert_int_eq(fake_is_behind(third, second), _i);
  ck_assert_ptr_eq(find_node(&graph, 'R')->before[0], third);
}
END_TEST

/* While there is a graph, and once after, any launch may come behind a replay on another stream. */
START_TEST(mixed)
{
  static struct fake_cuda_graph graph;
  launch(&a);
  fake_capture(&b, &graph);
  launch(&b);
  fake_capture(&b, NULL);
  fake_log[0] = 0;
  memset(fake_log, 0, sizeof(fake_log));
  launch(&a);
  launch(&a);
  fake_end(&graph);
  launch(&a);
  launch(&a);
  ck_assert_str_eq(fake_log, "WaKaRaWaKaRaWaKaRaKaRa");
}
END_TEST

/* A graph alone is something that drain has to wait for. */
START_TEST(drained)
{
  static struct fake_cuda_graph graph;
  fake_capture(&a, &graph);
  launch(&a);
  ck_assert(fake_context.state->any_launch);
}
END_TEST

START_TEST(unmixed)
{
  static struct fake_cuda_graph graph;
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
  tt_param_reset();
  fake_capture(&a, &graph);
  launch(&a);
  const struct fake_node *last = launch(&a);
  ck_assert_int_eq(graph.nnodes, 2);
  ck_assert_int_eq(last->nbefore, 1);
  ck_assert(!fake_context.state->any_launch);
}
END_TEST

/* Whichever call fails, what is kept of a graph is freed once, and later launches are as ever. */
START_TEST(order_fails)
{
  for (int call = 1, reached = 1; reached; call++) {
    struct fake_cuda_graph *made = calloc(1, sizeof(*made));
    struct tt_cuda_graph *graph;
    fake_capture(&a, made);
    fake_fail_at = call;
    ncclResult_t result = tt_cuda_order_begin(&fake_context, handle(&a), &graph);
    if (result == ncclSuccess) {
      fake_kernel(&a);
      result = tt_cuda_order_end(&fake_context, handle(&a), graph);
    }
    reached = fake_fail_at == 0;
    fake_fail_at = 0;
    ck_assert_int_eq(result, reached ? ncclUnhandledCudaError : ncclSuccess);
    fake_capture(&a, NULL);
    fake_end(made);
    free(made);
    launch(&a);
    ck_assert(reached || call > 5);
  }
}
END_TEST

/* A captured group that fails after a kernel: that one is the graph's last, and a launch that was not captured leaves
 * all as it was. */
START_TEST(group_fails)
{
  static struct fake_cuda_graph graph;
  struct tt_cuda_graph *captured;
  fake_capture(&a, &graph);
  fake_capture(&b, &graph);
  launch(&a);
  ck_assert_int_eq(tt_cuda_order_begin(&fake_context, handle(&a), &captured), ncclSuccess);
  fake_kernel(&a);
  const struct fake_node *last = a.tail;
  tt_cuda_order_failed(&fake_context, handle(&a), captured);
  ck_assert_ptr_eq(find_node(&graph, 'R')->before[0], last);
  ck_assert(fake_is_behind(launch(&b), last));
  last = find_node(&graph, 'R')->before[0];
  fake_fail_at = 1;
  tt_cuda_order_failed(&fake_context, handle(&a), captured);
  ck_assert_ptr_eq(find_node(&graph, 'R')->before[0], last);
}
END_TEST

/* Graphs may be gone after the context. */
START_TEST(context_first)
{
  static struct fake_cuda_graph graph;
  fake_capture(&a, &graph);
  launch(&a);
  tt_cuda_graphs_forget(&fake_context);
  ck_assert_ptr_null(fake_context.executor->graphs);
  fake_end(&graph);
}
END_TEST

/* ---- Pieces of memory ---- */

static const uint32_t *take(size_t bytes, struct tt_cuda_graph *graph)
{
  static const uint32_t words[16384] = {7};
  struct tt_cuda_blob *blob;
  const uint32_t *at;
  ck_assert_int_eq(tt_cuda_blob_take(&fake_context, words, bytes, &blob, &at), ncclSuccess);
  ck_assert_uint_eq(at[0], 7);
  ck_assert_int_eq(tt_cuda_blob_launched(&fake_context, blob, handle(&a), graph), ncclSuccess);
  return at;
}

START_TEST(pieces)
{
  const uint32_t *first = take(5000, NULL);
  for (int i = 0; i < 100; i++) ck_assert_ptr_eq(take(16000, NULL), first);
  fake_running = true;
  const uint32_t *second = take(5000, NULL), *third = take(5000, NULL);
  ck_assert(second != first && third != first && third != second); /* nothing is known to be done */
  ck_assert_int_eq(fake_events, 3);
  fake_running = false;
  for (int i = 0; i < 100; i++) take(5000, NULL);
  ck_assert_int_eq(fake_events, 3);
  const uint32_t *large = take(50000, NULL);
  ck_assert_int_eq(fake_events, 4);
  ck_assert_ptr_eq(take(60000, NULL), large);
  tt_cuda_blobs_free(&fake_context);
  ck_assert_int_eq(fake_events, 0);
}
END_TEST

/* A graph's pieces are its own until it is gone. */
START_TEST(pieces_of_graphs)
{
  static struct fake_cuda_graph graph;
  struct tt_cuda_graph *captured;
  fake_capture(&a, &graph);
  ck_assert_int_eq(tt_cuda_order_begin(&fake_context, handle(&a), &captured), ncclSuccess);
  const uint32_t *own = take(5000, captured);
  ck_assert_ptr_ne(take(5000, captured), own);
  fake_capture(&a, NULL);
  for (int i = 0; i < 10; i++) ck_assert_ptr_ne(take(5000, NULL), own);
  ck_assert_int_eq(fake_events, 3);
  fake_end(&graph);
  bool again = take(5000, NULL) == own;
  fake_running = true;
  for (int i = 0; i < 2; i++) again |= take(5000, NULL) == own;
  ck_assert(again);
  ck_assert_int_eq(fake_events, 3);
  tt_cuda_graphs_forget(&fake_context);
  tt_cuda_blobs_free(&fake_context);
}
END_TEST

START_TEST(pieces_fail)
{
  static const uint32_t words[2000];
  for (int call = 1; call <= 3; call++) { /* an event, memory, the copy */
    struct tt_cuda_blob *blob;
    const uint32_t *at;
    fake_fail_at = call;
    ck_assert_int_ne(tt_cuda_blob_take(&fake_context, words, sizeof(words), &blob, &at), ncclSuccess);
    ck_assert_int_eq(fake_fail_at, 0);
    ck_assert_int_eq(fake_events, call == 3);
  }
  take(5000, NULL);
  ck_assert_int_eq(fake_events, 1);
  tt_cuda_blobs_free(&fake_context);
}
END_TEST

/* ---- Streams ---- */

START_TEST(checked)
{
  struct fake_stream other = {.device = 1}, dead = {.device = -2}, partition = {.device = -1};
  void *good[] = {NULL, (void *)1, (void *)2, &a, &partition};
  for (size_t i = 0; i < TT_COUNT(good); i++)
    ck_assert_int_eq(tt_cuda_check_stream(&fake_context, good[i]), ncclSuccess);
  refused(tt_cuda_check_stream(&fake_context, &other), ncclInvalidArgument, "of GPU 1, the communicator of GPU 2");
  refused(tt_cuda_check_stream(&fake_context, &dead), ncclInvalidArgument,
          "was destroyed (CUDA_ERROR_CONTEXT_IS_DESTROYED)");
}
END_TEST

START_TEST(capture_states)
{
  static struct fake_cuda_graph graph;
  struct fake_stream dead = {.device = -2};
  struct tt_cuda_graph *none;
  uint64_t id = 9;
  ck_assert_int_eq(tt_cuda_capturing(&fake_context, &a, &id), ncclSuccess);
  ck_assert_uint_eq(id, 0);
  fake_capture(&a, &graph);
  ck_assert_int_eq(tt_cuda_capturing(&fake_context, &a, &id), ncclSuccess);
  ck_assert_uint_eq(id, graph.id);
  graph.nnodes = 64;
  refused(tt_cuda_capturing(&fake_context, &a, &id), ncclInvalidUsage, "invalid");
  refused(tt_cuda_order_begin(&fake_context, handle(&a), &none), ncclInvalidUsage, "invalid");
  refused(tt_cuda_capturing(&fake_context, NULL, &id), ncclInvalidUsage, "default stream");
  refused(tt_cuda_capturing(&fake_context, &dead, &id), ncclInvalidArgument, "was destroyed");
}
END_TEST

static void count(void *argument)
{
  ++*(int *)argument;
}

/* Once, whatever happens. */
START_TEST(told_of_the_end)
{
  static struct fake_cuda_graph graph;
  int calls = 0;
  ck_assert_int_ne(tt_cuda_at_graph_end(&fake_context, &a, count, &calls), ncclSuccess); /* it is not captured */
  ck_assert_int_eq(calls, 1);
  fake_capture(&a, &graph);
  for (int call = 1; call <= 3; call++) { /* asking, making, keeping */
    fake_fail_at = call;
    ck_assert_int_ne(tt_cuda_at_graph_end(&fake_context, &a, count, &calls), ncclSuccess);
    ck_assert_int_eq(calls, 1 + call);
  }
  ck_assert_int_eq(tt_cuda_at_graph_end(&fake_context, &a, count, &calls), ncclSuccess);
  ck_assert_int_eq(calls, 4);
  fake_end(&graph);
  ck_assert_int_eq(calls, 5);
}
END_TEST

START_TEST(followed)
{
  ck_assert_int_eq(tt_cuda_follow(&fake_context, &a, &b), ncclSuccess);
  ck_assert_str_eq(fake_log, "RbWa");
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("order of launches");
  TCase *tests = tcase_create("order");
  tcase_add_test(tests, asked);
  tcase_add_test(tests, eager);
  tcase_add_test(tests, captured);
  tcase_add_loop_test(tests, early, 0, 2);
  tcase_add_test(tests, copies_beside);
  tcase_add_test(tests, two_graphs);
  tcase_add_loop_test(tests, two_captured, 0, 2);
  tcase_add_test(tests, mixed);
  tcase_add_test(tests, drained);
  tcase_add_test(tests, unmixed);
  tcase_add_test(tests, order_fails);
  tcase_add_test(tests, group_fails);
  tcase_add_test(tests, context_first);
  tcase_add_test(tests, pieces);
  tcase_add_test(tests, pieces_of_graphs);
  tcase_add_test(tests, pieces_fail);
  tcase_add_test(tests, checked);
  tcase_add_test(tests, capture_states);
  tcase_add_test(tests, told_of_the_end);
  tcase_add_test(tests, followed);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
