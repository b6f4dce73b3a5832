/* What is made of the page that kernels write. */
#include <check.h>
#include <string.h>
#include <unistd.h>
#include "kernels/cuda/state.h"

static struct tt_cuda_context_state state;
static struct tt_cuda_mapped page;
static struct tt_device_context context;
static const struct tt_signature all_reduce = {.sequence = 7,
                                               .count = 1000,
                                               .collective = TT_FUNC_ALL_REDUCE,
                                               .datatype = ncclFloat32,
                                               .algorithm = TT_ALGO_RING,
                                               .protocol = TT_PROTO_SIMPLE,
                                               .nchannels = 2};

static void setup(void)
{
  state = (struct tt_cuda_context_state){0};
  page = (struct tt_cuda_mapped){0};
  context = (struct tt_device_context){.rank = 3, .state = &state, .mapped = &page};
}

static struct tt_device_status ask(void)
{
  struct tt_device_status status = {.size = sizeof(status)};
  ck_assert_int_eq(tt_cuda_status(&context, &status), ncclSuccess);
  ck_assert_uint_eq(status.size, sizeof(status));
  return status;
}

#define ASSERT_HAS(text, part) ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in: %s", part, text)

START_TEST(nothing)
{
  struct tt_device_status status = ask();
  ck_assert_int_eq(status.result, ncclSuccess);
  ck_assert_uint_eq(status.stalled, 0);
  ck_assert_str_eq(status.text, "");
}
END_TEST

START_TEST(signatures)
{
  page.mine = page.got = all_reduce;
  page.got.count = 999;
  page.got.datatype = ncclInt32;
  page.error_peer = 1;
  page.error = TT_CUDA_WRONG_SIGNATURE;
  struct tt_device_status status = ask();
  ck_assert_int_eq(status.result, ncclInvalidUsage);
  ck_assert_int_eq(status.peer, 1);
  ASSERT_HAS(status.text, "ranks 3 and 1 ");
  ASSERT_HAS(status.text, "differ in count, type.");
  ASSERT_HAS(status.text, "Rank 3: AllReduce of 1000 x float32");
  ASSERT_HAS(status.text, "Rank 1: AllReduce of 999 x int32");
  ASSERT_HAS(status.text, "same calls in the same order");
}
END_TEST

/* The longest that there can be still ends with the remedy. */
START_TEST(longest)
{
  memset(&page.mine, 0xff, sizeof(page.mine));
  memset(&page.got, 0xfe, sizeof(page.got));
  page.mine.protocol = page.got.protocol = TT_PROTO_SIMPLE;
  page.error_peer = 1000000;
  context.rank = 1000001;
  page.error = TT_CUDA_WRONG_SIGNATURE;
  ASSERT_HAS(ask().text, "All ranks must make the same calls in the same order");
}
END_TEST

/* _i: the protocol. A hash was wrong, and the header was there. */
START_TEST(hashes)
{
  page.mine = all_reduce;
  page.mine.protocol = (uint8_t)_i;
  page.got = page.mine;
  page.got.count = 1 << 20;
  page.got.nchannels = 32;
  page.error_peer = 1;
  page.error = TT_CUDA_WRONG_SIGNATURE;
  struct tt_device_status status = ask();
  ck_assert_int_eq(status.result, ncclInvalidUsage);
  ck_assert_uint_eq(status.unexplained, 0);
  ASSERT_HAS(status.text, "differ in count, number of channels.");
  ASSERT_HAS(status.text, "Rank 3: AllReduce of 1000 x float32");
  ASSERT_HAS(status.text, "Rank 1: AllReduce of 1048576 x float32");
}
END_TEST

/* Headers that are none of the peer's operation. */
static void leave_out(struct tt_signature *got, int what)
{
  if (what == 0) *got = (struct tt_signature){0};
  if (what == 1) *got = page.mine; /* of an earlier operation */
  if (what == 2) got->nchannels = 0;
  if (what == 3) got->protocol = TT_PROTO_SIMPLE; /* which has connections of its own */
  if (what == 4) got->reserved[5] = 1;
  if (what == 5) got->datatype = 77;
  if (what == 6) got->collective = TT_NUM_FUNCS;
  if (what == 7) got->algorithm = TT_NUM_ALGORITHMS;
}

START_TEST(hash_alone)
{
  page.mine = all_reduce;
  page.mine.protocol = TT_PROTO_LL;
  page.got = page.mine;
  page.got.count = 5;
  leave_out(&page.got, _i);
  page.error_peer = 1;
  page.error = TT_CUDA_WRONG_SIGNATURE;
  struct tt_device_status status = ask();
  ck_assert_int_eq(status.result, ncclInvalidUsage);
  ck_assert_uint_eq(status.unexplained, 1);
  ASSERT_HAS(status.text, "ranks 3 and 1 ");
  ASSERT_HAS(status.text, "Rank 3: AllReduce of 1000 x float32");
  ck_assert_ptr_eq(strstr(status.text, "Rank 1"), NULL);
}
END_TEST

START_TEST(lengths)
{
  page.mine = all_reduce;
  page.expected_bytes = 4096;
  page.got_bytes = 17;
  page.error_peer = 2;
  page.error_channel = 5;
  page.error = TT_CUDA_WRONG_BYTES;
  struct tt_device_status status = ask();
  ck_assert_int_eq(status.result, ncclInternalError);
  ASSERT_HAS(status.text, "rank 3 expected a message of 4096 bytes from rank 2 on channel 5 and got one of 17");
  ASSERT_HAS(status.text, "AllReduce of 1000 x float32");
}
END_TEST

START_TEST(stalls)
{
  page.stall_peer = 6;
  page.stall_sending = 1;
  page.stalled = all_reduce;
  ck_assert_uint_eq(ask().stalled, 0); /* no count yet */
  page.stalls = 1;
  struct tt_device_status status = ask();
  ck_assert_uint_eq(status.stalled, 1);
  ck_assert_int_eq(status.peer, 6);
  ck_assert_uint_eq(status.sending, 1);
  ck_assert_uint_eq(status.signature.count, 1000);
  usleep(60000);
  page.stalls += 1;
  ck_assert_uint_eq(ask().stalled, 1);
  usleep(200000); /* it goes on: no count since */
  ck_assert_uint_eq(ask().stalled, 0);
  page.stalls += 3;
  ck_assert_uint_eq(ask().stalled, 1);
}
END_TEST

/* An older core has a shorter struct. */
START_TEST(shorter)
{
  struct {
    struct tt_device_status status;
  } older;
  memset(&older, 0x5a, sizeof(older));
  older.status.size = offsetof(struct tt_device_status, text);
  ck_assert_int_eq(tt_cuda_status(&context, &older.status), ncclSuccess);
  ck_assert_int_eq(older.status.result, ncclSuccess);
  for (size_t i = 0; i < sizeof(older.status.text); i++) ck_assert_int_eq(older.status.text[i], 0x5a);
}
END_TEST

void add_status(Suite *suite)
{
  TCase *tc = tcase_create("status");
  tcase_add_checked_fixture(tc, setup, NULL);
  tcase_add_test(tc, nothing);
  tcase_add_test(tc, signatures);
  tcase_add_test(tc, longest);
  tcase_add_loop_test(tc, hashes, TT_PROTO_LL, TT_PROTO_SIMPLE);
  tcase_add_loop_test(tc, hash_alone, 0, 8);
  tcase_add_test(tc, lengths);
  tcase_add_test(tc, stalls);
  tcase_add_test(tc, shorter);
  suite_add_tcase(suite, tc);
}
