/* Captures: what they forbid, which streams are in them, how they end. */
#include "test_gpu.h"

#include <pthread.h>
#include "kernels/cuda/edges.h"

#define RELAXED cudaStreamCaptureModeRelaxed
#define LOCAL cudaStreamCaptureModeThreadLocal

static enum cudaStreamCaptureStatus status_of(cudaStream_t stream)
{
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(stream, &status));
  return status;
}

static void begin(cudaStream_t stream)
{
  OK(cudaStreamBeginCapture(stream, LOCAL));
}

START_TEST(two_streams)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  cudaGraph_t graph;
  size_t count = 0;
  begin(s);
  OK(note(s, 1));
  OK(cudaEventRecord(event, s));
  FAILS(cudaEventQuery(event), cudaErrorCapturedEvent);
  OK(cudaStreamWaitEvent(t, event, 0));
  ck_assert_int_eq(status_of(t), cudaStreamCaptureStatusActive);
  OK(note(t, 2));
  OK(note(s, 3));
  OK(cudaEventRecord(event, t));
  OK(cudaStreamWaitEvent(s, event, 0));
  OK(cudaStreamEndCapture(s, &graph));
  ck_assert_int_eq(status_of(t), cudaStreamCaptureStatusNone);
  OK(cudaGraphGetNodes(graph, NULL, &count));
  ck_assert_uint_eq(count, 3);
  ck_assert_int_eq(nnotes, 0);
  FAILS(cudaStreamWaitEvent(s, event, 0), cudaErrorCapturedEvent);
  OK(cudaGraphDestroy(graph));
  FAILS(cudaGraphDestroy(graph), cudaErrorInvalidValue);
}
END_TEST

START_TEST(one_that_is_not_joined)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  cudaGraph_t graph;
  for (int work = 0; work < 2; work++) {
    begin(s);
    OK(note(s, 1));
    OK(cudaEventRecord(event, s));
    OK(cudaStreamWaitEvent(t, event, 0));
    if (work) OK(note(t, 2));
    if (work)
      FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
    else
      OK(cudaStreamEndCapture(s, &graph)); /* nothing came of it */
    ck_assert_int_eq(graph == NULL, work);
    ck_assert_int_eq(status_of(t), cudaStreamCaptureStatusNone);
  }
}
END_TEST

START_TEST(what_makes_one_invalid)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  cudaGraph_t graph;
  void *memory;
  for (int i = 0; i < 6; i++) {
    OK(cudaEventRecord(event, t));
    begin(s);
    if (i == 0) FAILS(cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported);
    if (i == 1) FAILS(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    if (i == 2) FAILS(cudaMalloc(&memory, 1), cudaErrorStreamCaptureUnsupported);
    if (i == 3) FAILS(cudaEventQuery(event), cudaErrorStreamCaptureUnsupported);
    if (i == 4) FAILS(cudaStreamWaitEvent(s, event, 0), cudaErrorStreamCaptureIsolation);
    if (i == 5) FAILS(cudaStreamQuery(t), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(status_of(s), cudaStreamCaptureStatusInvalidated);
    FAILS(note(s, 1), cudaErrorStreamCaptureInvalidated);
    FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    OK(note(s, 1));
    OK(cudaStreamSynchronize(s));
  }
}
END_TEST

START_TEST(modes)
{
  enum cudaStreamCaptureMode mode = RELAXED;
  cudaStream_t s = new_stream();
  cudaGraph_t graph;
  void *memory;
  begin(s);
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  ck_assert_int_eq(mode, cudaStreamCaptureModeGlobal);
  OK(cudaMalloc(&memory, 1)); /* the thread is relaxed */
  OK(cudaFree(memory));
  FAILS(cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported); /* that never goes */
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, RELAXED));
  OK(cudaMalloc(&memory, 1)); /* the capture is */
  OK(cudaStreamEndCapture(s, &graph));
}
END_TEST

static cudaError_t thread_error;

static void *allocate(void *unused)
{
  void *memory;
  thread_error = cudaMalloc(&memory, 1);
  return unused;
}

static void *end(void *stream)
{
  cudaGraph_t graph;
  thread_error = cudaStreamEndCapture(stream, &graph);
  return NULL;
}

static void on_a_thread(void *(*run)(void *), void *argument)
{
  pthread_t thread;
  pthread_create(&thread, NULL, run, argument);
  pthread_join(thread, NULL);
}

START_TEST(other_threads)
{
  cudaStream_t s = new_stream();
  cudaGraph_t graph;
  begin(s);
  on_a_thread(allocate, NULL);
  OK(thread_error);
  on_a_thread(end, s);
  FAILS(thread_error, cudaErrorStreamCaptureWrongThread);
  OK(cudaStreamEndCapture(s, &graph));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  on_a_thread(allocate, NULL);
  FAILS(thread_error, cudaErrorStreamCaptureUnsupported);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, RELAXED));
  on_a_thread(end, s);
  OK(thread_error);
}
END_TEST

START_TEST(two_captures)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  cudaGraph_t graph;
  begin(s);
  FAILS(cudaStreamBeginCapture(s, LOCAL), cudaErrorIllegalState);
  begin(t);
  OK(cudaEventRecord(event, s));
  FAILS(cudaStreamWaitEvent(t, event, 0), cudaErrorStreamCaptureMerge);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  FAILS(cudaStreamEndCapture(t, &graph), cudaErrorStreamCaptureInvalidated);
  FAILS(cudaStreamEndCapture(t, &graph), cudaErrorIllegalState);
  begin(s);
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  FAILS(cudaStreamEndCapture(t, &graph), cudaErrorStreamCaptureUnmatched);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
}
END_TEST

START_TEST(the_legacy_stream)
{
  enum cudaStreamCaptureStatus status;
  cudaStream_t blocking, s = new_stream();
  cudaGraph_t graph;
  OK(cudaStreamCreate(&blocking));
  FAILS(cudaStreamBeginCapture(NULL, LOCAL), cudaErrorStreamCaptureUnsupported);
  begin(s);
  OK(note(NULL, 1)); /* it does not wait for that one */
  OK(cudaStreamEndCapture(s, &graph));
  begin(blocking);
  FAILS(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
  ck_assert_int_eq(status_of(blocking), cudaStreamCaptureStatusActive);
  FAILS(note(NULL, 1), cudaErrorStreamCaptureImplicit);
  FAILS(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
}
END_TEST

START_TEST(a_stream_that_is_destroyed)
{
  cudaStream_t s = new_stream(), t = new_stream();
  cudaEvent_t event = new_event();
  void *memory;
  begin(s);
  OK(note(s, 1));
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  OK(cudaStreamDestroy(s));
  ck_assert_int_eq(status_of(t), cudaStreamCaptureStatusNone);
  OK(cudaMalloc(&memory, 1));
}
END_TEST

START_TEST(what_is_last)
{
  enum cudaStreamCaptureStatus status;
  cudaStream_t s = new_stream();
  cudaGraph_t graph, same;
  const cudaGraphNode_t *nodes;
  unsigned long long id, other;
  size_t count;
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, NULL, NULL, TT_CUDA_EDGES(NULL, NULL)));
  ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
  begin(s);
  OK(cudaStreamGetCaptureInfo(s, &status, &id, &graph, &nodes, TT_CUDA_EDGES(NULL, &count)));
  ck_assert_uint_eq(count, 0);
  OK(note(s, 1));
  OK(cudaStreamGetCaptureInfo(s, &status, &other, &same, &nodes, TT_CUDA_EDGES(NULL, &count)));
  ck_assert_uint_eq(id, other);
  ck_assert_ptr_eq(graph, same);
  ck_assert_uint_eq(count, 1);
  cudaGraphNode_t first = nodes[0];
  OK(note(s, 2));
  OK(cudaStreamUpdateCaptureDependencies(s, &first, TT_CUDA_EDGES(NULL, 1), cudaStreamAddCaptureDependencies));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, NULL, &nodes, TT_CUDA_EDGES(NULL, &count)));
  ck_assert_uint_eq(count, 2);
  OK(cudaStreamUpdateCaptureDependencies(s, &first, TT_CUDA_EDGES(NULL, 1), cudaStreamSetCaptureDependencies));
  OK(cudaStreamGetCaptureInfo(s, &status, NULL, NULL, &nodes, TT_CUDA_EDGES(NULL, &count)));
  ck_assert_uint_eq(count, 1);
  ck_assert_ptr_eq(nodes[0], first);
  cudaGraphNode_t none = (cudaGraphNode_t)&status;
  FAILS(cudaStreamUpdateCaptureDependencies(s, &none, TT_CUDA_EDGES(NULL, 1), cudaStreamAddCaptureDependencies),
        cudaErrorInvalidValue);
  OK(cudaStreamEndCapture(s, &graph));
  begin(s);
  OK(cudaStreamGetCaptureInfo(s, &status, &other, NULL, NULL, TT_CUDA_EDGES(NULL, NULL)));
  ck_assert_uint_ne(id, other);
}
END_TEST

void add_captures(Suite *suite);
void add_captures(Suite *suite)
{
  TCase *tc = tcase_create("captures");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, two_streams);
  tcase_add_test(tc, one_that_is_not_joined);
  tcase_add_test(tc, what_makes_one_invalid);
  tcase_add_test(tc, modes);
  tcase_add_test(tc, other_threads);
  tcase_add_test(tc, two_captures);
  tcase_add_test(tc, the_legacy_stream);
  tcase_add_test(tc, a_stream_that_is_destroyed);
  tcase_add_test(tc, what_is_last);
  suite_add_tcase(suite, tc);
}
