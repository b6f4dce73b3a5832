/* Calls one by one: arguments are checked and named, communicators of one rank and of several in one process work. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "nccl.h"
#include "tests/common/held.h"
#include "tutti.h"

static void expect(ncclResult_t got, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(got == wanted, "result %d, not %d; last error: %s", got, wanted, tt_log_thread_error());
  if (words != NULL)
    ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                  words);
}

START_TEST(versions)
{
  int version = 0;
  expect(ncclGetVersion(&version), ncclSuccess, NULL);
  ck_assert_int_eq(version, 22809);
  expect(ncclGetVersion(NULL), ncclInvalidArgument, "version");
  expect(tuttiGetVersion(&version), ncclSuccess, NULL);
  ck_assert_int_eq(version, TUTTI_MAJOR * 10000 + TUTTI_MINOR * 100 + TUTTI_PATCH);
}
END_TEST

START_TEST(error_strings)
{
  for (int r = 0; r <= ncclNumResults; r++) ck_assert_uint_gt(strlen(ncclGetErrorString((ncclResult_t)r)), 0);
  ck_assert_str_ne(ncclGetErrorString(ncclSystemError), ncclGetErrorString(ncclRemoteError));
}
END_TEST

START_TEST(null_is_success_or_named)
{
  int value;
  ncclResult_t result;
  expect(ncclCommDestroy(NULL), ncclSuccess, NULL);
  expect(ncclCommAbort(NULL), ncclSuccess, NULL);
  expect(ncclCommFinalize(NULL), ncclSuccess, NULL);
  expect(ncclGetUniqueId(NULL), ncclInvalidArgument, "uniqueId");
  expect(ncclCommCount(NULL, &value), ncclInvalidArgument, "comm");
  expect(ncclCommGetAsyncError(NULL, &result), ncclInvalidArgument, "comm");
  expect(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, NULL, NULL), ncclInvalidArgument, "comm");
  expect(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument, "comm");
}
END_TEST

START_TEST(init_arguments)
{
  ncclComm_t comm = (ncclComm_t)1;
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  int twice[] = {1, 1}, negative[] = {-1};
  ncclComm_t comms[2];
  expect(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "comm");
  expect(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "nranks");
  expect(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank");
  expect(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank");
  expect(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument, NULL); /* an id of zeros */
  ck_assert_ptr_null(comm);
  expect(ncclCommInitAll(comms, 0, NULL), ncclInvalidArgument, "ndev");
  expect(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage, "twice");
  expect(ncclCommInitAll(comms, 1, negative), ncclInvalidArgument, "devlist");
}
END_TEST

START_TEST(one_rank_opens_nothing)
{
  ncclComm_t comm;
  ncclUniqueId id;
  memset(&id, 7, sizeof id);
  int before = held_descriptors();
  expect(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess, NULL);
  ck_assert_int_eq(held_descriptors(), before);
  int value = -1;
  expect(ncclCommCount(comm, &value), ncclSuccess, NULL);
  ck_assert_int_eq(value, 1);
  expect(ncclCommUserRank(comm, &value), ncclSuccess, NULL);
  ck_assert_int_eq(value, 0);

  float in[100], out[100];
  for (int i = 0; i < 100; i++) in[i] = (float)i;
  memset(out, 0, sizeof out);
  expect(ncclAllReduce(in, out, 100, ncclFloat, ncclAvg, comm, NULL), ncclSuccess, NULL);
  ck_assert_mem_eq(in, out, sizeof in);
  memset(out, 0, sizeof out);
  expect(ncclAllGather(in, out, 100, ncclFloat, comm, NULL), ncclSuccess, NULL);
  ck_assert_mem_eq(in, out, sizeof in);
  memset(out, 0, sizeof out);
  expect(ncclReduceScatter(in, out, 100, ncclFloat, ncclProd, comm, NULL), ncclSuccess, NULL);
  ck_assert_mem_eq(in, out, sizeof in);
  memset(out, 0, sizeof out);
  expect(ncclBroadcast(in, out, 100, ncclFloat, 0, comm, NULL), ncclSuccess, NULL);
  ck_assert_mem_eq(in, out, sizeof in);
  memset(out, 0, sizeof out);
  expect(ncclReduce(in, out, 100, ncclFloat, ncclMax, 0, comm, NULL), ncclSuccess, NULL);
  ck_assert_mem_eq(in, out, sizeof in);
  expect(ncclBcast(in, 100, ncclFloat, 0, comm, NULL), ncclSuccess, NULL);
  expect(ncclCommDestroy(comm), ncclSuccess, NULL);
}
END_TEST

START_TEST(call_arguments)
{
  ncclComm_t comm;
  float data[8] = {0};
  expect(ncclCommInitAll(&comm, 1, NULL), ncclSuccess, NULL);
  expect(ncclAllReduce(data, data, 8, (ncclDataType_t)12, ncclSum, comm, NULL), ncclInvalidArgument, "datatype");
  expect(ncclAllReduce(data, data, 8, (ncclDataType_t)-1, ncclSum, comm, NULL), ncclInvalidArgument, "datatype");
  expect(ncclAllReduce(data, data, 8, ncclFloat, (ncclRedOp_t)5, comm, NULL), ncclInvalidArgument, "op");
  expect(ncclAllReduce(NULL, data, 8, ncclFloat, ncclSum, comm, NULL), ncclInvalidArgument, "sendbuff");
  expect(ncclAllReduce(data, NULL, 8, ncclFloat, ncclSum, comm, NULL), ncclInvalidArgument, "recvbuff");
  expect(ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, comm, NULL), ncclSuccess, NULL);
  expect(ncclAllReduce(data, data, SIZE_MAX / 2, ncclFloat, ncclSum, comm, NULL), ncclInvalidArgument, "count");
  expect(ncclBroadcast(data, data, 8, ncclFloat, 1, comm, NULL), ncclInvalidArgument, "root");
  expect(ncclReduce(data, data, 8, ncclFloat, ncclSum, -1, comm, NULL), ncclInvalidArgument, "root");
  expect(ncclSend(data, 8, ncclFloat, 3, comm, NULL), ncclInvalidArgument, "peer");
  expect(ncclAllReduce(data, data, 8, ncclFloat, ncclSum, comm, (cudaStream_t)data), ncclInvalidArgument, "stream");
  expect(ncclCommCount(comm, NULL), ncclInvalidArgument, "count");
  /* None of these failed the communicator. */
  expect(ncclAllReduce(data, data, 8, ncclFloat, ncclSum, comm, NULL), ncclSuccess, NULL);
  expect(ncclCommFinalize(comm), ncclSuccess, NULL);
  expect(ncclCommFinalize(comm), ncclInvalidArgument, "finalized");
  expect(ncclAllReduce(data, data, 8, ncclFloat, ncclSum, comm, NULL), ncclInvalidArgument, "finalized");
  expect(ncclCommDestroy(comm), ncclSuccess, NULL);
}
END_TEST

/* In nobody's header, but exported as NCCL does. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *out);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

START_TEST(unsupported_calls_name_themselves)
{
  expect(ncclDevCommCreate(NULL, NULL, NULL), ncclInvalidUsage, "ncclDevCommCreate is not supported");
  expect(ncclCommResume(NULL), ncclInvalidUsage, "ncclCommResume is not supported");
  expect(ncclGroupStart(), ncclSuccess, NULL);
  expect(ncclSignal(0, 0, 0, 0, NULL, NULL), ncclInvalidUsage, "use ncclSend and ncclRecv");
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL); /* it did not happen */
}
END_TEST

/* What a group would take grows with what is in it; nothing runs. */
START_TEST(simulated_groups)
{
  enum { N = 3 };
  ncclComm_t comms[N];
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER, wrong = {0};
  float data[1000] = {1}, times[3];
  expect(ncclCommInitAll(comms, N, NULL), ncclSuccess, NULL);
  for (int calls = 1; calls <= 3; calls++) {
    expect(ncclGroupStart(), ncclSuccess, NULL);
    for (int r = 0; r < N; r++)
      for (int k = 0; k < calls; k++)
        expect(ncclAllReduce(data, data, 1000, ncclFloat, ncclSum, comms[r], NULL), ncclSuccess, NULL);
    expect(ncclGroupSimulateEnd(&info), ncclSuccess, NULL);
    times[calls - 1] = info.estimatedTime;
  }
  ck_assert(times[0] > 0 && times[1] > times[0] * 1.9f && times[2] > times[0] * 2.9f);
  ck_assert(data[0] == 1);
  expect(ncclGroupStart(), ncclSuccess, NULL); /* one rank alone would hang if it ran */
  expect(ncclSend(data, 1000, ncclFloat, 1, comms[0], NULL), ncclSuccess, NULL);
  expect(ncclGroupSimulateEnd(&info), ncclSuccess, NULL);
  ck_assert(info.estimatedTime > 0);
  expect(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "without ncclGroupStart");
  expect(ncclGroupStart(), ncclSuccess, NULL);
  expect(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER");
  expect(ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
  for (int r = 0; r < N; r++) expect(ncclCommDestroy(comms[r]), ncclSuccess, NULL);
}
END_TEST

Suite *calls_suite(void)
{
  Suite *suite = suite_create("calls");
  TCase *tests = tcase_create("calls");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, versions);
  tcase_add_test(tests, error_strings);
  tcase_add_test(tests, null_is_success_or_named);
  tcase_add_test(tests, init_arguments);
  tcase_add_test(tests, one_rank_opens_nothing);
  tcase_add_test(tests, call_arguments);
  tcase_add_test(tests, unsupported_calls_name_themselves);
  tcase_add_test(tests, simulated_groups);
  suite_add_tcase(suite, tests);
  return suite;
}
