/* Streams, events and copies. */
#include "test_gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

START_TEST(a_stream_keeps_its_order)
{
  enum { BYTES = 1 << 20, TIMES = 20 };
  char *a, *b, *host = malloc(BYTES);
  cudaStream_t stream = new_stream();
  OK(cudaMalloc((void **)&a, BYTES));
  OK(cudaMalloc((void **)&b, BYTES));
  for (int i = 1; i <= TIMES; i++) {
    OK(note(stream, i));
    OK(cudaMemsetAsync(a, i, BYTES, stream));
    OK(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(a, b, BYTES / 2, cudaMemcpyDefault, stream));
  }
  OK(cudaMemcpyAsync(host, b, BYTES, cudaMemcpyDeviceToHost, stream)); /* is there when the call returns */
  for (int i = 0; i < BYTES; i++) ck_assert_int_eq(host[i], TIMES);
  ck_assert_int_eq(nnotes, TIMES);
  for (int i = 0; i < TIMES; i++) ck_assert_int_eq(notes[i], i + 1);
  OK(cudaFree(a));
  OK(cudaFree(b));
  OK(cudaStreamDestroy(stream));
  free(host);
}
END_TEST

START_TEST(streams_have_no_order_but_by_events)
{
  cudaStream_t s = new_stream(), t = new_stream(), u = new_stream();
  cudaEvent_t event = new_event();
  hold(s);
  OK(note(s, 1));
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  OK(note(t, 2));
  OK(note(u, 3));
  OK(cudaStreamSynchronize(u));
  ck_assert_int_eq(nnotes, 1);
  ck_assert_int_eq(notes[0], 3);
  FAILS(cudaStreamQuery(t), cudaErrorNotReady);
  FAILS(cudaEventQuery(event), cudaErrorNotReady);
  let_go();
  OK(cudaEventSynchronize(event));
  OK(cudaEventQuery(event));
  OK(cudaStreamSynchronize(t));
  ck_assert_int_eq(notes[1], 1);
  ck_assert_int_eq(notes[2], 2);
}
END_TEST

/* Who waits for an event waits for what it meant then. */
START_TEST(an_event_may_be_recorded_again)
{
  cudaStream_t s = new_stream(), t = new_stream(), held = new_stream();
  cudaEvent_t event = new_event();
  OK(cudaStreamWaitEvent(t, event, 0)); /* it was never recorded */
  OK(cudaEventQuery(event));
  OK(note(s, 1));
  OK(cudaEventRecord(event, s));
  OK(cudaStreamWaitEvent(t, event, 0));
  hold(held);
  OK(cudaEventRecord(event, held));
  OK(note(t, 2));
  OK(cudaStreamSynchronize(t));
  FAILS(cudaEventQuery(event), cudaErrorNotReady);
  OK(cudaStreamWaitEvent(s, event, 0));
  OK(cudaEventDestroy(event)); /* which changes nothing for s */
  OK(note(s, 3));
  usleep(20000);
  ck_assert_int_eq(place_of(3), -1);
  let_go();
  OK(cudaStreamSynchronize(s));
  ck_assert_int_eq(place_of(3), 2);
}
END_TEST

/* In which of two streams something happens first is not always the same. */
START_TEST(orders_vary)
{
  cudaStream_t s = new_stream(), t = new_stream(), held = new_stream();
  cudaEvent_t event = new_event();
  bool first = false, second = false;
  for (int i = 0; i < 100; i++) {
    nnotes = 0;
    hold(held);
    OK(cudaEventRecord(event, held));
    OK(cudaStreamWaitEvent(s, event, 0));
    OK(cudaStreamWaitEvent(t, event, 0));
    OK(note(s, 1));
    OK(note(t, 2));
    let_go();
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamSynchronize(t));
    first |= notes[0] == 1;
    second |= notes[0] == 2;
  }
  ck_assert(first && second);
}
END_TEST

START_TEST(the_legacy_stream_waits_for_blocking_ones)
{
  cudaStream_t blocking, other = new_stream();
  OK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
  hold(blocking);
  OK(note(blocking, 1));
  OK(note(NULL, 2));
  OK(note(cudaStreamPerThread, 3));
  OK(note(other, 4));
  OK(cudaStreamSynchronize(other));
  ck_assert_int_eq(nnotes, 1);
  FAILS(cudaStreamQuery(NULL), cudaErrorNotReady);
  FAILS(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
  let_go();
  OK(cudaStreamSynchronize(cudaStreamPerThread));
  const int wanted[] = {4, 1, 2, 3};
  ck_assert_mem_eq(notes, wanted, sizeof(wanted));
  hold(other); /* nobody waits for that */
  OK(note(cudaStreamLegacy, 5));
  OK(cudaStreamSynchronize(NULL));
  ck_assert_int_eq(place_of(5), 4);
  let_go();
}
END_TEST

static void *run_thread(void *unused)
{
  ck_assert_int_eq(note(cudaStreamPerThread, 1), cudaSuccess);
  return unused; /* what is on the thread's stream is still done */
}

START_TEST(threads_have_streams_of_their_own)
{
  pthread_t thread;
  cudaStream_t blocking;
  OK(cudaStreamCreate(&blocking));
  hold(cudaStreamPerThread);
  pthread_create(&thread, NULL, run_thread, NULL);
  pthread_join(thread, NULL);
  OK(note(blocking, 2));
  OK(cudaStreamSynchronize(blocking));
  let_go();
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(nnotes, 2);
}
END_TEST

START_TEST(a_stream_may_be_destroyed_early)
{
  cudaStream_t stream = new_stream();
  hold(stream);
  OK(note(stream, 1));
  OK(cudaStreamDestroy(stream));
  FAILS(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  FAILS(note(stream, 2), cudaErrorInvalidResourceHandle);
  FAILS(cudaStreamDestroy(NULL), cudaErrorInvalidResourceHandle);
  let_go();
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(place_of(1), 0);
  ck_assert_int_eq(nnotes, 1);
}
END_TEST

static void *let_go_later(void *unused)
{
  usleep(50000);
  ck_assert_int_eq(nnotes, 0);
  let_go();
  return unused;
}

START_TEST(to_free_waits)
{
  pthread_t thread;
  void *memory, *host;
  cudaStream_t stream = new_stream();
  OK(cudaMalloc(&memory, 1));
  OK(cudaHostAlloc(&host, 1, 0));
  for (int i = 0; i < 2; i++) {
    nnotes = 0;
    hold(stream);
    OK(note(stream, 1));
    pthread_create(&thread, NULL, let_go_later, NULL);
    if (i == 0)
      OK(cudaFree(memory));
    else
      OK(cudaFreeHost(host));
    ck_assert_int_eq(nnotes, 1);
    pthread_join(thread, NULL);
  }
}
END_TEST

/* Pageable memory may be used again when the call returns; page-locked memory may not. */
START_TEST(pageable_memory_is_read_at_once)
{
  char *device, *pinned, pageable = 1, seen[2];
  cudaStream_t stream = new_stream();
  OK(cudaMalloc((void **)&device, 2));
  OK(cudaHostAlloc((void **)&pinned, 1, 0));
  *pinned = 1;
  hold(stream);
  OK(cudaMemcpyAsync(device, &pageable, 1, cudaMemcpyHostToDevice, stream));
  OK(cudaMemcpyAsync(device + 1, pinned, 1, cudaMemcpyHostToDevice, stream));
  pageable = *pinned = 2;
  let_go();
  OK(cudaMemcpyAsync(seen, device, 2, cudaMemcpyDeviceToHost, stream));
  ck_assert_int_eq(seen[0], 1);
  ck_assert_int_eq(seen[1], 2);
}
END_TEST

static void *fill_stream(void *stream)
{
  for (int i = 0; i < 2000; i++) ck_assert_int_eq(note(stream, i), cudaSuccess);
  return NULL;
}

START_TEST(a_stream_can_be_full)
{
  pthread_t thread;
  cudaStream_t stream = new_stream();
  hold(stream);
  pthread_create(&thread, NULL, fill_stream, stream);
  usleep(50000);
  ck_assert_int_eq(pthread_tryjoin_np(thread, NULL), EBUSY);
  OK(note(new_stream(), -1)); /* others go on */
  let_go();
  pthread_join(thread, NULL);
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(nnotes, 2001);
}
END_TEST

START_TEST(launches_that_cannot_be)
{
  int number = 1;
  void *arguments[] = {&number};
  const dim3 one = {1, 1, 1}, warp = {32, 1, 1};
  cudaStream_t stream = new_stream();
  FAILS(cudaLaunchKernel(&number, one, warp, arguments, 0, stream), cudaErrorInvalidDeviceFunction);
  FAILS(cudaLaunchKernel(&note_kernel, (dim3){0, 1, 1}, warp, arguments, 0, stream), cudaErrorInvalidConfiguration);
  FAILS(cudaLaunchKernel(&note_kernel, one, (dim3){2048, 1, 1}, arguments, 0, stream), cudaErrorInvalidConfiguration);
  FAILS(cudaLaunchKernel(&note_kernel, one, (dim3){96, 1, 1}, arguments, 0, stream), cudaErrorLaunchOutOfResources);
  FAILS(cudaLaunchKernel(&note_kernel, one, (dim3){33, 1, 1}, arguments, 0, stream), cudaErrorNotSupported);
  OK(cudaSetDevice(1));
  FAILS(note(stream, 1), cudaErrorInvalidResourceHandle);
  FAILS(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  OK(cudaGetLastError());
}
END_TEST

START_TEST(clusters)
{
  int number = 1, clusters = 0;
  void *arguments[] = {&number};
  cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension, .val.clusterDim = {2, 1, 1}};
  cudaLaunchConfig_t config = {.gridDim = {4, 1, 1}, .blockDim = {32, 1, 1}, .attrs = &attribute, .numAttrs = 1};
  OK(cudaLaunchKernelExC(&config, &note_kernel, arguments));
  OK(cudaOccupancyMaxActiveClusters(&clusters, &note_kernel, &config));
  ck_assert_int_eq(clusters, 60);
  config.gridDim.x = 3;
  FAILS(cudaLaunchKernelExC(&config, &note_kernel, arguments), cudaErrorInvalidClusterSize);
  OK(cudaDeviceSynchronize());
  ck_assert_int_eq(nnotes, 4);
}
END_TEST

static cudaError_t callback_error;

static void CUDART_CB call_cuda(void *unused)
{
  (void)unused;
  callback_error = cudaDeviceSynchronize();
}

START_TEST(functions_on_streams_may_not_call_cuda)
{
  OK(cudaLaunchHostFunc(NULL, call_cuda, NULL));
  OK(cudaStreamSynchronize(NULL));
  FAILS(callback_error, cudaErrorNotPermitted);
}
END_TEST

void add_streams(Suite *suite);
void add_streams(Suite *suite)
{
  TCase *tc = tcase_create("streams");
  tcase_set_timeout(tc, 20);
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, a_stream_keeps_its_order);
  tcase_add_test(tc, streams_have_no_order_but_by_events);
  tcase_add_test(tc, an_event_may_be_recorded_again);
  tcase_add_test(tc, orders_vary);
  tcase_add_test(tc, the_legacy_stream_waits_for_blocking_ones);
  tcase_add_test(tc, threads_have_streams_of_their_own);
  tcase_add_test(tc, a_stream_may_be_destroyed_early);
  tcase_add_test(tc, to_free_waits);
  tcase_add_test(tc, pageable_memory_is_read_at_once);
  tcase_add_test(tc, a_stream_can_be_full);
  tcase_add_test(tc, launches_that_cannot_be);
  tcase_add_test(tc, clusters);
  tcase_add_test(tc, functions_on_streams_may_not_call_cuda);
  suite_add_tcase(suite, tc);
}
