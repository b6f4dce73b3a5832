/* The fake device keeps the contract of tutti/device.h: it needs nothing of a launch afterwards, it runs a context's
 * launches in order, it can be stopped, and it says whom it waits for. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "program/emit.h"
#include "tests/fakes/device/fake.h"

#define COUNT 5000
#define LONG_MS 20000

static const struct tt_device *device;
static char logged[2000];

static void keep_log(int level, const char *text)
{
  if (level == 2) snprintf(logged, sizeof logged, "%s", text);
}

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, logged);
}

/* Two ranks, a connection each way, and a ring's program. */
struct end {
  struct tt_device_context *context;
  struct tt_device_memory own, peers; /* where this rank receives, and the other's, mapped */
  struct tt_conn send, recv;
  struct tt_program *program;
  float input[COUNT], output[COUNT];
};

static void set_conn(struct tt_conn *conn, void *memory, int protocol, size_t slot_bytes, int peer)
{
  unsigned char *at = memory;
  *conn = (struct tt_conn){.tail = (void *)at, .head = (void *)(at + 64), .peer = peer};
  conn->slots[protocol] = at + 128;
  conn->slot_bytes[protocol] = slot_bytes;
}

static void open_pair(struct end *ends, int protocol)
{
  size_t slot_bytes = device->default_buffer[protocol] / TT_SLOTS;
  memset(ends, 0, 2 * sizeof *ends);
  for (int r = 0; r < 2; r++) {
    struct tt_device_config config = {.size = sizeof config, .index = r, .rank = r, .nranks = 2};
    ok(device->open(&config, &ends[r].context));
    ok(device->alloc(ends[r].context, 128 + device->default_buffer[protocol], &ends[r].own));
    struct tt_emit_request request = {
        .collective = TT_FUNC_ALL_REDUCE, .algorithm = TT_ALGO_RING, .nranks = 2, .rank = r};
    ok(tt_program_emit(&request, &ends[r].program));
    for (int i = 0; i < COUNT; i++) ends[r].input[i] = (float)(i + r);
  }
  for (int r = 0; r < 2; r++) {
    struct tt_device_export out;
    ok(device->export_memory(ends[1 - r].context, &ends[1 - r].own, r, &out)); /* once this way, once that way */
    ok(device->import_memory(ends[r].context, &out, &ends[r].peers));
    if (out.fd >= 0) close(out.fd);
    set_conn(&ends[r].recv, ends[r].own.ptr, protocol, slot_bytes, 1 - r);
    set_conn(&ends[r].send, ends[r].peers.ptr, protocol, slot_bytes, 1 - r);
    ok(device->conn_open(ends[r].context, &ends[r].recv));
    ok(device->conn_open(ends[r].context, &ends[r].send));
  }
}

static void close_pair(struct end *ends)
{
  struct fake_counts counts;
  for (int r = 0; r < 2; r++) {
    device->conn_close(ends[r].context, &ends[r].recv);
    device->conn_close(ends[r].context, &ends[r].send);
    device->release(ends[r].context, &ends[r].peers);
    device->release(ends[r].context, &ends[r].own);
    device->close(ends[r].context);
    tt_program_free(ends[r].program);
  }
  fake_count(&counts);
  ck_assert_int_eq(counts.contexts + counts.memories + counts.twins + counts.streams + counts.launches + counts.hosts,
                   0);
}

/* Everything that a launch is given is overwritten after it. */
static ncclResult_t launch(struct end *end, int rank, int protocol, size_t count, void *stream)
{
  struct tt_conn *send[1] = {&end->send}, *recv[1] = {&end->recv};
  struct tt_work_channel channel = {.program = end->program, .send = send, .recv = recv};
  size_t chunk = (count / end->program->parts + 3) / 4 * 4;
  channel.geometry = (struct tt_geometry){.hi = count, .chunk = chunk, .last_chunk = chunk, .loops = 1};
  if (chunk * sizeof(float) > tt_conn_capacity(device->default_buffer[protocol] / TT_SLOTS, protocol)) {
    channel.geometry.chunk = 200;
    channel.geometry.loops = (count + 399) / 400;
    channel.geometry.last_chunk = ((count - (channel.geometry.loops - 1) * 400) / 2 + 3) / 4 * 4;
  }
  struct tt_work work = {.size = sizeof work,
                         .signature = {.count = count,
                                       .collective = TT_FUNC_ALL_REDUCE,
                                       .datatype = ncclFloat,
                                       .op = ncclSum,
                                       .algorithm = TT_ALGO_RING,
                                       .protocol = (uint8_t)protocol,
                                       .nchannels = 1},
                         .reduction = {.op = ncclSum, .datatype = ncclFloat},
                         .protocol = protocol,
                         .nchannels = 1,
                         .input = end->input,
                         .output = end->output,
                         .channels = &channel,
                         .rank = rank,
                         .context = end->context};
  struct tt_work *works[1] = {&work};
  struct tt_launch *launched = (void *)1;
  ncclResult_t result = device->launch(works, 1, stream, &launched);
  ck_assert_ptr_null(launched);
  memset(send, 0xdd, sizeof send);
  memset(recv, 0xdd, sizeof recv);
  memset(&channel, 0xdd, sizeof channel);
  memset(&work, 0xdd, sizeof work);
  memset(works, 0xdd, sizeof works);
  return result;
}

static void check_sum(const struct end *ends, int extra)
{
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < COUNT; i++)
      if (ends[r].output[i] != (float)(2 * i + 1 + 2 * extra))
        ck_abort_msg("rank %d, element %d: %g", r, i, (double)ends[r].output[i]);
}

static void wait_all(void)
{
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    ck_assert(fake_stream_wait(NULL, LONG_MS));
  }
}

static struct end ends[2];

/* _i: protocol. */
START_TEST(launches)
{
  if (!(device->protocols & 1u << _i)) return;
  open_pair(ends, _i);
  for (int again = 0; again < 3; again++) {
    for (int r = 0; r < 2; r++) ok(launch(&ends[r], r, _i, COUNT, NULL));
    wait_all();
    check_sum(ends, 0);
    memset(ends[0].output, 0, sizeof ends[0].output);
  }
  close_pair(ends);
}
END_TEST

/* A connection in the host's memory opens for the context that has it mapped, as long as it has. */
START_TEST(mapped_host)
{
  struct tt_device_context *contexts[2];
  struct tt_conn conn;
  struct fake_counts counts;
  size_t slot_bytes = device->default_buffer[TT_PROTO_LL] / TT_SLOTS;
  unsigned char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void *at;
  ck_assert_ptr_ne(memory, MAP_FAILED);
  for (int r = 0; r < 2; r++) {
    struct tt_device_config config = {.size = sizeof config, .index = r, .rank = r, .nranks = 2};
    ok(device->open(&config, &contexts[r]));
  }
  ck_assert_int_eq(device->map_host(contexts[0], memory, 100, &at), ncclInternalError);
  ck_assert_int_eq(device->map_host(contexts[0], memory + 8, 4096, &at), ncclInternalError);
  ok(device->map_host(contexts[0], memory, 65536, &at));
  ok(device->map_host(contexts[0], memory, 65536, &at));
  fake_count(&counts);
  ck_assert_int_eq(counts.hosts, 2);
  set_conn(&conn, at, TT_PROTO_LL, slot_bytes, 1);
  ok(device->conn_open(contexts[0], &conn));
  device->conn_close(contexts[0], &conn);
  ck_assert_int_eq(device->conn_open(contexts[1], &conn), ncclInternalError);
  device->unmap_host(contexts[0], memory, 65536);
  ok(device->conn_open(contexts[0], &conn));
  device->conn_close(contexts[0], &conn);
  device->unmap_host(contexts[0], memory, 65536);
  ck_assert_int_eq(device->conn_open(contexts[0], &conn), ncclInternalError);
  device->unmap_host(contexts[0], memory, 65536); /* of what is not mapped: nothing */
  fake_count(&counts);
  ck_assert_int_eq(counts.hosts, 0);
  for (int r = 0; r < 2; r++) device->close(contexts[r]);
  munmap(memory, 65536);
}
END_TEST

START_TEST(replays)
{
  struct fake_graph *graphs[2];
  void *stream = fake_stream_create(1);
  open_pair(ends, TT_PROTO_LL);
  for (int r = 0; r < 2; r++) {
    fake_set_device(r);
    fake_capture_begin(NULL);
    ok(launch(&ends[r], r, TT_PROTO_LL, COUNT, NULL));
    graphs[r] = fake_capture_end(NULL);
  }
  wait_all();
  ck_assert(ends[0].output[0] == 0.0f); /* recorded, not run */
  for (int again = 0; again < 3; again++) {
    for (int r = 0; r < 2; r++) {
      for (int i = 0; i < COUNT; i++) ends[r].input[i] = (float)(i + r + again);
      fake_set_device(r);
      fake_graph_replay(graphs[r], r == 1 && again == 1 ? stream : NULL);
      ok(launch(&ends[r], r, TT_PROTO_LL, COUNT, NULL)); /* behind it, on another stream too */
    }
    wait_all();
    check_sum(ends, again);
  }
  for (int r = 0; r < 2; r++) fake_graph_destroy(graphs[r]);
  fake_stream_destroy(stream);
  close_pair(ends);
}
END_TEST

static struct tt_device_status status_when_stalled(struct end *end)
{
  struct tt_device_status status = {.size = sizeof status};
  for (int waited = 0; waited < LONG_MS && !status.stalled; waited++) {
    usleep(1000);
    ok(device->status(end->context, &status));
  }
  ck_assert(status.stalled);
  return status;
}

START_TEST(stalls_and_stops)
{
  int done;
  open_pair(ends, TT_PROTO_SIMPLE);
  ok(launch(&ends[0], 0, TT_PROTO_SIMPLE, COUNT, NULL));
  ok(device->drain(ends[0].context, 10, &done));
  ck_assert(!done);
  struct tt_device_status status = status_when_stalled(&ends[0]);
  ck_assert_int_eq(status.result, ncclSuccess);
  ck_assert_int_eq(status.peer, 1);
  ck_assert_uint_eq(status.sending, 0);
  ck_assert_uint_eq(status.signature.count, COUNT);
  ok(launch(&ends[1], 1, TT_PROTO_SIMPLE, COUNT, NULL)); /* late, but no error */
  wait_all();
  check_sum(ends, 0);
  ok(device->status(ends[0].context, &status));
  ck_assert(!status.stalled);
  ok(launch(&ends[0], 0, TT_PROTO_SIMPLE, COUNT, NULL));
  device->stop(ends[0].context);
  ok(launch(&ends[0], 0, TT_PROTO_SIMPLE, COUNT, NULL)); /* ends at once */
  ok(device->drain(ends[0].context, LONG_MS, &done));
  ck_assert(done);
  ok(device->status(ends[0].context, &status));
  ck_assert_int_eq(status.result, ncclSuccess);
  close_pair(ends);
}
END_TEST

START_TEST(failures)
{
  int done;
  open_pair(ends, TT_PROTO_LL);
  ok(launch(&ends[0], 0, TT_PROTO_LL, COUNT, NULL));
  ok(launch(&ends[1], 1, TT_PROTO_LL, COUNT - 4, NULL));
  for (int r = 0; r < 2; r++) {
    struct tt_device_status status = {.size = sizeof status};
    ok(device->drain(ends[r].context, LONG_MS, &done));
    ck_assert(done);
    ok(device->status(ends[r].context, &status));
    ck_assert_int_eq(status.result, ncclInvalidUsage);
    ck_assert_msg(strstr(status.text, "count") != NULL, "%s", status.text);
  }
  ck_assert_str_eq(logged, ""); /* the status tells, not the log */
  device->conn_close(ends[0].context, &ends[0].send);
  ck_assert_int_eq(launch(&ends[0], 0, TT_PROTO_LL, COUNT, NULL), ncclInternalError);
  ck_assert_msg(strstr(logged, "not opened") != NULL, "%s", logged);
  close_pair(ends);
}
END_TEST

int main(void)
{
  char why[200];
  device = tutti_device(keep_log, why, sizeof why);
  Suite *suite = suite_create("fake device");
  TCase *tests = tcase_create("device");
  tcase_set_timeout(tests, 0);
  tcase_add_loop_test(tests, launches, 0, TT_NUM_PROTOCOLS);
  tcase_add_test(tests, mapped_host);
  tcase_add_test(tests, replays);
  tcase_add_test(tests, stalls_and_stops);
  tcase_add_test(tests, failures);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
