/* Graphs that are launched: their orders, their events, and who is told of their end. */
#include "test_gpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "kernels/cuda/edges.h"

static cudaGraph_t end_capture(cudaStream_t stream)
{
  cudaGraph_t graph;
  OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

static cudaGraphExec_t make(cudaGraph_t graph)
{
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  return exec;
}

/* 1 before 2 and 3, which are before 4. */
static cudaGraphExec_t make_diamond(cudaStream_t s, cudaStream_t t)
{
  cudaEvent_t event = new_event();
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(note(s, 1));
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  OK(note(s, 2));
  OK(note(t, 3));
  OK(cudaEventRecord(event, t));
  OK(cudaStreamWaitEvent(s, event, 0));
  OK(note(s, 4));
  OK(cudaEventDestroy(event));
  return make(end_capture(s));
}

START_TEST(orders)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaGraphExec_t exec = make_diamond(s, t);
  bool second = false, third = false;
  for (int i = 0; i < 100; i++) {
    nnotes = 0;
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    ck_assert_int_eq(nnotes, 4);
    ck_assert_int_eq(notes[0], 1);
    ck_assert_int_eq(notes[3], 4);
    second |= notes[1] == 2;
    third |= notes[1] == 3;
  }
  ck_assert(second && third);
  OK(cudaGraphExecDestroy(exec));
  FAILS(cudaGraphLaunch(exec, s), cudaErrorInvalidValue);
}
END_TEST

/* Also on different streams; and one may be destroyed while it runs. */
START_TEST(launches_of_one_follow_each_other)
{
  enum { TIMES = 20 };
  cudaStream_t s = new_stream(), t = new_stream();
  cudaGraphExec_t exec = make_diamond(s, t);
  for (int i = 0; i < TIMES; i++) OK(cudaGraphLaunch(exec, i % 2 ? s : t));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaStreamSynchronize(s));
  OK(cudaStreamSynchronize(t));
  ck_assert_int_eq(nnotes, 4 * TIMES);
  for (int i = 0; i < TIMES; i++) {
    ck_assert_int_eq(notes[4 * i], 1);
    ck_assert_int_eq(notes[4 * i + 3], 4);
  }
}
END_TEST

/* As the CUDA backend has it: a graph waits for an event and records it, and the node that records is moved. */
START_TEST(events_of_a_graph)
{
  cudaStream_t s = new_stream(), t = new_stream(), held = new_stream();
  cudaEvent_t event = new_event();
  enum cudaStreamCaptureStatus status;
  const cudaGraphNode_t *nodes;
  cudaGraph_t graph;
  cudaGraphNode_t record, first;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(cudaStreamWaitEvent(s, event, cudaEventWaitExternal));
  OK(note(s, 1));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, &graph, &nodes, TT_CUDA_EDGES(NULL, NULL)));
  first = nodes[0];
  OK(cudaGraphAddEventRecordNode(&record, graph, &first, 1, event));
  OK(note(s, 2));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, NULL, &nodes, TT_CUDA_EDGES(NULL, NULL)));
  OK(cudaGraphRemoveDependencies(graph, &first, &record, TT_CUDA_EDGES(NULL, 1)));
  FAILS(cudaGraphRemoveDependencies(graph, &first, &record, TT_CUDA_EDGES(NULL, 1)), cudaErrorInvalidValue);
  OK(cudaGraphAddDependencies(graph, nodes, &record, TT_CUDA_EDGES(NULL, 1)));
  cudaGraphExec_t exec = make(end_capture(s));

  OK(cudaGraphLaunch(exec, s)); /* nothing was recorded: it waits for nothing */
  OK(cudaStreamWaitEvent(t, event, 0));
  OK(note(t, 3));
  OK(cudaStreamSynchronize(t));
  ck_assert_int_eq(place_of(3), 2);
  nnotes = 0;
  hold(held);
  OK(cudaEventRecord(event, held));
  OK(cudaGraphLaunch(exec, s));
  OK(cudaStreamWaitEvent(t, event, 0)); /* which is the launch's now */
  OK(note(t, 3));
  usleep(20000);
  ck_assert_int_eq(nnotes, 0);
  let_go();
  OK(cudaEventSynchronize(event));
  OK(cudaStreamSynchronize(t));
  ck_assert_int_eq(place_of(3), 2);
  OK(cudaEventDestroy(event));
  OK(cudaGraphLaunch(exec, s));
  OK(cudaStreamSynchronize(s));
  ck_assert_int_eq(nnotes, 5);
}
END_TEST

/* What may begin early comes behind each kernel, and each copy, that is before it; and is before what follows. */
START_TEST(early_kernels)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  char *memory;
  OK(cudaMalloc((void **)&memory, 1));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(note_early(s, 1));
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  OK(note_early(s, 2));
  OK(note(t, 3));
  OK(cudaEventRecord(event, t));
  OK(cudaStreamWaitEvent(s, event, 0));
  OK(note_early(s, 4));
  hold(s);
  OK(note_early(s, 5));
  OK(cudaMemsetAsync(memory, 7, 1, s));
  cudaGraphExec_t exec = make(end_capture(s));
  for (int i = 0; i < 20; i++) {
    nnotes = 0;
    OK(cudaGraphLaunch(exec, s));
    OK(note_early(s, 6)); /* outside of a graph: behind all of it */
    usleep(1000);
    FAILS(cudaStreamQuery(s), cudaErrorNotReady);
    let_go();
    OK(cudaStreamSynchronize(s));
    ck_assert_int_eq(nnotes, 6);
    ck_assert(place_of(1) == 0 && place_of(4) == 3 && place_of(5) == 4 && place_of(6) == 5);
  }
}
END_TEST

START_TEST(a_circle)
{
  cudaStream_t s = new_stream();
  cudaGraphNode_t nodes[2];
  cudaGraphExec_t exec;
  size_t count = 2;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(note(s, 1));
  OK(note(s, 2));
  cudaGraph_t graph = end_capture(s);
  OK(cudaGraphGetNodes(graph, nodes, &count));
  ck_assert_uint_eq(count, 2);
  OK(cudaGraphAddDependencies(graph, &nodes[1], &nodes[0], TT_CUDA_EDGES(NULL, 1)));
  FAILS(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue);
}
END_TEST

START_TEST(copies_and_functions)
{
  cudaStream_t s = new_stream();
  char *memory, *host;
  OK(cudaMalloc((void **)&memory, 3));
  OK(cudaHostAlloc((void **)&host, 3, 0));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(cudaMemsetAsync(memory, 7, 3, s));
  hold(s);
  OK(cudaMemcpyAsync(host, memory, 3, cudaMemcpyDefault, s));
  cudaGraphExec_t exec = make(end_capture(s));
  for (int i = 0; i < 3; i++) {
    host[2] = 0;
    OK(cudaGraphLaunch(exec, s));
    FAILS(cudaStreamQuery(s), cudaErrorNotReady);
    let_go();
    OK(cudaStreamSynchronize(s));
    ck_assert_int_eq(host[2], 7);
  }
}
END_TEST

static atomic_int ended;

static void CUDART_CB note_end(void *argument)
{
  ended += *(int *)argument;
}

static bool has_ended(void *wanted)
{
  return ended == *(int *)wanted;
}

START_TEST(user_objects)
{
  static int one = 1, ten = 10, both = 11;
  cudaStream_t s = new_stream(), held = new_stream();
  cudaUserObject_t moved, shared;
  cudaGraphExec_t first, second;
  cudaGraph_t graph;
  enum cudaStreamCaptureStatus status;
  cudaEvent_t event = new_event();
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(note(s, 1));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, &graph, NULL, TT_CUDA_EDGES(NULL, NULL)));
  OK(cudaUserObjectCreate(&moved, &one, note_end, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, moved, 1, cudaGraphUserObjectMove));
  OK(cudaUserObjectCreate(&shared, &ten, note_end, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, shared, 1, 0));
  graph = end_capture(s);
  OK(cudaGraphInstantiate(&first, graph, 0));
  OK(cudaGraphInstantiate(&second, graph, 0));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphExecDestroy(first));
  /* The last one is destroyed while it has to run. */
  nnotes = 0;
  hold(held);
  OK(cudaEventRecord(event, held));
  OK(cudaStreamWaitEvent(s, event, 0));
  OK(cudaGraphLaunch(second, s));
  OK(cudaGraphExecDestroy(second));
  usleep(10000);
  ck_assert_int_eq(ended, 0);
  let_go();
  await(has_ended, &one);
  ck_assert_int_eq(nnotes, 1);
  OK(cudaUserObjectRelease(shared, 1));
  await(has_ended, &both);
  FAILS(cudaUserObjectRelease(shared, 1), cudaErrorInvalidValue);
}
END_TEST

/* Of a capture that comes to nothing. */
START_TEST(user_objects_of_no_graph)
{
  static int one = 1;
  cudaStream_t s = new_stream();
  cudaUserObject_t object;
  cudaGraph_t graph;
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, &graph, NULL, TT_CUDA_EDGES(NULL, NULL)));
  OK(cudaUserObjectCreate(&object, &one, note_end, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  FAILS(cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  await(has_ended, &one);
}
END_TEST

void add_graphs(Suite *suite);
void add_graphs(Suite *suite)
{
  TCase *tc = tcase_create("graphs");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, orders);
  tcase_add_test(tc, launches_of_one_follow_each_other);
  tcase_add_test(tc, events_of_a_graph);
  tcase_add_test(tc, early_kernels);
  tcase_add_test(tc, a_circle);
  tcase_add_test(tc, copies_and_functions);
  tcase_add_test(tc, user_objects);
  tcase_add_test(tc, user_objects_of_no_graph);
  suite_add_tcase(suite, tc);
}
