/* Sums of scaled inputs (ncclRedOpCreatePreMulSum), memory and registration. */
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/param.h"
#include "kernels/host/fp8.h"
#include "nccl.h"
#include "tests/common/free_port.h"

enum { MOST = 4, COUNT = 1000 };

static void ok(ncclResult_t result)
{
  ck_assert_msg(result == ncclSuccess, "result %d: %s", result, tt_log_thread_error());
}

static void refused(ncclResult_t result, ncclResult_t wanted, const char *words)
{
  ck_assert_msg(result == wanted, "result %d, not %d: %s", result, wanted, tt_log_thread_error());
  ck_assert_msg(strstr(tt_log_thread_error(), words) != NULL, "\"%s\" does not say \"%s\"", tt_log_thread_error(),
                words);
}

/* A number as an element of a type. */
static void put(ncclDataType_t type, void *at, int i, double value)
{
  switch (type) {
  case ncclInt8:
  case ncclUint8:
    ((int8_t *)at)[i] = (int8_t)value;
    break;
  case ncclInt32:
  case ncclUint32:
    ((int32_t *)at)[i] = (int32_t)value;
    break;
  case ncclInt64:
  case ncclUint64:
    ((int64_t *)at)[i] = (int64_t)value;
    break;
  case ncclFloat16:
    ((uint16_t *)at)[i] = tt_float_to_half((float)value);
    break;
  case ncclBfloat16:
    ((uint16_t *)at)[i] = tt_float_to_bfloat((float)value);
    break;
  case ncclFloat8e4m3:
    ((uint8_t *)at)[i] = tt_float_to_e4m3((float)value);
    break;
  case ncclFloat8e5m2:
    ((uint8_t *)at)[i] = tt_float_to_e5m2((float)value);
    break;
  case ncclFloat32:
    ((float *)at)[i] = (float)value;
    break;
  default:
    ((double *)at)[i] = value;
  }
}

static const ncclDataType_t types[] = {ncclInt8,    ncclUint8,    ncclInt32,      ncclUint32,
                                       ncclInt64,   ncclUint64,   ncclFloat16,    ncclFloat32,
                                       ncclFloat64, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
static const size_t bytes_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* Each rank has its own scalar; all numbers are small enough to be exact in their type. */
static int scalar(int t, int rank)
{
  return bytes_of[t] > 1 || t < 2 ? rank + 2 : rank % 2 + 1;
}

static int element(int t, int rank, int i)
{
  return bytes_of[t] > 1 || t < 2 ? i % 5 + rank : i % 2;
}

static void scaled_sums(int n, int t, ncclScalarResidence_t residence)
{
  ncclComm_t comms[MOST];
  ncclRedOp_t ops[MOST];
  static char in[MOST][COUNT * 8], out[MOST][COUNT * 8], wanted[COUNT * 8], scalars[MOST][8];
  ok(ncclCommInitAll(comms, n, NULL));
  for (int r = 0; r < n; r++) {
    put(types[t], scalars[r], 0, scalar(t, r));
    for (int i = 0; i < COUNT; i++) put(types[t], in[r], i, element(t, r, i));
    ok(ncclRedOpCreatePreMulSum(&ops[r], scalars[r], types[t], residence, comms[r]));
    if (residence == ncclScalarHostImmediate) memset(scalars[r], 0, 8); /* it was copied */
  }
  for (int i = 0; i < COUNT; i++) {
    double sum = 0;
    for (int r = 0; r < n; r++) sum += element(t, r, i) * scalar(t, r);
    put(types[t], wanted, i, sum);
  }
  ok(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    ok(ncclAllReduce(in[r], out[r], COUNT, types[t], ops[r], comms[r], NULL));
    ok(ncclRedOpDestroy(ops[r], comms[r])); /* what is called keeps it */
  }
  ok(ncclGroupEnd());
  for (int r = 0; r < n; r++) {
    ck_assert_msg(memcmp(out[r], wanted, COUNT * bytes_of[t]) == 0, "type %d, rank %d of %d", types[t], r, n);
    refused(ncclAllReduce(in[r], out[r], COUNT, types[t], ops[r], comms[r], NULL), ncclInvalidArgument, "op is");
    ok(ncclCommDestroy(comms[r]));
  }
}

START_TEST(premulsum)
{
  for (int n = 1; n <= MOST; n++) {
    scaled_sums(n, _i, ncclScalarHostImmediate);
    scaled_sums(n, _i, ncclScalarDevice);
  }
}
END_TEST

START_TEST(premulsum_arguments)
{
  ncclComm_t one, other;
  ncclRedOp_t op, second;
  float scalar = 2, data[4] = {1, 2, 3, 4};
  ok(ncclCommInitAll(&one, 1, NULL));
  ok(ncclCommInitAll(&other, 1, NULL));
  refused(ncclRedOpCreatePreMulSum(NULL, &scalar, ncclFloat, ncclScalarHostImmediate, one), ncclInvalidArgument, "op");
  refused(ncclRedOpCreatePreMulSum(&op, NULL, ncclFloat, ncclScalarHostImmediate, one), ncclInvalidArgument, "scalar");
  refused(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, 7, one), ncclInvalidArgument, "residence");
  refused(ncclRedOpCreatePreMulSum(&op, &scalar, 99, ncclScalarHostImmediate, one), ncclInvalidArgument, "datatype");
  refused(ncclRedOpDestroy(ncclSum, one), ncclInvalidArgument, "op is 0");
  ok(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, one));
  ok(ncclRedOpCreatePreMulSum(&second, &scalar, ncclFloat, ncclScalarHostImmediate, one));
  ck_assert_int_ne(op, second);
  ck_assert_int_ge(op, ncclNumOps);
  refused(ncclAllReduce(data, data, 4, ncclInt32, op, one, NULL), ncclInvalidArgument, "was made for float32");
  refused(ncclAllReduce(data, data, 4, ncclFloat, op, other, NULL), ncclInvalidArgument, "op is");
  refused(ncclRedOpDestroy(op, other), ncclInvalidArgument, "for this communicator");
  ok(ncclAllReduce(data, data, 4, ncclFloat, op, one, NULL));
  ck_assert(data[0] == 2 && data[3] == 8);
  ok(ncclRedOpDestroy(op, one));
  refused(ncclRedOpDestroy(op, one), ncclInvalidArgument, "destroyed before");
  ok(ncclAllReduce(data, data, 4, ncclFloat, second, one, NULL)); /* the other lives */
  ok(ncclCommDestroy(one));
  ok(ncclCommDestroy(other));
}
END_TEST

static void open_at_fixed_id(ncclComm_t *comm)
{
  ncclUniqueId id;
  ok(ncclGetUniqueId(&id));
  ok(ncclCommInitRank(comm, 1, id, 0));
}

/* NCCL_COMM_ID gives all communicators one id; an op is of one of them all the same. */
START_TEST(premulsum_with_a_fixed_id)
{
  ncclComm_t one, other;
  ncclRedOp_t mine, theirs;
  float two = 2, three = 3, data[4] = {1, 2, 3, 4};
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%d", free_port());
  setenv("NCCL_COMM_ID", address, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  tt_param_reset();
  open_at_fixed_id(&one);
  open_at_fixed_id(&other);
  ok(ncclRedOpCreatePreMulSum(&mine, &two, ncclFloat, ncclScalarHostImmediate, one));
  ok(ncclRedOpCreatePreMulSum(&theirs, &three, ncclFloat, ncclScalarHostImmediate, other));
  ck_assert_int_ne(mine, theirs);
  refused(ncclAllReduce(data, data, 4, ncclFloat, mine, other, NULL), ncclInvalidArgument, "op is");
  refused(ncclRedOpDestroy(theirs, one), ncclInvalidArgument, "for this communicator");
  ok(ncclAllReduce(data, data, 4, ncclFloat, mine, one, NULL));
  ok(ncclAllReduce(data, data, 4, ncclFloat, theirs, other, NULL));
  ck_assert(data[0] == 6 && data[3] == 24);
  ok(ncclCommDestroy(one));
  ok(ncclCommDestroy(other));
}
END_TEST

/* A rank that scales and one that does not disagree. */
START_TEST(premulsum_against_sum)
{
  ncclComm_t comms[2];
  ncclRedOp_t op;
  float scalar = 2, data[2][4] = {{0}};
  ok(ncclCommInitAll(comms, 2, NULL));
  ok(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comms[0]));
  ok(ncclGroupStart());
  ok(ncclAllReduce(data[0], data[0], 4, ncclFloat, op, comms[0], NULL));
  ok(ncclAllReduce(data[1], data[1], 4, ncclFloat, ncclSum, comms[1], NULL));
  ck_assert_int_eq(ncclGroupEnd(), ncclInvalidUsage);
  ck_assert_ptr_nonnull(strstr(ncclGetLastError(comms[0]), "premulsum"));
  for (int r = 0; r < 2; r++) ok(ncclCommAbort(comms[r]));
}
END_TEST

START_TEST(memory)
{
  void *a, *b;
  refused(ncclMemAlloc(NULL, 8), ncclInvalidArgument, "ptr");
  ok(ncclMemAlloc(&a, 100000));
  ok(ncclMemAlloc(&b, 1));
  memset(a, 1, 100000);
  ck_assert_int_eq(*(char *)b, 0);
  ck_assert_uint_eq((uintptr_t)a % 4096, 0);
  refused(ncclMemFree((char *)a + 8), ncclInvalidArgument, "did not come from");
  ok(ncclMemFree(a));
  refused(ncclMemFree(a), ncclInvalidArgument, "freed before");
  ok(ncclMemFree(b));
  ok(ncclMemFree(NULL));
  ok(ncclMemAlloc(&a, 0));
  ck_assert_ptr_null(a);
  refused(ncclMemAlloc(&a, (size_t)1 << 60), ncclSystemError, "no memory for");
}
END_TEST

START_TEST(registration)
{
  ncclComm_t comm, other;
  static char buffer[4096];
  void *first, *second, *again;
  ncclWindow_t window;
  ok(ncclCommInitAll(&comm, 1, NULL));
  ok(ncclCommInitAll(&other, 1, NULL));
  refused(ncclCommRegister(comm, NULL, 8, &first), ncclInvalidArgument, "buff");
  refused(ncclCommRegister(comm, buffer, 0, &first), ncclInvalidArgument, "size");
  refused(ncclCommRegister(comm, buffer, SIZE_MAX, &first), ncclInvalidArgument, "size");
  refused(ncclCommRegister(comm, buffer, 8, NULL), ncclInvalidArgument, "handle");
  ok(ncclCommRegister(comm, buffer, 4096, &first));
  ok(ncclCommRegister(comm, buffer, 4096, &again)); /* counted */
  ok(ncclCommRegister(comm, buffer, 8, &second));
  ck_assert_ptr_eq(first, again);
  ck_assert_ptr_ne(first, second);
  ok(ncclCommDeregister(comm, first));
  ok(ncclCommDeregister(comm, first));
  refused(ncclCommDeregister(comm, first), ncclInvalidUsage, "not any more");
  refused(ncclCommDeregister(other, second), ncclInvalidUsage, "not registered");
  ok(ncclCommDeregister(comm, NULL));
  refused(ncclCommWindowRegister(comm, buffer, 4096, &window, 8), ncclInvalidArgument, "winFlags");
  refused(ncclCommWindowRegister(comm, buffer, 4096, NULL, 0), ncclInvalidArgument, "win");
  ok(ncclCommWindowRegister(comm, buffer, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
  ok(ncclCommWindowDeregister(comm, window));
  refused(ncclCommWindowDeregister(comm, window), ncclInvalidUsage, "not any more");
  ok(ncclCommWindowDeregister(comm, NULL));
  ok(ncclCommDestroy(comm)); /* with `second` left */
  ok(ncclCommDestroy(other));
}
END_TEST

/* In nobody's header, but exported as NCCL 2.29 and later do. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **buffer);

/* A handle is of one communicator and of one kind, whatever else is registered. */
START_TEST(foreign_handles)
{
  ncclComm_t one, other;
  static char buffer[8192];
  void *mine, *theirs, *found;
  ncclWindow_t window;
  ok(ncclCommInitAll(&one, 1, NULL));
  ok(ncclCommInitAll(&other, 1, NULL));
  ok(ncclCommRegister(one, buffer, 4096, &mine));
  ok(ncclCommRegister(other, buffer + 4096, 4096, &theirs)); /* each communicator's first */
  refused(ncclCommDeregister(other, mine), ncclInvalidUsage, "not registered");
  ok(ncclCommWindowRegister(one, buffer, 4096, &window, NCCL_WIN_DEFAULT));
  ck_assert_ptr_ne((void *)window, mine);
  refused(ncclCommWindowDeregister(one, mine), ncclInvalidUsage, "not registered");
  refused(ncclCommDeregister(one, window), ncclInvalidUsage, "not registered");
  ok(ncclWinGetUserPtr(one, window, &found));
  ck_assert_ptr_eq(found, buffer);
  refused(ncclWinGetUserPtr(other, window, &found), ncclInvalidUsage, "not registered");
  refused(ncclWinGetUserPtr(one, NULL, &found), ncclInvalidArgument, "win");
  refused(ncclWinGetUserPtr(one, window, NULL), ncclInvalidArgument, "outUserPtr");
  ok(ncclCommWindowDeregister(one, window));
  refused(ncclWinGetUserPtr(one, window, &found), ncclInvalidUsage, "not any more");
  ok(ncclCommDeregister(one, mine)); /* nothing above took it */
  ok(ncclCommDeregister(other, theirs));
  ok(ncclCommDestroy(one));
  ok(ncclCommDestroy(other));
}
END_TEST

Suite *redop_suite(void)
{
  Suite *suite = suite_create("redop");
  TCase *tests = tcase_create("redop");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, premulsum, 0, (int)(sizeof types / sizeof types[0]));
  tcase_add_test(tests, premulsum_arguments);
  tcase_add_test(tests, premulsum_with_a_fixed_id);
  tcase_add_test(tests, premulsum_against_sum);
  tcase_add_test(tests, memory);
  tcase_add_test(tests, registration);
  tcase_add_test(tests, foreign_handles);
  suite_add_tcase(suite, tests);
  return suite;
}
