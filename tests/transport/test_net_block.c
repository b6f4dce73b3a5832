/* The memory of an end over a network, which a device is shown or not. */
#include "device_side.h"
#include "transport/net_block.h"

static int unmaps;

static void counted_unmap(struct tt_device_context *context, void *ptr, size_t bytes)
{
  (void)context, (void)ptr, (void)bytes;
  unmaps++;
}

static ncclResult_t map_where_it_is(struct tt_device_context *context, void *ptr, size_t bytes, void **at)
{
  (void)context, (void)bytes;
  if (device_maps_fail) return ncclUnhandledCudaError;
  *at = ptr;
  return ncclSuccess;
}

/* As after slots in the device's memory that the network could not use: the end gets another block. */
START_TEST(second_block_that_is_not_shown)
{
  struct side sides[2];
  struct tt_buffers buffers;
  struct tt_net_block block = {0};
  unmaps = 0;
  device_fake.map_host = map_where_it_is;
  device_fake.unmap_host = counted_unmap;
  side_open_both(sides);
  const struct tt_transport_env *env = &sides[0].env;
  struct tt_connector end = device_half(&sides[0], true, TT_PROTO_SIMPLE);
  ck_assert_int_eq(tt_buffers_layout_far(env, end.index, &buffers), ncclSuccess);
  ck_assert_int_eq(tt_net_block_make(env, &end, &buffers, false, &block), ncclSuccess);
  tt_net_block_free(env, &block);
  ck_assert_int_eq(unmaps, 1);
  device_maps_fail = true;
  ck_assert_int_ne(tt_net_block_make(env, &end, &buffers, false, &block), ncclSuccess);
  tt_net_block_free(env, &block);
  ck_assert_int_eq(unmaps, 1); /* nothing was mapped */
  for (int s = 0; s < 2; s++) side_close(&sides[s]);
}
END_TEST

void add_net_block(Suite *suite)
{
  TCase *tc = tcase_create("net_block");
  tcase_add_checked_fixture(tc, device_use_fake, device_use_none);
  tcase_add_test(tc, second_block_that_is_not_shown);
  suite_add_tcase(suite, tc);
}
