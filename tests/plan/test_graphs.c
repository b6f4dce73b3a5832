/* The life of graphs that hold operations: they may outlive their communicator, and then do nothing; what they need
 * stays until they are gone, and no longer. Their replays and eager calls are ordered, whatever the streams. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "collectives.h"
#include "tests/common/held.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, COUNT = 20000, LONG_MS = 60000 };

static char warning[1024];

static void keep_warning(enum tt_log_level level, unsigned long subsystems, const char *file, int line,
                         const char *func, const char *text)
{
  (void)subsystems, (void)file, (void)line, (void)func;
  if (level == TT_LOG_WARN) snprintf(warning, sizeof warning, "%s", text);
}

struct ring {
  ncclComm_t comms[N];
  void *streams[2][N];
  int32_t *a[N], *b[N], *c[N];
};

static void open_ring(struct ring *ring)
{
  ok(ncclCommInitAll(ring->comms, N, NULL));
  for (int r = 0; r < N; r++) {
    for (int s = 0; s < 2; s++) ring->streams[s][r] = fake_stream_create(r);
    ring->a[r] = calloc(COUNT, sizeof(int32_t));
    ring->b[r] = calloc(COUNT, sizeof(int32_t));
    ring->c[r] = calloc(COUNT, sizeof(int32_t));
  }
}

static void close_ring(struct ring *ring)
{
  for (int r = 0; r < N; r++) {
    for (int s = 0; s < 2; s++) fake_stream_destroy(ring->streams[s][r]);
    free(ring->a[r]);
    free(ring->b[r]);
    free(ring->c[r]);
  }
}

static void reduce(struct ring *ring, int32_t *const *from, int32_t *const *to, int stream)
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    ok(ncclAllReduce(from[r], to[r], COUNT, ncclInt32, ncclSum, ring->comms[r], ring->streams[stream][r]));
  ok(ncclGroupEnd());
}

static void capture(struct ring *ring, struct fake_graph **graphs, int operations)
{
  for (int r = 0; r < N; r++) fake_capture_begin(ring->streams[0][r]);
  for (int i = 0; i < operations; i++) reduce(ring, ring->a, ring->b, 0);
  for (int r = 0; r < N; r++) graphs[r] = fake_capture_end(ring->streams[0][r]);
}

static void replay(struct ring *ring, struct fake_graph **graphs, int stream)
{
  for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], ring->streams[stream][r]);
}

static void wait_ring(const struct ring *ring)
{
  for (int s = 0; s < 2; s++)
    for (int r = 0; r < N; r++) ck_assert_msg(fake_stream_wait(ring->streams[s][r], LONG_MS), "rank %d is not done", r);
}

/* b becomes the sum of a by a graph, on either stream, and c the sum of b by calls on either. */
START_TEST(order)
{
  struct ring ring;
  struct fake_graph *graphs[N];
  open_ring(&ring);
  capture(&ring, graphs, 1);
  for (int time = 0; time < 8; time++) {
    for (int r = 0; r < N; r++)
      for (int i = 0; i < COUNT; i++) ring.a[r][i] = time + r + i % 3;
    replay(&ring, graphs, time & 1);
    if (time & 4) replay(&ring, graphs, !(time & 1));
    reduce(&ring, ring.b, ring.c, time >> 1 & 1);
    wait_ring(&ring);
    for (int r = 0; r < N; r++)
      for (int i = 0; i < COUNT; i++) ck_assert_int_eq(ring.c[r][i], 9 * (time + i % 3) + 9);
  }
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(ring.comms[r]));
  close_ring(&ring);
}
END_TEST

static void nothing_is_left(void)
{
  struct fake_counts counts;
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, 0);
  ck_assert_int_eq(counts.memories, 0);
  ck_assert_int_eq(counts.twins, 0);
  ck_assert_int_eq(counts.launches, 0);
}

static void *do_nothing(void *argument)
{
  return argument;
}

/* What is held before anything is made. With the first thread sanitizers start some of their own. */
static struct held held_at_first(void)
{
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, do_nothing, NULL), 0);
  pthread_join(thread, NULL);
  usleep(20000); /* until it is not listed any more */
  return held_now();
}

/* What communicators hold goes with the last of their graphs, and without another call: of the device, and threads,
 * descriptors and mappings of the process. */
static void await_nothing(struct held before)
{
  struct fake_counts counts = {.contexts = 1};
  struct held now;
  for (uint64_t end = now_ms() + LONG_MS; counts.contexts > 0 && now_ms() < end; usleep(1000)) fake_count(&counts);
  nothing_is_left();
  ck_assert_msg(held_settles(before, LONG_MS, &now), "threads %d -> %d, descriptors %d -> %d, mappings %d -> %d",
                before.threads, now.threads, before.descriptors, now.descriptors, before.mappings, now.mappings);
}

/* Graphs that are gone before their communicator: nothing of it stays. _i: a replay still runs when a graph goes. */
START_TEST(graph_first)
{
  struct ring ring;
  struct fake_graph *graphs[N];
  open_ring(&ring);
  tt_log_redirect(keep_warning);
  for (int again = 0; again < 3; again++) {
    capture(&ring, graphs, 2);
    replay(&ring, graphs, 0);
    if (!_i) wait_ring(&ring);
    for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  }
  wait_ring(&ring);
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(ring.comms[r]));
  ck_assert_str_eq(warning, "");
  close_ring(&ring);
  nothing_is_left();
}
END_TEST

struct late {
  struct fake_graph *graphs[N];
  _Atomic bool gone;
};

static void *destroy_late(void *argument)
{
  struct late *late = argument;
  usleep(5000);
  for (int r = 0; r < N; r++) fake_graph_destroy(late->graphs[r]);
  atomic_store(&late->gone, true);
  return NULL;
}

/* A driver may tell late that a graph is gone: its communicator is not one that it outlives. */
START_TEST(end_told_late)
{
  struct ring ring;
  struct late late = {.gone = false};
  pthread_t thread;
  struct held before = held_at_first();
  open_ring(&ring);
  tt_log_redirect(keep_warning);
  capture(&ring, late.graphs, 1);
  ck_assert_int_eq(pthread_create(&thread, NULL, destroy_late, &late), 0);
  ok(ncclCommDestroy(ring.comms[0]));
  if (atomic_load(&late.gone)) ck_assert_str_eq(warning, ""); /* else this machine is too busy for it */
  pthread_join(thread, NULL);
  for (int r = 1; r < N; r++) ok(ncclCommDestroy(ring.comms[r]));
  close_ring(&ring);
  await_nothing(before);
}
END_TEST

/* _i: destroyed, or aborted. */
START_TEST(communicator_first)
{
  struct ring ring;
  struct fake_graph *graphs[2][N];
  struct fake_counts counts;
  struct held before = held_at_first();
  open_ring(&ring);
  capture(&ring, graphs[0], 3);
  capture(&ring, graphs[1], 1);
  replay(&ring, graphs[0], 0);
  wait_ring(&ring);
  tt_log_redirect(keep_warning);
  for (int r = 0; r < N; r++) ok(_i ? ncclCommAbort(ring.comms[r]) : ncclCommDestroy(ring.comms[r]));
  ck_assert_msg(strstr(warning, "rank 2: the communicator ends while 2 captured graphs hold") != NULL, "%s", warning);
  for (int g = 0; g < 2; g++) fake_graph_replay(graphs[g][g], ring.streams[g][g]); /* without its peers */
  wait_ring(&ring);
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, N);
  ck_assert_int_eq(ncclCommDestroy(ring.comms[0]), ncclInvalidArgument); /* it is no communicator any more */
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[0][r]);
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts, N);
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[1][r]);
  close_ring(&ring);
  await_nothing(before);
}
END_TEST

void add_graphs(Suite *suite)
{
  TCase *tests = tcase_create("graphs");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, order);
  tcase_add_loop_test(tests, graph_first, 0, 2);
  tcase_add_test(tests, end_told_late);
  tcase_add_loop_test(tests, communicator_first, 0, 2);
  suite_add_tcase(suite, tests);
}
