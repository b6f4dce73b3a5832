/* NCCL_CHECK_POINTERS: each call's buffers where it uses them, of their whole length, on the host device and on one
 * with memory of its own; and nothing of it unless it is asked for. */
#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/log.h"
#include "base/param.h"
#include "nccl.h"
#include "tests/fakes/device/fake.h"

enum { N = 2 };

static ncclComm_t comms[N];
static size_t page;

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

static void refused(ncclResult_t result, const char *words)
{
  ck_assert_msg(result == ncclInvalidArgument, "result %d: %s", result, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

static void open_comms(const char *device, const char *check)
{
  page = (size_t)sysconf(_SC_PAGESIZE);
  setenv("TUTTI_DEVICE", device, 1);
  setenv("NCCL_CHECK_POINTERS", check, 1);
  tt_param_reset();
  ok(ncclCommInitAll(comms, N, NULL));
}

static void destroy_comms(void)
{
  for (int r = 0; r < N; r++) ok(ncclCommDestroy(comms[r]));
}

/* ---- The host device ---- */

/* One page, with nothing after it: `bytes` of it are at its end. */
static char *at_the_end(size_t bytes)
{
  char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(two, MAP_FAILED);
  ck_assert_int_eq(munmap(two + page, page), 0);
  return two + page - bytes;
}

enum { COUNT = 10, BYTES = 8 };

/* Of rank 0's calls: the elements that each reads and writes where its count is 10; 0: that buffer is not used. */
static const struct row {
  const char *name;
  size_t in, out;
  int root;
} rows[] = {
    {"ncclAllReduce", 10, 10, 0}, {"ncclAllGather", 10, 20, 0}, {"ncclReduceScatter", 20, 10, 0},
    {"ncclAlltoAll", 20, 20, 0},  {"ncclBroadcast", 10, 10, 0}, {"ncclBroadcast", 0, 10, 1},
    {"ncclReduce", 10, 10, 0},    {"ncclReduce", 10, 0, 1},     {"ncclGather", 10, 20, 0},
    {"ncclGather", 10, 0, 1},     {"ncclScatter", 20, 10, 0},   {"ncclScatter", 0, 10, 1},
    {"ncclSend", 10, 0, 1},       {"ncclRecv", 0, 10, 1},
};

static ncclResult_t call(const struct row *row, const void *in, void *out)
{
  const ncclDataType_t type = ncclUint64;
  const char *name = row->name;
  ncclComm_t comm = comms[0];
#define IS(what) (strcmp(name, what) == 0)
  if (IS("ncclAllReduce")) return ncclAllReduce(in, out, COUNT, type, ncclSum, comm, NULL);
  if (IS("ncclAllGather")) return ncclAllGather(in, out, COUNT, type, comm, NULL);
  if (IS("ncclReduceScatter")) return ncclReduceScatter(in, out, COUNT, type, ncclSum, comm, NULL);
  if (IS("ncclAlltoAll")) return ncclAlltoAll(in, out, COUNT, type, comm, NULL);
  if (IS("ncclBroadcast")) return ncclBroadcast(in, out, COUNT, type, row->root, comm, NULL);
  if (IS("ncclReduce")) return ncclReduce(in, out, COUNT, type, ncclSum, row->root, comm, NULL);
  if (IS("ncclGather")) return ncclGather(in, out, COUNT, type, row->root, comm, NULL);
  if (IS("ncclScatter")) return ncclScatter(in, out, COUNT, type, row->root, comm, NULL);
  if (IS("ncclSend")) return ncclSend(in, COUNT, type, 1, comm, NULL);
  return ncclRecv(out, COUNT, type, 1, comm, NULL);
#undef IS
}

/* A group with an error in it runs nothing of what it was given. `argument` NULL: there is nothing to say against it.
 */
static void attempt(const struct row *row, const void *in, void *out, const char *argument, const char *words)
{
  char start[64];
  ok(ncclGroupStart());
  ncclResult_t result = call(row, in, out);
  if (argument == NULL) {
    ok(result);
    refused(ncclAllReduce(NULL, NULL, 1, ncclInt8, ncclSum, comms[0], NULL), "argument sendbuff is NULL");
  } else {
    snprintf(start, sizeof start, "%s: %s is %p, ", row->name, argument, strcmp(argument, "sendbuff") ? out : in);
    refused(result, start);
    refused(result, words);
  }
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidArgument);
}

/* Buffers end where memory does: of just the length, then an element too short. */
START_TEST(to_the_last_byte)
{
  const struct row *row = &rows[_i];
  char words[80], *wild = (char *)64;
  open_comms("host", "1");
  const char *in = row->in > 0 ? at_the_end(row->in * BYTES) : wild;
  char *out = row->out > 0 ? at_the_end(row->out * BYTES) : wild;
  attempt(row, in, out, NULL, NULL);
  if (row->in > 0) {
    snprintf(words, sizeof words, " %zu bytes: memory ends at %p, after %zu bytes: ", row->in * BYTES,
             (const void *)(in + row->in * BYTES), row->in * BYTES - 1);
    attempt(row, in + 1, out, "sendbuff", words);
    attempt(row, wild, out, "sendbuff", "there is no memory");
  }
  if (row->out > 0) {
    snprintf(words, sizeof words, " %zu bytes: memory ends at %p, after %zu bytes: ", row->out * BYTES,
             (const void *)(out + row->out * BYTES), row->out * BYTES - 1);
    attempt(row, in, out + 1, "recvbuff", words);
    attempt(row, in, wild, "recvbuff", "lives until the operation is done");
  }
  destroy_comms();
}
END_TEST

START_TEST(read_only)
{
  static const char constant[COUNT * BYTES];
  char buffer[COUNT * BYTES];
  open_comms("host", "1");
  attempt(&rows[0], constant, buffer, NULL, NULL);
  attempt(&rows[0], buffer, (char *)(uintptr_t)constant, "recvbuff", "may not be written");
  destroy_comms();
}
END_TEST

/* Off it lets through what would be found, and asks for no answer. */
START_TEST(not_asked_for)
{
  char buffer[COUNT * BYTES];
  open_comms("host", "0");
  attempt(&rows[0], buffer, (char *)64, NULL, NULL);
  destroy_comms();
}
END_TEST

/* A communicator of one rank checks too; and what is right runs. */
START_TEST(one_rank)
{
  int in = 7, out = 0, device = 0;
  ncclComm_t comm;
  setenv("TUTTI_DEVICE", "host", 1);
  setenv("NCCL_CHECK_POINTERS", "1", 1);
  tt_param_reset();
  ok(ncclCommInitAll(&comm, 1, &device));
  ok(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, comm, NULL));
  ck_assert_int_eq(out, 7);
  refused(ncclAllReduce(&in, (int *)64, 1, ncclInt, ncclSum, comm, NULL), "ncclAllReduce: recvbuff is 0x40, 4 bytes: ");
  ok(ncclAllReduce(&in, (int *)64, 0, ncclInt, ncclSum, comm, NULL)); /* nothing is nowhere */
  ok(ncclCommDestroy(comm));
}
END_TEST

/* ---- A device with memory of its own ---- */

static ncclResult_t sum(void *const in[N], void *const out[N], size_t count, void *const streams[N])
{
  ok(ncclGroupStart());
  for (int r = 0; r < N; r++)
    (void)ncclAllReduce(in[r], out[r], count, ncclInt, ncclSum, comms[r], (cudaStream_t)streams[r]);
  return ncclGroupEnd();
}

START_TEST(on_devices)
{
  void *in[N], *out[N], *streams[N];
  int plain[4] = {0};
  open_comms(FAKE_DEVICE, "1");
  for (int r = 0; r < N; r++) {
    streams[r] = fake_stream_create(r);
    in[r] = fake_user_alloc(r, 4 * sizeof(int), true, NULL);
    out[r] = fake_user_alloc(r, 4 * sizeof(int), true, NULL);
    for (int i = 0; i < 4; i++) ((int *)in[r])[i] = 10 * r + i;
  }
  ok(sum(in, out, 4, streams));
  for (int r = 0; r < N; r++) ck_assert(fake_stream_wait(streams[r], 10000));
  for (int i = 0; i < 4; i++) ck_assert_int_eq(((int *)out[1])[i], 10 + 2 * i);
  refused(sum(in, out, 5, streams), "sendbuff is ");
  void *swapped[N] = {in[0], in[0]};
  refused(sum(swapped, out, 4, streams), "is memory of device 0, not 1");
  void *host[N] = {out[0], plain};
  refused(sum(in, host, 4, streams), "recvbuff is ");
  /* A capture goes on as if nothing had been asked, and replays. */
  fake_capture_begin(streams[0]);
  fake_capture_begin(streams[1]);
  refused(sum(in, host, 4, streams), "recvbuff is ");
  ok(sum(in, out, 4, streams));
  struct fake_graph *graphs[N] = {fake_capture_end(streams[0]), fake_capture_end(streams[1])};
  memset(out[1], 0, 4 * sizeof(int));
  for (int r = 0; r < N; r++) fake_graph_replay(graphs[r], streams[r]);
  for (int r = 0; r < N; r++) ck_assert(fake_stream_wait(streams[r], 10000));
  for (int i = 0; i < 4; i++) ck_assert_int_eq(((int *)out[1])[i], 10 + 2 * i);
  for (int r = 0; r < N; r++) fake_graph_destroy(graphs[r]);
  destroy_comms();
  for (int r = 0; r < N; r++) {
    ck_assert(fake_user_free(in[r]) && fake_user_free(out[r]));
    fake_stream_destroy(streams[r]);
  }
}
END_TEST

int main(void)
{
  Suite *suite = suite_create("pointers");
  TCase *tests = tcase_create("pointers");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, to_the_last_byte, 0, sizeof(rows) / sizeof(rows[0]));
  tcase_add_test(tests, read_only);
  tcase_add_test(tests, not_asked_for);
  tcase_add_test(tests, one_rank);
  tcase_add_test(tests, on_devices);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
