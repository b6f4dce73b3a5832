/* Streams that a group joins: what was on any of them comes before its operations, and what comes after on any of them
 * after; also while they are captured. And streams that are none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "collectives.h"
#include "tests/fakes/device/fake.h"

enum { N = 3, COUNT = 40000, LONG_MS = 60000 };

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

/* What a rank does: on each of three streams it fills a buffer, late on those that are not the group's first; a group
 * reduces all of them; each stream then copies another's result. */
struct place {
  int32_t in[N][COUNT], out[N][COUNT], copy[N][COUNT];
  void *streams[N];
};
struct step {
  struct place *place;
  int number, value, pause_ms;
};

static void fill(void *argument)
{
  struct step *step = argument;
  usleep((unsigned)step->pause_ms * 1000);
  for (int i = 0; i < COUNT; i++) step->place->in[step->number][i] = step->value + i % 5;
}

static void copy(void *argument)
{
  struct step *step = argument;
  int other = (step->number + 1) % N;
  memcpy(step->place->copy[step->number], step->place->out[other], sizeof step->place->copy[0]);
}

static void check_copies(const struct place *place)
{
  for (int s = 0; s < N; s++)
    for (int i = 0; i < COUNT; i++) {
      int other = (s + 1) % N, sum = 0;
      for (int r = 0; r < N; r++) sum += 100 * r + 10 * other + i % 5;
      ck_assert_msg(place->copy[s][i] == sum, "stream %d, element %d: %d, not %d", s, i, place->copy[s][i], sum);
    }
}

/* One of the streams, the last that is named, is the default one. */
static struct place *open_place(int rank)
{
  struct place *place = calloc(1, sizeof *place);
  for (int s = 0; s + 1 < N; s++) place->streams[s] = fake_stream_create(rank);
  return place;
}

static void close_place(struct place *place)
{
  for (int s = 0; s + 1 < N; s++) fake_stream_destroy(place->streams[s]);
  free(place);
}

static void put_before(struct place *place, int rank, struct step *steps)
{
  fake_set_device(rank);
  for (int s = 0; s < N; s++) {
    steps[s] = (struct step){place, s, 100 * rank + 10 * s, s > 0 ? 20 + 5 * rank : 0};
    fake_stream_call(place->streams[s], fill, &steps[s]);
  }
}

static void reduce_all(struct place *const *places, ncclComm_t *comms, int first, int end)
{
  ok(ncclGroupStart());
  for (int r = first; r < end; r++)
    for (int s = 0; s < N; s++)
      ok(ncclAllReduce(places[r]->in[s], places[r]->out[s], COUNT, ncclInt32, ncclSum, comms[r],
                       places[r]->streams[s]));
  ok(ncclGroupEnd());
}

static void put_after(struct place *place, int rank, struct step *steps)
{
  fake_set_device(rank);
  for (int s = 0; s < N; s++) fake_stream_call(place->streams[s], copy, &steps[s]);
}

static void wait_place(const struct place *place, int rank)
{
  fake_set_device(rank);
  for (int s = 0; s < N; s++) ck_assert_msg(fake_stream_wait(place->streams[s], LONG_MS), "rank %d is not done", rank);
}

START_TEST(joined)
{
  ncclComm_t comms[N];
  struct place *places[N];
  struct step steps[N][N];
  ok(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++) put_before(places[r] = open_place(r), r, steps[r]);
  reduce_all(places, comms, 0, N);
  for (int r = 0; r < N; r++) put_after(places[r], r, steps[r]);
  for (int r = 0; r < N; r++) wait_place(places[r], r);
  for (int r = 0; r < N; r++) {
    check_copies(places[r]);
    ok(ncclCommDestroy(comms[r]));
    close_place(places[r]);
  }
}
END_TEST

/* The same by graphs, whose streams are captured by following the first. */
START_TEST(joined_in_a_graph)
{
  ncclComm_t comms[N];
  struct place *places[N];
  struct step steps[N][N];
  struct fake_graph *graphs[N];
  ok(ncclCommInitAll(comms, N, NULL));
  for (int r = 0; r < N; r++) {
    places[r] = open_place(r);
    fake_set_device(r);
    fake_capture_begin(places[r]->streams[0]);
    for (int s = 1; s < N; s++) fake_stream_join(places[r]->streams[s], places[r]->streams[0]);
    put_before(places[r], r, steps[r]);
  }
  reduce_all(places, comms, 0, N);
  for (int r = 0; r < N; r++) {
    put_after(places[r], r, steps[r]);
    graphs[r] = fake_capture_end(places[r]->streams[0]);
    ck_assert_int_eq(places[r]->copy[0][0], 0);
  }
  for (int again = 0; again < 2; again++) {
    for (int r = 0; r < N; r++) {
      memset(places[r]->copy, 0, sizeof places[r]->copy);
      fake_graph_replay(graphs[r], places[r]->streams[again]);
    }
    for (int r = 0; r < N; r++) wait_place(places[r], r);
    for (int r = 0; r < N; r++) check_copies(places[r]);
  }
  for (int r = 0; r < N; r++) {
    fake_graph_destroy(graphs[r]);
    ok(ncclCommDestroy(comms[r]));
    close_place(places[r]);
  }
}
END_TEST

/* A group's streams on one communicator are captured into one graph, or none is. After the refusal all is as before. */
START_TEST(mixed)
{
  ncclComm_t comm;
  int32_t data[4] = {1, 2, 3, 4}, out[4] = {0};
  void *streams[2] = {fake_stream_create(0), fake_stream_create(0)};
  ok(ncclCommInitAll(&comm, 1, NULL));
  for (int captured = 1; captured < 4; captured++) {
    for (int s = 0; s < 2; s++)
      if (captured & 1 << s) fake_capture_begin(streams[s]);
    ok(ncclGroupStart());
    for (int s = 0; s < 2; s++) ok(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, streams[s]));
    refused(ncclGroupEnd(), ncclInvalidUsage, captured == 3 ? "captured into another graph" : "not captured");
    for (int s = 0; s < 2; s++)
      if (captured & 1 << s) fake_graph_destroy(fake_capture_end(streams[s]));
    ck_assert(out[0] == 0);
  }
  ok(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, streams[0]));
  ck_assert(fake_stream_wait(streams[0], LONG_MS));
  ck_assert_mem_eq(out, data, sizeof data);
  ok(ncclCommDestroy(comm));
  for (int s = 0; s < 2; s++) fake_stream_destroy(streams[s]);
}
END_TEST

/* Of another device, or destroyed: nothing of the group runs, and the communicator is as good as before. */
START_TEST(bad_streams)
{
  ncclComm_t comm;
  int32_t data[4] = {1, 2, 3, 4}, out[4] = {0};
  char name[32];
  void *good = fake_stream_create(0), *bad = fake_stream_create(1);
  ok(ncclCommInitAll(&comm, 1, NULL));
  snprintf(name, sizeof name, "stream is %p", bad);
  for (int destroyed = 0; destroyed < 2; destroyed++) {
    const char *why = destroyed ? "was destroyed" : "of device 1";
    refused(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, bad), ncclInvalidArgument, why);
    ck_assert_msg(strstr(tt_log_thread_error(), name) != NULL, "%s", tt_log_thread_error());
    ok(ncclGroupStart());
    ok(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, good));
    refused(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, bad), ncclInvalidArgument, why);
    refused(ncclGroupEnd(), ncclInvalidArgument, why);
    ck_assert(fake_stream_wait(good, LONG_MS));
    ck_assert_int_eq(out[0], 0);
    if (!destroyed) fake_stream_destroy(bad);
  }
  ok(ncclAllReduce(data, out, 4, ncclInt32, ncclSum, comm, good));
  ck_assert(fake_stream_wait(good, LONG_MS));
  ck_assert_mem_eq(out, data, sizeof data);
  ok(ncclCommDestroy(comm));
  fake_stream_destroy(good);
}
END_TEST

void add_joins(Suite *suite)
{
  TCase *tests = tcase_create("joins");
  tcase_set_timeout(tests, 0);
  tcase_add_test(tests, joined);
  tcase_add_test(tests, joined_in_a_graph);
  tcase_add_test(tests, mixed);
  tcase_add_test(tests, bad_streams);
  suite_add_tcase(suite, tests);
}
